"""Activations from images: one pass of the vision path per image, pooled as a stream, kept on disk.

Appendix A.1: the site's output is captured with a hook, an image of more than 2048 tokens keeps a subset drawn
with seed 42 (the same positions for all variants of an identity, which have equal sizes), and the kept tokens
are averaged. The paper pairs every image with the prompt "Describe this image in detail."; the projector's
output is computed before any text is seen, so the language model is not run at all.

The cache is addressed by content: the weights of the vision path, the image file's bytes, the site, cap, seed,
image backend and dtype. Nothing in it goes stale; an entry cut short by a crash fails to load and is redone.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, overload

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ggss.activations import SITE, Activations, Rows, pool
from ggss.errors import InputError
from ggss.files import write_whole
from ggss.progress import track

if TYPE_CHECKING:
    from ggss.data.counterfactuals import Counterfactuals, Variant
    from ggss.models import Vlm

DISCOVERY_PROMPT = "Describe this image in detail."
MAX_TOKENS = 2048
SEED = 42
_ENTRY_VERSION = 1


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
    batch_size: int = 8,
    show: bool | None = None,
) -> Activations:
    """Run the frozen model's vision path over the set and keep each image's pooled row at each site.

    sites: a site name, "all", or several names. keep_tokens: also keep the tokens, on disk. Memory is one row
    per image and site, whatever the number of tokens. Images already in the cache are not run again.
    """
    if max_tokens < 1:
        raise InputError(f"max_tokens must be at least 1, seen {max_tokens}")
    names = list(vlm.sites(sites) if isinstance(sites, str) else sites)
    folder = Path(cache) if cache is not None else default_cache()
    common = {
        "version": _ENTRY_VERSION,
        "model": vlm.vision_fingerprint,
        "dtype": str(vlm.model.dtype),
        "backend": vlm.backend,
        "max_tokens": max_tokens,
        "seed": seed,
    }
    pooled: dict[str, Tensor] = {}
    files: dict[str, list[Path]] = {site: [] for site in names}
    progress = track(counterfactuals.variants, f"{vlm.name}: activations", len(counterfactuals.variants), show)
    for batch in _batches(progress, batch_size):
        entries = [{site: _entry(folder, common, site, variant) for site in names} for variant in batch]
        missing = [i for i, own in enumerate(entries) if any(_load(own[s], keep_tokens) is None for s in names)]
        encoded = vlm.encode([batch[i].image() for i in missing], sites=names) if missing else []
        for i, features in zip(missing, encoded, strict=True):
            for site in names:
                rows = features.rows[site]
                kept = kept_tokens(rows.shape[0], max_tokens, seed)
                _save(entries[i][site], rows.cpu() if kept is None else rows.cpu()[kept], keep_tokens)
        for own in entries:
            for site, entry in own.items():
                loaded = _load(entry, keep_tokens)
                if loaded is None:
                    raise InputError(f"the cache entry {entry} vanished while it was in use; run again")
                # Into one tensor: small rows kept between large temporaries would keep the heap from shrinking.
                if site not in pooled:
                    pooled[site] = torch.empty(len(counterfactuals), len(loaded))
                pooled[site][len(files[site])] = loaded
                files[site].append(entry)
    rows = {site: Rows(pooled[site], TokenFiles(files[site]) if keep_tokens else None) for site in names}
    attributes = [variant.attributes for variant in counterfactuals.variants]
    contexts = [variant.context for variant in counterfactuals.variants]
    source = {
        **vlm.describe(),
        "data_hash": counterfactuals.content_hash,
        "images": len(contexts),
        "prompt": DISCOVERY_PROMPT,
        "max_tokens": max_tokens,
        "seed": seed,
    }
    return Activations.from_rows(rows, attributes, contexts, source)


def kept_tokens(count: int, cap: int = MAX_TOKENS, seed: int = SEED) -> Tensor | None:
    """Which of `count` tokens stay under the cap, in order; None for all. The same for images of equal size."""
    if count <= cap:
        return None
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:cap].sort().values


class TokenFiles(Sequence[Tensor]):
    """The tokens of each image, read from the cache one image at a time."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    @overload
    def __getitem__(self, i: int) -> Tensor: ...
    @overload
    def __getitem__(self, i: slice) -> Sequence[Tensor]: ...
    def __getitem__(self, i: int | slice) -> Tensor | Sequence[Tensor]:
        if isinstance(i, slice):
            return TokenFiles(self.files[i])
        with safe_open(self.files[i], "pt") as entry:
            return entry.get_tensor("tokens")


def _batches(variants: Iterator["Variant"], size: int) -> Iterator[list["Variant"]]:
    batch: list[Variant] = []
    for variant in variants:
        batch.append(variant)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _entry(folder: Path, common: dict[str, object], site: str, variant: "Variant") -> Path:
    key = json.dumps({**common, "site": site, "image": variant.digest}, sort_keys=True)
    name = hashlib.sha256(key.encode()).hexdigest()
    return folder / "activations" / name[:2] / f"{name}.safetensors"


def _load(entry: Path, with_tokens: bool) -> Tensor | None:
    """The pooled row of a whole entry; None when there is none, it is broken, or it lacks wanted tokens."""
    try:
        with safe_open(entry, "pt") as stored:
            if with_tokens and "tokens" not in stored.keys():  # noqa: SIM118 (not a mapping)
                return None
            return stored.get_tensor("pooled")
    except (OSError, SafetensorError):
        return None


def _save(entry: Path, rows: Tensor, with_tokens: bool) -> None:
    tensors = {"pooled": pool(rows)}
    if with_tokens:
        tensors["tokens"] = rows.contiguous()
    write_whole(entry, save(tensors), "set GGSS_CACHE to another folder")
