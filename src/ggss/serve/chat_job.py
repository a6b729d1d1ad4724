"""One request as an engine gets it: checked, with every strength decided."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

ServedTurn = tuple[str, list[str | None]]
"""A role and what it says: texts, and None where the next picture is shown."""


@dataclass(frozen=True)
class ChatJob:
    """A conversation that a model is to go on with.

    strengths: of every steerer that acts on it; empty if there is no picture. choices: how many answers.
    most_tokens: of one answer; None: as many as the server allows. temperature 0: the most likely token always.
    top_logprobs: how many alternatives of each token are wanted; None: no log-probabilities at all.
    stream: whether text is wanted as soon as it is there.
    """

    turns: list[ServedTurn]
    pictures: list[bytes] = field(default_factory=list, repr=False)
    strengths: Mapping[str, float] = field(default_factory=dict)
    choices: int = 1
    most_tokens: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: list[str] = field(default_factory=list)
    top_logprobs: int | None = None
    stream: bool = False

    def message(self) -> dict[str, Any]:
        """All but the pictures, to be written as JSON."""
        return {name: value for name, value in asdict(self).items() if name != "pictures"}

    @classmethod
    def of_message(cls, message: Mapping[str, Any], pictures: list[bytes]) -> "ChatJob":
        turns = [(role, list(parts)) for role, parts in message["turns"]]
        return cls(**{**message, "turns": turns}, pictures=pictures)
