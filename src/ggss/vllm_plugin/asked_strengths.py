"""What a request may ask for: strengths by the names of steerers, checked before anything is computed.

A name becomes the content hash of its steerer before vLLM hashes the request. So its caches tell strengths apart, and
steerers too, if one takes the name of another.
"""

import os
from collections.abc import Mapping
from typing import Any

from ggss import ranges
from ggss.errors import InputError, no_such
from ggss.steering.steerer import Steerer
from ggss.vllm_plugin.strength_words import FIELD

ENVIRONMENT, NEGATIVE = "GGSS_STEERERS", "GGSS_ALLOW_NEGATIVE"


def folders(written: str) -> dict[str, str]:
    """`race=DIR,gender=DIR` as a dictionary."""
    found: dict[str, str] = {}
    for part in filter(None, map(str.strip, written.split(","))):
        name, equals, folder = part.partition("=")
        if not (name and equals and folder) or name in found:
            raise InputError(f"{ENVIRONMENT} is written `race=DIR,gender=DIR`, each name once; seen {part!r}")
        found[name] = folder
    return found


def by_content(contents: Mapping[str, str], strengths: Mapping[str, float]) -> dict[str, float]:
    """The strengths above or below 0, by the content of their steerers, in order.

    InputError if two of them are the same steerer: vLLM knows them by their content only.
    """
    found: dict[str, float] = {}
    for name, alpha in strengths.items():
        if alpha and contents[name] in found:
            same = [other for other in strengths if contents[other] == contents[name]]
            raise InputError(f"{' and '.join(same)} are one and the same steerer: ask for one of them")
        if alpha:
            found[contents[name]] = float(alpha)
    return found


class AskedStrengths:
    """contents: the content hash of each steerer, by its name in requests."""

    def __init__(self, contents: Mapping[str, str] | None = None, allow_negative: bool = False) -> None:
        self.contents, self.allow_negative = dict(contents or {}), allow_negative

    @classmethod
    def from_environment(cls) -> "AskedStrengths":
        """The steerers that are named when vLLM is started."""
        found = {}
        for name, folder in folders(os.environ.get(ENVIRONMENT, "")).items():
            steerer = Steerer.from_pretrained(folder)
            if steerer.prompt_suffix:
                raise InputError(
                    f"the steerer {name!r} adds words to every prompt, which vLLM's own server does not do: use "
                    "`ggss serve --engine vllm`"
                )
            found[name] = steerer.content_hash
        return cls(found, os.environ.get(NEGATIVE, "") not in ("", "0"))

    def prompt(self, prompt: Mapping[str, Any]) -> dict[str, Any]:
        """A prompt of vLLM with contents in place of names. InputError says what is wrong with what it asks for."""
        settings = dict(prompt.get("mm_processor_kwargs") or {})
        if FIELD not in settings:
            return dict(prompt)
        strengths = self.strengths(settings.pop(FIELD))
        if strengths and not prompt.get("multi_modal_data"):
            raise InputError(
                "steering was asked for, and the request has no image: steering acts on images, send one or leave "
                f"out `{FIELD}`"
            )
        if strengths and settings:
            raise InputError(
                f"steering was asked for together with {', '.join(sorted(settings))} of the image processor: a "
                "steerer is made for pictures as the model's own settings prepare them, leave one of the two out"
            )
        return {**prompt, "mm_processor_kwargs": settings | ({FIELD: strengths} if strengths else {})}

    def strengths(self, asked: Any) -> dict[str, float]:
        """By content, in the order in which they are asked for; a strength of 0 does nothing and is left out."""
        if not isinstance(asked, Mapping):
            raise InputError(f"`{FIELD}` gives strengths by steerer, as in {{'race': 0.75}}; seen {asked!r:.60}")
        for name, alpha in asked.items():
            if name not in self.contents:
                raise no_such(f"no steerer {name!r} on this server", str(name), self.contents)
            if isinstance(alpha, bool) or not isinstance(alpha, int | float):
                raise InputError(f"the strength of {name!r} must be a number, seen {alpha!r:.60}")
            ranges.ALPHA.check(f"the strength of {name!r}", alpha)
            if alpha < 0 and not self.allow_negative:
                raise InputError(
                    f"the strength {alpha:g} of {name!r} would amplify the bias, and this server was not started to "
                    "allow that"
                )
        return by_content(self.contents, asked)


ASKED = AskedStrengths()
"""Of this process; `plugin.register` fills it, and what loads steerers after that."""
