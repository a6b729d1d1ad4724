"""The paper's `.pt` checkpoint (appendix A.1, "Saved artifacts"): read and write it, without running any code.

It holds (V_bias, mu, k, b_median, b_std) and, as metadata, the singular values, explained-variance ratios, the
magnitudes b(c) and the size of the discovery set. The paper names the quantities but not the keys; the keys here are
ours, and `V_bias` is [D, k]. The model, the site, kappa and floor are not in the file: the caller gives them.

A `.pt` file of plain data: tensors, numbers, text, lists and dictionaries. It is read without running any code.

`Numbers`, `Whole` and `Real` are types of entries for pydantic: an array, and numbers, which may be tensors of one.

The checkpoints that the authors' discovery script writes: `results/<model>/<layer>[_<attribute>]/<name>.pt`.

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

import io
import os
import warnings
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from torch import Tensor

from ggss.activations import SITE
from ggss.errors import InputError, no_such
from ggss.files import read_bounded, write_whole
from ggss.methods.operator import Operator
from ggss.methods.projection import Euclidean
from ggss.methods.spherical import Geodesic, Tangent
from ggss.models.sites import MLP1, MLP2
from ggss.steering.artefact import Plain, tuples
from ggss.steering.steerer import Steerer

STRICT = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)


def _array(value: Any) -> Tensor:
    """A tensor, or numbers in lists, as dense finite float32."""
    if isinstance(value, list | tuple):
        try:
            value = torch.tensor(value)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise ValueError(f"must be an array of real numbers: {str(error).splitlines()[0]}") from error
    if not isinstance(value, Tensor) or value.dtype == torch.bool or value.is_complex() or value.is_quantized:
        raise ValueError(f"must be an array of real numbers, seen a {getattr(value, 'dtype', type(value).__name__)}")
    if value.layout != torch.strided or value.device.type != "cpu":
        raise ValueError(f"must be a dense array, seen one of {value.layout} on {value.device}")
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        raise ValueError(f"of shape {list(value.shape)} is not stored whole")
    value = value.float().contiguous()
    if not torch.isfinite(value).all():
        raise ValueError("has numbers that are not finite")
    return value


def _number(value: Any) -> Any:
    """The number in a tensor that has only one, else the value itself."""
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 and not value.is_quantized else value


Numbers = Annotated[Tensor, BeforeValidator(_array)]
Whole = Annotated[int, BeforeValidator(_number)]
Real = Annotated[float, BeforeValidator(_number)]


def load_plain(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The dictionary in a file; InputError if there is none, or if reading it would run code."""
    data = read_bounded(path, "the checkpoint")
    try:
        with warnings.catch_warnings(action="ignore"):
            stored = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises a different type for each way in which a file can be broken
        raise InputError(
            f"{str(path)!r} is not a checkpoint that loads without running code ({type(error).__name__})"
        ) from error
    if not isinstance(stored, dict) or not all(isinstance(key, str) for key in stored):
        raise InputError(f"{str(path)!r} holds a {type(stored).__name__}, not a dictionary of named entries")
    return stored


def require(path: str | os.PathLike[str], stored: dict[str, Any], needed: tuple[str, ...]) -> None:
    """InputError if an entry is missing."""
    missing = [key for key in needed if key not in stored]
    if missing:
        raise InputError(f"{str(path)!r} lacks {', '.join(missing)}; it has {', '.join(stored)[:200] or 'nothing'}")


def malformed(path: str | os.PathLike[str], error: ValidationError) -> InputError:
    """The first entries that are not as they should be."""
    wrong = "; ".join(
        f"{'.'.join(map(str, e['loc'][:2]))}: {e['msg'].removeprefix('Value error, ')}" for e in error.errors()[:3]
    )
    return InputError(f"{str(path)!r} is no checkpoint of this layout: {wrong}")


UNNAMED = "unnamed"  # the attribute of a checkpoint that does not say which it is
_PUBLISHED_KEYS = ("V_bias", "mu", "k", "b_median", "b_std")
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
    require(path, stored, _PUBLISHED_KEYS)
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
_RELEASED_KEYS = ("V_bias", "mu_global", "k", "metadata")
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
    require(path, stored, _RELEASED_KEYS)
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
