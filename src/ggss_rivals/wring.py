"""`wring`: rotation inside the attribute's subspace instead of projection (WRING, Gerych et al. 2026).

    c_a = Normalize(mean row of value a)        span: of all c_a        u: the unit vector in it with equal <u, c_a>
    steered = h - Proj h + |Proj h| u           Proj: onto the span

A token's part inside the span turns to u, where it is equally similar to every value; its length and everything
outside the span stay. After a projection and a return to unit length, what is outside has grown: this is how removing
one bias raises another.

**What the paper claims.** Projection amplifies the bias of attributes that nobody considered ("whac-a-mole"), which
is proved for embeddings of unit length. Rotation within the relevant subspace removes the bias of those considered,
and hardly changes the relation to the others (CLIP, zero-shot classification and retrieval).

**What is from the paper, and what is a reading.** The abstract and public summaries could be read, its equations not.
From the paper: rotation instead of removal, inside the subspace of the concepts alone, to where the groups cannot be
told apart. A reading: that this place is u, the vector with equal cosines to all values, and that the shortest way to
it is taken. Its weights ("weighted rotational debiasing") are not known and left out. In the paper embeddings of
whole pictures and texts turn; here every token does, and c_a are mean rows of discovery pictures. alpha is the share
of the way.
"""

import torch

from ggss.activations import Activations
from ggss.errors import InputError
from ggss.methods.registry import Attribute, Fitted, Method, Options, register
from ggss.methods.subspace import classes, oriented, refuse_equal
from ggss_rivals.angular import RANK, Rotation


def fit(activations: Activations, attribute: Attribute, options: Options) -> Fitted:
    known, pooled = classes(activations, attribute), activations.pooled.double()
    refuse_equal(pooled)
    means = known.means(pooled)
    lengths = means.norm(dim=1, keepdim=True)
    if not bool((lengths > 0).all()):
        raise InputError(f"the mean row of a value of {attribute!r} is zero: it has no direction")
    concepts = means / lengths
    _, singular, directions = torch.linalg.svd(concepts - concepts.mean(0), full_matrices=False)
    if not singular[0] > RANK:
        raise InputError(f"the values of {attribute!r} have the same mean row: there is nothing to turn")
    features = directions[: min(int((singular > RANK * singular[0]).sum()), len(concepts) - 1)].T
    axis = concepts.mean(0)
    axis = axis - features @ (features.T @ axis)
    if not axis.norm() > RANK:
        raise InputError(f"the mean rows of {attribute!r} cancel: no vector is equally similar to all of them")
    axis = axis / axis.norm()
    similarity = float(concepts[0] @ axis)
    operator = Rotation(oriented(features).float().contiguous(), axis.float().contiguous())
    return Fitted(operator, diagnostics={"similarity": similarity})


register(
    Method(
        name="wring",
        summary="rotation to where a token is equally similar to every value, inside the span of the values' means",
        reference="Gerych et al. 2026, WRING Out The Bias: A Rotation-Based Alternative To Projection Debiasing, "
        "ICLR 2026",
        fit=fit,
    )
)
