"""Examine a model: can it be steered, and how much image information reaches the text model around the site?

All logits are those of the first pass of `generate`, so that they can be compared to the last digit, and so that a
pass which is compared can count the calls of a site too. Each pass reads all weights, which takes seconds if there
are billions of them: so no part of the model computes the same twice. Where alpha 0 gives the text model the same
inputs, to the last digit, its logits are the same, and it does not run again.

Calls that a model repeats: a part that gets the same inputs again gives the same output, without computing it.

An examination sends two pictures through a model many times, each time with other hooks at its sites. Before the
sites everything is the same each time, and behind them too wherever a hook changed nothing. At billions of weights
each pass that need not be computed saves seconds. Inputs are compared to the last digit: with one that differs
anywhere, the part computes.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from transformers import Cache
from transformers.utils.generic import ModelOutput

from ggss.activations.collect import DISCOVERY_PROMPT
from ggss.methods.operator import Steered
from ggss.methods.spherical import Geodesic
from ggss.models import MLP2, Vlm, resolve
from ggss.models.features import Shown
from ggss.models.hooks import is_hooked
from ggss.models.placement import float32_products
from ggss.models.wrappers import exported_words
from ggss.steering.attach import NeverFired, attached
from ggss.steering.steerer import Steerer

_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device)


class _Unfamiliar(TypeError):
    """A value that cannot be compared or copied."""


class _CacheHere:
    """The place of a cache of keys and values in what is kept. The cache itself is not kept: it is large."""


class RepeatedCalls:
    """What the parts of a model were called with inside `remembered`, and what they returned."""

    def __init__(self) -> None:
        self._going_on = False

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """While inside, more than one token is written. The second one needs what the text model puts into its cache
        for the first, so a part that is given a cache computes; what it returns is kept for later."""
        self._going_on = True
        try:
            yield
        finally:
            self._going_on = False

    def remembering(self, part: nn.Module) -> Callable[..., Any]:
        """A forward for the part that does not compute the same twice."""
        compute = part.forward
        kept: list[tuple[Any, Any]] = []

        def forward(*args: Any, **kwargs: Any) -> Any:
            given: list[Cache] = []
            try:
                inputs = None if _hooked_inside(part) else _copied((args, kwargs), lambda one: _noted(one, given))
            except _Unfamiliar:
                inputs = None
            if inputs is None:
                return compute(*args, **kwargs)
            if not (given and self._going_on):
                for earlier, output in kept:
                    if _same(earlier, inputs):
                        return _copied(output, lambda _: given[0])
            output = compute(*args, **kwargs)
            with suppress(_Unfamiliar):
                kept.append((inputs, _copied(output, lambda one: _given_back(one, given))))
            return output

        return forward


@contextmanager
def remembered(model: nn.Module, sites: Collection[nn.Module]) -> Iterator[RepeatedCalls]:
    """While inside, no part of the model computes the same twice; a part is as large as can be without a site in it.

    A part with hooks in it computes each time, for they may act each time. Hooks on the part itself act as always.
    """
    calls = RepeatedCalls()
    changed = [(part, vars(part).get("forward")) for part in _parts(model, sites)]
    for part, _ in changed:
        part.forward = calls.remembering(part)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield calls
    finally:
        for part, before in changed:
            if before is None:
                del part.forward
            else:
                part.forward = before


def _parts(module: nn.Module, sites: Collection[nn.Module]) -> Iterator[nn.Module]:
    for part in module.children():
        if any(own is site for own in part.modules() for site in sites) or isinstance(part, nn.ModuleList):
            yield from _parts(part, sites)
        elif next(part.parameters(), None) is not None:
            yield part


def _hooked_inside(part: nn.Module) -> bool:
    return any(own is not part and (is_hooked(own) or own._forward_pre_hooks) for own in part.modules())


def _copied(value: Any, at_cache: Callable[[Any], Any]) -> Any:
    """A copy that nobody else can change, with what `at_cache` returns in place of each cache."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, Cache | _CacheHere):
        return at_cache(value)
    if isinstance(value, _PLAIN):
        return value
    if type(value) in (tuple, list):
        return type(value)(_copied(one, at_cache) for one in value)
    if type(value) is dict or isinstance(value, ModelOutput):
        return type(value)(**{name: _copied(one, at_cache) for name, one in value.items()})
    raise _Unfamiliar(type(value))


def _noted(cache: Cache, given: list[Cache]) -> _CacheHere:
    """A call with what came before in its cache depends on all of that, which is not compared."""
    if cache.get_seq_length():
        raise _Unfamiliar("a cache that is not empty")
    given.append(cache)
    return _CacheHere()


def _given_back(cache: Cache, given: list[Cache]) -> _CacheHere:
    if not given or cache is not given[0]:
        raise _Unfamiliar("a cache that the caller did not give")
    return _CacheHere()


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and one.device == other.device and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(_same, one, other))
    return isinstance(one, _CacheHere) or one == other


LEAK_LIMIT = 0.01
SAME = 1e-3  # of the largest logit

Outcome = tuple[bool, str]
"""Whether a check passed, and what was seen."""


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


def examine(vlm: Vlm, also: Sequence[str] = ()) -> Examination:
    """Run every check on two synthetic pictures. also: further sites, whose leak is measured too."""
    vlm.sites(also)  # InputError if one of them is not there
    modules = [resolve(vlm.model, path) for path in vlm.sites("all").values()]
    with float32_products(vlm.model), remembered(vlm.model, modules) as calls:
        return _examined(vlm, also, calls)


def _examined(vlm: Vlm, also: Sequence[str], calls: RepeatedCalls) -> Examination:
    first, second = two_pictures(vlm)
    features, other = vlm.encode([first, second])
    rows = sum(len(own) for one in (features, other) for own in one.rows.values())
    sites = {
        site: {"path": path, "width": features.rows[site].shape[1], "rows": features.rows[site].shape[0]}
        for site, path in vlm.sites("all").items()
    }
    steerer = _some_steerer({site: facts["width"] for site, facts in sites.items()})
    pictures = [first, second]
    before = _next(vlm, pictures)

    def generated(images: Sequence[Sequence[Shown]]) -> _Generated:
        with calls.going_on():
            return _generated(vlm, steerer, images)

    steered = cache(lambda: generated([[picture] for picture in pictures]))
    leaks = {MLP2: _leak(vlm, [MLP2], pictures)}
    if len(sites) > 1:
        leaks["all sites"] = _leak(vlm, list(sites), pictures)
    leaks |= {site: _leak(vlm, [site], pictures) for site in also if site not in leaks}
    moved = _distance(before)
    checks: dict[str, Callable[[], Outcome]] = {
        "each row is steered once per generate, 1 image": lambda: _once(steered(), rows),
        "each row is steered once per generate, 2 images": lambda: _once(generated([pictures]), rows),
        "alpha 0 changes nothing, and no hook is left": lambda: _identity(vlm, steerer, pictures, before),
        "alpha 1 reaches the logits": lambda: _effect(before, steered().logits),
        "answers from encoded features are those of the live hook": lambda: _reuse(vlm, steerer, pictures, steered),
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


def _next(vlm: Vlm, pictures: Sequence[Shown]) -> Tensor:
    """The next-token logits [pictures, vocabulary] of a prompt about each picture; one pass, if the family can."""
    return torch.cat([_written(vlm, own, 1) for own in _batches(vlm, [[picture] for picture in pictures])])


def _batches(vlm: Vlm, images: Sequence[Sequence[Shown]]) -> list[Sequence[Sequence[Shown]]]:
    return [images] if vlm.family.batched else [[own] for own in images]


def _written(vlm: Vlm, images: Sequence[Sequence[Shown]], new_tokens: int) -> Tensor:
    """Write some tokens of an answer to each prompt. The logits of the first one, [prompts, vocabulary]."""
    seen: list[Tensor] = []
    hook = vlm.model.register_forward_hook(lambda *called: seen.append(called[-1].logits[:, -1].float()))
    try:
        vlm.answer([DISCOVERY_PROMPT] * len(images), images, max_new_tokens=new_tokens)
    finally:
        hook.remove()
    return seen[0]


@dataclass(frozen=True)
class _Generated:
    """What `_generated` saw: the calls of each site by a generate, the steered tokens of all, the logits."""

    calls: float
    tokens: int
    logits: Tensor


def _generated(vlm: Vlm, steerer: Steerer, images: Sequence[Sequence[Shown]]) -> _Generated:
    """Write two tokens under steering: a site that is called again for the second one has more calls."""
    calls, tokens, logits = [], 0, []
    for own in _batches(vlm, images):
        with steerer.attach(vlm.model, 1.0) as run:
            logits.append(_written(vlm, own, 2))
        calls.append(run.calls / len(steerer.operators))
        tokens += run.tokens
    return _Generated(max(calls), tokens, torch.cat(logits))


def _under(vlm: Vlm, steerer: Steerer, alpha: float, pictures: Sequence[Image.Image]) -> Tensor:
    with steerer.attach(vlm.model, alpha):
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
    """The largest difference of logits with the sites set to zero; with sites that are never called, all of it.

    Each picture has a pass of its own. If nothing bypasses the sites, the text model gets the same inputs both times.
    """

    def distance() -> float:
        return _distance(torch.cat([_next(vlm, [picture]) for picture in pictures]))

    paths = vlm.sites(sites)
    with (
        suppress(NeverFired),
        attached(vlm.model, paths, lambda site, rows, *_: Steered(torch.zeros_like(rows), None), by_image=False),
    ):
        return distance()
    return distance()


def _tried(check: Callable[[], Outcome]) -> Outcome:
    """A check that the model does not get through has failed."""
    try:
        return check()
    except NeverFired as error:
        return False, str(error)


def _once(found: _Generated, rows: int) -> Outcome:
    """rows: of the pictures at all sites. Most models call a site once, some for each picture or tile."""
    return found.tokens == rows, f"{found.calls:g} call(s), {found.tokens} of {rows} rows"


def _identity(vlm: Vlm, steerer: Steerer, pictures: Sequence[Image.Image], before: Tensor) -> Outcome:
    there = _hooks(vlm)
    same, seen = _alike(before, _under(vlm, steerer, 0.0, pictures))
    left = _hooks(vlm) - there
    return same and not left, f"{seen}; {left} hook(s) are left" if left else seen


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


def _reuse(vlm: Vlm, steerer: Steerer, pictures: Sequence[Image.Image], steered: Callable[[], _Generated]) -> Outcome:
    if vlm.family.pack is None:
        return True, "not supported for this family; the live hook is used"
    kept = _next(vlm, [features.steered(steerer, 1.0) for features in vlm.encode(pictures)])
    return _alike(steered().logits, kept)


def _exported(vlm: Vlm) -> list[str]:
    if not (words := exported_words(vlm.model)):
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
