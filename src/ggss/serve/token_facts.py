"""A token and its log-probability as a response has them."""

from typing import Any

from ggss.serve.answer_text import UNFINISHED

LEAST_LOGPROB = -9999.0  # JSON has no number for minus infinity


def token_facts(word: str, logprob: float) -> dict[str, Any]:
    """word: the token's text."""
    known = None if UNFINISHED in word else list(word.encode())  # a part of a character has no text
    return {"token": word, "logprob": max(logprob, LEAST_LOGPROB), "bytes": known}
