"""Where workers run: in this process, each in a process of its own, on the machines of a cluster (`ray_executor`), or
in this process with answers from vLLM (`vllm_worker`); ray-vllm is both.

An executor starts one worker per slot; a call names a method of the worker. `WorkerDied` means that the process has
ended and the call may be repeated on a new one.
"""

import multiprocessing
import signal
import threading
import traceback
from multiprocessing.connection import Connection
from typing import Any, Protocol

from ggss import ranges
from ggss.errors import InputError, no_such
from ggss.study.plan import Plan

NAMES = ("in-process", "processes", "ray", "vllm", "ray-vllm")


class WorkerDied(Exception):
    """The worker's process ended without an answer."""


class Remote(Protocol):
    """A worker in this or another process."""

    def call(self, name: str, *args: Any) -> Any: ...

    def close(self) -> None: ...


class Executor(Protocol):
    """Starts workers; `slots` is how many may work at a time."""

    slots: int

    def start(self, slot: int) -> Remote: ...

    def close(self) -> None: ...


def executor(name: str, plan: Plan, workers: int | None = None) -> Executor:
    """The named executor; `workers` is one per device unless given."""
    if workers is not None:
        ranges.WORKERS.check("the number of workers", workers)
    if name == "in-process":
        if workers not in (None, 1):
            raise InputError(f"in-process is one worker, not {workers}: choose --executor processes")
        return InProcess(plan)
    if name == "vllm":
        if workers not in (None, 1):
            raise InputError(
                f"vllm is one worker, not {workers}: vLLM itself answers many questions at a time; "
                "for several machines choose --executor ray-vllm"
            )
        from ggss.study.vllm_worker import VllmExecutor

        return VllmExecutor(plan)
    if name == "processes":
        return Processes(plan, workers)
    if name in ("ray", "ray-vllm"):
        from ggss.study.ray_executor import RayActors

        return RayActors(plan, workers, "vllm" if name == "ray-vllm" else "transformers")
    raise no_such(f"no executor {name!r}", name, NAMES)


class InProcess:
    """The worker is a plain object in this process."""

    slots = 1

    def __init__(self, plan: Plan, device: str | None = None) -> None:
        self.plan, self.device = plan, device

    def start(self, slot: int) -> "InProcess":
        from ggss.study.worker import Worker

        self._worker = Worker(self.plan, self.device)
        return self

    def call(self, name: str, *args: Any) -> Any:
        return getattr(self._worker, name)(*args)

    def close(self) -> None:
        pass


class Processes:
    """A spawned process per slot, each on a device of its own where there are accelerators."""

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
    """The connection to a worker's process, which ends when the connection is closed, even by a kill."""

    def __init__(self, plan: Plan, device: str | None) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, plan.model_dump_json(), device), daemon=True)
        self.process.start()
        theirs.close()

    def call(self, name: str, *args: Any) -> Any:
        try:
            self._connection.send((name, args))
            how, what = self._connection.recv()
        except (EOFError, OSError) as error:
            raise WorkerDied(f"process {self.process.pid} ended") from error
        if how == "refused":
            raise InputError(what)
        if how == "failed":
            raise RuntimeError(f"a worker failed:\n{what}")
        return what

    def close(self) -> None:
        self.process.kill()
        self.process.join()


def _serve(connection: Connection, plan: str, device: str | None) -> None:
    """A worker's process: answer calls until the other end is closed."""
    from ggss.study.worker import Worker

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
