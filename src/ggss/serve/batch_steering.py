"""Steering the pictures of many requests together, each at its own strengths, and counting what was done."""

from collections.abc import Mapping, Sequence

import torch

from ggss.models.features import Features, SteeredTogether, steered_with_gates
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
        for number, own in enumerate(strengths):
            if name in own:
                found[number][1][name] = SteeringRecord(own[name], 0, 0, None)
        if not acting:
            continue
        shown = [(number, one) for number in acting for one in found[number][0]]
        done = steered_with_gates(
            [one for _, one in shown],
            steerer,
            [strengths[number][name] for number, _ in shown],
            allow_amplify=True,  # whether a request may have a negative strength was decided when it came in
        )
        records = _records(name, [number for number, _ in shown], strengths, done)
        after = iter(done.features)
        for number in acting:
            kept = [next(after) for _ in found[number][0]]
            found[number] = kept, found[number][1] | {name: records[number]}
    return found


def _records(
    name: str, owners: Sequence[int], strengths: Sequence[Mapping[str, float]], done: SteeredTogether
) -> dict[int, SteeringRecord]:
    """What was done to each request. owners: the request of each picture."""
    tokens, gates, sums = (dict.fromkeys(owners, zero) for zero in (0, 0, 0.0))
    for site, counts in done.counts.items():
        for number, count in zip(owners, counts, strict=True):
            tokens[number] += count
        if (gate := done.gates[site]) is not None:
            # All pictures in one operation: each alone takes as long.
            parts = torch.segment_reduce(gate.cpu(), "sum", lengths=torch.tensor(counts)).tolist()
            for number, count, part in zip(owners, counts, parts, strict=True):
                gates[number] += count
                sums[number] += part
    for number, count in tokens.items():
        if not count or len(done.features) < len(owners):
            pictures = owners.count(number)
            raise NeverFired(
                f"the steerer {name!r} was to act on {pictures} pictures and changed {count} tokens of them: no "
                "answer is given"
            )
    return {
        number: SteeringRecord(
            strengths[number][name], len(done.counts), count, sums[number] / gates[number] if gates[number] else None
        )
        for number, count in tokens.items()
    }
