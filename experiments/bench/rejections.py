"""How often a test rejects: at most 5 % where it must not, as often as possible where it should."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from experiments.bench import studies
from experiments.bench.studies import Rng, Simulate
from ggss.stats import holm, label_null, mcnemar, signflip, tost


@dataclass(frozen=True)
class Trial:
    """A test, and the worlds it is tried in: one where it must not reject and two where it should."""

    name: str
    worlds: tuple[str, str, str]
    p: Callable[[Rng, int, int], float]  # (generator, world, draws) -> p-value


def rejections(test: Trial, count: int, draws: int, seed: int) -> tuple[float, ...]:
    """The share of studies in which the test rejects at 5 %, in each of its worlds."""
    rng = np.random.default_rng(seed)
    return tuple(float(np.mean([test.p(rng, world, draws) <= 0.05 for _ in range(count)])) for world in range(3))


_WORLDS = ((0.75, 0.75), (0.75, 0.45), (0.75, 0.15))
_REMOVED = ("the same bias in both", "40 % removed", "80 % removed")
_WHIM = 0.3


def _swap_p(simulate: Simulate, size: int, by_cluster: bool, rng: Rng, world: int, draws: int) -> float:
    study = simulate(rng, size, _WORLDS[world], _WHIM)
    clusters = study.clusters if by_cluster else None
    return signflip(study.steered, study.unsteered, clusters=clusters, draws=draws, seed=_seed(rng)).p


def _combined_p(by_cluster: bool, rng: Rng, world: int, draws: int) -> float:
    """GGSS against unsteered over the three tasks; their identities are not the same people."""
    kinds = (studies.mcq, studies.two_afc, studies.nurse_doctor)
    three = [simulate(rng, 8, _WORLDS[world], _WHIM) for simulate in kinds]
    clusters = [
        np.char.add(name, np.char.mod("%s", study.clusters)) for name, study in zip("mtn", three, strict=True)
    ]
    return signflip(
        [study.steered for study in three],
        [study.unsteered for study in three],
        [float(study.unsteered) for study in three],
        clusters if by_cluster else None,
        draws=draws,
        seed=_seed(rng),
    ).p


def _label_p(size: int, rng: Rng, world: int, draws: int) -> float:
    effect = (0.0, 0.3, 0.75)[world]
    study = studies.mcq(rng, size, (effect, effect))
    return label_null(study.unsteered, study.blocks, draws=draws, seed=_seed(rng)).p


def _mcnemar_p(rng: Rng, world: int, draws: int) -> float:
    lost = (0.0, 0.02, 0.04)[world]
    before, after = studies.benchmark(rng, 1500, (0.04, 0.04 + lost))
    return mcnemar(int(np.sum(after > before)), int(np.sum(after < before)))


def _tost_p(questions: int, changed: float, rng: Rng, world: int, draws: int) -> float:
    """`changed` is the share of answers that change in each direction besides a loss of 1.5, 0.5 or 0 points."""
    lost = (0.015, 0.005, 0.0)[world]
    before, after = studies.benchmark(rng, questions, (changed, changed + lost))
    return tost(after, before).p


def _holm_p(rng: Rng, world: int, draws: int) -> float:
    """The smallest of ten adjusted p-values; in the second and third world one and five of ten runs did change."""
    changed = (0, 1, 5)[world]
    tables = [studies.benchmark(rng, 1500, (0.04, 0.04 + (0.03 if k < changed else 0.0))) for k in range(10)]
    return float(holm([mcnemar(int(np.sum(a > b)), int(np.sum(a < b))) for b, a in tables]).min())


def _seed(rng: Rng) -> int:
    return int(rng.integers(2**31))


TRIALS = (
    *(
        Trial(f"signflip by {unit}, {name}", _REMOVED, partial(_swap_p, simulate, 8, unit == "identity"))
        for name, simulate in (
            ("MCQ, 80 answers", studies.mcq),
            ("2AFC, 320 pairs", studies.two_afc),
            ("Nurse/Doctor, 80 answers", studies.nurse_doctor),
        )
        for unit in ("item", "identity")
    ),
    Trial("signflip by item, three tasks against unsteered", _REMOVED, partial(_combined_p, False)),
    Trial("signflip by identity, three tasks against unsteered", _REMOVED, partial(_combined_p, True)),
    Trial("label_null, MCQ, 80 answers", ("no bias", "weak bias", "strong bias"), partial(_label_p, 8)),
    Trial("label_null, MCQ, 240 answers", ("no bias", "weak bias", "strong bias"), partial(_label_p, 24)),
    Trial("mcnemar, 1,500 questions", ("no change", "2 points lost", "4 points lost"), _mcnemar_p),
    *(
        Trial(
            f"tost within 1.5 points, {n:,} questions, {200 * changed:.0f} % change besides",
            ("1.5 points lost", "0.5 points lost", "nothing lost"),
            partial(_tost_p, n, changed),
        )
        for n, changed in ((1500, 0.01), (1500, 0.04), (250, 0.01))
    ),
    Trial(
        "holm over ten McNemar tests, any rejected", ("no change", "one lost 3 points", "five lost 3 points"), _holm_p
    ),
)
