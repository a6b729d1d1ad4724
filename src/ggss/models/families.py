"""What is known about each family of VLMs: where visual tokens leave the projector, and which image each belongs to.

A family is one row of a table; the rows of ggss are in `family_*.py`. To add one, write a file that calls
`register(Family(...))`; nothing else changes. The site of a model of an unknown family is found by running the model
(`site_search.py`).

A site is the output of a module, as flat rows [rows of all images, D] in prompt order:

- `projection-mlp2`, the paper's: the last Linear of the vision-to-language projector (if it does not end in one, the
  projector itself);
- `projection-mlp1`: the Linear before it, whose rows reach the text model through the rest of the projector;
- `deepstack-0`, ...: Qwen3-VL's further projectors, whose rows are added to the first decoder layers;
- `vision-block0`, `lm-layer0`, ...: inside the vision tower and the text model of every family (`layer_sites.py`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from ggss.errors import InputError, no_such
from ggss.models.layer_sites import is_layer, layer_path
from ggss.models.sites import MLP1, MLP2
from ggss.plugins import Registry

Inputs = Mapping[str, Tensor]
"""What an image processor returns for a batch of images: pixel values, and sizes or grids with one row per image."""


@dataclass(frozen=True)
class Family:
    """One row of the table. The functions get the transformers model that has the language-model head."""

    name: str
    recognises: Callable[[Any], bool]
    """From a model's config: whether the model is of this family."""
    site_paths: Callable[[Any], dict[str, str]]
    """From a model's config: site name -> module path."""
    rows_per_image: Callable[[Any, Inputs], list[int]]
    """How many flattened site rows each image of the batch owns, in prompt order."""
    pack: Callable[[Any, Sequence[Tensor], Inputs], Sequence[Tensor] | Tensor] | None = None
    """Each image's `projection-mlp2` rows -> its tokens in the text model; None: it cannot answer from features."""
    finish: Callable[[Any, Tensor], Tensor] | None = None
    """`projection-mlp1` rows -> `projection-mlp2` rows: the rest of the projector."""
    batched: bool = True
    """False: `rows_per_image` cannot separate the images of a batch, so they are encoded one at a time."""
    shares_prefix: bool = False
    """Each token of a prompt sees earlier ones only, images included: what prompts begin with alike is computed once
    (`shared_prefix.py`). Set it where a test has shown that answers stay the same."""

    def sites(self, model: Any, which: str | Sequence[str] = MLP2) -> dict[str, str]:
        """Site name -> module path, for one name, several, or "all": every output of a projector."""
        known = self.site_paths(model.config)
        if which == "all":
            return {name: path for name, path in known.items() if name != MLP1}
        names = [which] if isinstance(which, str) else list(which)
        known |= {name: layer_path(model, name) for name in names if is_layer(name)}
        if missing := [name for name in names if name not in known]:
            known_names = ["all", *sorted(known), "lm-layer0", "vision-block0"]
            raise no_such(f"{self.name} has no site {missing[0]!r}", missing[0], known_names)
        return {name: known[name] for name in names}

    def encoder_output(self, model: Any, rows: Sequence[Mapping[str, Tensor]], inputs: Inputs) -> dict[str, Any]:
        """Each image's rows by site -> the fields of the image encoder's output that `forward` reads."""
        if self.pack is None:
            raise InputError(
                f"{self.name} models cannot answer from encoded features: pass the images themselves, "
                "or register a Family that says how features are rebuilt"
            )
        hidden = [image[MLP1] for image in rows if MLP2 not in image]
        finished: Iterator[Tensor] = iter(())
        if hidden and self.finish is not None:
            finished = iter(self.finish(model, torch.cat(hidden)).split([len(image) for image in hidden]))
        projected = [image[MLP2] if MLP2 in image else next(finished) for image in rows]
        packed = self.pack(model, projected, inputs)
        fields: dict[str, Any] = {"pooler_output": packed if isinstance(packed, Tensor) else list(packed)}
        if deepstack := [name for name in self.sites(model, "all") if name.startswith("deepstack-")]:
            fields["deepstack_features"] = [[image[name] for image in rows] for name in deepstack]
        return fields


def _malformed(family: Family) -> str:
    if not isinstance(family, Family):
        return f"it is a {type(family).__name__}, not a ggss.models.Family"
    needed = ("recognises", "site_paths", "rows_per_image")
    missing = [name for name in needed if not callable(getattr(family, name))]
    return f"it needs {' and '.join(missing)}, which is a function" if missing else ""


FAMILIES: Registry[Family] = Registry("model family", "ggss.families", _malformed)


def register(family: Family) -> Family:
    """Add a row to the table. InputError if its name is taken or it is malformed."""
    return FAMILIES.add(getattr(family, "name", ""), family)


def known_family(config: Any) -> Family | None:
    """The registered family that recognises this config (if several do, the last registered), or None."""
    known = (FAMILIES.get(name) for name in reversed(FAMILIES.names()))
    return next((family for family in known if family.recognises(config)), None)


def is_a(config: Any, model_type: str, *towers: str) -> bool:
    """Whether a config is of this type and, if towers are named, has one of them."""
    vision = getattr(config, "vision_config", None)
    return config.model_type == model_type and (not towers or getattr(vision, "model_type", None) in towers)


def verbatim(_model: Any, rows: Sequence[Tensor], _inputs: Inputs) -> Sequence[Tensor]:
    """A `pack`: the text model's image tokens are the site's rows as they are."""
    return rows


def in_one_tensor(_model: Any, rows: Sequence[Tensor], _inputs: Inputs) -> Tensor:
    """A `pack` like `verbatim`, for models that take the tokens of all images as one tensor."""
    return torch.cat(list(rows))[None]


for _rows in ("llava", "qwen", "tiled", "fixed"):
    import_module(f"ggss.models.family_{_rows}")
