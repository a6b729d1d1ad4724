"""A draft of a plan for a user's own pictures: what can be asked about them, with people held out from discovery."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ggss.data.counterfactuals import IDENTITY, OCCUPATION, PICTURE_SETS, Counterfactuals
from ggss.data.pictures import labels
from ggss.errors import InputError, problems
from ggss.methods.registry import UNSTEERED
from ggss.probes import get, suites
from ggss.probes.suites import Suite
from ggss.study.plan import DiscoverySet, Plan, PlanItems

NAME = "my-pictures"  # of `ggss study new --from`
MODEL = "org/model"
_TEMPLATE = """\
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
    text = _TEMPLATE.format(
        name=NAME,
        description=_flow(f"bias by {' and '.join(tasks)} on {Path(images).name}"),
        suite=_flow({"name": "reflect", "images": place} | ({"occupations": occupations} if occupations else {})),
        held_out=_flow({column: list(values) for column, values in held_out.items()}),
        asked=len({picture.context for picture in evaluation}),
        people=len({picture.context for picture in pictures}),
        discovery=_flow(place),
        model=MODEL,
        steering="\n".join(f"  {name}: {_flow(discover_on | {'tasks': own})}" for name, own in tasks.items()),
        recognition=_flow([f"recognition-{attribute}" for attribute in tasks]),
    )
    _check(text, file)
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


def _check(text: str, file: Path) -> None:
    """InputError if the plan could not be run with a model."""
    content = {"name": NAME, **yaml.safe_load(text)}
    plan = Plan.of(content)._at(file.resolve().parent)
    if messages := [*DiscoverySet(plan).problems(), *PlanItems(plan).problems()]:
        raise problems(f"no study can be made of these pictures beyond {UNSTEERED!r}", messages)
