"""What is wrong with a plan, before a model is loaded: `ggss study plan` lists it, `ggss study run` refuses it."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace

from ggss.errors import InputError, problems
from ggss.files import read_json
from ggss.models.families import known_family
from ggss.models.layer_sites import check_layer, is_layer
from ggss.models.locating import locate
from ggss.models.placement import check_placement
from ggss.models.sites import MLP2
from ggss.study.discovery_set import DiscoverySet
from ggss.study.plan import ModelPlan, Plan, contradictions
from ggss.study.plan_items import PlanItems


@dataclass(frozen=True)
class Overlap:
    """Of the pictures that a task shows, how many the steering of an attribute is fitted on."""

    attribute: str
    task: str
    shared: int
    shown: int


@dataclass
class CheckedPlan:
    """A plan that can be run: InputError lists all that contradicts itself or is not there."""

    plan: Plan

    def __post_init__(self) -> None:
        found = contradictions(self.plan)
        found += [problem for model in self.plan.models for problem in _model_problems(self.plan, model)]
        found += [*self.discovery.problems(), *self.asked.problems()]
        if self.plan.overlap == "refuse" and not found:
            found = self._overlap_notes()
        if found:
            nested = [problem.replace("\n", "\n    ") for problem in dict.fromkeys(found)]
            raise problems(f"the plan {self.plan.name!r} cannot be run", nested)

    @cached_property
    def asked(self) -> PlanItems:
        return PlanItems(self.plan)

    @cached_property
    def discovery(self) -> DiscoverySet:
        return DiscoverySet(self.plan)

    @cached_property
    def overlaps(self) -> list[Overlap]:
        """Pictures, by their content, that a steering is fitted on and a task under it is scored on."""
        shown = {
            task: {picture.digest for item in self.asked.items(task) for picture in item.images}
            for task in self.plan.tasks
        }
        measured = [task for task in self.plan.tasks if task not in self.plan.bias_tasks]
        found = [
            Overlap(attribute, task, len(fitted & shown[task]), len(shown[task]))
            for attribute, steering in self.plan.steering.items()
            for fitted in [{picture.digest for picture in self.discovery.of(attribute)}]
            for task in (*steering.tasks, *measured)
        ]
        return [one for one in found if one.shared]

    @cached_property
    def unchecked(self) -> list[str]:
        """Models on the hub: nothing is known of them before they are loaded."""
        return [model.name for model in self.plan.models if not _folder(model).is_dir()]

    def notes(self) -> list[str]:
        """What one should know before the plan is run."""
        hub = [f"models: on the hub and not checked: {', '.join(self.unchecked)}"] if self.unchecked else []
        return self._overlap_notes() + hub

    def _overlap_notes(self) -> list[str]:
        notes = []
        for attribute in self.plan.steering:
            own = [one for one in self.overlaps if one.attribute == attribute]
            counts = ", ".join(f"{one.shared} of {one.shown} in {one.task}" for one in own)
            if own:
                notes.append(
                    f"overlap: {attribute} steering is scored on pictures that it is fitted on ({counts}): "
                    "it may do worse on others; hold some occupations or people out"
                )
        return notes


def _model_problems(plan: Plan, model: ModelPlan) -> list[str]:
    """What is wrong with a model's name, placement and config, and the sites that it does not have."""
    found = []
    try:
        check_placement(model.dtype, model.device_map)
    except InputError as error:
        found.append(f"models: {model.name}: {error}")
    try:
        folder = _folder(model)
        if not folder.is_dir():
            return found
        _check_config(folder / "config.json")
    except InputError as error:
        return [*found, f"models: {error}"]
    for method in plan.methods:
        on_it = method.models is None or model.name in method.models
        common = method.sites in (MLP2, "all")  # every model has these two
        if on_it and not common and not model.trust_remote_code:
            try:
                _check_site(folder, method.sites)
            except InputError as error:
                found.append(f"methods: {method.label!r} on {model.name}: {error}")
    return found


def _folder(model: ModelPlan) -> Path:
    """A model's folder; one that is none, if the model is on the hub."""
    return Path(locate(model.name, ask_hub=False))


def _check_config(file: Path) -> None:
    config = read_json(file, f"the model's config {str(file)!r}")
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise InputError(f"{str(file)!r} has no model_type: give a directory saved with save_pretrained")


def _check_site(folder: Path, site: str) -> None:
    from transformers import AutoConfig  # which imports most of transformers for some models

    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # of many types
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise InputError(f"its config cannot be read ({reason}): get the model again") from error
    if is_layer(site):
        check_layer(config, site)
        return
    if (family := known_family(config)) is None:
        raise InputError(f"{config.model_type} is no known family: of its sites only {MLP2!r} can be found")
    family.sites(SimpleNamespace(config=config), site)
