"""The study: a plan of models, methods, strengths and tasks; a store that survives a crash; a runner; its results."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ggss.study.plan import Plan
    from ggss.study.results import Results, Run

__all__ = ["Plan", "Results", "Run"]


def __getattr__(name: str) -> Any:
    if name == "Plan":
        from ggss.study.plan import Plan

        return Plan
    if name in ("Results", "Run"):
        from ggss.study import results

        return getattr(results, name)
    raise AttributeError(f"module 'ggss.study' has no attribute {name!r}")
