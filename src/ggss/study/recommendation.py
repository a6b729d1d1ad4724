"""The strength that a study chose, for a steerer equal to the one it measured."""

from pathlib import Path

from ggss.errors import InputError, problems
from ggss.steering.steerer import Steerer
from ggss.study.discovery_set import DiscoverySet
from ggss.study.plan import MethodPlan, Plan
from ggss.study.results import Results


def recommended_alpha(folder: str | Path, steerer: Steerer, label: str = "") -> float:
    """best-avg-alpha of the steerer's method on its model. InputError unless the study fitted the same steerer."""
    results = Results.load(folder)
    method = results.plan.method(label or steerer.method)
    if found := _differences(results.plan, method, steerer):
        raise problems(f"the study in {str(folder)!r} did not measure this steerer", found)
    alpha = results.best_alpha(str(steerer.source["model"]), method.label)
    if alpha is None:
        raise InputError(f"the study in {str(folder)!r} has chosen no alpha for {method.label!r} yet: run it further")
    return alpha


def _differences(plan: Plan, method: MethodPlan, steerer: Steerer) -> list[str]:
    """The differences between the steerer and the one that the study fitted."""
    if not isinstance(steerer.attribute, str) or steerer.attribute not in plan.steering:
        return [f"it steers {steerer.attribute!r}, the study {', '.join(plan.steering)}"]
    model, models = steerer.source.get("model"), [one.name for one in plan.models]
    found = [] if model in models else [f"it is for {model}, the study has {', '.join(models)}"]
    pairs = {
        "method": (steerer.method, method.name),
        "options": (steerer.options, method.options),
        "sites": (", ".join(steerer.operators), _sites(method, steerer)),
        "discovery pictures": (
            steerer.source.get("data_hash"),
            DiscoverySet(plan).of(steerer.attribute).content_hash,
        ),
    }
    differ = {what: pair for what, pair in pairs.items() if pair[0] != pair[1]}
    return found + [f"{what}: it has {own}, the study {other}" for what, (own, other) in differ.items()]


def _sites(method: MethodPlan, steerer: Steerer) -> str:
    """The method's sites; "all" are as many as the steerer's model has, which is not at hand here."""
    return ", ".join(steerer.operators) if method.sites == "all" else method.sites
