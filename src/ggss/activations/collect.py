"""Activations from images: one pass of the vision path per image, pooled as a stream, cached on disk.

Appendix A.1: the site's output is captured with a hook, an image of more than 2048 tokens keeps a subset drawn
with seed 42 (the same positions for all variants of an identity, which have equal sizes), and the kept tokens
are averaged. The authors' code averages all tokens of an image, in the model's dtype: `pooling="release"`. The paper
pairs every image with the prompt "Describe this image in detail."; the projector's output is computed before any text
is read, so the language model is not run. With `prompt` the whole model is run on each image, as in the paper; a
study measures that both give the same subspace. For sites inside the text model
(`lm-layer2`) it is always run; their rows are those of the image's tokens.

The key of a cache entry is everything that determines its rows: the model's visual identity, the code that computes
them, the image file's bytes, the site, cap and seed. So no entry is ever out of date. An entry has its key and a
checksum of each tensor; if it is incomplete, damaged or another key's, it is computed again.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor

from ggss import errors, hashing
from ggss.activations import SITE, Activations, LazyTensors, Places, Rows, pool
from ggss.activations.cache import FOLDER, GRID, POOLED, TOKENS, VISIBLE, CacheEntry
from ggss.activations.statistics import Grid, TokenStatistics, common_grid
from ggss.errors import InputError
from ggss.models.families import FAMILIES
from ggss.models.hooks import captured
from ggss.models.identity import check_unchanged
from ggss.models.sites import in_text, is_layer, layer_width, resolve
from ggss.terminal import track
from ggss.version import ggss_code

if TYPE_CHECKING:
    from ggss.data.counterfactuals import Counterfactuals
    from ggss.data.pictures import Picture
    from ggss.models import Vlm
    from ggss.models.features import FeatureCache, Features


DISCOVERY_PROMPT = "Describe this image in detail."
Pooling = Literal["kept", "release"]
MAX_TOKENS = 2048
SEED = 42
_ENTRY_VERSION = 3


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
    summarise: bool = False,
    max_tokens: int = MAX_TOKENS,
    seed: int = SEED,
    cache: str | os.PathLike[str] | None = None,
    features: "FeatureCache | None" = None,
    batch_size: int = 8,
    prompt: str | None = None,
    pooling: Pooling = "kept",
    show: bool | None = None,
) -> Activations:
    """Run the frozen model's vision path over the set and keep each image's pooled row at each site.

    Memory is one row per image and site, whatever the number of tokens: tokens are in the cache on disk. Images that
    are in the cache are not run again.

    Args:
        vlm: the frozen model, from `load_vlm`.
        counterfactuals: the pictures.
        sites: a site name, "all" (every output of a projector), or several names.
        keep_tokens: also keep the tokens; some methods need them.
        summarise: also collect statistics of the tokens (`TokenStatistics`), which are all that `pace` needs. Tokens
            are kept neither in memory nor on disk, so every image is run. Where a family's rows and columns of tokens
            are not known, tokens are kept instead.
        max_tokens: an image with more tokens keeps this many.
        seed: of the choice of these tokens.
        cache: the folder of the cache; GGSS_CACHE unless it is given.
        features: a cache of encoded images. If it has the rows of all sites, they are taken from it, and nothing is
            written to disk.
        batch_size: images that are encoded together.
        prompt: run the whole model on each image with this prompt instead, and capture the sites there; no cache is
            used.
        pooling: "kept": a pooled row is the mean of the kept tokens, in float32. "release": the mean of all tokens,
            rounded to the model's dtype, as in the authors' code.
        show: show progress; None: where a terminal can.

    Returns:
        The activations of all pictures, in their order, with the model and the data they came from.

    Raises:
        InputError: for a site that the model does not have, a number out of its range, or a model that is being
            steered.

    Examples:
        >>> acts = ggss.collect(vlm, faces)
        >>> len(acts) == len(faces), list(acts.sites)
        (True, ['projection-mlp2'])
    """
    errors.TOKENS.check("max_tokens", max_tokens)
    errors.SEED.check("the seed of the tokens that are kept", seed)
    errors.BATCH.check("the batch size", batch_size)
    names = list(vlm.sites(sites))
    if features is not None and features.vlm is not vlm:
        raise InputError(f"the features are of {features.vlm.name}, not of {vlm.name}: give those of the same model")
    in_text_model = any(map(in_text, names))
    check_unchanged(vlm.model, in_text_model)
    described = vlm.describe(text=in_text_model)
    summarise_asked = summarise
    summarise = summarise and prompt is None and vlm.family.grid is not None and not any(map(is_layer, names))
    keep_tokens = keep_tokens or (summarise_asked and not summarise)
    options = _Options(keep_tokens, summarise, max_tokens, seed, pooling)
    if prompt is not None:
        source: _Source = _Prompted(vlm, prompt, options)
    elif features is not None and features.from_features and set(names) <= set(vlm.sites("all")):
        source = _FromFeatures(features, options)
    else:
        source = _FromDisk(vlm, Path(cache) if cache is not None else default_cache(), options)
    pooled: dict[str, Tensor] = {}
    tokens: dict[str, list[Any]] = {site: [] for site in names}
    places: dict[str, list[Places]] = {site: [] for site in names}
    summaries: dict[str, _Summary] = {}
    progress = track(counterfactuals.pictures, f"{vlm.name}: activations", len(counterfactuals), show)
    for start, batch in _batches(progress, batch_size):
        for number, image in enumerate(source.rows(batch, names), start):
            for site, kept in image.items():
                # Into one tensor: small rows between large temporary tensors would fragment the heap.
                if site not in pooled:
                    pooled[site] = torch.empty(len(counterfactuals), len(kept.pooled))
                pooled[site][number] = kept.pooled
                tokens[site].append(kept.tokens)
                if kept.places is not None:
                    places[site].append(kept.places)
                if summarise:
                    if site not in summaries:
                        summaries[site] = _Summary(counterfactuals, kept)
                    summaries[site].add(number, kept)
    if vlm.describe(text=in_text_model) != described:
        raise InputError(f"{vlm.name} was changed while its activations were collected: collect them again")
    rows = {
        site: Rows(
            pooled[site],
            source.tokens(tokens[site]) if keep_tokens else None,
            places[site] if keep_tokens else None,
            summaries[site].statistics.finish() if summarise else None,
        )
        for site in names
    }
    return Activations.from_rows(
        rows,
        [dict(picture.attributes) for picture in counterfactuals],
        [picture.context for picture in counterfactuals],
        {
            **described,
            "data_hash": counterfactuals.content_hash,
            "images": len(counterfactuals),
            "max_side": counterfactuals.max_side,
            "prompt": DISCOVERY_PROMPT if prompt is None else prompt,
            "max_tokens": max_tokens,
            "seed": seed,
            "pooling": pooling,
        },
        unpaired=counterfactuals.unpaired,
        ordered=counterfactuals.ordered,
    )


def kept_tokens(count: int, cap: int = MAX_TOKENS, seed: int = SEED) -> Tensor | None:
    """The positions of the `cap` tokens that are kept of `count`; None: all. The same for images of equal size."""
    if count <= cap:
        return None
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:cap].sort().values


def _pooled(rows: Tensor, kept: Tensor, pooling: Pooling) -> Tensor:
    """The pooled row [D] in float32 of all rows of an image and of those that are kept."""
    return pool(kept) if pooling == "kept" else rows.cpu().mean(0).float()


@dataclass(frozen=True)
class _Options:
    """What is kept of an image's rows."""

    keep_tokens: bool
    summarise: bool
    max_tokens: int
    seed: int
    pooling: Pooling

    def captured(self, rows: Tensor, layout: "_Layout | None", dtype: torch.dtype | None = None) -> "_Captured":
        """What is kept of an image's rows [T, D] at a site, in their dtype or this one. layout: if it is known."""
        positions = kept_tokens(len(rows), self.max_tokens, self.seed)
        kept = (rows if positions is None else rows[positions.to(rows.device)]).to(dtype or rows.dtype)
        pooled = _pooled(rows, kept.cpu(), self.pooling)
        if not self.keep_tokens and not self.summarise:
            return _Captured(pooled)
        if layout is None or len(layout.seen) != len(rows):
            places = Places.of(kept)
        else:
            positions = slice(None) if positions is None else positions
            places = Places.of(kept, layout.seen[positions], None if layout.grid is None else layout.grid[positions])
        return _Captured(pooled, kept if self.summarise else kept.cpu(), places)


@dataclass(frozen=True)
class _Captured:
    """An image at a site: its pooled row, its tokens or the cache entry that has them, and their places."""

    pooled: Tensor
    tokens: Any = None
    places: Places | None = None


@dataclass(frozen=True)
class _Layout:
    """Of all rows of an image at the projector: which the text model gets, [T], and pane, line and column [T, 3]."""

    seen: Tensor
    grid: Tensor | None


class _Layouts:
    """The layouts of images by what their processor says of their size."""

    def __init__(self, vlm: "Vlm") -> None:
        self.vlm, self._known = vlm, dict[tuple[Any, ...], _Layout]()

    def of(self, features: "Features") -> _Layout:
        count = max(map(len, features.rows.values()))
        inputs = {name: value[None] for name, value in features.inputs.items()}
        key = (count, *((name, tuple(value.flatten().tolist())) for name, value in sorted(inputs.items())))
        if key not in self._known:
            family, model = self.vlm.family, self.vlm.model
            grid = None if family.grid is None else family.grid(model, inputs)
            grid = grid if grid is not None and len(grid) == count else None
            self._known[key] = _Layout(family.seen(model, count, inputs), grid)
        return self._known[key]


class _Summary:
    """The statistics of the tokens of a site, with the grid of the first image."""

    def __init__(self, counterfactuals: "Counterfactuals", first: _Captured) -> None:
        images, width = len(counterfactuals), first.tokens.shape[1]
        grid = common_grid([first.places], images, width)
        if grid is None:
            raise InputError("the rows and columns of these tokens are not known: use keep_tokens=True instead")
        self.grid: Grid = grid
        neutral = not any(picture.attributes for picture in counterfactuals)
        self.statistics = TokenStatistics(images, width, grid.count, grid.why, by_picture=neutral, keep=True)
        contexts = [picture.context for picture in counterfactuals]
        numbers = {context: number for number, context in enumerate(dict.fromkeys(contexts))}
        self.people = [numbers[context] for context in contexts]

    def add(self, image: int, captured: _Captured) -> None:
        places = captured.places
        assert places is not None
        visible = captured.tokens[places.visible.to(captured.tokens.device)]
        person = self.people[image]
        self.statistics.add(image, visible, self.grid.parts(places), places.visible, person=person)


class _Source(Protocol):
    """A source of rows: what is kept of each picture, by site."""

    def rows(self, pictures: Sequence["Picture"], sites: Sequence[str]) -> "Iterator[dict[str, _Captured]]": ...

    def tokens(self, handles: list[Any]) -> Sequence[Tensor]: ...


@dataclass(frozen=True)
class _FromFeatures:
    """Rows from a cache of encoded features."""

    features: "FeatureCache"
    options: _Options

    def rows(self, pictures: Sequence["Picture"], sites: Sequence[str]) -> "Iterator[dict[str, _Captured]]":
        for image in self.features.features(pictures):
            layout = self._layouts.of(image)
            yield {site: self.options.captured(image.rows[site], layout, torch.float32) for site in sites}

    def tokens(self, handles: list[Any]) -> Sequence[Tensor]:
        return handles

    @cached_property
    def _layouts(self) -> _Layouts:
        return _Layouts(self.features.vlm)


@dataclass(frozen=True)
class _Prompted:
    """Rows from passes of the whole model, one for each image, with a prompt about it."""

    vlm: "Vlm"
    prompt: str
    options: _Options

    def rows(self, pictures: Sequence["Picture"], sites: Sequence[str]) -> "Iterator[dict[str, _Captured]]":
        inner = [site for site in sites if is_layer(site)]
        outer = [site for site in sites if site not in inner]
        for picture in pictures:
            with captured(self.vlm.model, self.vlm.sites(outer)) as outputs:
                self.vlm.logits([self.prompt], [[picture.image()]])
            image_rows = {site: torch.cat(outputs[site]) for site in outer}
            if inner:
                image_rows |= self.vlm.layer_rows([picture.image()], inner, self.prompt)[0]
            yield {site: self.options.captured(image_rows[site], None, torch.float32) for site in sites}

    def tokens(self, handles: list[Any]) -> Sequence[Tensor]:
        return handles


@dataclass(frozen=True)
class _FromDisk:
    """Rows from the cache on disk; missing ones are computed and written to it."""

    vlm: "Vlm"
    folder: Path
    options: _Options

    def rows(self, pictures: Sequence["Picture"], sites: Sequence[str]) -> "Iterator[dict[str, _Captured]]":
        # The rows of a text layer depend on the text model too, and on the text before the image. The identity is
        # computed for each batch, because the model may change in memory.
        models = {site: (self.vlm.identity if in_text(site) else self.vlm.visual_identity).hash for site in sites}
        entries = [{site: self._entry(site, picture, models[site]) for site in sites} for picture in pictures]
        missing = [
            i
            for i, by_site in enumerate(entries)
            if self.options.summarise or not all(map(self._is_complete, by_site.values()))
        ]
        computed = dict(zip(missing, self._run([pictures[i] for i in missing], sites), strict=True))
        for i, by_site in computed.items():
            for site, image in by_site.items():
                if self._is_complete(entries[i][site]):  # it may have tokens, which are not kept now
                    continue
                kept = {POOLED: image.pooled}
                if self.options.keep_tokens and image.places is not None:
                    kept |= {TOKENS: image.tokens, VISIBLE: image.places.visible}
                    kept |= {} if image.places.grid is None else {GRID: image.places.grid}
                entries[i][site].write(kept)
        if self.options.summarise:
            yield from computed.values()
            return
        for by_site in entries:
            yield {
                site: _Captured(entry.need(POOLED), entry, self._places(entry) if self.options.keep_tokens else None)
                for site, entry in by_site.items()
            }

    def tokens(self, handles: list[Any]) -> Sequence[Tensor]:
        return LazyTensors(handles, _cached_tokens)

    def _run(self, pictures: Sequence["Picture"], sites: Sequence[str]) -> list[dict[str, _Captured]]:
        """What is kept of each picture, by site."""
        images = [picture.image() for picture in pictures]
        inner = [site for site in sites if is_layer(site)]
        outer = [site for site in sites if site not in inner]
        rows: list[dict[str, _Captured]] = [{} for _ in images]
        if images and outer:
            for by_site, features in zip(rows, self.vlm.encode(images, sites=outer), strict=True):
                layout = self._layouts.of(features)
                by_site |= {site: self.options.captured(features.rows[site], layout) for site in outer}
        if images and inner:
            for by_site, layers in zip(rows, self.vlm.layer_rows(images, inner, DISCOVERY_PROMPT), strict=True):
                by_site |= {site: self.options.captured(layers[site], None) for site in inner}
        return rows

    @cached_property
    def _layouts(self) -> _Layouts:
        return _Layouts(self.vlm)

    def _places(self, entry: CacheEntry) -> Places:
        grid = entry.read(GRID)
        total = entry.need(TOKENS).shape[0] if grid is None else len(grid)
        return Places(total, entry.need(VISIBLE), grid)

    def _entry(self, site: str, picture: "Picture", model: str) -> CacheEntry:
        key = {
            "version": _ENTRY_VERSION,
            "model": model,
            "code": self._code,
            "site": site,
            "image": picture.digest,
            "max_tokens": self.options.max_tokens,
            "seed": self.options.seed,
        }
        if self.options.pooling != "kept":
            key["pooling"] = self.options.pooling
        if in_text(site):
            key["prompt"] = DISCOVERY_PROMPT
        if is_layer(site):
            width = layer_width(self.vlm.model.config, site)
        else:
            width = getattr(resolve(self.vlm.model, self.vlm.sites(site)[site]), "out_features", None)
        return CacheEntry(self.folder / FOLDER, json.dumps(key, sort_keys=True), width)

    @cached_property
    def _code(self) -> str:
        """Hash of the code that computes the rows: that of ggss, and of a plug-in that has the model's family."""
        family = self.vlm.family.name
        return hashing.of(ggss_code() | (FAMILIES.code(family) if family in FAMILIES else {}))

    def _is_complete(self, entry: CacheEntry) -> bool:
        names = (POOLED, *([TOKENS, VISIBLE] if self.options.keep_tokens else []))
        return all(entry.read(name) is not None for name in names)


def _cached_tokens(entry: CacheEntry) -> Tensor:
    return entry.need(TOKENS)


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
