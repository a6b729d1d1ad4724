"""Families of VLMs: where visual tokens leave the projector, and which image each belongs to.

A family is one row of a table. To add one, write a file that calls `register(Family(...))`; nothing else changes. For
a model of an unknown family the site is searched by running the model (`site_search.py`).

A site is the output of a module, as flat rows [rows of all images, D] in prompt order:

- `projection-mlp2`, the paper's: the last Linear of the vision-to-language projector (if it does not end in one, the
  projector itself);
- `projection-mlp1`: the Linear before it, whose rows reach the text model through the rest of the projector;
- `deepstack-0`, ...: Qwen3-VL's further projectors, whose rows are added to the first decoder layers;
- `vision-block0`, `lm-layer0`, ...: inside the vision tower and the text model of every family (`sites`).

How the rows of an image are counted differs:

- LLaVA, PaliGemma, Janus and DeepSeek-VL resize every image to a square: all images have the same number of rows;
- LLaVA-NeXT and LLaVA-OneVision cut an image into tiles, as many as follow from its size;
- Pixtral, Qwen-VL and GLM-V take images of any size and merge patches: the size or grid of an image gives its rows;
- InternVL, Aya Vision, Idefics3 and others cut an image into tiles or crops, and only the processor knows how many.
  They have a row for each image token, so these are counted in the prompt (`prompts.rows_by_tokens`). A batch that
  ggss did not prepare is refused where images must be told apart.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ggss.errors import InputError, no_such
from ggss.models.prompts import rows_by_tokens
from ggss.models.sites import MLP1, MLP2, is_layer, layer_path
from ggss.plugins import Registry

Inputs = Mapping[str, Tensor]
"""What an image processor returns for a batch of images: pixel values, and sizes or grids with one row per image."""

SITES = {
    MLP1: "model.multi_modal_projector.linear_1",
    MLP2: "model.multi_modal_projector.linear_2",
}
"""Of LLaVA and the families with the same projector."""


@dataclass(frozen=True)
class Family:
    """A row of the table. Its functions get the transformers model with the language-model head."""

    name: str
    recognises: Callable[[Any], bool]
    """Config -> whether the model is of this family."""
    site_paths: Callable[[Any], dict[str, str]]
    """Config -> {site name: module path}."""
    rows_per_image: Callable[[Any, Inputs], list[int]]
    """How many flat rows of the site each image of the batch has, in prompt order."""
    pack: Callable[[Any, Sequence[Tensor], Inputs], Sequence[Tensor] | Tensor] | None = None
    """Each image's `projection-mlp2` rows -> its tokens in the text model; None: it cannot answer from features."""
    finish: Callable[[Any, Tensor], Tensor] | None = None
    """`projection-mlp1` rows -> `projection-mlp2` rows: the rest of the projector."""
    grid: Callable[[Any, Inputs], Tensor | None] | None = None
    """One image's inputs -> [rows of the site, 3]: each row's pane, line and column. None: they are not known."""
    batched: bool = True
    """False: `rows_per_image` cannot separate the images of a batch, so they are encoded one at a time."""
    shares_prefix: bool = False
    """Attention is causal, for image tokens too, so the common beginning of several prompts is computed once
    (`prefix.SharedPrefix`). Set it only where a test has shown that answers stay the same."""

    def sites(self, model: Any, which: str | Sequence[str] = MLP2) -> dict[str, str]:
        """Site name -> module path, for one name, several, or "all": every output of a projector."""
        paths = self.site_paths(model.config)
        if which == "all":
            return {name: path for name, path in paths.items() if name != MLP1}
        names = [which] if isinstance(which, str) else list(which)
        paths |= {name: layer_path(model, name) for name in names if is_layer(name)}
        if missing := [name for name in names if name not in paths]:
            choices = ["all", *sorted(paths), "lm-layer0", "vision-block0"]
            raise no_such(f"{self.name} has no site {missing[0]!r}", missing[0], choices)
        return {name: paths[name] for name in names}

    def seen(self, model: Any, count: int, inputs: Inputs) -> Tensor:
        """Which of one image's `projection-mlp2` rows the text model gets, [count]; all if that is not known.

        LLaVA-NeXT drops the rows of padding after the site. `pack` is linear in the rows, so a row that it drops has
        no gradient.
        """
        if self.pack is None or self.pack in (verbatim, in_one_tensor):
            return torch.ones(count, dtype=torch.bool)
        with torch.inference_mode(False), torch.enable_grad():
            width = model.config.get_text_config().hidden_size
            probe = torch.ones(count, width, device=model.device, requires_grad=True)
            packed = self.pack(model, [probe], {name: value.clone() for name, value in inputs.items()})
            total = torch.stack([tokens.float().sum() for tokens in packed]).sum()
            (gradient,) = torch.autograd.grad(total, probe)
        return gradient.ne(0).any(1).cpu()

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
    required = ("recognises", "site_paths", "rows_per_image")
    missing = [name for name in required if not callable(getattr(family, name))]
    return f"it needs {' and '.join(missing)}, which is a function" if missing else ""


FAMILIES: Registry[Family] = Registry("model family", "ggss.families", _malformed)
register = FAMILIES.register


def known_family(config: Any) -> Family | None:
    """The registered family that recognises this config (if several do, the last registered), or None."""
    families = (FAMILIES.get(name) for name in reversed(FAMILIES.names()))
    return next((family for family in families if family.recognises(config)), None)


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


def finish(model: Any, rows: Tensor) -> Tensor:
    """The rest of LLaVA's projector, after its first Linear."""
    projector = model.base_model.multi_modal_projector
    return projector.linear_2(projector.act(rows))


def tower_rows(model: Any) -> int:
    """The rows of one square of `image_size` pixels.

    CLIP has a class token before its patches; the strategy "default" drops the first row, which is that token.
    """
    vision = model.config.vision_config
    dropped = model.config.vision_feature_select_strategy == "default"
    return (vision.image_size // vision.patch_size) ** 2 + (vision.model_type == "clip_vision_model") - dropped


def _tiles(model: Any, inputs: Inputs) -> list[int]:
    from transformers.models.llava_next.modeling_llava_next import image_size_to_num_patches

    config, side = model.config, model.config.vision_config.image_size
    # LLaVA-OneVision does not tile the images of a prompt that has several.
    prompts = inputs.get("batch_num_images")
    sizes = inputs["image_sizes"]
    tiled = [True] * len(sizes) if prompts is None else [int(n) == 1 for n in prompts for _ in range(int(n))]
    return [
        image_size_to_num_patches(size, config.image_grid_pinpoints, side) if is_tiled else 1
        for size, is_tiled in zip(sizes, tiled, strict=True)
    ]


def _rows_of_tiles(model: Any, inputs: Inputs) -> list[int]:
    return [tiles * tower_rows(model) for tiles in _tiles(model, inputs)]


def _next_pack(model: Any, rows: Sequence[Tensor], inputs: Inputs) -> Sequence[Tensor]:
    # `pack_image_features` drops padding rows and adds a newline token after each line of the tiles.
    strategy = model.config.vision_feature_select_strategy
    return _packed(model, rows, inputs, vision_feature_select_strategy=strategy)


def _onevision_pack(model: Any, rows: Sequence[Tensor], inputs: Inputs) -> Sequence[Tensor]:
    return _packed(model, rows, inputs, vision_aspect_ratio=model.config.vision_aspect_ratio)


def _packed(model: Any, rows: Sequence[Tensor], inputs: Inputs, **settings: Any) -> Sequence[Tensor]:
    tiles = _tiles(model, inputs)
    tokens, _ = model.base_model.pack_image_features(
        [image.unflatten(0, (count, -1)) for image, count in zip(rows, tiles, strict=True)],
        inputs["image_sizes"],
        image_newline=model.base_model.image_newline,
        **settings,
    )
    return tokens


def _square_rows(model: Any, inputs: Inputs) -> list[int]:
    """Each image is one square, and the tower may add a class token."""
    return [tower_rows(model)] * len(inputs["pixel_values"])


def _patch_rows(model: Any, inputs: Inputs) -> list[int]:
    """Each image is one square, and has a row for each patch."""
    vision = model.config.vision_config
    return [(vision.image_size // vision.patch_size) ** 2] * len(inputs["pixel_values"])


def _pixtral_rows(model: Any, inputs: Inputs) -> list[int]:
    merged = getattr(model.config, "spatial_merge_size", 1)  # Mistral 3 merges patches
    return (inputs["image_sizes"] // (model.config.vision_config.patch_size * merged)).prod(-1).tolist()


def line_by_line(lines: int, columns: int, pane: int = 0) -> Tensor:
    """The grid [lines * columns, 3] of a pane whose rows come line by line."""
    return torch.cartesian_prod(torch.tensor([pane]), torch.arange(lines), torch.arange(columns))


def _square_grid(model: Any, _inputs: Inputs) -> Tensor | None:
    side = model.config.vision_config.image_size // model.config.vision_config.patch_size
    return line_by_line(side, side)


def _tile_grid(model: Any, inputs: Inputs) -> Tensor | None:
    """The overview is the first pane; the tiles, each line by line, are the second."""
    from transformers.models.llava_next.modeling_llava_next import get_anyres_image_grid_shape

    side = model.config.vision_config.image_size
    patches = side // model.config.vision_config.patch_size
    overview = line_by_line(patches, patches)
    down, across = get_anyres_image_grid_shape(
        inputs["image_sizes"][0].tolist(), model.config.image_grid_pinpoints, side
    )
    tiles = [
        line_by_line(patches, patches, 1) + torch.tensor([0, tile_line * patches, tile_column * patches])
        for tile_line in range(down)
        for tile_column in range(across)
    ]
    return torch.cat([overview, *tiles])


def _pixtral_grid(model: Any, inputs: Inputs) -> Tensor:
    merged = getattr(model.config, "spatial_merge_size", 1)
    lines, columns = (inputs["image_sizes"][0] // (model.config.vision_config.patch_size * merged)).tolist()
    return line_by_line(lines, columns)


for _name, _type, _towers, _rows, _pack, _grid in (
    ("LLaVA-1.5", "llava", ("clip_vision_model", "siglip_vision_model"), _square_rows, verbatim, _square_grid),
    ("VipLLaVA", "vipllava", ("clip_vision_model",), _patch_rows, in_one_tensor, _square_grid),
    ("LLaVA-NeXT", "llava_next", (), _rows_of_tiles, _next_pack, _tile_grid),
    ("LLaVA-OneVision", "llava_onevision", (), _rows_of_tiles, _onevision_pack, _tile_grid),
    ("Pixtral", "llava", ("pixtral",), _pixtral_rows, verbatim, _pixtral_grid),
    ("Mistral 3", "mistral3", ("pixtral",), _pixtral_rows, verbatim, _pixtral_grid),
):
    register(
        Family(
            _name,
            recognises=lambda config, kind=_type, towers=_towers: is_a(config, kind, *towers),
            site_paths=lambda _: dict(SITES),
            rows_per_image=_rows,
            pack=_pack,
            finish=finish,
            grid=_grid,
            shares_prefix=True,
        )
    )


def _grid_rows(model: Any, inputs: Inputs) -> list[int]:
    return (inputs["image_grid_thw"].prod(-1) // model.config.vision_config.spatial_merge_size**2).tolist()


def _merged_grid(model: Any, inputs: Inputs) -> Tensor:
    frames, lines, columns = inputs["image_grid_thw"][0].tolist()
    merge = model.config.vision_config.spatial_merge_size
    return torch.cat([line_by_line(lines // merge, columns // merge, frame) for frame in range(frames)])


def _window_grid(model: Any, inputs: Inputs) -> Tensor:
    """Qwen2.5-VL's rows come window by window."""
    grid = _merged_grid(model, inputs)
    (numbers,) = _out_of_windows(model, [torch.arange(len(grid))[:, None]], inputs)
    return grid[numbers.flatten().argsort()]


def _qwen2_finish(model: Any, rows: Tensor) -> Tensor:
    mlp = model.base_model.visual.merger.mlp
    return mlp[2](mlp[1](rows))


def _qwen3_finish(model: Any, rows: Tensor) -> Tensor:
    merger = model.base_model.visual.merger
    return merger.linear_fc2(merger.act_fn(rows))


def _qwen3_sites(config: Any) -> dict[str, str]:
    deepstack = range(len(getattr(config.vision_config, "deepstack_visual_indexes", None) or ()))
    return {
        MLP1: "model.visual.merger.linear_fc1",
        MLP2: "model.visual.merger.linear_fc2",
        **{f"deepstack-{i}": f"model.visual.deepstack_merger_list.{i}.linear_fc2" for i in deepstack},
    }


def _out_of_windows(model: Any, rows: Sequence[Tensor], inputs: Inputs) -> Sequence[Tensor]:
    """Qwen2.5-VL's tower and merger see an image window by window; the text model sees it line by line."""
    from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl

    qwen: Any = modeling_qwen2_5_vl
    visual = model.base_model.visual
    tokens = []
    for image, grid in zip(rows, inputs["image_grid_thw"], strict=True):
        if hasattr(qwen, "get_vision_window_index"):
            sizes = (visual.spatial_merge_size, visual.window_size, visual.patch_size)
            options = dict(zip(("spatial_merge_size", "window_size", "patch_size"), sizes, strict=True))
            order, _ = qwen.get_vision_window_index(grid[None], **options)
        else:  # earlier versions of transformers
            order, _ = visual.get_window_index(grid[None])
        tokens.append(image[torch.argsort(torch.as_tensor(order, device=image.device))])
    return tokens


for _name, _type, _pack, _grid in (
    ("Qwen2-VL", "qwen2_vl", verbatim, _merged_grid),
    ("Qwen2.5-VL", "qwen2_5_vl", _out_of_windows, _window_grid),
):
    register(
        Family(
            _name,
            recognises=lambda config, kind=_type: is_a(config, kind),
            site_paths=lambda _: {MLP1: "model.visual.merger.mlp.0", MLP2: "model.visual.merger.mlp.2"},
            rows_per_image=_grid_rows,
            pack=_pack,
            finish=_qwen2_finish,
            grid=_grid,
            shares_prefix=True,
        )
    )

for _name, _type in (
    ("Qwen3-VL", "qwen3_vl"),
    ("Qwen3-VL-MoE", "qwen3_vl_moe"),
    ("Qwen3.5", "qwen3_5"),
    ("Qwen3.5-MoE", "qwen3_5_moe"),
):
    register(
        Family(
            _name,
            recognises=lambda config, kind=_type: is_a(config, kind),
            site_paths=_qwen3_sites,
            rows_per_image=_grid_rows,
            pack=verbatim,
            finish=_qwen3_finish,
            grid=_merged_grid,
            shares_prefix=_type.startswith("qwen3_vl"),  # Qwen3.5's linear attention keeps one state of all tokens
        )
    )

for _name, _type in (("GLM-4V", "glm4v"), ("GLM-4V-MoE", "glm4v_moe"), ("GLM-4.6V", "glm46v")):
    register(
        Family(
            _name,
            recognises=lambda config, kind=_type: is_a(config, kind),
            # Before the last Linear are two, multiplied with each other: there is no `projection-mlp1`.
            site_paths=lambda _: {MLP2: "model.visual.merger.down_proj"},
            rows_per_image=_grid_rows,
            pack=verbatim,
            grid=_merged_grid,
            shares_prefix=True,
        )
    )


def _gated_finish(model: Any, rows: Tensor) -> Tensor:
    projector = model.base_model.multi_modal_projector
    values, gate = rows.chunk(2, dim=-1)
    return projector.linear_2(projector.act(gate) * values)


def _in_tiles(model: Any, rows: Sequence[Tensor], _inputs: Inputs) -> Tensor:
    """[tiles of all images, rows of a tile, D]: some versions of transformers look at this shape."""
    config, vision = model.config, model.config.vision_config
    return torch.cat(list(rows)).unflatten(
        0, (-1, (vision.image_size // vision.patch_size // config.scale_factor) ** 2)
    )


register(
    Family(
        "InternVL",
        recognises=lambda config: is_a(config, "internvl"),
        site_paths=lambda _: dict(SITES),
        rows_per_image=rows_by_tokens,
        pack=in_one_tensor,
        finish=finish,
        shares_prefix=True,
    )
)
for _name, _type in (("Aya Vision", "aya_vision"), ("Cohere2 Vision", "cohere2_vision")):
    register(
        Family(
            _name,
            recognises=lambda config, kind=_type: is_a(config, kind),
            site_paths=lambda _: dict(SITES),
            rows_per_image=rows_by_tokens,
            pack=in_one_tensor,
            finish=_gated_finish,
        )
    )
for _name, _type in (("Idefics3", "idefics3"), ("SmolVLM", "smolvlm")):
    register(
        Family(
            _name,
            recognises=lambda config, kind=_type: is_a(config, kind),
            site_paths=lambda _: {MLP2: "model.connector.modality_projection.proj"},
            rows_per_image=rows_by_tokens,
            pack=_in_tiles,
            shares_prefix=True,
        )
    )
register(
    Family(
        "Gemma 3",
        recognises=lambda config: is_a(config, "gemma3"),
        # The projector ends in a product with a bare parameter, so the site is the projector itself.
        site_paths=lambda _: {MLP2: "model.multi_modal_projector"},
        rows_per_image=rows_by_tokens,
        pack=in_one_tensor,
    )
)
register(
    Family(
        "LFM2-VL",
        recognises=lambda config: is_a(config, "lfm2_vl"),
        site_paths=lambda _: dict(SITES),  # called once for each tile
        rows_per_image=rows_by_tokens,
        pack=verbatim,
        finish=finish,
    )
)


def _janus_sites(config: Any) -> dict[str, str]:
    last = config.vision_config.depth - 2  # fc1 and the hidden layers are `depth` Linears
    return {
        MLP1: f"model.aligner.hidden_layers.{last - 1}" if last else "model.aligner.fc1",
        MLP2: f"model.aligner.hidden_layers.{last}",
    }


def _janus_finish(model: Any, rows: Tensor) -> Tensor:
    aligner = model.base_model.aligner
    return aligner.hidden_layers[-1](aligner.activation_fn(rows))


def _deepseek_finish(model: Any, rows: Tensor) -> Tensor:
    aligner = model.base_model.aligner
    return aligner.linear2(aligner.activation(rows))


register(
    Family(
        "PaliGemma",
        recognises=lambda config: is_a(config, "paligemma"),
        site_paths=lambda _: {MLP2: "model.multi_modal_projector.linear"},
        rows_per_image=_patch_rows,
        pack=in_one_tensor,
        grid=_square_grid,
    )
)
register(
    Family(
        "Janus",
        recognises=lambda config: is_a(config, "janus"),
        site_paths=_janus_sites,
        rows_per_image=_patch_rows,
        pack=in_one_tensor,
        grid=_square_grid,
        finish=_janus_finish,
        shares_prefix=True,
    )
)
register(
    Family(
        "DeepSeek-VL",
        recognises=lambda config: is_a(config, "deepseek_vl"),
        site_paths=lambda _: {MLP1: "model.aligner.linear1", MLP2: "model.aligner.linear2"},
        rows_per_image=_patch_rows,
        pack=in_one_tensor,
        grid=_square_grid,
        finish=_deepseek_finish,
        shares_prefix=True,
    )
)
