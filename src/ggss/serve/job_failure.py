"""What the server is told of a request that failed in the model's process."""

import logging
import traceback

from ggss.errors import InputError, out_of_memory
from ggss.serve.frames import Message
from ggss.serve.refusal import defect

log = logging.getLogger("ggss")


def failure(number: int, error: Exception) -> Message:
    """Input that the sender can correct is 400; everything else is the server's, and its place is logged."""
    from ggss.models.reading import NoNumbers
    from ggss.steering.attachment import NeverFired

    ours = isinstance(error, (NeverFired, NoNumbers))  # sentences that are for whoever runs the server
    if isinstance(error, InputError) and not ours:
        status, sentence = 400, str(error)
    elif out_of_memory(error):
        status, sentence = 503, "the server has not enough memory for this request: make it smaller, or try later"
    else:
        status = 500
        sentence = str(error) if ours else defect(error).sentence
        # An exception's message may hold what was asked, so it is not logged.
        log.error("request failed: %s\n%s", type(error).__name__, "".join(traceback.format_tb(error.__traceback__)))
    return {"event": "failed", "id": number, "status": status, "sentence": sentence}


def refused_reload(number: int, error: Exception) -> Message:
    """What it is told of a steerer that cannot take the place of another."""
    sentence = str(error) if isinstance(error, InputError) else f"it cannot be read ({type(error).__name__})"
    return {"event": "reloaded", "id": number, "sentence": sentence}
