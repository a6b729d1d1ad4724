"""Preparing pictures in vLLM's front process as ggss does it, with the strengths of their request beside them."""

# pyright: reportMissingImports=false
# vLLM has an environment of its own, and is not there where types are checked.

from collections.abc import Mapping
from functools import cache
from typing import Any

from vllm.model_executor.models.llava import (
    LlavaMultiModalProcessor,
    LlavaProcessingInfo,
    PixtralHFMultiModalProcessor,
    PixtralHFProcessingInfo,
)
from vllm.model_executor.models.llava_next import LlavaNextMultiModalProcessor, LlavaNextProcessingInfo
from vllm.model_executor.models.qwen3_vl import (
    Qwen3VLDummyInputsBuilder,
    Qwen3VLMultiModalProcessor,
    Qwen3VLProcessingInfo,
)
from vllm.multimodal.inputs import MultiModalFieldConfig

from ggss.models.loading import load_description
from ggss.vllm_plugin.strength_words import FIELD, key_of, packed


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
