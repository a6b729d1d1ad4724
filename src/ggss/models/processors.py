"""Processors that turn images and text into model inputs without torchvision.

LLaVA-NeXT's processor of transformers is used as it is. Pixtral's module imports torchvision, and Qwen3-VL's needs a
video processor that does, so both are replaced by small classes here. Others that need a video processor are used
without it. The classes keep the names they have in transformers, because these are written to
`processor_config.json`: a Pixtral or Qwen3-VL directory saved here loads with plain `AutoProcessor` where torchvision
is installed, and any ordinary directory loads here.
"""

from functools import cache
from typing import Any

import numpy as np
import transformers
from transformers import AutoImageProcessor, AutoProcessor
from transformers.models.auto import processing_auto
from transformers.models.pixtral.image_processing_pil_pixtral import get_resize_output_image_size
from transformers.models.qwen3_vl import processing_qwen3_vl
from transformers.models.smolvlm import processing_smolvlm
from transformers.processing_utils import ProcessorMixin

from ggss.errors import InputError

BACKEND = "pil"
"""The image backend. Pixel values of torchvision's differ by up to 0.015, so artefacts record this name."""


def backend_of(processor: Any) -> str:
    """The image backend that a processor uses. With torchvision installed, some processors use only that."""
    bases = {base.__name__ for base in type(processor.image_processor).__mro__}
    return "torchvision" if "TorchvisionBackend" in bases else BACKEND


class PixtralProcessor(ProcessorMixin):
    """An image becomes rows of `[IMG]`, each followed by `[IMG_BREAK]` and the last one by `[IMG_END]`."""

    def __init__(
        self,
        image_processor: Any = None,
        tokenizer: Any = None,
        patch_size: int = 16,
        spatial_merge_size: int = 1,
        chat_template: str | None = None,
        image_token: str = "[IMG]",
        image_break_token: str = "[IMG_BREAK]",
        image_end_token: str = "[IMG_END]",
        **_: Any,
    ) -> None:
        super().__init__(image_processor, tokenizer, chat_template=chat_template)
        self.patch_size = patch_size
        self.spatial_merge_size = spatial_merge_size
        self.image_token, self.image_token_id = image_token, tokenizer.convert_tokens_to_ids(image_token)
        self.image_break_token = image_break_token
        self.image_end_token = image_end_token

    def _process_images(self, images: Any, **kwargs: Any) -> Any:
        return super()._process_images(images, **kwargs | {"patch_size": self.patch_size * self.spatial_merge_size})

    def replace_image_token(self, image_inputs: Any, image_idx: int, **_: Any) -> str:
        height, width = image_inputs["image_sizes"][image_idx]
        patch = self.patch_size * self.spatial_merge_size
        row = self.image_token * (int(width) // patch)
        return self.image_break_token.join([row] * (int(height) // patch)) + self.image_end_token

    def _get_num_multimodal_tokens(self, image_sizes: Any, **_: Any) -> dict[str, list[int]]:
        """The number of tokens of images of these sizes (height, width), as other processors return it."""
        longest, patch = self.image_processor.size["longest_edge"], self.patch_size * self.spatial_merge_size
        resized = [
            # Only the shape of the array is used.
            get_resize_output_image_size(
                np.broadcast_to(np.uint8(0), (*size, 3)), (longest, longest), (patch, patch), "channels_last"
            )
            for size in image_sizes
        ]
        return {"num_image_tokens": [(width // patch + 1) * (height // patch) for height, width in resized]}


class Qwen3VLProcessor(processing_qwen3_vl.Qwen3VLProcessor):
    """Qwen3-VL's own processor, for images only."""

    def __init__(
        self, image_processor: Any = None, tokenizer: Any = None, chat_template: Any = None, **_: Any
    ) -> None:
        super().__init__(image_processor, tokenizer, None, chat_template=chat_template)

    def to_dict(self) -> dict[str, Any]:
        """What is saved, with a video processor, because plain transformers requires one."""
        image = self.image_processor
        video = {"video_processor_type": "Qwen3VLVideoProcessor", "size": dict(image.size)}
        video |= {key: getattr(image, key) for key in ("patch_size", "temporal_patch_size", "merge_size")}
        return super().to_dict() | {"video_processor": video}


class _NoVideo:
    """Replaces a video processor: some classes read its settings even without videos.

    Its settings are those of the image processor; None if that has none of the name.
    """

    def __init__(self, images: Any) -> None:
        self._images = images

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._images, name, None)


class _WithoutVideo(ProcessorMixin):
    """Replaces `ProcessorMixin` as the base of a transformers class that also needs a video processor."""

    @property
    def video_processor(self) -> _NoVideo:
        return _NoVideo(vars(self).get("image_processor"))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        arguments = dict(zip(super().get_attributes(), args, strict=False)) | kwargs
        arguments.pop("video_processor", None)
        super().__init__(**arguments)

    @classmethod
    def get_attributes(cls) -> list[str]:
        return [name for name in super().get_attributes() if name != "video_processor"]

    @classmethod
    def _get_arguments_from_pretrained(cls, *args: Any, **kwargs: Any) -> list[Any]:
        # The class's own `__init__` gets these by position, and has a parameter for the video processor.
        loaded, attributes = super()._get_arguments_from_pretrained(*args, **kwargs), super().get_attributes()
        if "video_processor" in attributes:
            loaded.insert(attributes.index("video_processor"), None)
        return loaded


@cache
def images_only(base: Any) -> type[ProcessorMixin]:
    """A processor class of transformers without its video processor, which needs torchvision."""
    return type(base.__name__, (base, _WithoutVideo), {"__module__": __name__})


_SmolVLM: Any = processing_smolvlm.SmolVLMProcessor  # whose methods take other arguments than the mixin's


class SmolVLMProcessor(_SmolVLM, _WithoutVideo):
    """SmolVLM's own processor, for images only; without the package num2words, which it needs for videos."""

    def __init__(
        self,
        image_processor: Any = None,
        tokenizer: Any = None,
        video_processor: Any = None,
        image_seq_len: int = 169,
        chat_template: str | None = None,
    ) -> None:
        module: Any = processing_smolvlm
        words = module.num2words
        module.num2words = words or str
        try:
            super().__init__(image_processor, tokenizer, video_processor, image_seq_len, chat_template)
        finally:
            module.num2words = words


_OURS: dict[tuple[str, str | None], type[ProcessorMixin]] = {
    ("llava", "pixtral"): PixtralProcessor,
    ("mistral3", None): PixtralProcessor,
    ("mistral_large4", None): PixtralProcessor,
    ("smolvlm", None): SmolVLMProcessor,
    ("qwen3_vl", None): Qwen3VLProcessor,
    ("qwen3_vl_moe", None): Qwen3VLProcessor,
    ("qwen3_5", None): Qwen3VLProcessor,
    ("qwen3_5_moe", None): Qwen3VLProcessor,
}


def processor_class(config: Any, class_name: str = "") -> type[ProcessorMixin] | None:
    """The class that replaces the processor which `AutoProcessor` would choose; None: that one is used.

    class_name: what the model's own files name, for model types for which transformers names none.
    """
    tower = getattr(getattr(config, "vision_config", None), "model_type", None)
    if ours := _OURS.get((config.model_type, tower)) or _OURS.get((config.model_type, None)):
        return ours
    names: Any = vars(processing_auto)["PROCESSOR_MAPPING_NAMES"]
    original: Any = getattr(transformers, names.get(config.model_type) or class_name, None)
    if not isinstance(original, type) or not issubclass(original, ProcessorMixin):
        return None
    return images_only(original) if "video_processor" in original.get_attributes() else None


def torchvision_needed(kind: str) -> InputError:
    """The error for a type of models whose images cannot be prepared without torchvision."""
    return InputError(
        f"the image processor of {kind} models needs torchvision: install the torchvision that fits your torch, or "
        "use a model of another family (docs/families.md lists them)"
    )


def load_processor(path: str, config: Any, trust_remote_code: bool = False) -> Any:
    """The processor of the model in a directory (or on the hub), with the PIL backend and left padding."""
    ours = processor_class(config, _declared_class(path))
    try:
        processor: Any = (ours or AutoProcessor).from_pretrained(path, trust_remote_code=trust_remote_code)
        processor.image_processor = AutoImageProcessor.from_pretrained(
            path, backend=BACKEND, trust_remote_code=trust_remote_code
        )
    except ImportError as error:
        if "torchvision" not in str(error).lower():
            raise
        raise torchvision_needed(config.model_type) from error
    processor.tokenizer.padding_side = "left"
    if processor.tokenizer.pad_token is None:
        processor.tokenizer.pad_token = processor.tokenizer.eos_token
    return processor


def _declared_class(path: str) -> str:
    """The processor class that a model's own files name; "" if they name none."""
    try:
        settings: Any = ProcessorMixin.get_processor_dict(path)[0]
    except OSError:
        return ""
    return settings.get("processor_class") or ""
