"""Which diagnostic of discovery tells what comes out: rank correlations over worlds and methods, with intervals."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import rankdata

Row = Mapping[str, Any]
DRAWS, SEED = 200, 0
FEWEST = 8  # rows, below which no correlation is told


def spearman(first: np.ndarray, second: np.ndarray) -> float:
    """NaN if one of the two is the same everywhere."""
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return float("nan")
    return float(np.corrcoef(rankdata(first), rankdata(second))[0, 1])


def ranked(rows: Sequence[Row], diagnostic: str, outcome: str) -> tuple[float, float, float, int] | None:
    """Spearman's correlation, a 95 % interval and the number of rows; None if there are too few.

    The interval is of a bootstrap that draws worlds and methods, both with replacement: rows that share a world or a
    method are not independent.
    """
    used = [row for row in rows if row["diagnostics"].get(diagnostic) is not None and row.get(outcome) is not None]
    if len(used) < FEWEST:
        return None
    x = np.array([row["diagnostics"][diagnostic] for row in used], dtype=float)
    y = np.array([row[outcome] for row in used], dtype=float)
    worlds, methods = (np.unique([row[key] for row in used], return_inverse=True) for key in ("world", "method"))
    rng = np.random.default_rng(SEED)
    drawn = []
    for _ in range(DRAWS):
        times = [np.bincount(rng.integers(len(k[0]), size=len(k[0])), minlength=len(k[0])) for k in (worlds, methods)]
        index = np.repeat(np.arange(len(used)), times[0][worlds[1]] * times[1][methods[1]])
        if len(index) >= 4:
            drawn.append(spearman(x[index], y[index]))
    found = spearman(x, y)
    if np.isnan(found):
        return None
    low, high = np.nanquantile(drawn, [0.025, 0.975])
    return found, float(low), float(high), len(used)


def table(kinds: Mapping[str, tuple[Sequence[Row], Mapping[str, str]]]) -> str:
    """A line a diagnostic. kinds: by its name, rows of one kind, and their outcomes by the heads of the columns."""
    names = dict.fromkeys(name for rows, _ in kinds.values() for row in rows for name in row["diagnostics"])
    columns = [(kind, head, outcome) for kind, (_, outcomes) in kinds.items() for head, outcome in outcomes.items()]
    lines = [["diagnostic", *(f"{kind}: {head}" for kind, head, _ in columns)]]
    lines.append(["---"] * len(lines[0]))
    for name in names:
        found = [ranked(kinds[kind][0], name, outcome) for kind, _, outcome in columns]
        lines.append([name, *map(told, found)])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def told(found: tuple[float, float, float, int] | None) -> str:
    """In bold where the interval leaves out zero."""
    if found is None:
        return "-"
    rho, low, high, count = found
    text = f"{rho:+.2f} [{low:+.2f}, {high:+.2f}], {count} rows"
    return f"**{text}**" if low > 0 or high < 0 else text
