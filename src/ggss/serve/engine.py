"""What the server needs of whatever runs the model."""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ggss.serve.chat_job import ChatJob

NAMES = ("transformers", "vllm")


@dataclass(frozen=True)
class ServedSteerer:
    """A steerer that the engine has checked against the model.

    alpha: the strength that it recommends, or 1. content: SHA-256 of what decides what it does.
    """

    folder: str
    method: str
    attribute: str
    alpha: float
    content: str


@dataclass(frozen=True)
class SteeringRecord:
    """What one steerer did to the pictures of one request. gate_mean: None for a method without a gate."""

    alpha: float
    calls: int
    tokens: int
    gate_mean: float | None


@dataclass(frozen=True)
class Began:
    """The prompt is read and its pictures are steered: what was done to them, steerer by steerer."""

    prompt_tokens: int
    steering: Mapping[str, SteeringRecord]


@dataclass(frozen=True)
class AnswerPiece:
    """More of one answer. logprobs: of each new token, if asked for. finish: why the answer ends here, if it does."""

    choice: int
    text: str
    tokens: int
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    finish: str | None = None


class Engine(Protocol):
    """Runs the model. Every method raises a `Refusal` for what it cannot do."""

    @property
    def steerers(self) -> Mapping[str, ServedSteerer]: ...

    @property
    def ready(self) -> bool:
        """Whether a request would be answered now, and not wait for the model to be loaded again."""
        ...

    @property
    def facts(self) -> Mapping[str, float]:
        """Counters and sizes for the metrics, by name."""
        ...

    def ask(self, job: ChatJob) -> AsyncGenerator[Began | AnswerPiece]:
        """First that it began, then pieces until every choice has its last. Closing it early frees its place."""
        ...

    async def reload(self, name: str, folder: str) -> ServedSteerer:
        """Replace a steerer by the one in a folder, once that is checked; until then the old one acts."""
        ...

    async def stop(self) -> None: ...
