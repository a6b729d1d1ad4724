"""The paper's `.pt` checkpoint (appendix A.1, "Saved artifacts"): read and write it, without running any code.

It holds (V_bias, mu, k, b_median, b_std) and, as metadata, the singular values, explained-variance ratios, the
magnitudes b(c) and the size of the discovery set. The paper names the quantities but not the keys; the keys here are
ours, and `V_bias` is [D, k]. The model, the site, kappa and floor are not in the file: the caller gives them.
"""

import io
import math
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ggss.activations import SITE
from ggss.errors import InputError
from ggss.files import write_whole
from ggss.methods.geodesic import Geodesic
from ggss.steering.steerer import Steerer

UNNAMED = "unnamed"  # the attribute of a checkpoint that does not say which it is
_NEEDED = ("V_bias", "mu", "k", "b_median", "b_std")
_STATISTICS = {
    "singular_values": "singular_values",
    "explained_variance_ratio": "explained_variance",
    "bias_norms": "magnitudes",
}


def write_pt(steerer: Steerer, path: str | os.PathLike[str], site: str = SITE) -> None:
    """Write one site of a GGSS steerer in the paper's layout; the file is written completely or not at all."""
    operator = steerer.operators.get(site)
    if operator is None:
        raise InputError(f"this steerer has no site {site!r}; it has {', '.join(steerer.operators)}")
    if not isinstance(operator, Geodesic):
        raise InputError(
            f"the .pt layout is for GGSS's gate and slerp; {steerer.method} at {site} has the operator "
            f"{operator.kind!r}: keep its folder"
        )
    statistics = steerer.statistics.get(site, {})
    stored = {
        "V_bias": operator.basis,
        "mu": operator.mu,
        "k": operator.basis.shape[1],
        "b_median": operator.gate_median,
        "b_std": operator.gate_std,
        **{key: statistics[name] for key, name in _STATISTICS.items() if name in statistics},
        "n_images": steerer.source.get("images"),
        "attribute": steerer.attribute,
        "values": list(steerer.values),
    }
    data = io.BytesIO()
    torch.save(stored, data)
    write_whole(Path(path), data.getvalue())


def read_pt(
    path: str | os.PathLike[str],
    attribute: str | tuple[str, ...] | None = None,
    values: tuple[str, ...] = (),
    site: str = SITE,
    kappa: float = Geodesic.kappa,
    floor: float = Geodesic.floor,
) -> Steerer:
    """Read a checkpoint in the paper's layout.

    attribute, values: what the steerer removes, if the file does not say so itself.
    Raises InputError if the file is not such a checkpoint, or its numbers do not fit together.
    """
    name = repr(str(path))
    stored = _load(path)
    missing = [key for key in _NEEDED if key not in stored]
    if missing:
        raise InputError(f"{name} lacks {', '.join(missing)}; it has {', '.join(map(str, stored)) or 'nothing'}")
    try:
        basis, mu = torch.as_tensor(stored["V_bias"]).float(), torch.as_tensor(stored["mu"]).float().flatten()
        k, median, std = int(stored["k"]), float(stored["b_median"]), float(stored["b_std"])
        statistics: dict[str, Tensor] = {
            n: torch.as_tensor(stored[key]) for key, n in _STATISTICS.items() if stored.get(key) is not None
        }
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InputError(f"{name} has something else where a number or an array should be: {error}") from error
    if basis.shape != (len(mu), k):
        raise InputError(f"{name}: V_bias is {tuple(basis.shape)}, mu and k say ({len(mu)}, {k})")
    if not (torch.isfinite(basis).all() and torch.isfinite(mu).all() and math.isfinite(median + std)):
        raise InputError(f"{name} has numbers that are not finite")
    operator = Geodesic(mu, basis.contiguous(), median, std, kappa, floor)
    try:
        operator.validate()
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    return Steerer(
        method="ggss",
        attribute=attribute or stored.get("attribute") or UNNAMED,
        values=tuple(values or stored.get("values") or ()),
        operators={site: operator},
        options={"k": k, "kappa": kappa, "floor": floor},
        source={"images": stored.get("n_images")},
        statistics={site: statistics},
    )


def _load(path: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises a different type for each way in which a file can be broken
        raise InputError(
            f"{str(path)!r} is not a checkpoint that loads without running code ({type(error).__name__})"
        ) from error
    if not isinstance(stored, dict):
        raise InputError(f"{str(path)!r} holds a {type(stored).__name__}, not a dictionary with {', '.join(_NEEDED)}")
    return stored
