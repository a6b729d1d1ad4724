"""A frozen model's activations on a counterfactual set: the input of every method.

One pooled row per image; tokens, or statistics of them (`TokenStatistics`), only if a method needs them. `collect`
computes them from images.

**Rows that do not count.** Rows that are exactly zero, and those that the text model never gets (padding, which
LLaVA-NeXT drops after the site), say nothing about a picture. `Activations.tokens` leaves them out (`Places`), so no
method has to. What is left out in one version of a person is left out in all versions of the same size, so that their
tokens stay aligned. A method that compares complete images with complete images, as the model gives them while it is
steered, takes `Activations.complete_tokens`. Pooled rows are the paper's: means over all rows.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor

from ggss.data.counterfactuals import check_numbers
from ggss.errors import InputError, no_such, problems
from ggss.models.sites import MLP2

if TYPE_CHECKING:
    from ggss.activations.statistics import TokenStatistics

SITE = MLP2  # the site that the paper steers


@dataclass(frozen=True)
class Places:
    """Which of an image's rows count, and where they lie.

    total: how many rows the image has. visible: the numbers of those that count, in order.
    grid [total, 3]: each row's pane, and the line and column in it as shares from 0 to 1 of those that count; None if
    that is not known.
    """

    total: int
    visible: Tensor
    grid: Tensor | None = None

    @classmethod
    def of(cls, rows: Tensor, seen: Tensor | None = None, grid: Tensor | None = None) -> "Places":
        """The places of rows [T, D]. seen [T]: those that the text model gets. grid [T, 3]: pane, line and column.

        If all rows are zero, they count: the methods say what is wrong with such an image.
        """
        counts = rows.ne(0).any(1).cpu()
        counts = counts if seen is None else counts & seen
        counts = counts if counts.any() else torch.ones_like(counts)
        return cls(len(rows), counts.nonzero().flatten(), None if grid is None else _relative(grid, seen))


def _relative(grid: Tensor, seen: Tensor | None) -> Tensor:
    """Lines and columns [T, 3] as shares of those that are seen in their pane; the first of two lines is at 1/4."""
    shares = grid.double()
    for pane in grid[:, 0].unique():
        inside = grid[:, 0] == pane
        seen_inside = inside if seen is None else inside & seen
        for axis in (1, 2):
            lines = grid[seen_inside, axis] if seen_inside.any() else grid[inside, axis]
            first, count = int(lines.min()), int(lines.max() - lines.min()) + 1
            shares[inside, axis] = (grid[inside, axis] - first + 0.5).double() / count
    return shares.float()


@dataclass(frozen=True)
class Rows:
    """The rows of a site: pooled [N, D] float32, and each image's tokens [T, D] if they were kept.

    places: which of the tokens count; None: all. statistics: of the tokens, if they were collected instead of them.
    """

    pooled: Tensor
    tokens: Sequence[Tensor] | None = None
    places: Sequence[Places] | None = None
    statistics: "TokenStatistics | None" = None


class LazyTensors(Sequence[Tensor]):
    """A sequence whose tensors are made when they are indexed, one at a time. A slice makes no tensor.

    sources: what each tensor is made from. make: source -> tensor; a function that can be pickled.
    """

    def __init__(self, sources: Sequence[Any], make: Callable[[Any], Tensor]) -> None:
        self.sources, self.make = sources, make

    def __len__(self) -> int:
        return len(self.sources)

    @overload
    def __getitem__(self, i: int) -> Tensor: ...
    @overload
    def __getitem__(self, i: slice) -> Sequence[Tensor]: ...
    def __getitem__(self, i: int | slice) -> Tensor | Sequence[Tensor]:
        if isinstance(i, slice):
            return LazyTensors(self.sources[i], self.make)
        return self.make(self.sources[i])


@dataclass(frozen=True)
class Groups:
    """The counterfactual table of an attribute: image `index[u, a]` shows context `contexts[u]` with `values[a]`."""

    values: tuple[Hashable, ...]
    contexts: tuple[Hashable, ...]
    index: Tensor

    def of(self, rows: Tensor) -> Tensor:
        """Arrange rows [N, D] as [contexts, values, D]."""
        return rows[self.index]

    @property
    def numbers(self) -> Tensor:
        """The number [N] of each image's context in the table."""
        numbers = torch.empty(self.index.numel(), dtype=torch.long)
        numbers[self.index] = torch.arange(len(self.index))[:, None].expand_as(self.index)
        return numbers


class Activations:
    """Tokens (or their pooled means) of N images, with their attributes and contexts.

    Images that share a context and all other attributes form one counterfactual group.

    Args:
        tokens: one [T, D] tensor per image.
        attributes: one dict per image, such as {"race": "jade", "gender": "woman"}: what is varied.
        contexts: one hashable per image that names what is held fixed (occupation, identity).
        site: the name of the site in the model where the tokens were taken.
        unpaired: there are no versions of a person; images are compared within contexts, which name what they are
            matched by, and which may have any number of images of each value.
        ordered: the attributes that are numbers, such as an age in years.

    Raises:
        InputError: for tokens of a wrong shape, of several widths or not finite, for lists of unequal length, and for
            an ordered attribute with a label that is no number.

    Examples:
        >>> tokens = [torch.randn(4, 8) for _ in range(4)]
        >>> races = [{"race": "jade"}, {"race": "pearl"}] * 2
        >>> acts = ggss.Activations(tokens, races, contexts=["nurse/01", "nurse/01", "cook/07", "cook/07"])
        >>> len(acts), acts.pooled.shape, acts.groups("race").values
        (4, torch.Size([4, 8]), ('jade', 'pearl'))
    """

    def __init__(
        self,
        tokens: Sequence[Tensor],
        attributes: Sequence[Mapping[str, str]],
        contexts: Sequence[Hashable],
        site: str = SITE,
        *,
        unpaired: bool = False,
        ordered: str | Sequence[str] = (),
    ) -> None:
        flaws = [
            f"image {i} has tokens of shape {tuple(t.shape)}, not [T, D]" for i, t in enumerate(tokens) if t.ndim != 2
        ] or [f"image {i} has no tokens" for i, t in enumerate(tokens) if t.shape[0] == 0]
        if flaws:
            raise problems("these activations cannot be used", flaws)
        if len({t.shape[1] for t in tokens}) > 1:
            raise InputError(f"all images need tokens of the same width, seen {sorted({t.shape[1] for t in tokens})}")
        if not tokens:
            raise InputError("no activations: the list of tokens is empty")
        pooled = torch.stack([pool(t) for t in tokens])
        rows = Rows(pooled, tokens, [Places.of(t) for t in tokens])
        self._set({site: rows}, attributes, contexts, {}, unpaired, ordered)

    @classmethod
    def from_rows(
        cls,
        sites: Mapping[str, Rows],
        attributes: Sequence[Mapping[str, str]],
        contexts: Sequence[Hashable],
        source: Mapping[str, Any] | None = None,
        *,
        unpaired: bool = False,
        ordered: str | Sequence[str] = (),
    ) -> "Activations":
        """Activations from the rows of one or more sites. source: the model and data they came from."""
        new = cls.__new__(cls)
        new._set(dict(sites), attributes, contexts, dict(source or {}), unpaired, ordered)
        return new

    def _set(
        self,
        sites: dict[str, Rows],
        attributes: Sequence[Mapping[str, str]],
        contexts: Sequence[Hashable],
        source: dict[str, Any],
        unpaired: bool,
        ordered: str | Sequence[str],
    ) -> None:
        counts = {"attributes": len(attributes), "contexts": len(contexts)}
        counts |= {f"rows of {site}": rows.pooled.shape[0] for site, rows in sites.items()}
        if len(set(counts.values())) != 1:
            raise InputError(
                "one entry per image is needed, seen " + ", ".join(f"{n} {what}" for what, n in counts.items())
            )
        for site, rows in sites.items():
            bad = (~torch.isfinite(rows.pooled)).any(1).nonzero().flatten().tolist()
            if bad:
                raise InputError(
                    f"activations at {site} are not finite for {len(bad)} of {len(contexts)} images, "
                    f"the first is image {bad[0]}; run the model in bfloat16 or float32"
                )
        self.sites = sites if unpaired else {site: _aligned(rows, contexts) for site, rows in sites.items()}
        self.source = source
        self.attributes = [dict(row) for row in attributes]
        self.contexts = list(contexts)
        self.unpaired, self.ordered = unpaired, (ordered,) if isinstance(ordered, str) else tuple(ordered)
        for name in self.ordered:
            check_numbers(name, dict.fromkeys(map(str, self.labels(name))))

    def __len__(self) -> int:
        return len(self.contexts)

    @property
    def pooled(self) -> Tensor:
        """[N, D] float32: each image's mean token at the (first) site."""
        return next(iter(self.sites.values())).pooled

    @property
    def tokens(self) -> Sequence[Tensor]:
        """The [T, D] tokens of each image at the (first) site that count, loaded when they are accessed."""
        tokens, places = self.complete_tokens, self.places
        if all(place is None or len(place.visible) == place.total for place in places):
            return tokens
        return LazyTensors(range(len(self)), _Visible(tokens, places))

    @property
    def has_tokens(self) -> bool:
        """Whether tokens were kept at the (first) site."""
        return next(iter(self.sites.values())).tokens is not None

    @property
    def complete_tokens(self) -> Sequence[Tensor]:
        """The same with the rows that do not count: all that the site gives out for an image."""
        tokens = next(iter(self.sites.values())).tokens
        if tokens is None:
            raise InputError("these activations hold pooled means only; collect them with keep_tokens=True")
        return tokens

    @property
    def places(self) -> Sequence[Places | None]:
        """Which rows of each image count at the (first) site, and where they lie; None for an image: all of them."""
        return next(iter(self.sites.values())).places or [None] * len(self)

    @property
    def statistics(self) -> "TokenStatistics | None":
        """The statistics of the tokens at the (first) site, if they were collected instead of tokens."""
        return next(iter(self.sites.values())).statistics

    def at(self, site: str) -> "Activations":
        """The same images at one site."""
        if site not in self.sites:
            raise no_such(f"no activations at site {site!r}", site, self.sites)
        return self._like({site: self.sites[site]}, self.attributes, self.contexts)

    def of(self, images: Sequence[int]) -> "Activations":
        """The activations of some of the images, in this order; tokens are loaded when they are accessed."""
        index = torch.tensor(images, dtype=torch.long)
        sites = {}
        for site, rows in self.sites.items():
            tokens = None if rows.tokens is None else LazyTensors(list(images), rows.tokens.__getitem__)
            places = None if rows.places is None else [rows.places[i] for i in images]
            sites[site] = Rows(rows.pooled[index], tokens, places)
        return self._like(sites, [self.attributes[i] for i in images], [self.contexts[i] for i in images])

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "Activations":
        """The same images at the (first) site, with each image's complete tokens changed when they are accessed."""
        site, rows = next(iter(self.sites.items()))
        tokens = LazyTensors(self.complete_tokens, change)
        pooled = torch.stack([pool(image_tokens) for image_tokens in tokens])
        return self._like({site: Rows(pooled, tokens, rows.places)}, self.attributes, self.contexts)

    def _like(
        self, sites: Mapping[str, Rows], attributes: Sequence[Mapping[str, str]], contexts: Sequence[Hashable]
    ) -> "Activations":
        return Activations.from_rows(
            sites, attributes, contexts, self.source, unpaired=self.unpaired, ordered=self.ordered
        )

    def labels(self, attribute: str | tuple[str, ...]) -> list[Hashable]:
        """Each image's value of an attribute, or its tuple of values of several (intersectional groups)."""
        names = (attribute,) if isinstance(attribute, str) else attribute
        existing = sorted({name for row in self.attributes for name in row})
        if len(set(names)) < len(names):
            raise InputError(f"the attributes {', '.join(names)} are crossed, so each may be named once")
        for name in names:
            if any(name not in row for row in self.attributes):
                raise no_such(f"no attribute {name!r} in these activations", name, existing)
        if isinstance(attribute, str):
            return [row[attribute] for row in self.attributes]
        return [tuple(row[name] for name in names) for row in self.attributes]

    def values(self, attribute: str | tuple[str, ...]) -> tuple[Hashable, ...]:
        """The values of an attribute, sorted; those of an ordered one by their numbers."""
        labels = set(self.labels(attribute))
        if attribute in self.ordered:
            return tuple(sorted(labels, key=lambda label: float(str(label))))
        return tuple(sorted(labels, key=str))

    def groups(self, attribute: str | tuple[str, ...]) -> Groups:
        """The table of contexts u by values a.

        An InputError lists every missing or duplicate entry, or says that the images are unpaired.
        """
        if self.unpaired:
            raise InputError("these images are unpaired: there are no versions of a person that could be compared")
        names = (attribute,) if isinstance(attribute, str) else attribute
        labels = self.labels(attribute)
        values = self.values(attribute)
        if len(values) < 2:
            raise InputError(f"attribute {attribute!r} has one value, {labels[0]!r}; a contrast needs two or more")
        table: dict[Hashable, dict[Hashable, int]] = {}
        flaws = []
        for image, (label, context) in enumerate(zip(labels, self.contexts, strict=True)):
            other_attributes = tuple((k, v) for k, v in sorted(self.attributes[image].items()) if k not in names)
            members = table.setdefault((context, other_attributes) if other_attributes else context, {})
            if label in members:
                flaws.append(f"images {members[label]} and {image} are both {label!r} in context {context!r}")
            members[label] = image
        for context, members in table.items():
            missing = [str(value) for value in values if value not in members]
            if missing:
                flaws.append(
                    f"context {context!r} has {len(members)} of {len(values)} values of {attribute!r}: "
                    f"missing {', '.join(missing)}"
                )
        if flaws:
            raise problems("the counterfactual table is not complete", flaws)
        index = torch.tensor([[members[value] for value in values] for members in table.values()])
        return Groups(values, tuple(table), index)


@dataclass(frozen=True)
class _Visible:
    """Image number -> its tokens that count."""

    tokens: Sequence[Tensor]
    places: Sequence[Places | None]

    def __call__(self, image: int) -> Tensor:
        place = self.places[image]
        return self.tokens[image] if place is None else self.tokens[image][place.visible]


def _aligned(rows: Rows, contexts: Sequence[Hashable]) -> Rows:
    """The rows with the same places in all images of a context that have equally many rows."""
    if rows.places is None:
        return rows
    versions: dict[tuple[Hashable, int], list[int]] = {}
    for image, (context, place) in enumerate(zip(contexts, rows.places, strict=True)):
        versions.setdefault((context, place.total), []).append(image)
    places = list(rows.places)
    for images in versions.values():
        first = places[images[0]].visible
        if all(torch.equal(places[image].visible, first) for image in images[1:]):
            continue
        common = reduce(lambda a, b: a[torch.isin(a, b)], (places[image].visible for image in images))
        if not len(common):
            raise InputError(
                f"every token is zero in at least one image of context {contexts[images[0]]!r}: its images cannot be "
                "compared token by token"
            )
        for image in images:
            places[image] = replace(places[image], visible=common)
    return replace(rows, places=places)


def pool(tokens: Tensor) -> Tensor:
    """The mean token [D] in float32, summed in float64 so that it does not depend on the order of tokens."""
    return tokens.double().mean(0).float()
