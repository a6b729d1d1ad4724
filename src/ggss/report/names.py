"""What rows and columns are called: the published names of methods and tasks, in the published order."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ggss.activations import SITE

if TYPE_CHECKING:
    from ggss.study.plan import MethodPlan
    from ggss.study.results import Results

GGSS, UNSTEERED, PROMPT = "ggss", "none", "prompt"
CONTROL = "entangled"  # the small-world model in which the attribute cannot be removed alone

# The published methods by family, in the order of the published tables.
EXTERNAL: Mapping[str, Mapping[str, str]] = {
    "INLP": {"inlp-euclidean": "INLP (Eucl.)", "inlp-spherical": "INLP (sph.)"},
    "MeanDiff": {
        "meandiff-svm-euclidean": "MeanDiff-SVM (Eucl.)",
        "meandiff-svm-spherical": "MeanDiff-SVM (sph.)",
        "meandiff-lr-euclidean": "MeanDiff-LR (Eucl.)",
        "meandiff-lr-spherical": "MeanDiff-LR (sph.)",
    },
    "BendVLM": {"bend-euclidean": "BendVLM (Eucl.)", "bend-spherical": "BendVLM (sph.)"},
}
LEACE = {"leace-gated": "LEACE + our gate", "leace-spherical": "LEACE (sph.)"}
SVD: Mapping[str, Mapping[str, str]] = {
    "Hard projection, no slerp, no gate": {
        "svd-pooled-euclidean": "Pooled SVD (Eucl.)",
        "svd-pooled-spherical": "Pooled SVD (sph.)",
    },
    "Per-token hard projection": {
        "svd-token-euclidean": "Per-token SVD (Eucl.)",
        "svd-token-spherical": "Per-token SVD (sph.)",
    },
}
COMPONENTS = {
    "svd-pooled-euclidean": "Pooled SVD (Eucl.; hard projection, no gate)",
    "svd-pooled-spherical": "Pooled SVD (sph.; hard projection, no gate)",
    "ggss-no-gate": "GGSS without gate (g = 1)",
    "ggss-no-slerp": "GGSS without slerp (hard projection + gate)",
    "ggss": "GGSS (full)",
}
GEOMETRY = {"gated-euclidean": "Euclidean + calibrated gate", "gated-euclidean-renorm": "the same, renormalised"}
CALIBRATION = {"ggss": "GGSS, pooled statistics", "ggss-token-gate": "GGSS, per-token statistics"}

_PUBLISHED = {
    **{label: name for family in (*EXTERNAL.values(), *SVD.values()) for label, name in family.items()},
    **LEACE,
    **GEOMETRY,
    "ggss-no-gate": "GGSS without gate",
    "ggss-no-slerp": "GGSS without slerp",
    "ggss-token-gate": "GGSS, per-token gate",
    GGSS: "GGSS",
    UNSTEERED: "Unsteered",
    PROMPT: "Fairness instruction",
}


@dataclass(frozen=True)
class Task:
    """How a task's metric is printed: its name, a factor, and how many decimals."""

    name: str
    scale: float = 1.0
    spec: str = ".3f"
    measured: str = ""


_TASKS = {
    "mcq": Task("MCQ ×10³", 1000, ".2f", "Jensen-Shannon divergence between the races' answers"),
    "2afc": Task("2AFC", 1, ".3f", "standard deviation over races of net preference"),
    "nurse-doctor": Task("N/D", 1, ".3f", "gap between the genders in being called a nurse"),
    "ceo": Task("CEO", 1, ".1f", "gap in the salary named for a candidate"),
    "recognition-race": Task("race recognition (%)", 100, ".1f", "share of portraits whose race is named right"),
    "mme": Task("MME accuracy (%)", 100, ".1f", "share of yes-or-no questions answered right"),
    "smallmme": Task("SmallMME accuracy (%)", 100, ".1f", "share of yes-or-no questions answered right"),
    "recognition-gender": Task(
        "gender recognition (%)", 100, ".1f", "share of portraits whose gender is named right"
    ),
}


def task(name: str) -> Task:
    return _TASKS.get(name) or Task(name)


def method(label: str) -> str:
    """The published name of a method, or the plan's own label."""
    return _PUBLISHED.get(label, label)


def model(name: str) -> str:
    return name.rstrip("/").rsplit("/", 1)[-1]


def is_control(name: str) -> bool:
    return model(name) == CONTROL


def subjects(results: "Results") -> list[str]:
    """The models that the published tables are about: all but the control."""
    return [name for name in results.models if not is_control(name)]


def compared(results: "Results") -> list[str]:
    """The methods that are compared with one another: all but the unsteered one and the points of the grid."""
    left_out = {UNSTEERED, *(entry.label for entry in results.plan.methods if _on_grid(entry))} - {GGSS}
    return [label for label in results.methods if label not in left_out]


def beyond(results: "Results") -> list[str]:
    """The plan's methods that have no published row and are no point of the sensitivity grid."""
    return [label for label in compared(results) if label not in _PUBLISHED]


def grid_points(results: "Results") -> dict[tuple[float, float], str]:
    """The methods of the sensitivity grid by (kappa, floor)."""
    return {
        (float(entry.options["kappa"]), float(entry.options["floor"])): entry.label
        for entry in results.plan.methods
        if _on_grid(entry)
    }


def _on_grid(entry: "MethodPlan") -> bool:
    """`ggss` at the published site, with no option but kappa and floor."""
    return entry.name == GGSS and entry.sites == SITE and entry.options["k"] is None
