"""From a model and a suite to a run. Studies ask in the same way: only what has no answer yet, batch by batch."""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Protocol

from ggss import hashing
from ggss.analysis.run import Run, Source
from ggss.data.pictures import Picture
from ggss.methods.registry import METHODS
from ggss.models.reading import Answer
from ggss.probes import Item
from ggss.probes.base import PROBES, get
from ggss.probes.steered_model import BATCH, Steering, batches
from ggss.probes.suites import SUITES, Suite
from ggss.steering.steerer import Steerer
from ggss.terminal import track
from ggss.version import ggss_code

DIGITS = 6  # of a probability; more would not change any statistic

Keep = Callable[[Mapping[str, Answer]], None]
"""Gets the answers of a batch, by item key, before the next batch is asked."""


class AnsweringModel(Protocol):
    """What answers items: a `SteeredModel`, or an `Endpoint`.

    identity, versions: all that decides its answers. suffix: what its steerers append to every prompt.
    """

    @property
    def name(self) -> str: ...

    @property
    def identity(self) -> Mapping[str, str]: ...

    @property
    def versions(self) -> dict[str, str]: ...

    @property
    def steerings(self) -> tuple[Steering, ...]: ...

    @property
    def alpha(self) -> float: ...

    @property
    def suffix(self) -> str: ...

    def preload(self, pictures: Sequence[Picture], show: bool | None = None) -> None: ...

    def read_batch(self, items: Sequence[Item], max_new_tokens: int) -> list[Answer]: ...


def ask(
    model: AnsweringModel,
    suite: Suite,
    task: str,
    max_new_tokens: int | None = None,
    batch_size: int = BATCH,
    limit: int | None = None,
    answered: Mapping[str, Answer] | None = None,
    keep: Keep = lambda answers: None,
    show: bool | None = None,
) -> Run:
    """Ask a task of a suite.

    Args:
        model: a model, steered or not: `SteeredModel.of(vlm)`; or `ggss.probes.endpoint.Endpoint`, a served one.
        suite: the questions, from `ggss.probes.suites.load`.
        task: one of the suite's tasks.
        max_new_tokens: the longest answer, if not the suite's.
        batch_size: questions that are asked together.
        limit: ask about so many items only: whole people, evenly spread.
        answered: by item key, what is known already and is not asked again.
        keep: gets the answers of a batch before the next is asked.
        show: show progress; None: where a terminal can.

    Returns:
        The run.

    Raises:
        InputError: if the suite has no such task, or a number is out of its range.

    Examples:
        >>> own = ggss.analysis.ask(model, suite, "mcq", limit=10)
        >>> own.source.said, len(own.answers) == len(own.items)
        ('small-world/llava-vicuna, unsteered', True)
    """
    items, known = suite.items(task, limit), dict(answered or {})
    longest = suite.max_new_tokens(task) if max_new_tokens is None else max_new_tokens
    missing = (item for item in items if item.key not in known)
    model.preload([picture for item in missing for picture in item.images], show)

    def kept(answers: Mapping[str, Answer]) -> None:
        keep(answers)
        known.update(answers)

    order = batches(items, batch_size)
    asked = ask_missing(items, order, known, lambda numbers: answers_of(model, items, numbers, longest), kept)
    for _ in track(asked, f"{model.name}: {task}", len(order), show):
        pass
    answers = tuple(known[item.key] for item in items)
    return Run(task, items, answers, source(model, suite, task, longest))


def ask_missing(
    items: Sequence[Item],
    order: Sequence[Sequence[int]],
    answered: Container[str],
    read: Callable[[list[int]], Sequence[Answer]],
    keep: Keep,
) -> Iterator[tuple[int, int]]:
    """Batch by batch, ask the items that have no answer, and keep their answers before going on.

    order: the items' numbers in batches. They are the same whatever was answered before, because the last digit of an
    answer's probability may depend on its batch. Yields how many of a batch were asked, and how many were not.
    """
    for batch in order:
        missing = [number for number in batch if items[number].key not in answered]
        if missing:
            answers = read(missing)
            keep({items[number].key: answer for number, answer in zip(missing, answers, strict=True)})
        yield len(missing), len(batch) - len(missing)


def answers_of(
    model: AnsweringModel, items: Sequence[Item], numbers: Sequence[int], max_new_tokens: int
) -> list[Answer]:
    """The answers to the numbered items, asked as one batch."""
    return [rounded(answer) for answer in model.read_batch([items[number] for number in numbers], max_new_tokens)]


def rounded(answer: Answer) -> Answer:
    """The answer as it is kept: its probabilities to a fixed number of digits."""
    return answer._replace(probabilities=tuple(round(p, DIGITS) for p in answer.probabilities))


def source(model: AnsweringModel, suite: Suite, task: str, max_new_tokens: int) -> Source:
    """Where the answers of a model to a suite's task come from."""
    steerers = [steerer for steerer, _ in model.steerings]
    steered = (
        {}
        if not steerers
        else {
            "method": "+".join(steerer.method for steerer in steerers),
            "attribute": "+".join(_spelled(steerer.attribute) for steerer in steerers),
            "steerer": "+".join(steerer.content_hash for steerer in steerers),
            "alpha": model.alpha,
        }
    )
    return Source(
        model=model.name,
        identity=model.identity,
        suite=suite.name,
        suite_hash=_suite_hash(suite, task),
        max_new_tokens=max_new_tokens,
        versions=model.versions | _code(steerers),
        **steered,
    )


def _suite_hash(suite: Suite, task: str) -> str:
    """Of all that is asked, and of the code of the plug-ins that ask it."""
    plugins = PROBES.code(get(task).name) | (SUITES.code(suite.name) if suite.name in SUITES else {})
    return hashing.of([suite.hash(task), plugins]) if plugins else suite.hash(task)


def _code(steerers: Sequence[Steerer]) -> dict[str, str]:
    """The beginnings of digests of the code that answers and, if anything is steered, of the code that steers."""
    answering, steering = ggss_code().items()
    code = dict([answering, steering] if steerers else [answering])
    for name in (name for steerer in steerers for name in steerer.method.split("+") if name in METHODS):
        code |= METHODS.code(name)
    return {f"the code of {name}": digest[:12] for name, digest in code.items()}


def _spelled(attribute: str | tuple[str, ...]) -> str:
    return attribute if isinstance(attribute, str) else " x ".join(attribute)
