"""Steering the pictures of many requests together, each at its own strengths, and counting what was done."""

from collections.abc import Mapping, Sequence

import torch

from ggss.models.features import Features, GatedFeatures, steered_with_gates
from ggss.serve.engine import SteeringRecord
from ggss.steering.attachment import NeverFired
from ggss.steering.steerer import Steerer

SteeredPictures = tuple[list[Features], dict[str, SteeringRecord]]
"""The pictures of one request as its strengths made them, and what each steerer did."""


def steer_batch(
    steerers: Mapping[str, Steerer],
    pictures: Sequence[Sequence[Features]],
    strengths: Sequence[Mapping[str, float]],
) -> list[SteeredPictures]:
    """For each request, in order. pictures and strengths: of each request; a strength of 0 leaves pictures alone.

    Steerers act one after the other, in their order. NeverFired if one was to act on a picture and did not.
    """
    found: list[SteeredPictures] = [(list(own), {}) for own in pictures]
    for name, steerer in steerers.items():
        acting = [number for number, own in enumerate(strengths) if own.get(name) and pictures[number]]
        done = iter(_steered(steerer, [(found[number][0], strengths[number][name]) for number in acting]))
        steered = {number: [next(done) for _ in pictures[number]] for number in acting}
        means = dict(zip(acting, _gate_means(list(steered.values())), strict=True))
        for number, own in enumerate(strengths):
            if name in own:
                record = _record(name, own[name], len(pictures[number]), steered.get(number, ()), means.get(number))
                kept = [one.features for one in steered[number]] if number in steered else found[number][0]
                found[number] = kept, found[number][1] | {name: record}
    return found


def _steered(steerer: Steerer, asked: Sequence[tuple[Sequence[Features], float]]) -> list[GatedFeatures]:
    """All pictures in one pass over their tokens. asked: the pictures of a request, and their strength."""
    if not asked:
        return []
    alphas = torch.tensor([alpha for own, alpha in asked for _ in own])
    # Whether a request may have a negative strength was decided when it came in.
    return steered_with_gates([one for own, _ in asked for one in own], steerer, alphas, allow_amplify=True)


def _gate_means(requests: Sequence[Sequence[GatedFeatures]]) -> list[float | None]:
    """The mean gate of each request, all in a few operations: a request alone takes as many."""
    gates = [
        (number, gate)
        for number, own in enumerate(requests)
        for one in own
        for gate in one.gates.values()
        if gate is not None
    ]
    if not gates:
        return [None] * len(requests)
    every = torch.cat([gate for _, gate in gates]).float()
    counts = torch.tensor([len(gate) for _, gate in gates])
    owners = torch.tensor([number for number, _ in gates]).repeat_interleave(counts).to(every.device)
    sums = torch.zeros(len(requests), device=every.device).index_add_(0, owners, every)
    return (sums / owners.bincount(minlength=len(requests)).clamp(min=1)).tolist()


def _record(
    name: str, alpha: float, pictures: int, steered: Sequence[GatedFeatures], gate_mean: float | None
) -> SteeringRecord:
    sites = {site for one in steered for site in one.gates}
    tokens = sum(len(one.features.rows[site]) for one in steered for site in one.gates)
    if alpha and (len(steered) < pictures or not tokens):
        raise NeverFired(
            f"the steerer {name!r} was to act on {pictures} pictures and changed {tokens} tokens of {len(steered)}: "
            "no answer is given"
        )
    return SteeringRecord(alpha, len(sites), tokens, gate_mean)
