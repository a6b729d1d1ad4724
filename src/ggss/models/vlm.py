"""A vision-language model that answers and scores questions about images, and encodes an image once for many uses.

`load_vlm` loads one by name: from a registered collection, a directory, or the hub.
"""

import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import chain
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import AutoConfig, AutoModelForImageTextToText, dynamic_module_utils
from transformers.utils import logging as transformers_logging

from ggss import errors
from ggss.errors import InputError
from ggss.models import locate, snapshot
from ggss.models.families import Family
from ggss.models.features import Features, ImageOrFeatures
from ggss.models.hooks import acting_before_text, captured, layer_rows
from ggss.models.identity import (
    COMPILED,
    ModelIdentity,
    check_unchanged,
    exported_words,
    fingerprint,
    text_fingerprint,
    text_settings,
    unwrapped,
    visual_identity,
    visual_settings,
    whole_identity,
)
from ggss.models.placement import (
    USABLE,
    ModelSize,
    check_placement,
    execution_device,
    free_memory,
    placement,
    use_float32_products,
)
from ggss.models.processors import backend_of, load_processor
from ggss.models.prompts import Prompts, prepare_images
from ggss.models.reading import Answer, Batches, Choice, ModelInputs, VlmReader
from ggss.models.site_search import family_of, prepared_by
from ggss.models.sites import MLP1, MLP2, image_features, is_layer
from ggss.terminal import quiet

log = logging.getLogger(__name__)


def encoded(
    model: Any, processor: Any, family: Family, images: Sequence[Image.Image], sites: Mapping[str, str]
) -> list[Features]:
    """Each image's rows at the sites (name -> module path), as hooks on them have changed them; one batch."""
    inputs, placeholders = prepare_images(model, processor, images)
    with captured(model, sites) as captures:
        image_features(model, inputs)
    rows = {site: torch.cat(outputs) for site, outputs in captures.items()}
    counts = [len(next(iter(rows.values())))] if len(images) == 1 else family.rows_per_image(model, inputs)
    if len(counts) != len(images) or any(sum(counts) != len(of_site) for of_site in rows.values()):
        lengths = ", ".join(f"{len(of_site)} at {site}" for site, of_site in rows.items())
        raise InputError(
            f"{family.name}: {len(images)} images should have {counts} rows, the model gave {lengths}: "
            "use batch_size=1, or correct the family's rows_per_image"
        )
    split = {site: all_rows.split(counts) for site, all_rows in rows.items()}
    # What has a row for each image; what has one for each tile is not needed once the tower has run.
    sizes = {
        name: value
        for name, value in inputs.items()
        if not name.startswith("pixel") and isinstance(value, Tensor) and len(value) == len(images)
    }
    under = acting_before_text(model)
    return [
        Features(
            rows={site: parts[i].clone() for site, parts in split.items()},
            inputs={name: value[i].clone() for name, value in sizes.items()},
            placeholder=placeholder,
            under=under,
        )
        for i, placeholder in enumerate(placeholders)
    ]


class Vlm:
    """A transformers model and its processor. Answers are greedy; hooks on the model act in every method.

    Of a compiled or PEFT model it has the model inside, with its adapters. `ggss.load_vlm` makes one from a name.

    Args:
        model: an image-text-to-text model of transformers.
        processor: its processor.
        name: how it is called; the class unless given.

    Raises:
        InputError: if the model cannot be used with images, or the processor was not made for it.

    Examples:
        >>> ggss.Vlm(vlm.model, vlm.processor, "mine").name
        'mine'
    """

    def __init__(self, model: Any, processor: Any, name: str = "") -> None:
        _check_usable(model)
        self.model = unwrapped(model).eval()
        self.processor = processor
        self.name = name or type(model).__name__
        self._prompt_cache: Prompts | None = None
        self._asking, self._encoding = Batches("questions"), Batches("images")
        self._sharing = Batches("questions about the same pictures")
        self.share_prefix = True
        """Whether `read` lets questions about the same encoded pictures share one pass over them, where it pays."""
        prepared_by(self.model, processor)

    @property
    def _prompts(self) -> Prompts:
        """The prompts that were written and tokenised before, by the processor as it is now."""
        if self._prompt_cache is None or not self._prompt_cache.is_of(self.processor):
            self._prompt_cache = Prompts(self.processor)
        return self._prompt_cache

    # The next two refer back to this object. If it kept them, its memory would not be freed at once with the last
    # reference to it.
    @property
    def _inputs(self) -> ModelInputs:
        return ModelInputs(self, self._prompts)

    @property
    def _reader(self) -> VlmReader:
        return VlmReader(self, self._inputs, self._asking, self._sharing)

    @cached_property
    def family(self) -> Family:
        """The model's family; if it is unknown, it is found by encoding two pictures (`site_search`)."""
        return family_of(self.model)

    def pixels(self, images: Sequence[Image.Image]) -> dict[str, Tensor]:
        """What the vision tower needs for the images."""
        return prepare_images(self.model, self.processor, images)[0]

    @property
    def device(self) -> torch.device:
        """Where the model's inputs go."""
        return torch.device(execution_device(self.model))

    @property
    def backend(self) -> str:
        """Which library prepares images: pixel values differ between them."""
        return backend_of(self.processor)

    @property
    def visual_identity(self) -> ModelIdentity:
        """All that decides the visual tokens, as the model is now; what is kept of images is kept under it.

        InputError if it cannot be identified, because of hooks or replaced methods.
        """
        check_unchanged(self.model)
        return visual_identity(self.model, self.processor)

    @property
    def identity(self) -> ModelIdentity:
        """The same for all that decides the answers. A weight is hashed once, and again when it has changed."""
        check_unchanged(self.model, text=True)
        return whole_identity(self.model, self.processor)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the weights an image passes through, in whatever dtype, as an artefact records it."""
        return fingerprint(self.model)

    def describe(self, text: bool = False) -> dict[str, Any]:
        """What an artefact records about the model it was made with; text: the text model was part of that."""
        of_text = {}
        if text:
            of_text["text_fingerprint"] = text_fingerprint(self.model)
            of_text["text_settings"] = text_settings(self.model, self.processor)
        return of_text | {
            "model": self.name,
            "revision": getattr(self.model.config, "_commit_hash", None),
            "family": self.family.name,
            "fingerprint": self.fingerprint,
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "backend": self.backend,
            "settings": visual_settings(self.model, self.processor),
            "identity": dict(visual_identity(self.model, self.processor).parts),
            "sites": list(self.sites("all")),
            "paths": self.family.site_paths(self.model.config),
        }

    def sites(self, which: str | Sequence[str] = MLP2) -> dict[str, str]:
        """Site name -> module path, for one name, several, or "all": every output of a projector."""
        return self.family.sites(self.model, which)

    def limit_batch(self, tokens: int) -> None:
        """From now on, ask no more questions at a time than fit in the memory that is free now.

        tokens: of a prompt and its answer, the longest there will be.
        """
        free = free_memory(self.device)
        if free is not None:
            each = ModelSize.of(self.model.config).question(tokens, self.model.dtype)
            self._asking.most = max(1, int(USABLE * free) // each)

    @torch.inference_mode()
    def encode(
        self, images: Sequence[Image.Image], sites: str | Sequence[str] | None = None, batch_size: int = 8
    ) -> list[Features]:
        """Run the vision tower and projector, never the text model, and keep the rows of the sites.

        By default these are the outputs of all projectors; with `sites`, these and the others that the text model
        needs. The rows are kept as hooks on the sites have changed them.
        """
        outputs = self.sites("all")
        selected = outputs if sites is None else self.sites(sites)
        if inner := [site for site in selected if is_layer(site)]:
            raise InputError(
                f"features are what the projector gives out and do not have {inner[0]!r}: "
                "ggss.collect runs the model over images and keeps the rows of such sites"
            )
        # The hidden site replaces the output that is computed from it.
        paths = {name: path for name, path in outputs.items() if name != MLP2 or MLP1 not in selected} | selected
        size = batch_size if self.family.batched else 1
        return self._encoding(
            images, size, lambda batch: encoded(self.model, self.processor, self.family, batch, paths)
        )

    def layer_rows(
        self, images: Sequence[Image.Image], sites: Sequence[str], prompt: str, batch_size: int = 8
    ) -> list[dict[str, Tensor]]:
        """Each image's rows [T, D] at sites inside the vision tower and the text model, with a prompt about it."""
        paths = self.sites(sites)
        return self._encoding(images, batch_size, lambda batch: layer_rows(self, batch, paths, prompt))

    @torch.inference_mode()
    def answer(
        self,
        questions: Sequence[str],
        images: Sequence[Sequence[ImageOrFeatures]],
        max_new_tokens: int = 64,
        batch_size: int = 16,
    ) -> list[str]:
        """One greedy answer to each question about its images (none, one or several), which come before it.

        Args:
            questions: the prompts, without a chat template.
            images: for each question its images, PIL images or encoded features.
            max_new_tokens: the longest answer.
            batch_size: questions that are asked together.

        Returns:
            The answers.

        Raises:
            InputError: if questions and images are not equally many, or a number is out of its range.

        Examples:
            >>> image = faces.pictures[0].image()
            >>> vlm.answer(["which gender is this person ?"], [[image]]) == [faces.pictures[0].attributes["gender"]]
            True
        """
        _check(questions, images)
        errors.TOKENS.check("the longest answer, in tokens,", max_new_tokens)
        return self._reader.answer(list(zip(questions, images, strict=True)), max_new_tokens, batch_size)

    @torch.inference_mode()
    def generate(
        self,
        sequences: Sequence[list[int]],
        images: Sequence[Sequence[ImageOrFeatures]],
        max_new_tokens: int,
        processor: Any,
        stop: Any,
    ) -> None:
        """Go on with prompts that are token ids, all in one batch.

        processor: a logits processor of transformers, which sees what may come next. stop: a stopping criterion.
        """
        self._reader.generate(self._inputs.of_tokens(sequences, images), max_new_tokens, [processor], [stop])

    @torch.inference_mode()
    def logits(self, questions: Sequence[str], images: Sequence[Sequence[ImageOrFeatures]]) -> Tensor:
        """The next-token logits [questions, vocabulary] in float32, all questions in one batch."""
        _check(questions, images)
        inputs = self._inputs.of_questions(questions, images)
        return self.model(**inputs, logits_to_keep=1, use_cache=False).logits[:, -1].float()

    @torch.inference_mode()
    def score(
        self,
        questions: Sequence[str],
        images: Sequence[Sequence[ImageOrFeatures]],
        options: Sequence[Sequence[str]],
        batch_size: int = 16,
    ) -> list[list[float]]:
        """log P(option | prompt) of each question's options, summed over the option's tokens (no end token)."""
        _check(questions, images)
        if len(options) != len(questions) or not all(map(len, options)) or not all(map(str.strip, chain(*options))):
            raise InputError(
                f"each question needs a list of non-empty options: {len(questions)} questions, "
                f"{len(options)} lists of {sorted({len(choice) for choice in options})} options"
            )
        return self._reader.score(list(zip(questions, images, options, strict=True)), batch_size)

    @torch.inference_mode()
    def read(
        self,
        questions: Sequence[str],
        images: Sequence[Sequence[ImageOrFeatures]],
        options: Sequence[Sequence[str]],
        max_new_tokens: int = 8,
        batch_size: int = 16,
    ) -> list[Answer]:
        """One greedy answer to each question, and the probabilities of its options, which sum to 1; () if none.

        The same as from `answer` and `score`. If the answer and all options are single tokens, it takes one pass.
        """
        _check(questions, images)
        errors.TOKENS.check("the longest answer, in tokens,", max_new_tokens)
        if len(options) != len(questions):
            raise InputError(
                f"each question needs a list of options: {len(questions)} questions, {len(options)} lists"
            )
        return self._reader.read(list(zip(questions, images, options, strict=True)), max_new_tokens, batch_size)

    def option_logits(self, choices: Sequence[Choice]) -> tuple[Tensor, list[list[int]]]:
        """The next token's logits [questions, vocabulary] in one batch, and the tokens of each question's options.

        Gradients are kept, if they are enabled, back to the rows of features that need them: so a method can learn
        through the frozen model. InputError if an option is longer than a token.
        """
        return self._reader.option_logits(choices)


def _check(questions: Sequence[str], images: Sequence[Sequence[ImageOrFeatures]]) -> None:
    if len(questions) != len(images) or any(isinstance(pictures, ImageOrFeatures) for pictures in images):
        raise InputError(
            f"each question needs its own list of images: got {len(questions)} questions and {len(images)} lists"
        )


def _check_usable(model: Any) -> None:
    """InputError for a model that cannot answer without its wrapper: with PEFT's learned prompts, or with weights
    that accelerate loads too late."""
    while COMPILED in getattr(model, "_modules", {}):
        model = model._modules[COMPILED]
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        raise InputError(
            "this PEFT model puts learned prompts before the text, which only its wrapper does: "
            "ggss answers with the model inside, so use an adapter that changes layers, such as LoRA"
        )

    full = unwrapped(model)
    base = getattr(full, "base_model", full)
    if hasattr(base, "_hf_hook") and (
        offloaded := [name for name, weight in base.named_parameters(recurse=False) if weight.is_meta]
    ):
        raise InputError(
            f"the weight {offloaded[0]} of this {type(full).__name__} is offloaded, and transformers reads it before "
            "the module that has it is called: load the model with a device_map that keeps it in memory"
        )


def load_vlm(
    name_or_dir: str | Path,
    dtype: torch.dtype | str | None = None,
    device_map: Any = None,
    trust_remote_code: bool = False,
    attention: str | None = None,
    quantization_config: Any = None,
) -> Vlm:
    """A model that answers, scores and encodes, from `COLLECTION/NAME`, a local directory or a hub id.

    By default on the accelerator, if there is one, in the checkpoint's dtype (see `ggss.models.placement`). A
    quantised checkpoint is loaded as it is.

    Args:
        name_or_dir: `small-world/qwen3-vl`, a local directory or a hub id.
        dtype: a torch dtype or its name; None: the checkpoint's, float32 on a CPU.
        device_map: a device, "auto" or a map, as in transformers.
        trust_remote_code: run Python that comes with the model; without it a model that needs such code is refused.
        attention: transformers' `attn_implementation`.
        quantization_config: as in transformers.

    Returns:
        The model with its processor.

    Raises:
        InputError: if there is no such model (with the nearest name), it is not a VLM, its weights are incomplete, or
            it needs code of its own.

    Examples:
        >>> llava = ggss.load_vlm("small-world/llava-vicuna")
        >>> llava.family.name, llava.sites()
        ('LLaVA-NeXT', {'projection-mlp2': 'model.multi_modal_projector.linear_2'})
    """
    name = str(name_or_dir)
    path = locate(name)
    check_placement(dtype, device_map)
    try:
        with _quiet(), _without_prompting():
            config, processor = _config_and_processor(name, path, trust_remote_code)
            load: Any = AutoModelForImageTextToText.from_pretrained
            place = placement(config, dtype, device_map, name)
            options = {"config": config, "dtype": place.dtype, "device_map": place.device_map}
            options |= {"trust_remote_code": trust_remote_code, "weights_only": True}  # a .bin is a pickle
            options |= {"attn_implementation": attention} if attention else {}
            options |= {"quantization_config": quantization_config} if quantization_config is not None else {}
            # Weights of a wrong shape are accepted here, to be reported below in a message that says what to do.
            model, report = load(path, **options, ignore_mismatched_sizes=True, output_loading_info=True)
            if place.device_map is None:
                model = model.to(place.device)
    except InputError:
        raise
    except Exception as error:  # for damaged files transformers raises exceptions of many types
        if "trust_remote_code" in str(error) and not trust_remote_code:
            raise _needs_code(name) from error
        if isinstance(error, UnpicklingError):
            raise InputError(
                f"the weights in {name!r} cannot be read without running code in them: get them as safetensors"
            ) from error
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise InputError(
            f"cannot load a model from {name!r} ({reason}): give a directory or hub id of a VLM"
        ) from error
    if unusable := sorted({*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])}):
        raise InputError(
            f"the weights in {name!r} are incomplete ({len(unusable)} missing or of the wrong shape, such as "
            f"{unusable[0]}): get the model again"
        )
    use_float32_products(model)
    if words := exported_words(vars(model.config)):
        log.warning("%s has steering in its weights (%s): always on, for pictures only", name, words)
    return Vlm(model, processor, name)


def load_description(name: str, trust_remote_code: bool = False) -> tuple[Any, Any]:
    """A model's config and processor, without its weights."""
    path = locate(name)
    kept = None if os.path.isdir(path) else snapshot(name)
    try:
        with _quiet(), _without_prompting():
            if kept is not None and not trust_remote_code:
                with suppress(OSError, ValueError):  # the cache may lack files
                    return _config_and_processor(name, str(kept), trust_remote_code)
            return _config_and_processor(name, path, trust_remote_code)
    except InputError:
        raise
    except Exception as error:  # as above
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise InputError(f"cannot read the config and processor of {name!r} ({reason})") from error


def _config_and_processor(name: str, path: str, trust_remote_code: bool) -> tuple[Any, Any]:
    config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    if not trust_remote_code and _kernels(config):
        raise _needs_code(name)
    return config, load_processor(path, config, trust_remote_code)


def _needs_code(name: str) -> InputError:
    return InputError(
        f"the model {name!r} needs code of its own, which ggss does not run unless you allow it: if you have read it "
        "and trust it, give --trust-remote-code (in Python, trust_remote_code=True)"
    )


def _kernels(config: Any) -> list[str]:
    """The hub ids of code that a config names for attention and experts, to replace that of transformers."""
    implementations = [str(getattr(config, f"_{part}_implementation", None)) for part in ("attn", "experts")]
    parts = [part for name in config.sub_configs if (part := getattr(config, name, None)) is not None]
    kernels = [implementation for implementation in implementations if "/" in implementation]
    return kernels + [kernel for part in parts for kernel in _kernels(part)]


@contextmanager
def _without_prompting() -> Iterator[None]:
    """Keep transformers from asking on the terminal whether to run a model's code.

    It asks wherever `trust_remote_code` was not passed on, and some of its classes do not pass it on to their parts.
    With no seconds to wait for an answer it refuses at once.
    """
    seconds = dynamic_module_utils.TIME_OUT_REMOTE_CODE
    dynamic_module_utils.TIME_OUT_REMOTE_CODE = 0
    try:
        yield
    finally:
        dynamic_module_utils.TIME_OUT_REMOTE_CODE = seconds


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the log messages of transformers, and its progress bars unless a terminal shows them."""
    verbosity, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    if quiet() or not sys.stderr.isatty():
        transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
