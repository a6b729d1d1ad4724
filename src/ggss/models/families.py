"""What is known about each family of VLMs: where visual tokens leave the projector, and which image each belongs to.

A family is one row of a table. To add one, write a file that calls `register(Family(...))`; nothing else changes.
The site of a model of an unknown family is found by running the model (`site_search.py`).

A site is the output of a module, as flat rows [rows of all images, D] in prompt order:

- `projection-mlp2`, the paper's: the last Linear of the vision-to-language projector;
- `projection-mlp1`: the Linear before it, whose rows reach the text model through the rest of the projector;
- `deepstack-0`, ...: Qwen3-VL's further projectors, whose rows are added to the first decoder layers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ggss.errors import InputError, no_such
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
    pack: Callable[[Any, Sequence[Tensor], Inputs], Sequence[Tensor]] | None = None
    """Each image's `projection-mlp2` rows -> its tokens in the text model; None: it cannot answer from features."""
    finish: Callable[[Any, Tensor], Tensor] | None = None
    """`projection-mlp1` rows -> `projection-mlp2` rows: the rest of the projector."""
    batched: bool = True
    """False: `rows_per_image` cannot separate the images of a batch, so they are encoded one at a time."""

    def sites(self, model: Any, which: str | Sequence[str] = MLP2) -> dict[str, str]:
        """Site name -> module path, for one name, several, or "all": every output of a projector."""
        known = self.site_paths(model.config)
        if which == "all":
            return {name: path for name, path in known.items() if name != MLP1}
        names = [which] if isinstance(which, str) else list(which)
        if missing := [name for name in names if name not in known]:
            raise no_such(f"{self.name} has no site {missing[0]!r}", missing[0], ["all", *sorted(known)])
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
        fields: dict[str, Any] = {"pooler_output": list(self.pack(model, projected, inputs))}
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


def _is(config: Any, model_type: str, tower: str | None = None) -> bool:
    vision = getattr(config, "vision_config", None)
    return config.model_type == model_type and tower in (None, getattr(vision, "model_type", None))


_LLAVA_SITES = {
    MLP1: "model.multi_modal_projector.linear_1",
    MLP2: "model.multi_modal_projector.linear_2",
}


def _llava_finish(model: Any, rows: Tensor) -> Tensor:
    projector = model.base_model.multi_modal_projector
    return projector.linear_2(projector.act(rows))


def _llava_next_tiles(model: Any, inputs: Inputs) -> list[int]:
    from transformers.models.llava_next.modeling_llava_next import image_size_to_num_patches

    config = model.config
    side = config.vision_config.image_size
    return [image_size_to_num_patches(size, config.image_grid_pinpoints, side) for size in inputs["image_sizes"]]


def _llava_next_rows(model: Any, inputs: Inputs) -> list[int]:
    config, vision = model.config, model.config.vision_config
    patches = (vision.image_size // vision.patch_size) ** 2
    class_token = vision.model_type == "clip_vision_model"
    rows = patches + class_token - (config.vision_feature_select_strategy == "default")
    return [tiles * rows for tiles in _llava_next_tiles(model, inputs)]


def _llava_next_pack(model: Any, rows: Sequence[Tensor], inputs: Inputs) -> Sequence[Tensor]:
    # This drops the rows that are padding and adds a newline token after each line of the tiles.
    tiles = _llava_next_tiles(model, inputs)
    tokens, _ = model.base_model.pack_image_features(
        [image.unflatten(0, (count, -1)) for image, count in zip(rows, tiles, strict=True)],
        inputs["image_sizes"],
        vision_feature_select_strategy=model.config.vision_feature_select_strategy,
        image_newline=model.base_model.image_newline,
    )
    return tokens


def _pixtral_rows(model: Any, inputs: Inputs) -> list[int]:
    return (inputs["image_sizes"] // model.config.vision_config.patch_size).prod(-1).tolist()


def _qwen3_vl_sites(config: Any) -> dict[str, str]:
    deepstack = range(len(config.vision_config.deepstack_visual_indexes))
    return {
        MLP1: "model.visual.merger.linear_fc1",
        MLP2: "model.visual.merger.linear_fc2",
        **{f"deepstack-{i}": f"model.visual.deepstack_merger_list.{i}.linear_fc2" for i in deepstack},
    }


def _qwen3_vl_rows(model: Any, inputs: Inputs) -> list[int]:
    return (inputs["image_grid_thw"].prod(-1) // model.config.vision_config.spatial_merge_size**2).tolist()


def _qwen3_vl_finish(model: Any, rows: Tensor) -> Tensor:
    merger = model.base_model.visual.merger
    return merger.linear_fc2(merger.act_fn(rows))


def verbatim(_model: Any, rows: Sequence[Tensor], _inputs: Inputs) -> Sequence[Tensor]:
    """The text model's image tokens are the site's rows as they are."""
    return rows


register(
    Family(
        "LLaVA-NeXT",
        recognises=lambda config: _is(config, "llava_next"),
        site_paths=lambda _: dict(_LLAVA_SITES),
        rows_per_image=_llava_next_rows,
        pack=_llava_next_pack,
        finish=_llava_finish,
    )
)
register(
    Family(
        "Pixtral",
        recognises=lambda config: _is(config, "llava", tower="pixtral"),
        site_paths=lambda _: dict(_LLAVA_SITES),
        rows_per_image=_pixtral_rows,
        pack=verbatim,
        finish=_llava_finish,
    )
)
register(
    Family(
        "Qwen3-VL",
        recognises=lambda config: _is(config, "qwen3_vl"),
        site_paths=_qwen3_vl_sites,
        rows_per_image=_qwen3_vl_rows,
        pack=verbatim,
        finish=_qwen3_vl_finish,
    )
)
