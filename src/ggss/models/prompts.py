"""From questions about images to token ids: chat template, image placeholders, left padding, answer options.

A processor may cut an image into tiles, and then a model gets the tiles of all images in one tensor: its inputs do
not say where an image ends. The processor knows it: it writes as many image tokens into the prompt as the image has.
So each tensor that `prepare_images` makes has these numbers as an attribute, `image_tokens`. `forward` and `generate`
accept no further argument, but they pass the tensor on to the vision tower, where `rows_by_tokens` reads the
attribute. A tensor computed from it does not have it.

`Prompts` keeps what was tokenised: a study asks the same few thousand prompts of every steered model, and tokenising
takes as long as the forward pass of a tiny model. `PromptLengths` counts the tokens of a prompt from the sizes of its
images: nothing is decoded or encoded.
"""

import inspect
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from itertools import pairwise, takewhile
from types import FrameType
from typing import Any

import torch
from jinja2 import Environment
from jinja2.exceptions import TemplateSyntaxError
from PIL import Image
from torch import Tensor

from ggss.data.pictures import PICTURE, SYSTEM, in_rgb
from ggss.errors import InputError
from ggss.escaping import is_unicode
from ggss.models.placement import execution_device

Ids = list[int]
PREFIX = ("paligemma",)  # here token types mark prompt and answer; in Gemma 3 and others, images and text

TEMPLATE_SECONDS = 5.0  # CPU time of one rendering; most templates take less than a millisecond
TEMPLATE_CHARACTERS = 2**24  # written by one rendering; the longest context of any model is shorter
_OTHER_TEMPLATE = "Get the model again from where it came, or replace its chat_template.jinja"

Turn = tuple[str, Sequence[str | None]]
"""A role (user, assistant, system) and its content: texts, and None for each image."""
Size = tuple[int, int]
"""Width and height of an image."""
Key = tuple[str, tuple[str, ...], tuple[str, ...]]
"""A question, the placeholders of its images, its options."""

KEPT_TOKENS = 4_000_000


def chat(processor: Any, question: str, images: int, answer: str | None = None) -> str:
    """The prompt's text: the images, the question, and the start of the model's turn (with `answer`, if given).

    Images are where the question has `<picture>`; before the question if it has none. What is before the mark
    `<system turn>` is a turn of its own.
    """
    _check_texts(processor, [question])
    system, marked, question = question.rpartition(SYSTEM)
    marks = question.count(PICTURE)
    if marks not in (0, images):
        raise InputError(f"a question about {images} images has {marks} marks {PICTURE}: {question!r}")
    texts = question.split(PICTURE) if marks else [*[""] * images, question]
    if type(processor).__name__ == "PaliGemmaProcessor":
        if marked:
            raise InputError(f"PaliGemma has no system turn, and the question has one: {system!r}")
        return _pali_gemma(processor, texts, answer)
    _check_template(processor)
    content: list[dict[str, str]] = []
    for number, text in enumerate(texts):
        content += [{"type": "image"}] if number else []
        content += [{"type": "text", "text": text}] if text else []
    turns: list[dict[str, Any]] = [{"role": "user", "content": content}]
    if marked:
        turns = [_system_turn(processor, system, turns), *turns]
    if answer is None:
        try:
            return _rendered(processor, turns, add_generation_prompt=True)
        except _TemplateFailed as error:
            raise InputError(f"this model's chat template cannot write a question about images ({error})") from error
    # The template decides what stands between question and answer. Some templates take an answer as text, some as a
    # list of parts. In this order, an answer of the wrong form is dropped or refused, never written in part.
    for form in (answer, [{"type": "text", "text": answer}]):
        with suppress(_TemplateFailed):
            reply = {"role": "assistant", "content": form}
            return _rendered(processor, [*turns, reply], continue_final_message=True)
    raise InputError(f"this model's chat template cannot begin an answer with {answer!r}, so it cannot be scored")


def _system_turn(processor: Any, system: str, turns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """In the form that the chat template takes: a list of parts, or text. One that drops it is refused."""
    for form in ([{"type": "text", "text": system}], system):
        turn = {"role": "system", "content": form}
        with suppress(_TemplateFailed):
            if system.strip() in _rendered(processor, [turn, *turns], add_generation_prompt=True):
                return turn
    raise InputError(f"this model's chat template cannot write the system turn {system!r}")


def _pali_gemma(processor: Any, texts: Sequence[str], answer: str | None) -> str:
    """The layout of PaliGemma's prompts: images, the token that begins a text, the question, a newline."""
    *leading, question = texts
    images = "".join(text + image_mark(processor) for text in leading)
    return f"{images}{processor.tokenizer.bos_token}{question}\n{answer or ''}"


def image_mark(processor: Any) -> str:
    """The text that stands for an image in a processor's input: for most processors the image token itself."""
    mark = getattr(processor, "image_placeholder_token", None) or getattr(processor, "image_token", None)
    if mark is None:
        raise InputError(f"a {type(processor).__name__} has no token that marks an image: ggss cannot ask this model")
    return str(mark)  # some have it as an AddedToken


def conversation(processor: Any, turns: Sequence[Turn]) -> str:
    """The prompt's text for several turns, and the start of the model's next turn."""
    texts = [part for _, parts in turns for part in parts if part]
    _check_texts(processor, texts)
    _check_template(processor)
    images = sum(part is None for _, parts in turns for part in parts)
    # Some templates take a turn without an image as text, some as a list of parts. A template may drop the wrong form
    # without an error, so its output is checked.
    for as_text in (False, True):
        messages = [{"role": role, "content": _content(parts, as_text)} for role, parts in turns]
        with suppress(_TemplateFailed):
            prompt = _rendered(processor, messages, add_generation_prompt=True)
            if prompt.count(image_mark(processor)) == images and _in_order(texts, prompt):
                return prompt
    roles = ", ".join(role for role, _ in turns)
    raise InputError(
        f"this model's chat template cannot write this conversation (roles {roles}, {images} images): most templates "
        "want turns of user and assistant in alternation"
    )


class _TemplateFailed(Exception):
    """A chat template raised an exception: it cannot write these messages."""


class _LimitReached(Exception):
    """A chat template takes too long or writes too much, whatever the messages are."""


def _rendered(processor: Any, messages: Sequence[Mapping[str, Any]], **options: bool) -> str:
    """What the chat template writes; InputError if it takes too long or writes too much.

    A template is a program from outside. Jinja's sandbox limits what it can access and its ranges, but not how long
    it runs: nested loops are allowed. So its lines are traced, which works in any thread and needs no other process.
    """
    template = processor.chat_template
    for text in template.values() if isinstance(template, dict) else (template,):
        _check_powers(str(text))
    previous_trace, start, characters = sys.gettrace(), time.thread_time(), 0

    def trace(frame: FrameType, event: str, value: Any) -> Any:
        nonlocal characters
        if time.thread_time() - start > TEMPLATE_SECONDS:
            raise _LimitReached(f"it was stopped after {TEMPLATE_SECONDS:g} s of CPU time")
        in_template = frame.f_code.co_filename == "<template>"
        if in_template and event == "return" and isinstance(value, str):  # a yield is a return, too
            characters += len(value)
            if characters > TEMPLATE_CHARACTERS:
                raise _LimitReached(f"it wrote more than {TEMPLATE_CHARACTERS:,} characters")
        return trace if in_template else None

    try:
        sys.settrace(trace)
        return processor.apply_chat_template(messages, **options)
    except _LimitReached as error:
        raise InputError(f"this model's chat template is refused: {error}. {_OTHER_TEMPLATE}") from error
    except MemoryError as error:
        raise InputError(
            f"this model's chat template is refused: it runs out of memory. {_OTHER_TEMPLATE}"
        ) from error
    except Exception as error:  # a template can raise whatever an expression of Python can
        raise _TemplateFailed(str(error) or type(error).__name__) from error
    finally:
        sys.settrace(previous_trace)


@lru_cache
def _check_powers(template: str) -> None:
    """Refuse `a ** b`: a power of large numbers takes forever in a single step, which nothing can stop."""
    with suppress(TemplateSyntaxError):  # jinja reports it when it renders
        tokens = [(kind, text) for _, kind, text in Environment().lex(template) if kind != "whitespace"]
        for (kind, text), (_, following) in pairwise(tokens):
            if following == "**" and (kind in ("name", "integer", "float") or text in (")", "]")):
                raise InputError(
                    f"this model's chat template is refused: it computes a power ({text} ** ...), which no template "
                    f"needs and which may take forever. {_OTHER_TEMPLATE}"
                )


def _content(parts: Sequence[str | None], as_text: bool) -> str | list[dict[str, str]]:
    if as_text and None not in parts:
        return "".join(part for part in parts if part)
    return [{"type": "image"} if part is None else {"type": "text", "text": part} for part in parts]


def _in_order(texts: Sequence[str], prompt: str) -> bool:
    """Whether the prompt has all texts, one after the other; templates may trim them."""
    place = 0
    for text in map(str.strip, texts):
        place = prompt.find(text, place)
        if place < 0:
            return False
        place += len(text)
    return True


def _check_texts(processor: Any, texts: Sequence[str]) -> None:
    """InputError for text that is not Unicode, or that contains the mark of an image."""
    for text in texts:
        for mark in sorted({str(processor.image_token), image_mark(processor)}):
            if mark in text:
                raise InputError(f"a question may not contain {mark!r}, the mark of an image: {text!r}")
        if not is_unicode(text):
            raise InputError(f"the question {text!r} is not Unicode text: ask it in UTF-8")


def _check_template(processor: Any) -> None:
    if not getattr(processor, "chat_template", None):
        raise InputError(
            "this model has no chat template, so it cannot be asked: use its chat version, or "
            "add the chat_template.jinja of its chat version to its folder"
        )


def preprocessed(processor: Any, images: Sequence[Any]) -> tuple[Any, list[str]]:
    """What the processor returns for images, and each image's placeholder in a prompt."""
    mark = image_mark(processor)
    one_per_prompt = [[in_rgb(image, "the image")] for image in images]
    try:
        batch = processor(
            images=one_per_prompt,
            text=[mark] * len(images),
            padding=True,
            return_text_replacement_offsets=True,
            return_tensors="pt",
        )
    except Exception as error:  # processors raise exceptions of many types for what they do not expect
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"a {type(processor).__name__} could not prepare images of {sorted({image.size for image in images})} "
            f"pixels ({reason})"
        ) from error
    replaced = batch.get("text_replacement_offsets", ())
    if [len(marks) for marks in replaced] != [1] * len(images):
        raise InputError(
            f"a {type(processor).__name__} does not tell which text stands for an image, so ggss cannot write "
            "prompts for this model"
        )
    return batch, [image["replacement"] for (image,) in replaced]


def tokens(processor: Any, texts: Sequence[str], placeholders: Sequence[str]) -> list[Ids]:
    """Token ids of each text, after each image mark is replaced by its image's placeholder, in order."""
    texts, _ = processor.get_text_with_replacements(list(texts), list(placeholders))
    bos = processor.tokenizer.bos_token
    begun = bool(bos) and all(text.startswith(bos) for text in texts)  # some templates write it, some do not
    return processor.tokenizer(texts, add_special_tokens=not begun)["input_ids"]


def left_padded(
    processor: Any, sequences: Sequence[Ids], model: Any, answered: Sequence[int] | None = None
) -> dict[str, Tensor]:
    """One batch of text inputs [sequences, longest]; all sequences end at the last column.

    answered: how many tokens at the end of each sequence belong to the answer; None: there are prompts only. A model
    with bidirectional attention over its prompt has causal attention over the answer.
    """
    width = max(map(len, sequences))
    pad = processor.tokenizer.pad_token_id
    padded = [[pad] * (width - len(ids)) + ids for ids in sequences]
    inputs = {
        "input_ids": padded,
        "attention_mask": [[0] * (width - len(ids)) + [1] * len(ids) for ids in sequences],
    }
    if "mm_token_type_ids" in processor.model_input_names or hasattr(model.base_model, "get_rope_index"):
        inputs["mm_token_type_ids"] = processor.create_mm_token_type_ids(padded)
    if "token_type_ids" in inspect.signature(model.base_model.forward).parameters:
        if model.config.model_type in PREFIX:
            answers = [0] * len(sequences) if answered is None else answered
            inputs["token_type_ids"] = [[0] * (width - count) + [1] * count for count in answers]
        else:
            inputs["token_type_ids"] = processor.create_mm_token_type_ids(padded)
    device = execution_device(model)
    return {name: torch.tensor(value, device=device) for name, value in inputs.items()}


def shared_positions(model: Any, inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    """The positions of the first prompt, if all have the same layout; else {}. Qwen3-VL computes each prompt's."""
    count = getattr(model.base_model, "get_rope_index", None)
    if count is None or "image_grid_thw" not in inputs:
        return {}
    types, grids = inputs["mm_token_type_ids"], inputs["image_grid_thw"]
    images = len(grids) // len(types)
    alike = inputs["attention_mask"].all() and (types == types[0]).all() and len(grids) == images * len(types)
    if not alike or not (grids.unflatten(0, (len(types), images)) == grids[:images]).all():
        return {}
    return {"position_ids": count(inputs["input_ids"][:1], types[:1], grids[:images])[0]}


def split_options(prompt: Ids, joint: Sequence[Ids]) -> tuple[Ids, list[Ids]]:
    """The context shared by the prompt and all its options, and each option's own ids after it.

    joint: the ids of prompt and option tokenised as one text. A tokenizer may merge the end of the prompt with the
    start of an option, so the context ends before the first token in which these sequences differ.
    """
    columns = zip(prompt, *joint, strict=False)
    shared = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
    return prompt[:shared], [ids[shared:] for ids in joint]


def prepare_images(model: Any, processor: Any, images: Sequence[Image.Image]) -> tuple[dict[str, Tensor], list[str]]:
    """What the vision tower needs for the images, and each image's placeholder in a prompt."""
    batch, placeholders = preprocessed(processor, images)
    names = [name for name in processor.image_processor.model_input_names if name in batch]
    moved = batch.to(execution_device(model), model.dtype)
    inputs = {name: moved[name] for name in names}
    mark = image_token(model.config, processor)
    counts = tuple(placeholder.count(mark) for placeholder in placeholders)
    for value in inputs.values():
        if isinstance(value, Tensor):
            value.image_tokens = counts  # pyright: ignore[reportAttributeAccessIssue]
    return inputs, placeholders


def image_tokens(inputs: Mapping[str, Any]) -> list[int] | None:
    """The number of image tokens of each image; None if ggss did not prepare these inputs."""
    counts = {value.image_tokens for value in inputs.values() if hasattr(value, "image_tokens")}
    return list(counts.pop()) if len(counts) == 1 else None


def image_token(config: Any, processor: Any) -> str:
    """The token whose embeddings the text model replaces by an image's rows."""
    candidates = (getattr(config, name, None) for name in ("image_token_id", "image_token_index"))
    number = next((candidate for candidate in candidates if isinstance(candidate, int)), None)
    return processor.image_token if number is None else processor.tokenizer.convert_ids_to_tokens(number)


def rows_by_tokens(model: Any, inputs: Mapping[str, Any]) -> list[int]:
    """`rows_per_image` of a family with a row for each image token; InputError if ggss did not prepare the inputs."""
    counts = image_tokens(inputs)
    if counts is None:
        raise InputError(
            f"the inputs of this {model.config.model_type} model do not say which rows belong to which image (its "
            "processor may cut an image into tiles): ask it through ggss (ggss.load_vlm), or use a method and a "
            "strength that are the same for all images"
        )
    return counts


class PromptLengths:
    """Counts the tokens of a model's prompts. family: of the model, if it is asked in a shape of its own."""

    def __init__(self, processor: Any, family: str = "") -> None:
        self.processor, self.family = processor, family
        self.image_tokens = cache(self._image_tokens)
        self._chat = cache(partial(chat, processor))

    def __call__(self, questions: Sequence[tuple[str, Sequence[Size]]]) -> list[int]:
        """The number of tokens of each question about images of certain sizes."""
        texts = [self._chat(question, len(sizes)) for question, sizes in questions]
        marks = [self.processor.image_token for _, sizes in questions for _ in sizes]
        # An image's mark is a token of its own, so its placeholder can be counted separately.
        bare = tokens(self.processor, texts, marks) if texts else []
        return [
            len(ids) + sum(self.image_tokens(size) - 1 for size in sizes)
            for ids, (_, sizes) in zip(bare, questions, strict=True)
        ]

    def _image_tokens(self, size: Size) -> int:
        width, height = size
        count = getattr(self.processor, "_get_num_multimodal_tokens", None)
        if count is not None:
            return count(image_sizes=[(height, width)])["num_image_tokens"][0]
        _, (placeholder,) = preprocessed(self.processor, [Image.new("RGB", size)])
        return len(self.processor.tokenizer(placeholder, add_special_tokens=False)["input_ids"])


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
        self.chat = lru_cache(maxsize=4096)(partial(chat, processor))
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
        ids = iter(tokens(self._processor, texts, placeholders))
        tokenised = []
        for _, _, options in keys:
            prompt = next(ids)
            tokenised.append(Tokenised(prompt, *split_options(prompt, [next(ids) for _ in options])))
        return tokenised
