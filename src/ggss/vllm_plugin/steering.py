"""Steering in vLLM, which encodes a batch of pictures, each at the strengths of its request.

- `AskedStrengths` decides in vLLM's front process which strengths act on a request: the server's, or those that the
  request names instead. They are checked before anything is computed. A request that names no strength is steered
  with the server's: forgetting the field must not give the biased model's answer. Names of steerers become content
  hashes before vLLM hashes the request. So its caches distinguish strengths, and also two steerers of the same name.
- `packed` makes a tensor of a picture's strengths, which goes with it to the model's process. It has 64-bit integers,
  so that nothing rounds it: the picture's key, then for each steerer four words of its content hash and one with the
  bits of the strength.
- `ProjectorSteering` steers the projector's output in the model's process.
- `SteeringCounts` remembers what was done to each picture, as long as a cache of vLLM may serve it.
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
from ggss.steering import SteeringRecord
from ggss.steering.attach import ONLY_TOGETHER, NeverFired
from ggss.steering.steerer import Steerer

FIELD = "ggss"
"""The name of the pictures' field, and of the entry of `mm_processor_kwargs` in a request."""

ENVIRONMENT, NEGATIVE = "GGSS_STEERERS", "GGSS_ALLOW_NEGATIVE"
ALPHAS, MOST = "GGSS_ALPHAS", "GGSS_MAX_ALPHA"

MOST_RECORDS = 2**20
"""Pictures that are remembered. vLLM's caches hold fewer: each picture takes at least a block of its KV cache."""

_WORDS = 5  # of 64 bits, for each steerer


@dataclass(frozen=True)
class PictureStrengths:
    """The strengths on a picture. key: of the picture at these strengths. strengths: by the steerers' content, in the
    order in which they act."""

    key: int
    strengths: Mapping[str, float]


def packed(strengths: Mapping[str, float], key: int = 0) -> Tensor:
    """The key and strengths of a picture as an int64 tensor [1 + 5 * steerers]."""
    words = [key]
    for content, alpha in strengths.items():
        words += struct.unpack(">4q", bytes.fromhex(content)) + struct.unpack(">q", struct.pack(">d", alpha))
    return torch.tensor(words, dtype=torch.int64)


def unpacked(words: Tensor) -> PictureStrengths:
    """The inverse of `packed`; ValueError if the tensor does not come from it."""
    key, *values = words.tolist()
    if words.dtype != torch.int64 or len(values) % _WORDS:
        raise ValueError(f"{len(values)} words of {words.dtype} are no strengths")
    strengths = {}
    for start in range(0, len(values), _WORDS):
        *content, alpha = values[start : start + _WORDS]
        strengths[struct.pack(">4q", *content).hex()] = struct.unpack(">d", struct.pack(">q", alpha))[0]
    return PictureStrengths(key, strengths)


def key_of(mm_hash: str) -> int:
    """A picture's key, from vLLM's hash of it, which covers the picture and all strengths."""
    return struct.unpack(">q", hashlib.sha256(mm_hash.encode()).digest()[:8])[0]


def folders(text: str) -> dict[str, str]:
    """`race=DIR,gender=DIR` as a dictionary."""
    return _pairs(text, ENVIRONMENT, "race=DIR,gender=DIR")


def _pairs(text: str, variable: str, example: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for part in filter(None, map(str.strip, text.split(","))):
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
    """The strengths other than 0, by the content of their steerers, in order.

    InputError if two of them are of the same steerer: vLLM distinguishes steerers by content only.
    """
    result: dict[str, float] = {}
    for name, alpha in strengths.items():
        if alpha and contents[name] in result:
            names = [other_name for other_name in strengths if contents[other_name] == contents[name]]
            raise InputError(f"{' and '.join(names)} are one and the same steerer: ask for one of them")
        if alpha:
            result[contents[name]] = float(alpha)
    return result


class AskedStrengths:
    """The strengths that requests may ask for. contents: the content hash of each steerer, by its name in requests.

    defaults: the server's strengths, which act on every image unless a request names others; in this order. A steerer
    that is not among them acts only where a request names it. max_alpha: the largest absolute strength of a request;
    the server's own strength may be larger.
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
        """The steerers in the environment of vLLM, with the strengths stored in them unless it names others."""
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
        by_content(contents, defaults)  # InputError for the same steerer under two names
        most = os.environ.get(MOST, "")
        return cls(contents, allow_negative, defaults, _number(most, MOST) if most else errors.MAX_ALPHA)

    def fill(self, rules: "AskedStrengths") -> None:
        """Add the steerers of other rules and take over their limits; steerers that are here already stay."""
        self.contents |= rules.contents
        self.defaults |= rules.defaults
        self.allow_negative |= rules.allow_negative
        self.max_alpha = rules.max_alpha

    def prompt(self, prompt: Mapping[str, Any]) -> dict[str, Any]:
        """A prompt of vLLM with all strengths that act on it, by content. InputError if a strength is not allowed."""
        settings = dict(prompt.get("mm_processor_kwargs") or {})
        requested = settings.pop(FIELD, {})
        strengths = self.strengths(requested)
        if not prompt.get("multi_modal_data"):
            if any(requested.values()):
                raise InputError(
                    "steering was asked for, and the request has no image: steering acts on images, send one or "
                    f"leave out `{FIELD}`"
                )
            strengths = {}
        if strengths and settings:
            acting = ", ".join(f"{name}: 0" for name in self.defaults if name not in requested)
            raise InputError(
                f"images are steered here, and the request has {', '.join(sorted(settings))} for the image "
                "processor: a steerer is made for pictures as the model's own settings prepare them. Leave these "
                f"out, or ask for no steering with `{FIELD}`{f' ({acting})' if acting else ''}"
            )
        if not strengths and "mm_processor_kwargs" not in prompt:
            return dict(prompt)
        return {**prompt, "mm_processor_kwargs": settings | ({FIELD: strengths} if strengths else {})}

    def strengths(self, requested: Any) -> dict[str, float]:
        """The strengths of a request, by content, without those of 0.

        First the server's in their order, with the values that the request names instead; then the request's others.
        """
        if not isinstance(requested, Mapping):
            raise InputError(f"`{FIELD}` gives strengths by steerer, as in {{'race': 0.75}}; seen {requested!r:.60}")
        for name, alpha in requested.items():
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
        return by_content(self.contents, self.defaults | dict(requested))


ASKED = AskedStrengths()
"""The rules of this process. `plugin.register` fills them, and so does `EngineHost.load`."""


class SteeringRecords:
    """Records by picture key, then by the steerer's content. The least recently used are dropped first."""

    def __init__(self, most: int = MOST_RECORDS) -> None:
        self._most = most
        self._records: OrderedDict[int, dict[str, SteeringRecord]] = OrderedDict()

    def add(self, key: int, records: dict[str, SteeringRecord]) -> None:
        self._records[key] = records
        self._records.move_to_end(key)
        while len(self._records) > self._most:
            self._records.popitem(last=False)

    def get(self, key: int) -> dict[str, SteeringRecord] | None:
        """The records of a picture; None if it is unknown."""
        if key in self._records:
            self._records.move_to_end(key)
        return self._records.get(key)


@dataclass(frozen=True)
class PictureRows:
    """rows: of a picture at a site. padded: the same with the rows of padding tiles, which come after them."""

    rows: int
    padded: int


@dataclass
class _Batch:
    """Pictures that are being encoded. gates: for each picture, by steerer and site, the gates [rows]."""

    pictures: Sequence[PictureStrengths]
    rows: Sequence[PictureRows]
    gates: list[dict[str, dict[str, Tensor | None]]] = field(init=False)

    def __post_init__(self) -> None:
        self.gates = [{} for _ in self.pictures]
        padded = [picture.padded for picture in self.rows]
        places = torch.arange(sum(padded)).split(padded)
        self.places = [part[: picture.rows] for part, picture in zip(places, self.rows, strict=True)]


class ProjectorSteering:
    """Hooks on the sites of vLLM's model, which steer each picture of a batch at its strengths.

    described: the same model in transformers, without weights. weights: their fingerprint. modules: by site. content:
    a hash of all weights.
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
        """The model's identity, the same in every process that has loaded the same files."""
        self._steerers: dict[str, Steerer] = {}
        self._batch: _Batch | None = None
        self._modules = modules
        self.records = SteeringRecords()
        for site, module in modules.items():
            module.register_forward_hook(partial(self._hook, site))

    def load(self, folder: str, expected: str | None = None) -> Steerer:
        """Load a steerer and check it against the model. expected: the content hash that it must have."""
        steerer = Steerer.from_pretrained(folder)
        if expected is not None and steerer.content_hash != expected:
            raise InputError(f"the steerer in {folder!r} is not the one that was checked: put that back")
        if inner := [site for site in steerer.operators if in_text(site) or in_tower(site)]:
            raise InputError(
                f"the steerer in {folder!r} acts on {inner[0]}, and in vLLM only the projector's output can be "
                "steered: use the transformers engine"
            )
        if steerer.together:
            raise InputError(f"the steerer in {folder!r} {ONLY_TOGETHER}")
        steerer.check(self._described, weights=self._weights)
        self._steerers[steerer.content_hash] = steerer
        return steerer

    @contextmanager
    def acting(self, pictures: Sequence[PictureStrengths], rows: Sequence[PictureRows]) -> Iterator[None]:
        """Steer the pictures that are encoded inside the block. NeverFired if one should be steered and was not."""
        unknown = {content for picture in pictures for content in picture.strengths} - self._steerers.keys()
        if unknown:
            raise InputError(f"no steerer of the content {unknown.pop()} is loaded: nothing is answered")
        self._batch = batch = _Batch(pictures, rows)
        try:
            yield
        finally:
            self._batch = None
        for picture, picture_rows, gates in zip(pictures, rows, batch.gates, strict=True):
            records = {
                content: self._record(content, alpha, gates.get(content, {}), picture_rows.rows)
                for content, alpha in picture.strengths.items()
            }
            self.records.add(picture.key, records)

    def _record(self, content: str, alpha: float, gates: Mapping[str, Tensor | None], rows: int) -> SteeringRecord:
        sites = self._steerers[content].operators
        if gates.keys() != sites.keys() or not rows:
            raise NeverFired(
                f"the steerer {content[:12]} was to act at {', '.join(sites)} and acted at "
                f"{', '.join(gates) or 'none'}, on {rows} rows: no answer is given"
            )
        return SteeringRecord.of_gates(alpha, rows, list(gates.values()))

    def _hook(self, site: str, module: nn.Module, args: Any, output: Any) -> Any:
        batch = self._batch
        if batch is None or not any(site in self._steerers[c].operators for p in batch.pictures for c in p.strengths):
            return output
        first = output[0] if isinstance(output, tuple) else output  # vLLM's Linears give (output, bias)
        rows = first.reshape(-1, first.shape[-1])
        expected = sum(picture.padded for picture in batch.rows)
        if len(rows) != expected:
            raise NeverFired(
                f"{len(batch.rows)} pictures should have {expected} rows at {site}, vLLM gave {len(rows)}: no answer "
                "is given"
            )
        rows = rows.clone()
        for turn in range(max(len(picture.strengths) for picture in batch.pictures)):
            self._turn(site, rows, batch, turn)
        replaced = rows.reshape(first.shape)
        return (replaced, *output[1:]) if isinstance(output, tuple) else replaced

    def _turn(self, site: str, rows: Tensor, batch: _Batch, turn: int) -> None:
        """Apply the steerers at this position of each request's order: they act one after the other."""
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
            result = steerer.apply(rows[places], owners, alphas, site=site, allow_amplify=True)
            rows[places] = result.rows
            gates = [None] * len(numbers) if result.gate is None else result.gate.split(counts)
            for number, gate in zip(numbers, gates, strict=True):
                batch.gates[number].setdefault(content, {})[site] = gate
