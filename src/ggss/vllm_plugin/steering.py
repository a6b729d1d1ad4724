"""Steering what a projector gives out while vLLM encodes a batch of pictures, each at its own strengths.

What travels with a picture from vLLM's front process to the model's: who acts on it, how strongly, and its key.

All of it is one tensor of 64-bit integers, so that no step on the way rounds it: the picture's key, then for each
steerer four words of its content hash and one with the bits of the strength.

Which strengths act on a request: the server's own, or those that the request asks for instead.

They are by the names of steerers, and checked before anything is computed. A request that names no strength is
steered as the server was told: forgetting the field must not give the biased model's answer.

A name becomes the content hash of its steerer before vLLM hashes the request. So its caches tell strengths apart, and
steerers too, if one takes the name of another.

What was done to each picture, for as long as a cache of vLLM may serve it.
"""

import hashlib
import os
import struct
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ggss import errors, hashing
from ggss.errors import InputError, no_such
from ggss.models.identity import text_settings, visual_settings
from ggss.models.sites import in_text, in_tower
from ggss.models.vlm import Vlm
from ggss.steering.attach import NeverFired
from ggss.steering.compatibility import ONLY_TOGETHER
from ggss.steering.steerer import Steerer

FIELD = "ggss"
"""The name of the field, and of the entry of `mm_processor_kwargs` in a request."""

_WORDS = 5  # of one steerer


@dataclass(frozen=True)
class PictureStrengths:
    """key: of the picture at these strengths. strengths: by the steerers' content, in the order in which they act."""

    key: int
    strengths: Mapping[str, float]


def packed(strengths: Mapping[str, float], key: int = 0) -> Tensor:
    """[1 + 5 steerers] int64."""
    words = [key]
    for content, alpha in strengths.items():
        words += struct.unpack(">4q", bytes.fromhex(content)) + struct.unpack(">q", struct.pack(">d", alpha))
    return torch.tensor(words, dtype=torch.int64)


def unpacked(words: Tensor) -> PictureStrengths:
    """ValueError if it is not what `packed` gives."""
    key, *rest = words.tolist()
    if words.dtype != torch.int64 or len(rest) % _WORDS:
        raise ValueError(f"{len(rest)} words of {words.dtype} are no strengths")
    strengths = {}
    for start in range(0, len(rest), _WORDS):
        *content, alpha = rest[start : start + _WORDS]
        strengths[struct.pack(">4q", *content).hex()] = struct.unpack(">d", struct.pack(">q", alpha))[0]
    return PictureStrengths(key, strengths)


def key_of(mm_hash: str) -> int:
    """A picture's key, from the hash under which vLLM keeps it: this covers the picture and all strengths."""
    return struct.unpack(">q", hashlib.sha256(mm_hash.encode()).digest()[:8])[0]


ENVIRONMENT, NEGATIVE = "GGSS_STEERERS", "GGSS_ALLOW_NEGATIVE"
ALPHAS, MOST = "GGSS_ALPHAS", "GGSS_MAX_ALPHA"


def folders(written: str) -> dict[str, str]:
    """`race=DIR,gender=DIR` as a dictionary."""
    return _pairs(written, ENVIRONMENT, "race=DIR,gender=DIR")


def _pairs(written: str, variable: str, example: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for part in filter(None, map(str.strip, written.split(","))):
        name, equals, value = part.partition("=")
        if not (name and equals and value) or name in pairs:
            raise InputError(f"{variable} is written `{example}`, each name once; seen {part!r}")
        pairs[name] = value
    return pairs


def _number(text: str, variable: str) -> float:
    try:
        number = float(text)
    except ValueError as error:
        raise InputError(f"{variable} has {text!r}, which is not a number") from error
    errors.ALPHA.check(variable, number)
    return number


def by_content(contents: Mapping[str, str], strengths: Mapping[str, float]) -> dict[str, float]:
    """The strengths above or below 0, by the content of their steerers, in order.

    InputError if two of them are the same steerer: vLLM knows them by their content only.
    """
    found: dict[str, float] = {}
    for name, alpha in strengths.items():
        if alpha and contents[name] in found:
            same = [other for other in strengths if contents[other] == contents[name]]
            raise InputError(f"{' and '.join(same)} are one and the same steerer: ask for one of them")
        if alpha:
            found[contents[name]] = float(alpha)
    return found


class AskedStrengths:
    """contents: the content hash of each steerer, by its name in requests.

    defaults: the server's strengths, which act on every image unless a request names others; in this order. A steerer
    that is not among them acts only where it is asked for. max_alpha: a request may not ask for more, nor for less
    than its negative; the server's own strength may be larger.
    """

    def __init__(
        self,
        contents: Mapping[str, str] | None = None,
        allow_negative: bool = False,
        defaults: Mapping[str, float] | None = None,
        max_alpha: float = errors.MAX_ALPHA,
    ) -> None:
        self.contents, self.allow_negative = dict(contents or {}), allow_negative
        self.defaults, self.max_alpha = dict(defaults or {}), max_alpha

    @classmethod
    def from_environment(cls) -> "AskedStrengths":
        """The steerers that are named when vLLM is started, with their own strengths unless others are named."""
        allow_negative = os.environ.get(NEGATIVE, "") not in ("", "0")
        contents: dict[str, str] = {}
        defaults: dict[str, float] = {}
        for name, folder in folders(os.environ.get(ENVIRONMENT, "")).items():
            steerer = Steerer.from_pretrained(folder)
            if steerer.prompt_suffix:
                raise InputError(
                    f"the steerer {name!r} adds words to every prompt, which vLLM's own server does not do: use "
                    "`ggss serve --engine vllm`"
                )
            contents[name] = steerer.content_hash
            defaults[name] = float(steerer.strength()) if steerer.operators else 0.0
        for name, text in _pairs(os.environ.get(ALPHAS, ""), ALPHAS, "race=1.0,gender=0.5").items():
            if name not in contents:
                raise no_such(f"{ALPHAS} names {name!r}, which is no steerer of {ENVIRONMENT}", name, contents)
            defaults[name] = _number(text, ALPHAS)
            if defaults[name] < 0 and not allow_negative:
                raise InputError(f"{ALPHAS} has {name}={text}, which would amplify the bias: that needs {NEGATIVE}=1")
        by_content(contents, defaults)  # InputError for one and the same steerer under two names
        most = os.environ.get(MOST, "")
        return cls(contents, allow_negative, defaults, _number(most, MOST) if most else errors.MAX_ALPHA)

    def fill(self, named: "AskedStrengths") -> None:
        """Take over the steerers and rules of another one; steerers that are here already stay."""
        self.contents |= named.contents
        self.defaults |= named.defaults
        self.allow_negative |= named.allow_negative
        self.max_alpha = named.max_alpha

    def prompt(self, prompt: Mapping[str, Any]) -> dict[str, Any]:
        """A prompt of vLLM with all strengths that act on it, by content. InputError says what is wrong with it."""
        settings = dict(prompt.get("mm_processor_kwargs") or {})
        asked = settings.pop(FIELD, {})
        strengths = self.strengths(asked)
        if not prompt.get("multi_modal_data"):
            if any(asked.values()):
                raise InputError(
                    "steering was asked for, and the request has no image: steering acts on images, send one or "
                    f"leave out `{FIELD}`"
                )
            strengths = {}
        if strengths and settings:
            acting = ", ".join(f"{name}: 0" for name in self.defaults if name not in asked)
            raise InputError(
                f"images are steered here, and the request has {', '.join(sorted(settings))} for the image "
                "processor: a steerer is made for pictures as the model's own settings prepare them. Leave these "
                f"out, or ask for no steering with `{FIELD}`{f' ({acting})' if acting else ''}"
            )
        if not strengths and "mm_processor_kwargs" not in prompt:
            return dict(prompt)
        return {**prompt, "mm_processor_kwargs": settings | ({FIELD: strengths} if strengths else {})}

    def strengths(self, asked: Any) -> dict[str, float]:
        """By content: the server's in its order, with what is asked for in their place, then what else is asked for.

        A strength of 0 does nothing and is left out.
        """
        if not isinstance(asked, Mapping):
            raise InputError(f"`{FIELD}` gives strengths by steerer, as in {{'race': 0.75}}; seen {asked!r:.60}")
        for name, alpha in asked.items():
            if name not in self.contents:
                raise no_such(f"no steerer {name!r} on this server", str(name), self.contents)
            if isinstance(alpha, bool) or not isinstance(alpha, int | float):
                raise InputError(f"the strength of {name!r} must be a number, seen {alpha!r:.60}")
            errors.ALPHA.check(f"the strength of {name!r}", alpha)
            most = max(self.max_alpha, self.defaults.get(name, 0.0))
            if abs(alpha) > most:
                raise InputError(
                    f"the strength of {name!r} may be at most {most:g} on this server ({MOST}), seen {alpha:g}"
                )
            if alpha < 0 and not self.allow_negative:
                raise InputError(
                    f"the strength {alpha:g} of {name!r} would amplify the bias, and this server was not started to "
                    "allow that"
                )
        return by_content(self.contents, self.defaults | dict(asked))


ASKED = AskedStrengths()
"""Of this process; `plugin.register` fills it, and what loads steerers after that."""


MOST_COUNTED = 2**20
"""Pictures that are remembered. vLLM's caches hold fewer: each picture takes a block of its KV cache at least."""


@dataclass(frozen=True)
class SteeringCount:
    """What one steerer did to one picture. gate_mean: None for a method without a gate."""

    alpha: float
    calls: int
    tokens: int
    gate_mean: float | None


class SteeringCounts:
    """By a picture's key, then by the steerer's content. The least recently asked for go first."""

    def __init__(self, most: int = MOST_COUNTED) -> None:
        self._most = most
        self._kept: OrderedDict[int, dict[str, SteeringCount]] = OrderedDict()

    def add(self, key: int, counts: dict[str, SteeringCount]) -> None:
        self._kept[key] = counts
        self._kept.move_to_end(key)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)

    def get(self, key: int) -> dict[str, SteeringCount] | None:
        """None if nothing is known of the picture."""
        if key in self._kept:
            self._kept.move_to_end(key)
        return self._kept.get(key)


@dataclass(frozen=True)
class PictureRows:
    """rows: of a picture at a site. held: with those of tiles that only fill up a batch, which come after them."""

    rows: int
    held: int


@dataclass
class _Batch:
    """Pictures that are being encoded. done: for each, by steerer and site, the gates [rows] of what was steered."""

    pictures: Sequence[PictureStrengths]
    rows: Sequence[PictureRows]
    done: list[dict[str, dict[str, Tensor | None]]] = field(init=False)

    def __post_init__(self) -> None:
        self.done = [{} for _ in self.pictures]
        places = torch.arange(sum(one.held for one in self.rows)).split([one.held for one in self.rows])
        self.places = [own[: one.rows] for own, one in zip(places, self.rows, strict=True)]


class ProjectorSteering:
    """Hooks on the sites of a model as vLLM holds it.

    described: the same model as transformers describes it, without weights; weights: their fingerprint. modules: by
    site. content: a hash of all weights.
    """

    def __init__(self, described: Vlm, weights: str, modules: Mapping[str, nn.Module], content: str) -> None:
        self._described, self._weights = described, weights
        self.identity = hashing.of(
            {
                "weights": content,
                "visual settings": visual_settings(described.model, described.processor),
                "text settings": text_settings(described.model, described.processor),
            }
        )
        """Of the model, the same in every process that has loaded the same files."""
        self._steerers: dict[str, Steerer] = {}
        self._now: _Batch | None = None
        self._modules = modules
        self.counts = SteeringCounts()
        for site, module in modules.items():
            module.register_forward_hook(partial(self._hook, site))

    def load(self, folder: str, expected: str | None = None) -> Steerer:
        """Read a steerer and check it against the model. expected: the content that it must have."""
        steerer = Steerer.from_pretrained(folder)
        if expected is not None and steerer.content_hash != expected:
            raise InputError(f"the steerer in {folder!r} is not the one that was checked: put that back")
        if inner := [site for site in steerer.operators if in_text(site) or in_tower(site)]:
            raise InputError(
                f"the steerer in {folder!r} acts on {inner[0]}, and in vLLM only what the projector gives out is "
                "steered: use the transformers engine"
            )
        if steerer.together:
            raise InputError(f"the steerer in {folder!r} {ONLY_TOGETHER}")
        steerer.check(self._described, weights=self._weights)
        self._steerers[steerer.content_hash] = steerer
        return steerer

    @contextmanager
    def acting(self, pictures: Sequence[PictureStrengths], rows: Sequence[PictureRows]) -> Iterator[None]:
        """Steer the pictures that are encoded inside the block. NeverFired if one was to be steered and was not."""
        unknown = {content for one in pictures for content in one.strengths} - self._steerers.keys()
        if unknown:
            raise InputError(f"no steerer of the content {unknown.pop()} is loaded: nothing is answered")
        self._now = batch = _Batch(pictures, rows)
        try:
            yield
        finally:
            self._now = None
        for picture, own, done in zip(pictures, rows, batch.done, strict=True):
            counts = {
                content: self._count(content, alpha, done.get(content, {}), own.rows)
                for content, alpha in picture.strengths.items()
            }
            self.counts.add(picture.key, counts)

    def _count(self, content: str, alpha: float, gates: Mapping[str, Tensor | None], rows: int) -> SteeringCount:
        sites = self._steerers[content].operators
        if gates.keys() != sites.keys() or not rows:
            raise NeverFired(
                f"the steerer {content[:12]} was to act at {', '.join(sites)} and acted at "
                f"{', '.join(gates) or 'none'}, on {rows} rows: no answer is given"
            )
        known = [gate.float() for gate in gates.values() if gate is not None]
        mean = float(torch.cat(known).mean()) if known else None
        return SteeringCount(alpha, len(gates), rows * len(gates), mean)

    def _hook(self, site: str, module: nn.Module, args: Any, output: Any) -> Any:
        batch = self._now
        if batch is None or not any(site in self._steerers[c].operators for p in batch.pictures for c in p.strengths):
            return output
        first = output[0] if isinstance(output, tuple) else output  # vLLM's Linears give (output, bias)
        rows = first.reshape(-1, first.shape[-1])
        expected = sum(one.held for one in batch.rows)
        if len(rows) != expected:
            seen = f"{len(batch.rows)} pictures should have {expected} rows at {site}, vLLM gave {len(rows)}"
            raise NeverFired(f"{seen}: no answer is given")
        rows = rows.clone()
        for turn in range(max(len(one.strengths) for one in batch.pictures)):
            self._turn(site, rows, batch, turn)
        replaced = rows.reshape(first.shape)
        return (replaced, *output[1:]) if isinstance(output, tuple) else replaced

    def _turn(self, site: str, rows: Tensor, batch: _Batch, turn: int) -> None:
        """Steerers act one after the other, in the order of each request: here those whose turn it is."""
        by_content: dict[str, list[int]] = {}
        for number, picture in enumerate(batch.pictures):
            if turn < len(picture.strengths):
                by_content.setdefault(list(picture.strengths)[turn], []).append(number)
        for content, numbers in by_content.items():
            steerer = self._steerers[content]
            if site not in steerer.operators:
                continue
            places = torch.cat([batch.places[number] for number in numbers]).to(rows.device)
            counts = [len(batch.places[number]) for number in numbers]
            owners = torch.arange(len(numbers)).repeat_interleave(torch.tensor(counts)).to(rows.device)
            alphas = torch.tensor([batch.pictures[number].strengths[content] for number in numbers])
            done = steerer.apply(rows[places], owners, alphas, site=site, allow_amplify=True)
            rows[places] = done.rows
            gates = [None] * len(numbers) if done.gate is None else done.gate.split(counts)
            for number, gate in zip(numbers, gates, strict=True):
                batch.done[number].setdefault(content, {})[site] = gate
