"""The process in which vLLM runs the model: `python -m ggss.serve.vllm_engine`, started by `engine.WorkerProcess`.

`VllmServed` is the model in vLLM with its steerers: from a request to the parts of its answer. `VllmProcess` gives
requests to vLLM as they arrive, and vLLM decides which run together. The process ends when the server closes the
connection, or with exit code 1 if vLLM has ended: the server then starts another.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing, suppress
from functools import cache
from pathlib import Path
from typing import Any

from transformers import GenerationConfig

from ggss.data.pictures import BytesPicture, shrunk
from ggss.errors import InputError
from ggss.models import locate, prompts
from ggss.models.placement import placement
from ggss.models.vlm import load_description
from ggss.serve.answers import AnswerPart, AnswerPiece, AnswerStart, AnswerText, PartialAnswer, logprob_entry
from ggss.serve.batching import served_steerer, turns_with_suffix
from ggss.serve.engine import HEARTBEAT, Ask, JobQueue, Load, NotLoaded, Ready, Reload, Reloaded, ServerGone, Started
from ggss.serve.schema import ChatJob, ServedSteerer
from ggss.serve.worker import failure, reload_failure
from ggss.steering import SteeringRecord
from ggss.steering.attach import compare_sizes
from ggss.steering.steerer import Steerer
from ggss.vllm_plugin.engine import EngineHost, EnginePrompt, EngineSetup, ReadPrompt
from ggss.vllm_plugin.steering import by_content


class VllmServed:
    """A model in vLLM with its steerers.

    processor: the model's. eos_tokens: they end an answer. context: the most tokens of a prompt and its answer.
    most_tokens: of an answer; prompt_tokens: of a prompt. max_side: pixels of a picture's longer side, at most.
    """

    def __init__(
        self,
        host: EngineHost,
        processor: Any,
        eos_tokens: set[int],
        context: int,
        most_tokens: int,
        prompt_tokens: int,
        max_side: int | None = None,
    ) -> None:
        self.host, self.steerers = host, dict[str, Steerer]()
        self._processor, self._eos_tokens, self._context = processor, eos_tokens, context
        self._most_tokens, self._prompt_tokens = most_tokens, prompt_tokens
        self._max_side = max_side
        self._mark = prompts.image_mark(processor)
        tokenizer = processor.tokenizer
        self._decode = lambda tokens: tokenizer.decode(tokens, skip_special_tokens=True)
        self._token_text = cache(lambda token: tokenizer.decode([token]))

    async def load(self, name: str, folder: str, expected: str | None = None) -> ServedSteerer:
        """Read a steerer and check it in vLLM, then replace the one of this name by it.

        expected: the hash of the content that it must have. InputError if the steerer cannot be used.
        """
        if not Path(folder).is_dir():
            raise InputError(f"the steerer {name!r}: there is no folder {folder!r} on the server")
        steerer = Steerer.from_pretrained(folder)
        compare_sizes(steerer, self._max_side)
        await self.host.load(folder, expected or steerer.content_hash)
        self.steerers[name] = steerer
        return served_steerer(steerer, folder)

    async def answer(self, job: ChatJob) -> AsyncGenerator[AnswerPart]:
        """First the start of the answer, then its pieces. InputError as from the transformers engine."""
        steerers = dict(self.steerers)  # as they are now: one may be replaced meanwhile
        prompt = await self.host.read(await asyncio.to_thread(self._prompt, job, steerers))
        room = min(self._context - 1, self._prompt_tokens)
        if prompt.tokens > room:
            raise InputError(
                f"the prompt has {prompt.tokens} tokens with its pictures, at most {room} fit: shorten it"
            )
        most = min(job.most_tokens or self._most_tokens, self._context - prompt.tokens)
        answers = [PartialAnswer(n, most, AnswerText(self._decode, job.stop)) for n in range(job.choices)]
        began = False
        async with aclosing(self.host.write(prompt, _params(job, most))) as outputs:
            async for output in outputs:
                if not began:
                    began = True
                    yield AnswerStart(prompt.tokens, await self._records(job, prompt, steerers))
                for completion in output.outputs:
                    # Greedy choices are all the same, and vLLM generates only one.
                    for answer in [answers[completion.index]] if job.temperature else answers:
                        for piece in self._pieces(answer, completion, job.top_logprobs):
                            yield piece
                if all(answer.finished for answer in answers):
                    return

    def _prompt(self, job: ChatJob, steerers: dict[str, Steerer]) -> EnginePrompt:
        images = [shrunk(BytesPicture.of(data), self._max_side).image() for data in job.pictures]
        text = prompts.conversation(self._processor, turns_with_suffix(job, steerers))
        (ids,) = prompts.tokens(self._processor, [text], [self._mark] * len(images))
        contents = {name: steerer.content_hash for name, steerer in steerers.items()}
        acting = {name: alpha for name, alpha in job.strengths.items() if steerers[name].operators}
        return EnginePrompt(ids, images, by_content(contents, acting))

    async def _records(
        self, job: ChatJob, prompt: ReadPrompt, steerers: dict[str, Steerer]
    ) -> dict[str, SteeringRecord]:
        (records,) = await self.host.records([prompt])
        return {
            name: records.get(steerers[name].content_hash, SteeringRecord(alpha))
            for name, alpha in job.strengths.items()
        }

    def _pieces(self, answer: PartialAnswer, completion: Any, top: int | None) -> list[AnswerPiece]:
        pieces = []
        for number, token in enumerate(completion.token_ids):
            if answer.finished:
                break
            logprobs = [] if top is None else [self._logprobs(token, completion.logprobs[number], top)]
            pieces.append(answer.add(token, self._eos_tokens, logprobs))
        return pieces

    def _logprobs(self, token: int, candidates: Any, top: int) -> dict[str, Any]:
        """candidates: vLLM's log-probabilities of the chosen token and the likeliest, with their ranks."""
        ranked = sorted(candidates, key=lambda other: candidates[other].rank)
        likeliest = [self._entry(other, candidates) for other in ranked if candidates[other].rank <= top]
        return self._entry(token, candidates) | {"top_logprobs": likeliest}

    def _entry(self, token: int, candidates: Any) -> dict[str, Any]:
        return logprob_entry(self._token_text(token), candidates[token].logprob)


def _params(job: ChatJob, most: int) -> Any:
    """vLLM's sampling parameters. Stop sequences are not among them: `AnswerText` cuts the text of all engines."""
    from vllm.sampling_params import RequestOutputKind  # pyright: ignore[reportMissingImports]

    from vllm import SamplingParams  # pyright: ignore[reportMissingImports]

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


class VllmProcess:
    """Answers requests with a model in vLLM, many at a time."""

    def __init__(self, jobs: JobQueue, model: VllmServed) -> None:
        self._jobs, self._model = jobs, model
        self._answering: dict[int, asyncio.Task[None]] = {}
        self._reloading: set[asyncio.Task[None]] = set()
        self._lost = asyncio.Event()

    async def run(self) -> int:
        """The exit code, once the server or vLLM is gone."""
        work = [asyncio.create_task(_until_gone(self._listen())), asyncio.create_task(self._lost.wait())]
        try:
            await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*work, *self._answering.values(), *self._reloading):
                task.cancel()
            self._model.host.stop()
        return 1 if self._lost.is_set() else 0

    async def _listen(self) -> None:
        """Start a task for each request, and cancel the tasks of those that the server cancels."""
        arrival, loop = asyncio.Event(), asyncio.get_running_loop()

        def arrived() -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(arrival.set)

        self._jobs.arrived = arrived
        while True:
            arrival.clear()
            self._jobs.poll()
            while self._jobs.waiting:
                self._start(self._jobs.waiting.popleft())
            await asyncio.sleep(0)  # a task that is cancelled before its first step would not send Done
            for number, task in self._answering.items():
                if self._jobs.is_cancelled(number) and not task.cancelling():
                    task.cancel()
            with suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT):
                    await arrival.wait()

    def _start(self, request: Load | Ask | Reload) -> None:
        if isinstance(request, Ask):
            task = asyncio.create_task(_until_gone(self._answer(request.number, request.job)))
            self._answering[request.number] = task
            task.add_done_callback(lambda _: self._answering.pop(request.number))
        elif isinstance(request, Reload):
            task = asyncio.create_task(_until_gone(self._reload(request)))
            self._reloading.add(task)
            task.add_done_callback(self._reloading.discard)

    async def _answer(self, number: int, job: ChatJob) -> None:
        self._jobs.send(Started([number]))
        try:
            async for part in self._model.answer(job):
                self._jobs.output(number, part)
            self._jobs.done(number)
        except asyncio.CancelledError:
            self._jobs.done(number)
        except Exception as error:
            if self._model.host.dead:
                self._lost.set()
            else:
                self._jobs.fail(failure(number, error))

    async def _reload(self, request: Reload) -> None:
        try:
            steerer = await self._model.load(request.name, request.folder)
        except Exception as error:
            self._jobs.send(reload_failure(request.number, error))
        else:
            self._jobs.send(Reloaded(request.number, request.name, steerer))


async def _until_gone(work: Coroutine[Any, Any, None]) -> None:
    with suppress(ServerGone):
        await work


async def load_in_vllm(request: Load) -> tuple[VllmServed, Ready]:
    """The model in vLLM with its steerers, and the event that describes them."""
    setup = request.setup
    for option, value in {"--device-map": setup.device_map, "--attention": setup.attention}.items():
        if value:
            raise InputError(f"{option} is for the transformers engine: vLLM chooses by itself")
    config, processor = load_description(setup.model)
    dtype = str(placement(config, setup.dtype, None, setup.model).dtype).removeprefix("torch.")
    longest = getattr(config.get_text_config(), "max_position_embeddings", None) or 2**31
    context = min(longest, setup.prompt_tokens + setup.most_tokens)
    eos = GenerationConfig.from_pretrained(locate(setup.model)).eos_token_id
    eos_tokens = set(eos if isinstance(eos, list) else [eos])
    host = await EngineHost.start(EngineSetup(setup.model, dtype, context, setup.most_pictures, rows=setup.most_rows))
    limits = setup.most_tokens, setup.prompt_tokens, setup.max_side
    model = VllmServed(host, processor, eos_tokens, context, *limits)
    try:
        steerers = {
            name: await model.load(name, folder, request.contents.get(name))
            for name, folder in setup.steerers.items()
        }
        return model, Ready(await host.identity(), steerers)
    except BaseException:
        host.stop()
        raise


async def _serve(jobs: JobQueue, request: Load) -> int:
    try:
        model, ready = await load_in_vllm(request)
    except InputError as error:
        jobs.send(NotLoaded(str(error)))
        return 2
    jobs.send(ready)
    return await VllmProcess(jobs, model).run()


def main(arguments: Sequence[str]) -> int:
    """Run until the server or vLLM is gone. 2 if the model cannot be loaded."""
    jobs = JobQueue.of_process(arguments)
    try:
        request = jobs.next()
        assert isinstance(request, Load)  # the engine's first request
        return asyncio.run(_serve(jobs, request))
    except ServerGone:
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
