"""A worker of a study: loads one model at a time, encodes each picture once, fits each method once, and answers.

The result of a call depends on its arguments only; what a worker caches only saves time. So a call can be repeated on
a new worker when the old one has died.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from ggss import errors
from ggss.activations import Activations
from ggss.activations.collect import collect
from ggss.analysis.asking import answers_of
from ggss.analysis.run import steered_attributes
from ggss.errors import InputError
from ggss.models import ModelIdentity, load_vlm
from ggss.models.features import FeatureCache
from ggss.models.prompts import PromptLengths
from ggss.models.reading import Answer
from ggss.probes.base import Item
from ggss.probes.steered_model import SteeredModel
from ggss.steering import fitting
from ggss.steering.fitting import fit, subspace_cosine
from ggss.steering.steerer import Steerer
from ggss.study import grid
from ggss.study.checking import longest_prompt
from ggss.study.plan import DiscoverySet, MethodPlan, Plan, PlanItems


@dataclass(frozen=True)
class FitReply:
    """What the store keeps of a fit: the warnings of discovery, and how far its gate opens on the tokens.

    cosine: if discovery had a prompt, that of the largest angle between its subspace and the one without a prompt.
    """

    notes: tuple[str, ...]
    gates: fitting.Gates | None
    cosine: float | None = None


@dataclass
class Worker:
    """Fits and answers for a plan. device: where models are loaded, if the plan does not say it."""

    plan: Plan
    device: str | None = None
    _name: str = ""
    _model: SteeredModel | None = None
    _identity: ModelIdentity | None = None
    _fits: dict[tuple[str, str], tuple[Steerer, FitReply]] = field(default_factory=dict)
    _steered: tuple[tuple[object, ...], SteeredModel] | None = None

    def __post_init__(self) -> None:
        if self.plan.threads:
            torch.set_num_threads(self.plan.threads)

    def open(self, model: str) -> ModelIdentity:
        """Load the model, if it is not loaded yet; returns its identity."""
        if self._name != model:
            # Free the old model first: both may not fit in memory.
            self._name, self._model, self._fits, self._steered = "", None, {}, None
            entry = self.plan.model(model)
            place = entry.device_map or self.device
            vlm = load_vlm(entry.name, entry.dtype, place, entry.trust_remote_code, entry.attention)
            if self.plan.batch_size == errors.AUTO:
                vlm.limit_batch(
                    longest_prompt(self.plan, self._plan_items, PromptLengths(vlm.processor, vlm.family.name))
                )
            pictures = [*self._discovery.pictures(), *self._plan_items.pictures()]
            self._model, self._identity = SteeredModel(FeatureCache(vlm, together=pictures)), vlm.identity
            self._name = model
        assert self._identity is not None
        return self._identity

    def fit(self, model: str, label: str, attribute: str) -> FitReply:
        """Fit a method of the plan on its discovery pictures."""
        self.open(model)
        return self._fitted(label, attribute)[1]

    def steerer(self, model: str, label: str, attribute: str) -> tuple[Steerer, FeatureCache]:
        """A method of the plan as it is fitted in the study, and the pictures as the unsteered model sees them."""
        self.open(model)
        return self._fitted(label, attribute)[0], self._unsteered.cache

    def read(self, cell: grid.Cell, numbers: Sequence[int], identity: str) -> list[Answer]:
        """The answers to the numbered items of the cell's task, asked as one batch.

        InputError if the model's identity is not the given hash: its files have changed during the study.
        """
        cell = grid.Cell(*cell)
        if self.open(cell.model).hash != identity:
            raise InputError(f"{cell.model} has changed while the study was running: run the same command again")
        items, longest = self._plan_items.items(cell.task), self._plan_items.max_new_tokens(cell.task)
        return self._answers(self._under(cell), items, numbers, longest)

    def _answers(
        self, model: SteeredModel, items: Sequence[Item], numbers: Sequence[int], longest: int
    ) -> list[Answer]:
        return answers_of(model, items, numbers, longest)

    @cached_property
    def _plan_items(self) -> PlanItems:
        return PlanItems(self.plan)

    @cached_property
    def _discovery(self) -> DiscoverySet:
        return DiscoverySet(self.plan)

    @property
    def _unsteered(self) -> SteeredModel:
        assert self._model is not None
        return self._model

    def _fitted(self, label: str, attribute: str) -> tuple[Steerer, FitReply]:
        if (label, attribute) not in self._fits:
            self._fits = {key: fit for key, fit in self._fits.items() if key[0] == label}
            self._fits[label, attribute] = self._fit(label, attribute)
        return self._fits[label, attribute]

    def _fit(self, label: str, attribute: str) -> tuple[Steerer, FitReply]:
        method = self.plan.method(label)
        any_attribute = attribute or self.plan.attributes[0]
        steerer, activations = self._discovered(method, any_attribute, method.prompt)
        cosine = None
        if method.prompt is not None:
            cosine = subspace_cosine(steerer, self._discovered(method, any_attribute, None)[0])
        return steerer, FitReply(tuple(steerer.warnings), fitting.measure_gates(steerer, activations), cosine)

    def _discovered(self, method: MethodPlan, attribute: str, prompt: str | None) -> tuple[Steerer, Activations]:
        torch.manual_seed(self.plan.seed)
        activations = collect(
            self._unsteered.vlm,
            self._discovery.of(attribute),
            method.sites,
            keep_tokens=self._discovery.tokens,
            seed=self.plan.seed,
            features=self._unsteered.cache,
            prompt=prompt,
            pooling=method.pooling or self.plan.pooling,
            show=False,
        )
        names = steered_attributes(attribute)
        target = names[0] if len(names) == 1 else tuple(names)
        return fit(method.name, activations, attribute=target, **method.options), activations

    def _under(self, cell: grid.Cell) -> SteeredModel:
        """The model under the cell's steering. The features of the previous steering are freed."""
        steerer, _ = self._fitted(cell.method, cell.attribute)
        if not self.plan.method(cell.method).steers and not steerer.prompt_suffix:
            return self._unsteered
        steering = cell[:4]
        if self._steered is None or self._steered[0] != steering:
            self._steered = None
            self._steered = steering, self._unsteered.steered(steerer, cell.alpha)
        return self._steered[1]
