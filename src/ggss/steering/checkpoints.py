"""`.pt` checkpoints: the paper's layout, read and written, and the authors' files, read. No code in a file is run.

**The paper's checkpoint** (appendix A.1, "Saved artifacts") holds (V_bias, mu, k, b_median, b_std) and, as metadata,
the singular values, explained-variance ratios, the magnitudes b(c) and the size of the discovery set. The paper names
the quantities but not the keys; the keys here are ours, and `V_bias` is [D, k]. The model, the site, kappa and floor
are not in the file: the caller gives them.

**The authors' checkpoints** are those that their discovery script writes,
`results/<model>/<layer>[_<attribute>]/<name>.pt`:

    V_bias [D, k], mu_global [D], k, metadata           the Euclidean and the tangent projections
    kappa, gate_floor, bias_median, bias_std            also, where there is a gate

k is None in LEACE's files: the script leaves it to its fit and stores what it was asked for. V_bias has it.

The method of a file is in its name and in `metadata.type`. The site is `metadata.layer_name`; the attribute is the
suffix of the folder after the layer's name, and the folder of the script's first attribute has none. The files do not
name the attribute's values (INLP's do).

`gate_floor` is 0 in every file, because the script stores it before it is chosen: the authors' inference scripts
replace it by an option of theirs, 0.3 in the paper. So 0 counts as not chosen, and becomes 0.3 unless the caller
gives a floor.

Files of MeanDiff hold a pickled scikit-learn estimator, those of BendVLM numpy arrays of Python objects. To read them
is to run code from the file, so they are refused: these methods are fitted again in seconds.

**Entries** are plain data: tensors, numbers, text, lists and dictionaries. `Numbers`, `Integer` and `Real` are their
types for pydantic: an array, and numbers, which may be tensors with one element.
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
UNNAMED = "unnamed"  # the attribute of a checkpoint that does not say which it is
_PUBLISHED_KEYS = ("V_bias", "mu", "k", "b_median", "b_std")
_STATISTICS = {
    "singular_values": "singular_values",
    "explained_variance_ratio": "explained_variance",
    "bias_norms": "magnitudes",
}

# The script's names, and the method here that steers with the same operator. `paired` and `pt` (per token) say how
# V_bias was found.
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
        raise ValueError(f"of shape {list(value.shape)} has more elements than are stored")
    value = value.float().contiguous()
    if not torch.isfinite(value).all():
        raise ValueError("has numbers that are not finite")
    return value


def _number(value: Any) -> Any:
    """The number in a tensor that has only one, else the value itself."""
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 and not value.is_quantized else value


Numbers = Annotated[Tensor, BeforeValidator(_array)]
Integer = Annotated[int, BeforeValidator(_number)]
Real = Annotated[float, BeforeValidator(_number)]


def load_plain(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The dictionary of plain data in a file; InputError if there is none, or if reading it would run code."""
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
    """Raise InputError if an entry is missing."""
    missing = [key for key in needed if key not in stored]
    if missing:
        raise InputError(f"{str(path)!r} lacks {', '.join(missing)}; it has {', '.join(stored)[:200] or 'nothing'}")


def malformed(path: str | os.PathLike[str], error: ValidationError) -> InputError:
    """An error that names the first wrong entries."""
    wrong = "; ".join(
        f"{'.'.join(map(str, e['loc'][:2]))}: {e['msg'].removeprefix('Value error, ')}" for e in error.errors()[:3]
    )
    return InputError(f"{str(path)!r} is no checkpoint of this layout: {wrong}")


class Checkpoint(BaseModel):
    """The entries of the paper's checkpoint that are read; others are ignored."""

    model_config = STRICT

    V_bias: Numbers
    mu: Numbers
    k: Integer
    b_median: Real
    b_std: Real
    singular_values: Numbers | None = None
    explained_variance_ratio: Numbers | None = None
    bias_norms: Numbers | None = None
    n_images: Annotated[Integer, Field(ge=0)] | None = None
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
        checkpoint = Checkpoint.model_validate(stored)
    except ValidationError as error:
        raise malformed(path, error) from None
    mu, k = checkpoint.mu.flatten(), checkpoint.k
    if checkpoint.V_bias.shape != (len(mu), k):
        raise InputError(f"{name}: V_bias is {tuple(checkpoint.V_bias.shape)}, mu and k say ({len(mu)}, {k})")
    try:
        operator = Geodesic(mu, checkpoint.V_bias, checkpoint.b_median, checkpoint.b_std, kappa, floor)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    statistics = {
        statistic: getattr(checkpoint, key)
        for key, statistic in _STATISTICS.items()
        if getattr(checkpoint, key) is not None
    }
    return Steerer(
        method="ggss",
        attribute=attribute or tuples(checkpoint.attribute) or UNNAMED,
        values=tuple(values) or tuples(checkpoint.values),
        operators={site: operator},
        options={"k": k, "kappa": kappa, "floor": floor},
        source={"images": checkpoint.n_images},
        statistics={site: statistics},
    )


class _Metadata(BaseModel):
    model_config = STRICT

    type: str | None = None
    layer_name: str | None = None
    model_name: str | None = None
    classes: list[str] | tuple[str, ...] = ()
    singular_values: Numbers | None = None
    explained_ratio: Numbers | None = None


class _AuthorsCheckpoint(BaseModel):
    """The entries of the authors' checkpoint that are read; others are ignored."""

    model_config = STRICT

    V_bias: Numbers
    mu_global: Numbers
    k: Integer | None
    metadata: _Metadata
    kappa: Real | None = None
    gate_floor: Real | None = None
    bias_median: Real | None = None
    bias_std: Real | None = None


def is_released(path: str | os.PathLike[str]) -> bool:
    """Whether a file has the layout of the authors' script, or is one of its pickled files.

    Raises InputError if it cannot be read for another reason.
    """
    return Path(path).stem in PICKLED or "mu_global" in load_plain(path)


def has_gate(path: str | os.PathLike[str]) -> bool:
    """Whether a file in either layout has the statistics of a gate; False for pickled ones."""
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
        content, method = PICKLED[path.stem]
        raise InputError(
            f"{name} holds {content}, and to read it would run code from the file: fit it again, "
            f"with ggss discover --method {method} and its options in `ggss study new --from release`"
        )
    stored = load_plain(path)
    require(path, stored, _RELEASED_KEYS)
    try:
        checkpoint = _AuthorsCheckpoint.model_validate(stored)
    except ValidationError as error:
        raise malformed(path, error) from None
    gated = "bias_median" in stored
    if gated:
        require(path, stored, _GATE)
    method = _method(path, checkpoint.metadata.type, gated)
    if not gated and (kappa, floor) != (None, None):
        raise InputError(f"{name} has no gate: kappa and floor are for files with one")
    layer = _layer(path, checkpoint.metadata.layer_name)
    gate = _gate(checkpoint, kappa, floor) if gated else {}
    try:
        operator = _operator(method, checkpoint, gate)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    site = site or _site(name, layer)
    return Steerer(
        method=method,
        attribute=attribute or _attribute(path, layer, first_attribute),
        values=values or tuple(checkpoint.metadata.classes),
        operators={site: operator},
        options={"k": operator.tensors()["basis"].shape[1]}
        | {key: gate[key] for key in ("kappa", "floor") if key in gate},
        source={
            "model": checkpoint.metadata.model_name,
            "checkpoint": path.stem,
            **({"stored_floor": checkpoint.gate_floor} if gated else {}),
        },
        statistics={site: _statistics(checkpoint.metadata)},
    )


def _method(path: Path, metadata_type: str | None, gated: bool) -> str:
    """The method, by the name of the file and by its `metadata.type`; the name is the more exact.

    A file with a gate may have the type of the subspace inside it; its method is GGSS unless its name says otherwise.
    """
    methods = [
        READABLE[name] for name in (path.stem, metadata_type) if name in READABLE and gated == (name in GATED_FILES)
    ]
    if gated:
        return methods[0] if methods else "ggss"
    if not methods:
        raise InputError(
            f"{str(path)!r} is of type {metadata_type!r} and has no gate: this version reads {', '.join(READABLE)}"
        )
    if len({_is_euclidean(method) for method in methods}) > 1:
        raise InputError(
            f"{str(path)!r} is of type {metadata_type!r}, which does not steer as {path.stem!r} does: rename the file"
        )
    return methods[0]


def _is_euclidean(method: str) -> bool:
    return method.endswith("-euclidean")


def _operator(method: str, checkpoint: _AuthorsCheckpoint, gate: dict[str, float]) -> Operator:
    mu, basis = checkpoint.mu_global.flatten(), checkpoint.V_bias
    k = basis.shape[-1] if checkpoint.k is None and basis.ndim == 2 else checkpoint.k
    if basis.shape != (len(mu), k):
        raise InputError(f"V_bias is {tuple(basis.shape)}, mu_global and k say ({len(mu)}, {k})")
    if gate:
        return Geodesic(mu, basis, **gate)
    return Euclidean(mu, basis) if _is_euclidean(method) else Tangent.orthogonal(mu, basis)


def _gate(checkpoint: _AuthorsCheckpoint, kappa: float | None, floor: float | None) -> dict[str, Any]:
    return {
        "gate_median": checkpoint.bias_median,
        "gate_std": checkpoint.bias_std,
        "kappa": checkpoint.kappa if kappa is None else kappa,
        "floor": (checkpoint.gate_floor or Geodesic.floor) if floor is None else floor,
    }


def _layer(path: Path, layer_name: str | None) -> str:
    return layer_name or path.absolute().parent.name


def _site(name: str, layer: str) -> str:
    if layer in (MLP1, MLP2) or layer.startswith("deepstack-"):
        return layer
    raise InputError(
        f"{name} steers at {layer!r}, which is no site here: give the site (--site) where these rows are, as {MLP2}"
    )


def _attribute(path: Path, layer: str, first: str | None) -> str:
    """The attribute: the suffix of the folder's name after the layer's, or `first` for a folder without one."""
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
    statistics = {"singular_values": metadata.singular_values, "explained_variance": metadata.explained_ratio}
    return {name: tensor for name, tensor in statistics.items() if tensor is not None}
