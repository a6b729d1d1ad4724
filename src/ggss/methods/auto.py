"""`ggss-auto`: each token's strength from discovery alone, so that alpha = 1 means "as derived". Beyond the paper.

    beta = alpha (1 - b0^2 / |b|^2)_+          b = V^T log_mu(h^)          steered = |h| slerp(h^, target; beta)
    b0^2 = mean over contexts u of |V^T log_mu(c_u)|^2

**Derivation.** A token's protected coordinates are b = a + n: a comes from the attribute, n is everything else in
these directions (weak light makes a face darker, too). Steering should remove a and keep n. Of all shares beta, the
one that minimises E|(b - beta b) - n|^2 when a and n are uncorrelated is

    beta* = E<b, a> / E|b|^2 = 1 - E|n|^2 / E|b|^2

E|n|^2 is known from discovery: the centre c_u of a context is the mean over all values of the attribute, so its
protected coordinates contain only n; b0^2 is their mean square. E|b|^2 of a single token is estimated by its own
|b|^2, and a negative share is set to zero: this is the positive-part James-Stein rule.

**In words.** A token with no more protected magnitude than a neutral representative is not changed; any other token
is reduced to b0^2 / |b|, which is below b0. So no token keeps more than a neutral one typically has. In a clean
subspace b0 is near zero and the rule removes everything; in an entangled one b0 is large, and the rule removes less
where removal would cost other content. The paper's gate is instead a sigmoid around the median magnitude of *all*
representatives, and needs kappa, a floor and a sweep of alpha.

Subspace, mu and target are those of `ggss`. b0 comes from pooled rows, as the paper's statistics do. Single tokens
vary more than means, so b0 is rather too small and steering rather too strong. `steerer.gate` is beta at alpha = 1.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ggss import sphere
from ggss.activations import Activations
from ggss.methods.ggss import SubspaceOptions, discover
from ggss.methods.operator import register
from ggss.methods.registry import Attribute, Fitted, Method
from ggss.methods.registry import register as register_method
from ggss.methods.spherical import Magnitude, Removal, Spherical
from ggss.methods.subspace import protected_magnitude


@register
@dataclass(frozen=True)
class Shrinkage(Spherical):
    """mu [D] and basis [D, k] in float32, and b0, the protected magnitude of neutral representatives."""

    neutral: Magnitude

    kind: ClassVar[str] = "shrinkage"

    def removal(self, b: Tensor, alpha: Tensor) -> Removal:
        energy = (b * b).sum(1, keepdim=True)
        share = torch.where(energy > 0, 1 - self.neutral**2 / energy, 0).clamp(min=0)
        return Removal(b, alpha * share, share)


def fit(activations: Activations, attribute: Attribute, options: SubspaceOptions) -> Fitted:
    found = discover(activations, attribute, options.k)
    centres = sphere.frechet_mean(found.groups.of(found.points))
    neutral = protected_magnitude(centres, found.mu, found.subspace.basis)
    operator = Shrinkage(*found.frame, neutral=float((neutral**2).mean().sqrt()))
    return Fitted(operator, {**found.statistics, "neutral_magnitudes": neutral.float()}, found.diagnostics)


register_method(
    Method(
        name="ggss-auto",
        summary="GGSS with each token's strength derived from discovery, no sweep",
        reference="this library; after James and Stein 1961, Estimation with Quadratic Loss",
        fit=fit,
        options=SubspaceOptions,
    )
)
