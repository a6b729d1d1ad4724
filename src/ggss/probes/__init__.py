"""What is asked of a model, and what its answers measure.

The probes register themselves when they are imported; the order of imports is the order of the table.
"""

from ggss.probes.base import Answers, Display, Item, Probe, get, names, register

from ggss.probes import people, benchmarks, reflect  # noqa: F401  # isort: skip

__all__ = [
    "Answers",
    "Display",
    "Item",
    "Probe",
    "get",
    "names",
    "register",
]
