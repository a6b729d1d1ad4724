"""vLLM with steering as one object: prompts in, answers out, and of each picture what was done to it."""

# pyright: reportMissingImports=false
# vLLM has an environment of its own, and is not there where types are checked.

import itertools
import json
import os
import tempfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from ggss.data.decoding import in_rgb
from ggss.errors import InputError
from ggss.models.locating import locate
from ggss.steering.attachment import NeverFired
from ggss.steering.steerer import Steerer
from ggss.vllm_plugin.asked_strengths import ASKED, ENVIRONMENT
from ggss.vllm_plugin.installed import engine_version
from ggss.vllm_plugin.steering_counts import SteeringCount
from ggss.vllm_plugin.steering_worker import EXTENSION
from ggss.vllm_plugin.strength_words import FIELD, key_of
from ggss.vllm_plugin.wide_heads import NARROWEST, head_size, widened

_DEFAULTS = {
    ENVIRONMENT: "",  # steerers are loaded later
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
        ASKED.allow_negative = True  # whoever calls this has decided about strengths already
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
