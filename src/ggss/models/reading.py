"""Asking a model: its answers, the probabilities of options, and both together in as few passes as they need.

The logits that begin an answer also decide between options of one token; longer options are scored in passes of their
own. Questions about the same encoded pictures are read after one pass over what their prompts begin with, where that
pays.

Reading answers: a model's answer and the probability of each option, in as few passes as possible.

The beginning that several prompts have in common, images and all, computed once for all of them.

Most of a prompt about a picture is the picture: thousands of image tokens before a question of some dozens. So the
text model reads the shared tokens once and keeps their keys and values. What follows in each prompt is computed after
that, all prompts side by side in one row: a token sees the shared tokens and those before it in its own prompt, never
another prompt's. Nothing is copied for each prompt, and the shared keys and values are read once for all.

Many questions about the same pictures, read after one pass over what their prompts have in common.

The reading is that of `Vlm.read`, up to rounding: a greedy answer, and the probabilities of the options.
"""

import copy
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

from ggss.errors import InputError
from ggss.models import prompts
from ggss.models.features import Features, Shown
from ggss.models.inputs import Batches, Choice, ModelInputs, Tokenised
from ggss.models.prompts import image_token
from ggss.models.wrappers import execution_device

if TYPE_CHECKING:
    from ggss.models.vlm import Vlm


Tail = tuple[int, int, list[int]]
"""The question's number, the option's number, and the option's token ids."""


class Answer(NamedTuple):
    """A model's answer to a question, as raw text, and the probabilities of the question's options.

    They sum to 1; () if the question has no options. This is what runs, run files and studies keep.
    """

    text: str
    probabilities: tuple[float, ...] = ()


def option_runs(asked: Sequence[Tokenised]) -> dict[tuple[int, tuple[int, ...]], list[Tail]]:
    """What has to be read to score the options: a prompt's number and token ids, and the tails that end there.

    The last token of an option is scored but not read, so options of one token share a single run.
    """
    runs: dict[tuple[int, tuple[int, ...]], list[Tail]] = {}
    for i, prompt in enumerate(asked):
        for j, tail in enumerate(prompt.tails):
            runs.setdefault((i, (*prompt.context, *tail[:-1])), []).append((i, j, tail))
    return runs


def option_shares(logits: Tensor, asked: Sequence[Tokenised]) -> list[tuple[float, ...]]:
    """The probabilities of each prompt's one-token options, which sum to 1, from the logits [prompts, vocabulary]."""
    shares: list[tuple[float, ...]] = [()] * len(asked)
    by_count: dict[int, list[int]] = {}
    for i, prompt in enumerate(asked):
        by_count.setdefault(len(prompt.tails), []).append(i)
    for count, rows in by_count.items():  # prompts with the same number of options together
        if count:
            tokens = torch.tensor([[tail[0] for tail in asked[i].tails] for i in rows], device=logits.device)
            for i, own in zip(rows, logits[rows].gather(1, tokens).softmax(1).tolist(), strict=True):
                shares[i] = tuple(own)
    return shares


class NoNumbers(InputError):
    """A model computes logits that are NaN. Whoever loaded it can correct that; whoever only asks it cannot."""


def require_numbers(logits: Tensor, name: str) -> Tensor:
    """The logits. NoNumbers if one is NaN: the largest of them would be a word, and mean nothing."""
    if logits.isnan().any():
        raise NoNumbers(
            f"{name} computes logits that are no numbers (NaN): its weights are damaged, or its numbers too large "
            "for their dtype (try --dtype float32, in Python dtype='float32')"
        )
    return logits


@dataclass(frozen=True)
class NumbersOnly:
    """The same for every step of `generate`, which takes it as a logits processor."""

    name: str

    def __call__(self, ids: Tensor, logits: Tensor) -> Tensor:
        return require_numbers(logits, self.name)


class FirstLogits:
    """Keeps the logits [prompts, vocabulary] of the first token that `generate` writes; a logits processor too."""

    logits: Tensor | None = None

    def __call__(self, ids: Tensor, logits: Tensor) -> Tensor:
        if self.logits is None:
            self.logits = logits
        return logits


EVERYBODY = -1  # whose token it is: of the shared beginning
MASKED = ("sdpa", "eager")  # implementations of attention that take a mask of any form


def can_share(model: Any) -> bool:
    """Whether the text model, as it is configured, can go on after kept keys and values with several texts at once.

    Its attention must take a mask that says for each token what it sees, and all layers must keep the keys and values
    of all tokens, each apart: a sliding window, a state of linear attention or a compressed cache does not. That a
    token sees earlier ones only is known of its family (`Family.shares_prefix`).
    """
    text = model.config.get_text_config()
    plain = all(type(layer) is DynamicLayer for layer in DynamicCache(config=text).layers)
    return plain and getattr(text, "_attn_implementation", None) in MASKED


def common_length(sequences: Sequence[list[int]]) -> int:
    """How many tokens at the beginning are the same in all."""
    first, last = min(sequences), max(sequences)  # in this order, all others begin with what these two have in common
    pairs = enumerate(zip(first, last, strict=False))
    return next((i for i, (one, other) in pairs if one != other), min(len(first), len(last)))


class SharedPrefix:
    """The shared tokens, as the text model has read them.

    inputs: those of one prompt that ends with the shared tokens, with its images.
    """

    def __init__(self, model: Any, inputs: Mapping[str, Any]) -> None:
        self.model = model
        self.length = inputs["input_ids"].shape[1]
        positions = _positions(model, inputs)
        self._cache = DynamicCache(config=model.config.get_text_config())
        model(**inputs, position_ids=positions, past_key_values=self._cache, use_cache=True, logits_to_keep=1)
        self._next = positions.amax(-1, keepdim=True) + 1

    def cache(self) -> DynamicCache:
        """A cache that begins with the shared tokens; it can grow without changing any other."""
        grown = copy.copy(self._cache)
        grown.layers = [copy.copy(layer) for layer in self._cache.layers]  # a layer that grows makes new tensors
        return grown

    def positions(self, after: Tensor) -> Tensor:
        """The positions of tokens that stand so many tokens after the shared ones."""
        return self._next + after


class Continuations:
    """Several texts after one shared prefix, side by side. Each is known by its number."""

    def __init__(self, prefix: SharedPrefix) -> None:
        self._prefix, self._cache = prefix, prefix.cache()
        self._device = torch.device(execution_device(prefix.model))
        self._owners = torch.full((prefix.length,), EVERYBODY)
        self._lengths: dict[int, int] = {}

    def extend(self, tokens: Mapping[int, Sequence[int]], last: Mapping[int, int]) -> dict[int, Tensor]:
        """Append tokens to some texts. Returns the logits [last, vocabulary] after each one's `last` tokens."""
        owners = torch.tensor([number for number, own in tokens.items() for _ in own])
        begun = {number: self._lengths.get(number, 0) for number in tokens}
        after = torch.tensor([begun[number] + i for number, own in tokens.items() for i in range(len(own))])
        self._lengths |= {number: begun[number] + len(own) for number, own in tokens.items()}
        self._owners = torch.cat([self._owners, owners])
        ends = torch.tensor([len(own) for own in tokens.values()]).cumsum(0).tolist()
        kept = [list(range(end - last[number], end)) for number, end in zip(tokens, ends, strict=True)]
        logits = self._prefix.model(
            input_ids=torch.tensor([[token for own in tokens.values() for token in own]], device=self._device),
            attention_mask=self._mask(owners).to(self._device),
            position_ids=self._prefix.positions(after.to(self._device)),
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=torch.tensor([column for own in kept for column in own], device=self._device),
        ).logits[0]
        parts = logits.float().split([len(own) for own in kept])
        return dict(zip(tokens, parts, strict=True))

    def _mask(self, owners: Tensor) -> Tensor:
        """[1, 1, new tokens, all tokens], to be added to the attention: 0 where a token is seen."""
        columns = torch.arange(len(self._owners))
        new = columns[-len(owners) :]
        mine = (self._owners == owners[:, None]) & (columns <= new[:, None])
        seen = mine | (self._owners == EVERYBODY)
        dtype = self._prefix.model.dtype
        return torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, torch.finfo(dtype).min)[None, None]


def _positions(model: Any, inputs: Mapping[str, Any]) -> Tensor:
    """The positions of the shared tokens: [1, tokens], or [3, 1, tokens] where an image has rows and columns."""
    count = getattr(model.base_model, "get_rope_index", None)
    ids = inputs["input_ids"]
    if count is None or "image_grid_thw" not in inputs:
        return torch.arange(ids.shape[1], device=ids.device)[None]
    return count(ids, inputs["mm_token_type_ids"], inputs["image_grid_thw"])[0]


LEAST_SAVED = 1024
"""Tokens that sharing must save, (questions - 1) x shared tokens, to be worth passes of its own. On a CPU it
begins to pay at about half of that (docs/performance.md); where passes are started more slowly, later."""

# Values of a generation config that do not change what is likeliest next, so that a greedy answer needs none of them.
IDLE_SETTINGS = {
    *("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"),
    *("do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff"),
    *("max_length", "max_new_tokens", "use_cache", "num_beams", "transformers_version", "_from_model_config"),
    *("output_attentions", "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate"),
}
IDLE_VALUES = {"repetition_penalty": 1.0, "length_penalty": 1.0, "num_return_sequences": 1, "num_beam_groups": 1}

Said = tuple[list[int], tuple[float, ...]]
"""The tokens of an answer, and the probabilities of the options."""


def plainly_greedy(settings: Any) -> bool:
    """Whether a greedy answer under this generation config is the likeliest token, again and again."""
    changed = {name: value for name, value in settings.to_diff_dict().items() if name not in IDLE_SETTINGS}
    return all(value is None or IDLE_VALUES.get(name) == value for name, value in changed.items())


def shared_length(tokenised: Sequence[Tokenised], image_token: int) -> int:
    """How many tokens the prompts begin with alike; 0 if an image comes later, or it would not pay to share them.

    At least one token of each prompt is left: the model has to read it to say what comes next.
    """
    shared = common_length([prompt.context[:-1] for prompt in tokenised])
    if (len(tokenised) - 1) * shared < LEAST_SAVED:
        return 0
    return 0 if any(image_token in prompt.ids[shared:] for prompt in tokenised) else shared


def together(keys: Sequence[Hashable]) -> list[list[int]]:
    """The places that have the same key, where more than one has it; None is no key."""
    found: dict[Hashable, list[int]] = {}
    for number, key in enumerate(keys):
        if key is not None:
            found.setdefault(key, []).append(number)
    return [numbers for numbers in found.values() if len(numbers) > 1]


def read_after(
    prefix: SharedPrefix,
    tokenised: Sequence[Tokenised],
    max_new_tokens: int,
    ends: frozenset[int],
    checked: Callable[[Tensor], Tensor],
) -> list[Said]:
    """Each prompt's answer and option probabilities. All prompts begin with the prefix.

    ends: tokens that end an answer. checked: is given all logits that decide something, and may refuse them.
    """
    answers: dict[int, list[int]] = {}
    first: dict[int, Tensor] = {}
    for part in _packed({i: prompt.ids[prefix.length :] for i, prompt in enumerate(tokenised)}, prefix.length):
        texts = Continuations(prefix)
        logits = checked(_next(texts, part))
        first |= zip(part, logits, strict=True)
        answers |= _greedy(texts, dict(zip(part, logits, strict=True)), max_new_tokens, ends, checked)
    probabilities = _probabilities(prefix, tokenised, first, checked)
    return [(answers[i], probabilities.get(i, ())) for i in range(len(tokenised))]


def _greedy(
    texts: Continuations,
    logits: dict[int, Tensor],
    most: int,
    ends: frozenset[int],
    checked: Callable[[Tensor], Tensor],
) -> dict[int, list[int]]:
    """The likeliest token, again and again, until an end token or so many."""
    said: dict[int, list[int]] = {number: [] for number in logits}
    while logits:
        chosen = dict(zip(logits, torch.stack(list(logits.values())).argmax(1).tolist(), strict=True))
        for number, token in chosen.items():
            said[number].append(token)
        going_on = {i: [token] for i, token in chosen.items() if token not in ends and len(said[i]) < most}
        logits = dict(zip(going_on, checked(_next(texts, going_on)), strict=True)) if going_on else {}
    return said


def _next(texts: Continuations, tokens: Mapping[int, Sequence[int]]) -> Tensor:
    """The logits [texts, vocabulary] after these tokens."""
    return torch.cat(list(texts.extend(tokens, dict.fromkeys(tokens, 1)).values()))


def _probabilities(
    prefix: SharedPrefix,
    tokenised: Sequence[Tokenised],
    first: Mapping[int, Tensor],
    checked: Callable[[Tensor], Tensor],
) -> dict[int, tuple[float, ...]]:
    """Of each prompt's options. first: the logits after each prompt, which decide between options of one token."""
    short = [i for i, prompt in enumerate(tokenised) if prompt.tails and prompt.at_once]
    found: dict[int, tuple[float, ...]] = {}
    if short:
        shares = option_shares(torch.stack([first[i] for i in short]), [tokenised[i] for i in short])
        found |= zip(short, shares, strict=True)
    longer = {i: [0.0] * len(own.tails) for i, own in enumerate(tokenised) if own.tails and not own.at_once}
    runs = [(list(ids), tails) for (i, ids), tails in option_runs(tokenised).items() if i in longer]
    for part in _packed({k: ids[prefix.length :] for k, (ids, _) in enumerate(runs)}, prefix.length):
        last = {k: max(len(tail) for _, _, tail in runs[k][1]) for k in part}
        for k, logits in Continuations(prefix).extend(part, last).items():
            row = logits.log_softmax(-1)
            for i, j, tail in runs[k][1]:
                longer[i][j] = checked(row[-len(tail) :][range(len(tail)), tail]).sum().item()
    return found | {i: tuple(torch.tensor(scores).softmax(0).tolist()) for i, scores in longer.items()}


def _packed(texts: Mapping[int, list[int]], most: int) -> Iterator[dict[int, list[int]]]:
    """The texts in parts of at most so many tokens: no pass shall need more memory than the one over the prefix."""
    part: dict[int, list[int]] = {}
    for number, tokens in texts.items():
        if part and sum(map(len, part.values())) + len(tokens) > most:
            yield part
            part = {}
        part[number] = tokens
    if part:
        yield part


class VlmReader:
    """vlm: what is read. asking, sharing: how many questions fit into memory, apart and after one pass for all."""

    def __init__(self, vlm: "Vlm", inputs: ModelInputs, asking: Batches, sharing: Batches) -> None:
        self._vlm, self._inputs = vlm, inputs
        self._asking, self._sharing = asking, sharing

    def answer(self, asked: Sequence[tuple[str, Sequence[Shown]]], max_new_tokens: int, batch_size: int) -> list[str]:
        """One greedy answer to each question about its images."""
        return self._asking(asked, batch_size, partial(self._answer, max_new_tokens))

    def _answer(self, max_new_tokens: int, asked: Sequence[tuple[str, Sequence[Shown]]]) -> list[str]:
        inputs = self._inputs.of_questions([question for question, _ in asked], [pictures for _, pictures in asked])
        written = self.generate(inputs, max_new_tokens)
        return self._texts(written[:, inputs["input_ids"].shape[1] :])

    def generate(
        self, inputs: dict[str, Any], max_new_tokens: int, processors: Sequence[Any] = (), stops: Sequence[Any] = ()
    ) -> Tensor:
        """The tokens [prompts, length] of the prompts and of what the model writes after them, always the likeliest.

        processors: logits processors of transformers. stops: its stopping criteria.
        """
        return self._vlm.model.generate(
            **inputs,
            max_new_tokens=max_new_tokens,
            do_sample=False,
            num_beams=1,
            pad_token_id=self._vlm.processor.tokenizer.pad_token_id,
            logits_processor=[NumbersOnly(self._vlm.name), *processors],
            stopping_criteria=list(stops),
        )

    def read(self, asked: Sequence[Choice], max_new_tokens: int, batch_size: int) -> list[Answer]:
        """One greedy answer to each question, and the probabilities of its options, which sum to 1; () if none."""
        found: dict[int, Answer] = {}

        def find(numbers: Sequence[int], batches: Batches, work: Callable[..., list[Answer]]) -> None:
            own = [asked[number] for number in numbers]
            said = batches(own, batch_size, partial(work, max_new_tokens, batch_size))
            found.update(zip(numbers, said, strict=True))

        for numbers in self._groups_that_share(asked):
            find(numbers, self._sharing, self._read_sharing)
        find([number for number in range(len(asked)) if number not in found], self._asking, self._read_batch)
        return [found[number] for number in range(len(asked))]

    def score(self, asked: Sequence[Choice], batch_size: int) -> list[list[float]]:
        """log P(option | prompt) of each question's options, summed over the option's tokens (no end token)."""
        return self._asking(asked, batch_size, partial(self._score, batch_size))

    def option_logits(self, asked: Sequence[Choice]) -> tuple[Tensor, list[list[int]]]:
        """The next token's logits [questions, vocabulary] in one batch, and the tokens of each question's options."""
        tokenised = self._inputs.tokenised(asked)
        for (question, _, options), prompt in zip(asked, tokenised, strict=True):
            if not prompt.at_once:
                raise InputError(
                    f"the options {', '.join(options)} of {question!r} are not all single tokens of this model: ask "
                    "for a letter or a number"
                )
        return self._next_token(asked, tokenised), [[tail[0] for tail in prompt.tails] for prompt in tokenised]

    def _groups_that_share(self, asked: Sequence[Choice]) -> list[list[int]]:
        """The numbers of the questions that are read together, after one pass over what their prompts begin with."""
        if not self._may_share or not plainly_greedy(self._vlm.model.generation_config):
            return []
        keys = [
            tuple(map(id, pictures)) if pictures and all(isinstance(p, Features) for p in pictures) else None
            for _, pictures, _ in asked
        ]
        return [own for own in together(keys) if self._shared_length(self._inputs.tokenised([asked[i] for i in own]))]

    @property
    def _may_share(self) -> bool:
        # The questions that go on after the shared tokens need about as much memory again.
        room = self._asking.most is None or self._asking.most > 1
        return self._vlm.share_prefix and room and self._vlm.family.shares_prefix and can_share(self._vlm.model)

    def _shared_length(self, tokenised: Sequence[Tokenised]) -> int:
        processor = self._vlm.processor
        mark = image_token(self._vlm.model.config, processor)
        return shared_length(tokenised, processor.tokenizer.convert_tokens_to_ids(str(mark)))

    def _read_sharing(self, max_new_tokens: int, batch_size: int, asked: Sequence[Choice]) -> list[Answer]:
        """All about the same pictures, after one pass over the tokens that their prompts begin with."""
        tokenised = self._inputs.tokenised(asked)
        length = self._shared_length(tokenised)
        if not length:  # memory ran out before, and these are too few for it to pay
            return self._read_batch(max_new_tokens, batch_size, asked)
        model = self._vlm.model
        prefix = SharedPrefix(model, self._inputs.of_tokens([tokenised[0].ids[:length]], [asked[0][1]]))
        ends = model.generation_config.eos_token_id
        ends = frozenset([ends] if isinstance(ends, int) else ends or ())
        said = read_after(prefix, tokenised, max_new_tokens, ends, partial(require_numbers, name=self._vlm.name))
        return [Answer(self._text(tokens), shares) for tokens, shares in said]

    def _read_batch(self, max_new_tokens: int, batch_size: int, batch: Sequence[Choice]) -> list[Answer]:
        """Options of one token are read from the logits that begin the answer; longer ones in passes of their own."""
        asked = self._encoded(batch)
        tokenised = self._inputs.tokenised(asked)
        answers, first = self._written(asked, tokenised, max_new_tokens)
        shares: dict[int, tuple[float, ...]] = {}
        if first is not None:
            short = [i for i, prompt in enumerate(tokenised) if prompt.at_once]
            shares |= zip(short, option_shares(first[short], [tokenised[i] for i in short]), strict=True)
        longer = [i for i, (_, _, options) in enumerate(asked) if options and i not in shares]
        scores = self._score(batch_size, [asked[i] for i in longer]) if longer else []
        shares |= {i: tuple(torch.tensor(own).softmax(0).tolist()) for i, own in zip(longer, scores, strict=True)}
        return [Answer(answer, shares.get(i, ())) for i, answer in enumerate(answers)]

    def _written(
        self, asked: Sequence[Choice], tokenised: Sequence[Tokenised], max_new_tokens: int
    ) -> tuple[list[str], Tensor | None]:
        """The answers, and the logits [questions, vocabulary] of the first token of each.

        None if the generation config changes logits: then those are not the model's own.
        """
        plain = plainly_greedy(self._vlm.model.generation_config)
        if plain and max_new_tokens == 1:
            logits = require_numbers(self._next_token(asked, tokenised), self._vlm.name)
            return self._texts(logits.argmax(1, keepdim=True)), logits
        first = FirstLogits()
        inputs = self._inputs.of_tokens([prompt.ids for prompt in tokenised], [pictures for _, pictures, _ in asked])
        written = self.generate(inputs, max_new_tokens, [first])
        return self._texts(written[:, inputs["input_ids"].shape[1] :]), first.logits if plain else None

    def _score(self, batch_size: int, batch: Sequence[Choice]) -> list[list[float]]:
        asked = self._encoded(batch)
        scores = [[0.0] * len(options) for _, _, options in asked]
        tokenised = self._inputs.tokenised(asked)

        def work(runs: Sequence[tuple[tuple[int, tuple[int, ...]], list[Tail]]]) -> list[None]:
            after = [max(0, len(ids) - len(tokenised[i].ids)) for (i, ids), _ in runs]
            inputs = self._inputs.of_tokens(
                [list(ids) for (_, ids), _ in runs], [asked[i][1] for (i, _), _ in runs], after
            )
            if "mm_token_type_ids" not in inputs:  # models that need them count positions by themselves
                inputs["position_ids"] = (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)
            longest = max(len(tail) for _, readings in runs for _, _, tail in readings)
            logits = self._vlm.model(**inputs, logits_to_keep=longest, use_cache=False).logits
            for row, (_, readings) in zip(logits.float().log_softmax(-1), runs, strict=True):
                for i, j, tail in readings:
                    steps = row[-len(tail) :]
                    scores[i][j] = require_numbers(steps[range(len(tail)), tail], self._vlm.name).sum().item()
            return [None] * len(runs)

        self._asking(list(option_runs(tokenised).items()), batch_size, work)
        return scores

    def _encoded(self, asked: Sequence[Choice]) -> list[Choice]:
        kept = self._inputs.kept([pictures for _, pictures, _ in asked])
        return [(question, own, options) for (question, _, options), own in zip(asked, kept, strict=True)]

    def _next_token(self, asked: Sequence[Choice], tokenised: Sequence[Tokenised]) -> Tensor:
        """The logits [questions, vocabulary] of the token after each prompt, in float32."""
        inputs = self._inputs.of_tokens([prompt.ids for prompt in tokenised], [pictures for _, pictures, _ in asked])
        inputs |= prompts.shared_positions(self._vlm.model, inputs)
        return self._vlm.model(**inputs, logits_to_keep=1, use_cache=False).logits[:, -1].float()

    def _texts(self, written: Tensor) -> list[str]:
        """Of each row [questions, tokens]; the same answer is decoded once."""
        rows = [tuple(row) for row in written.tolist()]
        words = {row: self._text(row) for row in set(rows)}
        return [words[row] for row in rows]

    def _text(self, tokens: Sequence[int]) -> str:
        return self._vlm.processor.tokenizer.decode(tokens, skip_special_tokens=True).strip()
