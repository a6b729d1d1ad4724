"""A steerer: a method's operators for the sites of one model. Steer rows, attach to a model, save, share.

Strengths: what an alpha may be, and the strength of each row.

A steerer in a notebook: what it removes, at which sites, what discovery measured and warned of.
"""

import hashlib
import json
import os
from collections.abc import Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from ggss import errors, escaping, hashing
from ggss.activations import SITE
from ggss.errors import InputError, no_such
from ggss.escaping import plot
from ggss.methods import operator
from ggss.steering.attach import AttachedRun, attached
from ggss.steering.compatibility import fitting_paths
from ggss.version import library_versions

if TYPE_CHECKING:
    from pathlib import Path

    from ggss.models import Vlm


Alpha = float | Sequence[float] | Tensor
"""A strength: a number, or one for each image."""


def checked_alpha(alpha: Alpha, allow_amplify: bool) -> float | Tensor:
    """A number, or a float32 tensor [images] of one for each image.

    InputError if it is neither, NaN or very large, or negative and `allow_amplify` is not set.
    """
    try:
        given = alpha.detach() if isinstance(alpha, Tensor) else torch.as_tensor(alpha)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _no_alpha(repr(alpha)) from error
    if given.is_complex() or given.dtype == torch.bool or given.ndim > 1 or not given.numel():
        raise _no_alpha(f"{str(given.dtype).removeprefix('torch.')} of shape {list(given.shape)}")
    checked = given.to(torch.float32) if given.ndim else float(given)
    values = given.double().flatten().tolist()
    for value in values:
        errors.ALPHA.check("alpha", value, "the paper uses 0.25 to 1.5")
    if min(values, default=0.0) < 0 and not allow_amplify:
        raise InputError(
            f"alpha {min(values)} would amplify the bias: if that is what you study, `ggss ask` has --allow-amplify, "
            "and Python allow_amplify=True"
        )
    return checked


def _no_alpha(seen: str) -> InputError:
    return InputError(
        f"alpha must be a number, or a list or tensor [images] with one for each image, seen {seen:.200}"
    )


def checked_recommendation(alpha: float) -> float:
    """A strength that a steerer may recommend; InputError if it is not above 0, or very large."""
    if not 0 < alpha <= errors.ALPHA.most:
        raise InputError(
            f"a recommended alpha must be a finite number above 0, at most {errors.ALPHA.most:g}, seen {alpha}"
        )
    return float(alpha)


def row_strengths(alpha: Alpha, rows: Tensor, images: Tensor | None, allow_amplify: bool) -> Tensor:
    """The strength of each of the rows [N, D], as [N, 1] float32 on their device.

    alpha: a number, or one for each image; then images [N] says which image each row belongs to.
    """
    strengths = checked_alpha(alpha, allow_amplify)
    if rows.ndim != 2:
        raise InputError(f"rows must be [N, D], seen shape {tuple(rows.shape)}")
    if images is not None and images.shape != rows.shape[:1]:
        raise InputError(f"images must name one image per row, seen {tuple(images.shape)} for {rows.shape[0]} rows")
    if not isinstance(strengths, Tensor):
        return torch.full((rows.shape[0], 1), strengths, device=rows.device)
    if images is None:
        raise InputError("one alpha per image needs `images`, which says which image each row is of")
    if images.numel() and int(images.max()) >= len(strengths):
        raise InputError(f"{len(strengths)} alphas were given for {int(images.max()) + 1} images")
    return strengths.to(rows.device)[images.to(rows.device)].unsqueeze(1)


Given = TypeVar("Given", bound=Alpha)


@dataclass(frozen=True)
class Steerer:
    """One operator for each site, and where they come from.

    `ggss.fit` makes it.

    Args:
        method: the method's name.
        attribute: what is steered, or several attributes for their intersections.
        values: the attribute's values.
        operators: for each site, what is done to its rows.
        options: the method's.
        source: the model's name, revision, family, fingerprint and settings, the data's hash, the image backend.
        statistics: for each site, tensors to look at later.
        diagnostics: for each site, what discovery measured, and its warnings.
        recommended_alpha: the strength that is used when no other is given; None if none was measured.
        prompt_suffix: text to append to every prompt, exactly as it is; empty for every method but `prompt`.
        versions: of the libraries it was made with.

    Examples:
        >>> steerer.method, steerer.attribute, list(steerer.operators)
        ('ggss', 'race', ['projection-mlp2'])
    """

    method: str
    attribute: str | tuple[str, ...]
    values: tuple[Hashable, ...]
    operators: dict[str, operator.Operator]
    options: dict[str, Any] = field(default_factory=dict)
    source: dict[str, Any] = field(default_factory=dict)
    statistics: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    diagnostics: dict[str, dict[str, Any]] = field(default_factory=dict)
    recommended_alpha: float | None = None
    prompt_suffix: str = ""
    versions: dict[str, str] = field(default_factory=library_versions)

    @property
    def warnings(self) -> list[str]:
        """The warnings of discovery, a sentence each."""
        many = len(self.diagnostics) > 1
        return [
            f"{site}: {text}" if many else text
            for site, found in self.diagnostics.items()
            for text in found.get("warnings", [])
        ]

    def _repr_html_(self) -> str:

        return html(self)

    def plot(self, axis: Any = None) -> Any:
        """Draw the explained variance of the directions, and return the matplotlib axis. axis: where to draw."""

        return draw(self, axis)

    def recommending(self, alpha: float) -> "Steerer":
        """A copy that recommends this strength; InputError unless it is a finite number above 0."""
        return replace(self, recommended_alpha=checked_recommendation(alpha))

    def strength(self, alpha: Given | None = None) -> Given | float:
        """The strength to use: alpha itself or, if it is None, the recommended strength, or 1 if there is none."""
        if alpha is not None:
            return alpha
        return 1.0 if self.recommended_alpha is None else self.recommended_alpha

    def steer(
        self,
        rows: Tensor,
        images: Tensor | None = None,
        alpha: Alpha | None = None,
        *,
        site: str | None = None,
        out: Tensor | None = None,
        allow_amplify: bool = False,
    ) -> Tensor:
        """Steer rows [N, D] of visual tokens; shape, dtype and device are kept.

        Args:
            rows: visual tokens [N, D].
            images: [N], the image that each row belongs to; None: all rows are of one image.
            alpha: a number, or one for each image; None: the recommended strength, or 1.
            site: needed only if the steerer has several.
            out: where to write; `rows` itself to steer in place.
            allow_amplify: allow a negative alpha, which makes the bias larger.

        Returns:
            The steered rows.

        Raises:
            InputError: for rows of another width, a strength out of its range, or an unknown site.

        Examples:
            >>> rows = acts.tokens[0]
            >>> steered = steerer.steer(rows, alpha=1.0)
            >>> torch.allclose(steered.norm(dim=1), rows.norm(dim=1), rtol=1e-5)  # norms are kept
            True
            >>> torch.equal(steerer.steer(rows, alpha=0.0), rows)
            True
        """
        return self.apply(rows, images, alpha, site=site, out=out, allow_amplify=allow_amplify).rows

    def apply(
        self,
        rows: Tensor,
        images: Tensor | None = None,
        alpha: Alpha | None = None,
        *,
        site: str | None = None,
        out: Tensor | None = None,
        allow_amplify: bool = False,
    ) -> operator.Steered:
        """What `steer` returns, and the gate [N] of the rows; None where nothing was steered or there is no gate."""
        chosen = self._operator(site)
        strengths = row_strengths(self.strength(alpha), rows, images, allow_amplify)
        with torch.no_grad():
            if not strengths.any():
                return operator.Steered(rows.clone() if out is None else out.copy_(rows), None)
            return operator.apply(chosen, rows, strengths, images, out)

    def gate(self, rows: Tensor, *, site: str | None = None) -> Tensor | None:
        """How much each row is steered: the gate, from the method's floor to 1.

        Args:
            rows: visual tokens [N, D].
            site: needed only if the steerer has several.

        Returns:
            [N], or None for a method without a gate.

        Raises:
            InputError: for rows of another width or an unknown site.

        Examples:
            >>> gate = steerer.gate(acts.tokens[0])
            >>> bool((gate >= 0.3).all() and (gate <= 1).all())
            True
        """
        with torch.no_grad():
            return operator.apply(self._operator(site), rows, torch.ones(len(rows), 1, device=rows.device)).gate

    def __add__(self, other: "Steerer") -> "Steerer":
        """One steerer that removes what both remove: the union of their subspaces, each with its own gate.

        Both must have GGSS's update (gate and slerp), and be made for the same sites of the same model.
        """
        if not isinstance(other, Steerer):
            return NotImplemented
        from ggss.methods.ggss import join

        for key in ("model", "fingerprint", "settings", "text_fingerprint", "text_settings"):
            if self.source.get(key) != other.source.get(key):
                seen = f"{self.source.get(key)!s:.80} and {other.source.get(key)!s:.80}"
                raise InputError(f"steerers of different models cannot be combined: {key} {seen}")
        if set(self.operators) != set(other.operators):
            seen = f"{', '.join(self.operators)} and {', '.join(other.operators)}"
            raise InputError(f"steerers of different sites cannot be combined: {seen}")
        both = (self, other)
        names = [f"{one.method} of {' x '.join(_named(one.attribute))}" for one in both]
        return Steerer(
            method=f"{self.method}+{other.method}",
            attribute=(*_named(self.attribute), *_named(other.attribute)),
            values=(*self.values, *other.values),
            operators={site: join(own, other.operators[site]) for site, own in self.operators.items()},
            options=dict(zip(names, (one.options for one in both), strict=True)),
            source=dict(self.source),
            diagnostics={
                site: {
                    "warnings": [text for one in both for text in one.diagnostics.get(site, {}).get("warnings", [])]
                }
                for site in self.operators
            },
            prompt_suffix=self.prompt_suffix + other.prompt_suffix,
        )

    def only_at(self, sites: Collection[str]) -> "Steerer":
        """The same steerer at some of its sites."""
        return replace(self, operators={site: own for site, own in self.operators.items() if site in sites})

    def _operator(self, site: str | None) -> operator.Operator:
        if site is None and len(self.operators) == 1:
            return next(iter(self.operators.values()))
        site = SITE if site is None else site
        if site not in self.operators:
            raise no_such(f"this steerer has no site {site!r}", site, self.operators)
        return self.operators[site]

    @contextmanager
    def attach(
        self,
        model: "nn.Module | Vlm",
        alpha: Alpha | None = None,
        *,
        force: bool = False,
        allow_amplify: bool = False,
        only_this_thread: bool = False,
    ) -> Iterator[AttachedRun]:
        """Steer a live model inside a `with` block. After the block the model is as before, whatever happened in it.

        Of several steerers, the one that was attached first acts first. Compiled models run uncompiled inside the
        block.

        Args:
            model: a transformers model, or a Vlm.
            alpha: a number, or one for each image of the batch, in the order of the images in the prompts; None: the
                recommended strength, or 1.
            force: attach also to another model of the same width.
            allow_amplify: allow a negative alpha, which makes the bias larger.
            only_this_thread: an attached model is steered in all threads of the process, such as that in which a
                streamer generates; True leaves the others alone.

        Yields:
            An `AttachedRun` that counts calls, tokens and gates.

        Raises:
            InputError: if the steerer does not fit the model.
            NeverFired: if the block ends and the model never called a site.

        Examples:
            >>> image = faces.pictures[0].image()
            >>> with steerer.attach(vlm, alpha=1.0) as run:
            ...     answers = vlm.answer(["which race is this person ?"], [[image]])
            >>> run.calls
            1
        """
        from ggss.models import Vlm  # this imports transformers, which takes seconds
        from ggss.models.wrappers import unwrapped

        module: nn.Module = model.model if isinstance(model, Vlm) else unwrapped(model)
        used = checked_alpha(self.strength(alpha), allow_amplify)
        paths = self.check(model, force=force)

        def steer(site: str, rows: Tensor, images: Tensor | None, out: Tensor | None) -> operator.Steered:
            strengths = row_strengths(used, rows, images, allow_amplify)
            if not strengths.any():
                return operator.Steered(rows, None)
            return operator.apply(self.operators[site], rows, strengths, images, out)

        by_image = isinstance(used, Tensor) or any(op.needs_images for op in self.operators.values())
        with attached(module, paths, steer, by_image, only_this_thread) as run:
            yield run

    def check(self, vlm: "Vlm | nn.Module", force: bool = False, weights: str | None = None) -> dict[str, str]:
        """The module path of each site; or one InputError that lists everything that does not fit the model.

        How images are prepared is known of a Vlm only, so it is not compared for a model without its processor.
        weights: the fingerprint of the vision weights, if the model's own are not in memory.
        """
        return fitting_paths(self, vlm, force, weights)

    @property
    def content_hash(self) -> str:
        """SHA-256 of everything that decides what the steerer does: its operators and its prompt suffix."""
        digest = hashlib.sha256(self.prompt_suffix.encode())
        for site, chosen in sorted(self.operators.items()):
            digest.update(json.dumps([site, chosen.kind, chosen.scalars()], sort_keys=True).encode())
            hashing.add(digest, chosen.tensors())
            for name, stream in sorted(chosen.streams().items()):
                for tensor in stream:
                    hashing.add_tensor(digest, name, tensor)
        return digest.hexdigest()

    def save_pretrained(self, folder: "str | os.PathLike[str]") -> "Path":
        """Write `steerer.safetensors`, `config.json` and a README card into a folder.

        Args:
            folder: made if it does not exist.

        Returns:
            The folder.

        Raises:
            InputError: if it cannot be written.

        Examples:
            >>> sorted(path.name for path in steerer.save_pretrained("my-steerer").iterdir())
            ['README.md', 'config.json', 'steerer.safetensors']
        """
        from ggss.steering import artefact

        return artefact.save(self, folder)

    @classmethod
    def from_pretrained(cls, name: "str | os.PathLike[str]", revision: str | None = None) -> "Steerer":
        """Read a steerer from a folder or, if there is no such folder, from the hub.

        Args:
            name: a folder or a hub id.
            revision: of a hub id.

        Returns:
            The steerer, bit for bit as it was saved.

        Raises:
            InputError: if it is damaged, of another format, or not there.

        Examples:
            >>> folder = steerer.save_pretrained("my-steerer")
            >>> ggss.Steerer.from_pretrained(folder).content_hash == steerer.content_hash
            True
        """
        from ggss.steering import artefact

        return artefact.load(name, revision)

    def push_to_hub(self, repo_id: str, private: bool = True, token: str | None = None) -> str:
        """Upload the folder that `save_pretrained` writes; returns the repository's address."""
        from ggss.steering import artefact

        return artefact.push(self, repo_id, private, token)


def _named(attribute: str | tuple[str, ...]) -> tuple[str, ...]:
    return (attribute,) if isinstance(attribute, str) else attribute


SHOWN = 16  # directions of a plot; more if more are removed


def html(steerer: "Steerer") -> str:
    rows = []
    for site, chosen in steerer.operators.items():
        found = steerer.diagnostics.get(site, {})
        basis = chosen.tensors().get("basis")
        k = 0 if basis is None else basis.shape[1]
        explained = steerer.statistics.get(site, {}).get("explained_variance")
        rows.append(
            (
                site,
                chosen.width,
                k or "-",
                "-" if explained is None else f"{float(explained[:k].sum()):.0%}",
                f"{found['effective_rank']:.1f}" if found.get("effective_rank") is not None else "-",
                " ".join(f"{cosine:.2f}" for cosine in found.get("split_half_cosines") or ()) or "-",
            )
        )
    names = steerer.attribute if isinstance(steerer.attribute, str) else " x ".join(steerer.attribute)
    told = [escaping.line(f"of {steerer.source['model']}")] if steerer.source.get("model") else []
    told += [escaping.line(f"values: {', '.join(map(str, steerer.values))}")] if steerer.values else []
    strength = steerer.recommended_alpha
    told.append(escaping.line("no recommended strength" if strength is None else f"recommended alpha {strength:g}"))
    told += [escaping.line(f"appended to prompts: {steerer.prompt_suffix}")] if steerer.prompt_suffix else []
    columns = ("site", "width", "k", "explained", "effective rank", "split-half cosines")
    told += [escaping.table(columns, rows)] if rows else []
    warned = [escaping.line(f"Warning: {sentence}") for sentence in steerer.warnings]
    return escaping.titled(f"{steerer.method} steerer for {names}", *told, *warned)


def draw(steerer: "Steerer", axis: Any) -> Any:
    """The explained variance of each direction; those that are removed in a darker colour."""
    found = {
        site: own["explained_variance"]
        for site, own in steerer.statistics.items()
        if own.get("explained_variance") is not None
    }
    if not found:
        raise InputError(f"{steerer.method} stored no explained variance: there is nothing to plot of it")
    axis = escaping.new_axis(axis)
    for site, explained in found.items():
        basis = steerer.operators[site].tensors().get("basis")
        k = 0 if basis is None else basis.shape[1]
        shares = [100 * float(share) for share in explained[: max(SHOWN, k)]]
        marks = axis.plot(range(1, len(shares) + 1), shares, "o-", label=plot(f"{site}, k = {k}"), markersize=4)[0]
        axis.plot(range(1, k + 1), shares[:k], "o", color=marks.get_color(), markersize=8)
    axis.set_xlabel("direction (large: removed)")
    axis.set_ylabel("explained variance, %")
    axis.set_title(plot(f"{steerer.method} for {steerer.attribute}"))
    axis.legend()
    return axis
