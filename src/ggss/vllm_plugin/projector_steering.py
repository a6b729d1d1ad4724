"""Steering what a projector gives out while vLLM encodes a batch of pictures, each at its own strengths."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ggss import hashing
from ggss.errors import InputError
from ggss.models.identity import text_settings, visual_settings
from ggss.models.sites import in_text, in_tower
from ggss.models.vlm import Vlm
from ggss.steering.attachment import NeverFired
from ggss.steering.steerer import Steerer
from ggss.vllm_plugin.steering_counts import SteeringCount, SteeringCounts
from ggss.vllm_plugin.strength_words import PictureStrengths


@dataclass(frozen=True)
class PictureRows:
    """rows: of a picture at a site. held: with those of tiles that only fill up a batch, which come after them."""

    rows: int
    held: int


@dataclass
class _Batch:
    """Pictures that are being encoded. done: for each, by steerer and site, the gates [rows] of what was steered."""

    pictures: Sequence[PictureStrengths]
    rows: Sequence[PictureRows]
    done: list[dict[str, dict[str, Tensor | None]]] = field(init=False)

    def __post_init__(self) -> None:
        self.done = [{} for _ in self.pictures]
        places = torch.arange(sum(one.held for one in self.rows)).split([one.held for one in self.rows])
        self.places = [own[: one.rows] for own, one in zip(places, self.rows, strict=True)]


class ProjectorSteering:
    """Hooks on the sites of a model as vLLM holds it.

    described: the same model as transformers describes it, without weights; weights: their fingerprint. modules: by
    site. content: a hash of all weights.
    """

    def __init__(self, described: Vlm, weights: str, modules: Mapping[str, nn.Module], content: str) -> None:
        self._described, self._weights = described, weights
        self.identity = hashing.of(
            {
                "weights": content,
                "visual settings": visual_settings(described.model, described.processor),
                "text settings": text_settings(described.model, described.processor),
            }
        )
        """Of the model, the same in every process that has loaded the same files."""
        self._steerers: dict[str, Steerer] = {}
        self._now: _Batch | None = None
        self._modules = modules
        self.counts = SteeringCounts()
        for site, module in modules.items():
            module.register_forward_hook(partial(self._hook, site))

    def load(self, folder: str, expected: str | None = None) -> Steerer:
        """Read a steerer and check it against the model. expected: the content that it must have."""
        steerer = Steerer.from_pretrained(folder)
        if expected is not None and steerer.content_hash != expected:
            raise InputError(f"the steerer in {folder!r} is not the one that was checked: put that back")
        if inner := [site for site in steerer.operators if in_text(site) or in_tower(site)]:
            raise InputError(
                f"the steerer in {folder!r} acts on {inner[0]}, and in vLLM only what the projector gives out is "
                "steered: use the transformers engine"
            )
        steerer.check(self._described, weights=self._weights)
        self._steerers[steerer.content_hash] = steerer
        return steerer

    @contextmanager
    def acting(self, pictures: Sequence[PictureStrengths], rows: Sequence[PictureRows]) -> Iterator[None]:
        """Steer the pictures that are encoded inside the block. NeverFired if one was to be steered and was not."""
        unknown = {content for one in pictures for content in one.strengths} - self._steerers.keys()
        if unknown:
            raise InputError(f"no steerer of the content {unknown.pop()} is loaded: nothing is answered")
        self._now = batch = _Batch(pictures, rows)
        try:
            yield
        finally:
            self._now = None
        for picture, own, done in zip(pictures, rows, batch.done, strict=True):
            counts = {
                content: self._count(content, alpha, done.get(content, {}), own.rows)
                for content, alpha in picture.strengths.items()
            }
            self.counts.add(picture.key, counts)

    def _count(self, content: str, alpha: float, gates: Mapping[str, Tensor | None], rows: int) -> SteeringCount:
        sites = self._steerers[content].operators
        if gates.keys() != sites.keys() or not rows:
            raise NeverFired(
                f"the steerer {content[:12]} was to act at {', '.join(sites)} and acted at "
                f"{', '.join(gates) or 'none'}, on {rows} rows: no answer is given"
            )
        known = [gate.float() for gate in gates.values() if gate is not None]
        mean = float(torch.cat(known).mean()) if known else None
        return SteeringCount(alpha, len(gates), rows * len(gates), mean)

    def _hook(self, site: str, module: nn.Module, args: Any, output: Any) -> Any:
        batch = self._now
        if batch is None or not any(site in self._steerers[c].operators for p in batch.pictures for c in p.strengths):
            return output
        first = output[0] if isinstance(output, tuple) else output  # vLLM's Linears give (output, bias)
        rows = first.reshape(-1, first.shape[-1])
        expected = sum(one.held for one in batch.rows)
        if len(rows) != expected:
            seen = f"{len(batch.rows)} pictures should have {expected} rows at {site}, vLLM gave {len(rows)}"
            raise NeverFired(f"{seen}: no answer is given")
        rows = rows.clone()
        for turn in range(max(len(one.strengths) for one in batch.pictures)):
            self._turn(site, rows, batch, turn)
        replaced = rows.reshape(first.shape)
        return (replaced, *output[1:]) if isinstance(output, tuple) else replaced

    def _turn(self, site: str, rows: Tensor, batch: _Batch, turn: int) -> None:
        """Steerers act one after the other, in the order of each request: here those whose turn it is."""
        by_content: dict[str, list[int]] = {}
        for number, picture in enumerate(batch.pictures):
            if turn < len(picture.strengths):
                by_content.setdefault(list(picture.strengths)[turn], []).append(number)
        for content, numbers in by_content.items():
            steerer = self._steerers[content]
            if site not in steerer.operators:
                continue
            places = torch.cat([batch.places[number] for number in numbers]).to(rows.device)
            counts = [len(batch.places[number]) for number in numbers]
            owners = torch.arange(len(numbers)).repeat_interleave(torch.tensor(counts)).to(rows.device)
            alphas = torch.tensor([batch.pictures[number].strengths[content] for number in numbers])
            done = steerer.apply(rows[places], owners, alphas, site=site, allow_amplify=True)
            rows[places] = done.rows
            gates = [None] * len(numbers) if done.gate is None else done.gate.split(counts)
            for number, gate in zip(numbers, gates, strict=True):
                batch.done[number].setdefault(content, {})[site] = gate
