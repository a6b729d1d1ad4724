"""Workers as Ray actors, on one machine or many: one actor per replica. Needs the extra `ray`.

With `engine="vllm"` each actor has a vLLM of its own, whose processes run beside it.

Actors are restarted here, not by Ray: a new actor starts empty, and the lost call is repeated on it. The models and
pictures that a plan names must be available where the actors run.
"""

from contextlib import suppress
from typing import Any, Literal

from ggss.errors import InputError
from ggss.study.executors import InProcess, Remote, WorkerDied
from ggss.study.plan import Plan

Engine = Literal["transformers", "vllm"]

CLOSING = 30  # seconds in which an actor ends what it has started


def _ray() -> Any:
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise InputError("the ray executor needs Ray: pip install 'ggss[ray]'") from error
    return ray


class RayActors:
    """One actor per slot; each takes an accelerator where the cluster has some. RAY_ADDRESS names a cluster."""

    def __init__(self, plan: Plan, workers: int | None, engine: Engine = "transformers") -> None:
        if engine == "vllm":
            from ggss.vllm_plugin.installed import engine_version

            engine_version()
        self.ray = _ray()
        self.engine: Engine = engine
        self._started: list[Actor] = []
        self._ours = not self.ray.is_initialized()
        if self._ours:
            self.ray.init(log_to_driver=False, include_dashboard=False, logging_level="error")
        room = self.ray.cluster_resources()
        self.plan, self._gpus = plan, int(room.get("GPU", 0))
        self.slots, most = workers or max(1, self._gpus), self._gpus or int(room.get("CPU", 0))
        if self.slots > most:  # the others would wait forever
            self.close()
            kind = "accelerators" if self._gpus else "processors"
            raise InputError(f"{self.slots} workers need as many {kind}, and the Ray cluster has {most}")

    def start(self, slot: int) -> "Actor":
        actor = Actor(self.ray, self.plan, 1 if self._gpus else 0, self.engine)
        self._started.append(actor)
        return actor

    def close(self) -> None:
        for actor in self._started:
            actor.close()
        if self._ours:
            self.ray.shutdown()


class Actor:
    """The handle of an actor."""

    def __init__(self, ray: Any, plan: Plan, gpus: int, engine: Engine) -> None:
        self.ray = ray
        device = "cuda:0" if gpus else None  # an actor sees only its own device
        made = ray.remote(_Worker).options(num_cpus=1, num_gpus=gpus)
        self.handle = made.remote(plan.model_dump_json(), device, engine)

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
        """Kill the actor, after it has ended the processes of its engine."""
        with suppress(self.ray.exceptions.RayError):
            self.ray.get(self.handle.close.remote(), timeout=CLOSING)
        self.ray.kill(self.handle)


class _Worker:
    """The actor: made without torch, which is imported where the actor runs."""

    def __init__(self, plan: str, device: str | None, engine: Engine) -> None:
        self.plan, self.device, self.engine, self.worker = plan, device, engine, None

    def call(self, name: str, args: tuple[Any, ...]) -> Any:
        self.worker = self.worker or self._made()
        return self.worker.call(name, *args)

    def _made(self) -> Remote:
        plan = Plan.model_validate_json(self.plan)
        if self.engine == "vllm":
            from ggss.study.vllm_worker import VllmExecutor

            return VllmExecutor(plan, self.device).start(0)
        return InProcess(plan, self.device).start(0)

    def close(self) -> None:
        if self.worker is not None:
            self.worker.close()
