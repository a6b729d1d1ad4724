"""The paper's `.pt` checkpoint (appendix A.1, "Saved artifacts"): read and write it, without running any code.

It holds (V_bias, mu, k, b_median, b_std) and, as metadata, the singular values, explained-variance ratios, the
magnitudes b(c) and the size of the discovery set. The paper names the quantities but not the keys; the keys here are
ours, and `V_bias` is [D, k]. The model, the site, kappa and floor are not in the file: the caller gives them.
"""

import io
import os
from pathlib import Path
from typing import Annotated

import torch
from pydantic import BaseModel, Field, ValidationError

from ggss.activations import SITE
from ggss.errors import InputError, no_such
from ggss.files import write_whole
from ggss.methods.geodesic import Geodesic
from ggss.steering.description import Plain, tuples
from ggss.steering.plain_pt import STRICT, Numbers, Real, Whole, load_plain, malformed, require
from ggss.steering.steerer import Steerer

UNNAMED = "unnamed"  # the attribute of a checkpoint that does not say which it is
_NEEDED = ("V_bias", "mu", "k", "b_median", "b_std")
_STATISTICS = {
    "singular_values": "singular_values",
    "explained_variance_ratio": "explained_variance",
    "bias_norms": "magnitudes",
}


class Checkpoint(BaseModel):
    """What is read of the file; other entries are left alone."""

    model_config = STRICT

    V_bias: Numbers
    mu: Numbers
    k: Whole
    b_median: Real
    b_std: Real
    singular_values: Numbers | None = None
    explained_variance_ratio: Numbers | None = None
    bias_norms: Numbers | None = None
    n_images: Annotated[Whole, Field(ge=0)] | None = None
    attribute: str | tuple[str, ...] | list[str] | None = None
    values: list[Plain | tuple[Plain, ...] | list[Plain]] | tuple[Plain | tuple[Plain, ...] | list[Plain], ...] = ()


def write_pt(steerer: Steerer, path: str | os.PathLike[str], site: str = SITE) -> None:
    """Write one site of a GGSS steerer in the paper's layout; the file is written completely or not at all."""
    operator = steerer.operators.get(site)
    if operator is None:
        raise no_such(f"this steerer has no site {site!r}", site, steerer.operators)
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
    stored = load_plain(path)
    require(path, stored, _NEEDED)
    try:
        found = Checkpoint.model_validate(stored)
    except ValidationError as error:
        raise malformed(path, error) from None
    mu, k = found.mu.flatten(), found.k
    if found.V_bias.shape != (len(mu), k):
        raise InputError(f"{name}: V_bias is {tuple(found.V_bias.shape)}, mu and k say ({len(mu)}, {k})")
    try:
        operator = Geodesic(mu, found.V_bias, found.b_median, found.b_std, kappa, floor)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    statistics = {own: getattr(found, key) for key, own in _STATISTICS.items() if getattr(found, key) is not None}
    return Steerer(
        method="ggss",
        attribute=attribute or tuples(found.attribute) or UNNAMED,
        values=tuple(values) or tuples(found.values),
        operators={site: operator},
        options={"k": k, "kappa": kappa, "floor": floor},
        source={"images": found.n_images},
        statistics={site: statistics},
    )
