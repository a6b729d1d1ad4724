"""From the body of a request to the job of an engine. What cannot be done is refused, never left out."""

from collections.abc import Mapping
from typing import Any

from ggss.errors import nearest
from ggss.escaping import is_unicode
from ggss.serve.chat_body import ChatBody, ChatMessage, TextPart
from ggss.serve.chat_job import ChatJob, ServedTurn
from ggss.serve.data_urls import picture_bytes
from ggss.serve.engine import ServedSteerer
from ggss.serve.limits import Limits
from ggss.serve.refusal import wrong
from ggss.serve.steering_rules import SteeringRules

# They do not change what is answered.
WITHOUT_EFFECT = {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
# The values with which they change nothing; None does not either.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
}


def read_job(body: ChatBody, rules: SteeringRules, steerers: Mapping[str, ServedSteerer], limits: Limits) -> ChatJob:
    """A Refusal says what is wrong with it. Headers of pictures are read, which takes time: call it in a thread."""
    _check_others(body.others)
    turns, pictures = _turns(body.messages, limits)
    strengths = rules.strengths(body.ggss, steerers, len(pictures))
    most = body.max_completion_tokens or body.max_tokens
    if most is not None and most > limits.tokens:
        raise wrong(f"max_tokens must be at most {limits.tokens} on this server, seen {most}", "max_tokens")
    if (body.n or 1) > limits.rows:
        raise wrong(f"n must be at most {limits.rows} on this server, seen {body.n}", "n")
    if body.top_logprobs is not None and not body.logprobs:
        raise wrong("top_logprobs needs logprobs=true", "top_logprobs")
    return ChatJob(
        turns=turns,
        pictures=pictures,
        strengths=strengths,
        choices=body.n or 1,
        most_tokens=most,
        temperature=body.temperature or 0.0,
        top_p=1.0 if body.top_p is None else body.top_p,
        seed=body.seed,
        stop=[body.stop] if isinstance(body.stop, str) else body.stop or [],
        top_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        stream=bool(body.stream),
    )


def _check_others(others: Mapping[str, Any]) -> None:
    for name, value in others.items():
        if name in WITHOUT_EFFECT or value is None or value in NEUTRAL.get(name, ()):
            continue
        if name in NEUTRAL:
            raise wrong(f"{name} is not supported: leave it out", name)
        near = nearest(name, [*ChatBody.model_fields, *NEUTRAL, *WITHOUT_EFFECT])
        raise wrong(f"unknown field {name!r}{f': {near}' if near else ''}", name)


def _turns(messages: list[ChatMessage], limits: Limits) -> tuple[list[ServedTurn], list[bytes]]:
    turns: list[ServedTurn] = []
    pictures: list[bytes] = []
    for number, message in enumerate(messages):
        param = f"messages.{number}.content"
        parts = [TextPart(type="text", text=message.content)] if isinstance(message.content, str) else message.content
        said: list[str | None] = []
        for part in parts:
            if isinstance(part, TextPart):
                if not is_unicode(part.text):
                    raise wrong("a text has a lone surrogate and is no Unicode text", param)
                said.append(part.text)
                continue
            if message.role != "user":
                raise wrong(f"only the user shows images, seen one in a message of the {message.role}", param)
            if len(pictures) == limits.pictures:
                raise wrong(f"a request may have at most {limits.pictures} images", param)
            said.append(None)
            pictures.append(picture_bytes(part.image_url.url, limits, param))
        turns.append(("system" if message.role == "developer" else message.role, said))
    return turns, pictures
