"""A running vLLM with steering: prompts in, answers out, and what was done to each picture.

- `EngineHost` starts vLLM, loads steerers and runs prompts, in an event loop.
- `SteeringWorker` is its part in vLLM's worker processes.
- `EngineThread` has the event loop in a thread, for callers that are not asynchronous.
- `EngineReader` reads answers and the probabilities of options, as `ggss.models.vlm.Vlm.read` does.
- `widened` writes an equivalent checkpoint with wider attention heads, for text models whose heads are too narrow for
  vLLM's CPU kernels.
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
from ggss.models import locate, prompts
from ggss.models.prompts import Prompts, Tokenised
from ggss.models.reading import Answer
from ggss.steering import SteeringRecord
from ggss.steering.attach import NeverFired
from ggss.steering.steerer import Steerer
from ggss.vllm_plugin import engine_version
from ggss.vllm_plugin.steering import ALPHAS, ASKED, ENVIRONMENT, FIELD, key_of

# pyright: reportMissingImports=false
# vLLM has an environment of its own, and is not installed where types are checked.

T = TypeVar("T")
Strengths = Mapping[str, float]
"""By the content of steerers, in the order in which they act."""

EXTENSION = f"{__name__}.SteeringWorker"  # vLLM's `worker_extension_cls`
NARROWEST = 32  # the smallest head size of vLLM's CPU kernels
_WEIGHTS = "model.safetensors"
_DEFAULTS = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",  # it sends nothing
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; vLLM would take most of the machine's memory
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # other programs run on this machine, too
}


@dataclass(frozen=True)
class EngineSetup:
    """What vLLM is started with. context: the longest prompt and answer, in tokens; None: what fits in memory.

    pictures: the most in a prompt. ways: tensor parallelism. rows: the most answers at a time; None: vLLM's default.
    """

    model: str
    dtype: str
    context: int | None = None
    pictures: int = 8
    ways: int = 1
    rows: int | None = None


@dataclass(frozen=True)
class EnginePrompt:
    """A prompt. ids: with one token for each image. strengths: those of the steerers that act on its images."""

    ids: list[int]
    images: Sequence[Image.Image] = field(repr=False)
    strengths: Mapping[str, float]


@dataclass(frozen=True)
class ReadPrompt:
    """A prompt as vLLM has prepared it. tokens: their number, image tokens included. keys: of its pictures."""

    engine_input: Any
    tokens: int
    keys: list[int]
    strengths: Mapping[str, float]


class EngineHost:
    """A running vLLM. `start` makes it; all other methods must be called in the same event loop."""

    def __init__(self, engine: Any, folder: "tempfile.TemporaryDirectory[str]") -> None:
        self._engine: Any = engine
        self._folder = folder
        self._numbers = itertools.count()
        self._loaded: set[str] = set()

    @classmethod
    async def start(cls, setup: EngineSetup) -> "EngineHost":
        """Start vLLM with a model. InputError if vLLM is not installed, or cannot load the model."""
        engine_version()
        os.environ |= {name: value for name, value in _DEFAULTS.items() if name not in os.environ}
        # Steerers are loaded later. Those of vLLM's own server would act on every prompt that names no strength.
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
        except Exception as error:  # of many types; vLLM's log says more
            folder.cleanup()
            reason = str(error).strip().split("\n")[0] or type(error).__name__
            raise InputError(
                f"vLLM cannot load {setup.model!r} ({reason}): VLLM_LOGGING_LEVEL=INFO says more"
            ) from error
        return cls(engine, folder)

    def stop(self) -> None:
        """End vLLM's processes."""
        self._engine.shutdown()
        # It would shut down once more when Python ends, and fail, because modules it needs are gone by then.
        self._engine.shutdown = lambda *_, **__: None
        self._engine = None
        self._folder.cleanup()

    @property
    def dead(self) -> bool:
        """Whether vLLM has ended by itself."""
        return self._engine is not None and bool(self._engine.errored)

    async def identity(self) -> str:
        """Hash of everything that determines the loaded model's answers. It changes if any model file changes."""
        return (await self._engine.collective_rpc("ggss_identity"))[0]

    async def load(self, folder: str, expected: str | None = None) -> str:
        """Load one more steerer. Returns its content hash, which is its name in prompts.

        InputError if it does not fit the model; every process of vLLM checks that.
        """
        answers = await self._engine.collective_rpc("ggss_load", args=(folder, expected))
        for answer in answers:
            if "refused" in answer:
                raise InputError(answer["refused"])
        content = answers[0]["content"]
        self._loaded.add(content)
        ASKED.contents[content] = content
        # The caller has checked the strengths already.
        ASKED.allow_negative, ASKED.max_alpha = True, errors.ALPHA.most
        return content

    async def add(self, steerer: Steerer) -> str:
        """Load a steerer that is in memory. Returns its content hash."""
        if steerer.content_hash not in self._loaded:
            await self.load(str(steerer.save_pretrained(Path(self._folder.name) / steerer.content_hash)))
        return steerer.content_hash

    async def read(self, prompt: EnginePrompt) -> ReadPrompt:
        """Prepare the pictures of a prompt and expand their tokens.

        InputError if the prompt is too long, or names a steerer that is not loaded.
        """
        from vllm.exceptions import VLLMClientError
        from vllm.renderers.inputs.preprocess import parse_model_prompt

        raw: dict[str, Any] = {"prompt_token_ids": list(prompt.ids)}
        if prompt.images:
            raw["multi_modal_data"] = {"image": [in_rgb(image, "the image") for image in prompt.images]}
        if prompt.strengths:
            raw["mm_processor_kwargs"] = {FIELD: dict(prompt.strengths)}
        renderer = self._engine.renderer
        try:
            parsed = parse_model_prompt(self._engine.model_config, raw)
            (engine_input,) = await renderer.render_cmpl_async([parsed], renderer.default_cmpl_tok_params)
        except VLLMClientError as error:
            raise InputError(str(error)) from error
        except ValueError as error:  # raised by an image processor
            sizes = sorted({image.size for image in prompt.images})
            reason = type(error.__cause__ or error).__name__
            raise InputError(f"vLLM could not prepare images of {sizes} pixels ({reason})") from error
        keys = [key_of(mm_hash) for mm_hash in engine_input.get("mm_hashes", {}).get("image", ())]
        strengths = {content: alpha for content, alpha in prompt.strengths.items() if alpha}
        return ReadPrompt(engine_input, len(engine_input["prompt_token_ids"]), keys, strengths)

    def write(self, prompt: ReadPrompt, params: Any) -> AsyncGenerator[Any]:
        """vLLM's outputs for a prompt; closing the generator aborts it. params: vLLM's `SamplingParams`."""
        return self._engine.generate(prompt.engine_input, params, f"ggss-{next(self._numbers)}")

    async def records(self, prompts: Sequence[ReadPrompt]) -> list[dict[str, SteeringRecord]]:
        """What each steerer did to the pictures of each prompt. The first token of each answer must exist.

        NeverFired if a picture should have been steered and was not, in any process of vLLM.
        """
        keys = [key for prompt in prompts for key in prompt.keys if prompt.strengths]
        by_worker = await self._engine.collective_rpc("ggss_records", args=(keys,)) if keys else []
        by_key = dict(zip(keys, zip(*by_worker, strict=True), strict=True))
        return [_total(prompt, by_key) for prompt in prompts]


def _total(prompt: ReadPrompt, by_key: Mapping[int, Sequence[Any]]) -> dict[str, SteeringRecord]:
    """What each steerer did to a prompt's pictures. by_key: of each picture, the records of each process of vLLM."""
    records = {}
    for content, alpha in prompt.strengths.items():
        pictures = []
        for key in prompt.keys:
            by_worker: list[Any] = [(by_content or {}).get(content) for by_content in by_key[key]]
            if not by_worker or any(
                not record or record["alpha"] != alpha or not record["tokens"] for record in by_worker
            ):
                raise NeverFired(f"a picture was to be steered by {content[:12]} and was not: no answer is given")
            pictures.append(SteeringRecord(**by_worker[0]))
        records[content] = SteeringRecord.total(alpha, pictures)
    return records


class SteeringWorker:
    """Methods that `collective_rpc` can call: vLLM adds this class to the bases of its worker class.

    They return plain data. A refused steerer is a return value too: vLLM passes on only the text of exceptions.
    """

    def ggss_load(self, folder: str, expected: str | None = None) -> dict[str, Any]:
        """Load one more steerer: {"content": its hash}, or {"refused": the message}."""
        try:
            steerer = self._steering().load(folder, expected)
        except InputError as error:
            return {"refused": str(error)}
        return {"content": steerer.content_hash}

    def ggss_identity(self) -> str:
        """The identity of the loaded model."""
        return self._steering().identity

    def ggss_records(self, keys: Sequence[int]) -> list[dict[str, dict[str, Any]] | None]:
        """What was done to the pictures of these keys, by steerer; None for an unknown picture."""
        pictures = [self._steering().records.get(key) for key in keys]
        return [records and {content: asdict(record) for content, record in records.items()} for records in pictures]

    def _steering(self) -> Any:
        model: Any = self.get_model()  # type: ignore[attr-defined]  # vLLM's
        return model.steering


class EngineThread:
    """vLLM with its event loop in a thread. `host` is used through `call` only. InputError if vLLM does not start."""

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
        """Run a coroutine in the loop and wait for its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def close(self) -> None:
        """End vLLM and the thread."""

        async def stop() -> None:
            self.host.stop()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self.call(stop())
        self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@dataclass(frozen=True)
class _Request:
    """A prompt to run. longest: tokens to generate. tokens: those whose log-probability as next token is needed."""

    prompt: EnginePrompt
    longest: int
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class _Output:
    """answer: token ids. logprobs: of the request's tokens."""

    answer: list[int]
    logprobs: Mapping[int, float]


class EngineReader:
    """Reads answers and the probabilities of options. processor: the model's own, which writes the prompts."""

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
        """A greedy answer to each question about its images, and the probabilities of its options; () if none."""
        tokenised = self._prompts(
            [
                (question, (self._mark,) * len(pictures), tuple(choices))
                for question, pictures, choices in zip(questions, images, options, strict=True)
            ]
        )
        requests: list[_Request] = []
        for prompt, pictures in zip(tokenised, images, strict=True):
            acting = strengths if pictures else {}
            requests += [
                _Request(EnginePrompt(list(ids), pictures, acting), longest, tokens)
                for (ids, longest), tokens in _runs(prompt, max_new_tokens).items()
            ]
        outputs = iter(await self._all(requests))
        return [self._answer(prompt, max_new_tokens, outputs) for prompt in tokenised]

    def _answer(self, prompt: Tokenised, longest: int, outputs: Any) -> Answer:
        by_ids = {ids: next(outputs) for ids, _ in _runs(prompt, longest)}
        answer = self._processor.tokenizer.decode(by_ids[tuple(prompt.ids)].answer, skip_special_tokens=True).strip()
        context = tuple(prompt.context)
        scores = [
            sum(by_ids[context + tuple(tail[:step])].logprobs[token] for step, token in enumerate(tail))
            for tail in prompt.tails
        ]
        if any(math.isnan(score) for score in scores):
            raise InputError(f"{self.name} computes logits that are no numbers (NaN) in vLLM: try --dtype float32")
        return Answer(answer, _shares(scores))

    async def _all(self, requests: Sequence[_Request]) -> list[_Output]:
        """Run the requests, in waves, and check that every picture was steered before any answer is returned."""
        from vllm.sampling_params import RequestOutputKind

        from vllm import SamplingParams

        async def run(request: _Request) -> tuple[Any, _Output]:
            params = SamplingParams(
                temperature=0,
                max_tokens=request.longest,
                logprob_token_ids=list(request.tokens) or None,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            prepared = await self.host.read(request.prompt)
            outputs = [output async for output in self.host.write(prepared, params)]
            output = outputs[-1].outputs[0]
            first = output.logprobs[0] if request.tokens else {}
            return prepared, _Output(
                list(output.token_ids), {token: first[token].logprob for token in request.tokens}
            )

        results: dict[int, tuple[Any, _Output]] = {}
        for wave in _waves(requests):
            results |= zip(wave, await asyncio.gather(*(run(requests[number]) for number in wave)), strict=True)
        await self.host.records([prepared for prepared, _ in results.values()])
        return [results[number][1] for number in range(len(requests))]


def _waves(requests: Sequence[_Request]) -> list[list[int]]:
    """The numbers of the requests in two waves: the first about each picture at its strengths, then the others.

    The others reuse the picture's prefix from vLLM's cache. Within a wave they could not: vLLM does not wait for a
    request that computes what another needs. Pictures are compared by object identity.
    """
    visited: set[Any] = set()
    waves: list[list[int]] = [[], []]
    for number, request in enumerate(requests):
        about = tuple(map(id, request.prompt.images)), tuple(request.prompt.strengths.items())
        waves[bool(request.prompt.images) and about in visited].append(number)
        visited.add(about)
    return [wave for wave in waves if wave]


def _runs(prompt: Tokenised, longest: int) -> dict[tuple[tuple[int, ...], int], tuple[int, ...]]:
    """The runs that a prompt needs: (token ids, how many tokens to generate) -> the tokens to score.

    The answer is one of them. An option is scored token by token, each after the tokens before it; options with the
    same beginning share a run, and vLLM caches what the runs have in common.
    """
    scored: dict[tuple[int, ...], dict[int, None]] = {tuple(prompt.ids): {}}
    for tail in prompt.tails:
        for step, token in enumerate(tail):
            scored.setdefault((*prompt.context, *tail[:step]), {})[token] = None
    answer_ids = tuple(prompt.ids)
    return {(ids, longest if ids == answer_ids else 1): tuple(tokens) for ids, tokens in scored.items()}


def _shares(scores: Sequence[float]) -> tuple[float, ...]:
    """Softmax of log-probabilities; () if there are none."""
    if not scores:
        return ()
    powers = [math.exp(score - max(scores)) for score in scores]
    return tuple(power / sum(powers) for power in powers)


def _loadable(name: str, folder: Path) -> str:
    """The folder or hub id of a model; on a CPU that of an equivalent with wider heads, if vLLM's kernels need it."""
    path = Path(locate(name))
    if torch.accelerator.is_available() or not (path / "config.json").is_file():
        return str(path)
    narrow = head_size(json.loads((path / "config.json").read_text())) < NARROWEST
    return str(widened(path, folder) if narrow else path)


def head_size(config: dict[str, Any]) -> int:
    """The head size of the text model in a `config.json`."""
    text = config.get("text_config", config)
    return text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]


def widened(model: str | Path, folder: str | Path) -> Path:
    """Write an equivalent of a model's folder with wider heads. InputError for other positions or files than below.

    The new dimensions of a head are zeros. What depends on the width is changed so that the results are the same, up
    to rounding: the scale of attention, the frequencies of rotary positions, the norms of queries and keys. The
    weights of the vision path are written as they are, so that every steerer recognises the model.
    """
    source, target = Path(model), Path(folder)
    config = json.loads((source / "config.json").read_text())
    times, remainder = divmod(NARROWEST, head_size(config))
    rope = config.get("text_config", {}).get("rope_parameters", {})
    if remainder or rope.get("rope_type") != "default" or not (source / _WEIGHTS).is_file():
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
    save_file({name: heads.wide(name, weight).contiguous() for name, weight in weights.items()}, target / _WEIGHTS)
    (target / "config.json").write_text(json.dumps(_wide_config(config, times), indent=2))
    return target


@dataclass(frozen=True)
class _Heads:
    """Widens heads. size: of a head. times: how much wider it becomes. normed: queries and keys are normed."""

    size: int
    times: int
    normed: bool

    def wide(self, name: str, weight: Tensor) -> Tensor:
        """A weight of the text model's attention with wider heads; any other weight unchanged."""
        if "language_model" not in name or "self_attn" not in name:
            return weight
        kind, root = name.split("self_attn.")[1].split(".")[0], math.sqrt(self.times)
        if kind == "o_proj":
            return self._by_head(weight.T, self._padded).T
        if kind == "v_proj":
            return self._by_head(weight, self._padded)
        wide = self._by_head(weight, self._rotated)
        # Attention divides by the root of the width, so queries must be `root` times as large. A norm's mean square
        # includes the zeros: its input must be `root` times as large, and a key's norm must return `root` times less.
        if kind.endswith("_norm"):
            return wide / root if kind == "k_norm" else wide
        return wide * root if self.normed or kind == "q_proj" else wide

    def _by_head(self, weight: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        return torch.cat([change(head) for head in weight.split(self.size)])

    def _padded(self, head: Tensor) -> Tensor:
        return torch.cat([head, head.new_zeros((self.times - 1) * len(head), *head.shape[1:])])

    def _rotated(self, head: Tensor) -> Tensor:
        """Rotary positions turn the first half of a head against the second, so each half is padded."""
        return torch.cat([self._padded(half) for half in head.chunk(2)])


def _wide_config(config: dict[str, Any], times: int) -> dict[str, Any]:
    text = config["text_config"]
    rope = dict(text["rope_parameters"])
    rope["rope_theta"] = float(rope["rope_theta"]) ** times  # so that the first frequencies are unchanged
    if section := rope.get("mrope_section"):
        added = (times - 1) * sum(section)  # they rotate zeros, so their positions do not matter
        rope["mrope_section"] = [section[0] + added, *section[1:]]
    wide = text | {"head_dim": times * head_size(config), "rope_parameters": rope, "dtype": "float32"}
    return config | {"text_config": wide, "dtype": "float32"}
