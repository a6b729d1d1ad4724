"""GGSS: the pooled spherical subspace, the calibrated gate and the geodesic update (section 3).

Discovery is in `subspace`, the update in `geodesic`. Options: k (number of values - 1), kappa = 5, floor = 0.3.

With several attributes, `attribute=("race", "gender")`, the values are the intersections and the subspace is the
joint one. The statistics also contain the subspace of each attribute alone, as `basis_race` and `basis_gender`, and
the diagnostics the cosines of the principal angles between each of these and the joint one.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import Field
from torch import Tensor

from ggss import sphere
from ggss.activations import Activations, Groups
from ggss.methods import diagnostics
from ggss.methods.geodesic import Geodesic
from ggss.methods.registry import Attribute, Fitted, Method, Options, register
from ggss.methods.subspace import Subspace, find_subspace, protected_magnitude, representatives, shifts


class SubspaceOptions(Options):
    k: int | None = Field(None, ge=1, description="dimensions of the subspace; the number of values - 1")


class GateOptions(Options):
    kappa: float = Field(5.0, gt=0, description="sharpness of the gate")
    floor: float = Field(0.3, ge=0, le=1, description="smallest gate, for tokens without protected signal")


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

    @property
    def gate(self) -> dict[str, float]:
        return gate_statistics(self.magnitudes)


def gate_statistics(magnitudes: Tensor) -> dict[str, float]:
    """The median and standard deviation that calibrate the gate."""
    return {"gate_median": float(np.median(magnitudes)), "gate_std": float(magnitudes.std(correction=0))}


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
    operator = Geodesic(*found.frame, **found.gate, kappa=options.kappa, floor=options.floor)
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
