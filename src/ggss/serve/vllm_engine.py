"""The process that hosts vLLM: `python -m ggss.serve.vllm_engine FD`, started by `engine.WorkerEngine`.

It speaks the same messages as `worker`. Requests are given to vLLM as they come, which decides what runs
together. It ends when the socket is closed, and also if vLLM has ended: then the server starts another.

A model in vLLM with its steerers: from a request to the pieces of its answer.
"""

import asyncio
import signal
import socket
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from ggss.data.pictures import BytesPicture, shrunk
from ggss.errors import InputError
from ggss.models import prompts
from ggss.serve.batching import facts_of, with_suffix
from ggss.serve.engine import LONGEST_LINE, QUIET, Message, framed, heard_whole
from ggss.serve.sampling import GrowingAnswer
from ggss.serve.schema import AnswerPiece, AnswerText, Began, ChatJob, ServedSteerer, SteeringRecord, token_facts
from ggss.serve.worker import failure, refused_reload
from ggss.steering.compatibility import compare_sizes
from ggss.steering.steerer import Steerer
from ggss.vllm_plugin.engine import EngineHost, EnginePrompt, ReadPrompt
from ggss.vllm_plugin.steering import by_content


class VllmServed:
    """processor: the model's own. ends: the tokens that end an answer. context: tokens of a prompt and its answer.

    most_tokens: of an answer; prompt_tokens: of a prompt. max_side: pixels of a picture's longer side, at most.
    """

    def __init__(
        self,
        host: EngineHost,
        processor: Any,
        ends: set[int],
        context: int,
        most_tokens: int,
        prompt_tokens: int,
        max_side: int | None = None,
    ) -> None:
        self.host, self.steerers = host, dict[str, Steerer]()
        self._processor, self._ends, self._context = processor, ends, context
        self._most_tokens, self._prompt_tokens = most_tokens, prompt_tokens
        self._max_side = max_side
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
        compare_sizes(steerer, self._max_side)
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
        images = [shrunk(BytesPicture.of(data), self._max_side).image() for data in job.pictures]
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
    """Does what messages say, many at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._running: dict[int, asyncio.Task[None]] = {}
        self._others: set[asyncio.Task[None]] = set()
        self._said = time.monotonic()
        self._lost = asyncio.Event()

    async def run(self) -> int:
        """The exit code, once the server or vLLM is gone."""
        first = await heard_whole(self._reader)
        if first is None:
            return 0
        try:
            model, steerers = await loaded(first[0])
        except InputError as error:
            self._tell({"event": "refused", "sentence": str(error)})
            await self._writer.drain()
            return 2
        self._tell({"event": "ready", "model": await model.host.identity(), "steerers": steerers})
        work = [asyncio.create_task(one) for one in (self._listen(model), self._show_life(), self._lost.wait())]
        try:
            await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in (*work, *self._running.values(), *self._others):
                one.cancel()
            model.host.stop()
        return 1 if self._lost.is_set() else 0

    async def _listen(self, model: "VllmServed") -> None:
        while (heard := await heard_whole(self._reader)) is not None:
            message, pictures = heard
            number = message["id"]
            if message["do"] == "ask":
                job = ChatJob.of_message(message["job"], pictures)
                self._running[number] = asyncio.create_task(self._ask(model, number, job))
            elif message["do"] == "cancel" and number in self._running:
                self._running[number].cancel()
            elif message["do"] == "reload":
                task = asyncio.create_task(self._reload(model, message))
                self._others.add(task)
                task.add_done_callback(self._others.discard)

    async def _ask(self, model: "VllmServed", number: int, job: ChatJob) -> None:
        held: list[Message] = []
        self._tell({"event": "started", "ids": [number]})
        try:
            async for event in model.answer(job):
                if isinstance(event, Began):
                    self._tell({"event": "began", "id": number, **asdict(event)})
                elif job.stream:
                    self._tell({"event": "pieces", "id": number, "pieces": [asdict(event)]})
                else:
                    held.append(asdict(event))  # told together: a message costs time
            if held:
                self._tell({"event": "pieces", "id": number, "pieces": held})
            self._tell({"event": "done", "id": number})
        except asyncio.CancelledError:
            self._tell({"event": "done", "id": number})
        except Exception as error:
            if model.host.dead:
                self._lost.set()
            else:
                self._tell(failure(number, error))
        finally:
            self._running.pop(number, None)

    async def _reload(self, model: "VllmServed", message: Message) -> None:
        try:
            steerer = await model.load(message["name"], message["folder"])
        except Exception as error:
            self._tell(refused_reload(message["id"], error))
        else:
            self._tell({"event": "reloaded", "id": message["id"], "steerer": asdict(steerer)})

    async def _show_life(self) -> None:
        while True:
            await asyncio.sleep(QUIET)
            if self._running and time.monotonic() - self._said > QUIET:
                self._tell({"event": "alive"})

    def _tell(self, message: Message) -> None:
        self._writer.write(framed(message))
        self._said = time.monotonic()


async def loaded(setup: Message) -> "tuple[VllmServed, Message]":
    """The model in vLLM with its steerers, and what the server is told of these."""
    from transformers import GenerationConfig

    from ggss.models.loading import load_description
    from ggss.models.locating import locate
    from ggss.models.placement import placement
    from ggss.vllm_plugin.engine import EngineHost, EngineSetup

    for name in ("device_map", "attention"):
        if setup[name]:
            raise InputError(f"--{name.replace('_', '-')} is for the transformers engine: vLLM chooses by itself")
    config, processor = load_description(setup["model"])
    dtype = str(placement(config, setup["dtype"], None, setup["model"]).dtype).removeprefix("torch.")
    longest = getattr(config.get_text_config(), "max_position_embeddings", None) or 2**31
    context = min(longest, setup["prompt_tokens"] + setup["most_tokens"])
    ends = GenerationConfig.from_pretrained(locate(setup["model"])).eos_token_id
    engine = EngineSetup(setup["model"], dtype, context, setup["most_pictures"], rows=setup["most_rows"])
    host = await EngineHost.start(engine)
    known = set(ends if isinstance(ends, list) else [ends])
    limits = setup["most_tokens"], setup["prompt_tokens"], setup["max_side"]
    model = VllmServed(host, processor, known, context, *limits)
    try:
        steerers = {
            name: asdict(await model.load(name, folder, expected))
            for name, (folder, expected) in setup["steerers"].items()
        }
    except BaseException:
        host.stop()
        raise
    return model, steerers


async def _main(connection: socket.socket) -> int:
    reader, writer = await asyncio.open_connection(sock=connection, limit=LONGEST_LINE)
    try:
        return await VllmProcess(reader, writer).run()
    finally:
        writer.close()


def main(arguments: list[str]) -> int:
    """Until the server is gone, or the model cannot be loaded."""
    for one in (signal.SIGINT, signal.SIGTERM):  # they may reach all processes of a group; the server ends this one
        signal.signal(one, signal.SIG_IGN)
    return asyncio.run(_main(socket.socket(fileno=int(arguments[0]))))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
