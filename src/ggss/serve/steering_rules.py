"""Which strengths act on a request: the server's own, and what the request may ask for."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ggss import ranges
from ggss.errors import InputError, no_such
from ggss.serve.engine import ServedSteerer
from ggss.serve.refusal import Refusal, wrong

NOTHING = "none"


@dataclass(frozen=True)
class SteeringRules:
    """given: strengths that were given when the server was started, by steerer; the others are the steerers' own.

    locked: a request may not ask for less than the server's strength. allow_negative: it may ask for less than 0.
    """

    given: Mapping[str, float] = field(default_factory=dict)
    locked: bool = False
    allow_negative: bool = False

    def defaults(self, steerers: Mapping[str, ServedSteerer]) -> dict[str, float]:
        return {name: self.given.get(name, one.alpha) for name, one in steerers.items()}

    def strengths(
        self, asked: Mapping[str, float] | None, steerers: Mapping[str, ServedSteerer], pictures: int
    ) -> dict[str, float]:
        """Every steerer's strength for a request; none without a picture. A Refusal for what it may not ask for."""
        own = self.defaults(steerers)
        for name, alpha in (asked or {}).items():
            if name not in own:
                raise wrong(str(no_such(f"no steerer {name!r} on this server", name, own)), f"ggss.{name}")
            self._check(name, alpha, own[name])
        if not pictures:
            if any((asked or {}).values()):
                raise wrong(
                    "steering was asked for, and the request has no image: steering acts on images, send one or "
                    "leave out `ggss`",
                    "ggss",
                )
            return {}
        return own | dict(asked or {})

    def _check(self, name: str, alpha: float, default: float) -> None:
        param = f"ggss.{name}"
        try:
            ranges.ALPHA.check(f"the strength of {name!r}", alpha)
        except InputError as error:
            raise wrong(str(error), param) from error
        if alpha < 0 and not self.allow_negative:
            raise wrong(
                f"the strength {alpha:g} of {name!r} would amplify the bias, and this server was not started with "
                "--allow-negative",
                param,
            )
        if self.locked and alpha < default:
            raise Refusal(403, f"the strength of {name!r} is locked: at least {default:g}, seen {alpha:g}", param)


def applied(strengths: Mapping[str, float]) -> str:
    """Strengths as a header has them: `race=0.75, gender=1`."""
    return ", ".join(f"{name}={_short(alpha)}" for name, alpha in strengths.items()) or NOTHING


def _short(alpha: float) -> str:
    return str(int(alpha)) if math.isfinite(alpha) and alpha == int(alpha) else repr(alpha)
