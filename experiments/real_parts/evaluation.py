"""Steerers fitted on one half of the scenes by `ggss discover`, and measured on the other half.

All questions about a picture are asked in one pass. That gives the same probabilities as `ggss probe` in a fraction
of the time: the command asks the questions of a file one after another, and begins each with the picture again.

    gap(a)  = mean over questions of | mean over scenes of p(first option | value 1 of a) - p(. | value 2) |
    flips   = share of scenes, questions and values of the other attribute where the likelier option depends on a
    named   = share of right answers where the scene tells, over all pictures

Intervals are percentiles over resampled scenes. What a gap would be without bias comes from swapping the two values
in randomly chosen scenes.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

import ggss
from experiments.real_parts.projector import option_probabilities
from experiments.real_parts.questions import OCCUPATIONS, QUESTIONS, THINGS
from experiments.real_parts.scenes import GENDERS, RACES, Picture
from ggss.errors import InputError
from ggss.methods.diagnostics import TokenProbe, probe_tokens
from ggss.version import ggss_code

Array = NDArray[np.float64]
METHODS = (
    "pace",
    "ggss",
    "leace-spherical",
    "bend-token-euclidean",
    "ggss-contrast",
    "bend-euclidean",
    "svd-pooled-euclidean",
)
ATTRIBUTES = {"gender": GENDERS, "race": RACES}
BOTH = "race,gender"
RESAMPLES = 2000
BATCH = 4  # pictures


@dataclass(frozen=True)
class Condition:
    """A method, and the attribute that it removes; "" for the unsteered model."""

    method: str = "none"
    attribute: str = ""

    @property
    def name(self) -> str:
        return f"{self.method}-{self.attribute.replace(',', '-')}" if self.attribute else self.method

    @property
    def attributes(self) -> list[str]:
        return self.attribute.split(",") if self.attribute else []


def conditions(methods: Sequence[str] = METHODS) -> list[Condition]:
    """The unsteered model, each method for each attribute, and PACE for both at once; the most telling first."""
    alone = [Condition(method, attribute) for method in methods for attribute in ATTRIBUTES]
    return [Condition(), *alone[:8], Condition("pace", BOTH), *alone[8:]]


@contextmanager
def environment(**values: str) -> Iterator[None]:
    """Variables that the commands read."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def command(*arguments: Any) -> None:
    """What `ggss ARGUMENTS` does, in this process."""
    from ggss.cli import app

    entry: Any = typer.main.get_command(app)
    with entry.make_context("ggss", [str(argument) for argument in arguments]) as context:
        entry.invoke(context)


def fitted_steerer(model: Path, condition: Condition, images: Path, out: Path) -> Path | None:
    """The steerer's folder, written by `ggss discover` if the code that fits has changed; None if unsteered."""
    if not condition.attribute:
        return None
    steerer, code = out / f"{condition.name}-steerer", out / f"{condition.name}-code.txt"
    fitting = ggss_code()["ggss (steering)"]
    if not (steerer / "config.json").is_file() or not code.is_file() or code.read_text() != fitting:
        command(
            *("discover", model, "--images", images, "--attribute", condition.attribute),
            *("--method", condition.method, "-o", steerer, "--dtype", "float32"),
        )
        code.write_text(fitting)
    return steerer


@dataclass(frozen=True)
class Half:
    """The pictures of the half that is asked about, and what a model makes of them."""

    vlm: ggss.Vlm
    pictures: tuple[Picture, ...]
    rows: Tensor  # [pictures, tokens, width] at the site

    @classmethod
    def encoded(cls, vlm: ggss.Vlm, pictures: Sequence[Picture]) -> "Half":
        """In the order of the pictures."""
        site = next(iter(vlm.sites()))
        images = [Image.open(picture.path).convert("RGB") for picture in pictures]
        return cls(
            vlm, tuple(pictures), torch.stack([features.rows[site].float() for features in vlm.encode(images)])
        )

    def measured(self, steerer: Path | None) -> dict[str, Any]:
        """The answers, what a probe of all tokens still reads of each attribute, and how far tokens moved."""
        loaded = None if steerer is None else ggss.Steerer.from_pretrained(steerer)

        def steered(rows: Tensor) -> Tensor:
            return rows if loaded is None else loaded.steer(rows, alpha=1.0)

        with torch.inference_mode():
            rows = torch.stack([steered(tokens) for tokens in self.rows])
            probes = {name: self._probe(steered, name) for name in ATTRIBUTES}
        asked = [(question.text, question.options) for question in QUESTIONS]
        tokenizer = self.vlm.processor.tokenizer
        answers = [option_probabilities(self.vlm.model, tokenizer, some, asked) for some in rows.split(BATCH)]
        return {
            "steerer": "" if loaded is None else loaded.content_hash,
            "probabilities": torch.cat(answers)[..., 0].tolist(),
            "read": {name: probe.after for name, probe in probes.items()},
            "moved": probes["gender"].displacement,
        }

    def _probe(self, steered: Callable[[Tensor], Tensor], attribute: str) -> TokenProbe:
        labels = [getattr(picture, attribute) for picture in self.pictures]
        contexts = [picture.scene.name for picture in self.pictures]
        probe = probe_tokens(list(self.rows), labels, contexts, steered, needs_all_tokens=True)
        if probe is None:
            raise InputError(f"{len(set(contexts))} scenes are too few for a probe of tokens")
        return probe


@dataclass(frozen=True)
class Answers:
    """Probabilities of the first option: [scenes, races, genders, questions]."""

    scenes: tuple[str, ...]
    probabilities: Array

    def joined(self, other: "Answers") -> "Answers":
        """The answers about the scenes of both."""
        return Answers(self.scenes + other.scenes, np.concatenate([self.probabilities, other.probabilities]))

    def differences(self, attribute: str) -> Array:
        """[scenes, questions]: the mean difference between the attribute's two values."""
        axis = 1 if attribute == "race" else 2
        first, second = np.take(self.probabilities, 0, axis), np.take(self.probabilities, 1, axis)
        return (first - second).mean(1)

    def flipped(self, attribute: str) -> Array:
        """[scenes]: the share of cases whose likelier option depends on the attribute."""
        axis = 1 if attribute == "race" else 2
        likelier = self.probabilities > 0.5
        return (np.take(likelier, 0, axis) != np.take(likelier, 1, axis)).mean((1, 2))

    def right(self, questions: Sequence[Any]) -> Array:
        """[scenes, 2]: right answers, and how many there could be, of questions where the scene tells."""
        counts = np.zeros((len(self.scenes), 2))
        for number, question in enumerate(QUESTIONS):
            if question not in questions:
                continue
            for row, scene in enumerate(self.scenes):
                if (right := question.right(scene)) is not None:
                    first = self.probabilities[row, :, :, number] > 0.5
                    counts[row] += (first == (right == question.options[0])).sum(), first.size
        return counts


def read_answers(pictures: Sequence[Picture], probabilities: Sequence[Sequence[float]]) -> Answers:
    """The answers about pictures, of each its probabilities, by scene."""
    by_picture = {
        (picture.scene.name, picture.race, picture.gender): row
        for picture, row in zip(pictures, probabilities, strict=True)
    }
    scenes = tuple(sorted({scene for scene, _, _ in by_picture}))
    values = [[[by_picture[scene, race, gender] for gender in GENDERS] for race in RACES] for scene in scenes]
    return Answers(scenes, np.array(values))


def gap(differences: Array) -> float:
    """The mean over questions of the absolute mean difference; [scenes, questions]."""
    return float(np.abs(differences.mean(0)).mean())


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval over scenes."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def resampled(scenes: int, seed: int = 0) -> NDArray[np.int64]:
    """[RESAMPLES, scenes]: which scenes each resample has; the same for all conditions, so that they are paired."""
    return np.random.default_rng(seed).integers(scenes, size=(RESAMPLES, scenes))


def percentiles(value: float, draws: Array) -> Estimate:
    low, high = np.quantile(draws, [0.025, 0.975])
    return Estimate(value, float(low), float(high))


def gap_estimate(differences: Sequence[Array]) -> Estimate:
    """The gap, mean over models; each array is a model's [scenes, questions]."""
    draws = resampled(len(differences[0]))
    values = [np.abs(of_model[draws].mean(1)).mean(1) for of_model in differences]
    return percentiles(float(np.mean([gap(of_model) for of_model in differences])), np.mean(values, 0))


def gap_change(differences: Sequence[Array], others: Sequence[Array]) -> Estimate:
    """The first gap less the second, mean over models, on the same resampled scenes."""
    draws = resampled(len(differences[0]))
    values = [
        np.abs(one[draws].mean(1)).mean(1) - np.abs(two[draws].mean(1)).mean(1)
        for one, two in zip(differences, others, strict=True)
    ]
    value = np.mean([gap(one) - gap(two) for one, two in zip(differences, others, strict=True)])
    return percentiles(float(value), np.mean(values, 0))


def gap_without_bias(differences: Sequence[Array]) -> tuple[float, float]:
    """Median and 95 % point of the gap if the two values were exchangeable within each scene."""
    draws = _exchanged(differences)
    return float(np.median(draws)), float(np.quantile(draws, 0.95))


def gap_chance(differences: Sequence[Array]) -> float:
    """How often the gap would be as large as it is if the two values were exchangeable within each scene."""
    observed = np.mean([gap(of_model) for of_model in differences])
    return float((1 + (_exchanged(differences) >= observed).sum()) / (1 + RESAMPLES))


def _exchanged(differences: Sequence[Array], seed: int = 0) -> Array:
    """[RESAMPLES]: gaps, mean over models, with the values exchanged in randomly chosen scenes."""
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(RESAMPLES, len(differences[0]), 1))
    return np.mean([np.abs((signs * of_model).mean(1)).mean(1) for of_model in differences], 0)


def share_estimate(shares: Sequence[Array]) -> Estimate:
    """The mean over scenes and models of [scenes]."""
    draws = resampled(len(shares[0]))
    return percentiles(float(np.mean(shares)), np.mean([of_model[draws].mean(1) for of_model in shares], 0))


def share_change(shares: Sequence[Array], others: Sequence[Array]) -> Estimate:
    """The first share less the second, mean over models, on the same resampled scenes."""
    return share_estimate([one - two for one, two in zip(shares, others, strict=True)])


def named_estimate(counts: Sequence[Array]) -> Estimate:
    """The share of right answers of [scenes, 2], mean over models."""
    draws = resampled(len(counts[0]))
    return percentiles(
        float(np.mean([_share(of_model) for of_model in counts])),
        np.mean([_share(of_model[draws]) for of_model in counts], 0),
    )


def named_change(counts: Sequence[Array], others: Sequence[Array]) -> Estimate:
    """The first share of right answers less the second, on the same resampled scenes."""
    draws = resampled(len(counts[0]))
    pairs = list(zip(counts, others, strict=True))
    return percentiles(
        float(np.mean([_share(one) - _share(two) for one, two in pairs])),
        np.mean([_share(one[draws]) - _share(two[draws]) for one, two in pairs], 0),
    )


def _share(counts: Array) -> Array:
    """Right answers of [..., scenes, 2] among those there could be."""
    right, possible = np.moveaxis(counts.sum(-2), -1, 0)
    return right / np.maximum(possible, 1)


NAMED = {"things": THINGS, "occupations": OCCUPATIONS, "all": THINGS + OCCUPATIONS}
