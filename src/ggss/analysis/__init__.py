"""From answers to numbers: runs, comparisons of two runs, the choice of a strength.

before = ask(model, suite, "mcq")                     # or records.load("before.jsonl")["mcq"]
after = ask(model.steered(steerer, 1.0), suite, "mcq")
comparison = compare(before, after)
comparison.change(), comparison.corrected_change, comparison.p       # every paired number comes from here
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ggss.analysis.asking import ask
    from ggss.analysis.comparison import Comparison, compare, compare_all
    from ggss.analysis.run import Measured, Run, Source, Statistics
    from ggss.analysis.selection import average_change, best_alpha, cross_fit

_HOME = {
    "Comparison": "comparison",
    "Measured": "run",
    "Run": "run",
    "Source": "run",
    "Statistics": "run",
    "ask": "asking",
    "average_change": "selection",
    "best_alpha": "selection",
    "compare": "comparison",
    "compare_all": "comparison",
    "cross_fit": "selection",
}

__all__ = [
    "Comparison",
    "Measured",
    "Run",
    "Source",
    "Statistics",
    "ask",
    "average_change",
    "best_alpha",
    "compare",
    "compare_all",
    "cross_fit",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"ggss.analysis.{_HOME[name]}"), name)
    raise AttributeError(f"module 'ggss.analysis' has no attribute {name!r}")
