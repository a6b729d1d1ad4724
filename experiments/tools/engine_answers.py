"""Compares the answers of one study by two engines: `python -m experiments.tools.engine_answers A B`.

Engines may differ only where tokens are equally likely to the last digits of a float. Prints how many answers were
compared, the largest difference of an option's probability, and each answer that differs, with the lead that the
first engine's answer had over the second's.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass

from ggss.study.grid import Cell
from ggss.study.results import StoredRuns, opened


@dataclass(frozen=True)
class ComparedAnswer:
    """apart: of the options' probabilities, the largest difference.

    lead: how much likelier the first answer was than the second, by the first engine; None if no option says it.
    """

    cell: Cell
    item: str
    first: str
    second: str
    apart: float
    lead: float | None


def compared(first: StoredRuns, second: StoredRuns) -> Iterator[ComparedAnswer]:
    """Every answer of the cells that both have."""
    for cell in (own for own in first if own in second):
        one, other = first[cell], second[cell]
        for number, item in enumerate(one.items):
            mine, theirs = one.probabilities[number], other.probabilities[number]
            apart = max((abs(a - b) for a, b in zip(mine, theirs, strict=True)), default=0.0)
            said, heard = one.texts[number], other.texts[number]
            options = list(item.options)
            known = said in options and heard in options
            lead = mine[options.index(said)] - mine[options.index(heard)] if known else None
            yield ComparedAnswer(cell, item.key, said, heard, apart, lead)


def main(folders: list[str]) -> int:
    first, second = (opened(folder)[1] for folder in folders)
    answers = list(compared(first, second))
    differing = [one for one in answers if one.first != one.second]
    apart = max((one.apart for one in answers), default=0.0)
    print(f"{len(answers)} answers, {len(differing)} differ; probabilities differ by at most {apart:.6f}")
    for one in differing:
        lead = "unknown" if one.lead is None else f"{one.lead:.6f}"
        print(f"{' '.join(map(str, one.cell))} {one.item}: {one.first!r} and {one.second!r}, lead {lead}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
