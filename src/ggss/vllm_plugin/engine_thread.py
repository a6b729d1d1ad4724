"""A running vLLM for callers that wait: its event loop is in a thread of its own."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from ggss.vllm_plugin.engine_host import EngineHost, EngineSetup

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
