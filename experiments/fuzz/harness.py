"""What a target is, and how its cases are run: hypothesis with a fixed seed, and a time limit for each case."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, example, given, seed, settings
from hypothesis.strategies import SearchStrategy

from ggss.cli import WRONG, explained

SEED = 20_240_613
LIMIT = 30  # seconds of CPU time that one case may take; what takes longer does not end


@dataclass(frozen=True)
class Target:
    """A reader of something from outside.

    prepare: from an empty folder to the strategy of its cases and the function that reads a case. That function
        returns if the case is accepted. What the command line explains as wrong input is a refusal; everything else
        that is raised, which it would call a defect of ggss, is a failure.
    share: of all cases. failed_once: cases that failed and are tried first, in every run.
    """

    name: str
    share: float
    prepare: Callable[[Path], tuple[SearchStrategy[Any], Callable[[Any], None]]]
    failed_once: tuple[Any, ...] = ()


@dataclass
class Outcome:
    name: str
    accepted: int = 0
    refused: int = 0
    seconds: float = 0.0
    failures: tuple[BaseException, ...] = ()

    @property
    def cases(self) -> int:
        return self.accepted + self.refused


class TooSlow(Exception):
    """A case that did not end in time."""


def run(target: Target, cases: int, folder: Path, seeded: int = SEED) -> Outcome:
    """Try so many cases of a target; the outcome has the smallest failing ones that were found."""
    strategy, read = target.prepare(folder)
    outcome = Outcome(target.name)

    def one(case: Any) -> None:
        try:
            with _limited():
                read(case)
        except Exception as error:
            code, sentence = explained(error)
            if code != WRONG or not sentence.strip():
                error.add_note(f"case: {case!r}")
                raise
            outcome.refused += 1
        else:
            outcome.accepted += 1

    for case in target.failed_once:
        one = example(case)(one)
    tried = settings(
        max_examples=cases,
        deadline=None,
        database=None,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType]
        print_blob=False,
    )(seed(seeded)(given(strategy)(one)))
    start = time.perf_counter()
    try:
        tried()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # what a reader raises may be anything; it is what we look for
        outcome.failures = error.exceptions if isinstance(error, BaseExceptionGroup) else (error,)
    outcome.seconds = time.perf_counter() - start
    return outcome


@contextmanager
def _limited() -> Iterator[None]:
    def late(signum: int, frame: Any) -> None:
        raise TooSlow(f"a case takes more than {LIMIT} s of CPU time")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, LIMIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
