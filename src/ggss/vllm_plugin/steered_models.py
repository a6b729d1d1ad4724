"""vLLM's models with steering: their own classes, which also read the strengths that come with each picture."""

# pyright: reportMissingImports=false
# vLLM has an environment of its own, and is not there where types are checked.

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from vllm.model_executor.models.llava import LlavaDummyInputsBuilder, LlavaForConditionalGeneration
from vllm.model_executor.models.llava_next import LlavaNextForConditionalGeneration
from vllm.model_executor.models.qwen3_vl import Qwen3VLForConditionalGeneration
from vllm.multimodal import MULTIMODAL_REGISTRY

from ggss.errors import InputError
from ggss.models.families import Family, known_family
from ggss.models.family_llava import tower_rows
from ggss.models.loading import load_description
from ggss.models.projector import resolve
from ggss.models.streamed_weights import StreamedWeights, skeleton
from ggss.models.vlm import Vlm
from ggss.steering.attachment import NeverFired
from ggss.vllm_plugin import steered_processing as processing
from ggss.vllm_plugin.asked_strengths import ENVIRONMENT, folders
from ggss.vllm_plugin.projector_steering import PictureRows, ProjectorSteering
from ggss.vllm_plugin.strength_words import FIELD, unpacked

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


@MULTIMODAL_REGISTRY.register_processor(
    processing.LlavaNextStrengths, info=processing.LlavaNextInfo, dummy_inputs=LlavaDummyInputsBuilder
)
class SteeredLlavaNext(SteeredPictures, LlavaNextForConditionalGeneration):
    def picture_rows(self, inputs: Mapping[str, Any]) -> list[PictureRows]:
        """The images of one request are filled up to the same number of tiles."""
        rows = self.family.rows_per_image(self, {"image_sizes": _stacked(inputs["image_sizes"])})
        held = [len(tiles) * tower_rows(self) for tiles in inputs["pixel_values"]]
        return [PictureRows(own, all_of_it) for own, all_of_it in zip(rows, held, strict=True)]


@MULTIMODAL_REGISTRY.register_processor(
    processing.llava_strengths, info=processing.llava_info, dummy_inputs=LlavaDummyInputsBuilder
)
class SteeredLlava(SteeredPictures, LlavaForConditionalGeneration):
    """Pixtral too."""

    def picture_rows(self, inputs: Mapping[str, Any]) -> list[PictureRows]:
        sizes = torch.tensor([own.shape[-2:] for own in inputs["pixel_values"]])
        return super().picture_rows({**inputs, "image_sizes": sizes})


@MULTIMODAL_REGISTRY.register_processor(
    processing.Qwen3VLStrengths, info=processing.Qwen3VLInfo, dummy_inputs=processing.Qwen3VLDummies
)
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
