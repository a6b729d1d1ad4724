"""The inputs of a model, made from questions or token ids and the pictures that they are about.

`Prompts` keeps what was tokenised: a study asks the same few thousand prompts of every steered model, and tokenising
takes as long as the forward pass of a tiny model. `Batches` halves a batch that does not fit in memory.
"""

import gc
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from PIL import Image
from transformers.utils.generic import ModelOutput

from ggss import errors
from ggss.errors import InputError, out_of_memory
from ggss.models import prompts
from ggss.models.features import Features, Shown
from ggss.models.hooks import acting_before_text
from ggss.models.prompts import prepare_images

if TYPE_CHECKING:
    from ggss.models.vlm import Vlm


T = TypeVar("T")
R = TypeVar("R")

log = logging.getLogger(__name__)


class Batches:
    """One kind of work of one model. `most`: the largest batch that may be tried, once a larger one did not fit."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.most: int | None = None

    def __call__(self, items: Sequence[T], size: int, work: Callable[[Sequence[T]], Sequence[R]]) -> list[R]:
        """What `work` returns for each item, in order; it is given at most `size` items at a time."""
        errors.BATCH.check("the batch size", size)
        done: list[R] = []
        while len(done) < len(items):
            together = items[len(done) : len(done) + min(size, self.most or size)]
            fitted = self._tried(together, work)
            if fitted is None:
                self._halve(len(together))
            else:
                done += fitted
        return done

    def _tried(self, items: Sequence[T], work: Callable[[Sequence[T]], Sequence[R]]) -> Sequence[R] | None:
        """None if memory ran out. The exception ends here: it holds on to the tensors of the failed batch."""
        try:
            return work(items)
        except Exception as error:
            if not out_of_memory(error):
                raise
            if len(items) == 1:
                raise InputError(
                    f"not enough memory for one of the {self.what} alone: use smaller images, --dtype bfloat16, "
                    "or a device with more memory"
                ) from error
            return None

    def _halve(self, failed: int) -> None:
        if self.most is None:
            log.warning(f"{failed} {self.what} at a time do not fit in memory: going on with fewer")
        self.most = max(1, failed // 2)
        gc.collect()
        if torch.accelerator.is_available():
            torch.accelerator.empty_cache()


Key = tuple[str, tuple[str, ...], tuple[str, ...]]
"""A question, the placeholders of its images, its options."""

KEPT_TOKENS = 4_000_000


@dataclass(frozen=True, slots=True)
class Tokenised:
    """A prompt's token ids; the context that it shares with all its options; each option's own ids after that."""

    ids: list[int]
    context: list[int]
    tails: list[list[int]]

    @property
    def at_once(self) -> bool:
        """Whether each option is a single token, so that the token after the prompt decides between them."""
        return len(self.context) == len(self.ids) and all(len(tail) == 1 for tail in self.tails)


def _state(processor: Any) -> list[Any]:
    """What decides the tokens of a prompt, without the vocabulary's words: that would take longer than tokenising."""
    tokenizer = processor.tokenizer
    backend = getattr(tokenizer, "backend_tokenizer", None)
    steps = ("normalizer", "pre_tokenizer", "post_processor")
    words = [type(tokenizer), id(tokenizer), id(backend), len(tokenizer), tokenizer.padding_side]
    words += [processor.chat_template, tokenizer.chat_template, tokenizer.special_tokens_map]
    words += [tokenizer.get_added_vocab(), [str(getattr(backend, step, None)) for step in steps]]
    words += [{name: value for name, value in vars(processor).items() if isinstance(value, str | int | float)}]
    return words


class Prompts:
    """A cache of written and tokenised prompts, up to some millions of tokens, of a processor as it is now."""

    def __init__(self, processor: Any) -> None:
        self._processor, self._state = processor, _state(processor)
        # A study asks the same question about many images, and rendering a chat template is slow.
        self.chat = lru_cache(maxsize=4096)(partial(prompts.chat, processor))
        self._kept: dict[Key, Tokenised] = {}
        self._tokens = 0

    def is_of(self, processor: Any) -> bool:
        """Whether this processor, as it is now, would write the same prompts."""
        return processor is self._processor and _state(processor) == self._state

    def __call__(self, keys: Sequence[Key]) -> list[Tokenised]:
        """The tokens of each prompt, in order."""
        if missing := [key for key in dict.fromkeys(keys) if key not in self._kept]:
            if self._tokens > KEPT_TOKENS:
                missing = list(dict.fromkeys(keys))
                self._kept, self._tokens = {}, 0
            self._kept |= zip(missing, self._tokenise(missing), strict=True)
            self._tokens += sum(len(self._kept[key].ids) for key in missing)
        return [self._kept[key] for key in keys]

    def _tokenise(self, keys: Sequence[Key]) -> list[Tokenised]:
        """All in one call of the tokenizer, which is much faster than many."""
        texts: list[str] = []
        placeholders: list[str] = []
        for question, images, options in keys:
            texts += [self.chat(question, len(images), option) for option in (None, *options)]
            placeholders += images * (1 + len(options))
        ids = iter(prompts.tokens(self._processor, texts, placeholders))
        tokenised = []
        for _, _, options in keys:
            prompt = next(ids)
            tokenised.append(Tokenised(prompt, *prompts.split_options(prompt, [next(ids) for _ in options])))
        return tokenised


Choice = tuple[str, Sequence[Shown], Sequence[str]]
"""A question, its images, its options."""


class ModelInputs:
    """Makes the inputs of a model. cache: its prompts that are tokenised already."""

    def __init__(self, vlm: "Vlm", cache: Prompts) -> None:
        self._vlm, self._cache = vlm, cache

    def of_questions(self, questions: Sequence[str], images: Sequence[Sequence[Shown]]) -> dict[str, Any]:
        """The inputs for one batch of questions, each about its images."""
        texts = [self._cache.chat(question, len(shown)) for question, shown in zip(questions, images, strict=True)]
        inputs, placeholders = self._of_pictures(images)
        processor = self._vlm.processor
        sequences = prompts.tokens(processor, texts, placeholders)
        return inputs | prompts.left_padded(processor, sequences, self._vlm.model)

    def of_tokens(
        self,
        sequences: Sequence[list[int]],
        images: Sequence[Sequence[Shown]],
        answered: Sequence[int] | None = None,
    ) -> dict[str, Any]:
        """The inputs for one batch of prompts that are token ids.

        answered: how many tokens at the end of each are of the answer; None: they are prompts only.
        """
        inputs, _ = self._of_pictures(images)
        return inputs | prompts.left_padded(self._vlm.processor, sequences, self._vlm.model, answered)

    def tokenised(self, choices: Sequence[Choice]) -> list[Tokenised]:
        """The tokens of each question and of its options."""
        return self._cache(
            [
                (question, tuple(self._placeholders(pictures)), tuple(options))
                for question, pictures, options in choices
            ]
        )

    def encoded(self, images: Sequence[Sequence[Shown]]) -> list[list[Shown]]:
        """The same with each distinct picture encoded, if the family can answer from features."""
        if self._vlm.family.pack is None:
            return [list(pictures) for pictures in images]
        raw = {id(picture): picture for picture in chain(*images) if isinstance(picture, Image.Image)}
        encoded = dict(zip(raw, self._vlm.encode(list(raw.values())), strict=True))
        return [[encoded.get(id(picture), picture) for picture in pictures] for pictures in images]

    def _placeholders(self, pictures: Sequence[Shown]) -> list[str]:
        vlm = self._vlm
        return [
            p.placeholder if isinstance(p, Features) else prepare_images(vlm.model, vlm.processor, [p])[1][0]
            for p in pictures
        ]

    def _of_pictures(self, images: Sequence[Sequence[Shown]]) -> tuple[dict[str, Any], list[str]]:
        """The inputs for the images of a batch of prompts, and each image's placeholder."""
        pictures = list(chain(*images))
        if not pictures:
            return {}, []
        model = self._vlm.model
        if raw := [picture for picture in pictures if isinstance(picture, Image.Image)]:
            if len(raw) == len(pictures):
                return prepare_images(model, self._vlm.processor, raw)
            pictures = list(chain(*self.encoded(images)))
        features = [picture for picture in pictures if isinstance(picture, Features)]
        if unseen := [attached for shown in features for attached in acting_before_text(model) - shown.under]:
            raise InputError(
                f"a steerer is attached at {', '.join(sorted(unseen[0].sites))}, and these features were encoded "
                "before that, so it cannot steer them: pass the images, or steer the features without attaching"
            )
        shared = [name for name in features[0].inputs if all(name in shown.inputs for shown in features)]
        inputs = {name: torch.stack([shown.inputs[name] for shown in features]) for name in shared}
        output = self._vlm.family.encoder_output(model, [shown.rows for shown in features], inputs)
        encoded = {"mm_encoder_outputs": {"image": ModelOutput(**output)}}
        return inputs | encoded, [shown.placeholder for shown in features]
