"""Ablations of PACE: each leaves one thing out, or puts one in.

    pace-no-whitening   S = I: an orthogonal projection along the contrasts' own principal directions
    pace-pooled         all tokens are one part: A - 1 contrasts of whole pictures
    pace-within-parts   S from (h - m[p]) (h - m[p])^T: what parts differ in does not count as variation
    pace-orthogonal     detects along V, where it moves: V W^T replaced by the orthogonal projection onto span(V)
    pace-gated          GGSS's gate of |W^T (h - mu)|, calibrated on the tokens of the discovery pictures
    pace-norm           each token gets its norm back
    pace-slerp          a share alpha of the arc to the target of pace-norm; at alpha = 1 the same as pace-norm

Everything else is as in `pace`, the choice of k and of the shrinkage included.
"""

from dataclasses import replace
from typing import Any

import torch

from ggss.activations import Activations
from ggss.methods.ggss import GateOptions, calibrated
from ggss.methods.oblique import Oblique
from ggss.methods.pace import Form, PaceOptions, fit_form
from ggss.methods.registry import Attribute, Fitted, Method, Options, register


class PaceGatedOptions(GateOptions, PaceOptions):
    pass


def gated(operator: Oblique, activations: Activations, options: Any) -> Oblique:
    """With a gate whose median and std are those of the magnitudes of all tokens; zero tokens do not count."""
    mu, detection = operator.mu.double(), operator.detection.double()
    magnitudes = [((rows[rows.any(1)].double() - mu) @ detection).norm(dim=1) for rows in activations.tokens]
    return replace(operator, **calibrated(torch.cat(magnitudes), options))


def on_the_arc(operator: Oblique, activations: Activations, options: Any) -> Oblique:
    return replace(operator, arc=True)


def at_its_norm(operator: Oblique, activations: Activations, options: Any) -> Oblique:
    return replace(operator, restored=True)


def variant(name: str, summary: str, form: Form, options: type[Options] = PaceOptions) -> None:
    def fit(
        activations: Activations, attribute: Attribute, options: Any, neutral: Activations | None = None
    ) -> Fitted:
        return fit_form(activations, attribute, options, neutral, form)

    reference = "this library; an ablation of pace"
    register(Method(name, summary, reference, fit, options, needs_tokens=True, takes_neutral=True))


variant("pace-no-whitening", "PACE blind to how tokens vary anyway", Form(whitened=False))
variant("pace-pooled", "PACE with whole pictures instead of parts", Form(parts=1))
variant("pace-within-parts", "PACE with the covariance around each part's mean instead of mu", Form(around="parts"))
variant("pace-orthogonal", "PACE with an orthogonal projection along its movement", Form(oblique=False))
variant("pace-gated", "PACE with GGSS's gate", Form(finish=gated), PaceGatedOptions)
variant("pace-norm", "PACE with each token's norm restored", Form(finish=at_its_norm))
variant("pace-slerp", "PACE along the arc instead of the straight line", Form(finish=on_the_arc))
