"""The study: a plan of models, methods, strengths and tasks; a store that survives a crash; a runner; its results."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ggss.study.plan import Plan
    from ggss.study.results import Results

_HOME = {"Plan": "plan", "Results": "results"}

__all__ = ["Plan", "Results"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"ggss.study.{_HOME[name]}"), name)
    raise AttributeError(f"module 'ggss.study' has no attribute {name!r}")
