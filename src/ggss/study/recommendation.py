"""The strength that a study chose, for a steerer equal to the one it measured."""

from pathlib import Path

from ggss.errors import InputError, problems
from ggss.models import ModelIdentity
from ggss.steering.steerer import Steerer
from ggss.study.discovery_set import DiscoverySet
from ggss.study.plan import MethodPlan, Plan
from ggss.study.results import Results
from ggss.study.stored_runs import StoredRuns, opened

COMPARED = ("vision weights", "vision config", "image processor", "dtype", "image backend")
"""The parts of a model's identity that must be equal. Other versions of the libraries may have fitted the steerer."""


def recommended_alpha(folder: str | Path, steerer: Steerer, label: str = "") -> float:
    """best-avg-alpha of the steerer's method on its model. InputError unless the study fitted the same steerer."""
    plan, runs = opened(folder)
    method = plan.method(label or steerer.method)
    if found := _differences(plan, method, steerer, runs):
        raise problems(f"the study in {str(folder)!r} did not measure this steerer", found)
    alpha = Results(plan, runs).best_alpha(str(steerer.source["model"]), method.label)
    if alpha is None:
        raise InputError(f"the study in {str(folder)!r} has chosen no alpha for {method.label!r} yet: run it further")
    return alpha


def _differences(plan: Plan, method: MethodPlan, steerer: Steerer, runs: StoredRuns) -> list[str]:
    """The differences between the steerer and the one that the study fitted."""
    if not isinstance(steerer.attribute, str) or steerer.attribute not in plan.steering:
        return [f"it steers {steerer.attribute!r}, the study {', '.join(plan.steering)}"]
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
    found = [f"{what}: it has {own}, the study {other}" for what, (own, other) in differ.items()]
    return _model_differences(plan, steerer, runs) + found


def _model_differences(plan: Plan, steerer: Steerer, runs: StoredRuns) -> list[str]:
    """A model of one name may be another one by now: what it consists of is compared."""
    model, models = str(steerer.source.get("model")), [one.name for one in plan.models]
    if model not in models:
        return [f"it is for {model}, the study has {', '.join(models)}"]
    own, measured = (
        ModelIdentity({name: str(parts.get(name, "")) for name in COMPARED})
        for parts in (steerer.source.get("identity") or {}, runs.identity(model).parts)
    )
    if not any(measured.parts.values()):
        return []  # not run yet
    return [f"the model: it was made with another {part}" for part in own.differences(measured)]


def _sites(method: MethodPlan, steerer: Steerer) -> str:
    """The method's sites; "all" are those of the steerer's model."""
    return ", ".join(steerer.source.get("sites") or []) if method.sites == "all" else method.sites
