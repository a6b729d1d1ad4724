"""GGSS: the pooled spherical subspace, the calibrated gate and the geodesic update (section 3).

Discovery is in `subspace`, the update in `geodesic`. Options: k (number of values - 1), kappa = 5, floor = 0.3.

The paper calibrates the gate with the median and the std of the magnitudes b(c), and does not say which. The authors'
code takes the lower of the two middle values of an even number, and the sample's deviation (n - 1) plus 1e-8; so do
we. `median="mean"` is the mean of the middle two, `deviation="population"` divides by n and adds nothing.

With several attributes, `attribute=("race", "gender")`, the values are the intersections and the subspace is the
joint one. The statistics also contain the subspace of each attribute alone, as `basis_race` and `basis_gender`, and
the diagnostics the cosines of the principal angles between each of these and the joint one.
"""

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field
from torch import Tensor

from ggss import sphere
from ggss.activations import Activations, Groups
from ggss.methods import diagnostics
from ggss.methods.geodesic import Geodesic
from ggss.methods.registry import Attribute, Fitted, Method, Options, register
from ggss.methods.spherical import Floor, Kappa
from ggss.methods.subspace import Subspace, find_subspace, protected_magnitude, representatives, shifts

SAMPLE_EPS = 1e-8  # the authors' code adds it to the sample's deviation


class SubspaceOptions(Options):
    k: int | None = Field(None, ge=1, description="dimensions of the subspace; the number of values - 1")


class GateOptions(Options):
    kappa: Kappa = Field(5.0, description="sharpness of the gate")
    floor: Floor = Field(0.3, description="smallest gate, for tokens without protected signal")
    median: Literal["lower", "mean"] = Field("lower", description="of the two middle values: the lower or their mean")
    deviation: Literal["sample", "population"] = Field("sample", description="std with n - 1, or with n")


class GgssOptions(GateOptions, SubspaceOptions):
    pass


@dataclass(frozen=True)
class Discovery:
    """Section 3.1 for one site: representatives [N, D], their groups, subspace, mu and magnitudes b; float64."""

    points: Tensor
    groups: Groups
    subspace: Subspace
    mu: Tensor
    magnitudes: Tensor
    statistics: dict[str, Tensor]
    diagnostics: dict[str, Any]

    @property
    def frame(self) -> tuple[Tensor, Tensor]:
        """mu [D] and basis [D, k] in float32, as an operator keeps them."""
        return self.mu.float(), self.subspace.basis.float().contiguous()


def calibrated(magnitudes: Tensor, options: GateOptions) -> dict[str, float]:
    """The gate of an operator: its median and std from the magnitudes [N], and the options' kappa and floor."""
    if options.median == "lower":
        median = magnitudes.median()
    else:
        median = magnitudes.sort().values[[(len(magnitudes) - 1) // 2, len(magnitudes) // 2]].mean()
    sample = options.deviation == "sample"
    std = float(magnitudes.std(correction=int(sample))) + SAMPLE_EPS * sample
    return {"gate_median": float(median), "gate_std": std, "kappa": options.kappa, "floor": options.floor}


def discover(activations: Activations, attribute: Attribute, k: int | None) -> Discovery:
    groups = activations.groups(attribute)
    points = representatives(activations.pooled)
    table = shifts(points, groups)
    subspace = find_subspace(table, k)
    mu = sphere.frechet_mean(points)
    magnitudes = protected_magnitude(points, mu, subspace.basis)
    basis, contexts = subspace.basis, activations.contexts
    found = diagnostics.diagnose(
        points, contexts, mu, groups, table, basis, lambda half: find_subspace(half, basis.shape[1]).basis
    )
    statistics = {
        "singular_values": subspace.singular_values.float(),
        "explained_variance": subspace.explained_variance.float(),
        "magnitudes": magnitudes.float(),
    }
    for name in () if isinstance(attribute, str) else attribute:
        own = find_subspace(shifts(points, activations.groups(name))).basis
        statistics[f"basis_{name}"] = own.float().contiguous()
        cosines = diagnostics.principal_cosines(own, subspace.basis).tolist()
        found.setdefault("attribute_cosines", {})[name] = cosines
    return Discovery(points, groups, subspace, mu, magnitudes, statistics, found)


def fit(activations: Activations, attribute: Attribute, options: GgssOptions) -> Fitted:
    found = discover(activations, attribute, options.k)
    operator = Geodesic(*found.frame, **calibrated(found.magnitudes, options))
    return Fitted(operator, found.statistics, found.diagnostics)


register(
    Method(
        name="ggss",
        summary="pooled spherical subspace, calibrated gate, slerp",
        reference="Sun et al., GGSS: Geodesic-Gated Spherical Steering, section 3",
        fit=fit,
        options=GgssOptions,
    )
)
