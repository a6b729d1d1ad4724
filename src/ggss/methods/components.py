"""Component ablations: GGSS without its gate, and without slerp (section 4.3, component ablation).

    ggss-no-gate     |h| slerp(h^, target; alpha)                              g = 1
    ggss-no-slerp    |h| Normalize(exp_mu(t - alpha g V V^T t))                the gate, then hard projection

Discovery is that of `ggss`. At alpha = 1 `ggss-no-gate` equals `svd-pooled-spherical`, as the paper observes.

The paper's row is "w/o Slerp (hard proj. + gate)", and hard projection is `t - alpha V V^T t` (appendix A.4). The
authors' code goes along the chord instead, |h| Normalize((1 - alpha g) h^ + alpha g target): option `path="chord"`.
Both end at GGSS's target where alpha g = 1; the chord stays on the arc of slerp, at another share of it.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from ggss.activations import Activations
from ggss.methods.geodesic import Geodesic
from ggss.methods.ggss import GateOptions, GgssOptions, SubspaceOptions, calibrated, discover
from ggss.methods.operator import register
from ggss.methods.registry import Attribute, Fitted, Method
from ggss.methods.registry import register as register_method
from ggss.methods.spherical import Gated, Removal
from ggss.methods.tangent import Tangent

REFERENCE = "Sun et al., GGSS: Geodesic-Gated Spherical Steering, section 4.3"


class NoSlerpOptions(GgssOptions):
    path: Literal["projection", "chord"] = Field(
        "projection", description="the paper's hard projection, or the chord of the authors' code"
    )


@register
@dataclass(frozen=True)
class Chord(Gated):
    """mu [D] and basis [D, k] in float32, and the gate: to the target of GGSS along the chord."""

    kind: ClassVar[str] = "chord"

    def removal(self, b: Tensor, alpha: Tensor) -> Removal:
        g = self.gate_of(b)
        return Removal(b, alpha * g, None if self.floor == 1 else g, chord=True)


def without_gate(activations: Activations, attribute: Attribute, options: SubspaceOptions) -> Fitted:
    found = discover(activations, attribute, options.k)
    operator = Geodesic(*found.frame, **calibrated(found.magnitudes, GateOptions.model_validate({"floor": 1.0})))
    return Fitted(operator, found.statistics, found.diagnostics)


def without_slerp(activations: Activations, attribute: Attribute, options: NoSlerpOptions) -> Fitted:
    found = discover(activations, attribute, options.k)
    make = Chord if options.path == "chord" else Tangent.orthogonal
    operator = make(*found.frame, **calibrated(found.magnitudes, options))
    return Fitted(operator, found.statistics, found.diagnostics)


register_method(Method("ggss-no-gate", "GGSS with the gate held at 1", REFERENCE, without_gate, SubspaceOptions))
register_method(Method("ggss-no-slerp", "GGSS's gate with hard projection", REFERENCE, without_slerp, NoSlerpOptions))
