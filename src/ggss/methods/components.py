"""Component ablations: GGSS without its gate, and without slerp (section 4.3, component ablation).

    ggss-no-gate     |h| slerp(h^, target; alpha)                              g = 1
    ggss-no-slerp    |h| Normalize(exp_mu(t - alpha g V V^T t))                the gate, then hard projection

Discovery is that of `ggss`. At alpha = 1 `ggss-no-gate` equals `svd-pooled-spherical`, as the paper observes.
"""

from ggss.activations import Activations
from ggss.methods.geodesic import Geodesic
from ggss.methods.ggss import GgssOptions, SubspaceOptions, discover
from ggss.methods.registry import Attribute, Fitted, Method, register
from ggss.methods.tangent import Tangent

REFERENCE = "Sun et al., GGSS: Geodesic-Gated Spherical Steering, section 4.3"


def without_gate(activations: Activations, attribute: Attribute, options: SubspaceOptions) -> Fitted:
    found = discover(activations, attribute, options.k)
    return Fitted(Geodesic(*found.frame, **found.gate, floor=1.0), found.statistics, found.diagnostics)


def without_slerp(activations: Activations, attribute: Attribute, options: GgssOptions) -> Fitted:
    found = discover(activations, attribute, options.k)
    operator = Tangent.orthogonal(*found.frame, **found.gate, kappa=options.kappa, floor=options.floor)
    return Fitted(operator, found.statistics, found.diagnostics)


register(Method("ggss-no-gate", "GGSS with the gate held at 1", REFERENCE, without_gate, SubspaceOptions))
register(Method("ggss-no-slerp", "GGSS's gate with hard projection", REFERENCE, without_slerp, GgssOptions))
