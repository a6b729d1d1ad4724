"""Finding the family of a model: in the table, or by hooks on the model while it encodes images.

The output of every Linear is recorded while the image features are computed. The site is the one whose rows are
found, bit for bit, among the image tokens that the text model gets, the last called if there are several: nothing
after it changes them. (The last Linear in the order of modules would be wrong: in Qwen3-VL that is a deepstack
merger.) If no Linear is like that, any module may be: Gemma 3's projector ends in a product with a bare parameter.

What is found is kept with the model, a refusal too, so that all who ask about a model get the same answer.

A proof of which site rows belong to which image, for a model of a family that is not in the table.

Two different pictures of different shapes are encoded alone, together, and together in the other order. The rows of a
batch must be those of its images one after the other, and there must be as many for each as the processor wrote image
tokens for it. If only the first holds, or a batch differs from its images, images are encoded one at a time.
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


def pictures() -> tuple[Image.Image, Image.Image]:
    """A wide and a tall picture: processors that cut images into tiles cut these, and into different numbers."""
    ramp, disc = Image.linear_gradient("L"), Image.radial_gradient("L")
    wide = Image.merge("RGB", (ramp, disc, ramp.rotate(90))).resize((1024, 384))
    tall = Image.merge("RGB", (disc, ramp.rotate(180), disc)).resize((384, 640))
    return wide, tall


def rows_follow_tokens(kind: str, prepare: Prepare, encode: Encode) -> bool:
    """Whether a batch can be split into images by their numbers of tokens; if not, one image at a time.

    InputError: the rows do not even tell two pictures apart, or are others each time.
    """
    first, second = pictures()
    inputs = [prepare([picture]) for picture in (first, second)]
    alone = [encode(one) for one in inputs]
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
    if any(image_tokens(one) != [len(rows)] for one, rows in zip(inputs, alone, strict=True)):
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


def _distance(one: Tensor, other: Tensor) -> float:
    """Relative to the first; of the rows that both have."""
    count = min(len(one), len(other))
    left, right = one[:count].double(), other[:count].double()
    return float((left - right).norm() / left.norm().clamp(min=1e-30))


ENOUGH = 0.5  # of the image tokens; some families add tokens of their own, as LLaVA-NeXT its newlines

_found: WeakKeyDictionary[nn.Module, Family | InputError] = WeakKeyDictionary()
_processors: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()


def family_of(model: Any, inputs: Inputs | None = None, paths: Mapping[str, str] | None = None) -> Family:
    """The family of a transformers model: a registered one, or one made from what the model does with images.

    A model that `load_vlm` loaded is shown two pictures, which proves which rows belong to which image. Of another
    model of an unknown family only the site is found: from `inputs`, an image processor's outputs for one image; from
    `paths`, site name -> module path, as an artefact records them; or from noise in the size of its vision config,
    which works for models that take only `pixel_values`. Then its images cannot be told apart in a batch.
    """
    if known := known_family(model.config):
        return known
    if model not in _found:
        processor = _processors.get(model)
        if processor is None:
            _found[model] = _unproved(model, inputs, paths)
        else:
            try:
                _found[model] = _proved(model, lambda images: prepare_images(model, processor, images)[0])
            except InputError as refusal:
                _found[model] = refusal
    found = _found[model]
    if isinstance(found, InputError):
        raise found
    return found


def prepared_by(model: nn.Module, processor: Any) -> None:
    """From now on `family_of` may show pictures to the model, prepared by its processor."""
    _processors[model] = processor
    _found.pop(model, None)


def find_site(model: Any, inputs: Inputs) -> str:
    """The module path of the site, found by running the model; InputError lists the candidates if there is none."""
    return _watch(model, inputs)


def _proved(model: Any, prepare: Prepare) -> Family:
    kind = model.config.model_type
    image_encoder(
        model
    )  # first, because it is the better sentence: the processor of such a model is another one, too
    wide, tall = pictures()
    path, other = [_watch(model, prepare([picture])) for picture in (wide, tall)]
    if path != other:
        raise InputError(
            f"the site of this {kind} model depends on the picture ({path!r} for one, {other!r} for another): "
            "register a ggss.models.Family that names it"
        )

    def calls(inputs: dict[str, Tensor]) -> list[Tensor]:
        with torch.inference_mode(), captured(model, {MLP2: path}) as rows:
            image_features(model, inputs)
        return rows[MLP2]

    def encode(inputs: dict[str, Tensor]) -> Tensor:
        return torch.cat(calls(inputs))

    of_wide, of_tall = calls(prepare([wide])), calls(prepare([tall]))
    if len(of_wide) > 1 and any(torch.equal(one, other) for one in of_wide for other in of_tall):
        raise InputError(
            f"the site of this {kind} model, {path!r}, is also called for rows that are the same for all pictures, "
            "so steering would change more than images: register a ggss.models.Family for it"
        )
    batched = rows_follow_tokens(kind, prepare, encode)
    return _found_family(kind, {MLP2: path}, rows_by_tokens if batched else _unknown_rows(path))


def _unproved(model: Any, inputs: Inputs | None, paths: Mapping[str, str] | None) -> Family:
    if inputs is not None or not paths:
        paths = {MLP2: _watch(model, _noise(model) if inputs is None else inputs)}
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
def _watch(model: Any, inputs: Inputs) -> str:
    """The path of the site."""
    seen: list[str] = []
    for kind in (nn.Linear, nn.Module):
        called, tokens = _called(model, inputs, kind)
        shares = {name: _share(tokens, rows) for name, rows in called.items()}
        if best := max(shares.values(), default=0.0):
            path = [name for name, share in shares.items() if share == best][-1]
            if best >= ENOUGH:
                return _no_words(model, path)
            seen.append(f"{path} has {best:.0%} of them")
        else:
            seen += [f"{name} {list(rows.shape)}" for name, rows in list(called.items())[-8:]]
    raise InputError(
        f"no module of this {model.config.model_type} model hands its rows unchanged to the text model: register a "
        f"ggss.models.Family that names the site; the last ones called were {', '.join(seen[:8]) or 'none'}"
    )


def _no_words(model: Any, path: str) -> str:
    """The path, unless the module there also embeds the words of the prompt."""
    if resolve(model, path) is model.get_input_embeddings():
        raise InputError(
            f"this {model.config.model_type} model makes words of its vocabulary of an image and embeds them as any "
            f"other words ({path!r}), so there is no site where images can be steered without the text: use a model "
            "that has a projector, such as LLaVA or Qwen-VL"
        )
    return path


def _called(model: Any, inputs: Inputs, kind: type[nn.Module]) -> tuple[dict[str, Tensor], Tensor]:
    """The rows of the last modules that returned some, in the order of their last calls, and the image tokens."""
    called: deque[tuple[str, Tensor]] = deque(maxlen=256 if kind is nn.Linear else 64)
    width = _text_width(model)

    def note(name: str, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) and output else output
        # The text model's width: most outputs of the tower are dropped at once.
        if isinstance(first, Tensor) and first.ndim >= 2 and width in (None, first.shape[-1]):
            called.append((name, first.detach().flatten(0, -2).clone()))

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
    tokens = torch.cat([one.flatten(0, -2) for one in ([pooled] if isinstance(pooled, Tensor) else pooled)])
    rows: dict[str, list[Tensor]] = {}
    for name, output in called:
        if output.shape[-1] == tokens.shape[-1] and output.dtype == tokens.dtype:
            rows[name] = [*rows.pop(name, []), output]
    return {name: torch.cat(outputs) for name, outputs in rows.items()}, tokens


def _text_width(model: Any) -> int | None:
    width = getattr(model.config.get_text_config(), "hidden_size", None)
    return width if isinstance(width, int) else None


def _share(tokens: Tensor, rows: Tensor) -> float:
    """The share of the image tokens that are among the rows."""
    there = set(_row_bytes(rows))
    return sum(token in there for token in _row_bytes(tokens)) / max(1, len(tokens))


def _row_bytes(rows: Tensor) -> list[bytes]:
    return [row.tobytes() for row in rows.contiguous().cpu().view(torch.uint8).numpy()]
