"""What every engine does with a steerer and its request, whatever runs the model."""

from collections.abc import Mapping

from ggss.models import prompts
from ggss.serve.chat_job import ChatJob
from ggss.serve.engine import ServedSteerer
from ggss.steering.steerer import Steerer


def facts_of(steerer: Steerer, folder: str) -> ServedSteerer:
    """What the server is told of it."""
    attribute = steerer.attribute if isinstance(steerer.attribute, str) else " x ".join(steerer.attribute)
    return ServedSteerer(folder, steerer.method, attribute, float(steerer.strength()), steerer.content_hash)


def with_suffix(job: ChatJob, steerers: Mapping[str, Steerer]) -> list[prompts.Turn]:
    """The turns; what acting steerers want appended to a prompt ends the last of the user."""
    suffix = "".join(steerers[name].prompt_suffix for name, alpha in job.strengths.items() if alpha)
    turns: list[prompts.Turn] = [(role, list(parts)) for role, parts in job.turns]
    last = max((place for place, (role, _) in enumerate(turns) if role == "user"), default=None)
    if suffix and last is not None:
        role, parts = turns[last]
        turns[last] = role, [*parts, suffix]
    return turns
