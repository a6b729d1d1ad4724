"""Study plans, and the database that a study's answers are in: its bytes and its rows."""

import json
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import yaml
from hypothesis import strategies as st

from experiments.fuzz import texts, trees
from experiments.fuzz.harness import Target
from ggss.models import Answer, ModelIdentity
from ggss.probes import suites
from ggss.probes.suites import Suite
from ggss.steering.fitting import Gates
from ggss.study import grid
from ggss.study.plan import Plan, PlanItems
from ggss.study.results import StoredRuns, export, opened
from ggss.study.status import status
from ggss.study.store import DATABASE, Fit, writing

PLAN: dict[str, Any] = {
    "name": "fuzzed",
    "suite": {"name": "small-world", "split": "selection"},
    "discovery": "small-world",
    "models": ["small-world/pixtral", {"name": "small-world/qwen3-vl", "dtype": "float32", "control": True}],
    "methods": [
        "none",
        "ggss",
        {"name": "ggss", "label": "sharp", "options": {"kappa": 10, "k": 4}, "alphas": [1.0]},
    ],
    "alphas": [0.5, 1.0],
    "steering": {
        "race": {"discover_on": ["cook"], "tasks": ["mcq"]},
        "gender": {"discover_on": ["cook"], "tasks": ["2afc-gender"]},
    },
    "measures": [{"tasks": ["recognition-race"], "at": "all"}],
    "benchmarks": {"mmstar": "MMStar.tsv"},
    "limit": 4,
    "batch_size": 8,
    "threads": 1,
    "seed": 1,
    "statistics": {"resamples": 100, "permutations": 100, "seed": 0},
}
SMALL = PLAN | {"benchmarks": {}, "measures": [], "models": PLAN["models"][:1], "methods": ["none", "ggss"]}
"""The plan of the study whose store is changed."""
IDENTITY = ModelIdentity({"weights": "0"})
GATES = Gates(0.1, 0.05, 0.2, 0.8, 0.7, 0.1)


def _plans(folder: Path) -> Any:
    file = folder / "plan.yaml"
    tidy = yaml.safe_dump(PLAN).encode()
    flow = st.lists(texts.answers, max_size=6).map(lambda lines: "\n".join(lines).encode("utf-8", "surrogatepass"))
    line = st.tuples(st.sampled_from(sorted(PLAN)), st.integers(0, 40), texts.answers).map(
        lambda put: _with_line(tidy.decode(), f"{put[0]}: {put[2]}", put[1])
    )
    content = trees.changed(PLAN).map(_yaml) | trees.changed(PLAN).map(_yaml) | trees.damaged(tidy) | line | flow

    def read(data: bytes) -> None:
        file.write_bytes(data)
        plan = Plan.load(file)
        json.dumps(plan.model_dump(mode="json"))

    return content, read


def _yaml(tree: Any) -> bytes:
    try:
        return yaml.safe_dump(tree, allow_unicode=True).encode("utf-8", "surrogatepass")
    except ValueError:  # an integer of more digits than Python prints
        return b"9" * 5_000


def _with_line(text: str, line: str, place: int) -> bytes:
    lines = text.split("\n")
    lines.insert(place, line)
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def answered_study(folder: Path) -> None:
    """A study that nobody ran: every item of the plan has an answer."""
    plan = Plan.of(SMALL)
    with writing(folder) as store:
        store.tell("plan", plan.model_dump(mode="json"))
        runs = StoredRuns(plan, store, PlanItems(plan))
        for model in plan.models:
            runs.identify(model.name, IDENTITY)
        for cell in grid.all_cells(plan):
            fit = _fit(plan, cell)
            store.remember(*cell[:3], fit)
            options = {item.key: list(item.options) for item in runs.plan_items.items(cell.task)}
            answers = {key: Answer(names[0], (1 / len(names),) * len(names)) for key, names in options.items()}
            store.write(runs.key(cell, fit), answers)


def _fit(plan: Plan, cell: grid.Cell) -> Fit:
    recipe = grid.recipe(plan, *cell[:3])
    return Fit(recipe, IDENTITY.hash, f"{cell.method}/{cell.attribute}", ("a note",), GATES)


def _store(folder: Path) -> Any:
    study = folder / "study"
    answered_study(study)
    database = study / DATABASE
    whole = database.read_bytes()
    with closing(sqlite3.connect(database)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = [(table, row[1]) for table in tables for row in connection.execute(f"PRAGMA table_info({table})")]
    put = st.tuples(st.sampled_from(columns), st.integers(0, 50), trees.values | st.binary(max_size=20))
    told = st.sampled_from(["plan", f"identity of {PLAN['models'][0]}"])
    cases = (
        st.tuples(st.just(_overwrite), trees.damaged(whole, 12), st.none() | st.binary(max_size=64))
        | st.tuples(st.just(_change), st.lists(put, min_size=1, max_size=3))
        | st.tuples(st.just(_tell), told, trees.changed(SMALL) | trees.values)
        | st.tuples(st.just(_answer), texts.answers, st.lists(trees.leaves, max_size=4))
        | st.tuples(st.just(_remember), trees.values)
    )

    remembered: dict[str, Suite] = {}

    def load(name: str, **given: Any) -> Suite:
        """Making the same items again would be nearly all the time of a case."""
        key = repr([name, given])
        if key not in remembered:
            remembered[key] = suites.load(name, **given)
        return remembered[key]

    def read(case: tuple[Any, ...]) -> None:
        shutil.rmtree(study)
        study.mkdir()
        database.write_bytes(whole)
        change, *how = case
        with patch("ggss.study.plan.suites", SimpleNamespace(load=load, benchmark=suites.benchmark)):
            change(study, *how)
            status(study)
            export(study, folder / "answers.jsonl")

    return cases, read


def _overwrite(study: Path, data: bytes, log: bytes | None) -> None:
    (study / DATABASE).write_bytes(data)
    if log is not None:
        (study / f"{DATABASE}-wal").write_bytes(log)


def _change(study: Path, changed: list[Any]) -> None:
    """Rows as somebody with a database editor would leave them."""
    with closing(sqlite3.connect(study / DATABASE)) as connection, connection:
        for (table, column), row, value in changed:
            value = json.dumps(value) if isinstance(value, dict | list | bool) else value
            place = f"(SELECT {column} FROM {table} LIMIT 1 OFFSET {row})"
            try:
                connection.execute(f"UPDATE {table} SET {column} = ? WHERE {column} = {place}", (value,))
            except (sqlite3.Error, OverflowError, UnicodeEncodeError):
                continue  # SQLite itself refuses such a row


# The same by the store's own functions, whose checksums are right.
def _tell(study: Path, name: str, value: Any) -> None:
    with writing(study) as store:
        store.tell(name, value)


def _answer(study: Path, said: str, shares: list[Any]) -> None:
    plan, runs = opened(study)
    cell = next(iter(grid.all_cells(plan)))
    fit = Fit(_fit(plan, cell).recipe, IDENTITY.hash, "other")
    with writing(study) as store:
        store.remember(*cell[:3], fit)
        answers = {item.key: Answer(said, tuple(shares)) for item in runs.plan_items.items(cell.task)}
        store.write(runs.key(cell, fit), answers)


def _remember(study: Path, notes: Any) -> None:
    plan, _ = opened(study)
    cell = next(iter(grid.all_cells(plan)))
    fit = replace(_fit(plan, cell), notes=notes)
    with writing(study) as store:
        store.remember(*cell[:3], fit)


TARGETS = (
    Target("study plans", 0.08, _plans, (b"seed: 2024-02-03\n", b"seed: " + b"9" * 5_000, b"a: " + b"[" * 2_000)),
    Target("study stores", 0.03, _store),
)
