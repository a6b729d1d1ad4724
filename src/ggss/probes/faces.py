"""What bias items are made of: how a question is put, and the people it is put about."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ggss.errors import InputError
from ggss.probes.base import Item

COLUMNS = ("occupation", "identity", "race", "gender")


@dataclass(frozen=True)
class Prompt:
    """A question's wording, and the answers whose probabilities are scored with what each stands for."""

    text: str
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Face:
    """A picture of a person, and the person's occupation, identity, race and gender."""

    picture: Any
    attributes: Mapping[str, str]

    @property
    def person(self) -> str:
        """Who is shown, whatever the race and gender: the pictures of one person are not independent."""
        return f"{self['occupation']}/{self['identity']}"

    def __getitem__(self, column: str) -> str:
        return self.attributes[column]


def crossed(prompts: Mapping[str, Prompt], faces: Sequence[Face]) -> list[Item]:
    """Every question about every face, clustered by person."""
    return [
        Item(
            key=f"{name}/{face.person}/{face['race']}/{face['gender']}",
            prompt=prompt.text,
            images=(face.picture,),
            attributes=(face.attributes,),
            cluster=face.person,
            question=name,
            options=prompt.options,
        )
        for name, prompt in prompts.items()
        for face in faces
    ]


def at_work(task: str, faces: Sequence[Face], *occupations: str) -> list[Face]:
    """The faces of people in these occupations; InputError where one of them has none."""
    there = {face["occupation"] for face in faces}
    if missing := [work for work in occupations if work not in there]:
        raise InputError(
            f"{task} is asked about {' and '.join(occupations)} pictures; there is no {' or '.join(missing)} among "
            f"the occupations {', '.join(sorted(there))}"
        )
    return [face for face in faces if face["occupation"] in occupations]
