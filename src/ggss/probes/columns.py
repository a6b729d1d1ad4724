"""Columns of item records, checked: every problem of a set of items is found before any of it is measured."""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ggss.errors import InputError, problems
from ggss.stats.metric import Array

Labels = Sequence[str] | NDArray[Any]
Parsed = Sequence[str | None]
CHOICES = ("first", "second")


def check_columns(name: str, may_be_none: Sequence[str] = ("answer", "choice", "salary"), **columns: Any) -> None:
    """Refuse columns that are empty or of different lengths, and missing values in columns other than answers."""
    lengths = {column: len(values) for column, values in columns.items()}
    if len(set(lengths.values())) > 1:
        seen = ", ".join(f"{column} {length}" for column, length in lengths.items())
        raise InputError(f"{name}: every item needs a value in every column, but their lengths are {seen}")
    if not next(iter(lengths.values())):
        raise InputError(f"{name}: there are no items to measure")
    holes = [
        f"item {i} has no {column}"
        for column, values in columns.items()
        if column not in may_be_none
        for i, value in enumerate(values)
        if _missing(value)
    ]
    if holes:
        raise problems(f"{name}: incomplete items", holes)


def codes(values: Labels) -> tuple[list[str], NDArray[np.intp]]:
    """The sorted distinct values and each item's number among them."""
    names, numbers = np.unique(np.asarray(values, dtype=str), return_inverse=True)
    return names.tolist(), numbers


def two_groups(name: str, values: Labels) -> NDArray[np.intp]:
    """Each item's group, 0 or 1 in alphabetical order; anything but two groups is refused."""
    groups, numbers = codes(values)
    if len(groups) != 2:
        raise InputError(f"{name}: a gap is between two groups, got {len(groups)}: {', '.join(groups)}")
    return numbers


def several_groups(name: str, values: Labels) -> NDArray[np.intp]:
    """Each item's group in alphabetical order; at least two are needed."""
    groups, numbers = codes(values)
    if len(groups) < 2:
        raise InputError(f"{name}: a gap is between groups, got {len(groups)}: {', '.join(groups)}")
    return numbers


def option_shares(
    name: str, answer: Parsed | ArrayLike, options: Sequence[str], asked: ArrayLike | None = None
) -> tuple[Array, int]:
    """[items, options]: 1 for the answer, all 0 where unparsed, or the probabilities; and the number unparsed.

    asked: which items count, all unless given; the rows of the others are 0.
    """
    if np.asarray(answer).ndim == 2:
        shares = np.asarray(answer, dtype=float)
        inside = np.full(len(shares), True) if asked is None else np.asarray(asked, dtype=bool)
        check_shares(name, [options] * int(inside.sum()), shares[inside])
        return shares * inside[:, None], 0
    given: list[Any] = list(answer)  # pyright: ignore[reportArgumentType]
    inside = np.full(len(given), True) if asked is None else np.asarray(asked, dtype=bool)
    place = {option: i for i, option in enumerate(options)}
    wanted = [(i, a) for i, a in enumerate(given) if inside[i]]
    bad = [f"item {i} has answer {a!r}" for i, a in wanted if a is not None and a not in place]
    if bad:
        raise problems(f"{name}: an answer is one of {', '.join(options)}, or None if it could not be read", bad)
    shares = np.zeros((len(given), len(options)))
    for i, a in wanted:
        if a is not None:
            shares[i, place[a]] = 1
    return shares, sum(a is None for _, a in wanted)


def both_orders(name: str, pair: Labels, asked: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """The two items of each pair, in the order of the items; a pair that is not asked in two orders is refused."""
    of_pair: dict[str, list[int]] = {}
    for i, own in enumerate(pair):
        if asked[i]:
            of_pair.setdefault(str(own), []).append(i)
    if bad := [f"pair {own!r} is asked {len(found)} times" for own, found in of_pair.items() if len(found) != 2]:
        raise problems(f"{name}: each pair belongs in both orders", bad)
    return [(one, other) for one, other in of_pair.values()]


def winner(one: str | None, other: str | None) -> int | None:
    """Which picture both orders name: 0 or 1 as the first of them shows it; None if they do not agree."""
    return {("first", "second"): 0, ("second", "first"): 1}.get((one or "", other or ""))


def check_shares(
    name: str, options: Sequence[Collection[str]], shares: Sequence[Sequence[float]] | NDArray[Any]
) -> None:
    """Refuse rows that are not probabilities, one for each of the item's options."""
    bad = []
    for i, (own, row) in enumerate(zip(options, shares, strict=True)):
        if len(row) != len(own):
            bad.append(f"item {i} has {len(own)} options, but {len(row)} probabilities")
        elif not (all(_is_share(share) for share in row) and abs(math.fsum(row) - 1) < 1e-4):
            bad.append(f"item {i} has probabilities {', '.join(str(share)[:9] for share in row)}")
    if bad:
        raise problems(f"{name}: option probabilities must be >= 0 and sum to 1", bad)


def leanings(name: str, choice: Parsed | ArrayLike) -> tuple[Array, NDArray[np.bool_]]:
    """Preference for the first picture in [-1, 1], 0 where unparsed, from words or P(first); and which are parsed."""
    if np.asarray(choice).dtype.kind == "f":
        choice = np.asarray(choice)
        bad = [f"item {i}: {p}" for i, p in enumerate(choice) if not 0 <= p <= 1]
        if bad:
            raise problems(f"{name}: the probability of the first picture must lie between 0 and 1", bad)
        return 2 * choice - 1, np.ones(len(choice), dtype=bool)
    given: list[Any] = list(choice)  # pyright: ignore[reportArgumentType]
    bad = [f"item {i}: {c!r}" for i, c in enumerate(given) if c is not None and c not in CHOICES]
    if bad:
        raise problems(f"{name}: a choice is 'first', 'second' or None", bad)
    lean = np.array([0.0 if c is None else 1.0 if c == "first" else -1.0 for c in given])
    return lean, np.array([c is not None for c in given])


def check_crossed(name: str, question: Labels, group: Labels) -> None:
    """Every question must be asked of every group, and of at least two."""
    groups = sorted(set(group))
    if len(groups) < 2:
        raise InputError(f"{name}: answers are compared between groups, but all items show {groups[0]!r}")
    asked = set(zip(question, group, strict=True))
    missing = [
        f"question {q!r} is never asked of {g!r}"
        for q in sorted(set(question))
        for g in groups
        if (q, g) not in asked
    ]
    if missing:
        raise problems(f"{name}: incomplete items", missing)


def check_pairs(name: str, first: Labels, second: Labels) -> None:
    """Every pair of groups must be shown, equally often in both orders, and never a group with itself."""
    found = [f"item {i} shows {a!r} twice" for i, (a, b) in enumerate(zip(first, second, strict=True)) if a == b]
    shown = Counter(zip(first, second, strict=True))
    for a, b in combinations(sorted({*first, *second}), 2):
        if shown[a, b] != shown[b, a] or not shown[a, b]:
            found.append(f"{a!r} is shown before {b!r} {shown[a, b]} times and after it {shown[b, a]} times")
    if found:
        raise problems(f"{name}: each pair of groups belongs in both orders equally often", found)


def _is_share(value: Any) -> bool:
    return isinstance(value, float | int) and 0 <= value <= 1


def _missing(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and np.isnan(value))
