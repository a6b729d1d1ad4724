"""How far the subspaces of two steerers agree."""

from typing import TYPE_CHECKING

from ggss.errors import InputError
from ggss.methods.diagnostics import principal_cosines

if TYPE_CHECKING:
    from ggss.steering.steerer import Steerer


def subspace_cosine(one: "Steerer", other: "Steerer") -> float:
    """The cosine of the largest principal angle between the bases of two steerers, over all sites; 1 if equal."""
    if one.operators.keys() != other.operators.keys():
        raise InputError(f"the steerers act at {sorted(one.operators)} and {sorted(other.operators)}: no comparison")
    found = []
    for site, operator in one.operators.items():
        mine, theirs = (getattr(each, "basis", None) for each in (operator, other.operators[site]))
        if mine is None or theirs is None:
            raise InputError(
                f"{one.method!r} has no subspace that could be compared: use a method that has one, as ggss"
            )
        found.append(float(principal_cosines(mine.double(), theirs.double()).min()))
    return min(found)
