"""vLLM with steering as one object: prompts in, answers out, and of each picture what was done to it.

An equivalent checkpoint with wider attention heads, for text models whose heads vLLM's CPU kernels do not have.

The new dimensions of a head are zeros. What depends on the width is set so that the same numbers come out, up to
rounding: the scale of attention, the frequencies of rotary positions, the norms of queries and keys. The weights that
an image passes through before the text are written as they are, so that every steerer recognises the model.

What can be asked of the model's processes by `collective_rpc`: vLLM's `worker_extension_cls`.

Answers are plain data, and a steerer that is refused is an answer too: vLLM tells of exceptions by their text only.

Reading answers and the probabilities of options with vLLM, as `ggss.models.vlm.Vlm.read` does it.

A running vLLM for callers that wait: its event loop is in a thread of its own.
"""

import asyncio
import itertools
import json
import math
import os
import shutil
import tempfile
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from ggss import errors
from ggss.data.pictures import in_rgb
from ggss.errors import InputError
from ggss.models import prompts
from ggss.models.inputs import Prompts, Tokenised
from ggss.models.locating import locate
from ggss.models.reading import Answer
from ggss.steering.attach import NeverFired
from ggss.steering.steerer import Steerer
from ggss.vllm_plugin import engine_version
from ggss.vllm_plugin.steering import ALPHAS, ASKED, ENVIRONMENT, FIELD, SteeringCount, key_of

NARROWEST = 32  # of vLLM's CPU kernels
_WEIGHTS = "model.safetensors"


def head_size(config: dict[str, Any]) -> int:
    """Of the text model that a `config.json` describes."""
    text = config.get("text_config", config)
    return text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]


def widened(model: str | Path, folder: str | Path) -> Path:
    """Write the equivalent of a model's folder. InputError if its positions or its files are of another kind."""
    source, target = Path(model), Path(folder)
    config = json.loads((source / "config.json").read_text())
    times, rest = divmod(NARROWEST, head_size(config))
    rope = config.get("text_config", {}).get("rope_parameters", {})
    if rest or rope.get("rope_type") != "default" or not (source / _WEIGHTS).is_file():
        raise InputError(
            f"the heads of {str(model)!r} are {head_size(config)} wide, vLLM's CPU kernels begin at {NARROWEST}, and "
            f"an equivalent model can be written only for plain rotary positions and weights in one {_WEIGHTS}"
        )
    shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(_WEIGHTS))
    with safe_open(source / _WEIGHTS, "pt") as file:
        # In float32: the square roots below have no exact value in the checkpoint's dtype.
        names = list(file.keys())
        weights = {name: file.get_tensor(name).float() for name in names}
    normed = any(".q_norm." in name for name in weights)
    heads = _Heads(head_size(config), times, normed)
    save_file({name: heads.wide(name, own).contiguous() for name, own in weights.items()}, target / _WEIGHTS)
    (target / "config.json").write_text(json.dumps(_wide_config(config, times), indent=2))
    return target


@dataclass(frozen=True)
class _Heads:
    """size: of a head. times: how much wider it becomes. normed: queries and keys are normed head by head."""

    size: int
    times: int
    normed: bool

    def wide(self, name: str, weight: Tensor) -> Tensor:
        """A weight of the text model's attention with wider heads; another weight as it is."""
        if "language_model" not in name or "self_attn" not in name:
            return weight
        kind, root = name.split("self_attn.")[1].split(".")[0], math.sqrt(self.times)
        if kind == "o_proj":
            return self._by_head(weight.T, self._padded).T
        if kind == "v_proj":
            return self._by_head(weight, self._padded)
        wide = self._by_head(weight, self._rotated)
        # Attention divides by the root of the width, so queries are `root` times as large. Where a norm follows, its
        # mean square is over zeros too: what it gets is `root` times as large, and what a key's norm gives less.
        if kind.endswith("_norm"):
            return wide / root if kind == "k_norm" else wide
        return wide * root if self.normed or kind == "q_proj" else wide

    def _by_head(self, weight: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        return torch.cat([change(own) for own in weight.split(self.size)])

    def _padded(self, head: Tensor) -> Tensor:
        return torch.cat([head, head.new_zeros((self.times - 1) * len(head), *head.shape[1:])])

    def _rotated(self, head: Tensor) -> Tensor:
        """Rotary positions turn the first half of a head against the second, so each half is padded."""
        return torch.cat([self._padded(half) for half in head.chunk(2)])


def _wide_config(config: dict[str, Any], times: int) -> dict[str, Any]:
    text = config["text_config"]
    rope = dict(text["rope_parameters"])
    rope["rope_theta"] = float(rope["rope_theta"]) ** times  # so that the first frequencies are as before
    if section := rope.get("mrope_section"):
        added = (times - 1) * sum(section)  # frequencies of zeros: they may turn by any position
        rope["mrope_section"] = [section[0] + added, *section[1:]]
    wide = text | {"head_dim": times * head_size(config), "rope_parameters": rope, "dtype": "float32"}
    return config | {"text_config": wide, "dtype": "float32"}


EXTENSION = f"{__name__}.SteeringWorker"


class SteeringWorker:
    """vLLM mixes it into the class of its workers."""

    def ggss_load(self, folder: str, expected: str | None = None) -> dict[str, Any]:
        """Load a steerer beside the others, under its content: `content`, or `refused` with the sentence."""
        try:
            steerer = self._steering().load(folder, expected)
        except InputError as error:
            return {"refused": str(error)}
        return {"content": steerer.content_hash}

    def ggss_identity(self) -> str:
        """Of the loaded model."""
        return self._steering().identity

    def ggss_counts(self, keys: Sequence[int]) -> list[dict[str, dict[str, Any]] | None]:
        """What was done to the pictures of these keys, by steerer; None for a picture that never came."""
        found = (self._steering().counts.get(key) for key in keys)
        return [None if one is None else {content: asdict(own) for content, own in one.items()} for one in found]

    def _steering(self) -> Any:
        model: Any = self.get_model()  # type: ignore[attr-defined]  # vLLM's
        return model.steering


# pyright: reportMissingImports=false
# vLLM has an environment of its own, and is not there where types are checked.


_DEFAULTS = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",  # it calls nobody
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; vLLM would take most of the machine's memory
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # other programs run on this machine, too
}


@dataclass(frozen=True)
class EngineSetup:
    """What vLLM is started with. context: the longest prompt and answer, in tokens; None: what fits in memory.

    pictures: the most in one prompt. ways: tensor parallelism. rows: the most answers at a time; None: vLLM's own.
    """

    model: str
    dtype: str
    context: int | None = None
    pictures: int = 8
    ways: int = 1
    rows: int | None = None


@dataclass(frozen=True)
class EnginePrompt:
    """ids: with one token for each image. strengths: by the content of steerers, in the order in which they act."""

    ids: list[int]
    images: Sequence[Image.Image] = field(repr=False)
    strengths: Mapping[str, float]


@dataclass(frozen=True)
class ReadPrompt:
    """A prompt as vLLM has prepared it. tokens: with those of images. keys: of its pictures."""

    engine_input: Any
    tokens: int
    keys: list[int]
    strengths: Mapping[str, float]


class EngineHost:
    """One running vLLM. `start` makes it; all else must be called in the same event loop."""

    def __init__(self, engine: Any, folder: "tempfile.TemporaryDirectory[str]") -> None:
        self._engine: Any = engine
        self._folder = folder
        self._numbers = itertools.count()
        self._loaded: set[str] = set()

    @classmethod
    async def start(cls, setup: EngineSetup) -> "EngineHost":
        """Load the model. InputError if vLLM is not there, or cannot load it."""
        engine_version()
        os.environ |= {name: value for name, value in _DEFAULTS.items() if name not in os.environ}
        # Steerers are loaded later. Those of vLLM's own server would act on every prompt here that asks for none.
        os.environ |= {ENVIRONMENT: "", ALPHAS: ""}
        folder = tempfile.TemporaryDirectory(prefix="ggss-vllm-")
        model = _loadable(setup.model, Path(folder.name) / "model")
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        on_cpu = not torch.accelerator.is_available()
        try:
            engine = AsyncLLM.from_engine_args(
                AsyncEngineArgs(
                    model=model,
                    dtype=setup.dtype,
                    max_model_len=setup.context or -1,
                    limit_mm_per_prompt={"image": setup.pictures},
                    tensor_parallel_size=setup.ways,
                    max_num_seqs=setup.rows,
                    worker_extension_cls=EXTENSION,
                    enforce_eager=on_cpu,
                    disable_log_stats=True,
                    seed=0,
                )
            )
        except Exception as error:  # of many types; its own log says more
            folder.cleanup()
            reason = str(error).strip().split("\n")[0] or type(error).__name__
            raise InputError(
                f"vLLM cannot load {setup.model!r} ({reason}): VLLM_LOGGING_LEVEL=INFO says more"
            ) from error
        return cls(engine, folder)

    def stop(self) -> None:
        """End vLLM's processes; nothing can be asked after that."""
        self._engine.shutdown()
        # It would shut down once more when Python ends, and fail: what it needs is gone by then.
        self._engine.shutdown = lambda *_, **__: None
        self._engine = None
        self._folder.cleanup()

    @property
    def dead(self) -> bool:
        """Whether vLLM has ended by itself."""
        return self._engine is not None and bool(self._engine.errored)

    async def identity(self) -> str:
        """A hash of all that decides the loaded model's answers; another one after a file of it was changed."""
        return (await self._engine.collective_rpc("ggss_identity"))[0]

    async def load(self, folder: str, expected: str | None = None) -> str:
        """Load a steerer beside the others; returns its content, which is its name in prompts.

        InputError if it does not fit the model, which every process of vLLM checks.
        """
        answers = await self._engine.collective_rpc("ggss_load", args=(folder, expected))
        for answer in answers:
            if "refused" in answer:
                raise InputError(answer["refused"])
        content = answers[0]["content"]
        self._loaded.add(content)
        ASKED.contents[content] = content
        # Whoever calls this has decided about strengths already.
        ASKED.allow_negative, ASKED.max_alpha = True, errors.ALPHA.most
        return content

    async def add(self, steerer: Steerer) -> str:
        """The same with a steerer that is in memory."""
        if steerer.content_hash not in self._loaded:
            await self.load(str(steerer.save_pretrained(Path(self._folder.name) / steerer.content_hash)))
        return steerer.content_hash

    async def read(self, prompt: EnginePrompt) -> ReadPrompt:
        """Prepare its pictures, and expand them in the prompt. InputError if it is too long, or asks for what is not
        there."""
        from vllm.exceptions import VLLMClientError
        from vllm.renderers.inputs.preprocess import parse_model_prompt

        raw: dict[str, Any] = {"prompt_token_ids": list(prompt.ids)}
        if prompt.images:
            raw["multi_modal_data"] = {"image": [in_rgb(own, "the image") for own in prompt.images]}
        if prompt.strengths:
            raw["mm_processor_kwargs"] = {FIELD: dict(prompt.strengths)}
        renderer = self._engine.renderer
        try:
            parsed = parse_model_prompt(self._engine.model_config, raw)
            (ready,) = await renderer.render_cmpl_async([parsed], renderer.default_cmpl_tok_params)
        except VLLMClientError as error:
            raise InputError(str(error)) from error
        except ValueError as error:  # an image processor's, of whatever it does not expect
            sizes = sorted({image.size for image in prompt.images})
            reason = type(error.__cause__ or error).__name__
            raise InputError(f"vLLM could not prepare images of {sizes} pixels ({reason})") from error
        keys = [key_of(own) for own in ready.get("mm_hashes", {}).get("image", ())]
        strengths = {content: alpha for content, alpha in prompt.strengths.items() if alpha}
        return ReadPrompt(ready, len(ready["prompt_token_ids"]), keys, strengths)

    def write(self, prompt: ReadPrompt, params: Any) -> AsyncGenerator[Any]:
        """vLLM's outputs for a prompt; closing it early frees its place. params: vLLM's `SamplingParams`."""
        return self._engine.generate(prompt.engine_input, params, f"ggss-{next(self._numbers)}")

    async def counts(self, prompts: Sequence[ReadPrompt]) -> list[dict[str, SteeringCount]]:
        """What each steerer did to the pictures of each prompt, of which the first token is there.

        NeverFired if a picture was to be steered and was not, in any process of vLLM.
        """
        keys = [key for prompt in prompts for key in prompt.keys if prompt.strengths]
        by_worker = await self._engine.collective_rpc("ggss_counts", args=(keys,)) if keys else []
        known = dict(zip(keys, zip(*by_worker, strict=True), strict=True))
        return [_summed(prompt, known) for prompt in prompts]


def _summed(prompt: ReadPrompt, known: Mapping[int, Sequence[Any]]) -> dict[str, SteeringCount]:
    found = {}
    for content, alpha in prompt.strengths.items():
        pictures = []
        for key in prompt.keys:
            counted = [(one or {}).get(content) for one in known[key]]
            if not counted or any(one is None or one["alpha"] != alpha or not one["tokens"] for one in counted):
                raise NeverFired(f"a picture was to be steered by {content[:12]} and was not: no answer is given")
            pictures.append(counted[0])
        tokens = sum(one["tokens"] for one in pictures)
        gates = [one["gate_mean"] for one in pictures]
        known_gates = None not in gates and tokens
        mean = sum(one["gate_mean"] * one["tokens"] for one in pictures) / tokens if known_gates else None
        found[content] = SteeringCount(alpha, max((one["calls"] for one in pictures), default=0), tokens, mean)
    return found


def _loadable(name: str, folder: Path) -> str:
    """A model's place; on a CPU, an equivalent with wider heads if vLLM's kernels do not have its own."""
    path = Path(locate(name))
    if torch.accelerator.is_available() or not (path / "config.json").is_file():
        return str(path)
    narrow = head_size(json.loads((path / "config.json").read_text())) < NARROWEST
    return str(widened(path, folder) if narrow else path)


# pyright: reportMissingImports=false
# vLLM has an environment of its own, and is not there where types are checked.


Strengths = Mapping[str, float]


@dataclass(frozen=True)
class _Wanted:
    """A prompt and what is wanted of it. tokens: whose log-probabilities as the next token are wanted."""

    prompt: EnginePrompt
    longest: int
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class _Got:
    answer: list[int]
    logprobs: Mapping[int, float]


class EngineReader:
    """processor: the model's own, by which prompts are written."""

    def __init__(self, host: EngineHost, processor: Any, name: str) -> None:
        self.host, self.name = host, name
        self._processor = processor
        self._mark = prompts.image_mark(processor)
        self._prompts = Prompts(processor)

    async def read(
        self,
        questions: Sequence[str],
        images: Sequence[Sequence[Image.Image]],
        options: Sequence[Sequence[str]],
        strengths: Strengths,
        max_new_tokens: int,
    ) -> list[Answer]:
        """One greedy answer to each question about its images, and the probabilities of its options; () if none."""
        asked = [
            (question, (self._mark,) * len(own), tuple(those))
            for question, own, those in zip(questions, images, options, strict=True)
        ]
        tokenised = self._prompts(asked)
        wanted: list[_Wanted] = []
        for prompt, own in zip(tokenised, images, strict=True):
            acting = strengths if own else {}
            wanted += [
                _Wanted(EnginePrompt(list(ids), own, acting), longest, tokens)
                for (ids, longest), tokens in _runs(prompt, max_new_tokens).items()
            ]
        found = iter(await self._all(wanted))
        return [self._reading(prompt, max_new_tokens, found) for prompt in tokenised]

    def _reading(self, prompt: Tokenised, longest: int, found: Any) -> Answer:
        got = {ids: next(found) for ids, _ in _runs(prompt, longest)}
        answer = self._processor.tokenizer.decode(got[tuple(prompt.ids)].answer, skip_special_tokens=True).strip()
        context = tuple(prompt.context)
        scores = [
            sum(got[context + tuple(tail[:step])].logprobs[token] for step, token in enumerate(tail))
            for tail in prompt.tails
        ]
        if any(math.isnan(score) for score in scores):
            raise InputError(f"{self.name} computes logits that are no numbers (NaN) in vLLM: try --dtype float32")
        return Answer(answer, _shares(scores))

    async def _all(self, wanted: Sequence[_Wanted]) -> list[_Got]:
        """In waves: vLLM decides what runs together. Every picture's steering is proved before answers are given."""
        from vllm.sampling_params import RequestOutputKind

        from vllm import SamplingParams

        async def one(own: _Wanted) -> tuple[Any, _Got]:
            params = SamplingParams(
                temperature=0,
                max_tokens=own.longest,
                logprob_token_ids=list(own.tokens) or None,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            ready = await self.host.read(own.prompt)
            outputs = [output async for output in self.host.write(ready, params)]
            output = outputs[-1].outputs[0]
            first = output.logprobs[0] if own.tokens else {}
            return ready, _Got(list(output.token_ids), {token: first[token].logprob for token in own.tokens})

        done: dict[int, tuple[Any, _Got]] = {}
        for wave in _waves(wanted):
            done |= zip(wave, await asyncio.gather(*(one(wanted[number]) for number in wave)), strict=True)
        await self.host.counts([ready for ready, _ in done.values()])
        return [done[number][1] for number in range(len(wanted))]


def _waves(wanted: Sequence[_Wanted]) -> list[list[int]]:
    """The first prompt about each picture at its strengths, then the others: they find the picture's prefix computed.

    vLLM does not wait for one request that computes what another needs. Pictures are told apart by their objects.
    """
    seen: set[Any] = set()
    waves: list[list[int]] = [[], []]
    for number, own in enumerate(wanted):
        about = tuple(map(id, own.prompt.images)), tuple(own.prompt.strengths.items())
        waves[bool(own.prompt.images) and about in seen].append(number)
        seen.add(about)
    return [wave for wave in waves if wave]


def _runs(prompt: Tokenised, longest: int) -> dict[tuple[tuple[int, ...], int], tuple[int, ...]]:
    """Prompts to run and the length of what is to be written after each, with the tokens to be scored.

    The answer is one of them. An option is scored token by token, each after the tokens before it; options that begin
    alike share a run, and vLLM keeps what the runs have in common.
    """
    scored: dict[tuple[int, ...], dict[int, None]] = {tuple(prompt.ids): {}}
    for tail in prompt.tails:
        for step, token in enumerate(tail):
            scored.setdefault((*prompt.context, *tail[:step]), {})[token] = None
    own = tuple(prompt.ids)
    return {(ids, longest if ids == own else 1): tuple(tokens) for ids, tokens in scored.items()}


def _shares(scores: Sequence[float]) -> tuple[float, ...]:
    """Softmax of log-probabilities; () of none."""
    if not scores:
        return ()
    powers = [math.exp(score - max(scores)) for score in scores]
    return tuple(power / sum(powers) for power in powers)


T = TypeVar("T")


class EngineThread:
    """`host` is used through `call` only. InputError if vLLM does not come up."""

    def __init__(self, setup: EngineSetup) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm", daemon=True)
        self._thread.start()
        try:
            self.host = self.call(EngineHost.start(setup))
        except BaseException:
            self._end()
            raise

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Its result, once it is there."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def close(self) -> None:
        """End vLLM and the thread."""

        async def stop() -> None:
            self.host.stop()
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

        self.call(stop())
        self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
