"""Each picture is encoded once: its features are kept in memory, or on disk if they do not fit.

If the models of a family cannot answer from features, the images themselves are kept.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain

from ggss.data.picture import Picture
from ggss.errors import InputError
from ggss.models.feature_file import FeatureFile
from ggss.models.features import Features, Shown
from ggss.models.vlm import Vlm
from ggss.progress import track

BATCH = 8  # pictures encoded together
ROOM = 4 * 2**30  # bytes kept in memory


class BoundedFeatures:
    """Features or images by picture digest, up to `room` bytes. The least recently used go first; `let_go` gets
    them."""

    def __init__(self, room: int, let_go: Callable[[str, Shown], None] = lambda digest, shown: None) -> None:
        self.room, self._let_go = room, let_go
        self._shown: dict[str, Shown] = {}
        self._bytes = 0

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

    def __init__(self, vlm: Vlm, room: int = ROOM, together: Iterable[Picture] = ()) -> None:
        self.vlm, self.room = vlm, room
        self._file = FeatureFile()
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
        missing = [picture for picture in pictures if picture.digest not in self._kept]
        for batch in track(self.batches(missing), f"{self.vlm.name}: encoding {len(missing)} pictures", show=show):
            self.see(batch)

    def see(self, pictures: Sequence[Picture]) -> list[Shown]:
        """The pictures as the model sees them, in order."""
        for batch in self.batches([picture for picture in pictures if picture.digest not in self._kept]):
            self._kept.add(self._encoded([picture for picture in batch if picture.digest not in self._kept]))
        seen = [self._kept[picture.digest] for picture in pictures]
        self._kept.make_room()
        return seen

    def features(self, pictures: Sequence[Picture]) -> list[Features]:
        """The features of the pictures, in order; InputError if the model cannot answer from features."""
        seen = self.see(pictures)
        features = [one for one in seen if isinstance(one, Features)]
        if len(features) < len(seen):
            raise InputError(f"{self.vlm.family.name} models cannot answer from encoded features: use images")
        return features

    def _encoded(self, pictures: Sequence[Picture]) -> dict[str, Shown]:
        known = {
            picture.digest: self._file.get(picture.digest) for picture in pictures if picture.digest in self._file
        }
        new = [picture for picture in pictures if picture.digest not in known]
        images = [picture.image() for picture in new]
        encoded = self.vlm.encode(images) if self.from_features and images else images
        return known | dict(zip((picture.digest for picture in new), encoded, strict=True))

    def _write(self, digest: str, shown: Shown) -> None:
        if isinstance(shown, Features):
            self._file.put(digest, shown)


def _size(shown: Shown) -> int:
    if isinstance(shown, Features):
        return sum(rows.nbytes for rows in chain(shown.rows.values(), shown.inputs.values()))
    return shown.width * shown.height * 3
