"""A vision-language model that answers and scores questions about images, and encodes an image once for many uses."""

from collections.abc import Callable, Sequence
from functools import cache, cached_property, lru_cache, partial
from itertools import chain
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers.utils.generic import ModelOutput

from ggss import ranges
from ggss.errors import InputError
from ggss.models import prompts
from ggss.models.attachments import acting_before_text
from ggss.models.batching import Batches
from ggss.models.capture import captured
from ggss.models.families import Family
from ggss.models.features import Features
from ggss.models.identity import (
    ModelIdentity,
    fingerprint,
    text_fingerprint,
    text_settings,
    visual_identity,
    visual_settings,
    whole_identity,
)
from ggss.models.layer_rows import layer_rows
from ggss.models.layer_sites import is_layer
from ggss.models.processors import backend_of
from ggss.models.projector import image_features
from ggss.models.reading import (
    NumbersOnly,
    Prompts,
    Reading,
    Tail,
    Tokenised,
    option_runs,
    option_shares,
    require_numbers,
)
from ggss.models.shared_prefix import SharedPrefix, can_share
from ggss.models.shared_reading import plainly_greedy, read_after, shared_length, together
from ggss.models.site_search import family_of, prepared_by
from ggss.models.sites import MLP1, MLP2
from ggss.models.size import USABLE, ModelSize, free_memory
from ggss.models.told_rows import image_token, told_pixels
from ggss.models.wrappers import check_usable, execution_device, unwrapped

Shown = Image.Image | Features
"""What a question can be asked about: an image, or the encoded features of one."""

Choice = tuple[str, Sequence[Shown], Sequence[str]]
"""A question, its images, its options."""


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
        self.backend = backend_of(processor)
        self.name = name or type(model).__name__
        # A study asks the same question about many images, and rendering a chat template is slow.
        self._chat = lru_cache(maxsize=4096)(partial(prompts.chat, processor))
        self._prompts = Prompts(processor, self._chat)
        self._asking, self._encoding = Batches("questions"), Batches("images")
        self._sharing = Batches("questions about the same pictures")
        self.share_prefix = True
        """Whether `read` lets questions about the same encoded pictures share one pass over them, where it pays."""
        self._word = cache(lambda token: processor.tokenizer.decode([token], skip_special_tokens=True).strip())
        prepared_by(self.model, processor)

    @cached_property
    def family(self) -> Family:
        """The model's family; if it is unknown, it is found by encoding two pictures (`site_search`)."""
        return family_of(self.model)

    def pixels(self, images: Sequence[Image.Image]) -> dict[str, Tensor]:
        """What the vision tower needs for the images."""
        return told_pixels(self.model, self.processor, images)[0]

    @property
    def device(self) -> torch.device:
        """Where the model's inputs go."""
        return torch.device(execution_device(self.model))

    @cached_property
    def visual_identity(self) -> ModelIdentity:
        """All that decides the visual tokens; what is kept of images is kept under it."""
        return visual_identity(self.model, self.processor, self.backend)

    @cached_property
    def identity(self) -> ModelIdentity:
        """All that decides the answers; what is kept of answers is kept under it. Every weight is hashed once."""
        return whole_identity(self.model, self.processor, self.visual_identity)

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
            "identity": dict(self.visual_identity.parts),
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
        asked = outputs if sites is None else self.sites(sites)
        if inner := [site for site in asked if is_layer(site)]:
            raise InputError(
                f"features are what the projector gives out and do not have {inner[0]!r}: "
                "ggss.collect runs the model over images and keeps the rows of such sites"
            )
        # The hidden site replaces the output that is computed from it.
        wanted = {name: path for name, path in outputs.items() if name != MLP2 or MLP1 not in asked} | asked
        size = batch_size if self.family.batched else 1
        return self._encoding(images, size, lambda batch: self._encode(batch, wanted))

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
        ranges.TOKENS.check("the longest answer, in tokens,", max_new_tokens)
        asked = list(zip(questions, images, strict=True))
        return self._asking(asked, batch_size, lambda batch: self._written(batch, max_new_tokens))

    def _written(self, asked: Sequence[tuple[str, Sequence[Shown]]], max_new_tokens: int) -> list[str]:
        texts = [self._chat(question, len(pictures)) for question, pictures in asked]
        inputs, placeholders = self._image_inputs([pictures for _, pictures in asked])
        inputs |= self._text_inputs(prompts.tokens(self.processor, texts, placeholders))
        written = self._generated(inputs, max_new_tokens)
        new = written[:, inputs["input_ids"].shape[1] :]
        return [text.strip() for text in self.processor.batch_decode(new, skip_special_tokens=True)]

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
        inputs, _ = self._image_inputs(images)
        self._generated(inputs | self._text_inputs(sequences), max_new_tokens, [processor], [stop])

    def _generated(
        self, inputs: dict[str, Any], max_new_tokens: int, processors: Sequence[Any] = (), stops: Sequence[Any] = ()
    ) -> Tensor:
        return self.model.generate(
            **inputs,
            max_new_tokens=max_new_tokens,
            do_sample=False,
            num_beams=1,
            pad_token_id=self.processor.tokenizer.pad_token_id,
            logits_processor=[NumbersOnly(self.name), *processors],
            stopping_criteria=list(stops),
        )

    @torch.inference_mode()
    def logits(self, questions: Sequence[str], images: Sequence[Sequence[Shown]]) -> Tensor:
        """The next-token logits [questions, vocabulary] in float32, all questions in one batch."""
        _check(questions, images)
        texts = [self._chat(question, len(own)) for question, own in zip(questions, images, strict=True)]
        inputs, placeholders = self._image_inputs(images)
        inputs |= self._text_inputs(prompts.tokens(self.processor, texts, placeholders))
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
        asked = list(zip(questions, images, options, strict=True))
        return self._asking(asked, batch_size, lambda batch: self._score(batch, batch_size))

    @torch.inference_mode()
    def read(
        self,
        questions: Sequence[str],
        images: Sequence[Sequence[Shown]],
        options: Sequence[Sequence[str]],
        max_new_tokens: int = 8,
        batch_size: int = 16,
    ) -> list[Reading]:
        """One greedy answer to each question, and the probabilities of its options, which sum to 1; () if none.

        The same as from `answer` and `score`. If the answer and all options are single tokens, it takes one pass.
        """
        _check(questions, images)
        ranges.TOKENS.check("the longest answer, in tokens,", max_new_tokens)
        if len(options) != len(questions):
            raise InputError(
                f"each question needs a list of options: {len(questions)} questions, {len(options)} lists"
            )
        every = list(zip(questions, images, options, strict=True))
        found: dict[int, Reading] = {}

        def find(numbers: Sequence[int], batches: Batches, work: Callable[..., list[Reading]]) -> None:
            own = [every[number] for number in numbers]
            said = batches(own, batch_size, partial(work, max_new_tokens, batch_size))
            found.update(zip(numbers, said, strict=True))

        for numbers in self._groups_that_share(every, max_new_tokens):
            find(numbers, self._sharing, self._read_sharing)
        find([number for number in range(len(every)) if number not in found], self._asking, self._read_batch)
        return [found[number] for number in range(len(every))]

    def _read_batch(self, max_new_tokens: int, batch_size: int, batch: Sequence[Choice]) -> list[Reading]:
        kept = self._kept([pictures for _, pictures, _ in batch])
        asked = [(question, own, those) for (question, _, those), own in zip(batch, kept, strict=True)]
        at_once = self._read_at_once(asked) if max_new_tokens == 1 else None
        return at_once or self._read_in_turn(asked, max_new_tokens, batch_size)

    def _groups_that_share(self, asked: Sequence[Choice], max_new_tokens: int) -> list[list[int]]:
        """The numbers of the questions that are read together, after one pass over what their prompts begin with."""
        if not self._may_share or (max_new_tokens > 1 and not plainly_greedy(self.model.generation_config)):
            return []
        keys = [
            tuple(map(id, pictures)) if pictures and all(isinstance(p, Features) for p in pictures) else None
            for _, pictures, _ in asked
        ]
        return [own for own in together(keys) if self._shared_length(self._tokenised([asked[i] for i in own]))]

    @property
    def _may_share(self) -> bool:
        # The questions that go on after the shared tokens need about as much memory again.
        room = self._asking.most is None or self._asking.most > 1
        return self.share_prefix and room and self.family.shares_prefix and can_share(self.model)

    def _shared_length(self, tokenised: Sequence[Tokenised]) -> int:
        mark = image_token(self.model.config, self.processor)
        return shared_length(tokenised, self.processor.tokenizer.convert_tokens_to_ids(str(mark)))

    def _read_sharing(self, max_new_tokens: int, batch_size: int, asked: Sequence[Choice]) -> list[Reading]:
        """All about the same pictures, after one pass over the tokens that their prompts begin with."""
        tokenised = self._tokenised(asked)
        length = self._shared_length(tokenised)
        if not length:  # memory ran out before, and these are too few for it to pay
            return self._read_batch(max_new_tokens, batch_size, asked)
        inputs, _ = self._image_inputs([asked[0][1]])
        inputs |= self._text_inputs([tokenised[0].ids[:length]])
        prefix = SharedPrefix(self.model, inputs)
        ends = self.model.generation_config.eos_token_id
        ends = frozenset([ends] if isinstance(ends, int) else ends or ())
        said = read_after(prefix, tokenised, max_new_tokens, ends, partial(require_numbers, name=self.name))
        return [Reading(self._text(tokens), shares) for tokens, shares in said]

    def _text(self, tokens: Sequence[int]) -> str:
        return self.processor.tokenizer.decode(tokens, skip_special_tokens=True).strip()

    def _read_at_once(self, asked: Sequence[Choice]) -> list[Reading] | None:
        """Both from the logits of the next token; None if some option is longer than a token."""
        tokenised = self._tokenised(asked)
        if not all(prompt.at_once for prompt in tokenised):
            return None
        logits = self._next_token(asked, tokenised)
        require_numbers(logits, self.name)
        said = zip(logits.argmax(1).tolist(), option_shares(logits, tokenised), strict=True)
        return [Reading(self._word(token), shares) for token, shares in said]

    def _next_token(self, asked: Sequence[Choice], tokenised: Sequence[Tokenised]) -> Tensor:
        """The logits [questions, vocabulary] of the token after each prompt, in float32."""
        inputs, _ = self._image_inputs([pictures for _, pictures, _ in asked])
        inputs |= self._text_inputs([prompt.ids for prompt in tokenised])
        inputs |= prompts.shared_positions(self.model, inputs)
        return self.model(**inputs, logits_to_keep=1, use_cache=False).logits[:, -1].float()

    def option_logits(self, asked: Sequence[Choice]) -> tuple[Tensor, list[list[int]]]:
        """The next token's logits [questions, vocabulary] in one batch, and the tokens of each question's options.

        Gradients are kept, if they are enabled, back to the rows of features that need them: so a method can learn
        through the frozen model. InputError if an option is longer than a token.
        """
        tokenised = self._tokenised(asked)
        for (question, _, options), prompt in zip(asked, tokenised, strict=True):
            if not prompt.at_once:
                raise InputError(
                    f"the options {', '.join(options)} of {question!r} are not all single tokens of this model: ask "
                    "for a letter or a number"
                )
        return self._next_token(asked, tokenised), [[tail[0] for tail in prompt.tails] for prompt in tokenised]

    def _tokenised(self, asked: Sequence[Choice]) -> list[Tokenised]:
        return self._prompts(
            [(question, tuple(self._placeholders(pictures)), tuple(options)) for question, pictures, options in asked]
        )

    def _read_in_turn(self, asked: Sequence[Choice], max_new_tokens: int, batch_size: int) -> list[Reading]:
        questions, images = [question for question, _, _ in asked], [pictures for _, pictures, _ in asked]
        answers = self.answer(questions, images, max_new_tokens, batch_size)
        with_options = [i for i, (_, _, options) in enumerate(asked) if options]
        shares: dict[int, tuple[float, ...]] = {}
        if with_options:
            for i, score in zip(with_options, self._score([asked[i] for i in with_options], batch_size), strict=True):
                shares[i] = tuple(torch.tensor(score).softmax(0).tolist())
        return [Reading(answer, shares.get(i, ())) for i, answer in enumerate(answers)]

    def _score(self, asked: Sequence[Choice], batch_size: int) -> list[list[float]]:
        kept = self._kept([pictures for _, pictures, _ in asked])
        seen = [(question, pictures, options) for (question, _, options), pictures in zip(asked, kept, strict=True)]
        scores = [[0.0] * len(options) for _, _, options in asked]
        tokenised = self._tokenised(seen)

        def work(batch: Sequence[tuple[tuple[int, tuple[int, ...]], list[Tail]]]) -> list[None]:
            inputs, _ = self._image_inputs([kept[i] for (i, _), _ in batch])
            after = [max(0, len(ids) - len(tokenised[i].ids)) for (i, ids), _ in batch]
            inputs |= self._text_inputs([list(ids) for (_, ids), _ in batch], after)
            if "mm_token_type_ids" not in inputs:  # models that need them count positions by themselves
                inputs["position_ids"] = (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)
            longest = max(len(tail) for _, readings in batch for _, _, tail in readings)
            logits = self.model(**inputs, logits_to_keep=longest, use_cache=False).logits
            for row, (_, readings) in zip(logits.float().log_softmax(-1), batch, strict=True):
                for i, j, tail in readings:
                    steps = row[-len(tail) :]
                    scores[i][j] = require_numbers(steps[range(len(tail)), tail], self.name).sum().item()
            return [None] * len(batch)

        self._asking(list(option_runs(tokenised).items()), batch_size, work)
        return scores

    def _kept(self, images: Sequence[Sequence[Shown]]) -> list[list[Shown]]:
        """The same with each distinct picture encoded, if the family can answer from features."""
        if self.family.pack is None:
            return [list(pictures) for pictures in images]
        raw = {id(picture): picture for picture in chain(*images) if isinstance(picture, Image.Image)}
        encoded = dict(zip(raw, self.encode(list(raw.values())), strict=True))
        return [[encoded.get(id(picture), picture) for picture in pictures] for pictures in images]

    def _placeholders(self, pictures: Sequence[Shown]) -> list[str]:
        return [
            p.placeholder if isinstance(p, Features) else told_pixels(self.model, self.processor, [p])[1][0]
            for p in pictures
        ]

    def _image_inputs(self, images: Sequence[Sequence[Shown]]) -> tuple[dict[str, Any], list[str]]:
        """The model's inputs for the images of a batch of prompts, and each image's placeholder."""
        pictures = list(chain(*images))
        if not pictures:
            return {}, []
        if raw := [picture for picture in pictures if isinstance(picture, Image.Image)]:
            if len(raw) == len(pictures):
                return told_pixels(self.model, self.processor, raw)
            pictures = list(chain(*self._kept(images)))
        features = [picture for picture in pictures if isinstance(picture, Features)]
        if unseen := [own for one in features for own in acting_before_text(self.model) - one.under]:
            raise InputError(
                f"a steerer is attached at {', '.join(sorted(unseen[0].sites))}, and these features were encoded "
                "before that, so it cannot steer them: pass the images, or steer the features without attaching"
            )
        shared = [name for name in features[0].inputs if all(name in one.inputs for one in features)]
        inputs = {name: torch.stack([one.inputs[name] for one in features]) for name in shared}
        output = self.family.encoder_output(self.model, [one.rows for one in features], inputs)
        encoded = {"mm_encoder_outputs": {"image": ModelOutput(**output)}}
        return inputs | encoded, [one.placeholder for one in features]

    def _text_inputs(
        self, sequences: Sequence[list[int]], answered: Sequence[int] | None = None
    ) -> dict[str, Tensor]:
        return prompts.left_padded(self.processor, sequences, self.model, answered)

    def _encode(self, images: Sequence[Image.Image], sites: dict[str, str]) -> list[Features]:
        inputs, placeholders = told_pixels(self.model, self.processor, images)
        with captured(self.model, sites) as found:
            image_features(self.model, inputs)
        rows = {site: torch.cat(outputs) for site, outputs in found.items()}
        one = next(iter(rows.values()))
        counts = [len(one)] if len(images) == 1 else self.family.rows_per_image(self.model, inputs)
        if len(counts) != len(images) or any(sum(counts) != len(own) for own in rows.values()):
            seen = ", ".join(f"{len(own)} at {site}" for site, own in rows.items())
            raise InputError(
                f"{self.family.name}: {len(images)} images should have {counts} rows, the model gave {seen}: "
                "use batch_size=1, or correct the family's rows_per_image"
            )
        split = {site: all_rows.split(counts) for site, all_rows in rows.items()}
        # What has a row for each image; what has one for each tile is not needed once the tower has run.
        sizes = {
            name: value
            for name, value in inputs.items()
            if not name.startswith("pixel") and isinstance(value, Tensor) and len(value) == len(images)
        }
        under = acting_before_text(self.model)
        return [
            Features(
                rows={site: parts[i].clone() for site, parts in split.items()},
                inputs={name: value[i].clone() for name, value in sizes.items()},
                placeholder=placeholder,
                under=under,
            )
            for i, placeholder in enumerate(placeholders)
        ]


def _check(questions: Sequence[str], images: Sequence[Sequence[Shown]]) -> None:
    if len(questions) != len(images) or any(isinstance(pictures, Shown) for pictures in images):
        raise InputError(
            f"each question needs its own list of images: got {len(questions)} questions and {len(images)} lists"
        )
