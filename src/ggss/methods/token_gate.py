"""`ggss-token-gate`: GGSS with its gate calibrated on tokens instead of pooled rows (appendix B, gate calibration).

    median and std of b(h) = |V^T log_mu(h^)| over all tokens h of all discovery images

Subspace, mu and update are those of `ggss`. Tokens are read one image at a time; one number per token is kept.
Zero tokens have no direction and do not count.
"""

import torch

from ggss.activations import Activations
from ggss.errors import InputError
from ggss.methods.geodesic import Geodesic
from ggss.methods.ggss import GgssOptions, calibrated, discover
from ggss.methods.registry import Attribute, Fitted, Method, register
from ggss.methods.spherical import magnitudes
from ggss.progress import track


def fit(activations: Activations, attribute: Attribute, options: GgssOptions) -> Fitted:
    found = discover(activations, attribute, options.k)
    mu, basis = found.frame
    frame = torch.cat([mu[:, None], basis], 1)
    parts = []
    for tokens in track(activations.tokens, "gates of tokens", len(activations)):
        rows = tokens.float()
        parts.append(magnitudes(rows, rows @ frame, mu, basis)[rows.any(1)])
    of_tokens = torch.cat(parts).flatten()
    if not len(of_tokens):
        raise InputError("every token of these activations is zero: there is nothing to calibrate a gate on")
    operator = Geodesic(mu, basis, **calibrated(of_tokens, options))
    return Fitted(operator, found.statistics, found.diagnostics)


register(
    Method(
        name="ggss-token-gate",
        summary="GGSS with the gate calibrated on tokens",
        reference="Sun et al., GGSS: Geodesic-Gated Spherical Steering, appendix B",
        fit=fit,
        options=GgssOptions,
        needs_tokens=True,
    )
)
