"""Asks a model the items of a suite's task, batch by batch, and only those that have no answer yet.

`ask` makes a run of them; a study's workers use `ask_missing` with a store of answers.
"""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Protocol

from ggss import hashing
from ggss.analysis.run import BOTH, Run, Source
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

DIGITS = 6  # of a probability; more would change no statistic

Keep = Callable[[Mapping[str, Answer]], None]
"""Stores the answers of a batch, by item key. It is called before the next batch is asked."""


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
        limit: how many items to ask at most: all items of some people, evenly spread.
        answered: answers by item key; their items are not asked again.
        keep: stores the answers of a batch before the next is asked.
        show: whether to show progress; None: if the terminal can.

    Returns:
        The run.

    Raises:
        InputError: if the suite has no such task, or a number is out of its range.

    Examples:
        >>> run = ggss.analysis.ask(model, suite, "mcq", limit=10)
        >>> run.source.label, len(run.answers) == len(run.items)
        ('small-world/llava-vicuna, unsteered', True)
    """
    items, known = suite.items(task, limit), dict(answered or {})
    longest = suite.max_new_tokens(task) if max_new_tokens is None else max_new_tokens
    missing = (item for item in items if item.key not in known)
    model.preload([picture for item in missing for picture in item.images], show)

    def keep_and_know(answers: Mapping[str, Answer]) -> None:
        keep(answers)
        known.update(answers)

    order = batches(items, batch_size)
    steps = ask_missing(
        items, order, known, lambda numbers: answers_of(model, items, numbers, longest), keep_and_know
    )
    for _ in track(steps, f"{model.name}: {task}", len(order), show):
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
    """Ask the items that have no answer, batch by batch; yields how many of a batch were asked and how many were not.

    order: the items' numbers in batches. A batch is the same whatever was answered before, because the last digit of
    an answer's probability may depend on it. keep: stores a batch's answers before the next batch is asked.
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
    """The answers to the items of these numbers, asked as one batch."""
    return [rounded(answer) for answer in model.read_batch([items[number] for number in numbers], max_new_tokens)]


def rounded(answer: Answer) -> Answer:
    """The answer as it is stored, with probabilities of `DIGITS` digits."""
    return answer._replace(probabilities=tuple(round(p, DIGITS) for p in answer.probabilities))


def source(model: AnsweringModel, suite: Suite, task: str, max_new_tokens: int) -> Source:
    """All that decides a model's answers to a suite's task."""
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
    """Hash of all that the task asks and of the code of the plug-ins that ask it."""
    plugins = PROBES.code(get(task).name) | (SUITES.code(suite.name) if suite.name in SUITES else {})
    return hashing.of([suite.hash(task), plugins]) if plugins else suite.hash(task)


def _code(steerers: Sequence[Steerer]) -> dict[str, str]:
    """Short digests of the code that answers and, if anything is steered, of the code that steers."""
    answering, steering = ggss_code().items()
    code = dict([answering, steering] if steerers else [answering])
    for name in (name for steerer in steerers for name in steerer.method.split("+") if name in METHODS):
        code |= METHODS.code(name)
    return {f"the code of {name}": digest[:12] for name, digest in code.items()}


def _spelled(attribute: str | tuple[str, ...]) -> str:
    return attribute if isinstance(attribute, str) else BOTH.join(attribute)
