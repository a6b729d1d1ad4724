"""Executors: where the workers of a study run.

    in-process    in this process
    processes     each in its own process, on its own device
    ray           as Ray actors, on one machine or a cluster
    vllm          in this process, with answers from vLLM
    ray-vllm      as Ray actors, each with its own vLLM

An executor starts one worker for each slot, and a call names a method of the worker. `WorkerDied` means that the
worker's process has ended, and that the call may be repeated on a new worker. That is done here and not by Ray,
because a new actor starts empty.

With vLLM, discovery and fitting are done with transformers, as by every worker. Answers of two engines may differ
where tokens are equally likely to the last digits of a float. So the engine is part of the model's identity, and the
store never mixes the answers of two. With Ray, the plan's models and pictures must be available where the actors run.
"""

import multiprocessing
import signal
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, Literal, Protocol

from ggss import errors
from ggss.analysis.asking import rounded
from ggss.errors import InputError
from ggss.models import ModelIdentity
from ggss.models.reading import Answer
from ggss.plugins import Registry
from ggss.probes.base import Item
from ggss.probes.steered_model import SteeredModel
from ggss.study.plan import Plan
from ggss.study.worker import Worker
from ggss.vllm_plugin import engine_version
from ggss.vllm_plugin.engine import EngineReader, EngineSetup, EngineThread

Engine = Literal["transformers", "vllm"]

CLOSING_SECONDS = 30  # in which an actor ends the processes of its engine


class WorkerDied(Exception):
    """The worker's process ended without an answer."""


class Remote(Protocol):
    """A worker in this or another process."""

    def call(self, name: str, *args: Any) -> Any: ...

    def close(self) -> None: ...


class Executor(Protocol):
    """Starts workers. slots: how many may work at a time."""

    slots: int

    def start(self, slot: int) -> Remote: ...

    def close(self) -> None: ...


Start = Callable[[Plan, int | None], Executor]
"""From a plan and the number of workers (None: as many as fit) to the executor."""


def _malformed(start: Start) -> str:
    return "" if callable(start) else f"it is a {type(start).__name__}, not a function of a plan and a number"


EXECUTORS: Registry[Start] = Registry("executor", "ggss.executors", _malformed)
register = EXECUTORS.add


def executor(name: str, plan: Plan, workers: int | None = None) -> Executor:
    """The named executor. workers: how many at a time; by default one for each device."""
    if workers is not None:
        errors.WORKERS.check("the number of workers", workers)
    return EXECUTORS.get(name)(plan, workers)


class InProcess:
    """The worker is a plain object in this process."""

    slots = 1

    def __init__(self, plan: Plan, device: str | None = None) -> None:
        self.plan, self.device = plan, device

    def start(self, slot: int) -> "InProcess":
        self._worker = Worker(self.plan, self.device)
        return self

    def call(self, name: str, *args: Any) -> Any:
        return getattr(self._worker, name)(*args)

    def close(self) -> None:
        pass


class Processes:
    """A spawned process for each slot, each on its own device if there are accelerators."""

    def __init__(self, plan: Plan, workers: int | None) -> None:
        self.plan, self.devices = plan, accelerators()
        self.slots = workers or max(1, len(self.devices))
        self._started: list[Child] = []
        self._closed = False
        self._turn = threading.Lock()

    def start(self, slot: int) -> "Child":
        device = self.devices[slot % len(self.devices)] if self.devices else None
        with self._turn:
            if self._closed:
                raise RuntimeError("the workers were stopped")
            child = Child(self.plan, device)
            self._started.append(child)
        return child

    def close(self) -> None:
        with self._turn:
            self._closed = True
            for child in self._started:
                child.close()


class Child:
    """A worker's process. It ends when its connection is closed, also if this process is killed."""

    def __init__(self, plan: Plan, device: str | None) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, plan.model_dump_json(), device), daemon=True)
        self.process.start()
        theirs.close()

    def call(self, name: str, *args: Any) -> Any:
        try:
            self._connection.send((name, args))
            outcome, value = self._connection.recv()
        except (EOFError, OSError) as error:
            raise WorkerDied(f"process {self.process.pid} ended") from error
        if outcome == "refused":
            raise InputError(value)
        if outcome == "failed":
            raise RuntimeError(f"a worker failed:\n{value}")
        return value

    def close(self) -> None:
        self.process.kill()
        self.process.join()


def _serve(connection: Connection, plan: str, device: str | None) -> None:
    """What a worker's process runs: it answers calls until the other end of the connection is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process decides when it ends
    worker = None
    while True:
        try:
            name, args = connection.recv()
        except (EOFError, OSError):
            return
        try:
            worker = worker or Worker(Plan.model_validate_json(plan), device)
            reply = ("done", getattr(worker, name)(*args))
        except InputError as error:
            reply = ("refused", str(error))
        except Exception:
            reply = ("failed", traceback.format_exc())
        try:
            connection.send(reply)
        except OSError:
            return


def accelerators() -> list[str]:
    """The machine's accelerators as torch names them; none on a CPU."""
    import torch

    if not torch.accelerator.is_available():
        return []
    kind = torch.accelerator.current_accelerator()
    return [f"{kind}:{i}" for i in range(torch.accelerator.device_count())]


def _ray() -> Any:
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise InputError("the ray executor needs Ray: pip install 'ggss[ray]'") from error
    return ray


class RayActors:
    """An actor for each slot, each with an accelerator if the cluster has some. RAY_ADDRESS names the cluster."""

    def __init__(self, plan: Plan, workers: int | None, engine: Engine = "transformers") -> None:
        if engine == "vllm":
            engine_version()  # InputError if it is not installed
        self.ray = _ray()
        self.engine: Engine = engine
        self._started: list[Actor] = []
        self._started_ray = not self.ray.is_initialized()
        if self._started_ray:
            self.ray.init(log_to_driver=False, include_dashboard=False, logging_level="error")
        room = self.ray.cluster_resources()
        self.plan, self._gpus = plan, int(room.get("GPU", 0))
        self.slots, most = workers or max(1, self._gpus), self._gpus or int(room.get("CPU", 0))
        if self.slots > most:  # the others would wait forever
            self.close()
            kind = "accelerators" if self._gpus else "CPUs"
            raise InputError(f"{self.slots} workers need as many {kind}, and the Ray cluster has {most}")

    def start(self, slot: int) -> "Actor":
        actor = Actor(self.ray, self.plan, 1 if self._gpus else 0, self.engine)
        self._started.append(actor)
        return actor

    def close(self) -> None:
        for actor in self._started:
            actor.close()
        if self._started_ray:
            self.ray.shutdown()


class Actor:
    """A worker as a Ray actor."""

    def __init__(self, ray: Any, plan: Plan, gpus: int, engine: Engine) -> None:
        self.ray = ray
        device = "cuda:0" if gpus else None  # an actor sees only its own device
        actor = ray.remote(_ActorWorker).options(num_cpus=1, num_gpus=gpus)
        self.handle = actor.remote(plan.model_dump_json(), device, engine)

    def call(self, name: str, *args: Any) -> Any:
        try:
            return self.ray.get(self.handle.call.remote(name, args))
        except self.ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, InputError | WorkerDied):
                raise error.cause from None
            raise
        except self.ray.exceptions.RayActorError as error:
            raise WorkerDied(str(error)) from error

    def close(self) -> None:
        """Have the actor end the processes of its engine, then kill it."""
        with suppress(self.ray.exceptions.RayError):
            self.ray.get(self.handle.close.remote(), timeout=CLOSING_SECONDS)
        self.ray.kill(self.handle)


class _ActorWorker:
    """What runs in an actor. The worker is made with the first call."""

    def __init__(self, plan: str, device: str | None, engine: Engine) -> None:
        self.plan, self.device, self.engine, self.worker = plan, device, engine, None

    def call(self, name: str, args: tuple[Any, ...]) -> Any:
        self.worker = self.worker or self._start()
        return self.worker.call(name, *args)

    def _start(self) -> Remote:
        plan = Plan.model_validate_json(self.plan)
        if self.engine == "vllm":
            return VllmExecutor(plan, self.device).start(0)
        return InProcess(plan, self.device).start(0)

    def close(self) -> None:
        if self.worker is not None:
            self.worker.close()


class VllmWorker(Worker):
    """A worker whose answers come from vLLM, which is started with the first question that has no answer yet."""

    _engine: EngineThread | None = None
    _engine_model: str = ""

    def open(self, model: str) -> ModelIdentity:
        identity = super().open(model)
        return replace(identity, parts={**identity.parts, "engine": engine_version()})

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine, self._engine_model = None, ""

    @property
    def lost(self) -> bool:
        """Whether vLLM has ended by itself."""
        return self._engine is not None and self._engine.host.dead

    def _answers(
        self, model: SteeredModel, items: Sequence[Item], numbers: Sequence[int], longest: int
    ) -> list[Answer]:
        engine, batch = self._started(model), [items[number] for number in numbers]
        # One object for each picture: questions about the same picture share its prefix.
        pictures = {picture.digest: picture for item in batch for picture in item.images}
        images = {digest: picture.image() for digest, picture in pictures.items()}
        alphas = {
            engine.call(engine.host.add(steerer)): float(alpha)
            for steerer, alpha in model.steerings
            if steerer.operators
        }
        answers = engine.call(
            EngineReader(engine.host, model.vlm.processor, model.vlm.name).read(
                [item.prompt_for(model.vlm.family.name) + model.suffix for item in batch],
                [[images[picture.digest] for picture in item.images] for item in batch],
                [tuple(item.options) for item in batch],
                alphas,
                longest,
            )
        )
        return [rounded(answer) for answer in answers]

    def _started(self, model: SteeredModel) -> EngineThread:
        if self._engine is None or self._engine_model != self._name:
            self.close()
            dtype = str(model.vlm.model.dtype).removeprefix("torch.")
            self._engine = EngineThread(EngineSetup(self.plan.model(self._name).name, dtype))
            self._engine_model = self._name
        return self._engine


class VllmExecutor(InProcess):
    """The worker is in this process, and vLLM in its own processes."""

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


def _in_process(plan: Plan, workers: int | None) -> InProcess:
    if workers not in (None, 1):
        raise InputError(f"in-process is one worker, not {workers}: choose --executor processes")
    return InProcess(plan)


def _vllm(plan: Plan, workers: int | None) -> VllmExecutor:
    if workers not in (None, 1):
        raise InputError(
            f"vllm is one worker, not {workers}: vLLM itself answers many questions at a time; "
            "for several machines choose --executor ray-vllm"
        )
    return VllmExecutor(plan)


def _ray_vllm(plan: Plan, workers: int | None) -> RayActors:
    return RayActors(plan, workers, "vllm")


register("in-process", _in_process)
register("processes", Processes)
register("ray", RayActors)
register("vllm", _vllm)
register("ray-vllm", _ray_vllm)
