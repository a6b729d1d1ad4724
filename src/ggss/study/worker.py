"""Who answers: one model at a time, its pictures encoded once, a method fitted once, one steering at a time.

Every call says all that it needs, and what a worker remembers only spares it work. So a call can be repeated on a
new worker when an old one has died, and the result does not depend on who did what before.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from ggss.errors import InputError
from ggss.models import load_vlm
from ggss.probes.steered_model import Gallery
from ggss.steering import gates
from ggss.steering.fitting import fit
from ggss.study import grid, identity
from ggss.study.asked_items import Questions
from ggss.study.discovery_set import Discovery
from ggss.study.plan import Plan

if TYPE_CHECKING:
    from ggss.steering.steerer import Steerer

# Pictures are encoded, and steered, in the company of always the same others, whoever needs one first: the last
# digits may hang on the batch.
COMPANY = 8
DIGITS = 6  # of a probability; more than any statistic here can feel

Reply = tuple[int, str, tuple[float, ...]]
"""An item's number in its task, the raw answer, the options' probabilities."""


@dataclass(frozen=True)
class Fitted:
    """A fit as the store knows it: the steerer's hash, what discovery warned of, how its gate lies on the tokens."""

    steerer: str
    notes: tuple[str, ...]
    gates: gates.Gates | None


@dataclass
class Worker:
    """`device`: where models go whose plan does not say it."""

    plan: Plan
    device: str | None = None
    _model: str = ""
    _gallery: Any = None
    _weights: str = ""
    _steerers: dict[tuple[str, str], "tuple[Steerer, Fitted]"] = field(default_factory=dict)
    _steered: tuple[Any, Any] = (None, None)

    def __post_init__(self) -> None:
        if self.plan.small:
            torch.set_num_threads(1)

    def open(self, model: str) -> str:
        """Load the model, unless it is there; returns the hash of its weights."""
        if self._model != model:
            # Let go of the old one before the new one needs its room.
            self._model, self._gallery, self._steerers, self._steered = "", None, {}, (None, None)
            wanted = self.plan.model(model)
            vlm = load_vlm(wanted.name, dtype=wanted.dtype, device_map=wanted.device_map or self.device)
            self._gallery, self._weights, self._model = Gallery(vlm), identity.weights_hash(vlm), model
        return self._weights

    def fit(self, model: str, label: str, attribute: str) -> Fitted:
        """Fit a method of the plan on its discovery pictures."""
        self.open(model)
        if (label, attribute) not in self._steerers:
            self._steerers = {key: kept for key, kept in self._steerers.items() if key[0] == label}
            self._steerers[label, attribute] = self._fit(label, attribute)
        return self._steerers[label, attribute][1]

    def read(self, cell: grid.Cell, numbers: Sequence[int], steerer: str) -> list[Reply]:
        """Ask the numbered items of the cell's task; `steerer` is the hash that the answers will be filed under."""
        cell = grid.Cell(*cell)
        if self.fit(cell.model, cell.method, cell.attribute).steerer != steerer:
            raise InputError(
                f"{cell.method} for {cell.attribute or 'no attribute'} on {cell.model} came out otherwise "
                "when it was fitted again: run the same command again"
            )
        items = [self._questions.items(cell.task)[number] for number in numbers]
        gallery = self._seen(cell)
        self._hang(gallery, [picture for item in items for picture in item.images])
        length = self._questions.max_new_tokens(cell.task)
        readings = gallery.read(items, length, batch_size=len(items), show=False)
        return [
            (number, reading.answer, tuple(round(p, DIGITS) for p in reading.probabilities))
            for number, reading in zip(numbers, readings, strict=True)
        ]

    @cached_property
    def _questions(self) -> Questions:
        return Questions(self.plan)

    @cached_property
    def _discovery(self) -> Discovery:
        return Discovery(self.plan)

    @cached_property
    def _companies(self) -> dict[Any, tuple[Any, ...]]:
        """Each picture of the plan with those it is encoded with."""
        asked = (
            picture for task in self.plan.tasks for item in self._questions.items(task) for picture in item.images
        )
        pictures = list(dict.fromkeys([*self._discovery.pictures(), *asked]))
        groups = [tuple(pictures[start : start + COMPANY]) for start in range(0, len(pictures), COMPANY)]
        return {picture: group for group in groups for picture in group}

    def _hang(self, gallery: Gallery, pictures: Sequence[Any]) -> None:
        for picture in dict.fromkeys(pictures):
            if picture not in gallery.kept:
                gallery.see(self._companies[picture])

    def _fit(self, label: str, attribute: str) -> "tuple[Steerer, Fitted]":
        method = self.plan.method(label)
        any_attribute = attribute or next(iter(self.plan.steering))
        self._hang(self._gallery, self._discovery.pictures(any_attribute))
        torch.manual_seed(self.plan.seed)
        acts = self._discovery.activations(self._gallery, any_attribute, method.sites)
        steerer = fit(method.name, acts, attribute=any_attribute, **method.options)
        return steerer, Fitted(steerer.content_hash, tuple(steerer.warnings), gates.measure(steerer, acts))

    def _seen(self, cell: grid.Cell) -> Any:
        """The pictures as the cell's steering shows them; those of the steering before are let go."""
        steerer, _ = self._steerers[cell.method, cell.attribute]
        if not self.plan.method(cell.method).steers and not steerer.prompt_suffix:
            return self._gallery
        wanted = cell[:4]
        if self._steered[0] != wanted:
            self._steered = (None, None)
            self._steered = wanted, self._gallery.steered(steerer, cell.alpha)
        return self._steered[1]
