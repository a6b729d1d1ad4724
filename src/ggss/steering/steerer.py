"""A steerer: a method's operators for the sites of one model. Steer rows, attach to a model, save, share.

`checked_alpha` and `row_strengths` say what a strength may be and which strength each row gets; `html` and `draw`
show a steerer in a notebook.
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
from ggss.steering.attach import AttachedRun, attached, fitting_paths
from ggss.version import library_versions

if TYPE_CHECKING:
    from pathlib import Path

    from ggss.models import Vlm


MATCHING = "matching"  # the key of a source that says, by attribute, how unpaired pictures were compared
PLOTTED = 16  # directions of a plot; more if more are removed

Alpha = float | Sequence[float] | Tensor
"""A strength: a number, or one for each image."""

AnyAlpha = TypeVar("AnyAlpha", bound=Alpha)


def checked_alpha(alpha: Alpha, allow_amplify: bool) -> float | Tensor:
    """A number, or a float32 tensor [images] of one for each image.

    InputError if it is neither, NaN or very large, or negative and `allow_amplify` is not set.
    """
    try:
        tensor = alpha.detach() if isinstance(alpha, Tensor) else torch.as_tensor(alpha)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _no_alpha(repr(alpha)) from error
    if tensor.is_complex() or tensor.dtype == torch.bool or tensor.ndim > 1 or not tensor.numel():
        raise _no_alpha(f"{str(tensor.dtype).removeprefix('torch.')} of shape {list(tensor.shape)}")
    checked = tensor.to(torch.float32) if tensor.ndim else float(tensor)
    values = tensor.double().flatten().tolist()
    for value in values:
        errors.ALPHA.check("alpha", value, "the paper uses 0.25 to 1.5")
    if min(values, default=0.0) < 0 and not allow_amplify:
        raise InputError(
            f"alpha {min(values)} would amplify the bias: if that is what you study, `ggss ask` has --allow-amplify, "
            "and Python allow_amplify=True"
        )
    return checked


def _no_alpha(description: str) -> InputError:
    return InputError(
        f"alpha must be a number, or a list or tensor [images] with one for each image, seen {description:.200}"
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


@dataclass(frozen=True)
class Steerer:
    """One operator for each site, and where they come from. `ggss.fit` returns it.

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
        several_sites = len(self.diagnostics) > 1
        unpaired = [text for compared in self.source.get(MATCHING, {}).values() for text in compared["warnings"]]
        return unpaired + [
            f"{site}: {text}" if several_sites else text
            for site, diagnostics in self.diagnostics.items()
            for text in diagnostics.get("warnings", [])
        ]

    def _repr_html_(self) -> str:
        return html(self)

    def plot(self, axis: Any = None) -> Any:
        """Draw the explained variance of the directions, and return the matplotlib axis. axis: where to draw."""
        return draw(self, axis)

    def recommending(self, alpha: float) -> "Steerer":
        """A copy that recommends this strength; InputError unless it is a finite number above 0."""
        return replace(self, recommended_alpha=checked_recommendation(alpha))

    def strength(self, alpha: AnyAlpha | None = None) -> AnyAlpha | float:
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
        site_operator = self._operator(site)
        strengths = row_strengths(self.strength(alpha), rows, images, allow_amplify)
        with torch.no_grad():
            if not strengths.any():
                return operator.Steered(rows.clone() if out is None else out.copy_(rows), None)
            return operator.apply(site_operator, rows, strengths, images, out)

    def gate(self, rows: Tensor, *, site: str | None = None) -> Tensor | None:
        """The gate of each row, from the method's floor to 1: how much it is steered.

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
        """One steerer that removes what both remove: the union of their subspaces, each with its gate.

        Both must have GGSS's update (gate and slerp), and be made for the same sites of the same model.
        """
        if not isinstance(other, Steerer):
            return NotImplemented
        from ggss.methods.ggss import join

        for key in ("model", "fingerprint", "settings", "text_fingerprint", "text_settings"):
            if self.source.get(key) != other.source.get(key):
                pair = f"{self.source.get(key)!s:.80} and {other.source.get(key)!s:.80}"
                raise InputError(f"steerers of different models cannot be combined: {key} {pair}")
        if set(self.operators) != set(other.operators):
            pair = f"{', '.join(self.operators)} and {', '.join(other.operators)}"
            raise InputError(f"steerers of different sites cannot be combined: {pair}")
        both = (self, other)
        matchings = {
            name: compared for steerer in both for name, compared in steerer.source.get(MATCHING, {}).items()
        }
        names = [f"{steerer.method} of {' x '.join(_attributes(steerer.attribute))}" for steerer in both]
        return Steerer(
            method=f"{self.method}+{other.method}",
            attribute=(*_attributes(self.attribute), *_attributes(other.attribute)),
            values=(*self.values, *other.values),
            operators={site: join(op, other.operators[site]) for site, op in self.operators.items()},
            options=dict(zip(names, (steerer.options for steerer in both), strict=True)),
            source=self.source | ({MATCHING: matchings} if matchings else {}),
            diagnostics={
                site: {
                    "warnings": [
                        text for steerer in both for text in steerer.diagnostics.get(site, {}).get("warnings", [])
                    ]
                }
                for site in self.operators
            },
            prompt_suffix=self.prompt_suffix + other.prompt_suffix,
        )

    def only_at(self, sites: Collection[str]) -> "Steerer":
        """The same steerer at some of its sites."""
        return replace(self, operators={site: op for site, op in self.operators.items() if site in sites})

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
        from ggss.models.identity import unwrapped

        module: nn.Module = model.model if isinstance(model, Vlm) else unwrapped(model)
        strength = checked_alpha(self.strength(alpha), allow_amplify)
        paths = self.check(model, force=force)

        def steer(site: str, rows: Tensor, images: Tensor | None, out: Tensor | None) -> operator.Steered:
            strengths = row_strengths(strength, rows, images, allow_amplify)
            if not strengths.any():
                return operator.Steered(rows, None)
            return operator.apply(self.operators[site], rows, strengths, images, out)

        by_image = isinstance(strength, Tensor) or any(op.needs_images for op in self.operators.values())
        with attached(module, paths, steer, by_image, only_this_thread) as run:
            yield run

    def check(self, vlm: "Vlm | nn.Module", force: bool = False, weights: str | None = None) -> dict[str, str]:
        """The module path of each site; InputError that lists everything that does not fit the model.

        Only a Vlm knows how images are prepared, so this is not compared for a model without its processor.
        weights: the fingerprint of the vision weights, if they are not in memory.
        """
        return fitting_paths(self, vlm, force, weights)

    @property
    def together(self) -> bool:
        """Whether the images of a prompt are steered by the mean of all their rows, not each by its own."""
        return any(getattr(chosen, "together", False) for chosen in self.operators.values())

    @property
    def content_hash(self) -> str:
        """SHA-256 of everything that decides what the steerer does: its operators and its prompt suffix."""
        digest = hashlib.sha256(self.prompt_suffix.encode())
        for site, site_operator in sorted(self.operators.items()):
            digest.update(json.dumps([site, site_operator.kind, site_operator.scalars()], sort_keys=True).encode())
            hashing.add(digest, site_operator.tensors())
            for name, stream in sorted(site_operator.streams().items()):
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


def _attributes(attribute: str | tuple[str, ...]) -> tuple[str, ...]:
    return (attribute,) if isinstance(attribute, str) else attribute


def html(steerer: Steerer) -> str:
    """What a steerer removes, at which sites, and what discovery measured and warned of."""
    rows = []
    for site, site_operator in steerer.operators.items():
        diagnostics = steerer.diagnostics.get(site, {})
        basis = site_operator.tensors().get("basis")
        k = 0 if basis is None else basis.shape[1]
        explained = steerer.statistics.get(site, {}).get("explained_variance")
        rows.append(
            (
                site,
                site_operator.width,
                k or "-",
                "-" if explained is None else f"{float(explained[:k].sum()):.0%}",
                f"{diagnostics['effective_rank']:.1f}" if diagnostics.get("effective_rank") is not None else "-",
                " ".join(f"{cosine:.2f}" for cosine in diagnostics.get("split_half_cosines") or ()) or "-",
            )
        )
    names = steerer.attribute if isinstance(steerer.attribute, str) else " x ".join(steerer.attribute)
    lines = [escaping.line(f"of {steerer.source['model']}")] if steerer.source.get("model") else []
    lines += [escaping.line(f"values: {', '.join(map(str, steerer.values))}")] if steerer.values else []
    strength = steerer.recommended_alpha
    lines.append(escaping.line("no recommended strength" if strength is None else f"recommended alpha {strength:g}"))
    lines += [escaping.line(f"appended to prompts: {steerer.prompt_suffix}")] if steerer.prompt_suffix else []
    columns = ("site", "width", "k", "explained", "effective rank", "split-half cosines")
    lines += [escaping.table(columns, rows)] if rows else []
    warnings = [escaping.line(f"Warning: {sentence}") for sentence in steerer.warnings]
    return escaping.titled(f"{steerer.method} steerer for {names}", *lines, *warnings)


def draw(steerer: Steerer, axis: Any) -> Any:
    """Plot the explained variance of each direction, those that are removed with a larger mark; return the axis."""
    by_site = {
        site: statistics["explained_variance"]
        for site, statistics in steerer.statistics.items()
        if statistics.get("explained_variance") is not None
    }
    if not by_site:
        raise InputError(f"{steerer.method} stored no explained variance: there is nothing to plot")
    axis = escaping.new_axis(axis)
    for site, explained in by_site.items():
        basis = steerer.operators[site].tensors().get("basis")
        k = 0 if basis is None else basis.shape[1]
        shares = [100 * float(share) for share in explained[: max(PLOTTED, k)]]
        marks = axis.plot(range(1, len(shares) + 1), shares, "o-", label=plot(f"{site}, k = {k}"), markersize=4)[0]
        axis.plot(range(1, k + 1), shares[:k], "o", color=marks.get_color(), markersize=8)
    axis.set_xlabel("direction (large: removed)")
    axis.set_ylabel("explained variance, %")
    axis.set_title(plot(f"{steerer.method} for {steerer.attribute}"))
    axis.legend()
    return axis
