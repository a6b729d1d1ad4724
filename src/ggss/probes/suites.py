"""Suites: what is asked, in which words, about which pictures.

`small-world` speaks the tiny models' vocabulary about painted people; `reflect` is full English about a user's own
counterfactual photographs. All prompts ship in the package, and `Suite.hash` tells whether two runs were asked the
same.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from inspect import signature
from pathlib import Path
from typing import Any

from ggss.errors import InputError, problems
from ggss.probes.base import Item, get


@dataclass(frozen=True)
class Suite:
    """Items of some tasks. `make` gives a task's items, always the same and in the same order.

    new_tokens: the longest answer, where the suite's answers are shorter than the probes allow.
    """

    name: str
    tasks: tuple[str, ...]
    make: Callable[[str], Sequence[Item]]
    new_tokens: int | None = None

    def items(self, task: str) -> tuple[Item, ...]:
        """All that a task asks, checked."""
        if task not in self.tasks:
            raise InputError(f"suite {self.name!r} has no task {task!r}: choose from {', '.join(self.tasks)}")
        if task not in self._made:
            made = tuple(self.make(task))
            get(task).check(made)
            self._made[task] = made
        return self._made[task]

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

    @cached_property
    def _made(self) -> dict[str, tuple[Item, ...]]:
        return {}

    @cached_property
    def _hashes(self) -> dict[str, str]:
        return {}


def _asked(item: Item) -> list[Any]:
    pictures = [getattr(picture, "digest", None) or repr(picture) for picture in item.images]
    attributes = [dict(of_picture) for of_picture in item.attributes]
    return [
        item.key,
        item.prompt,
        list(item.options.items()),
        attributes,
        item.cluster,
        item.question,
        item.expected,
        pictures,
    ]


def _small_world(split: str = "evaluation") -> Suite:
    from ggss.smallworld import suite  # the world is built from the probes

    suite.check_split(split)
    return Suite("small-world", suite.TASKS, lambda task: suite.items(task, split), new_tokens=1)


def _reflect(images: str | Path) -> Suite:
    from ggss.probes.reflect import Material

    material = Material.load(images)
    return Suite("reflect", material.tasks, material.items)


_LOADERS: dict[str, Callable[..., Suite]] = {"small-world": _small_world, "reflect": _reflect}


def names() -> list[str]:
    return list(_LOADERS)


def load(name: str, **material: Any) -> Suite:
    """A suite by name: `load("small-world", split="evaluation")`, `load("reflect", images="faces/manifest.csv")`."""
    if name not in _LOADERS:
        raise InputError(f"no suite {name!r}; there are {', '.join(_LOADERS)}")
    taken = signature(_LOADERS[name]).parameters
    found = [f"it takes {' and '.join(taken)}, not {given}" for given in material if given not in taken]
    needed = [one for one, about in taken.items() if about.default is about.empty]
    found += [f"it needs {one}" for one in needed if not material.get(one)]
    if found:
        raise problems(f"suite {name!r}", found)
    return _LOADERS[name](**material)
