"""Checks of a plan before a model is loaded: its problems, and the memory that each model needs.

`ggss study plan` lists all of it; `ggss study run` refuses a plan that has problems. `draft` writes a plan for a
user's own pictures: what can be asked about them, with people held out from discovery.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import yaml

from ggss.data.counterfactuals import IDENTITY, OCCUPATION, PICTURE_SETS, Counterfactuals
from ggss.data.pictures import labels, size_of
from ggss.errors import InputError, problems
from ggss.files import read_json
from ggss.methods.registry import UNSTEERED
from ggss.models import locate, snapshot
from ggss.models.families import known_family
from ggss.models.identity import exported_words, noted_steering
from ggss.models.placement import PLACES, ModelSize, check_placement, free_memory, placement
from ggss.models.prompts import PromptLengths
from ggss.models.sites import MLP1, MLP2, check_layer, is_layer
from ggss.models.vlm import load_description
from ggss.probes import Item, get, suites
from ggss.probes.suites import Suite
from ggss.study.plan import DiscoverySet, MethodPlan, ModelPlan, Plan, PlanItems, contradictions

MY_PICTURES = "my-pictures"  # of `ggss study new --from`
DRAFTED_MODEL = "org/model"
_DRAFT = """\
# A study of your own pictures, drafted by `ggss study new --from {name}`. docs/study.md explains every key.
description: {description}
suite: {suite}
held_out: {held_out}  # {asked} of {people} people: they are asked about, and no method is fitted on them
discovery: {discovery}  # the others are what methods are fitted on
models: [{model}]  # your model: a folder or a hub id
methods: [none, prompt, ggss, pace]
alphas: [0.25, 0.5, 1.0]
steering:
{steering}
measures:
  - {{tasks: {recognition}, at: best}}
"""


@dataclass(frozen=True)
class Overlap:
    """How many of the pictures that a task shows (`shown`) the steering of an attribute is fitted on (`shared`)."""

    attribute: str
    task: str
    shared: int
    shown: int


@dataclass
class CheckedPlan:
    """A plan that can be run. InputError lists all its problems: contradictions, and missing files or names."""

    plan: Plan

    def __post_init__(self) -> None:
        messages = contradictions(self.plan)
        messages += [problem for model in self.plan.models for problem in _model_problems(self.plan, model)]
        messages += [*self.discovery.problems(), *self.plan_items.problems()]
        if self.plan.overlap == "refuse" and not messages:
            messages = self._overlap_notes()
        if messages:
            nested = [problem.replace("\n", "\n    ") for problem in dict.fromkeys(messages)]
            raise problems(f"the plan {self.plan.name!r} cannot be run", nested)

    @cached_property
    def plan_items(self) -> PlanItems:
        return PlanItems(self.plan)

    @cached_property
    def discovery(self) -> DiscoverySet:
        return DiscoverySet(self.plan)

    @cached_property
    def overlaps(self) -> list[Overlap]:
        """By attribute and task, the pictures that a steering is fitted on and scored on. Equal content is equal."""
        digests = {
            task: {picture.digest for item in self.plan_items.items(task) for picture in item.images}
            for task in self.plan.tasks
        }
        measured = [task for task in self.plan.tasks if task not in self.plan.bias_tasks]
        overlaps = [
            Overlap(attribute, task, len(fitted & digests[task]), len(digests[task]))
            for attribute, steering in self.plan.steering.items()
            for fitted in [{picture.digest for picture in self.discovery.of(attribute)}]
            for task in (steering.tasks if attribute in self.plan.joint else (*steering.tasks, *measured))
        ]
        return [overlap for overlap in overlaps if overlap.shared]

    @cached_property
    def unchecked(self) -> list[str]:
        """The models on the hub: they are checked only when they are loaded."""
        return [model.name for model in self.plan.models if not folder_of(model).is_dir()]

    def notes(self) -> list[str]:
        """Warnings that do not keep the plan from being run."""
        hub = [f"models: on the hub and not checked: {', '.join(self.unchecked)}"] if self.unchecked else []
        parts = [m.name for m in self.plan.models if folder_of(m).is_dir() and not has_weights(folder_of(m))]
        if parts:
            lacking = "described in the hub's local cache, which lacks their weights or a part of them"
            hub.append(f"models: {lacking}: {', '.join(parts)}")
        return self._overlap_notes() + hub + self._export_notes()

    def _export_notes(self) -> list[str]:
        exported = {
            model.name: exported_words(_config_of(folder_of(model)))
            for model in self.plan.models
            if folder_of(model).is_dir()
        }
        return [
            f"models: {name} has steering in its weights ({words}): always on, the unsteered answers of this study "
            "have it too"
            for name, words in exported.items()
            if words
        ]

    def _overlap_notes(self) -> list[str]:
        notes = []
        for attribute in self.plan.steering:
            overlaps = [overlap for overlap in self.overlaps if overlap.attribute == attribute]
            counts = ", ".join(f"{overlap.shared} of {overlap.shown} in {overlap.task}" for overlap in overlaps)
            if overlaps:
                notes.append(
                    f"overlap: {attribute} steering is scored on pictures that it is fitted on ({counts}): it may do "
                    f"worse on others; {self._remedy(attribute)}"
                )
        return notes

    def _remedy(self, attribute: str) -> str:
        """What to write into the plan, so that nobody is both fitted on and asked about."""
        try:
            people = {column: list(values) for column, values in split_people(self.discovery.of(attribute)).items()}
        except InputError:
            return "other people are needed, to ask about: more `images` of the suite"
        if "images" in self.plan.suite.options:
            return f"set `held_out` in the plan, such as `held_out: {json.dumps(people)}`"
        return f"take occupations out of `steering.{attribute}.discover_on`, or give the suite other `images`"


def _model_problems(plan: Plan, model: ModelPlan) -> list[str]:
    """Problems of a model's name, placement and config, and the sites that it does not have."""
    messages = []
    try:
        check_placement(model.dtype, model.device_map)
    except InputError as error:
        messages.append(f"models: {model.name}: {error}")
    try:
        folder = folder_of(model)
        if not folder.is_dir():
            return messages
        config = _config_of(folder)
    except InputError as error:
        return [*messages, f"models: {error}"]
    for method in plan.methods:
        on_it = method.models is None or model.name in method.models
        if on_it and (attributes := _in_weights(config, method, plan.attributes)):
            messages.append(
                f"methods: {method.label!r} on {model.name}: its steering of {', '.join(attributes)} is in the "
                "model's weights already (`ggss export` wrote it there), so it would steer twice: limit it to "
                "other models"
            )
        common = method.sites in (MLP2, "all")  # every model has these two
        if on_it and not common and not model.trust_remote_code:
            try:
                _check_site(folder, method.sites)
            except InputError as error:
                messages.append(f"methods: {method.label!r} on {model.name}: {error}")
    return messages


def folder_of(model: ModelPlan) -> Path:
    """A model's folder, in the hub's local cache too; a path that does not exist, if the model is on the hub."""
    folder = Path(locate(model.name, ask_hub=False))
    return folder if folder.is_dir() else snapshot(model.name) or folder


def has_weights(folder: Path) -> bool:
    """Whether a model's folder has its weights: all files that an index names, or the file of a model without one."""
    indices = list(folder.glob("*.index.json"))
    if not indices:
        return any(file.is_file() for kind in ("safetensors", "bin") for file in folder.glob(f"*.{kind}"))
    return any(shards and all((folder / name).is_file() for name in shards) for shards in map(_shards, indices))


def _shards(index: Path) -> set[str]:
    content = read_json(index, f"the index of the model's weights {str(index)!r}")
    named = content.get("weight_map") if isinstance(content, dict) else None
    return {str(name) for name in named.values()} if isinstance(named, dict) else set()


def _config_of(folder: Path) -> dict[str, Any]:
    """A model's `config.json`; InputError if it is none."""
    file = folder / "config.json"
    config = read_json(file, f"the model's config {str(file)!r}")
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise InputError(f"{str(file)!r} has no model_type: give a directory saved with save_pretrained")
    return config


def _in_weights(config: Mapping[str, Any], method: MethodPlan, attributes: Iterable[str]) -> list[str]:
    """The attributes that an exported model is steered for by this method already."""
    exported = [steerer for steerer in noted_steering(config) if steerer.get("method") == method.name]
    return [name for name in attributes if any(name in _listed(steerer.get("attribute")) for steerer in exported)]


def _listed(attribute: object) -> list[object]:
    return attribute if isinstance(attribute, list) else [attribute]


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


@dataclass(frozen=True)
class TooLong:
    """A task some of whose prompts, with their answers, are longer than the model's context."""

    task: str
    prompts: int
    of: int
    tokens: int
    context: int


@dataclass(frozen=True)
class Footprint:
    """The memory that a plan needs for a model, in bytes.

    cache: keys and values of a batch of the longest prompts (`tokens` each). features: of all pictures, in memory up
    to a limit and then on disk; None for a family whose features are not kept. free: on the device; None if unknown.
    fits: how many of the longest prompts fit beside the weights.
    """

    model: str
    device: str
    dtype: str
    weights: int
    tokens: int
    batch: int
    cache: int
    features: int | None
    free: int | None
    fits: int | None
    too_long: tuple[TooLong, ...]


def footprints(checked: CheckedPlan) -> tuple[list[Footprint], dict[str, str]]:
    """The footprints of all models; and by model, why one is not known: a model on the hub needs a network."""
    known, unknown = [], {}
    for model in checked.plan.models:
        try:
            known.append(footprint(checked.plan, model.name, checked.plan_items))
        except InputError as error:
            unknown[model.name] = str(error)
    return known, unknown


def footprint(plan: Plan, name: str, items: PlanItems) -> Footprint:
    """A model's footprint, from its config and processor and the sizes of the pictures. No weight is loaded."""
    model = plan.model(name)
    config, processor = load_description(name, model.trust_remote_code)
    family = known_family(config)
    size, lengths = ModelSize.of(config), PromptLengths(processor, family.name if family else "")
    place = placement(config, model.dtype, model.device_map, name)
    longest, too_long = _longest(plan, items, lengths, size.context)
    free = _free(place.device)
    sites = [site for site in family.site_paths(config) if site != MLP1] if family and family.pack else []
    image_tokens = sum(lengths.image_tokens(size_of(picture)) for picture in items.pictures())
    return Footprint(
        model=name,
        device=str(place.device),
        dtype=str(place.dtype).removeprefix("torch."),
        weights=size.weights(place.dtype),
        tokens=longest,
        batch=plan.questions_together,
        cache=size.cache(longest, place.dtype) * plan.questions_together,
        features=image_tokens * size.hidden * place.dtype.itemsize * len(sites) if sites else None,
        free=free,
        fits=None if free is None else size.batch(longest, place.dtype, free),
        too_long=tuple(too_long),
    )


def longest_prompt(plan: Plan, items: PlanItems, lengths: PromptLengths) -> int:
    """The tokens of the plan's longest prompt with its answer."""
    return _longest(plan, items, lengths, None)[0]


def prompt_tokens(items: Sequence[Item], max_new_tokens: int, lengths: PromptLengths) -> list[int]:
    """The tokens of each item's prompt and of the longest answer to it."""
    prompts = [(item.prompt_for(lengths.family), [size_of(picture) for picture in item.images]) for item in items]
    return [length + max_new_tokens for length in lengths(prompts)]


def _longest(plan: Plan, items: PlanItems, lengths: PromptLengths, context: int | None) -> tuple[int, list[TooLong]]:
    """The tokens of the longest prompt, and the tasks with prompts that are longer than the context."""
    too_long, longest = [], 0
    for task in plan.tasks:
        tokens = prompt_tokens(items.items(task), items.max_new_tokens(task), lengths)
        longest = max(longest, *tokens)
        if context and (over := [length for length in tokens if length > context]):
            too_long.append(TooLong(task, len(over), len(tokens), max(over), context))
    return longest, too_long


def _free(device: object) -> int | None:
    """The free bytes of a device; for a model that is spread over devices, of all accelerators together."""
    if device not in PLACES:
        return free_memory(str(device)) if isinstance(device, str) else None
    if not torch.accelerator.is_available():
        return free_memory("cpu")
    free = [
        free_memory(f"{torch.accelerator.current_accelerator()}:{i}") for i in range(torch.accelerator.device_count())
    ]
    return None if None in free else sum(count for count in free if count is not None)


def draft(images: str, file: Path) -> str:
    """The text of a plan about some pictures. file: where it will be, as its paths are relative to that.

    InputError lists why the pictures cannot be compared, or that there are too few people to hold some out.
    """
    pictures = Counterfactuals.load(images)
    held_out = split_people(pictures)
    evaluation = pictures.chosen(include=held_out)
    occupations = _occupations(evaluation)
    suite = suites.load("reflect", images=evaluation, occupations=occupations or None)
    tasks = _tasks(suite)
    fitted = _occupations(pictures.chosen(exclude=held_out))
    place = images if images in PICTURE_SETS else _relative(images, file)
    discover_on = {"discover_on": fitted} if fitted else {}
    text = _DRAFT.format(
        name=MY_PICTURES,
        description=_flow(f"bias by {' and '.join(tasks)} on {Path(images).name}"),
        suite=_flow({"name": "reflect", "images": place} | ({"occupations": occupations} if occupations else {})),
        held_out=_flow({column: list(values) for column, values in held_out.items()}),
        asked=len({picture.context for picture in evaluation}),
        people=len({picture.context for picture in pictures}),
        discovery=_flow(place),
        model=DRAFTED_MODEL,
        steering="\n".join(f"  {name}: {_flow(discover_on | {'tasks': own})}" for name, own in tasks.items()),
        recognition=_flow([f"recognition-{attribute}" for attribute in tasks]),
    )
    _check_draft(text, file)
    return text


def split_people(pictures: Counterfactuals) -> dict[str, tuple[str, ...]]:
    """Half of the people, as a choice by a column: by identity, or by occupation where there are few identities.

    InputError if there are not two people on both sides: a method compares people, and so do intervals.
    """
    for column in (IDENTITY, OCCUPATION):
        values = sorted({labels(picture).get(column, "") for picture in pictures})
        choice = {column: tuple(values[1::2])}
        if len(values) > 1:
            sides = pictures.chosen(include=choice), pictures.chosen(exclude=choice)
            if all(len({picture.context for picture in side}) > 1 for side in sides):
                return choice
    people = len({picture.context for picture in pictures})
    raise InputError(
        f"the pictures show {people} people: at least two are needed to fit a method on, and two others to ask about"
    )


def _occupations(pictures: Counterfactuals) -> list[str]:
    return sorted({work for picture in pictures if (work := labels(picture).get(OCCUPATION, ""))})


def _tasks(suite: Suite) -> dict[str, list[str]]:
    """By attribute, the bias tasks about it: those of the suite's default, else MCQ and 2AFC by name."""
    asked: dict[str, list[str]] = {}
    for task in suite.default:
        if get(task).kind == "bias":
            asked.setdefault(suite.items(task)[0].about, []).append(task)
    assert suite.people is not None  # reflect always has people
    first, *others = suite.people()
    varied = [name for name, value in first.attributes.items() if any(o.attributes[name] != value for o in others)]
    return {name: asked.get(name) or [f"mcq-{name}", f"2afc-{name}"] for name in varied}


def _relative(images: str, file: Path) -> str:
    try:
        return Path(os.path.relpath(Path(images).expanduser().resolve(), file.resolve().parent)).as_posix()
    except ValueError:  # another drive of Windows
        return str(Path(images).expanduser().resolve())


def _flow(value: Mapping[str, Any] | list[str] | str) -> str:
    """A value as YAML in one line."""
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, sort_keys=False, width=10_000)
    return text.removesuffix("\n...\n").strip()


def _check_draft(text: str, file: Path) -> None:
    """InputError if the plan could not be run with a model."""
    content = {"name": MY_PICTURES, **yaml.safe_load(text)}
    plan = Plan.of(content)._at(file.resolve().parent)
    if messages := [*DiscoverySet(plan).problems(), *PlanItems(plan).problems()]:
        raise problems(f"no study can be made of these pictures beyond {UNSTEERED!r}", messages)
