"""The process that hosts vLLM: `python -m ggss.serve.vllm_process FD`, started by `worker_engine`.

It speaks the same messages as `worker_process`. Requests are given to vLLM as they come, which decides what runs
together. It ends when the socket is closed, and also if vLLM has ended: then the server starts another.
"""

import asyncio
import signal
import socket
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from ggss.errors import InputError
from ggss.serve.chat_job import ChatJob
from ggss.serve.engine import Began
from ggss.serve.frames import LONGEST_LINE, Message, framed, heard_whole
from ggss.serve.job_failure import failure, refused_reload
from ggss.serve.job_queue import QUIET

if TYPE_CHECKING:
    from ggss.serve.vllm_served import VllmServed


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
    from ggss.serve.vllm_served import VllmServed
    from ggss.vllm_plugin.engine_host import EngineHost, EngineSetup

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
    model = VllmServed(host, processor, known, context, setup["most_tokens"], setup["prompt_tokens"])
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
