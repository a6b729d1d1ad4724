"""The beginning that several prompts have in common, images and all, computed once for all of them.

Most of a prompt about a picture is the picture: thousands of image tokens before a question of some dozens. So the
text model reads the shared tokens once and keeps their keys and values. What follows in each prompt is computed after
that, all prompts side by side in one row: a token sees the shared tokens and those before it in its own prompt, never
another prompt's. Nothing is copied for each prompt, and the shared keys and values are read once for all.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

from ggss.models.wrappers import execution_device

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
