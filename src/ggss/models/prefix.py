"""A shared prefix: what several prompts begin with, images and all, is read once for all of them.

Most of a prompt about a picture is the picture: thousands of image tokens before a question of some dozens. So the
text model reads the shared tokens once and keeps their keys and values. The rest of each prompt is computed after
that, all prompts side by side in one row: a token attends to the shared tokens and to those before it in its own
prompt, never to another prompt's. Nothing is copied for each prompt.

`read_after` gives what `Vlm.read` gives, up to rounding: a greedy answer, and the probabilities of the options.
"""

import copy
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

from ggss.models.placement import execution_device
from ggss.models.prompts import Tokenised

Tail = tuple[int, int, list[int]]
"""The question's number, the option's number, and the option's token ids."""


def option_runs(prompts: Sequence[Tokenised]) -> dict[tuple[int, tuple[int, ...]], list[Tail]]:
    """What has to be read to score the options: a prompt's number and token ids, and the tails that end there.

    The last token of an option is scored but not read, so options of one token share a single run.
    """
    runs: dict[tuple[int, tuple[int, ...]], list[Tail]] = {}
    for i, prompt in enumerate(prompts):
        for j, tail in enumerate(prompt.tails):
            runs.setdefault((i, (*prompt.context, *tail[:-1])), []).append((i, j, tail))
    return runs


def option_shares(logits: Tensor, prompts: Sequence[Tokenised]) -> list[tuple[float, ...]]:
    """The probabilities of each prompt's one-token options, which sum to 1, from the logits [prompts, vocabulary]."""
    shares: list[tuple[float, ...]] = [()] * len(prompts)
    by_count: dict[int, list[int]] = {}
    for i, prompt in enumerate(prompts):
        by_count.setdefault(len(prompt.tails), []).append(i)
    for count, rows in by_count.items():  # prompts with the same number of options together
        if count:
            tokens = torch.tensor([[tail[0] for tail in prompts[i].tails] for i in rows], device=logits.device)
            for i, row in zip(rows, logits[rows].gather(1, tokens).softmax(1).tolist(), strict=True):
                shares[i] = tuple(row)
    return shares


SHARED = -1  # the owner of a token of the prefix
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
    first, last = min(sequences), max(sequences)  # all others begin with what these two have in common
    pairs = enumerate(zip(first, last, strict=False))
    return next((i for i, (left, right) in pairs if left != right), min(len(first), len(last)))


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
        self._owners = torch.full((prefix.length,), SHARED)
        self._lengths: dict[int, int] = {}

    def extend(self, tokens: Mapping[int, Sequence[int]], last: Mapping[int, int]) -> dict[int, Tensor]:
        """Append tokens to some texts. Returns for each the logits [last, vocabulary] after its `last` tokens."""
        owners = torch.tensor([number for number, ids in tokens.items() for _ in ids])
        before = {number: self._lengths.get(number, 0) for number in tokens}
        after = torch.tensor([before[number] + i for number, ids in tokens.items() for i in range(len(ids))])
        self._lengths |= {number: before[number] + len(ids) for number, ids in tokens.items()}
        self._owners = torch.cat([self._owners, owners])
        ends = torch.tensor([len(ids) for ids in tokens.values()]).cumsum(0).tolist()
        columns = [list(range(end - last[number], end)) for number, end in zip(tokens, ends, strict=True)]
        logits = self._prefix.model(
            input_ids=torch.tensor([[token for ids in tokens.values() for token in ids]], device=self._device),
            attention_mask=self._mask(owners).to(self._device),
            position_ids=self._prefix.positions(after.to(self._device)),
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=torch.tensor([column for part in columns for column in part], device=self._device),
        ).logits[0]
        parts = logits.float().split([len(part) for part in columns])
        return dict(zip(tokens, parts, strict=True))

    def _mask(self, owners: Tensor) -> Tensor:
        """[1, 1, new tokens, all tokens], to be added to the attention: 0 where a token is visible."""
        columns = torch.arange(len(self._owners))
        new = columns[-len(owners) :]
        same_text = (self._owners == owners[:, None]) & (columns <= new[:, None])
        visible = same_text | (self._owners == SHARED)
        dtype = self._prefix.model.dtype
        return torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, torch.finfo(dtype).min)[None, None]


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
    groups: dict[Hashable, list[int]] = {}
    for number, key in enumerate(keys):
        if key is not None:
            groups.setdefault(key, []).append(number)
    return [numbers for numbers in groups.values() if len(numbers) > 1]


def read_after(
    prefix: SharedPrefix,
    tokenised: Sequence[Tokenised],
    max_new_tokens: int,
    ends: frozenset[int],
    checked: Callable[[Tensor], Tensor],
) -> list[tuple[list[int], tuple[float, ...]]]:
    """The tokens of each prompt's answer and the probabilities of its options. All prompts begin with the prefix.

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
    answers: dict[int, list[int]] = {number: [] for number in logits}
    while logits:
        chosen = dict(zip(logits, torch.stack(list(logits.values())).argmax(1).tolist(), strict=True))
        for number, token in chosen.items():
            answers[number].append(token)
        unfinished = {i: [token] for i, token in chosen.items() if token not in ends and len(answers[i]) < most}
        logits = dict(zip(unfinished, checked(_next(texts, unfinished)), strict=True)) if unfinished else {}
    return answers


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
    probabilities: dict[int, tuple[float, ...]] = {}
    if short:
        shares = option_shares(torch.stack([first[i] for i in short]), [tokenised[i] for i in short])
        probabilities |= zip(short, shares, strict=True)
    longer = {
        i: [0.0] * len(prompt.tails) for i, prompt in enumerate(tokenised) if prompt.tails and not prompt.at_once
    }
    runs = [(list(ids), tails) for (i, ids), tails in option_runs(tokenised).items() if i in longer]
    for part in _packed({k: ids[prefix.length :] for k, (ids, _) in enumerate(runs)}, prefix.length):
        last = {k: max(len(tail) for _, _, tail in runs[k][1]) for k in part}
        for k, logits in Continuations(prefix).extend(part, last).items():
            row = logits.log_softmax(-1)
            for i, j, tail in runs[k][1]:
                longer[i][j] = checked(row[-len(tail) :][range(len(tail)), tail]).sum().item()
    return probabilities | {i: tuple(torch.tensor(scores).softmax(0).tolist()) for i, scores in longer.items()}


def _packed(texts: Mapping[int, list[int]], most: int) -> Iterator[dict[int, list[int]]]:
    """The texts in parts of at most so many tokens: no pass needs more memory than the one over the prefix."""
    part: dict[int, list[int]] = {}
    for number, tokens in texts.items():
        if part and sum(map(len, part.values())) + len(tokens) > most:
            yield part
            part = {}
        part[number] = tokens
    if part:
        yield part
