"""Steers the pictures of a batch of requests together, each at its own strengths, and records what was done.

Steered features are cached, because a chat sends the same picture again at every turn. Their key is everything that
determines them: the picture, and the content and strength of each steerer that acts. So no request gets features that
were steered at the strengths of another, or by a steerer that has been replaced.

`served_steerer` and `turns_with_suffix` are shared with the vLLM engine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import add

import torch

from ggss.models import prompts
from ggss.models.features import BoundedFeatures, Features, SteeredTogether, steered_with_gates
from ggss.serve.schema import ChatJob, ServedSteerer
from ggss.steering import SteeringRecord
from ggss.steering.attach import NeverFired
from ggss.steering.steerer import Steerer

SteeredPictures = tuple[list[Features], dict[str, SteeringRecord]]
"""The steered pictures of one request, and what each steerer did."""


def served_steerer(steerer: Steerer, folder: str) -> ServedSteerer:
    """The description of a loaded steerer that the server gets."""
    attribute = steerer.attribute if isinstance(steerer.attribute, str) else " x ".join(steerer.attribute)
    return ServedSteerer(folder, steerer.method, attribute, float(steerer.strength()), steerer.content_hash)


def turns_with_suffix(job: ChatJob, steerers: Mapping[str, Steerer]) -> list[prompts.Turn]:
    """The turns, with the prompt suffixes of the steerers that act appended to the last turn of the user."""
    suffix = "".join(steerers[name].prompt_suffix for name, alpha in job.strengths.items() if alpha)
    turns: list[prompts.Turn] = [(role, list(parts)) for role, parts in job.turns]
    last = max((number for number, (role, _) in enumerate(turns) if role == "user"), default=None)
    if suffix and last is not None:
        role, parts = turns[last]
        turns[last] = role, [*parts, suffix]
    return turns


@dataclass(frozen=True)
class EncodedPicture:
    """A picture of a request with its unsteered features."""

    digest: str
    features: Features


class BatchSteering:
    """Steers the pictures of batches. room: bytes of its cache, from which the least recently used are removed."""

    def __init__(self, room: int) -> None:
        self._contents: dict[str, tuple[Steerer, str]] = {}
        self._records: dict[str, dict[str, SteeringRecord]] = {}
        self._features = BoundedFeatures(room, self._forget)

    @property
    def nbytes(self) -> int:
        """The size of the cached features."""
        return self._features.nbytes

    def _forget(self, key: str, _: object) -> None:
        del self._records[key]

    def __call__(
        self,
        steerers: Mapping[str, Steerer],
        pictures: Sequence[Sequence[EncodedPicture]],
        strengths: Sequence[Mapping[str, float]],
    ) -> list[SteeredPictures]:
        """For each request, in order. pictures and strengths: of each request; a strength of 0 changes no picture.

        Steerers act one after the other, in their order. NeverFired if one was to act on a picture and did not.
        """
        requests = [
            _SteeringRequest(encoded, alphas, {name: float(alphas[name]) for name in steerers if alphas.get(name)})
            for encoded, alphas in zip(pictures, strengths, strict=True)
        ]
        keys = [
            [self._key(picture.digest, steerers, request.acting) for picture in request.pictures]
            for request in requests
        ]
        new = {
            key: (picture.features, request.acting)
            for request, request_keys in zip(requests, keys, strict=True)
            for picture, key in zip(request.pictures, request_keys, strict=True)
            if request.acting and key not in self._features
        }
        if new:
            features, records = _steered(steerers, list(new.values()))
            self._features.add(dict(zip(new, features, strict=True)))
            self._records.update(zip(new, records, strict=True))
        steered = [
            self._steered_pictures(request, request_keys)
            for request, request_keys in zip(requests, keys, strict=True)
        ]
        self._features.make_room()
        return steered

    def _key(self, digest: str, steerers: Mapping[str, Steerer], acting: Mapping[str, float]) -> str:
        parts = (f"{name}={alpha!r} {self._content(name, steerers[name])}" for name, alpha in acting.items())
        return " ".join([digest, *parts])

    def _content(self, name: str, steerer: Steerer) -> str:
        """The hash of its content, computed once for each steerer because it takes long."""
        cached = self._contents.get(name)
        if cached is None or cached[0] is not steerer:
            cached = self._contents[name] = steerer, steerer.content_hash
        return cached[1]

    def _steered_pictures(self, request: "_SteeringRequest", keys: Sequence[str]) -> SteeredPictures:
        records = {name: SteeringRecord(alpha) for name, alpha in request.strengths.items()}
        if not request.acting or not request.pictures:
            return [picture.features for picture in request.pictures], records
        for name, alpha in request.acting.items():
            records[name] = _request_record(name, alpha, [self._records[key][name] for key in keys])
        return [features for key in keys if isinstance(features := self._features[key], Features)], records


@dataclass(frozen=True)
class _SteeringRequest:
    """acting: the strengths that are not 0, in the order of the steerers."""

    pictures: Sequence[EncodedPicture]
    strengths: Mapping[str, float]
    acting: Mapping[str, float]


@torch.inference_mode()  # nothing is learned here, and each of many small operations takes less time
def _steered(
    steerers: Mapping[str, Steerer], pictures: Sequence[tuple[Features, Mapping[str, float]]]
) -> tuple[list[Features], list[dict[str, SteeringRecord]]]:
    """Pictures, each at its own strengths. A steerer acts on all its pictures in one pass over their tokens."""
    features: list[Features] = [unsteered for unsteered, _ in pictures]
    records: list[dict[str, SteeringRecord]] = [{} for _ in pictures]
    for name, steerer in steerers.items():
        acting = [number for number, (_, strengths) in enumerate(pictures) if name in strengths]
        if not acting:
            continue
        alphas = [pictures[number][1][name] for number in acting]
        batch = steered_with_gates(
            [features[number] for number in acting],
            steerer,
            alphas,
            allow_amplify=True,  # whether a request may have a negative strength was decided when it came in
            copied=True,  # each is cached, and removed, alone
        )
        for number, after, record in zip(acting, batch.features, _picture_records(batch, alphas), strict=True):
            features[number], records[number][name] = after, record
    return features, records


def _picture_records(batch: SteeredTogether, alphas: Sequence[float]) -> list[SteeringRecord]:
    """What was done to each picture at its strength.

    The gates of all are summed in one operation: each alone takes as long.
    """
    zeros = [0] * len(batch.features)
    tokens, gated, sums = zeros, zeros, [0.0] * len(zeros)
    for site, counts in batch.counts.items():
        tokens = list(map(add, tokens, counts))
        gate = batch.gates[site]
        if gate is not None:
            site_sums = torch.segment_reduce(gate.cpu(), "sum", lengths=torch.tensor(counts)).tolist()
            gated, sums = list(map(add, gated, counts)), list(map(add, sums, site_sums))
    calls = len(batch.counts)
    rows = zip(alphas, tokens, gated, sums, strict=True)
    return [SteeringRecord(alpha, calls, count, with_gate, gate_sum) for alpha, count, with_gate, gate_sum in rows]


def _request_record(name: str, alpha: float, pictures: Sequence[SteeringRecord]) -> SteeringRecord:
    """What was done to a request's pictures. NeverFired if one of them was not changed."""
    total = SteeringRecord.total(alpha, pictures)
    if not all(record.tokens for record in pictures):
        raise NeverFired(
            f"the steerer {name!r} was to act on {len(pictures)} pictures and changed {total.tokens} tokens: "
            "no answer is given"
        )
    return total
