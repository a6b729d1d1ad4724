"""What is asked of a model, and what its answers measure.

The probes register themselves when they are imported; the order of imports is the order of the table.
"""

from ggss.probes.base import Item, Probe, get, names, register

from ggss.probes import mcq, pairs, nurse_doctor, ceo, recognition, smallstar, smallmme, mmstar, mme as mme_files  # isort: skip

__all__ = [
    "Item",
    "Probe",
    "ceo",
    "get",
    "mcq",
    "mme_files",
    "mmstar",
    "names",
    "nurse_doctor",
    "pairs",
    "recognition",
    "register",
    "smallmme",
    "smallstar",
]
