"""A request that is not answered: its status, and the sentence that says why."""

from collections.abc import Mapping
from typing import Any

_KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


class Refusal(Exception):
    """Becomes a response in the shape of OpenAI's errors.

    param: the field of the request that was wrong.
    """

    def __init__(
        self, status: int, sentence: str, param: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(sentence)
        self.status, self.sentence, self.param = status, sentence, param
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        kind = _KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.sentence, "type": kind, "param": self.param, "code": None}}


def defect(error: Exception) -> Refusal:
    """What the server did wrong. An exception's message may hold what was asked, so only its type is told."""
    return Refusal(500, f"a defect of the server ({type(error).__name__})")


def wrong(sentence: str, param: str | None = None) -> Refusal:
    """A request that its sender can correct."""
    return Refusal(400, sentence, param)
