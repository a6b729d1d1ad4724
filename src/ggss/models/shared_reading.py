"""Many questions about the same pictures, read after one pass over what their prompts have in common.

The reading is that of `Vlm.read`, up to rounding: a greedy answer, and the probabilities of the options.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ggss.models.reading import Tokenised, option_runs, option_shares
from ggss.models.shared_prefix import Continuations, SharedPrefix, common_length

LEAST_SAVED = 1024
"""Tokens that sharing must save, (questions - 1) x shared tokens, to be worth passes of its own. On a processor it
begins to pay at about half of that (docs/performance.md); where passes are started more slowly, later."""

# Settings of `generate` that do not change what is likeliest next, so that a greedy answer needs none of them.
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
    """Whether a greedy answer under these settings of `generate` is the likeliest token, again and again."""
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
