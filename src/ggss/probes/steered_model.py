"""Asking a model many items fast: each picture goes through the vision tower once, steered or not.

A picture's features are kept, in memory or else on disk, and answered from; steering changes the features of many
pictures together. Of a family whose models cannot answer from features, the pictures themselves are kept and the
steerer is attached to the model.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from ggss.models import Reading, Vlm
from ggss.models.feature_file import Shelf
from ggss.models.features import Features, steered
from ggss.models.vlm import Picture
from ggss.probes.base import Item
from ggss.progress import track
from ggss.steering.steerer import Steerer

BATCH = 64
ROOM = 4 * 2**30


@dataclass(frozen=True)
class Gallery:
    """Pictures as a model sees them; what was seen once is kept, up to `room` bytes in memory, the rest on the shelf.

    `below` is the gallery that this one steers: encodings are shared with it.
    """

    vlm: Vlm
    below: "Gallery | None" = None
    steerer: Steerer | None = None
    alpha: float = 0.0
    room: int = ROOM
    kept: dict[Any, Any] = field(default_factory=dict, repr=False)
    shelf: Shelf = field(default_factory=Shelf, repr=False)

    def steered(self, steerer: Steerer, alpha: float, force: bool = False) -> "Gallery":
        """The same pictures after steering. InputError if the steerer was made for another model, unless forced."""
        steerer.check(self.vlm.model, force=force)
        return Gallery(self.vlm, self, steerer, alpha, self.room)

    @property
    def suffix(self) -> str:
        """What the steerers want appended to every prompt."""
        return "" if self.below is None or self.steerer is None else self.below.suffix + self.steerer.prompt_suffix

    def hang(self, sources: Iterable[Any], show: bool | None = None) -> None:
        """Look at the pictures that are not there yet."""
        missing = [source for source in dict.fromkeys(sources) if source not in self.kept]
        batches = [missing[start : start + BATCH] for start in range(0, len(missing), BATCH)]
        for batch in track(batches, f"{self.vlm.name}: looking at {len(missing)} pictures", show=show):
            self.see(batch)

    def see(self, sources: Sequence[Any]) -> list[Any]:
        """The pictures as the model sees them, in order: features, or images where it cannot answer from features."""
        missing = [source for source in dict.fromkeys(sources) if source not in self.kept]
        if missing:
            self.kept.update(zip(missing, self._look(missing), strict=True))
        seen = [self.kept[source] for source in sources]
        if missing:
            self._make_room()
        return seen

    def read(
        self,
        items: Sequence[Item],
        max_new_tokens: int,
        what: str = "questions",
        batch_size: int = BATCH,
        show: bool | None = None,
    ) -> list[Reading]:
        """One reading per item, in their order."""
        readings: dict[int, Reading] = {}
        batches = self.batches(items, max_new_tokens, batch_size)
        for batch in track(batches, f"{self.vlm.name}: {what}", -(-len(items) // batch_size), show):
            readings |= batch
        return [readings[number] for number in range(len(items))]

    def batches(
        self, items: Sequence[Item], max_new_tokens: int, batch_size: int = BATCH
    ) -> Iterator[list[tuple[int, Reading]]]:
        """The same batch by batch: each item's number and its reading."""
        # Prompts of one length are asked together, padding is work for nothing; and so are equal prompts.
        order = sorted(
            range(len(items)),
            key=lambda i: (len(items[i].images), len(items[i].prompt.split()), items[i].prompt),
        )
        suffix = self.suffix
        for start in range(0, len(order), batch_size):
            numbers = order[start : start + batch_size]
            asked = [items[number] for number in numbers]
            seen = iter(self.see([source for item in asked for source in item.images]))
            with ExitStack() as live:
                self._attach(live)
                readings = self.vlm.read(
                    [item.prompt + suffix for item in asked],
                    [[next(seen) for _ in item.images] for item in asked],
                    [tuple(item.options) for item in asked],
                    max_new_tokens,
                    batch_size,
                )
            yield list(zip(numbers, readings, strict=True))

    @property
    def _from_features(self) -> bool:
        return self.vlm.family.pack is not None

    def _look(self, sources: Sequence[Any]) -> Sequence[Picture]:
        if self.below is None or self.steerer is None:
            new = [source for source in sources if source not in self.shelf]
            seen = dict(zip(new, self._look_anew(new), strict=True)) if new else {}
            return [seen[source] if source in seen else self.shelf.get(source) for source in sources]
        below = self.below.see(sources)
        return steered(below, self.steerer, self.alpha) if self._from_features else below

    def _look_anew(self, sources: Sequence[Any]) -> Sequence[Picture]:
        pictures = [source.image() for source in sources]
        return self.vlm.encode(pictures) if self._from_features else pictures

    def _attach(self, live: ExitStack) -> None:
        if self.below is not None and self.steerer is not None and not self._from_features:
            self.below._attach(live)
            live.enter_context(self.steerer.attach(self.vlm.model, self.alpha))

    def _make_room(self) -> None:
        """Let go of the pictures that have been kept longest; what a model made of one is put on the shelf."""
        sizes = {source: _size(picture) for source, picture in self.kept.items()}
        excess = sum(sizes.values()) - self.room
        for source, size in sizes.items():
            if excess <= 0:
                return
            picture = self.kept.pop(source)
            if self.below is None and isinstance(picture, Features):
                self.shelf.put(source, picture)
            excess -= size


def _size(picture: Picture) -> int:
    if isinstance(picture, Features):
        return sum(rows.nbytes for rows in picture.rows.values())
    return picture.width * picture.height * 3
