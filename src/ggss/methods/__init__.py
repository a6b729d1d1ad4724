"""Every method under one interface: `fit(name, activations, attribute=...)` returns a `Steerer`.

The methods register themselves when they are imported; the order of imports is the order of the table.
"""

from ggss.methods import ggss
from ggss.methods.registry import Fitted, Method, Options, fit, get, names, register

__all__ = ["Fitted", "Method", "Options", "fit", "get", "ggss", "names", "register"]
