"""Numbers and intervals as the page writes them."""

import math

from ggss.probes import Display
from ggss.stats import Interval

MINUS = "−"


def number(value: float, spec: str = ".1f") -> str:
    if math.isnan(value):
        return "undefined"
    if math.isinf(value):
        return f"{MINUS if value < 0 else '+'}∞"
    return format(value, spec).replace("-", MINUS)


def span(one: Interval, spec: str = ".1f", scale: float = 1.0, unit: str = "") -> str:
    """`−61 % [−79, −47]`."""
    return f"{number(scale * one.estimate, spec)}{unit} {bounds(one.low, one.high, spec, scale)}"


def bounds(low: float, high: float, spec: str = ".1f", scale: float = 1.0) -> str:
    if math.isnan(low) or math.isnan(high):
        return "[interval undefined]"
    if math.isinf(low) and math.isinf(high):
        return "[no bound]"
    return f"[{number(scale * low, spec)}, {number(scale * high, spec)}]"


def displayed(one: Interval, shown: Display) -> str:
    return span(one, f",.{shown.digits}f", shown.scale)


def chance(p: float | None) -> str:
    if p is None or math.isnan(p):
        return "not defined"
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"
