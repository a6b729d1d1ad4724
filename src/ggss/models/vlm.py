"""A vision-language model that answers and scores questions about images, and encodes an image once for many uses."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from ggss import errors
from ggss.errors import InputError
from ggss.models.families import Family
from ggss.models.features import Features, Shown
from ggss.models.hooks import acting_before_text, captured, layer_rows
from ggss.models.identity import (
    ModelIdentity,
    check_unchanged,
    fingerprint,
    text_fingerprint,
    text_settings,
    visual_identity,
    visual_settings,
    whole_identity,
)
from ggss.models.inputs import Batches, Choice, ModelInputs, Prompts
from ggss.models.placement import USABLE, ModelSize, free_memory
from ggss.models.processors import backend_of
from ggss.models.prompts import prepare_images
from ggss.models.reading import Answer, VlmReader
from ggss.models.site_search import family_of, prepared_by
from ggss.models.sites import MLP1, MLP2, image_features, is_layer
from ggss.models.wrappers import check_usable, execution_device, unwrapped


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
        check_usable(model)
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
        images: Sequence[Sequence[Shown]],
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
        images: Sequence[Sequence[Shown]],
        max_new_tokens: int,
        processor: Any,
        stop: Any,
    ) -> None:
        """Go on with prompts that are token ids, all in one batch.

        processor: a logits processor of transformers, which sees what may come next. stop: a stopping criterion.
        """
        self._reader.generate(self._inputs.of_tokens(sequences, images), max_new_tokens, [processor], [stop])

    @torch.inference_mode()
    def logits(self, questions: Sequence[str], images: Sequence[Sequence[Shown]]) -> Tensor:
        """The next-token logits [questions, vocabulary] in float32, all questions in one batch."""
        _check(questions, images)
        inputs = self._inputs.of_questions(questions, images)
        return self.model(**inputs, logits_to_keep=1, use_cache=False).logits[:, -1].float()

    @torch.inference_mode()
    def score(
        self,
        questions: Sequence[str],
        images: Sequence[Sequence[Shown]],
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
        images: Sequence[Sequence[Shown]],
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


def _check(questions: Sequence[str], images: Sequence[Sequence[Shown]]) -> None:
    if len(questions) != len(images) or any(isinstance(pictures, Shown) for pictures in images):
        raise InputError(
            f"each question needs its own list of images: got {len(questions)} questions and {len(images)} lists"
        )
