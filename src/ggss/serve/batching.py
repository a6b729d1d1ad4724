"""Steering the pictures of many requests together, each at its own strengths, and telling what was done.

A picture that is asked about again at the same strengths is not steered again: chats show the same picture at every
turn. What is kept is found by all that decides it: the picture, and the content and strength of each steerer that
acts. So no request gets what was made at another's strength, or by a steerer that has been replaced.

What every engine does with a steerer and its request, whatever runs the model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import add

import torch

from ggss.models import prompts
from ggss.models.features import BoundedFeatures, Features, SteeredTogether, steered_with_gates
from ggss.serve.schema import ChatJob, ServedSteerer, SteeringRecord
from ggss.steering.attach import NeverFired
from ggss.steering.steerer import Steerer


def facts_of(steerer: Steerer, folder: str) -> ServedSteerer:
    """What the server is told of it."""
    attribute = steerer.attribute if isinstance(steerer.attribute, str) else " x ".join(steerer.attribute)
    return ServedSteerer(folder, steerer.method, attribute, float(steerer.strength()), steerer.content_hash)


def with_suffix(job: ChatJob, steerers: Mapping[str, Steerer]) -> list[prompts.Turn]:
    """The turns; what acting steerers want appended to a prompt ends the last of the user."""
    suffix = "".join(steerers[name].prompt_suffix for name, alpha in job.strengths.items() if alpha)
    turns: list[prompts.Turn] = [(role, list(parts)) for role, parts in job.turns]
    last = max((place for place, (role, _) in enumerate(turns) if role == "user"), default=None)
    if suffix and last is not None:
        role, parts = turns[last]
        turns[last] = role, [*parts, suffix]
    return turns


SteeredPictures = tuple[list[Features], dict[str, SteeringRecord]]
"""The pictures of one request as its strengths made them, and what each steerer did."""


@dataclass(frozen=True)
class PictureRecord:
    """What one steerer did to one picture; gates: how many tokens have one, and their sum."""

    sites: int
    tokens: int
    gates: int
    gate_sum: float


@dataclass(frozen=True)
class ShownPicture:
    """A picture of a request, as the unsteered model sees it."""

    digest: str
    features: Features


class BatchSteering:
    """room: bytes of steered features that are kept; the least recently used go first."""

    def __init__(self, room: int) -> None:
        self._contents: dict[str, tuple[Steerer, str]] = {}
        self._records: dict[str, dict[str, PictureRecord]] = {}
        self._kept = BoundedFeatures(room, self._forget)

    @property
    def nbytes(self) -> int:
        """The bytes that are kept."""
        return self._kept.nbytes

    def _forget(self, key: str, _: object) -> None:
        del self._records[key]

    def __call__(
        self,
        steerers: Mapping[str, Steerer],
        pictures: Sequence[Sequence[ShownPicture]],
        strengths: Sequence[Mapping[str, float]],
    ) -> list[SteeredPictures]:
        """For each request, in order. pictures and strengths: of each request; a strength of 0 leaves pictures alone.

        Steerers act one after the other, in their order. NeverFired if one was to act on a picture and did not.
        """
        acting = [{name: float(own[name]) for name in steerers if own.get(name)} for own in strengths]
        keys = [
            [self._key(one.digest, steerers, those) for one in own]
            for own, those in zip(pictures, acting, strict=True)
        ]
        new = {
            key: (one.features, those)
            for own, own_keys, those in zip(pictures, keys, acting, strict=True)
            for one, key in zip(own, own_keys, strict=True)
            if those and key not in self._kept
        }
        if new:
            features, records = _steered(steerers, list(new.values()))
            self._kept.add(dict(zip(new, features, strict=True)))
            self._records.update(zip(new, records, strict=True))
        found = [
            self._request(own, own_keys, those, told)
            for own, own_keys, those, told in zip(pictures, keys, acting, strengths, strict=True)
        ]
        self._kept.make_room()
        return found

    def _key(self, digest: str, steerers: Mapping[str, Steerer], acting: Mapping[str, float]) -> str:
        used = (f"{name}={alpha!r} {self._content(name, steerers[name])}" for name, alpha in acting.items())
        return " ".join([digest, *used])

    def _content(self, name: str, steerer: Steerer) -> str:
        """The hash of its content, which takes long enough to be computed only once."""
        known = self._contents.get(name)
        if known is None or known[0] is not steerer:
            known = self._contents[name] = steerer, steerer.content_hash
        return known[1]

    def _request(
        self,
        pictures: Sequence[ShownPicture],
        keys: Sequence[str],
        acting: Mapping[str, float],
        strengths: Mapping[str, float],
    ) -> SteeredPictures:
        if not acting or not pictures:
            return [one.features for one in pictures], {
                name: SteeringRecord(alpha, 0, 0, None) for name, alpha in strengths.items()
            }
        seen = [one for key in keys if isinstance(one := self._kept[key], Features)]
        done = [self._records[key] for key in keys]
        return seen, {
            name: _summed(name, alpha, [own[name] for own in done])
            if name in acting
            else SteeringRecord(alpha, 0, 0, None)
            for name, alpha in strengths.items()
        }


@torch.inference_mode()  # nothing is learned here, and each of many small operations takes less time
def _steered(
    steerers: Mapping[str, Steerer], wanted: Sequence[tuple[Features, Mapping[str, float]]]
) -> tuple[list[Features], list[dict[str, PictureRecord]]]:
    """Pictures, each at its own strengths; all that one steerer acts on in one pass over their tokens."""
    features: list[Features] = [one for one, _ in wanted]
    records: list[dict[str, PictureRecord]] = [{} for _ in wanted]
    for name, steerer in steerers.items():
        acting = [number for number, (_, strengths) in enumerate(wanted) if name in strengths]
        if not acting:
            continue
        done = steered_with_gates(
            [features[number] for number in acting],
            steerer,
            [wanted[number][1][name] for number in acting],
            allow_amplify=True,  # whether a request may have a negative strength was decided when it came in
            copied=True,  # each is kept, and let go, alone
        )
        for number, after, record in zip(acting, done.features, _told(done), strict=True):
            features[number], records[number][name] = after, record
    return features, records


def _told(done: SteeredTogether) -> list[PictureRecord]:
    """What was done to each picture; the gates of all in one operation, since each alone takes as long."""
    none = [0] * len(done.features)
    tokens, gates, sums = none, none, [0.0] * len(none)
    for site, counts in done.counts.items():
        tokens = list(map(add, tokens, counts))
        gate = done.gates[site]
        if gate is not None:
            parts = torch.segment_reduce(gate.cpu(), "sum", lengths=torch.tensor(counts)).tolist()
            gates, sums = list(map(add, gates, counts)), list(map(add, sums, parts))
    return [PictureRecord(len(done.counts), *own) for own in zip(tokens, gates, sums, strict=True)]


def _summed(name: str, alpha: float, pictures: Sequence[PictureRecord]) -> SteeringRecord:
    """What was done to a request's pictures; NeverFired if one of them was left as it was."""
    tokens, gates = sum(own.tokens for own in pictures), sum(own.gates for own in pictures)
    if not all(own.tokens for own in pictures):
        raise NeverFired(
            f"the steerer {name!r} was to act on {len(pictures)} pictures and changed {tokens} tokens: "
            "no answer is given"
        )
    mean = sum(own.gate_sum for own in pictures) / gates if gates else None
    return SteeringRecord(alpha, pictures[0].sites, tokens, mean)
