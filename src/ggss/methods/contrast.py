"""`ggss-contrast`: GGSS with a discovery that knows which value a shift belongs to. Beyond the paper.

    s_ua = log_{c_u}(y_ua), transported along the geodesic from c_u to mu
    sbar_a = mean over contexts u of the transported s_ua          V = right singular vectors of [sbar_a]

The paper's SVD ranks directions by how far the shifts move along them, whichever value they belong to. An accidental
difference between images of a context (another crop, another smile) is part of their shifts, too; with few contexts
it can rank above the attribute. It has no preferred sign for a value, so the mean over contexts divides it by the
square root of their number and keeps what all shifts of a value have in common. The A means sum to about zero, so
they span A - 1 directions, the default k and its maximum. Gate and update are those of `ggss`.

Shifts at different centres are vectors of different tangent spaces. Parallel transport brings them into one:

    transport_{p -> q}(v) = v - <q, v> / (1 + <p, q>) (p + q)
"""

from torch import Tensor

from ggss import sphere
from ggss.activations import Activations
from ggss.methods import diagnostics
from ggss.methods.geodesic import Geodesic
from ggss.methods.ggss import GgssOptions, calibrated
from ggss.methods.registry import Attribute, Fitted, Method, register
from ggss.methods.subspace import Subspace, find_subspace, protected_magnitude, representatives


def transport(p: Tensor, q: Tensor, v: Tensor) -> Tensor:
    """Parallel transport of tangent vectors v from p to q; leading axes broadcast. q must not be opposite to p."""
    along = (q * v).sum(-1, keepdim=True) / (1 + (p * q).sum(-1, keepdim=True))
    return v - along * (p + q)


def contrast(table: Tensor, k: int | None = None) -> Subspace:
    """The subspace of the mean shift of each value, from transported shifts [U, A, D]."""
    return find_subspace(table.mean(0, keepdim=True), k)


def fit(activations: Activations, attribute: Attribute, options: GgssOptions) -> Fitted:
    groups = activations.groups(attribute)
    points = representatives(activations.pooled)
    mu = sphere.frechet_mean(points)
    members = groups.of(points)
    centres = sphere.frechet_mean(members).unsqueeze(1)
    table = transport(centres, mu, sphere.log(centres, members))
    subspace = contrast(table, options.k)
    basis = subspace.basis
    magnitudes = protected_magnitude(points, mu, basis)
    return Fitted(
        Geodesic(
            mu.float(),
            basis.float().contiguous(),
            **calibrated(magnitudes, options),
        ),
        {
            "singular_values": subspace.singular_values.float(),
            "explained_variance": subspace.explained_variance.float(),
            "magnitudes": magnitudes.float(),
        },
        diagnostics.diagnose(
            points, activations.contexts, mu, groups, table, basis, lambda half: contrast(half, basis.shape[1]).basis
        ),
    )


register(
    Method(
        name="ggss-contrast",
        summary="GGSS with label-aware discovery: the SVD of each value's mean shift",
        reference="this library; beyond Sun et al., GGSS: Geodesic-Gated Spherical Steering",
        fit=fit,
        options=GgssOptions,
    )
)
