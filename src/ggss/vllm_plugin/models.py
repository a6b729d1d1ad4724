"""vLLM's model and processor classes with steering.

In the front process a processor class prepares pictures as ggss does and adds a field with the strengths of their
request (`StrengthsBeside`). In the model's process a model class reads this field and steers (`SteeredPictures`).
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
from ggss.models.sites import resolve
from ggss.models.vlm import Vlm, load_description
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
# vLLM has an environment of its own, and is not installed where types are checked.

Weights = Iterable[tuple[str, Tensor]]


@cache
def _described(model: str) -> tuple[Any, Any]:
    return load_description(model)


class OwnProcessor:
    """A base before an `info` class of vLLM: images only, prepared by the processor that steerers are fitted with."""

    ctx: Any

    def get_hf_processor(self, **_: object) -> Any:
        return _described(self.ctx.model_config.model)[1]

    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        return {"image": None}


class StrengthsBeside:
    """A base before a processor class of vLLM: each picture gets a field with its key and the strengths on it."""

    def _apply_hf_processor_main(self, mm_items: Any, hf_kwargs: Mapping[str, Any]) -> Any:
        options = {name: value for name, value in hf_kwargs.items() if name != FIELD}
        processed = super()._apply_hf_processor_main(mm_items, options)  # type: ignore[misc]
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
            mm_hash
            for mm_hash, is_cached in zip(mm_hashes.get("image", ()), mm_is_cached.get("image", ()), strict=True)
            if not is_cached
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
    for mm_hash, item in zip(hashes, items, strict=True):
        item[FIELD].data[0] = key_of(mm_hash)


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
    """The inputs with which vLLM measures memory: images only."""

    def get_dummy_mm_data(self, seq_len: int, mm_counts: Mapping[str, int], mm_options: Any) -> Any:
        width, height = self.info.get_image_size_with_most_features()
        images = mm_counts.get("image", 0)
        return {"image": self._get_dummy_images(width=width, height=height, num_images=images)}


class SteeredPictures:
    """A base before a model class of vLLM. `steering` exists after `load_weights`."""

    config: Any
    steering: ProjectorSteering

    def __init__(self, *, vllm_config: Any, prefix: str = "", **options: Any) -> None:
        _check_settings(vllm_config)
        self._name: str = vllm_config.model_config.model
        super().__init__(vllm_config=vllm_config, prefix=prefix, **options)  # type: ignore[call-arg]

    def load_weights(self, weights: Weights) -> set[str]:
        """Load the weights as vLLM does, and fingerprint them: steerers are checked against that."""
        config, processor = load_description(self._name)
        empty = skeleton(config)
        stream = StreamedWeights(empty)
        loaded = super().load_weights(self.renamed(stream.through(weights)))  # type: ignore[misc]
        paths, model = self.family.site_paths(config), cast(nn.Module, self)
        if changed := stream.changed(model.named_parameters()):
            raise InputError(
                f"vLLM has changed the weight {changed[0]} of the checkpoint: steering it would be a guess"
            )
        modules = {site: resolve(model, path.removeprefix("model.")) for site, path in paths.items()}
        vlm = Vlm(empty, processor, self._name)
        self.steering = ProjectorSteering(vlm, stream.fingerprint, modules, stream.content)
        for folder in folders(os.environ.get(ENVIRONMENT, "")).values():
            self.steering.load(folder)
        return loaded

    def embed_multimodal(self, **inputs: Any) -> Any:
        """The embeddings of the pictures of a batch, each steered at its request's strengths."""
        packed_strengths = inputs.pop(FIELD, None)
        if packed_strengths is None:
            raise NeverFired("pictures came without their strengths: no answer is given")
        pictures = [unpacked(strengths.cpu()) for strengths in packed_strengths]
        with self.steering.acting(pictures, self.picture_rows(inputs)):
            return super().embed_multimodal(**inputs)  # type: ignore[misc]

    @property
    def family(self) -> Family:
        family = known_family(self.config)
        assert family is not None  # the classes below are of known families
        return family

    def renamed(self, weights: Weights) -> Iterator[tuple[str, Tensor]]:
        """The weights by vLLM's names: transformers leaves out a part of the names of some towers."""
        added = "vision_model." if hasattr(getattr(self, "vision_tower", None), "vision_model") else ""
        for name, weight in weights:
            yield re.sub(r"^((model\.)?vision_tower\.)(?!vision_model\.)", rf"\1{added}", name), weight

    def picture_rows(self, inputs: Mapping[str, Any]) -> list[PictureRows]:
        """The rows of each picture in the inputs of `embed_multimodal`."""
        return [PictureRows(count, count) for count in self.family.rows_per_image(self, inputs)]


@MULTIMODAL_REGISTRY.register_processor(LlavaNextStrengths, info=LlavaNextInfo, dummy_inputs=LlavaDummyInputsBuilder)
class SteeredLlavaNext(SteeredPictures, LlavaNextForConditionalGeneration):
    def picture_rows(self, inputs: Mapping[str, Any]) -> list[PictureRows]:
        """vLLM pads the images of a request to the same number of tiles."""
        rows = self.family.rows_per_image(self, {"image_sizes": _stacked(inputs["image_sizes"])})
        padded = [len(tiles) * tower_rows(self) for tiles in inputs["pixel_values"]]
        return [PictureRows(*counts) for counts in zip(rows, padded, strict=True)]


@MULTIMODAL_REGISTRY.register_processor(llava_strengths, info=llava_info, dummy_inputs=LlavaDummyInputsBuilder)
class SteeredLlava(SteeredPictures, LlavaForConditionalGeneration):
    """Pixtral too."""

    def picture_rows(self, inputs: Mapping[str, Any]) -> list[PictureRows]:
        sizes = torch.tensor([pixels.shape[-2:] for pixels in inputs["pixel_values"]])
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
    """InputError for settings with which vLLM encodes pictures without calling hooks."""
    compilation, multimodal = vllm_config.compilation_config, vllm_config.model_config.multimodal_config
    for name in ("compile_mm_encoder", "cudagraph_mm_encoder"):
        if getattr(compilation, name, False):
            raise InputError(f"steering needs the vision tower to run as it is: leave out vLLM's {name}")
    if getattr(multimodal, "mm_encoder_tp_mode", "weights") == "data":
        raise InputError("steering needs all pictures of a batch in one place: leave out --mm-encoder-tp-mode data")
