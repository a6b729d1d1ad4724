"""How long a study will take, from the batches that were measured first."""

import time
from collections.abc import Callable, Iterable, Iterator

Count = tuple[int, int]  # in a batch: questions asked, and questions that were answered before

Clock = Callable[[], float]


def with_estimate(
    counts: Iterable[Count],
    questions: int,
    say: Callable[[str], None],
    workers: int = 1,
    clock: Clock = time.monotonic,
) -> Iterator[Count]:
    """The counts of batches as they come. `say` is told once how long the rest of all the questions will take.

    The first batch loads the model and is not measured. What is measured is as many further batches as there are
    workers, so that each has had one.
    """
    left, asked, batches, start = questions, 0, 0, None
    for count in counts:
        yield count
        left -= sum(count)
        if count[0] == 0 or batches > workers:
            continue
        if start is None:
            start = clock()
            continue
        asked, batches = asked + count[0], batches + 1
        if batches == workers:
            seconds = (clock() - start) / asked
            batches += 1
            say(f"{left:,} questions are left: about {duration(left * seconds)}")


def duration(seconds: float) -> str:
    """For people."""
    if seconds >= 5400:
        return f"{seconds / 3600:.1f} hours"
    return f"{seconds / 60:.0f} minutes" if seconds >= 90 else f"{seconds:.0f} seconds"
