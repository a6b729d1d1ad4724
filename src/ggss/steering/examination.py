"""Examine a model: can it be steered, and how much image information reaches the text model around the site?"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from ggss.activations.collection import DISCOVERY_PROMPT
from ggss.methods.geodesic import Geodesic
from ggss.models import MLP2, Vlm, resolve
from ggss.steering.steerer import Steerer

LEAK_LIMIT = 0.01
SAME = 1e-3  # of the largest logit


@dataclass(frozen=True)
class Examination:
    """What `examine` found.

    checks: (what was tried, whether it passed, what was seen). moved: the largest difference between the logits of
    two images. leaks: the same difference while the output of some sites is set to zero.
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


def examine(vlm: Vlm) -> Examination:
    """Run every check on two synthetic pictures; this takes a few short forward passes."""
    first, second = _pictures(max(_picture_side(vlm), 64))
    features = vlm.encode([first])[0]
    sites = {
        site: {"path": path, "width": features.rows[site].shape[1], "rows": features.rows[site].shape[0]}
        for site, path in vlm.sites("all").items()
    }
    steerer = _some_steerer({site: facts["width"] for site, facts in sites.items()})
    moved = _distance(vlm, first, second)
    leaks = {MLP2: _leak(vlm, [MLP2], first, second)}
    if len(sites) > 1:
        leaks["all sites"] = _leak(vlm, list(sites), first, second)
    return Examination(
        model=vlm.name,
        model_class=type(vlm.model).__name__,
        family=vlm.family.name,
        dtype=str(vlm.model.dtype).removeprefix("torch."),
        sites=sites,
        checks=[
            _check_calls(vlm, steerer, [first]),
            _check_calls(vlm, steerer, [first, second]),
            _check_identity(vlm, steerer, first),
            _check_effect(vlm, steerer, first),
            _check_reuse(vlm, steerer, first),
        ],
        moved=moved,
        leaks=leaks,
        advice=_advice(moved, leaks, len(sites) > 1),
    )


def _picture_side(vlm: Vlm) -> int:
    side = getattr(getattr(vlm.model.config, "vision_config", None), "image_size", None)
    return side if isinstance(side, int) and side <= 448 else 224


def _pictures(side: int) -> tuple[Image.Image, Image.Image]:
    """Two very different pictures of the same size, for the leak test."""
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


def _next(vlm: Vlm, *pictures: Image.Image) -> Tensor:
    return vlm.logits([DISCOVERY_PROMPT], [list(pictures)])[0]


def _distance(vlm: Vlm, first: Image.Image, second: Image.Image) -> float:
    return float((_next(vlm, first) - _next(vlm, second)).abs().max())


def _leak(vlm: Vlm, sites: list[str], first: Image.Image, second: Image.Image) -> float:
    with _silenced(vlm, sites):
        return _distance(vlm, first, second)


@contextmanager
def _silenced(vlm: Vlm, sites: list[str]) -> Iterator[None]:
    def silence(module: Any, args: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (torch.zeros_like(output[0]), *output[1:])
        return torch.zeros_like(output)

    with ExitStack() as hooks:
        for path in vlm.sites(sites).values():
            hooks.callback(resolve(vlm.model, path).register_forward_hook(silence).remove)
        yield


def _check_calls(vlm: Vlm, steerer: Steerer, pictures: list[Image.Image]) -> tuple[str, bool, str]:
    with steerer.attach(vlm.model) as run:
        vlm.answer([DISCOVERY_PROMPT], [pictures], max_new_tokens=3)
    each = run.calls / len(steerer.operators)
    many = f"{len(pictures)} image{'s' if len(pictures) > 1 else ''}"
    return f"one call of each site per generate, {many}", each == 1, f"{each:g} call(s), {run.tokens} tokens"


def _check_identity(vlm: Vlm, steerer: Steerer, picture: Image.Image) -> tuple[str, bool, str]:
    before = _next(vlm, picture)
    with steerer.attach(vlm.model, alpha=0.0):
        attached = _next(vlm, picture)
    after = _next(vlm, picture)
    same, seen = _alike(before, attached, after)
    return "alpha 0 changes nothing, and no hook is left", same, seen


def _alike(expected: Tensor, *others: Tensor) -> tuple[bool, str]:
    """Whether logits of several passes are the same, up to the last digits: those depend on where tensors lie."""
    gap = max(float((expected - other).abs().max()) for other in others)
    same = gap <= SAME * float(expected.abs().max())
    return same, "bit-identical" if gap == 0 else f"logits differ by {gap:.1e}"


def _check_effect(vlm: Vlm, steerer: Steerer, picture: Image.Image) -> tuple[str, bool, str]:
    before = _next(vlm, picture)
    with steerer.attach(vlm.model, alpha=1.0):
        moved = float((_next(vlm, picture) - before).abs().max())
    return "alpha 1 reaches the logits", moved > 0, f"they move by {moved:.3g} in random directions"


def _check_reuse(vlm: Vlm, steerer: Steerer, picture: Image.Image) -> tuple[str, bool, str]:
    if vlm.family.pack is None:
        return "answers from encoded features", True, "not supported for this family; the live hook is used"
    with steerer.attach(vlm.model, alpha=1.0):
        live = _next(vlm, picture)
    features = vlm.encode([picture])[0].steered(steerer, 1.0)
    kept = vlm.logits([DISCOVERY_PROMPT], [[features]])[0]
    same, seen = _alike(live, kept)
    return "encoded features answer as the live hook does", same, seen


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
