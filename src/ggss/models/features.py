"""An image after the vision tower and projector: everything the text model will ever see of it.

Features that do not fit in memory, in an unnamed temporary file that is deleted when the process ends.

Each picture is encoded once: its features are kept in memory, or on disk if they do not fit.

If the models of a family cannot answer from features, the images themselves are kept.
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
from ggss.models.identity import is_intervened
from ggss.models.sites import MLP1, MLP2, in_text, in_tower
from ggss.terminal import track

if TYPE_CHECKING:
    from ggss.models.vlm import Vlm


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


Shown = Image.Image | Features
"""What a question can be asked about: an image, or the encoded features of one."""


@dataclass(frozen=True)
class SteeredTogether:
    """Images that were steered together: their features, and for each site that was steered what was done there."""

    features: list[Features]
    counts: dict[str, list[int]]
    """Site -> the rows of each image."""
    gates: dict[str, Tensor | None]
    """Site -> the gates of all rows, image after image; None for a method without a gate."""


def steered(features: Sequence[Features], steerer: Any, alpha: float = 1.0) -> list[Features]:
    """Many images steered together, which is much faster than one after the other. The originals are not changed."""
    return steered_with_gates(features, steerer, alpha).features


def steered_with_gates(
    features: Sequence[Features],
    steerer: Any,
    alpha: float | Sequence[float],
    allow_amplify: bool = False,
    copied: bool = False,
) -> SteeredTogether:
    """The same with the gates. alpha: a number, or one for each image.

    copied: an image does not keep the rows of all that were steered with it in memory.
    """
    sites: Sequence[str] = list(steerer.operators)
    _check_sites(features, sites)
    if not isinstance(alpha, int | float) and len(set(alpha)) == 1:
        alpha = alpha[0]  # one number for all rows takes less work than one for each
    changed: dict[str, Sequence[Tensor]] = {}
    counts: dict[str, list[int]] = {}
    gates: dict[str, Tensor | None] = {}
    for site in sites if features else ():
        parts = [one.rows[site] for one in features]
        counts[site] = [part.shape[0] for part in parts]
        rows = torch.cat(parts)
        apart = not isinstance(alpha, int | float)
        owners = _owners(counts[site], rows.device) if apart or steerer.operators[site].needs_images else None
        strength = torch.tensor(alpha) if apart else alpha
        done = steerer.apply(rows, owners, strength, site=site, allow_amplify=allow_amplify)
        own = done.rows.split(counts[site])
        changed[site], gates[site] = [part.clone() for part in own] if copied else own, done.gate
    # Rows that were computed from rows before steering are out of date.
    stale = {MLP2} if MLP1 in sites else set()
    kept = [
        Features(
            {site: rows for site, rows in one.rows.items() if site not in stale}
            | {site: parts[number] for site, parts in changed.items()},
            one.inputs,
            one.placeholder,
            one.under,
        )
        for number, one in enumerate(features)
    ]
    return SteeredTogether(kept, counts, gates)


def _check_sites(features: Sequence[Features], sites: Sequence[str]) -> None:
    """InputError unless the features can be steered at these sites."""
    if features and (inner := [site for site in sites if in_text(site) or in_tower(site)]):
        raise InputError(
            f"the steerer acts on {inner[0]!r}, and encoded features are what the projector gives out: attach "
            "the steerer to the model and pass the images"
        )
    for one in features:
        if missing := [site for site in sites if site not in one.rows]:
            raise InputError(
                f"the steerer acts on {missing[0]!r} and these features have {', '.join(one.rows)}: "
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
    """Features by their picture's digest. The file is in the folder of temporary files (TMPDIR)."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._places: dict[str, tuple[int, int, Features, torch.device]] = {}

    def __contains__(self, digest: str) -> bool:
        return digest in self._places

    def put(self, digest: str, features: Features) -> None:
        """Keep a picture's features. If the disk is full, they are not kept."""
        if digest in self._places:
            return
        parts = {"rows": features.rows, "inputs": features.inputs}
        tensors = {f"{part}/{name}": value for part, of in parts.items() for name, value in of.items()}
        data = save({name: value.contiguous().cpu() for name, value in tensors.items()})
        try:
            file = self._open()
            start = file.seek(0, io.SEEK_END)
            whole = file.write(data) == len(data)
        except OSError:
            return
        if whole:
            device = next(iter(features.rows.values())).device
            self._places[digest] = (start, len(data), replace(features, rows={}, inputs={}), device)

    def get(self, digest: str) -> Features:
        """The same features, on the device they came from."""
        start, size, rest, device = self._places[digest]
        file = self._open()
        file.seek(start)
        parts: dict[str, dict[str, torch.Tensor]] = {"rows": {}, "inputs": {}}
        for name, value in load(file.read(size)).items():
            part, _, own = name.partition("/")
            parts[part][own] = value.to(device)
        return replace(rest, rows=parts["rows"], inputs=parts["inputs"])

    def _open(self) -> IO[bytes]:
        if self._file is None:
            # Without a buffer: data that could not be written to a full disk would raise again at every later use.
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (open as long as this object exists)
            weakref.finalize(self, self._file.close)
        return self._file


BATCH = 8  # pictures encoded together
ROOM = 4 * 2**30  # bytes kept in memory


class BoundedFeatures:
    """Features or images by picture digest, up to `room` bytes. The least recently used go first; `let_go` gets
    them."""

    def __init__(self, room: int, let_go: Callable[[str, Shown], None] = lambda digest, shown: None) -> None:
        self.room, self._let_go = room, let_go
        self._shown: dict[str, Shown] = {}
        self._bytes = 0
        self._identity: str | None = None

    def under(self, identity: str | None) -> "BoundedFeatures":
        """What was kept under this identity of a model, and no other; None: what is encoded now must not be kept."""
        if identity is None:
            return BoundedFeatures(self.room)
        if identity != self._identity:
            self._shown, self._bytes, self._identity = {}, 0, identity
        return self

    def __contains__(self, digest: str) -> bool:
        return digest in self._shown

    def __getitem__(self, digest: str) -> Shown:
        self._shown[digest] = shown = self._shown.pop(digest)  # now the last of all
        return shown

    @property
    def nbytes(self) -> int:
        """The bytes that are kept."""
        return self._bytes

    def add(self, shown: Mapping[str, Shown]) -> None:
        self._bytes += sum(_size(one) for digest, one in shown.items() if digest not in self._shown)
        self._shown |= shown

    def make_room(self) -> None:
        while self._bytes > self.room and self._shown:
            digest = next(iter(self._shown))
            oldest = self._shown.pop(digest)
            self._bytes -= _size(oldest)
            self._let_go(digest, oldest)


class FeatureCache:
    """A model's features of pictures, by picture digest.

    room: how many bytes are kept in memory; the rest is written to a temporary file. together: all pictures that will
    be needed. They are encoded in fixed batches, in whatever order they are requested, because the last digit of a
    feature may depend on its batch.
    """

    def __init__(self, vlm: "Vlm", room: int = ROOM, together: Iterable[Picture] = ()) -> None:
        self.vlm, self.room = vlm, room
        self._file, self._file_of = FeatureFile(), ""
        self._kept = BoundedFeatures(room, self._write)
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
        """The batches in which the pictures are encoded; a fixed batch is given whole."""
        distinct = list({picture.digest: picture for picture in pictures}.values())
        fixed = {self._batch[p.digest][0].digest: self._batch[p.digest] for p in distinct if p.digest in self._batch}
        loose = [picture for picture in distinct if picture.digest not in self._batch]
        return [*fixed.values(), *(tuple(loose[start : start + BATCH]) for start in range(0, len(loose), BATCH))]

    def preload(self, pictures: Sequence[Picture], show: bool | None = None) -> None:
        """Encode the pictures that are not cached yet, with a progress bar."""
        kept = self._current()
        missing = [picture for picture in pictures if picture.digest not in kept]
        for batch in track(self.batches(missing), f"{self.vlm.name}: encoding {len(missing)} pictures", show=show):
            self.see(batch)

    def see(self, pictures: Sequence[Picture]) -> list[Shown]:
        """The pictures as the model sees them now, in order."""
        kept = self._current()
        for batch in self.batches([picture for picture in pictures if picture.digest not in kept]):
            missing = [picture for picture in batch if picture.digest not in kept]
            kept.add(self._encoded(missing) if kept is self._kept else self._encoded_anew(missing))
        shown = [kept[picture.digest] for picture in pictures]
        kept.make_room()
        return shown

    def features(self, pictures: Sequence[Picture]) -> list[Features]:
        """The features of the pictures, in order; InputError if the model cannot answer from features."""
        seen = self.see(pictures)
        features = [one for one in seen if isinstance(one, Features)]
        if len(features) < len(seen):
            raise InputError(f"{self.vlm.family.name} models cannot answer from encoded features: use images")
        return features

    def identity(self) -> str | None:
        """Under which features that are encoded now may be kept; None if hooks act on the vision path.

        Weights, settings and hooks may change while a model is in memory, so it is asked before each use.
        """
        if not self.from_features:
            return ""  # images are not computed by the model
        return None if is_intervened(self.vlm.model) else self.vlm.visual_identity.hash

    def _current(self) -> BoundedFeatures:
        """What is kept of the model as it is now."""
        identity = self.identity()
        if identity is not None and identity != self._file_of:
            self._file, self._file_of = FeatureFile(), identity
        return self._kept.under(identity)

    def _encoded(self, pictures: Sequence[Picture]) -> dict[str, Shown]:
        known: dict[str, Shown] = {
            picture.digest: self._file.get(picture.digest) for picture in pictures if picture.digest in self._file
        }
        return known | self._encoded_anew([picture for picture in pictures if picture.digest not in known])

    def _encoded_anew(self, pictures: Sequence[Picture]) -> dict[str, Shown]:
        images = [picture.image() for picture in pictures]
        encoded = self.vlm.encode(images) if self.from_features and images else images
        return dict(zip((picture.digest for picture in pictures), encoded, strict=True))

    def _write(self, digest: str, shown: Shown) -> None:
        if isinstance(shown, Features):
            self._file.put(digest, shown)


def _size(shown: Shown) -> int:
    if isinstance(shown, Features):
        return sum(rows.nbytes for rows in chain(shown.rows.values(), shown.inputs.values()))
    return shown.width * shown.height * 3
