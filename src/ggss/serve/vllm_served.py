"""A model in vLLM with its steerers: from a request to the pieces of its answer."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import cache
from pathlib import Path
from typing import Any

from ggss.data.picture import BytesPicture
from ggss.errors import InputError
from ggss.models import prompts
from ggss.serve.answer_text import AnswerText
from ggss.serve.chat_job import ChatJob
from ggss.serve.engine import AnswerPiece, Began, ServedSteerer, SteeringRecord
from ggss.serve.growing_answer import GrowingAnswer
from ggss.serve.steerer_facts import facts_of, with_suffix
from ggss.serve.token_facts import token_facts
from ggss.steering.steerer import Steerer
from ggss.vllm_plugin.asked_strengths import by_content
from ggss.vllm_plugin.engine_host import EngineHost, EnginePrompt, ReadPrompt


class VllmServed:
    """processor: the model's own. ends: the tokens that end an answer. context: tokens of a prompt and its answer.

    most_tokens: of an answer; prompt_tokens: of a prompt.
    """

    def __init__(
        self, host: EngineHost, processor: Any, ends: set[int], context: int, most_tokens: int, prompt_tokens: int
    ) -> None:
        self.host, self.steerers = host, dict[str, Steerer]()
        self._processor, self._ends, self._context = processor, ends, context
        self._most_tokens, self._prompt_tokens = most_tokens, prompt_tokens
        self._mark = prompts.image_mark(processor)
        tokenizer = processor.tokenizer
        self._decode = lambda tokens: tokenizer.decode(tokens, skip_special_tokens=True)
        self._word = cache(lambda token: tokenizer.decode([token]))

    async def load(self, name: str, folder: str, expected: str | None = None) -> ServedSteerer:
        """Read a steerer and check it in vLLM; only then it replaces the one of this name.

        expected: the content that it must have. InputError if anything is wrong with it.
        """
        if not Path(folder).is_dir():
            raise InputError(f"the steerer {name!r}: there is no folder {folder!r} on the server")
        steerer = Steerer.from_pretrained(folder)
        await self.host.load(folder, expected or steerer.content_hash)
        self.steerers[name] = steerer
        return facts_of(steerer, folder)

    async def answer(self, job: ChatJob) -> AsyncGenerator[Began | AnswerPiece]:
        """First what was done to its pictures, then its answers. InputError as from the transformers engine."""
        steerers = dict(self.steerers)  # as they are now: one may be replaced meanwhile
        ready = await self.host.read(await asyncio.to_thread(self._prompt, job, steerers))
        room = min(self._context - 1, self._prompt_tokens)
        if ready.tokens > room:
            raise InputError(
                f"the prompt has {ready.tokens} tokens with its pictures, at most {room} fit: shorten it"
            )
        most = min(job.most_tokens or self._most_tokens, self._context - ready.tokens)
        growing = [GrowingAnswer(n, most, AnswerText(self._decode, job.stop)) for n in range(job.choices)]
        began = False
        async with aclosing(self.host.write(ready, _params(job, most))) as outputs:
            async for output in outputs:
                if not began:
                    began = True
                    yield Began(ready.tokens, await self._records(job, ready, steerers))
                for own in output.outputs:
                    # Greedy choices are all the same, and vLLM writes only one.
                    for answer in [growing[own.index]] if job.temperature else growing:
                        for piece in self._pieces(answer, own, job.top_logprobs):
                            yield piece
                if all(one.over for one in growing):
                    return

    def _prompt(self, job: ChatJob, steerers: dict[str, Steerer]) -> EnginePrompt:
        images = [BytesPicture.of(data).image() for data in job.pictures]
        text = prompts.conversation(self._processor, with_suffix(job, steerers))
        (ids,) = prompts.tokens(self._processor, [text], [self._mark] * len(images))
        contents = {name: own.content_hash for name, own in steerers.items()}
        acting = {name: alpha for name, alpha in job.strengths.items() if steerers[name].operators}
        return EnginePrompt(ids, images, by_content(contents, acting))

    async def _records(
        self, job: ChatJob, ready: ReadPrompt, steerers: dict[str, Steerer]
    ) -> dict[str, SteeringRecord]:
        (counts,) = await self.host.counts([ready])
        found = {}
        for name, alpha in job.strengths.items():
            own = counts.get(steerers[name].content_hash)
            facts = (own.calls, own.tokens, own.gate_mean) if own else (0, 0, None)
            found[name] = SteeringRecord(alpha, *facts)
        return found

    def _pieces(self, answer: GrowingAnswer, output: Any, top: int | None) -> list[AnswerPiece]:
        pieces = []
        for place, token in enumerate(output.token_ids):
            if answer.over:
                break
            known = [] if top is None else [self._logprobs(token, output.logprobs[place], top)]
            pieces.append(answer.grown(token, self._ends, known))
        return pieces

    def _logprobs(self, token: int, known: Any, top: int) -> dict[str, Any]:
        """vLLM gives the chosen token and the likeliest, with their ranks."""
        likeliest = sorted((own for own in known.items() if own[1].rank <= top), key=lambda own: own[1].rank)
        named = [token_facts(self._word(number), own.logprob) for number, own in likeliest]
        return token_facts(self._word(token), known[token].logprob) | {"top_logprobs": named}


def _params(job: ChatJob, most: int) -> Any:
    """Stop sequences are looked for in the text by `AnswerText`, so that all engines cut alike."""
    from vllm import SamplingParams  # pyright: ignore[reportMissingImports]
    from vllm.sampling_params import RequestOutputKind  # pyright: ignore[reportMissingImports]

    return SamplingParams(
        n=job.choices if job.temperature else 1,
        temperature=job.temperature,
        top_p=job.top_p,
        seed=None if job.seed is None else job.seed % 2**63,
        max_tokens=most,
        logprobs=job.top_logprobs,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )
