"""What methods and models are called in the tables: the published names of methods, in the published order.

How a task is called and printed is its probe's own matter (`ggss.probes.Display`).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ggss.activations import SITE
from ggss.methods.ggss import GgssOptions
from ggss.methods.registry import UNSTEERED

if TYPE_CHECKING:
    from ggss.study.plan import MethodPlan
    from ggss.study.results import Results

GGSS, PROMPT = "ggss", "prompt"

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


def method(label: str) -> str:
    """The published name of a method, or the plan's own label."""
    return _PUBLISHED.get(label, label)


def model(name: str) -> str:
    return name.rstrip("/").rsplit("/", 1)[-1]


def controls(results: "Results") -> list[str]:
    """The models that the plan marks as controls."""
    return [model.name for model in results.plan.models if model.control]


def subjects(results: "Results") -> list[str]:
    """The models that the published tables are about: all but the controls."""
    return [model.name for model in results.plan.models if not model.control]


def compared(results: "Results") -> list[str]:
    """The methods that are compared with one another: not the unsteered one, the grid, discovery prompts."""
    points = (entry.label for entry in results.plan.methods if _on_grid(entry) or entry.prompt)
    left_out = {UNSTEERED, *points} - {GGSS}
    return [label for label in results.methods if label not in left_out]


def beyond(results: "Results") -> list[str]:
    """The plan's methods that have no published row and are not points of the sensitivity grid."""
    return [label for label in compared(results) if label not in _PUBLISHED]


def grid_points(results: "Results") -> dict[tuple[float, float], str]:
    """The methods of the sensitivity grid by (kappa, floor)."""
    return {
        (float(entry.options["kappa"]), float(entry.options["floor"])): entry.label
        for entry in results.plan.methods
        if _on_grid(entry)
    }


def prompted(results: "Results") -> list["MethodPlan"]:
    """`ggss` as published, but for a prompt of discovery."""
    published = GgssOptions.model_validate({}).model_dump()
    return [
        entry
        for entry in results.plan.methods
        if entry.prompt and entry.name == GGSS and entry.sites == SITE and entry.options == published
    ]


def _on_grid(entry: "MethodPlan") -> bool:
    """`ggss` at the published site, with no option but kappa and floor."""
    if entry.name != GGSS or entry.sites != SITE or entry.prompt:
        return False
    own = {name: entry.options[name] for name in ("kappa", "floor")}
    return entry.options == GgssOptions.model_validate(own).model_dump()
