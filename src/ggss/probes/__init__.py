"""Probes: what is asked of a model, and what its answers measure.

Probes register themselves when they are imported, in the order of the imports below.
"""

from ggss.probes.base import Answers, Display, Item, Probe, get, names, register

from ggss.probes import people, benchmarks, ambiguous, writing, questions  # noqa: F401  # isort: skip

__all__ = [
    "Answers",
    "Display",
    "Item",
    "Probe",
    "get",
    "names",
    "register",
]
