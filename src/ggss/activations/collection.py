"""Activations from images: one pass of the vision path per image, pooled as a stream, cached on disk.

Appendix A.1: the site's output is captured with a hook, an image of more than 2048 tokens keeps a subset drawn
with seed 42 (the same positions for all variants of an identity, which have equal sizes), and the kept tokens
are averaged. The paper pairs every image with the prompt "Describe this image in detail."; the projector's
output is computed before any text is seen, so the language model is not run at all.

The key of a cache entry is all that decides its rows: the model's visual identity, the image file's bytes, the site,
cap and seed. So no entry is ever out of date. An entry has its key and a checksum of each tensor in it; one that is
incomplete, damaged or another's is computed again.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, overload

import torch
from torch import Tensor

from ggss import ranges
from ggss.activations import SITE, Activations, Rows, pool
from ggss.activations.cache_contents import FOLDER
from ggss.activations.cache_entry import POOLED, TOKENS, CacheEntry
from ggss.errors import InputError
from ggss.models.projector import resolve
from ggss.progress import track

if TYPE_CHECKING:
    from ggss.data.counterfactuals import Counterfactuals
    from ggss.data.picture import Picture
    from ggss.models import Vlm
    from ggss.models.feature_cache import FeatureCache

DISCOVERY_PROMPT = "Describe this image in detail."
MAX_TOKENS = 2048
SEED = 42
_ENTRY_VERSION = 2


def default_cache() -> Path:
    """GGSS_CACHE, else ggss/ under the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("GGSS_CACHE") or Path(home) / "ggss")


def collect(
    vlm: "Vlm",
    counterfactuals: "Counterfactuals",
    sites: str | Sequence[str] = SITE,
    *,
    keep_tokens: bool = False,
    max_tokens: int = MAX_TOKENS,
    seed: int = SEED,
    cache: str | os.PathLike[str] | None = None,
    features: "FeatureCache | None" = None,
    batch_size: int = 8,
    show: bool | None = None,
) -> Activations:
    """Run the frozen model's vision path over the set and keep each image's pooled row at each site.

    sites: a site name, "all", or several names. keep_tokens: also keep the tokens. Memory is one row per image and
    site, whatever the number of tokens: tokens are in the cache on disk, and images found there are not run again.
    features: a cache of encoded images. If it has the rows of all sites, they are taken from it, and nothing is
    written to disk.
    """
    ranges.TOKENS.check("max_tokens", max_tokens)
    ranges.SEED.check("the seed of the tokens that are kept", seed)
    ranges.BATCH.check("the batch size", batch_size)
    names = list(vlm.sites(sites) if isinstance(sites, str) else sites)
    if features is not None and features.vlm is not vlm:
        raise InputError(f"the features are of {features.vlm.name}, not of {vlm.name}: give the model's own")
    if any(resolve(vlm.model, path)._forward_hooks for path in vlm.sites(names).values()):
        raise InputError("the model is being steered or watched at a site: collect activations before or after that")
    if features is not None and features.from_features and set(names) <= set(vlm.sites("all")):
        source: _Source = _FromFeatures(features, keep_tokens, max_tokens, seed)
    else:
        folder = Path(cache) if cache is not None else default_cache()
        source = _FromDisk(vlm, folder, keep_tokens, max_tokens, seed)
    pooled: dict[str, Tensor] = {}
    tokens: dict[str, list[Tensor | Path]] = {site: [] for site in names}
    progress = track(counterfactuals.pictures, f"{vlm.name}: activations", len(counterfactuals), show)
    for start, batch in _batches(progress, batch_size):
        for place, own in enumerate(source.rows(batch, names), start):
            for site, (row, kept) in own.items():
                # Into one tensor: small rows between large temporary tensors would fragment the heap.
                if site not in pooled:
                    pooled[site] = torch.empty(len(counterfactuals), len(row))
                pooled[site][place] = row
                tokens[site].append(kept)
    rows = {site: Rows(pooled[site], source.tokens(tokens[site]) if keep_tokens else None) for site in names}
    return Activations.from_rows(
        rows,
        [dict(picture.attributes) for picture in counterfactuals],
        [picture.context for picture in counterfactuals],
        {
            **vlm.describe(),
            "data_hash": counterfactuals.content_hash,
            "images": len(counterfactuals),
            "prompt": DISCOVERY_PROMPT,
            "max_tokens": max_tokens,
            "seed": seed,
        },
    )


def kept_tokens(count: int, cap: int = MAX_TOKENS, seed: int = SEED) -> Tensor | None:
    """The positions of the `cap` tokens that are kept of `count`; None: all. The same for images of equal size."""
    if count <= cap:
        return None
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:cap].sort().values


class TokenFiles(Sequence[Tensor]):
    """The tokens of each image, read from the cache one image at a time."""

    def __init__(self, entries: Sequence[CacheEntry]) -> None:
        self.entries = entries

    def __len__(self) -> int:
        return len(self.entries)

    @overload
    def __getitem__(self, i: int) -> Tensor: ...
    @overload
    def __getitem__(self, i: slice) -> Sequence[Tensor]: ...
    def __getitem__(self, i: int | slice) -> Tensor | Sequence[Tensor]:
        if isinstance(i, slice):
            return TokenFiles(self.entries[i])
        return self.entries[i].need(TOKENS)


class _Source(Protocol):
    """A source of rows: for each picture and site the pooled row, and the tokens or the file that has them."""

    def rows(
        self, pictures: Sequence["Picture"], sites: Sequence[str]
    ) -> "Iterator[dict[str, tuple[Tensor, Any]]]": ...

    def tokens(self, kept: list[Any]) -> Sequence[Tensor]: ...


@dataclass(frozen=True)
class _FromFeatures:
    """Rows from a cache of encoded features."""

    features: "FeatureCache"
    keep_tokens: bool
    max_tokens: int
    seed: int

    def rows(self, pictures: Sequence["Picture"], sites: Sequence[str]) -> "Iterator[dict[str, tuple[Tensor, Any]]]":
        for one in self.features.features(pictures):
            capped = {site: _capped(one.rows[site], self.max_tokens, self.seed).float() for site in sites}
            yield {site: (pool(rows), rows if self.keep_tokens else None) for site, rows in capped.items()}

    def tokens(self, kept: list[Any]) -> Sequence[Tensor]:
        return kept


@dataclass(frozen=True)
class _FromDisk:
    """Rows from the cache on disk; missing ones are computed and written to it."""

    vlm: "Vlm"
    folder: Path
    keep_tokens: bool
    max_tokens: int
    seed: int

    def rows(self, pictures: Sequence["Picture"], sites: Sequence[str]) -> "Iterator[dict[str, tuple[Tensor, Any]]]":
        entries = [{site: self._entry(site, picture) for site in sites} for picture in pictures]
        missing = [i for i, own in enumerate(entries) if not all(map(self._whole, own.values()))]
        encoded = self.vlm.encode([pictures[i].image() for i in missing], sites=sites) if missing else []
        for i, found in zip(missing, encoded, strict=True):
            for site in sites:
                rows = _capped(found.rows[site], self.max_tokens, self.seed)
                entries[i][site].write({POOLED: pool(rows)} | ({TOKENS: rows} if self.keep_tokens else {}))
        for own in entries:
            yield {site: (entry.need(POOLED), entry) for site, entry in own.items()}

    def tokens(self, kept: list[Any]) -> Sequence[Tensor]:
        return TokenFiles(kept)

    def _entry(self, site: str, picture: "Picture") -> CacheEntry:
        key = {
            "version": _ENTRY_VERSION,
            "model": self.vlm.visual_identity.hash,
            "site": site,
            "image": picture.digest,
            "max_tokens": self.max_tokens,
            "seed": self.seed,
        }
        width = getattr(resolve(self.vlm.model, self.vlm.sites(site)[site]), "out_features", None)
        return CacheEntry(self.folder / FOLDER, json.dumps(key, sort_keys=True), width)

    def _whole(self, entry: CacheEntry) -> bool:
        return all(entry.read(name) is not None for name in (POOLED, *([TOKENS] if self.keep_tokens else [])))


def _capped(rows: Tensor, max_tokens: int, seed: int) -> Tensor:
    kept = kept_tokens(rows.shape[0], max_tokens, seed)
    return rows.cpu() if kept is None else rows.cpu()[kept]


def _batches(pictures: Iterator["Picture"], size: int) -> Iterator[tuple[int, list["Picture"]]]:
    """The pictures in batches, each with the number of its first."""
    start, batch = 0, []
    for picture in pictures:
        batch.append(picture)
        if len(batch) == size:
            yield start, batch
            start, batch = start + size, []
    if batch:
        yield start, batch
