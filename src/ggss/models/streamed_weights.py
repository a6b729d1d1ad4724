"""The fingerprint of a model whose weights come one after the other, as another engine than transformers reads them.

Such an engine may join, split or drop weights, so that what it holds cannot be compared any more. What it reads can:
names are brought to those that transformers has for them, and each weight of the vision path is hashed as it passes.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForImageTextToText

from ggss import hashing
from ggss.errors import InputError
from ggss.models.identity import coarse, of_language

_OPTIONAL = ("model.", "vision_model.")  # parts of names that some versions of checkpoints and transformers leave out


def skeleton(config: Any) -> nn.Module:
    """The model of a config without any weight in memory."""
    with torch.device("meta"):
        return AutoModelForImageTextToText.from_config(config)


class StreamedWeights:
    """model: of transformers; a `skeleton` is enough."""

    def __init__(self, model: nn.Module) -> None:
        weights = {name: own for name, own in model.state_dict().items() if not of_language(name)}
        self._names = {_short(name): name for name in weights}
        self._shapes = {name: own.shape for name, own in weights.items()}
        self._digests: dict[str, str] = {}
        self._all: dict[str, str] = {}

    def through(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """The same weights with their names; those of the vision path are hashed rounded, too."""
        for name, weight in weights:
            self._all[name] = hashing.of_tensor(name, weight)
            known = self._names.get(_short(name))
            if known is not None:
                self._digests[known] = hashing.of_tensor(known, weight, coarse)
            yield name, weight

    def changed(self, held: Iterable[tuple[str, Tensor]]) -> list[str]:
        """Of the weights that an engine holds after loading, the names of those that are not as they came.

        Compared are those that have kept their name and shape. Not in float16, in which numbers of other dtypes are
        rounded otherwise than in the fingerprint.
        """
        found = []
        for name, weight in held:
            known = self._names.get(_short(name), "")
            if self._shapes.get(known) != weight.shape or weight.dtype == torch.float16:
                continue
            if hashing.of_tensor(known, weight, coarse) != self._digests.get(known):
                found.append(name)
        return found

    @property
    def content(self) -> str:
        """SHA-256 of all that came, the text model's included: another checkpoint has another."""
        return hashing.of_digests(self._all)

    @property
    def fingerprint(self) -> str:
        """As `ggss.models.fingerprint` gives it for the loaded model. InputError if a weight did not come."""
        if missing := [name for name in self._names.values() if name not in self._digests]:
            raise InputError(
                f"the model cannot be identified: {len(missing)} weights of the vision path are not in its "
                f"checkpoint under a known name, such as {missing[0]} (is it quantised?)"
            )
        return hashing.of_digests(self._digests)


def _short(name: str) -> str:
    """A name without the parts that versions differ in."""
    for part in _OPTIONAL:
        name = name.removeprefix(part).replace(f".{part}", ".")
    return name
