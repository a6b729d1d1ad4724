"""A worker whose answers come from vLLM. Discovery and fitting are done with transformers, as by every worker.

Answers of two engines may differ where tokens are equally likely to the last digits of a float. So the engine is a
part of the model's identity, and the store never mixes the answers of two.
"""

from collections.abc import Sequence
from dataclasses import replace

from ggss.analysis.asking import Reply, answer_of
from ggss.errors import InputError
from ggss.models import ModelIdentity
from ggss.probes.base import Item
from ggss.probes.steered_model import SteeredModel
from ggss.study.executors import InProcess, WorkerDied
from ggss.study.plan import Plan
from ggss.study.worker import Worker
from ggss.vllm_plugin.engine_host import EngineSetup
from ggss.vllm_plugin.engine_reading import EngineReader
from ggss.vllm_plugin.engine_thread import EngineThread
from ggss.vllm_plugin.installed import engine_version


class VllmWorker(Worker):
    """vLLM is started with the first question that has no answer yet."""

    _engine: EngineThread | None = None
    _answers_for: str = ""

    def open(self, model: str) -> ModelIdentity:
        found = super().open(model)
        return replace(found, parts={**found.parts, "engine": engine_version()})

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine, self._answers_for = None, ""

    @property
    def lost(self) -> bool:
        """Whether vLLM has ended by itself."""
        return self._engine is not None and self._engine.host.dead

    def _asked_of(
        self, model: SteeredModel, items: Sequence[Item], numbers: Sequence[int], longest: int
    ) -> list[Reply]:
        engine, own = self._started(model), [items[number] for number in numbers]
        # One object for each picture: questions about the same one share its prefix.
        pictures = {picture.digest: picture for item in own for picture in item.images}
        images = {digest: picture.image() for digest, picture in pictures.items()}
        acting = {
            engine.call(engine.host.add(steerer)): float(alpha)
            for steerer, alpha in model.steerings
            if steerer.operators
        }
        readings = engine.call(
            EngineReader(engine.host, model.vlm.processor, model.vlm.name).read(
                [item.prompt + model.suffix for item in own],
                [[images[picture.digest] for picture in item.images] for item in own],
                [tuple(item.options) for item in own],
                acting,
                longest,
            )
        )
        return [(number, *answer_of(reading)) for number, reading in zip(numbers, readings, strict=True)]

    def _started(self, model: SteeredModel) -> EngineThread:
        if self._engine is None or self._answers_for != self._name:
            self.close()
            dtype = str(model.vlm.model.dtype).removeprefix("torch.")
            self._engine = EngineThread(EngineSetup(self.plan.model(self._name).name, dtype))
            self._answers_for = self._name
        return self._engine


class VllmExecutor(InProcess):
    """The worker is in this process, and vLLM in processes of its own."""

    def __init__(self, plan: Plan, device: str | None = None) -> None:
        super().__init__(plan, device)
        engine_version()

    def start(self, slot: int) -> "VllmExecutor":
        self._worker = VllmWorker(self.plan, self.device)
        return self

    def call(self, name: str, *args: object) -> object:
        try:
            return super().call(name, *args)
        except InputError:
            raise
        except Exception as error:
            if self._worker.lost:
                raise WorkerDied("vLLM ended") from error
            raise

    def close(self) -> None:
        if isinstance(getattr(self, "_worker", None), VllmWorker):
            self._worker.close()
