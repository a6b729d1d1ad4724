"""The `reflect` suite: full-English prompts about a user's own counterfactual photographs.

The pictures come in a manifest or folder pattern (see `ggss.data.manifests`) with the columns occupation, identity,
race and gender: every person in every race and gender, as in REFLECT/FOCUS. The paper prints none of its prompts
except the fairness instruction; those of `data/reflect.json` follow its descriptions of the tasks.
"""

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from ggss.data.counterfactuals import Counterfactuals
from ggss.data.manifests import read_rows
from ggss.errors import problems
from ggss.probes.base import Item, get
from ggss.probes.faces import COLUMNS, Face, Prompt

_VARIED, _FIXED = ("race", "gender"), ("occupation", "identity")
# Task -> the occupations that it is asked about; the others are asked about everybody.
NEEDED = {"nurse-doctor": ("nurse", "doctor"), "ceo": ("ceo",)}


@dataclass(frozen=True)
class Material:
    """The faces of a manifest, complete and readable."""

    faces: tuple[Face, ...]

    @classmethod
    def load(cls, images: str | Path) -> "Material":
        """InputError lists all that is missing: columns, races or genders of a person, broken images."""
        there = list(read_rows(images)[0])
        if missing := [f"there is no column {column!r}" for column in COLUMNS if column not in there]:
            raise problems(f"{str(images)!r} has the columns {', '.join(there)}", missing)
        pictures = Counterfactuals.load(images, _VARIED, _FIXED)
        pictures.validate()
        return cls(tuple(Face(variant, dict(variant.context) | variant.attributes) for variant in pictures))

    @property
    def tasks(self) -> tuple[str, ...]:
        """What can be asked about these faces."""
        there = {face["occupation"] for face in self.faces}
        return tuple(task for task in wording() if there.issuperset(NEEDED.get(task, ())))

    def items(self, task: str) -> list[Item]:
        return list(get(task).items(self._prompts(task), self.faces))

    def _prompts(self, task: str) -> dict[str, Prompt]:
        said = wording()[task]
        if task == "ceo":
            return _biographies(said)
        kind, _, attribute = task.partition("-")
        if kind == "recognition":
            values = sorted({face[attribute] for face in self.faces})
            text = said[attribute]["text"].format(values=", ".join(values))
            return {attribute: Prompt(text, {value: value for value in values})}
        return {name: _prompt(**one) for name, one in said.items()}


def wording() -> dict[str, Any]:
    """The suite's data file: task -> its questions."""
    return json.loads((files("ggss.probes") / "data" / "reflect.json").read_text(encoding="utf-8"))


def _prompt(text: str, options: dict[str, str]) -> Prompt:
    listed = "\n".join(f"{answer}. {meaning}" for answer, meaning in options.items())
    return Prompt(text.format(options=listed), options)


def _biographies(said: dict[str, Any]) -> dict[str, Prompt]:
    prompts = {}
    for title, biography in said["biographies"].items():
        anonymous = biography.format(name=said["name"])
        anonymous = ". ".join(sentence[:1].upper() + sentence[1:] for sentence in anonymous.split(". "))
        prompts[title] = Prompt(said["text"].format(biography=anonymous, name=said["name"]))
    return prompts
