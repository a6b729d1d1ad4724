"""What is asked of a model, and what its answers measure.

The probes register themselves when they are imported; the order of imports is the order of the table.
"""

from ggss.probes.probe import Item, Probe, get, names, register

__all__ = ["Item", "Probe", "get", "names", "register"]
