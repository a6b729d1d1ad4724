"""`make mutants`: mutmut over the modules of `[tool.mutmut]`; docs/mutants.md says what survived, and why.

A second run tries what is new and what survived; without the folder `mutants` it begins anew.

A survivor is named by its function and by the lines that differ, not by mutmut's number, so that its reason stays
with it when the code around it changes. The reasons are in `survivors.json` beside this file.
"""

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from mutmut.__main__ import cli  # pyright: ignore[reportMissingImports]
from mutmut.mutation.data import SourceFileMutationData  # pyright: ignore[reportMissingImports]
from mutmut.mutation.diff_apply import get_diff_for_mutant  # pyright: ignore[reportMissingImports]
from mutmut.stats import status_by_exit_code  # pyright: ignore[reportMissingImports]
from mutmut.utils.file_utils import walk_mutatable_files  # pyright: ignore[reportMissingImports]

from experiments.tools.code_digest import PYTHON, code_digest

ROOT = Path(__file__).parents[2]
PAGE, REASONS = ROOT / "docs" / "mutants.md", ROOT / "experiments" / "tools" / "survivors.json"
KILLED = ("killed", "timeout", "segfault")  # a mutant that does not end, or ends the process, does not pass
GOAL = 0.9

HEAD = """# Mutants

Written by `make mutants`. [mutmut](https://github.com/boxed/mutmut) changes one thing at a time in the modules below
(an operator, a number, a condition, an argument left out), runs the tests that reach the changed function, and sees
whether one of them fails. If none does, the mutant survives: either a test is missing, or the change makes no
difference. Words of messages, annotations and docstrings are not changed. The goal is 90 % killed, and a reason for
each of the others. The digest is of the code that was changed, without comments and docstrings; a test compares it
with the module's.
"""
COLUMNS = (
    f"| module | mutants | killed | left | share | digest (Python {PYTHON}) |",
    "| --- | --- | --- | --- | --- | --- |",
)


class Survivor(NamedTuple):
    function: str
    before: str
    after: str


def main(given: list[str]) -> int:
    os.chdir(ROOT)
    if given != ["report"]:
        if not any("__mutmut_" in one for one in given):  # else those that are named are run
            _forget_survivors()
        if not hasattr(pytest.Item, "_nodeid"):  # mutmut 3.8 asks for a name that pytest 9.2 does not have any more
            setattr(pytest.Item, "_nodeid", property(lambda item: item.nodeid))  # noqa: B010
        try:
            cli(["run", *given], standalone_mode=False)
        except SystemExit as end:
            if end.code:
                return int(str(end.code))
    return report()


def report() -> int:
    """Write the page; 1 if too few mutants are killed, or one that survived has no reason."""
    reasons = {Survivor(one["function"], one["before"], one["after"]): one["reason"] for one in _written()}
    rows, survivors, seen, unchecked = [], [], Counter[str](), 0
    for path in walk_mutatable_files():
        codes = SourceFileMutationData(path=path)
        codes.load()
        states = {name: status_by_exit_code[code] for name, code in codes.exit_code_by_key.items()}
        if not states:
            continue
        killed = sum(state in KILLED for state in states.values())
        unchecked += sum(state == "not checked" for state in states.values())
        seen.update(all=len(states), killed=killed)
        rows.append(_row(f"`{path}`", len(states), killed, code_digest(path)))
        survivors += [_survivor(name, path) for name, state in states.items() if state not in KILLED]
    missing = [one for one in survivors if one not in reasons]
    share = seen["killed"] / max(seen["all"], 1)
    rows.append(_row("all", seen["all"], seen["killed"], ""))
    listed = [
        f"- `{one.function}`: {reasons.get(one, 'no reason yet')}\n\n"
        f"  ```diff\n  -{one.before}\n  +{one.after}\n  ```"
        for one in dict.fromkeys(survivors)
    ]
    PAGE.write_text("\n".join([HEAD, *COLUMNS, *rows, "\n## What survived, and why\n", *listed]) + "\n")
    for one in dict.fromkeys(missing):
        print(f"{one.function}\n  -{one.before}\n  +{one.after}")
    told = f"{len(missing)} of the others without a reason, {unchecked} not run"
    print(f"{seen['all']} mutants, {share:.1%} killed; {told}")
    return 1 if missing or unchecked or share < GOAL else 0


def _forget_survivors() -> None:
    """So that they are tried again: there may be a test now."""
    for path in walk_mutatable_files():
        codes = SourceFileMutationData(path=path)
        codes.load()
        killed = {name: status_by_exit_code[code] in KILLED for name, code in codes.exit_code_by_key.items()}
        if not all(killed.values()):
            codes.exit_code_by_key |= dict.fromkeys(name for name in killed if not killed[name])
            codes.save()


def _row(module: str, mutants: int, killed: int, digest: str) -> str:
    return f"| {module} | {mutants} | {killed} | {mutants - killed} | {killed / mutants:.1%} | {digest} |"


def _written() -> list[dict[str, str]]:
    return json.loads(REASONS.read_text(encoding="utf-8"))


def _survivor(name: str, path: Path) -> Survivor:
    """`ggss.stats.metric.xǁMetricǁby__mutmut_3` is one of `ggss.stats.metric.Metric.by`."""
    module, _, own = name.partition("__mutmut_")[0].rpartition(".")
    function = f"{module}.{own.removeprefix('x_').removeprefix('xǁ').replace('ǁ', '.')}"
    lines = get_diff_for_mutant(name, path=path).splitlines()[2:]  # after the names of the two files
    before, after = (" ".join(" ".join(line[1:].split()) for line in lines if line.startswith(sign)) for sign in "-+")
    return Survivor(function, before, after)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
