"""Examines a model: can it be steered, and how much image information reaches the text model around the site?

All logits are those of the first pass of `generate`, so that passes can be compared, and each of them can also count
the calls of a site. A pass reads all weights, which takes seconds for billions of them: so two pictures share a pass
wherever the family takes batches.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from ggss.activations.collect import DISCOVERY_PROMPT
from ggss.methods.operator import Steered
from ggss.methods.spherical import Geodesic
from ggss.models import MLP2, Vlm
from ggss.models.features import Features, ImageOrFeatures
from ggss.models.identity import exported_words
from ggss.models.placement import float32_products
from ggss.steering.attach import NeverFired, attached
from ggss.steering.steerer import Steerer

LEAK_LIMIT = 0.01
SAME = 1e-3  # of the largest logit

Outcome = tuple[bool, str]
"""Whether a check passed, and what was measured."""


@dataclass(frozen=True)
class Examination:
    """What `examine` found.

    checks: (what was tried, whether it passed, what was measured). moved: the largest difference between the logits
    of two images. leaks: the same difference while the output of some sites is set to zero.
    """

    model: str
    model_class: str
    family: str
    dtype: str
    sites: dict[str, dict[str, Any]]
    checks: list[tuple[str, bool, str]]
    moved: float
    leaks: dict[str, float]
    advice: list[str]

    @property
    def healthy(self) -> bool:
        return all(passed for _, passed, _ in self.checks)


def examine(vlm: Vlm, also: Sequence[str] = ()) -> Examination:
    """Run every check on two synthetic pictures. also: further sites, whose leak is measured too."""
    vlm.sites(also)  # InputError if one of them is not there
    with float32_products(vlm.model):
        return _examined(vlm, also)


def _examined(vlm: Vlm, also: Sequence[str]) -> Examination:
    first, second = two_pictures(vlm)
    encoded = vlm.encode([first, second])
    features = encoded[0]
    tokens = sum(len(rows) for picture in encoded for rows in picture.rows.values())
    sites = {
        site: {"path": path, "width": features.rows[site].shape[1], "rows": features.rows[site].shape[0]}
        for site, path in vlm.sites("all").items()
    }
    steerer = _some_steerer({site: facts["width"] for site, facts in sites.items()})
    pictures = [first, second]
    before = _next(vlm, pictures)
    steered = cache(lambda: _generated(vlm, steerer, [[picture] for picture in pictures]))
    both = cache(lambda: _generated(vlm, steerer, [pictures]))
    leaks = {MLP2: _leak(vlm, [MLP2], pictures)}
    if len(sites) > 1:
        leaks["all sites"] = _leak(vlm, list(sites), pictures)
    leaks |= {site: _leak(vlm, [site], pictures) for site in also if site not in leaks}
    moved = _distance(before)
    checks: dict[str, Callable[[], Outcome]] = {
        "each row is steered once per generate, 1 image": lambda: _once(steered(), tokens),
        "each row is steered once per generate, 2 images": lambda: _once(both(), tokens),
        "alpha 0 changes nothing, and no hook is left": lambda: _identity(vlm, steerer, pictures, before),
        "alpha 1 reaches the logits": lambda: _effect(before, steered().logits),
        "answers from encoded features are those of the live hook": lambda: _reuse(vlm, steerer, encoded, steered),
    }
    return Examination(
        model=vlm.name,
        model_class=type(vlm.model).__name__,
        family=vlm.family.name,
        dtype=str(vlm.model.dtype).removeprefix("torch."),
        sites=sites,
        checks=[(what, *_tried(check)) for what, check in checks.items()],
        moved=moved,
        leaks=leaks,
        advice=_exported(vlm) + _advice(moved, leaks, len(sites) > 1),
    )


def two_pictures(vlm: Vlm) -> tuple[Image.Image, Image.Image]:
    """Two very different pictures of the same size, without people, to try a model with."""
    known = getattr(getattr(vlm.model.config, "vision_config", None), "image_size", None)
    side = max(known, 64) if isinstance(known, int) and known <= 448 else 224
    ramp = Image.linear_gradient("L").resize((side, side))
    disc = Image.radial_gradient("L").resize((side, side))
    return Image.merge("RGB", (ramp, disc, ramp.rotate(90))), Image.merge("RGB", (disc, ramp.rotate(180), disc))


def _some_steerer(widths: dict[str, int]) -> Steerer:
    """A steerer with random directions, in place of a fitted one."""
    generator = torch.Generator().manual_seed(0)
    operators = {}
    for site, width in widths.items():
        frame = torch.linalg.qr(torch.randn(width, 3, generator=generator))[0]
        operators[site] = Geodesic(frame[:, 0].contiguous(), frame[:, 1:].contiguous(), 0.0, 1.0)
    return Steerer(method="ggss", attribute="none", values=(), operators=operators)


def _next(vlm: Vlm, pictures: Sequence[ImageOrFeatures]) -> Tensor:
    """The next-token logits [pictures, vocabulary] of a prompt about each picture; one pass, if the family can."""
    return torch.cat([_first_logits(vlm, batch, 1) for batch in _batches(vlm, [[picture] for picture in pictures])])


def _batches(vlm: Vlm, images: Sequence[Sequence[ImageOrFeatures]]) -> list[Sequence[Sequence[ImageOrFeatures]]]:
    return [images] if vlm.family.batched else [[prompt] for prompt in images]


def _first_logits(vlm: Vlm, images: Sequence[Sequence[ImageOrFeatures]], new_tokens: int) -> Tensor:
    """The logits [prompts, vocabulary] of the first of some tokens that are generated after each prompt."""
    passes: list[Tensor] = []
    hook = vlm.model.register_forward_hook(lambda *called: passes.append(called[-1].logits[:, -1].float()))
    try:
        vlm.answer([DISCOVERY_PROMPT] * len(images), images, max_new_tokens=new_tokens)
    finally:
        hook.remove()
    return passes[0]


@dataclass(frozen=True)
class _Generated:
    """The calls of each site in one `generate`, the steered tokens of all sites, the first logits."""

    calls: float
    tokens: int
    logits: Tensor


def _generated(vlm: Vlm, steerer: Steerer, images: Sequence[Sequence[ImageOrFeatures]]) -> _Generated:
    """Write two tokens under steering: a site that is called again for the second one has more calls."""
    calls, tokens, logits = [], 0, []
    for batch in _batches(vlm, images):
        with steerer.attach(vlm.model, 1.0, force=True) as run:
            logits.append(_first_logits(vlm, batch, 2))
        calls.append(run.calls / len(steerer.operators))
        tokens += run.tokens
    return _Generated(max(calls), tokens, torch.cat(logits))


def _under(vlm: Vlm, steerer: Steerer, alpha: float, pictures: Sequence[Image.Image]) -> Tensor:
    with steerer.attach(vlm.model, alpha, force=True):
        return _next(vlm, pictures)


def _distance(logits: Tensor) -> float:
    return float((logits[0] - logits[1]).abs().max())


def leak(vlm: Vlm, sites: str | Sequence[str]) -> float:
    """The share of the difference which two images make in the logits that is left while the sites are silenced.

    In a text layer only the rows of image tokens are: what later tokens have read from them in the layers up to this
    one is not undone. 0 if the model does not look at its images.
    """
    pictures = two_pictures(vlm)
    moved = _distance(_next(vlm, pictures))
    return _leak(vlm, list(vlm.sites(sites)), pictures) / moved if moved else 0.0


def _leak(vlm: Vlm, sites: list[str], pictures: Sequence[Image.Image]) -> float:
    """The largest difference of logits with the sites set to zero; with sites that are never called, all of it."""
    paths = vlm.sites(sites)
    with (
        suppress(NeverFired),
        attached(vlm.model, paths, lambda site, rows, *_: Steered(torch.zeros_like(rows), None), by_image=False),
    ):
        return _distance(_next(vlm, pictures))
    return _distance(_next(vlm, pictures))


def _tried(check: Callable[[], Outcome]) -> Outcome:
    """A check that the model does not get through has failed."""
    try:
        return check()
    except NeverFired as error:
        return False, str(error)


def _once(generated: _Generated, tokens: int) -> Outcome:
    """tokens: of the pictures at all sites. Most models call a site once, some once for each picture or tile."""
    return generated.tokens == tokens, f"{generated.calls:g} call(s), {generated.tokens} of {tokens} rows"


def _identity(vlm: Vlm, steerer: Steerer, pictures: Sequence[Image.Image], before: Tensor) -> Outcome:
    hooks = _hooks(vlm)
    same, difference = _alike(before, _under(vlm, steerer, 0.0, pictures))
    left = _hooks(vlm) - hooks
    return same and not left, f"{difference}; {left} hook(s) are left" if left else difference


def _hooks(vlm: Vlm) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in vlm.model.modules())


def _alike(expected: Tensor, *others: Tensor) -> Outcome:
    """Whether logits of several passes are the same, up to the last digits: those depend on where tensors lie."""
    gap = max(float((expected - other).abs().max()) for other in others)
    same = gap <= SAME * float(expected.abs().max())
    return same, "bit-identical" if gap == 0 else f"logits differ by {gap:.1e}"


def _effect(before: Tensor, steered: Tensor) -> Outcome:
    moved = float((steered - before).abs().max())
    return moved > 0, f"they move by {moved:.3g} in random directions"


def _reuse(vlm: Vlm, steerer: Steerer, encoded: Sequence[Features], steered: Callable[[], _Generated]) -> Outcome:
    if vlm.family.pack is None:
        return True, "not supported for this family; the live hook is used"
    from_features = _next(vlm, [features.steered(steerer, 1.0) for features in encoded])
    return _alike(steered().logits, from_features)


def _exported(vlm: Vlm) -> list[str]:
    if not (words := exported_words(vars(vlm.model.config))):
        return []
    return [f"Steering is in this model's weights ({words}): always on, not adjustable. Do not steer it so again."]


def _advice(moved: float, leaks: dict[str, float], more_sites: bool) -> list[str]:
    if moved == 0:
        return ["Two different images gave the same logits: this model does not look at its images."]
    if leaks[MLP2] / moved <= LEAK_LIMIT:
        return []
    leak = f"{leaks[MLP2] / moved:.0%} of the difference that two images make in the logits does not pass {MLP2}"
    return [
        f"{leak}; discover and steer with --sites all, which steers that part too."
        if more_sites and leaks["all sites"] / moved <= LEAK_LIMIT
        else f"{leak}; that part is not steered."
    ]
