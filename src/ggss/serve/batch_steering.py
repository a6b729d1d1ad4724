"""Steering the pictures of many requests together, each at its own strengths, and counting what was done."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

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
        for number, own in enumerate(strengths):
            if name not in own:
                continue
            steered = [next(done) for _ in pictures[number]] if number in acting else []
            found[number] = ([one.features for one in steered] or found[number][0]), found[number][1]
            found[number][1][name] = _record(name, own[name], len(pictures[number]), steered)
    return found


def _steered(steerer: Steerer, asked: Sequence[tuple[Sequence[Features], float]]) -> list[GatedFeatures]:
    """All pictures in one pass over their tokens. asked: the pictures of a request, and their strength."""
    if not asked:
        return []
    alphas = torch.tensor([alpha for own, alpha in asked for _ in own])
    # Whether a request may have a negative strength was decided when it came in.
    return steered_with_gates([one for own, _ in asked for one in own], steerer, alphas, allow_amplify=True)


def _record(name: str, alpha: float, pictures: int, steered: Sequence[GatedFeatures]) -> SteeringRecord:
    sites = {site for one in steered for site in one.gates}
    tokens = sum(len(one.features.rows[site]) for one in steered for site in one.gates)
    if alpha and (len(steered) < pictures or not tokens):
        raise NeverFired(
            f"the steerer {name!r} was to act on {pictures} pictures and changed {tokens} tokens of {len(steered)}: "
            "no answer is given"
        )
    gates: list[Tensor] = [gate for one in steered for gate in one.gates.values() if gate is not None]
    return SteeringRecord(alpha, len(sites), tokens, float(torch.cat(gates).mean()) if gates else None)
