"""GGSS: the pooled spherical subspace, the calibrated gate and the geodesic update (section 3).

Discovery is in `subspace`, the update in `geodesic`. Options: k (number of values - 1), kappa = 5, floor = 0.3.
"""

from pydantic import Field

from ggss import sphere
from ggss.activations import Activations
from ggss.methods import diagnostics
from ggss.methods.geodesic import Geodesic
from ggss.methods.registry import Attribute, Fitted, Method, Options, register
from ggss.methods.subspace import find_subspace, protected_magnitude, representatives, shifts


class GgssOptions(Options):
    k: int | None = Field(None, ge=1, description="dimensions of the subspace; the number of values - 1")
    kappa: float = Field(5.0, gt=0, description="sharpness of the gate")
    floor: float = Field(0.3, ge=0, le=1, description="smallest gate, for tokens without protected signal")


def fit(activations: Activations, attribute: Attribute, options: GgssOptions) -> Fitted:
    groups = activations.groups(attribute)
    points = representatives(activations.pooled)
    table = shifts(points, groups)
    subspace = find_subspace(table, options.k)
    mu = sphere.frechet_mean(points)
    magnitudes = protected_magnitude(points, mu, subspace.basis)
    operator = Geodesic(
        mu=mu.float(),
        basis=subspace.basis.float().contiguous(),
        gate_median=float(magnitudes.quantile(0.5)),
        gate_std=float(magnitudes.std(correction=0)),
        kappa=options.kappa,
        floor=options.floor,
    )
    k = subspace.basis.shape[1]
    return Fitted(
        operator,
        statistics={
            "singular_values": subspace.singular_values.float(),
            "explained_variance": subspace.explained_variance.float(),
            "magnitudes": magnitudes.float(),
        },
        diagnostics=diagnostics.diagnose(
            points, mu, groups, table, subspace.basis, lambda half: find_subspace(half, k).basis
        ),
    )


register(
    Method(
        name="ggss",
        summary="pooled spherical subspace, calibrated gate, slerp",
        reference="Sun et al., GGSS: Geodesic-Gated Spherical Steering, section 3",
        fit=fit,
        options=GgssOptions,
    )
)
