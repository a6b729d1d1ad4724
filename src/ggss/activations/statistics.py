"""Statistics of tokens: all that PACE reads of them, collected in one pass, also while pictures are being encoded.

    sums [N, P, D]       of the tokens of image i in part p, relative to mu; counts [N, P]: how many they are
    moments [2, D, D]    of two folds of tokens around mu: how tokens vary
    mu [D]               the mean of the images' mean tokens

Every contrast of an attribute is a weighted sum over images of these sums: with the labels as they are, with permuted
ones, or of some of the people. So tokens are read once, and need not be kept.

**Parts** say which tokens of different images show the same thing. Where rows and columns of the tokens are known
(`Places.grid`) a part is a cell of a grid that is laid over every picture, whatever its size: each token belongs to
the cell in which its middle lies. The grid has as many lines and columns as the smallest picture, so that every cell
has tokens of every picture. It is coarser if these would be more than `MOST_PARTS`, or their sums more than
`MOST_BYTES`. Where all pictures are of one size the cells are the positions. Tokens on several panes, as LLaVA-NeXT's
overview and tiles, have a grid for each pane. While pictures are encoded, the grid is that of the first.

Where rows and columns are not known, parts are positions if all pictures have the same number of tokens, else
clusters of content: spherical k-means on each group's mean token at a position, relative to mu. The mean is over the
versions of a person, so all of them have the same part at a position. Unpaired pictures have no such mean, and each
is one part.

**The moments** are those of all tokens if there are at most `SAMPLE`, else of that many: of each image equally many,
drawn with a fixed seed. Products of tokens are computed on the device that they are on.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ggss.activations import Activations, Groups, Places
from ggss.errors import InputError, problems
from ggss.terminal import track

PartsOption = Literal["auto", "positions"] | int

MOST_BYTES = 2**29  # what the sums may take
MOST_PARTS = 256  # more say no more, and take longer
SAMPLE = 2**17  # tokens that the moments are taken from, at most
SEED = 42
AT_ONCE = 4096  # tokens of one product for the moments
CLUSTERS = 16  # of content, where rows and columns are not known
CLUSTERED = 20_000  # mean tokens that clusters are fitted to
ROUNDS = 25  # of k-means
KEPT = 16  # tokens of each image that are kept if tokens are not: for what is measured after a fit
GOLDEN = (5**0.5 - 1) / 2  # of a step: so the positions that are kept of many people are spread evenly


@dataclass(frozen=True)
class Grid:
    """A grid over all pictures: pane -> its lines and columns. why: for the notes of a fit."""

    panes: dict[int, tuple[int, int]]
    why: str

    @property
    def count(self) -> int:
        return _cells(self.panes)

    def parts(self, place: Places) -> Tensor:
        """The part [T] of each token of an image."""
        assert place.grid is not None
        grid = place.grid[place.visible].double()
        parts, first = torch.zeros(len(grid), dtype=torch.long), 0
        for pane, (lines, columns) in self.panes.items():
            inside = grid[:, 0] == pane
            line = (grid[inside, 1] * lines).long().clamp(0, lines - 1)
            column = (grid[inside, 2] * columns).long().clamp(0, columns - 1)
            parts[inside] = first + line * columns + column
            first += lines * columns
        return parts


def common_grid(places: Sequence[Places | None], images: int, width: int) -> Grid | None:
    """The grid of pictures with these places, as fine as `MOST_BYTES` allow; None if a picture's grid is not known.

    images: how many there will be; places may be those of the first only.
    """
    sizes: list[dict[int, tuple[int, int]]] = []
    for place in {id(place): place for place in places}.values():
        if place is None or place.grid is None:
            return None
        grid = place.grid[place.visible]
        of_pane = {int(pane): grid[grid[:, 0] == pane] for pane in grid[:, 0].unique()}
        sizes.append({pane: (len(rows[:, 1].unique()), len(rows[:, 2].unique())) for pane, rows in of_pane.items()})
    panes = {
        pane: (
            min(size[pane][0] for size in sizes if pane in size),
            min(size[pane][1] for size in sizes if pane in size),
        )
        for pane in sorted({pane for size in sizes for pane in size})
    }
    finest = _cells(panes)
    most = min(max(MOST_BYTES // (4 * images * width), 1), MOST_PARTS)
    share = min((most / finest) ** 0.5, 1)
    coarse = _coarser(panes, share)
    while (count := _cells(coarse)) > max(most, len(panes)):  # a pane of one line has fewer columns instead
        share *= most / count
        coarse = _coarser(panes, share)
    shape = " and ".join(f"{lines} x {columns}" for lines, columns in coarse.values())
    if share < 1:
        why = f"cells of a grid of {shape}: {finest} positions would be too many"
    elif any(size != sizes[0] for size in sizes):
        why = f"cells of a grid of {shape}, to which pictures of several sizes are resampled"
    else:
        why = f"the {finest} positions of a picture, a grid of {shape}"
    return Grid(coarse, why)


def _cells(panes: Mapping[int, tuple[int, int]]) -> int:
    return sum(lines * columns for lines, columns in panes.values())


def _coarser(panes: Mapping[int, tuple[int, int]], share: float) -> dict[int, tuple[int, int]]:
    """The panes with this share of their lines and columns, at least one of each."""
    return {
        pane: (max(int(lines * share), 1), max(int(columns * share), 1)) for pane, (lines, columns) in panes.items()
    }


@dataclass(frozen=True)
class Moments:
    """Second moments [2, D, D] around a centre [D] for two folds of tokens, with their sums [2, D] and counts [2]."""

    folds: Tensor
    sums: Tensor
    counts: Tensor
    centre: Tensor

    @property
    def mean(self) -> Tensor:
        return self.folds.sum(0) / self.counts.sum()

    def fold(self, number: int) -> Tensor:
        return self.folds[number] / self.counts[number]

    def around(self, centre: Tensor) -> "Moments":
        """The same around another centre."""
        shift = centre - self.centre
        folds = self.folds.clone()
        for fold, (total, count) in enumerate(zip(self.sums, self.counts, strict=True)):
            cross = torch.outer(total - count / 2 * shift, shift)
            folds[fold] -= cross + cross.T
        return Moments(folds, self.sums - self.counts[:, None] * shift, self.counts, centre)


class TokenStatistics:
    """The statistics of N images whose tokens are added one image after the other; `finish` completes them.

    parts: how many there are, and why these. by_picture: every second picture is in the other fold of the moments;
    else every second position is. keep: also keep `KEPT` tokens of each image.
    """

    def __init__(
        self, images: int, width: int, parts: int, why: str = "", *, by_picture: bool = False, keep: bool = False
    ) -> None:
        self.parts, self.why = parts, why
        self.sums = torch.zeros(images, parts, width)
        self.counts = torch.zeros(images, parts, dtype=torch.float64)
        self.fold_counts = torch.zeros(parts, 2, dtype=torch.float64)
        """Of each part, how many tokens are in each fold."""
        self.kept: list[Tensor] | None = [torch.zeros(0)] * images if keep else None
        self._quota, self._by_picture = max(SAMPLE // images, 2), by_picture
        self._centre: Tensor | None = None
        self._folds: list[_Fold] = []
        self._moments: Moments | None = None

    def add(
        self, image: int, tokens: Tensor, part: Tensor, numbers: Tensor | None = None, *, person: int = 0
    ) -> None:
        """Add an image's tokens [T, D], with their parts [T]. numbers [T]: their positions, 0 to T - 1 by default.

        person: of all pictures of one, tokens at the same positions are kept.
        """
        rows = tokens.float()
        if self._centre is None:
            self._centre = rows.mean(0)
            self._folds = [_Fold(rows.shape[1], rows.device) for _ in range(2)]
        rows = rows - self._centre
        sums = torch.zeros(self.sums.shape[1:], device=rows.device).index_add_(0, part.to(rows.device), rows)
        self.sums[image] = sums.cpu()
        self.counts[image] = part.bincount(minlength=self.parts).double()
        numbers = torch.arange(len(rows)) if numbers is None else numbers
        fold = torch.full_like(numbers, image % 2) if self._by_picture else numbers % 2
        self.fold_counts += torch.stack([part[fold == f].bincount(minlength=self.parts) for f in (0, 1)], 1)
        drawn = torch.arange(len(rows))
        if len(rows) > self._quota:
            generator = torch.Generator().manual_seed(SEED + image)
            drawn = torch.randperm(len(rows), generator=generator)[: self._quota]
        for f in (0, 1):
            self._folds[f].add(rows[drawn[fold[drawn] == f].to(rows.device)])
        if self.kept is not None:
            spread = ((torch.arange(KEPT) + (0.5 + person * GOLDEN) % 1) * len(rows) / KEPT).long()
            self.kept[image] = tokens[spread.to(tokens.device)].cpu()

    def finish(self) -> "TokenStatistics":
        """Centre everything at mu, once all images were added."""
        if self._centre is None or not bool((self.counts.sum(1) > 0).all()):
            raise InputError("there are images without tokens: nothing can be learned from them")
        provisional = self._centre.cpu().double()
        means = self.sums.sum(1).double() / self.counts.sum(1, keepdim=True)
        shift = means.mean(0)
        for image, counts in enumerate(self.counts):
            self.sums[image] -= (counts[:, None] * shift).float()
        matrices = torch.stack([fold.total() for fold in self._folds])
        moments = Moments(
            matrices,
            torch.stack([fold.sum.cpu() for fold in self._folds]),
            torch.tensor([float(fold.count) for fold in self._folds], dtype=torch.float64),
            provisional,
        )
        self._folds = []
        self._moments = moments.around(provisional + shift)
        return self

    @property
    def moments(self) -> Moments:
        assert self._moments is not None, "finish() was not called"
        return self._moments

    @property
    def mu(self) -> Tensor:
        return self.moments.centre

    @property
    def sampled(self) -> float:
        """The share of the tokens that the moments are taken from."""
        return float(self.moments.counts.sum() / self.counts.sum())


class _Fold:
    """The second moment [D, D] and sum [D] of rows, collected in products of `AT_ONCE` rows; float64."""

    def __init__(self, width: int, device: torch.device) -> None:
        self.matrix = torch.zeros(width, width, dtype=torch.float64, device=device)
        self.sum = torch.zeros(width, dtype=torch.float64, device=device)
        self.count, self._waiting, self._rows = 0, 0, list[Tensor]()

    def add(self, rows: Tensor) -> None:
        self._rows.append(rows)
        self._waiting += len(rows)
        if self._waiting >= AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        rows = torch.cat(self._rows) if self._rows else self.sum.new_zeros(0, len(self.sum)).float()
        self.matrix += rows.T @ rows
        self.sum += rows.double().sum(0)
        self.count += len(rows)
        self._waiting, self._rows = 0, []

    def total(self) -> Tensor:
        self._flush()
        return self.matrix.cpu()


@dataclass(frozen=True)
class Parts:
    """`count` parts: clusters of content with centres [count, D], or positions without. why: for the fit's notes."""

    count: int
    why: str
    mu: Tensor
    centres: Tensor | None = None

    def of(self, start: int, block: Tensor) -> Tensor:
        """The part [positions] of each position of a block [positions, values, D] that begins at `start`."""
        if self.centres is None:
            return torch.arange(start, start + len(block))
        return (_unit_rows(block.mean(1) - self.mu) @ self.centres.T).argmax(1)


def find_parts(activations: Activations, groups: Groups, option: PartsOption, mu: Tensor, copies: int) -> Parts:
    """The parts of tokens without a common grid. copies: how many sums [P, A, D] in float32 the caller will hold."""
    counts = {len(activations.tokens[image]) for image in range(len(activations))} if option != 1 else set()
    if option == 1:
        return Parts(1, "all tokens are one part, as asked", mu, torch.zeros(1, len(mu), dtype=torch.float64))
    size = max(counts) * len(groups.values) * len(mu) * 4 * copies
    if option == "positions" and len(counts) > 1:
        raise _unequal(counts)
    if option == "positions" or (option == "auto" and len(counts) == 1 and size <= MOST_BYTES):
        reason = ", as asked" if option == "positions" else ": all images have that many tokens"
        return Parts(max(counts), f"the {max(counts)} positions of a picture{reason}", mu)
    clusters = CLUSTERS if option == "auto" else option
    if option != "auto":
        why = "as asked"
    elif len(counts) > 1:
        why = f"images have {min(counts)} to {max(counts)} tokens, and their rows and columns are not known"
    else:
        why = f"the sums of {max(counts)} positions would take {size / 2**30:.1f} GiB"
    return Parts(clusters, f"{clusters} clusters of content: {why}", mu, _clusters(activations, groups, clusters, mu))


def _unequal(counts: set[int]) -> InputError:
    return InputError(
        f"parts='positions' needs images of one number of tokens, these have {min(counts)} to {max(counts)}; "
        "use parts='auto' or a number of content clusters"
    )


def _clusters(activations: Activations, groups: Groups, count: int, mu: Tensor) -> Tensor:
    """Centres [count, D] of unit length, by spherical k-means from randomly drawn rows."""
    generator = torch.Generator().manual_seed(SEED)
    per_group = max(CLUSTERED // len(groups.contexts), 1)
    sample = []
    for _, tokens in aligned_tokens(activations, groups, "parts of tokens"):
        means = _mean_tokens(tokens) - mu
        sample.append(means[torch.randperm(len(means), generator=generator)[:per_group]])
    rows = _unit_rows(torch.cat(sample))
    distinct = rows.unique(dim=0)
    if len(distinct) < count:
        raise InputError(f"{count} parts were asked for, but there are {len(distinct)} different tokens")
    centres = distinct[torch.randperm(len(distinct), generator=generator)[:count]]
    for _ in range(ROUNDS):
        nearest = (rows @ centres.T).argmax(1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, rows)
        moved = torch.where(sums.norm(dim=1, keepdim=True) > 0, _unit_rows(sums), centres)
        if torch.equal(moved, centres):
            break
        centres = moved
    return centres


def _unit_rows(rows: Tensor) -> Tensor:
    lengths = rows.norm(dim=1, keepdim=True)
    return rows / torch.where(lengths > 0, lengths, 1)


def gather(activations: Activations, option: PartsOption, groups: Groups | None) -> TokenStatistics:
    """The statistics of the tokens: those that were collected, or made of the tokens now.

    groups: of the versions of people; None for unpaired pictures, which have no clusters of content.
    """
    if (collected := activations.statistics) is not None:
        if option != "auto":
            raise InputError(f"parts={option!r} needs tokens, and only statistics were collected: use parts='auto'")
        return collected
    images, width, places = len(activations), activations.pooled.shape[1], activations.places
    if option in ("auto", "positions") and (grid := common_grid(places, images, width)) is not None:
        assigned = [grid.parts(place) for place in places if place is not None]
        return summed(activations, assigned, TokenStatistics(images, width, grid.count, grid.why))
    totals = {
        len(tokens) if place is None else place.total
        for tokens, place in zip(activations.tokens, places, strict=True)
    }
    positions = max(totals)
    fits = positions <= MOST_PARTS and 4 * images * positions * width <= MOST_BYTES
    if option == "positions" and len(totals) > 1:
        raise _unequal(totals)
    if option == "positions" or (option == "auto" and len(totals) == 1 and fits):
        why = "as asked" if option == "positions" else "all images have that many tokens"
        empty = TokenStatistics(images, width, positions, f"the {positions} positions of a picture: {why}")
        return summed(activations, [_numbers(activations, image) for image in range(images)], empty)
    reason = "as asked"
    if option == "auto":
        reason = f"these have {min(totals)} to {positions} tokens, and their rows and columns are not known"
        reason = reason if len(totals) > 1 else f"{positions} positions would be too many"
    if option == 1 or (groups is None and option == "auto"):
        empty = TokenStatistics(images, width, 1, f"whole pictures: {reason}")
        return summed(activations, whole_pictures(activations), empty)
    if groups is None:
        raise InputError(
            f"parts={option!r} are clusters of what the versions of a person show, and these pictures are unpaired: "
            "use 'auto', 'positions' or 1"
        )
    clusters = CLUSTERS if option == "auto" else int(option)
    parts = find_parts(activations, groups, clusters, activations.pooled.double().mean(0), 1)
    statistics = TokenStatistics(images, width, clusters, f"{clusters} clusters of content: {reason}")
    for members, tokens in aligned_tokens(activations, groups, "statistics of tokens"):
        part = parts.of(0, _mean_tokens(tokens)[:, None])
        for image, rows in zip(members, tokens, strict=True):
            statistics.add(image, rows, part, _numbers(activations, image))
    return statistics.finish()


def aligned_tokens(activations: Activations, groups: Groups, what: str) -> Iterator[tuple[list[int], list[Tensor]]]:
    """Yield the images of a group and their tokens [T, D], group by group. what: the title of the progress bar.

    InputError if the images of a group have different numbers of tokens: then their positions do not correspond.
    """
    for context, images in track(list(zip(groups.contexts, groups.index.tolist(), strict=True)), what):
        tokens = [activations.tokens[image] for image in images]
        counts = [len(image_tokens) for image_tokens in tokens]
        if len(set(counts)) > 1:
            details = [f"{value!r} has {count} tokens" for value, count in zip(groups.values, counts, strict=True)]
            raise problems(f"the images of context {context!r} need equal token counts", details)
        yield images, tokens


def _mean_tokens(tokens: Sequence[Tensor]) -> Tensor:
    """The mean [T, D] in float64 over images of their tokens [T, D]."""
    total = tokens[0].double()
    for rows in tokens[1:]:
        total = total + rows
    return total / len(tokens)


def whole_pictures(activations: Activations) -> list[Tensor]:
    """The parts of the tokens of each image if a picture is one part."""
    return [torch.zeros(len(tokens), dtype=torch.long) for tokens in activations.tokens]


def _numbers(activations: Activations, image: int) -> Tensor:
    """The positions of an image's tokens among all of its rows."""
    place = activations.places[image]
    return torch.arange(len(activations.tokens[image])) if place is None else place.visible


def summed(activations: Activations, parts: Sequence[Tensor], empty: TokenStatistics) -> TokenStatistics:
    """The statistics of all tokens. parts: of the tokens of each image."""
    for image, tokens in enumerate(track(activations.tokens, "statistics of tokens", len(activations))):
        empty.add(image, tokens, parts[image], _numbers(activations, image))
    return empty.finish()
