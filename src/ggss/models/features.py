"""Encoded images: `Features` are all that the text model gets of an image; `FeatureCache` encodes each image once.

The cache keeps features in memory, up to a number of bytes. The rest is in an unnamed temporary file, which is
deleted when the process ends. If the models of a family cannot answer from features, the images are kept instead.
"""

import io
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import IO, TYPE_CHECKING, Any

import torch
from PIL import Image
from safetensors.torch import load, save
from torch import Tensor

from ggss.data.pictures import Picture
from ggss.errors import InputError
from ggss.models.hooks import Attachment
from ggss.models.identity import is_intervened, visual_identity
from ggss.models.sites import MLP1, MLP2, in_text, in_tower
from ggss.terminal import track

if TYPE_CHECKING:
    from ggss.models.vlm import Vlm

BATCH = 8  # pictures encoded together
ROOM = 4 * 2**30  # bytes kept in memory


@dataclass(frozen=True)
class Features:
    """One image as `Vlm.encode` keeps it; `Vlm.answer` and `Vlm.score` take it wherever they take an image."""

    rows: dict[str, Tensor]
    """Site name -> that site's rows [T, D] for this image, in the model's dtype."""
    inputs: dict[str, Tensor]
    """What else the text model needs for this image: its size or grid."""
    placeholder: str
    """The text that represents the image in the prompt."""
    under: frozenset[Attachment] = frozenset()
    """The steerers that were attached before the text model when the image was encoded, and have changed the rows."""

    def steered(self, steerer: Any, alpha: float = 1.0) -> "Features":
        """The features with the rows of each of the steerer's sites steered; the original is not changed."""
        return steered([self], steerer, alpha)[0]


ImageOrFeatures = Image.Image | Features
"""What a question can be asked about: an image, or the encoded features of one."""


@dataclass(frozen=True)
class SteeredTogether:
    """Images that were steered together: their steered features, and for each site the rows and gates."""

    features: list[Features]
    counts: dict[str, list[int]]
    """Site -> the rows of each image."""
    gates: dict[str, Tensor | None]
    """Site -> the gates of all rows, image after image; None for a method without a gate."""


def steered(features: Sequence[Features], steerer: Any, alpha: float = 1.0) -> list[Features]:
    """The steered features of many images, much faster than one after the other. The originals are not changed."""
    return steered_with_gates(features, steerer, alpha).features


def steered_with_gates(
    features: Sequence[Features],
    steerer: Any,
    alpha: float | Sequence[float],
    allow_amplify: bool = False,
    copied: bool = False,
) -> SteeredTogether:
    """The steered features of many images, with the gates. alpha: a number, or one for each image.

    copied: the rows of each image are a tensor of their own. Otherwise they are views, and one image keeps the rows
    of all images in memory.
    """
    sites: Sequence[str] = list(steerer.operators)
    _check_sites(features, sites)
    if not isinstance(alpha, int | float) and len(set(alpha)) == 1:
        alpha = alpha[0]  # faster than one for each row
    changed: dict[str, Sequence[Tensor]] = {}
    counts: dict[str, list[int]] = {}
    gates: dict[str, Tensor | None] = {}
    for site in sites if features else ():
        parts = [image.rows[site] for image in features]
        counts[site] = [part.shape[0] for part in parts]
        rows = torch.cat(parts)
        per_image = not isinstance(alpha, int | float)
        owners = _owners(counts[site], rows.device) if per_image or steerer.operators[site].needs_images else None
        strength = torch.tensor(alpha) if per_image else alpha
        result = steerer.apply(rows, owners, strength, site=site, allow_amplify=allow_amplify)
        steered_parts = result.rows.split(counts[site])
        changed[site] = [part.clone() for part in steered_parts] if copied else steered_parts
        gates[site] = result.gate
    # Rows that were computed from rows before steering are out of date.
    stale = {MLP2} if MLP1 in sites else set()
    steered_features = [
        Features(
            {site: rows for site, rows in image.rows.items() if site not in stale}
            | {site: parts[number] for site, parts in changed.items()},
            image.inputs,
            image.placeholder,
            image.under,
        )
        for number, image in enumerate(features)
    ]
    return SteeredTogether(steered_features, counts, gates)


def _check_sites(features: Sequence[Features], sites: Sequence[str]) -> None:
    """InputError unless the features can be steered at these sites."""
    if features and (inner := [site for site in sites if in_text(site) or in_tower(site)]):
        raise InputError(
            f"the steerer acts on {inner[0]!r}, and encoded features are what the projector gives out: attach "
            "the steerer to the model and pass the images"
        )
    for image in features:
        if missing := [site for site in sites if site not in image.rows]:
            raise InputError(
                f"the steerer acts on {missing[0]!r} and these features have {', '.join(image.rows)}: "
                f"encode the images with sites={sites!r}"
            )
    if MLP1 in sites and MLP2 in sites:
        raise InputError(f"{MLP1!r} and {MLP2!r} cannot both be steered in encoded features: attach the steerer")


def _owners(counts: Sequence[int], device: torch.device) -> Tensor | None:
    """The image of each row; not needed for a single image."""
    if len(counts) == 1:
        return None
    return torch.arange(len(counts)).repeat_interleave(torch.tensor(counts)).to(device)


class FeatureFile:
    """Features by picture digest, in a temporary file (in TMPDIR)."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._places: dict[str, tuple[int, int, Features, torch.device]] = {}

    def __contains__(self, digest: str) -> bool:
        return digest in self._places

    def put(self, digest: str, features: Features) -> None:
        """Write a picture's features. If the disk is full, they are not kept."""
        if digest in self._places:
            return
        parts = {"rows": features.rows, "inputs": features.inputs}
        tensors = {f"{part}/{name}": value for part, values in parts.items() for name, value in values.items()}
        data = save({name: value.contiguous().cpu() for name, value in tensors.items()})
        try:
            file = self._open()
            start = file.seek(0, io.SEEK_END)
            complete = file.write(data) == len(data)
        except OSError:
            return
        if complete:
            device = next(iter(features.rows.values())).device
            self._places[digest] = (start, len(data), replace(features, rows={}, inputs={}), device)

    def get(self, digest: str) -> Features:
        """The features of a picture, on the device they came from."""
        start, size, empty, device = self._places[digest]
        file = self._open()
        file.seek(start)
        parts: dict[str, dict[str, torch.Tensor]] = {"rows": {}, "inputs": {}}
        for key, value in load(file.read(size)).items():
            part, _, name = key.partition("/")
            parts[part][name] = value.to(device)
        return replace(empty, rows=parts["rows"], inputs=parts["inputs"])

    def _open(self) -> IO[bytes]:
        if self._file is None:
            # Without a buffer: data that could not be written to a full disk would raise again at every later use.
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (open as long as this object exists)
            weakref.finalize(self, self._file.close)
        return self._file


class BoundedFeatures:
    """Features or images by picture digest, up to `room` bytes.

    The least recently used are dropped first; `let_go` is called with each of them.
    """

    def __init__(
        self, room: int, let_go: Callable[[str, ImageOrFeatures], None] = lambda digest, entry: None
    ) -> None:
        self.room, self._let_go = room, let_go
        self._entries: dict[str, ImageOrFeatures] = {}
        self._bytes = 0
        self._identity: str | None = None

    def under(self, identity: str | None) -> "BoundedFeatures":
        """The entries of this identity of a model; those of another are dropped.

        None: a cache for this use only, because what is encoded now must not be kept.
        """
        if identity is None:
            return BoundedFeatures(self.room)
        if identity != self._identity:
            self._entries, self._bytes, self._identity = {}, 0, identity
        return self

    def __contains__(self, digest: str) -> bool:
        return digest in self._entries

    def __getitem__(self, digest: str) -> ImageOrFeatures:
        self._entries[digest] = entry = self._entries.pop(digest)  # now the most recently used
        return entry

    @property
    def nbytes(self) -> int:
        """The bytes of all entries."""
        return self._bytes

    def add(self, entries: Mapping[str, ImageOrFeatures]) -> None:
        self._bytes += sum(_size(entry) for digest, entry in entries.items() if digest not in self._entries)
        self._entries |= entries

    def make_room(self) -> None:
        while self._bytes > self.room and self._entries:
            digest = next(iter(self._entries))
            oldest = self._entries.pop(digest)
            self._bytes -= _size(oldest)
            self._let_go(digest, oldest)


class FeatureCache:
    """A model's features of pictures, by picture digest.

    room: how many bytes are kept in memory; the rest is written to a temporary file. together: all pictures that will
    be needed. They are encoded in fixed batches, whatever the order of requests, because the last digit of a feature
    may depend on its batch.
    """

    def __init__(self, vlm: "Vlm", room: int = ROOM, together: Iterable[Picture] = ()) -> None:
        self.vlm, self.room = vlm, room
        self._file, self._file_of = FeatureFile(), ""
        self._memory = BoundedFeatures(room, self._write)
        self._batch: dict[str, tuple[Picture, ...]] = {}
        pictures = list({picture.digest: picture for picture in together}.values())
        for start in range(0, len(pictures), BATCH):
            batch = tuple(pictures[start : start + BATCH])
            self._batch |= {picture.digest: batch for picture in batch}

    @property
    def from_features(self) -> bool:
        """Whether the model answers from features; otherwise images are kept."""
        return self.vlm.family.pack is not None

    def batches(self, pictures: Sequence[Picture]) -> list[tuple[Picture, ...]]:
        """The batches in which the pictures are encoded; a fixed batch is never split."""
        distinct = list({picture.digest: picture for picture in pictures}.values())
        fixed = {self._batch[p.digest][0].digest: self._batch[p.digest] for p in distinct if p.digest in self._batch}
        loose = [picture for picture in distinct if picture.digest not in self._batch]
        return [*fixed.values(), *(tuple(loose[start : start + BATCH]) for start in range(0, len(loose), BATCH))]

    def preload(self, pictures: Sequence[Picture], show: bool | None = None) -> None:
        """Encode the pictures that are not cached yet, with a progress bar."""
        cached = self._current()
        missing = [picture for picture in pictures if picture.digest not in cached]
        for batch in track(self.batches(missing), f"{self.vlm.name}: encoding {len(missing)} pictures", show=show):
            self.see(batch)

    def see(self, pictures: Sequence[Picture]) -> list[ImageOrFeatures]:
        """The pictures as the model sees them now, in order."""
        cached = self._current()
        for batch in self.batches([picture for picture in pictures if picture.digest not in cached]):
            missing = [picture for picture in batch if picture.digest not in cached]
            cached.add(self._encoded(missing) if cached is self._memory else self._encoded_anew(missing))
        entries = [cached[picture.digest] for picture in pictures]
        cached.make_room()
        return entries

    def features(self, pictures: Sequence[Picture]) -> list[Features]:
        """The features of the pictures, in order; InputError if the model cannot answer from features."""
        entries = self.see(pictures)
        features = [entry for entry in entries if isinstance(entry, Features)]
        if len(features) < len(entries):
            raise InputError(f"{self.vlm.family.name} models cannot answer from encoded features: use images")
        return features

    def identity(self) -> str | None:
        """The identity under which features encoded now may be kept; None if hooks act on the vision path.

        It is computed before each use, because weights, settings and hooks may change while a model is in memory.
        """
        if not self.from_features:
            return ""  # images are not computed by the model
        model = self.vlm.model
        return None if is_intervened(model) else visual_identity(model, self.vlm.processor).hash

    def _current(self) -> BoundedFeatures:
        """The entries of the model as it is now."""
        identity = self.identity()
        if identity is not None and identity != self._file_of:
            self._file, self._file_of = FeatureFile(), identity
        return self._memory.under(identity)

    def _encoded(self, pictures: Sequence[Picture]) -> dict[str, ImageOrFeatures]:
        on_disk: dict[str, ImageOrFeatures] = {
            picture.digest: self._file.get(picture.digest) for picture in pictures if picture.digest in self._file
        }
        return on_disk | self._encoded_anew([picture for picture in pictures if picture.digest not in on_disk])

    def _encoded_anew(self, pictures: Sequence[Picture]) -> dict[str, ImageOrFeatures]:
        images = [picture.image() for picture in pictures]
        encoded = self.vlm.encode(images) if self.from_features and images else images
        return dict(zip((picture.digest for picture in pictures), encoded, strict=True))

    def _write(self, digest: str, entry: ImageOrFeatures) -> None:
        if isinstance(entry, Features):
            self._file.put(digest, entry)


def _size(entry: ImageOrFeatures) -> int:
    if isinstance(entry, Features):
        return sum(rows.nbytes for rows in chain(entry.rows.values(), entry.inputs.values()))
    return entry.width * entry.height * 3
