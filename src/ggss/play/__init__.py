"""The playground: a model and steerers to ask about pictures. Its page is in `ggss.play.page`.

Pictures are encoded once. Every answer, at any strength, comes from cached features, so that a change of the strength
runs the text model only. Uploads are kept in memory while they are shown, never on disk.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image

from ggss import errors
from ggss.activations import SITE
from ggss.data.counterfactuals import Counterfactuals
from ggss.data.pictures import BytesPicture, Picture
from ggss.errors import InputError, no_such
from ggss.models import Vlm
from ggss.models.features import FeatureCache, Features
from ggss.probes import Item
from ggss.probes.steered_model import SteeredModel
from ggss.steering.steerer import Steerer

LARGEST = 20 * 2**20  # bytes of an upload
MOST_PICTURES = 2  # of one question
STRONGEST = 1.5  # of the slider
ROOM = 512 * 2**20  # bytes of features: an open page may see many pictures
TOKENS = 64


@dataclass(frozen=True)
class PlaygroundAnswer:
    """An answer, and the probability of each option, if there are options."""

    answer: str
    bars: Mapping[str, float]


@dataclass(frozen=True)
class SideBySide:
    """The answers so far. steered: None until it is answered."""

    unsteered: PlaygroundAnswer
    steered: PlaygroundAnswer | None = None


@dataclass(frozen=True)
class Variant:
    """One version of a person, and the answers about it."""

    label: str
    image: Image.Image
    unsteered: str
    steered: str


class Playground:
    """A model, steerers by name, and a set of pictures to choose from.

    Raises InputError if a steerer was made for another model, unless forced.
    """

    def __init__(
        self,
        vlm: Vlm,
        steerers: Mapping[str, Steerer],
        pictures: Counterfactuals | None = None,
        force: bool = False,
    ) -> None:
        for steerer in steerers.values():
            steerer.check(vlm, force=force)
        self.vlm, self.steerers, self.pictures = vlm, dict(steerers), pictures
        self._model = SteeredModel(FeatureCache(vlm, ROOM))
        self._unsteered: dict[object, PlaygroundAnswer] = {}

    def upload(self, data: bytes) -> BytesPicture:
        """A picture from the bytes of a file. InputError if it is too large, or does not decode."""
        if len(data) > LARGEST:
            raise InputError(f"the picture has {len(data) / 2**20:.0f} MiB, at most {LARGEST / 2**20:.0f} are read")
        picture = BytesPicture.of(data)
        picture.image()
        return picture

    def ask(
        self,
        question: str,
        pictures: Sequence[Picture],
        steerers: Sequence[str] = (),
        alpha: float = 1.0,
        options: Sequence[str] = (),
        max_new_tokens: int = TOKENS,
    ) -> Iterator[SideBySide]:
        """Yields the unsteered answer alone, then both. Without a steerer there is only the first."""
        item = self._item(question, pictures, options)
        errors.TOKENS.check("the longest answer, in tokens,", max_new_tokens)
        steered = self._steered(steerers, alpha)
        key = (question, tuple(picture.digest for picture in pictures), tuple(item.options), max_new_tokens)
        if key not in self._unsteered:
            self._unsteered = {key: _read(self._model, [item], max_new_tokens)[0]}  # of the last question only
        answers = SideBySide(self._unsteered[key])
        yield answers
        if steered is not None:
            yield replace(answers, steered=_read(steered, [item], max_new_tokens)[0])

    def heat(self, picture: Picture, steerer: str) -> Image.Image:
        """The picture in grey with the steerer's gate over it: bright is where tokens are turned most.

        InputError for a method without a gate, or if the tokens cannot be laid over the picture.
        """
        chosen = self._steerer(steerer)
        features = self._model.cache.features([picture])[0]
        gate = (
            chosen.gate(features.rows[SITE], site=SITE)
            if SITE in chosen.operators and SITE in features.rows
            else None
        )
        if gate is None:
            raise InputError(f"{steerer!r} ({chosen.method}) has no gate at {SITE}: there is no heat to show")
        image = picture.image()
        return overlaid(image, laid_out(gate.float().cpu().numpy(), image.size, _overview(self.vlm, features)))

    def variants(
        self,
        picture: Picture,
        attribute: str,
        question: str,
        steerers: Sequence[str] = (),
        alpha: float = 1.0,
        max_new_tokens: int = TOKENS,
    ) -> list[Variant]:
        """The versions of a picture of the set in which one attribute changes, each with its answers."""
        if self.pictures is None or picture not in self.pictures.pictures:
            raise InputError("an upload has no versions: choose a picture of the counterfactual set")
        number = self.pictures.pictures.index(picture)
        groups = self.pictures.groups(attribute).values()
        numbers = next(group for group in groups if number in group.values())
        versions = {value: self.pictures.pictures[place] for value, place in numbers.items()}
        items = [self._item(question, [version]) for version in versions.values()]
        before = _read(self._model, items, max_new_tokens)
        steered = self._steered(steerers, alpha)
        after = before if steered is None else _read(steered, items, max_new_tokens)
        return [
            Variant(value, version.image(), old.answer, new.answer)
            for (value, version), old, new in zip(versions.items(), before, after, strict=True)
        ]

    def _item(self, question: str, pictures: Sequence[Picture], options: Sequence[str] = ()) -> Item:
        if not question.strip():
            raise InputError("there is no question: write one")
        if not 1 <= len(pictures) <= MOST_PICTURES:
            raise InputError(f"a question is about one or {MOST_PICTURES} pictures, seen {len(pictures)}")
        named = [option.strip() for option in options if option.strip()]
        return Item("", question, tuple(pictures), (), "", options={option: option for option in named})

    def _steerer(self, name: str) -> Steerer:
        if name not in self.steerers:
            raise no_such(f"no steerer {name!r} in this playground", name, self.steerers)
        return self.steerers[name]

    def _steered(self, names: Sequence[str], alpha: float) -> SteeredModel | None:
        """The model under the named steerers, all at one strength; None without any."""
        errors.Range(0.0, STRONGEST).check("alpha", alpha)
        model = self._model
        for name in names:
            model = model.steered(self._steerer(name), alpha, force=True)  # checked when it was made
        return model if names else None


def _read(model: SteeredModel, items: Sequence[Item], max_new_tokens: int) -> list[PlaygroundAnswer]:
    answers = []
    for item, read in zip(items, model.read(items, max_new_tokens, show=False), strict=True):
        answers.append(PlaygroundAnswer(read.text, dict(zip(item.options, read.probabilities, strict=True))))
    return answers


def _overview(vlm: Vlm, features: Features) -> int | None:
    """How many of the rows are the overview, for a model that also encodes tiles of a picture; None: all rows."""
    vision = getattr(vlm.model.config, "vision_config", None)
    if vlm.model.config.model_type != "llava_next" or vision is None:
        return None
    rows = (vision.image_size // vision.patch_size) ** 2
    return rows if rows < len(features.rows[SITE]) else None


def laid_out(gate: np.ndarray, size: tuple[int, int], overview: int | None = None) -> np.ndarray:
    """A gate [N] as rows and columns over a picture of this size (width, height).

    overview: how many of the first tokens are a square that shows all of the picture; others are of tiles. InputError
    if the tokens fill no grid of the picture's shape.
    """
    if overview:
        side = round(overview**0.5)
        return gate[:overview].reshape(side, side)
    width, height = size
    rows = max(1, round((len(gate) * height / width) ** 0.5))
    if len(gate) % rows:
        raise InputError(f"{len(gate)} tokens make no grid over a picture of {width} x {height}: there is no heat")
    return gate.reshape(rows, len(gate) // rows)


def overlaid(image: Image.Image, gate: np.ndarray) -> Image.Image:
    """The picture in grey with the gate, 0 to 1, over it as heat from dark to bright."""
    from matplotlib import colormaps

    smooth = Image.fromarray(gate.astype(np.float32)).resize(image.size, Image.Resampling.BICUBIC)
    colours = colormaps["inferno"](np.clip(np.asarray(smooth), 0, 1))[..., :3]
    grey = np.asarray(image.convert("L"), dtype=np.float32)[..., None] / 255
    return Image.fromarray((255 * (0.45 * grey + 0.55 * colours)).astype(np.uint8))
