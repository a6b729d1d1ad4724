"""Suites: the questions, their wording, and the pictures they are asked about.

A suite's wording says which attribute a task is about. Runs with equal `Suite.hash` were asked the same questions.

The wording of questions: with the pictures they are asked about it makes a suite.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from inspect import signature
from pathlib import Path
from typing import Any

from ggss import errors
from ggss.data.counterfactuals import CONTEXT_COLUMNS, Counterfactuals
from ggss.data.pictures import Picture, shrunk
from ggss.errors import InputError, no_such, problems
from ggss.models.prompts import PICTURE
from ggss.plugins import Registry
from ggss.probes.base import Item, Probe, get, parted
from ggss.probes.wording import Shape, read_wording


@dataclass(frozen=True)
class Prompt:
    """A question's wording, and the answers whose probabilities are scored with what each stands for.

    `<picture>` in the text is where a picture is shown; without it, pictures come before the text. worth: what each
    answer counts in a mean.
    """

    text: str
    options: Mapping[str, str] = field(default_factory=dict)
    worth: Mapping[str, float] = field(default_factory=dict)


Prompts = Mapping[str, Prompt]


@dataclass(frozen=True)
class Wording:
    """One probe's questions: `prompts(attribute, its values)` by name, and the attribute they are about by default.

    A wording without such an attribute, as for recognition, is asked about each attribute by name.
    """

    prompts: Callable[[str, Sequence[str]], Prompts]
    about: str = ""


def worded_suite(
    name: str,
    wordings: Mapping[str, Wording],
    pictures: Callable[[str, str], Sequence[Picture]],
    attributes: Sequence[str],
    occupations: Iterable[str],
    new_tokens: int | None = None,
    held_out: Sequence[str] = (),
) -> "Suite":
    """The suite of all tasks that can be asked about some pictures.

    wordings: by the name of the probe. pictures: from a probe and an attribute to its pictures. attributes and
    occupations: all that the pictures show. held_out: the occupations that a probe without occupations of its own is
    asked about; all unless given.
    """
    there = set(occupations)
    asked = {probe: own for probe, own in wordings.items() if there.issuperset(get(probe).occupations)}
    published = [probe for probe, own in asked.items() if own.about in attributes]
    by_name = [f"{probe}-{a}" for probe, own in asked.items() for a in attributes if a != own.about]
    recognition = [task for task in by_name if get(task).kind == "recognition"]
    rest = [task for task in by_name if task not in recognition]

    def items(task: str) -> Sequence[Item]:
        probe, attribute = parted(task)
        own = wordings[probe]
        about = attribute or own.about
        shown = asked_about(get(task), pictures(probe, about), held_out)
        values = sorted({picture.attributes[about] for picture in shown})
        return get(task).items(own.prompts(about, values), shown, about)

    default = [task for task in published if get(task).kind == "bias" and task in DEFAULT]
    default += [task for task in recognition if parted(task)[1] in {asked[one].about for one in default}]
    return Suite(name, (*published, *recognition, *rest), items, tuple(default), new_tokens)


HELD_OUT = "ceo"  # what MCQ, 2AFC and recognition are asked about in the paper: no discovery set contains it
DEFAULT = ("mcq", "2afc", "nurse-doctor")  # the paper's three bias tasks; recognition is asked with them


def suite_about(
    name: str,
    wordings: Mapping[str, Wording],
    images: str | Path | Counterfactuals,
    new_tokens: int | None = None,
    held_out: Sequence[str] | None = None,
) -> "Suite":
    """The suite of all tasks about a counterfactual set: a manifest, a folder pattern or a registered set by name.

    held_out: the occupations asked about by probes without occupations of their own. None: the published one, or all
    where the set does not have it. InputError lists all that is missing: columns, values of an attribute, images.
    """
    faces = Counterfactuals.load(images) if isinstance(images, str | Path) else images
    context = dict(faces.pictures[0].context)
    if missing := [f"there is no column {column!r}" for column in CONTEXT_COLUMNS if column not in context]:
        raise problems(f"{str(images)!r} has the columns {', '.join([*context, *faces.attributes])}", missing)
    faces.validate(decode=False)
    shown = {occupation(picture) for picture in faces}
    if held_out is None:
        held_out = [work for work in (HELD_OUT,) if work in shown]
    if unknown := [f"there is no picture of a {work}" for work in held_out if work not in shown]:
        raise problems(f"{str(images)!r} shows the occupations {', '.join(sorted(shown))}", unknown)
    everyone, attributes = faces.pictures, tuple(faces.attributes)
    return worded_suite(name, wordings, lambda probe, about: everyone, attributes, shown, new_tokens, held_out)


def person(picture: Picture) -> str:
    """Who is shown, without the varied attributes: the pictures of one person are not independent."""
    return "/".join(value for _, value in picture.context)


def crossed(prompts: Prompts, pictures: Iterable[Picture], about: str) -> list[Item]:
    """Every question about every picture, clustered by person."""
    return [
        Item(
            key="/".join([name, person(picture), *picture.attributes.values()]),
            prompt=prompt.text,
            images=(picture,),
            attributes=(dict(picture.attributes),),
            cluster=person(picture),
            question=name,
            options=prompt.options,
            about=about,
            context=dict(picture.context),
            worth=prompt.worth,
        )
        for name, prompt in prompts.items()
        for picture in pictures
    ]


def pictures_shown(item: Item) -> str:
    """Who is shown in which versions, in whatever order."""
    shown = sorted(",".join(attributes.values()) for attributes in item.attributes)
    return "/".join([item.cluster, *shown])


def asked_about(probe: Probe, pictures: Sequence[Picture], held_out: Sequence[str] = ()) -> list[Picture]:
    """The pictures of the occupations that a probe is about; InputError where one of them has none.

    held_out: the occupations of a probe that has none of its own; all unless given.
    """
    wanted = probe.occupations or tuple(held_out)
    there = {occupation(picture) for picture in pictures}
    if missing := [work for work in wanted if work not in there]:
        raise InputError(
            f"{probe.name} is asked about {' and '.join(wanted)} pictures; there is no "
            f"{' or '.join(missing)} among the occupations {', '.join(sorted(there)) or 'none'}"
        )
    return [picture for picture in pictures if not wanted or occupation(picture) in wanted]


def occupation(picture: Picture) -> str:
    return dict(picture.context).get("occupation", "")


@dataclass(frozen=True)
class Suite:
    """Items of some tasks. `make` gives a task's items, always the same and in the same order.

    default: the tasks that are asked unless others are named. new_tokens: the longest answer, where the suite's
    answers are shorter than the probes allow.
    """

    name: str
    tasks: tuple[str, ...]
    make: Callable[[str], Sequence[Item]]
    default: tuple[str, ...] = ()
    new_tokens: int | None = None
    _made: dict[str, tuple[Item, ...]] = field(default_factory=dict, repr=False, compare=False)
    _hashes: dict[str, str] = field(default_factory=dict, repr=False, compare=False)

    def items(self, task: str, limit: int | None = None) -> tuple[Item, ...]:
        """All that a task asks, checked; with a limit, about so many: whole clusters, evenly spread over all."""
        if task not in self.tasks:
            raise no_such(f"suite {self.name!r} has no task {task!r}", task, self.tasks)
        if task not in self._made:
            made = tuple(self.make(task))
            get(task).check(made)
            self._made[task] = made
        return chosen(self._made[task], limit)

    def hash(self, task: str) -> str:
        """sha256 over everything asked: keys, prompts, options, attributes, clusters, right answers, pictures."""
        if task not in self._hashes:
            lines = sha256()
            for item in self.items(task):
                lines.update((json.dumps(_asked(item), ensure_ascii=False) + "\n").encode())
            self._hashes[task] = lines.hexdigest()
        return self._hashes[task]

    def shrunk(self, max_side: int | None) -> "Suite":
        """The same questions about pictures with at most so many pixels on the longer side; None: as they are."""

        def items(task: str) -> list[Item]:
            return [
                replace(item, images=tuple(shrunk(picture, max_side) for picture in item.images))
                for item in self.make(task)
            ]

        return self if max_side is None else replace(self, make=items, _made={}, _hashes={})

    def shaped(self, shapes: Mapping[str, Shape]) -> "Suite":
        """The same questions, asked of some families of models in another shape."""

        def items(task: str) -> list[Item]:
            return [replace(item, shapes=shapes) for item in self.make(task)]

        return replace(self, make=items, _made={}, _hashes={}) if shapes else self

    def max_new_tokens(self, task: str) -> int:
        return self.new_tokens or get(task).max_new_tokens


def chosen(items: Sequence[Item], limit: int | None) -> tuple[Item, ...]:
    """About `limit` of the items: whole clusters, evenly spread over the list, so that groups stay balanced."""
    if limit is not None:
        errors.ITEMS.check("the number of items", limit)
    if limit is None or limit >= len(items):
        return tuple(items)
    sizes: dict[str, int] = {}
    for item in items:
        sizes[item.cluster] = sizes.get(item.cluster, 0) + 1
    names = list(sizes)
    count = min(len(names), max(2, round(limit * len(names) / len(items))))
    kept = {names[i * len(names) // count] for i in range(count)}
    return tuple(item for item in items if item.cluster in kept)


def _asked(item: Item) -> list[Any]:
    return [
        item.key,
        item.prompt,
        list(item.options.items()),
        [dict(of_picture) for of_picture in item.attributes],
        dict(item.context),
        item.cluster,
        item.question,
        item.expected,
        item.about,
        [picture.digest for picture in item.images],
        *(
            [sorted((family, shape(f"A{PICTURE}B{PICTURE}C")) for family, shape in item.shapes.items())]
            if item.shapes
            else []
        ),
    ]


def benchmark(task: str, path: str | None = None, suffix: str = "", wording: str | Path | None = None) -> "Suite":
    """A benchmark whose questions are in a file (None: in the folder GGSS_DATA), as a suite of one task.

    suffix: what is added to each question, as it is: such as a line that asks for the letter alone. wording: a file
    with another suffix, and with shapes in which families of models are asked.
    """
    probe = get(task)
    if not probe.from_file:
        raise InputError(f"{task!r} is no benchmark that is read from a file")

    def asked(_: str) -> list[Item]:
        items, said = probe.items(path), read_wording(wording)
        added = suffix or said.suffixes.get(task, "")
        return [replace(item, prompt=item.prompt + added, shapes=said.shapes) for item in items]

    return Suite(task, (task,), asked, (task,))


SUITES: Registry[Callable[..., Suite]] = Registry("suite", "ggss.suites")
"""By name, a function that makes a suite from keyword arguments, such as `images`."""
register, names = SUITES.add, SUITES.names


def load(name: str, **material: Any) -> "Suite":
    """A suite by name.

    Args:
        name: `small-world`, `reflect`, or one that a plug-in registers.
        **material: what the suite takes, such as `images="faces/manifest.csv"`.

    Returns:
        Its tasks and their items.

    Raises:
        InputError: if there is no such suite, or it takes or needs something else.

    Examples:
        >>> ggss.probes.suites.load("small-world", split="evaluation").tasks[:2]
        ('mcq', '2afc')
    """
    make = SUITES.get(name)
    taken = signature(make).parameters
    found = [f"it takes {' and '.join(taken)}, not {given}" for given in material if given not in taken]
    needed = [one for one, about in taken.items() if about.default is about.empty]
    found += [f"it needs {one}" for one in needed if not material.get(one)]
    if found:
        raise problems(f"suite {name!r}", found)
    return make(**material)
