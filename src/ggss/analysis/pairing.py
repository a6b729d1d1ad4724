"""Which runs can be compared: the same items, asked of the same model in the same way, unsteered first."""

from collections.abc import Mapping
from dataclasses import replace

from ggss.analysis.run import Run
from ggss.errors import InputError, problems

# What a steered run and its baseline may differ in. A model of another name may be the same one, and its identity has
# the versions that decide numbers.
MAY_DIFFER = ("model", "method", "attribute", "alpha", "steerer", "versions")
_ASKED = ("options", "attributes", "context", "worth", "cluster", "question", "expected", "about")


def check_paired(before: Mapping[str, Run], after: Mapping[str, Run], unlike: bool = False) -> None:
    """Refuse runs that cannot be paired, naming every difference."""
    if not before and not after:
        raise InputError("there is nothing to compare: both runs are empty")
    found = [f"task {task!r} is in the first run only" for task in before if task not in after]
    found += [f"task {task!r} is in the second run only" for task in after if task not in before]
    for task, old in before.items():
        if task in after and after[task].items is not old.items:
            found += [f"{task}: {text}" for text in _different_items(old, after[task])]
    if found:
        raise problems("the two runs cannot be compared: they do not ask the same questions", found)
    if (found := differences(before, after)) and not unlike:
        raise problems("the two runs differ in more than their steering (--unlike compares them all the same)", found)


def check_one_run(runs: Mapping[str, Run], where: str) -> None:
    """Refuse a file whose tasks were not asked of one model under one steering."""
    first = next(iter(runs.values()))
    for task, run in runs.items():
        # Tasks may be of different suites, and their answers of different lengths.
        if found := first.source.differences(run.source, "suite", "suite_hash", "max_new_tokens"):
            told = f"{first.task} and {task} differ in {'; '.join(found)}"
            raise InputError(f"{where!r} holds answers of different runs: {told}; keep each run in a file of its own")


def differences(before: Mapping[str, Run], after: Mapping[str, Run]) -> list[str]:
    """What two runs differ in besides their steering, and whether they are in the wrong order."""
    found: dict[str, None] = {}
    for task, run in before.items():
        one, other = run.source, after[task].source
        if one.steered and not other.steered:
            found[f"the first is steered ({one.said}) and the second is not: give the unsteered one first"] = None
        found |= dict.fromkeys(one.differences(other, *MAY_DIFFER))
    return list(found)


def in_order(run: Run, like: Run) -> Run:
    """The run with its items in the order of another."""
    if run.items is like.items:
        return run
    place = {item.key: number for number, item in enumerate(run.items)}
    order = [place[item.key] for item in like.items]
    return replace(
        run,
        items=tuple(run.items[i] for i in order),
        answers=tuple(run.answers[i] for i in order),
        probabilities=tuple(run.probabilities[i] for i in order),
    )


def _different_items(old: Run, new: Run) -> list[str]:
    olds, news = {item.key: item for item in old.items}, {item.key: item for item in new.items}
    found = [
        f"{len(only)} of {len(all_of)} items are in the {which} run only, such as {min(only)!r}"
        for which, all_of, only in (("first", olds, olds.keys() - news), ("second", news, news.keys() - olds))
        if only
    ]
    for what in _ASKED:
        other = [key for key in olds if key in news and getattr(olds[key], what) != getattr(news[key], what)]
        if other:
            found.append(f"{len(other)} items have other {_PLURAL.get(what, what)}, such as {other[0]!r}")
    return found


_PLURAL = {
    "worth": "numbers of their options",
    "cluster": "clusters",
    "question": "questions",
    "expected": "right answers",
    "about": "attributes",
}
