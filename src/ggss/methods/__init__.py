"""All methods, called by name through one interface: `ggss.fit(name, activations, attribute=...)` gives a steerer.

The methods, and the kinds of operators they make, register themselves when they are imported; the order of FAMILIES
is the order of the table.
"""

from importlib import import_module

from ggss.methods.registry import Fitted, Method, Options, get, names, register

FAMILIES = (
    "unsteered",
    "ggss",
    "inlp",
    "meandiff",
    "bend",
    "leace",
    "ablations",
    "pace",
    "auto",
)
for _family in FAMILIES:
    import_module(f"{__name__}.{_family}")

__all__ = ["FAMILIES", "Fitted", "Method", "Options", "get", "names", "register"]
