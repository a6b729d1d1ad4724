"""vLLM's models with steering: their own classes, which also read the strengths that come with each picture.

Preparing pictures in vLLM's front process as ggss does it, with the strengths of their request beside them.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from vllm.model_executor.models.llava import (
    LlavaDummyInputsBuilder,
    LlavaForConditionalGeneration,
    LlavaMultiModalProcessor,
    LlavaProcessingInfo,
    PixtralHFMultiModalProcessor,
    PixtralHFProcessingInfo,
)
from vllm.model_executor.models.llava_next import (
    LlavaNextForConditionalGeneration,
    LlavaNextMultiModalProcessor,
    LlavaNextProcessingInfo,
)
from vllm.model_executor.models.qwen3_vl import (
    Qwen3VLDummyInputsBuilder,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMultiModalProcessor,
    Qwen3VLProcessingInfo,
)
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.inputs import MultiModalFieldConfig

from ggss.errors import InputError
from ggss.models.families import Family, known_family, tower_rows
from ggss.models.identity import StreamedWeights, skeleton
from ggss.models.loading import load_description
from ggss.models.sites import resolve
from ggss.models.vlm import Vlm
from ggss.steering.attach import NeverFired
from ggss.vllm_plugin.steering import (
    ENVIRONMENT,
    FIELD,
    PictureRows,
    ProjectorSteering,
    folders,
    key_of,
    packed,
    unpacked,
)

# pyright: reportMissingImports=false
# vLLM has an environment of its own, and is not there where types are checked.


@cache
def _described(model: str) -> tuple[Any, Any]:
    return load_description(model)


class OwnProcessor:
    """Before an `info` class of vLLM: images only, prepared by the processor with which steerers are made."""

    ctx: Any

    def get_hf_processor(self, **_: object) -> Any:
        return _described(self.ctx.model_config.model)[1]

    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        return {"image": None}


class StrengthsBeside:
    """Before a processor class of vLLM: every picture gets a field with the strengths that act on it, and its key."""

    def _apply_hf_processor_main(self, mm_items: Any, hf_kwargs: Mapping[str, Any]) -> Any:
        own = {name: value for name, value in hf_kwargs.items() if name != FIELD}
        processed = super()._apply_hf_processor_main(mm_items, own)  # type: ignore[misc]
        strengths = hf_kwargs.get(FIELD, {})
        processed[FIELD] = [packed(strengths) for _ in range(mm_items.get_all_counts().get("image", 0))]
        return processed

    def _get_mm_fields_config(self, hf_inputs: Any, hf_processor_mm_kwargs: Mapping[str, Any]) -> dict[str, Any]:
        fields = super()._get_mm_fields_config(hf_inputs, hf_processor_mm_kwargs)  # type: ignore[misc]
        return {**fields, FIELD: MultiModalFieldConfig.batched("image", keep_on_cpu=True)}

    def _merge_mm_kwargs(
        self, cache: Any, mm_hashes: Any, mm_is_cached: Any, mm_missing_kwargs: Any, mm_missing_prompt_updates: Any
    ) -> Any:
        missing = [
            own
            for own, known in zip(mm_hashes.get("image", ()), mm_is_cached.get("image", ()), strict=True)
            if not known
        ]
        _write_keys(missing, mm_missing_kwargs.get("image", ()))
        return super()._merge_mm_kwargs(  # type: ignore[misc]
            cache,
            mm_hashes=mm_hashes,
            mm_is_cached=mm_is_cached,
            mm_missing_kwargs=mm_missing_kwargs,
            mm_missing_prompt_updates=mm_missing_prompt_updates,
        )

    def _apply_hf_processor(self, inputs: Any, timing_ctx: Any) -> Any:
        result = super()._apply_hf_processor(inputs, timing_ctx)  # type: ignore[misc]
        _write_keys(result.hashes.get("image", ()), result.kwargs.get("image", ()))
        return result


def _write_keys(hashes: Any, items: Any) -> None:
    for own, item in zip(hashes, items, strict=True):
        item[FIELD].data[0] = key_of(own)


class LlavaNextInfo(OwnProcessor, LlavaNextProcessingInfo):
    pass


class LlavaNextStrengths(StrengthsBeside, LlavaNextMultiModalProcessor):
    pass


class LlavaInfo(OwnProcessor, LlavaProcessingInfo):
    pass


class LlavaStrengths(StrengthsBeside, LlavaMultiModalProcessor):
    pass


class PixtralInfo(OwnProcessor, PixtralHFProcessingInfo):
    pass


class PixtralStrengths(StrengthsBeside, PixtralHFMultiModalProcessor):
    pass


def llava_info(ctx: Any) -> LlavaInfo | PixtralInfo:
    """vLLM has one class for LLaVA and Pixtral, with a processor for each."""
    pixtral = ctx.get_hf_config().vision_config.model_type == "pixtral"
    kind: Any = PixtralInfo if pixtral else LlavaInfo
    return kind(ctx)


def llava_strengths(info: Any, dummy_inputs: Any) -> LlavaStrengths | PixtralStrengths:
    kind: Any = PixtralStrengths if isinstance(info, PixtralInfo) else LlavaStrengths
    return kind(info, dummy_inputs)


class Qwen3VLInfo(OwnProcessor, Qwen3VLProcessingInfo):
    def get_supported_mm_processor_kwargs(self) -> dict[str, set[str]]:
        """Without Qwen3-VL's own, which adds settings of videos."""
        return super(Qwen3VLProcessingInfo, self).get_supported_mm_processor_kwargs()

    def get_mm_max_tokens_per_item(self, seq_len: int, mm_counts: Mapping[str, int]) -> Mapping[str, int]:
        return {"image": self.get_max_image_tokens()}


class Qwen3VLStrengths(StrengthsBeside, Qwen3VLMultiModalProcessor):
    pass


class Qwen3VLDummies(Qwen3VLDummyInputsBuilder):
    """What vLLM tries its memory with: images only."""

    def get_dummy_mm_data(self, seq_len: int, mm_counts: Mapping[str, int], mm_options: Any) -> Any:
        width, height = self.info.get_image_size_with_most_features()
        images = mm_counts.get("image", 0)
        return {"image": self._get_dummy_images(width=width, height=height, num_images=images)}


# pyright: reportMissingImports=false
# vLLM has an environment of its own, and is not there where types are checked.


Weights = Iterable[tuple[str, Tensor]]


class SteeredPictures:
    """Before a model class of vLLM. `steering` is there once the weights are."""

    config: Any
    steering: ProjectorSteering

    def __init__(self, *, vllm_config: Any, prefix: str = "", **others: Any) -> None:
        _check_settings(vllm_config)
        self._name: str = vllm_config.model_config.model
        super().__init__(vllm_config=vllm_config, prefix=prefix, **others)  # type: ignore[call-arg]

    def load_weights(self, weights: Weights) -> set[str]:
        """vLLM's; what passes is the model that steerers are checked against."""
        config, processor = load_description(self._name)
        described = skeleton(config)
        passing = StreamedWeights(described)
        loaded = super().load_weights(self.renamed(passing.through(weights)))  # type: ignore[misc]
        paths, model = self.family.site_paths(config), cast(nn.Module, self)
        if changed := passing.changed(model.named_parameters()):
            raise InputError(f"vLLM holds another {changed[0]} than the checkpoint has: steering it would be a guess")
        modules = {site: resolve(model, path.removeprefix("model.")) for site, path in paths.items()}
        whole = Vlm(described, processor, self._name)
        self.steering = ProjectorSteering(whole, passing.fingerprint, modules, passing.content)
        for folder in folders(os.environ.get(ENVIRONMENT, "")).values():
            self.steering.load(folder)
        return loaded

    def embed_multimodal(self, **inputs: Any) -> Any:
        """The pictures of a batch, each steered as its request asks for."""
        words = inputs.pop(FIELD, None)
        if words is None:
            raise NeverFired("pictures came without their strengths: no answer is given")
        pictures = [unpacked(own.cpu()) for own in words]
        with self.steering.acting(pictures, self.picture_rows(inputs)):
            return super().embed_multimodal(**inputs)  # type: ignore[misc]

    @property
    def family(self) -> Family:
        found = known_family(self.config)
        assert found is not None  # the classes below are of known families
        return found

    def renamed(self, weights: Weights) -> Iterator[tuple[str, Tensor]]:
        """transformers saves some towers without a part of the names that vLLM's have."""
        added = "vision_model." if hasattr(getattr(self, "vision_tower", None), "vision_model") else ""
        for name, weight in weights:
            yield re.sub(r"^((model\.)?vision_tower\.)(?!vision_model\.)", rf"\1{added}", name), weight

    def picture_rows(self, inputs: Mapping[str, Any]) -> list[PictureRows]:
        """Of each picture in what `embed_multimodal` gets."""
        return [PictureRows(own, own) for own in self.family.rows_per_image(self, inputs)]


@MULTIMODAL_REGISTRY.register_processor(LlavaNextStrengths, info=LlavaNextInfo, dummy_inputs=LlavaDummyInputsBuilder)
class SteeredLlavaNext(SteeredPictures, LlavaNextForConditionalGeneration):
    def picture_rows(self, inputs: Mapping[str, Any]) -> list[PictureRows]:
        """The images of one request are filled up to the same number of tiles."""
        rows = self.family.rows_per_image(self, {"image_sizes": _stacked(inputs["image_sizes"])})
        held = [len(tiles) * tower_rows(self) for tiles in inputs["pixel_values"]]
        return [PictureRows(own, all_of_it) for own, all_of_it in zip(rows, held, strict=True)]


@MULTIMODAL_REGISTRY.register_processor(llava_strengths, info=llava_info, dummy_inputs=LlavaDummyInputsBuilder)
class SteeredLlava(SteeredPictures, LlavaForConditionalGeneration):
    """Pixtral too."""

    def picture_rows(self, inputs: Mapping[str, Any]) -> list[PictureRows]:
        sizes = torch.tensor([own.shape[-2:] for own in inputs["pixel_values"]])
        return super().picture_rows({**inputs, "image_sizes": sizes})


@MULTIMODAL_REGISTRY.register_processor(Qwen3VLStrengths, info=Qwen3VLInfo, dummy_inputs=Qwen3VLDummies)
class SteeredQwen3VL(SteeredPictures, Qwen3VLForConditionalGeneration):
    pass


CLASSES: Mapping[str, type] = {
    "LlavaNextForConditionalGeneration": SteeredLlavaNext,
    "LlavaForConditionalGeneration": SteeredLlava,
    "Qwen3VLForConditionalGeneration": SteeredQwen3VL,
}
"""By the architecture's name in a model's config."""


def _stacked(sizes: Tensor | Sequence[Tensor]) -> Tensor:
    return sizes if isinstance(sizes, Tensor) else torch.stack(list(sizes))


def _check_settings(vllm_config: Any) -> None:
    """InputError for settings with which vLLM would encode pictures past the hooks."""
    compilation, multimodal = vllm_config.compilation_config, vllm_config.model_config.multimodal_config
    for name in ("compile_mm_encoder", "cudagraph_mm_encoder"):
        if getattr(compilation, name, False):
            raise InputError(f"steering needs the vision tower to run as it is: leave out vLLM's {name}")
    if getattr(multimodal, "mm_encoder_tp_mode", "weights") == "data":
        raise InputError("steering needs all pictures of a batch in one place: leave out --mm-encoder-tp-mode data")
