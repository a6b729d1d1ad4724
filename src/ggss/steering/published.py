"""The paper's `.pt` checkpoint (appendix A.1, "Saved artifacts"): read and write, without running any code.

It holds (V_bias, mu, k, b_median, b_std) and, as metadata, the singular values, explained-variance ratios, the
magnitudes b(c) and the discovery set's sizes. The paper names the quantities but not the keys; these are ours, and
`V_bias` is [D, k]. The model, site and gate options are not in it: the caller gives them.
"""

import os
from typing import Any

import torch
from torch import Tensor

from ggss.activations import SITE
from ggss.errors import InputError
from ggss.methods.geodesic import Geodesic
from ggss.steering.steerer import Steerer

_NEEDED = ("V_bias", "mu", "k", "b_median", "b_std")
_STATISTICS = {
    "singular_values": "singular_values",
    "explained_variance_ratio": "explained_variance",
    "bias_norms": "magnitudes",
}


def write_pt(steerer: Steerer, path: str | os.PathLike[str], site: str = SITE) -> None:
    """Write one site of a gated geodesic steerer in the paper's layout."""
    operator = steerer.operators.get(site)
    if not isinstance(operator, Geodesic):
        raise InputError(f"the .pt layout holds a gated geodesic operator; {steerer.method} at {site} is another")
    statistics = steerer.statistics.get(site, {})
    torch.save(
        {
            "V_bias": operator.basis,
            "mu": operator.mu,
            "k": operator.basis.shape[1],
            "b_median": operator.gate_median,
            "b_std": operator.gate_std,
            **{key: statistics[name] for key, name in _STATISTICS.items() if name in statistics},
            "n_images": steerer.source.get("images"),
            "attribute": steerer.attribute,
            "values": list(steerer.values),
        },
        path,
    )


def read_pt(
    path: str | os.PathLike[str],
    attribute: str | tuple[str, ...] | None = None,
    values: tuple[str, ...] = (),
    site: str = SITE,
    kappa: float = 5.0,
    floor: float = 0.3,
) -> Steerer:
    """Read a checkpoint in the paper's layout; `attribute` and `values` where it does not name them itself."""
    try:
        stored: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises a different type for each way a file can be broken
        raise InputError(f"{str(path)!r} is not a checkpoint that loads without running code: {error}") from error
    missing = [key for key in _NEEDED if key not in stored]
    if missing:
        raise InputError(f"{str(path)!r} lacks {', '.join(missing)}; it has {', '.join(map(str, stored))}")
    basis, mu = torch.as_tensor(stored["V_bias"]).float(), torch.as_tensor(stored["mu"]).float().flatten()
    if basis.shape != (len(mu), int(stored["k"])):
        raise InputError(f"{str(path)!r}: V_bias is {tuple(basis.shape)}, mu and k say ({len(mu)}, {stored['k']})")
    operator = Geodesic(mu, basis.contiguous(), float(stored["b_median"]), float(stored["b_std"]), kappa, floor)
    operator.validate()
    statistics: dict[str, Tensor] = {n: stored[key] for key, n in _STATISTICS.items() if key in stored}
    return Steerer(
        method="ggss",
        attribute=attribute or stored.get("attribute") or "unnamed",
        values=tuple(values or stored.get("values") or ()),
        operators={site: operator},
        options={"k": basis.shape[1], "kappa": kappa, "floor": floor},
        source={"images": stored.get("n_images")},
        statistics={site: statistics},
    )
