"""Suites: the questions, their wording, and the pictures they are asked about.

A suite's wording says which attribute a task is about. Runs with equal `Suite.hash` were asked the same questions.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from inspect import signature
from typing import Any

from ggss import ranges
from ggss.errors import InputError, no_such, problems
from ggss.plugins import Registry
from ggss.probes.base import Item, get


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

    def max_new_tokens(self, task: str) -> int:
        return self.new_tokens or get(task).max_new_tokens


def chosen(items: Sequence[Item], limit: int | None) -> tuple[Item, ...]:
    """About `limit` of the items: whole clusters, evenly spread over the list, so that groups stay balanced."""
    if limit is not None:
        ranges.ITEMS.check("the number of items", limit)
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
    ]


def benchmark(task: str, path: str | None = None, suffix: str = "") -> Suite:
    """A benchmark whose questions are in a file (None: in the folder GGSS_DATA), as a suite of one task.

    suffix: what is added to each question, as it is: such as a line that asks for the letter alone.
    """
    probe = get(task)
    if not probe.from_file:
        raise InputError(f"{task!r} is no benchmark that is read from a file")

    def asked(_: str) -> list[Item]:
        return [replace(item, prompt=item.prompt + suffix) for item in probe.items(path)]

    return Suite(task, (task,), asked, (task,))


SUITES: Registry[Callable[..., Suite]] = Registry("suite", "ggss.suites")
"""By name, a function that makes a suite from keyword arguments, such as `images`."""


def register(name: str, load: Callable[..., Suite]) -> None:
    """Add a suite to the table. InputError if its name is taken."""
    SUITES.add(name, load)


def names() -> list[str]:
    return SUITES.names()


def load(name: str, **material: Any) -> Suite:
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
