"""GGSS, the paper's method (section 3); two methods beyond the paper; and two steerers combined in one.

**`ggss`** is the pooled spherical subspace, the calibrated gate and the geodesic update. Discovery is in `subspace`,
the update in `spherical`. Options: k (number of values - 1), kappa = 5, floor = 0.3.

The paper calibrates the gate with the median and the std of the magnitudes b(c), and does not say which. The authors'
code takes the lower of the two middle values of an even number, and the sample's deviation (n - 1) plus 1e-8; so do
we. `median="mean"` is the mean of the middle two, `deviation="population"` divides by n and adds nothing.

With several attributes, `attribute=("race", "gender")`, the values are the intersections and the subspace is the
joint one. The statistics also contain the subspace of each attribute alone, as `basis_race` and `basis_gender`, and
the diagnostics the cosines of the principal angles between each of these and the joint one.

**`ggss-contrast`** is GGSS with a discovery that knows which value a shift belongs to. Beyond the paper.

    s_ua = log_{c_u}(y_ua), transported along the geodesic from c_u to mu
    sbar_a = mean over contexts u of the transported s_ua          V = right singular vectors of [sbar_a]

The paper's SVD ranks directions by how far the shifts move along them, whichever value they belong to. An accidental
difference between images of a context (another crop, another smile) is part of their shifts, too; with few contexts
it can rank above the attribute. It has no preferred sign for a value, so the mean over contexts divides it by the
square root of their number and keeps what all shifts of a value have in common. The A means sum to about zero, so
they span A - 1 directions, the default k and its maximum. Gate and update are those of `ggss`.

Shifts at different centres are vectors of different tangent spaces. Parallel transport moves them to the one at mu:

    transport_{p -> q}(v) = v - <q, v> / (1 + <p, q>) (p + q)

**`ggss-auto`** derives each token's strength from discovery alone, so that alpha = 1 means "as derived". Beyond the
paper.

    beta = alpha (1 - b0^2 / |b|^2)_+          b = V^T log_mu(h^)          steered = |h| slerp(h^, target; beta)
    b0^2 = mean over contexts u of |V^T log_mu(c_u)|^2

*Derivation.* A token's protected coordinates are b = a + n: a comes from the attribute, n is everything else in these
directions (weak light makes a face darker, too). Steering should remove a and keep n. Of all shares beta, the one
that minimises E|(b - beta b) - n|^2 when a and n are uncorrelated is

    beta* = E<b, a> / E|b|^2 = 1 - E|n|^2 / E|b|^2

E|n|^2 is known from discovery: the centre c_u of a context is the mean over all values of the attribute, so its
protected coordinates contain only n; b0^2 is their mean square. E|b|^2 of a single token is estimated by the |b|^2 of
that token, and a negative share is set to zero: this is the positive-part James-Stein rule.

*In words.* A token with no more protected magnitude than a neutral representative is not changed; any other token is
reduced to b0^2 / |b|, which is below b0. So no token keeps more than a neutral one typically has. In a clean subspace
b0 is near zero and the rule removes everything; in an entangled one b0 is large, and the rule removes less where
removal would cost other content. The paper's gate is instead a sigmoid around the median magnitude of *all*
representatives, and needs kappa, a floor and a sweep of alpha.

Subspace, mu and target are those of `ggss`. b0 comes from pooled rows, as the paper's statistics do. Single tokens
vary more than means, so b0 is rather too small and steering rather too strong. `steerer.gate` is beta at alpha = 1.

**`Joint`** combines two steerers, `race + gender`: one subspace, the union of theirs, with one gate each.

    V_i          the subspace of steerer i          Q = [V_1 V_2] ([V_1 V_2]^T [V_1 V_2])^(-1/2) = [Q_1 Q_2]
    g_i          the gate of steerer i, from |V_i^T t|          g = max g_i
    target       Normalize(exp_mu(t - sum_i g_i / g  Q_i Q_i^T t))          steered = |h| slerp(h^, target; alpha g)

If two steerers are attached one after the other and their subspaces are not orthogonal, the second adds back a part
of what the first removed. Q spans the union, so this does not happen. Of all orthonormal bases of the union, Q is the
closest to [V_1 V_2] and treats both alike: `race + gender` and `gender + race` do the same. Where both gates are
equal, the update is GGSS's with the basis Q; where only one is open, mostly the block of that one is removed.

mu is the point halfway between those of the two steerers, which are equal when both were fitted to the same images.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from ggss import sphere
from ggss.activations import Activations, Groups
from ggss.errors import InputError
from ggss.methods import diagnostics
from ggss.methods.operator import Array, Operator, register_kind
from ggss.methods.registry import Attribute, Fitted, Method, Options, register
from ggss.methods.spherical import Floor, Geodesic, Kappa, Magnitude, Removal, Spherical, gate
from ggss.methods.subspace import Subspace, find_subspace, protected_magnitude, representatives, shifts

SAMPLE_EPS = 1e-8  # the authors' code adds it to the sample's deviation
LARGEST_COSINE = 0.99  # of steerers that are combined: above it they share a direction


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
    """Section 3.1 for one site: representatives y [N, D], their groups, subspace, mu and magnitudes b; float64."""

    points: Tensor
    groups: Groups
    subspace: Subspace
    mu: Tensor
    magnitudes: Tensor
    statistics: dict[str, Tensor]
    diagnostics: dict[str, Any]

    @property
    def frame(self) -> tuple[Tensor, Tensor]:
        """mu [D] and basis V_bias [D, k] in float32, as operators take them."""
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
    """Discovery of section 3.1 from the activations of one site; k is the number of values - 1 if it is None."""
    groups = activations.groups(attribute)
    points = representatives(activations.pooled)
    table = shifts(points, groups)
    subspace = find_subspace(table, k)
    mu = sphere.frechet_mean(points)
    magnitudes = protected_magnitude(points, mu, subspace.basis)
    basis, contexts = subspace.basis, activations.contexts
    results = diagnostics.diagnose(
        points, contexts, mu, groups, table, basis, lambda half: find_subspace(half, basis.shape[1]).basis
    )
    statistics = {
        "singular_values": subspace.singular_values.float(),
        "explained_variance": subspace.explained_variance.float(),
        "magnitudes": magnitudes.float(),
    }
    for name in () if isinstance(attribute, str) else attribute:
        attribute_basis = find_subspace(shifts(points, activations.groups(name))).basis
        statistics[f"basis_{name}"] = attribute_basis.float().contiguous()
        cosines = diagnostics.principal_cosines(attribute_basis, subspace.basis).tolist()
        results.setdefault("attribute_cosines", {})[name] = cosines
    return Discovery(points, groups, subspace, mu, magnitudes, statistics, results)


def fit(activations: Activations, attribute: Attribute, options: GgssOptions) -> Fitted:
    discovery = discover(activations, attribute, options.k)
    operator = Geodesic(*discovery.frame, **calibrated(discovery.magnitudes, options))
    return Fitted(operator, discovery.statistics, discovery.diagnostics)


register(
    Method(
        name="ggss",
        summary="pooled spherical subspace, calibrated gate, slerp",
        reference="Sun et al., GGSS: Geodesic-Gated Spherical Steering, section 3",
        fit=fit,
        options=GgssOptions,
    )
)


def transport(p: Tensor, q: Tensor, v: Tensor) -> Tensor:
    """Parallel transport of tangent vectors v from p to q; leading axes broadcast. q must not be opposite to p."""
    along = (q * v).sum(-1, keepdim=True) / (1 + (p * q).sum(-1, keepdim=True))
    return v - along * (p + q)


def contrast_subspace(table: Tensor, k: int | None = None) -> Subspace:
    """The subspace of the mean shift of each value, from transported shifts [U, A, D]."""
    return find_subspace(table.mean(0, keepdim=True), k)


def fit_contrast(activations: Activations, attribute: Attribute, options: GgssOptions) -> Fitted:
    groups = activations.groups(attribute)
    points = representatives(activations.pooled)
    mu = sphere.frechet_mean(points)
    members = groups.of(points)
    centres = sphere.frechet_mean(members).unsqueeze(1)
    table = transport(centres, mu, sphere.log(centres, members))
    subspace = contrast_subspace(table, options.k)
    basis = subspace.basis
    magnitudes = protected_magnitude(points, mu, basis)
    return Fitted(
        Geodesic(mu.float(), basis.float().contiguous(), **calibrated(magnitudes, options)),
        {
            "singular_values": subspace.singular_values.float(),
            "explained_variance": subspace.explained_variance.float(),
            "magnitudes": magnitudes.float(),
        },
        diagnostics.diagnose(
            points,
            activations.contexts,
            mu,
            groups,
            table,
            basis,
            lambda half: contrast_subspace(half, basis.shape[1]).basis,
        ),
    )


register(
    Method(
        name="ggss-contrast",
        summary="GGSS with label-aware discovery: the SVD of each value's mean shift",
        reference="this library; beyond Sun et al., GGSS: Geodesic-Gated Spherical Steering",
        fit=fit_contrast,
        options=GgssOptions,
    )
)


@register_kind
@dataclass(frozen=True)
class Shrinkage(Spherical):
    """The update of `ggss-auto`. mu [D] and basis [D, k] in float32. neutral: b0, from the contexts' centres."""

    neutral: Magnitude

    kind: ClassVar[str] = "shrinkage"

    def removal(self, b: Tensor, alpha: Tensor) -> Removal:
        energy = (b * b).sum(1, keepdim=True)
        share = torch.where(energy > 0, 1 - self.neutral**2 / energy, 0).clamp(min=0)
        return Removal(b, alpha * share, share)


def fit_auto(activations: Activations, attribute: Attribute, options: SubspaceOptions) -> Fitted:
    discovery = discover(activations, attribute, options.k)
    centres = sphere.frechet_mean(discovery.groups.of(discovery.points))
    neutral = protected_magnitude(centres, discovery.mu, discovery.subspace.basis)
    operator = Shrinkage(*discovery.frame, neutral=float((neutral**2).mean().sqrt()))
    return Fitted(operator, {**discovery.statistics, "neutral_magnitudes": neutral.float()}, discovery.diagnostics)


register(
    Method(
        name="ggss-auto",
        summary="GGSS with each token's strength derived from discovery, no sweep",
        reference="this library; after James and Stein 1961, Estimation with Quadratic Loss",
        fit=fit_auto,
        options=SubspaceOptions,
    )
)


@register_kind
@dataclass(frozen=True)
class Joint(Spherical):
    """The update of combined steerers. mu [D] and basis Q [D, K]; own [K, K] with [V_1 V_2] = Q own.

    sizes [m]: the dimensions of each V_i. gates [m, 4]: median, std, kappa and floor of each.
    """

    own: Annotated[Tensor, Array("k", "k")]
    sizes: Annotated[Tensor, Array("m", dtype=torch.int64, ge=1)]
    gates: Annotated[Tensor, Array("m", 4, dtype=torch.float64)]

    kind: ClassVar[str] = "joint"

    def removal(self, b: Tensor, alpha: Tensor) -> Removal:
        sizes = self.sizes.tolist()
        magnitudes = [block.norm(dim=1, keepdim=True) for block in (b @ self.own.to(b)).split(sizes, 1)]
        gates = [gate(b_i, *numbers) for b_i, numbers in zip(magnitudes, self.gates.tolist(), strict=True)]
        strongest = torch.stack(gates).amax(0).clamp(min=sphere.EPS)  # all gates may be closed, with floors of 0
        shares = [(g_i / strongest).expand(-1, size) for g_i, size in zip(gates, sizes, strict=True)]
        return Removal(torch.cat(shares, 1) * b, alpha * strongest, strongest)

    def validate(self) -> None:
        super().validate()
        if sum(self.sizes.tolist()) != self.basis.shape[1]:
            raise InputError(
                f"blocks of {self.sizes.tolist()} directions do not fit a basis of {self.basis.shape[1]}"
            )
        for basis, numbers in zip(self.blocks(), self.gates.tolist(), strict=True):
            Geodesic(self.mu, basis.float(), *numbers)  # each block is checked as the steerer that it comes from

    def blocks(self) -> list[Tensor]:
        """The subspaces V_i in float64."""
        return list((self.basis.double() @ self.own.double()).split(self.sizes.tolist(), 1))


def join(first: Operator, second: Operator) -> Joint:
    """One operator from those of two steerers at the same site; each is GGSS's or already a joint one."""
    parts = [_parts(first), _parts(second)]
    if first.width != second.width:
        raise InputError(f"steerers of different width cannot be combined: {first.width} and {second.width}")
    mus, bases = [part[0] for part in parts], [basis for part in parts for basis in part[1]]
    stacked = torch.cat(bases, 1)
    left, singular, right = torch.linalg.svd(stacked, full_matrices=False)
    if stacked.shape[1] >= len(stacked) or float(singular[-1]) ** 2 < 1 - LARGEST_COSINE:
        raise InputError(
            "these steerers share a direction, so they cannot be combined: "
            f"the smallest singular value of their joined bases is {float(singular[-1]):.3f}"
        )
    basis = left @ right  # symmetric orthonormalisation: the closest orthonormal matrix to the stacked bases
    return Joint(
        mu=sphere.frechet_mean(torch.stack(mus)).float(),
        basis=basis.float().contiguous(),
        own=(basis.T @ stacked).float().contiguous(),
        sizes=torch.tensor([basis.shape[1] for basis in bases]),
        gates=torch.cat([part[2] for part in parts]),
    )


def _parts(operator: Operator) -> tuple[Tensor, list[Tensor], Tensor]:
    """mu, the subspaces V_i and the gates of an operator, in float64."""
    if isinstance(operator, Geodesic):
        numbers = [operator.gate_median, operator.gate_std, operator.kappa, operator.floor]
        return operator.mu.double(), [operator.basis.double()], torch.tensor([numbers], dtype=torch.float64)
    if isinstance(operator, Joint):
        return operator.mu.double(), operator.blocks(), operator.gates
    raise InputError(f"only gated geodesic steerers can be combined, this one is {operator.kind!r}")
