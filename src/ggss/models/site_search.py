"""Finding the family of a model: in the table, or by hooks on the model while it encodes images.

The output of every Linear is recorded while the image features are computed. The site is the Linear whose rows are,
bit for bit, among the image tokens that the text model gets; the last called, if there are several, because nothing
after it changes them. (The last Linear in the order of modules would be wrong: in Qwen3-VL that is a deepstack
merger.) If there is no such Linear, the site may be any module: Gemma 3's projector ends in a product with a bare
parameter.

Then it must be shown which rows belong to which image. Two different pictures of different shapes are encoded alone,
together, and together in the other order. The rows of a batch must be those of its images one after the other, and
there must be as many for each image as it has image tokens in the prompt. Otherwise images are encoded one at a time.

The result is kept with the model, a refusal too, so that every caller gets the same answer.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from PIL import Image
from torch import Tensor, nn

from ggss.errors import InputError
from ggss.models.families import Family, Inputs, known_family
from ggss.models.hooks import captured, eager
from ggss.models.prompts import image_tokens, prepare_images, rows_by_tokens
from ggss.models.sites import MLP2, image_encoder, image_features, resolve

Prepare = Callable[[Sequence[Image.Image]], dict[str, Tensor]]
"""From images to the inputs of the vision tower, which carry how many image tokens each image has."""
Encode = Callable[[dict[str, Tensor]], Tensor]
"""From these inputs to the rows of the site."""

SAME = 0.05  # relative distance of rows that should be equal: half precision and other batches change last digits
APART = 0.2  # of the distance between two pictures; two towers of bfloat16 stay well below it
ENOUGH = 0.5  # of the image tokens; some families add tokens of their own, as LLaVA-NeXT its newlines

_families: WeakKeyDictionary[nn.Module, Family | InputError] = WeakKeyDictionary()
_processors: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()


def pictures() -> tuple[Image.Image, Image.Image]:
    """A wide and a tall picture: processors that cut images into tiles cut these, and into different numbers."""
    ramp, disc = Image.linear_gradient("L"), Image.radial_gradient("L")
    wide = Image.merge("RGB", (ramp, disc, ramp.rotate(90))).resize((1024, 384))
    tall = Image.merge("RGB", (disc, ramp.rotate(180), disc)).resize((384, 640))
    return wide, tall


def rows_follow_tokens(kind: str, prepare: Prepare, encode: Encode) -> bool:
    """Whether the rows of a batch can be split into images by their numbers of tokens.

    InputError if two pictures have the same rows, or one picture has other rows each time.
    """
    first, second = pictures()
    inputs = [prepare([picture]) for picture in (first, second)]
    alone = [encode(single) for single in inputs]
    between = _distance(alone[0], alone[1])
    if between == 0:
        raise InputError(
            f"two different pictures give the same rows at the site of this {kind} model, so it cannot be proved "
            "which rows belong to which: register a ggss.models.Family for it"
        )
    if _distance(alone[0], encode(inputs[0])) > min(SAME, APART * between):
        raise InputError(
            f"the site of this {kind} model gives other rows each time for the same picture: put it into "
            "evaluation mode, or register a ggss.models.Family for it"
        )
    if any(image_tokens(single) != [len(rows)] for single, rows in zip(inputs, alone, strict=True)):
        return False
    limit = min(SAME, APART * between)
    for order in ((0, 1), (1, 0)):
        expected = torch.cat([alone[i] for i in order])
        try:
            batch = prepare([(first, second)[i] for i in order])
            together = encode(batch)
        except Exception:  # some processors and towers take only images of one shape
            return False
        if image_tokens(batch) != [len(alone[i]) for i in order] or together.shape != expected.shape:
            return False
        parts = zip(together.split([len(alone[i]) for i in order]), order, strict=True)
        if any(_distance(alone[i], part) > limit for part, i in parts):
            return False
    return True


def _distance(rows: Tensor, others: Tensor) -> float:
    """The distance of the rows that both have, relative to the first."""
    count = min(len(rows), len(others))
    first, second = rows[:count].double(), others[:count].double()
    return float((first - second).norm() / first.norm().clamp(min=1e-30))


def family_of(model: Any, inputs: Inputs | None = None, paths: Mapping[str, str] | None = None) -> Family:
    """The family of a transformers model: a registered one, or one made by running the model.

    A model that `load_vlm` loaded encodes two pictures, which proves which rows belong to which image. For any other
    model of an unknown family only the site is found: from `inputs`, an image processor's outputs for one image; from
    `paths`, site name -> module path, as an artefact records them; or from noise in the size of its vision config,
    which works for models that take only `pixel_values`. Then the images of a batch cannot be told apart.
    """
    if registered := known_family(model.config):
        return registered
    if model not in _families:
        processor = _processors.get(model)
        if processor is None:
            _families[model] = _unproved(model, inputs, paths)
        else:
            try:
                _families[model] = _proved(model, lambda images: prepare_images(model, processor, images)[0])
            except InputError as refusal:
                _families[model] = refusal
    family = _families[model]
    if isinstance(family, InputError):
        raise family
    return family


def prepared_by(model: nn.Module, processor: Any) -> None:
    """Tell `family_of` the model's processor, so that it can prepare pictures and run the model on them."""
    _processors[model] = processor
    _families.pop(model, None)


def find_site(model: Any, inputs: Inputs) -> str:
    """The module path of the site, found by running the model; InputError lists the candidates if there is none."""
    return _site_path(model, inputs)


def _proved(model: Any, prepare: Prepare) -> Family:
    kind = model.config.model_type
    image_encoder(model)  # first: without one the processor fails too, with a worse message
    wide, tall = pictures()
    path, tall_path = [_site_path(model, prepare([picture])) for picture in (wide, tall)]
    if path != tall_path:
        raise InputError(
            f"the site of this {kind} model depends on the picture ({path!r} for one, {tall_path!r} for another): "
            "register a ggss.models.Family that names it"
        )

    def calls(inputs: dict[str, Tensor]) -> list[Tensor]:
        with torch.inference_mode(), captured(model, {MLP2: path}) as rows:
            image_features(model, inputs)
        return rows[MLP2]

    def encode(inputs: dict[str, Tensor]) -> Tensor:
        return torch.cat(calls(inputs))

    of_wide, of_tall = calls(prepare([wide])), calls(prepare([tall]))
    if len(of_wide) > 1 and any(torch.equal(rows, others) for rows in of_wide for others in of_tall):
        raise InputError(
            f"the site of this {kind} model, {path!r}, is also called for rows that are the same for all pictures, "
            "so steering would change more than images: register a ggss.models.Family for it"
        )
    batched = rows_follow_tokens(kind, prepare, encode)
    return _found_family(kind, {MLP2: path}, rows_by_tokens if batched else _unknown_rows(path))


def _unproved(model: Any, inputs: Inputs | None, paths: Mapping[str, str] | None) -> Family:
    if inputs is not None or not paths:
        paths = {MLP2: _site_path(model, _noise(model) if inputs is None else inputs)}
    for path in paths.values():
        resolve(model, path)
    return _found_family(model.config.model_type, dict(paths), _unknown_rows(next(iter(paths.values()))))


def _found_family(kind: str, paths: dict[str, str], rows_per_image: Callable[[Any, Inputs], list[int]]) -> Family:
    return Family(
        kind,
        recognises=lambda config: config.model_type == kind,
        site_paths=lambda _: dict(paths),
        rows_per_image=rows_per_image,
        batched=rows_per_image is rows_by_tokens,
    )


def _unknown_rows(path: str) -> Callable[[Any, Inputs], list[int]]:
    def rows_per_image(model: Any, inputs: Inputs) -> list[int]:
        raise InputError(
            f"it is not known which rows of {path!r} belong to which image of this {model.config.model_type} model: "
            "load it with ggss.load_vlm, use one image at a time and a method and a strength that are the same for "
            "all images, or register a ggss.models.Family with rows_per_image"
        )

    return rows_per_image


def _noise(model: Any) -> dict[str, Tensor]:
    side = getattr(getattr(model.config, "vision_config", None), "image_size", None)
    if not isinstance(side, int):
        raise InputError(
            f"the site of this {model.config.model_type} model is not known, and neither is its image size: "
            "load it with load_vlm, or register a ggss.models.Family for it"
        )
    noise = torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(0))
    return {"pixel_values": noise.to(model.device, model.dtype)}


@eager()
@torch.inference_mode()
def _site_path(model: Any, inputs: Inputs) -> str:
    candidates: list[str] = []
    for kind in (nn.Linear, nn.Module):
        outputs, tokens = _outputs(model, inputs, kind)
        shares = {name: _share(tokens, rows) for name, rows in outputs.items()}
        if best := max(shares.values(), default=0.0):
            path = [name for name, share in shares.items() if share == best][-1]
            if best >= ENOUGH:
                _check_images_only(model, path)
                return path
            candidates.append(f"{path} has {best:.0%} of them")
        else:
            candidates += [f"{name} {list(rows.shape)}" for name, rows in list(outputs.items())[-8:]]
    raise InputError(
        f"no module of this {model.config.model_type} model passes its rows unchanged to the text model: register a "
        f"ggss.models.Family that names the site; the last ones called were {', '.join(candidates[:8]) or 'none'}"
    )


def _check_images_only(model: Any, path: str) -> None:
    """InputError if the module at the path also embeds the words of the prompt."""
    if resolve(model, path) is model.get_input_embeddings():
        raise InputError(
            f"this {model.config.model_type} model turns an image into words of its vocabulary and embeds them like "
            f"other words ({path!r}), so there is no site where images can be steered without the text: use a model "
            "that has a projector, such as LLaVA or Qwen-VL"
        )


def _outputs(model: Any, inputs: Inputs, kind: type[nn.Module]) -> tuple[dict[str, Tensor], Tensor]:
    """The rows of the modules that were called last, in the order of their last calls, and the image tokens."""
    calls: deque[tuple[str, Tensor]] = deque(maxlen=256 if kind is nn.Linear else 64)
    width = _text_width(model)

    def note(name: str, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) and output else output
        # Only outputs of the text model's width: that drops most of the tower's.
        if isinstance(first, Tensor) and first.ndim >= 2 and width in (None, first.shape[-1]):
            calls.append((name, first.detach().flatten(0, -2).clone()))

    hooks = [
        module.register_forward_hook(lambda _, __, output, name=name: note(name, output))
        for name, module in model.named_modules()
        if name and isinstance(module, kind)
    ]
    try:
        pooled = image_features(model, inputs).pooler_output
    except InputError:
        raise
    except Exception as error:  # towers raise exceptions of many types for what they do not expect
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise InputError(
            f"this {model.config.model_type} model could not encode the image it was shown ({reason}): load it with "
            "load_vlm, or register a ggss.models.Family for it"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    if pooled is None:
        raise InputError(f"this {model.config.model_type} model returns no image tokens: ggss cannot steer it")
    tokens = torch.cat([part.flatten(0, -2) for part in ([pooled] if isinstance(pooled, Tensor) else pooled)])
    rows: dict[str, list[Tensor]] = {}
    for name, output in calls:
        if output.shape[-1] == tokens.shape[-1] and output.dtype == tokens.dtype:
            rows[name] = [*rows.pop(name, []), output]
    return {name: torch.cat(outputs) for name, outputs in rows.items()}, tokens


def _text_width(model: Any) -> int | None:
    width = getattr(model.config.get_text_config(), "hidden_size", None)
    return width if isinstance(width, int) else None


def _share(tokens: Tensor, rows: Tensor) -> float:
    """The share of image tokens that are among the rows."""
    row_set = set(_row_bytes(rows))
    return sum(token in row_set for token in _row_bytes(tokens)) / max(1, len(tokens))


def _row_bytes(rows: Tensor) -> list[bytes]:
    return [row.tobytes() for row in rows.contiguous().cpu().view(torch.uint8).numpy()]
