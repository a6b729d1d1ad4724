"""Reading answers and the probabilities of options with vLLM, as `ggss.models.vlm.Vlm.read` does it."""

# pyright: reportMissingImports=false
# vLLM has an environment of its own, and is not there where types are checked.

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from PIL import Image

from ggss.errors import InputError
from ggss.models import prompts
from ggss.models.reading import Prompts, Reading, Tokenised
from ggss.vllm_plugin.engine_host import EngineHost, EnginePrompt

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
        self._prompts = Prompts(processor, partial(prompts.chat, processor))

    async def read(
        self,
        questions: Sequence[str],
        images: Sequence[Sequence[Image.Image]],
        options: Sequence[Sequence[str]],
        strengths: Strengths,
        max_new_tokens: int,
    ) -> list[Reading]:
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

    def _reading(self, prompt: Tokenised, longest: int, found: Any) -> Reading:
        got = {ids: next(found) for ids, _ in _runs(prompt, longest)}
        answer = self._processor.tokenizer.decode(got[tuple(prompt.ids)].answer, skip_special_tokens=True).strip()
        context = tuple(prompt.context)
        scores = [
            sum(got[context + tuple(tail[:step])].logprobs[token] for step, token in enumerate(tail))
            for tail in prompt.tails
        ]
        if any(math.isnan(score) for score in scores):
            raise InputError(f"{self.name} computes logits that are no numbers (NaN) in vLLM: try --dtype float32")
        return Reading(answer, _shares(scores))

    async def _all(self, wanted: Sequence[_Wanted]) -> list[_Got]:
        """In waves: vLLM decides what runs together. Every picture's steering is proved before answers are given."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

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
