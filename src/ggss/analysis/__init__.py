"""From answers to numbers: runs, comparisons of two runs, the choice of a strength.

before = ask(model, suite, "mcq")                     # or records.load("before.jsonl")["mcq"]
after = ask(model.steered(steerer, 1.0), suite, "mcq")
found = compare(before, after)
found.change(), found.corrected_change, found.p       # every paired number comes from here
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ggss.analysis.asking import ask
    from ggss.analysis.averages import average_change
    from ggss.analysis.comparison import Comparison, compare, compare_all
    from ggss.analysis.crossfit import cross_fit
    from ggss.analysis.measured import Measured
    from ggss.analysis.run import Run, Source
    from ggss.analysis.selection import best_alpha
    from ggss.analysis.statistics import Statistics

_HOME = {
    "Comparison": "comparison",
    "Measured": "measured",
    "Run": "run",
    "Source": "run",
    "Statistics": "statistics",
    "ask": "asking",
    "average_change": "averages",
    "best_alpha": "selection",
    "compare": "comparison",
    "compare_all": "comparison",
    "cross_fit": "crossfit",
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
