"""All methods, called by name through one interface: `ggss.fit(name, activations, attribute=...)` returns a steerer.

The methods and their kinds of operators register themselves when they are imported. FAMILIES is the order in which
methods are listed, after the two that steer nothing (`registry`).
"""

from importlib import import_module

from ggss.methods.registry import Fitted, Method, Options, get, names, register

FAMILIES = (
    "ggss",
    "inlp",
    "meandiff",
    "bend",
    "leace",
    "ablations",
    "pace",
    "pace_kernel",
    "auto",
)
for _family in FAMILIES:
    import_module(f"{__name__}.{_family}")

__all__ = ["FAMILIES", "Fitted", "Method", "Options", "get", "names", "register"]
