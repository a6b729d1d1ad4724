"""The checkpoints that the authors' discovery script writes: `results/<model>/<layer>[_<attribute>]/<name>.pt`.

    V_bias [D, k], mu_global [D], k, metadata           the flat and the tangent projections
    kappa, gate_floor, bias_median, bias_std            also, where there is a gate

How a file steers is in its name and in `metadata.type`. The site is `metadata.layer_name`; the attribute is
the suffix of the folder after the layer's name, and the folder of the script's first attribute has none. The files do
not name the attribute's values (INLP's do).

`gate_floor` is 0 in every file, because the script stores it before it is chosen: the authors' inference scripts
replace it by an option of theirs, 0.3 in the paper. So 0 counts as not chosen, and becomes 0.3 unless the caller
gives a floor.

Files of MeanDiff hold a pickled scikit-learn estimator, those of BendVLM numpy arrays of Python objects. To read them
is to run code from the file, so they are refused: these methods are fitted again in seconds.
"""

import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from torch import Tensor

from ggss.errors import InputError
from ggss.methods.euclidean import Euclidean
from ggss.methods.geodesic import Geodesic
from ggss.methods.operator import Operator
from ggss.methods.tangent import Tangent
from ggss.models.sites import MLP1, MLP2
from ggss.steering.plain_pt import STRICT, Numbers, Real, Whole, load_plain, malformed, require
from ggss.steering.steerer import Steerer

# The script's names, and the method here that steers with the same operator. `paired` and `pt` (per token) are about
# how V_bias was found.
READABLE = {
    "geo_svd": "svd-pooled-euclidean",
    "sph_svd": "svd-pooled-spherical",
    "paired_geo": "svd-pooled-euclidean",
    "paired_sph": "svd-pooled-spherical",
    "paired_pt_geo": "svd-token-euclidean",
    "paired_pt_sph": "svd-token-spherical",
    "per_token_geo": "svd-token-euclidean",
    "per_token_sph": "svd-token-spherical",
    "inlp_geo": "inlp-euclidean",
    "inlp_sph": "inlp-spherical",
    "leace_sph": "leace-spherical",
    "geodesic_gated": "ggss",
    "geodesic_gated_pt": "ggss",
    "leace_geodesic_gated": "leace-gated",
}
PICKLED = {
    "mean_diff_geo": ("a pickled scikit-learn estimator", "meandiff-svm-euclidean"),
    "mean_diff_sph": ("a pickled scikit-learn estimator", "meandiff-svm-spherical"),
    "mean_diff_lr_geo": ("a pickled scikit-learn estimator", "meandiff-lr-euclidean"),
    "mean_diff_lr_sph": ("a pickled scikit-learn estimator", "meandiff-lr-spherical"),
    "bendvlm_geo": ("pickled numpy arrays", "bend-euclidean"),
    "bendvlm_sph": ("pickled numpy arrays", "bend-spherical"),
}
GATED_FILES = tuple(name for name, method in READABLE.items() if method in ("ggss", "leace-gated"))
_NEEDED = ("V_bias", "mu_global", "k", "metadata")
_GATE = ("kappa", "gate_floor", "bias_median", "bias_std")


class _Metadata(BaseModel):
    model_config = STRICT

    type: str | None = None
    layer_name: str | None = None
    model_name: str | None = None
    classes: list[str] | tuple[str, ...] = ()
    singular_values: Numbers | None = None
    explained_ratio: Numbers | None = None


class _Released(BaseModel):
    model_config = STRICT

    V_bias: Numbers
    mu_global: Numbers
    k: Whole
    metadata: _Metadata
    kappa: Real | None = None
    gate_floor: Real | None = None
    bias_median: Real | None = None
    bias_std: Real | None = None


def is_released(path: str | os.PathLike[str]) -> bool:
    """Whether a file has the script's layout, or is one of those that cannot be read.

    Raises InputError if it cannot be read for another reason.
    """
    return Path(path).stem in PICKLED or "mu_global" in load_plain(path)


def has_gate(path: str | os.PathLike[str]) -> bool:
    """Whether a file, of this layout or the paper's, has the statistics of a gate; False for pickled ones."""
    return Path(path).stem not in PICKLED and not {"bias_median", "b_median"}.isdisjoint(load_plain(path))


def read_released(
    path: str | os.PathLike[str],
    attribute: str | None = None,
    first_attribute: str | None = None,
    values: tuple[str, ...] = (),
    site: str | None = None,
    kappa: float | None = None,
    floor: float | None = None,
) -> Steerer:
    """Read one of the authors' checkpoints.

    attribute, values, site: instead of what the folder and the file say. first_attribute: that of a folder without a
    suffix. kappa, floor: instead of the file's; for files with a gate.
    Raises InputError if the file cannot be read without running code, or its numbers do not fit together.
    """
    path = Path(path)
    name = repr(str(path))
    if path.stem in PICKLED:
        what, method = PICKLED[path.stem]
        raise InputError(
            f"{name} holds {what}, and to read it would run code from the file: fit it again, "
            f"with ggss discover --method {method}"
        )
    stored = load_plain(path)
    require(path, stored, _NEEDED)
    try:
        found = _Released.model_validate(stored)
    except ValidationError as error:
        raise malformed(path, error) from None
    gated = "bias_median" in stored
    if gated:
        require(path, stored, _GATE)
    method = _method(path, found.metadata.type, gated)
    if not gated and (kappa, floor) != (None, None):
        raise InputError(f"{name} has no gate: kappa and floor are for files with one")
    layer = _layer(path, found.metadata.layer_name)
    gate = _gate(found, kappa, floor) if gated else {}
    try:
        operator = _operator(method, found, gate)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    chosen = site or _site(name, layer)
    return Steerer(
        method=method,
        attribute=attribute or _attribute(path, layer, first_attribute),
        values=values or tuple(found.metadata.classes),
        operators={chosen: operator},
        options={"k": found.k} | {key: gate[key] for key in ("kappa", "floor") if key in gate},
        source={
            "model": found.metadata.model_name,
            "checkpoint": path.stem,
            **({"stored_floor": found.gate_floor} if gated else {}),
        },
        statistics={chosen: _statistics(found.metadata)},
    )


def _method(path: Path, written: str | None, gated: bool) -> str:
    """By the name of the file and by its `metadata.type`, of which the name is the more exact.

    A file with a gate may have the type of the subspace inside it; it is GGSS's unless its name says otherwise.
    """
    known = [READABLE[name] for name in (path.stem, written) if name in READABLE and gated == (name in GATED_FILES)]
    if gated:
        return known[0] if known else "ggss"
    if not known:
        raise InputError(
            f"{str(path)!r} is of type {written!r} and has no gate: this version reads {', '.join(READABLE)}"
        )
    if len({_flat(method) for method in known}) > 1:
        raise InputError(
            f"{str(path)!r} is of type {written!r}, which does not steer as {path.stem!r} does: give it its true name"
        )
    return known[0]


def _flat(method: str) -> bool:
    return method.endswith("-euclidean")


def _operator(method: str, found: _Released, gate: dict[str, float]) -> Operator:
    mu, basis = found.mu_global.flatten(), found.V_bias
    if basis.shape != (len(mu), found.k):
        raise InputError(f"V_bias is {tuple(basis.shape)}, mu_global and k say ({len(mu)}, {found.k})")
    if gate:
        return Geodesic(mu, basis, **gate)
    return Euclidean(mu, basis) if _flat(method) else Tangent.orthogonal(mu, basis)


def _gate(found: _Released, kappa: float | None, floor: float | None) -> dict[str, Any]:
    return {
        "gate_median": found.bias_median,
        "gate_std": found.bias_std,
        "kappa": found.kappa if kappa is None else kappa,
        "floor": (found.gate_floor or Geodesic.floor) if floor is None else floor,
    }


def _layer(path: Path, written: str | None) -> str:
    return written or path.absolute().parent.name


def _site(name: str, layer: str) -> str:
    if layer in (MLP1, MLP2) or layer.startswith("deepstack-"):
        return layer
    raise InputError(
        f"{name} steers at {layer!r}, which is no site here: give the site (--site) where these rows are, as {MLP2}"
    )


def _attribute(path: Path, layer: str, first: str | None) -> str:
    """The suffix of the folder's name after the layer's."""
    folder = path.absolute().parent.name
    if folder.startswith(f"{layer}_") and (suffix := folder.removeprefix(f"{layer}_")):
        return suffix
    if folder == layer and first:
        return first
    raise InputError(
        f"{str(path)!r} does not say which attribute it removes, nor is it in a folder that does, such as {layer!r}: "
        "give the attribute (--attribute)"
    )


def _statistics(metadata: _Metadata) -> dict[str, Tensor]:
    found = {"singular_values": metadata.singular_values, "explained_variance": metadata.explained_ratio}
    return {name: tensor for name, tensor in found.items() if tensor is not None}
