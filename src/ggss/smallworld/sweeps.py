"""A small-world model before and after steering, and the strength that reduces its bias most.

Each bias task is asked of the model that is steered for the attribute the task is about.
"""

from collections.abc import Mapping
from functools import cache

from ggss.analysis import Comparison, Run, ask, best_alpha, compare
from ggss.errors import InputError
from ggss.probes.base import get
from ggss.probes.steered_model import SteeredModel
from ggss.probes.suites import Suite
from ggss.smallworld.suite import small_world
from ggss.steering.steerer import Steerer

ALPHAS = (0.25, 0.5, 0.75, 1.0, 1.5)


@cache
def suite(split: str = "evaluation") -> Suite:
    return small_world(split)


def unsteered(model: SteeredModel, split: str = "evaluation") -> dict[str, Run]:
    """The bias tasks on the identities of a split."""
    tasks = [task for task in suite(split).default if get(task).kind == "bias"]
    return {task: ask(model, suite(split), task) for task in tasks}


def bias_changes(
    before: Mapping[str, Run], steered: Mapping[str, SteeredModel], split: str = "evaluation"
) -> dict[str, Comparison]:
    """The bias tasks again under steering, each beside its unsteered run. steered: the model by steered attribute."""
    return {task: compare(run, ask(steered[run.about], suite(split), task)) for task, run in before.items()}


def selected_alpha(model: SteeredModel, steerers: Mapping[str, Steerer]) -> float:
    """best-avg-alpha on the selection identities. steerers: by attribute."""
    before = unsteered(model, "selection")
    sweep = {
        alpha: bias_changes(before, {a: model.steered(s, alpha) for a, s in steerers.items()}, "selection")
        for alpha in ALPHAS
    }
    alpha = best_alpha(sweep)
    if alpha is None:
        raise InputError(f"{model.vlm.name} shows no bias that a strength could be selected by: check its answers")
    return alpha
