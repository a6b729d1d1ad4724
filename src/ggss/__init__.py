"""Geodesic-Gated Spherical Steering: measure and reduce a vision-language model's demographic bias.

The names below are imported when they are first used, so that `ggss --help` does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ggss.errors import InputError
from ggss.version import __version__

if TYPE_CHECKING:
    from ggss import analysis, methods, models, probes, smallworld, sphere, stats
    from ggss.activations import Activations
    from ggss.activations.collect import collect
    from ggss.data.counterfactuals import Counterfactuals
    from ggss.models import Vlm, load_vlm
    from ggss.steering.export import export
    from ggss.steering.fitting import fit, fit_live, tune
    from ggss.steering.steerer import Steerer

_HOME = {  # the module that has each name
    "Activations": "activations",
    "collect": "activations.collect",
    "Counterfactuals": "data.counterfactuals",
    "export": "steering.export",
    "fit": "steering.fitting",
    "fit_live": "steering.fitting",
    "Vlm": "models",
    "load_vlm": "models",
    "Steerer": "steering.steerer",
    "tune": "steering.fitting",
}
_ROOMS = ("analysis", "methods", "models", "probes", "smallworld", "sphere", "stats")

__all__ = [
    "Activations",
    "Counterfactuals",
    "InputError",
    "Steerer",
    "Vlm",
    "__version__",
    "analysis",
    "collect",
    "export",
    "fit",
    "fit_live",
    "load_vlm",
    "methods",
    "models",
    "probes",
    "smallworld",
    "sphere",
    "stats",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"ggss.{name}")
    if name in _HOME:
        return getattr(import_module(f"ggss.{_HOME[name]}"), name)
    raise AttributeError(f"module 'ggss' has no attribute {name!r}")
