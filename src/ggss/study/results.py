"""The results of a study: the runs of its plan's cells, and their comparisons with the unsteered model.

    results = Results.load("my-study")
    comparison = results.comparison("small-world/qwen3-vl", "ggss", "mcq", alpha=1.0)
    comparison.change(), comparison.p

Runs are read from the store when they are first needed. `export` writes all answers to a file, `recommended_alpha` is
the strength that a study chose for a steerer.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

from ggss.analysis.comparison import Comparison, compare
from ggss.analysis.run import Measured, Run, Source, Statistics
from ggss.analysis.selection import HeldOut, Sweep, best_alpha, cross_fit
from ggss.errors import InputError, problems
from ggss.files import write_whole
from ggss.methods.registry import UNSTEERED
from ggss.models import ModelIdentity
from ggss.steering.fitting import Gates
from ggss.steering.steerer import Steerer
from ggss.study import grid
from ggss.study.grid import Cell, Unit
from ggss.study.plan import DiscoverySet, MethodPlan, Plan, PlanItems
from ggss.study.store import Fit, Key, Store, reading

IDENTITY = "identity of "  # and a model's name: a fact about the study
FAILURE = "failure of "  # and a method on a model
VERSIONS, MACHINES = "versions", "machines"  # of the libraries, and where and when the study was run
CODE = "code"  # under which answers are kept: that of the last run, and that of the one before it changed
CACHED_RUNS = 256  # with their metrics
FORMATS = (".jsonl", ".parquet")
COLUMNS = (*grid.Cell._fields, "model_identity", "steering", "suite", "item", "answer", "probabilities")
COMPARED = ("vision weights", "vision config", "image processor", "dtype", "image backend")
"""The parts of a model's identity that must be equal. Other versions of the libraries may have fitted the steerer."""
_LONGEST = 2**24  # bytes of a row

Fitted = tuple[str, str, str]
"""A model, a method's label and an attribute."""


class StoredRuns(Mapping[Cell, Run]):
    """The complete runs that a store has for a plan, read when they are needed; and what is recorded of the plan."""

    def __init__(self, plan: Plan, store: Store, plan_items: PlanItems) -> None:
        self.plan, self.store, self.plan_items = plan, store, plan_items
        self._read = lru_cache(CACHED_RUNS)(self._load)
        recorded = (store.about(CODE) or {}).get("now")
        self.code: grid.Code = recorded if isinstance(recorded, dict) else grid.NOT_RECORDED

    def use_code(self, now: grid.Code, keep: bool = False) -> str:
        """Choose the code under whose key answers are read and written; returns a sentence if it has changed, or "".

        keep: use the answers of earlier code, also if the last run has begun to ask again.
        """
        last, before = self.code, (self.store.about(CODE) or {}).get("before")
        sentence = ""
        if self.store.about("plan") is None:  # a new study
            last = now
        # Code that is new to the plan, such as that of another plug-in, has answered nothing before.
        changed = [name for name in now if last.get(name, now[name]) != now[name]] if last else list(now)
        if keep:
            code_of_answers = last if changed or before is None else before
            self.code, before = {**now, **code_of_answers} if code_of_answers else code_of_answers, None
        else:
            self.code = now
            if changed:
                sentence = f"the code of {' and '.join(changed)} has changed since this study was last run"
                before = last
            if not last:
                sentence = "this study was begun by a version of ggss that did not record its code"
        self.store.tell(CODE, {"now": dict(self.code), "before": before})
        return sentence

    def fit(self, cell: Cell) -> Fit | None:
        """The cell's fit, or None if it was not fitted, or if the plan or the model has changed since."""
        fit = self.store.fit(cell.model, cell.method, cell.attribute)
        recipe = grid.recipe(self.plan, *cell[:3], self.code)
        if fit is None or fit.recipe != recipe:
            return None
        # A run that was stopped may have answers of the model before and after it changed: they are not compared.
        return fit if fit.identity == self.identity(cell.model).hash else None

    def identity(self, model: str) -> ModelIdentity:
        """The model's identity when it was last run."""
        parts = self.store.about(f"{IDENTITY}{model}")
        return ModelIdentity(parts if isinstance(parts, dict) else {})

    def identify(self, model: str, identity: ModelIdentity) -> list[str]:
        """Record a model's identity; returns what has changed since it was last run."""
        before = self.identity(model)
        if before != identity:
            self.store.tell(f"{IDENTITY}{model}", dict(identity.parts))
        return identity.differences(before) if before.parts else []

    def failure(self, unit: Unit) -> str:
        """Why a method could not be run on a model; "" if it could, or if it was not tried with the present plan."""
        record = self.store.about(_failure(unit)) or {}
        return str(record["why"]) if record.get("recipes") == self._recipes(unit) else ""

    def failed(self, unit: Unit, why: str) -> None:
        """Record why a method could not be run; "" if it could."""
        if why != self.failure(unit):
            self.store.tell(_failure(unit), {"why": why, "recipes": self._recipes(unit)})

    def _recipes(self, unit: Unit) -> list[str]:
        """The hashes of all that determines a method's fits on a model."""
        attributes = grid.attributes(self.plan, self.plan.method(unit.method))
        return [grid.recipe(self.plan, *unit, attribute, self.code) for attribute in attributes]

    def key(self, cell: Cell, fit: Fit) -> Key:
        return Key(fit.identity, fit.steering, cell.alpha, grid.questions_hash(self.plan_items, cell.task, self.code))

    def fits(self) -> "dict[Fitted, Fit]":
        """All fits of the plan."""
        cells = dict.fromkeys(grid.Cell(*cell[:3], 0.0, "") for cell in grid.all_cells(self.plan))
        return {cell[:3]: fit for cell in cells if (fit := self.fit(cell))}

    def count(self, cell: Cell) -> int:
        """How many of a cell's items are answered."""
        fit = self.fit(cell)
        if fit is None:
            return 0
        answered = self.store.answered(self.key(cell, fit))
        return sum(item.key in answered for item in self.plan_items.items(cell.task))

    def __getitem__(self, cell: Cell) -> Run:
        return self._read(cell)

    def _load(self, cell: Cell) -> Run:
        fit = self.fit(cell)
        items = self.plan_items.items(cell.task)
        answers = self.store.answers(self.key(cell, fit)) if fit else {}
        if any(item.key not in answers for item in items):
            raise KeyError(cell)
        in_order = tuple(answers[item.key] for item in items)
        return Run(cell.task, items, in_order, self._source(cell, fit), self.plan.parser)

    def _source(self, cell: Cell, fit: Fit | None) -> Source:
        return Source(
            cell.model,
            cell.method,
            cell.attribute,
            cell.alpha,
            self.plan_items.suite(cell.task).name,
            self.plan_items.hash(cell.task),
            fit.steering if fit else "",
            self.plan_items.max_new_tokens(cell.task),
            self.identity(cell.model).parts if fit else {},
        )

    def __iter__(self) -> Iterator[Cell]:
        return (
            cell for cell in grid.all_cells(self.plan) if self.count(cell) == len(self.plan_items.items(cell.task))
        )

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _failure(unit: Unit) -> str:
    return f"{FAILURE}{unit.method} on {unit.model}"


def stored(folder: str | Path) -> "Results":
    """The results in a study's folder."""
    plan, runs = opened(folder)
    fits = runs.fits()
    gates = {names: fit.gates for names, fit in fits.items() if fit.gates}
    cosines = {names: fit.cosine for names, fit in fits.items() if fit.cosine is not None}
    facts = {name: runs.store.about(name) or {} for name in (VERSIONS, MACHINES)}
    return Results(plan, runs, gates, cosines, facts)


def opened(folder: str | Path) -> tuple[Plan, StoredRuns]:
    """A study's plan as it was last run, and its runs."""
    store = reading(folder)
    contents = store.about("plan")
    if contents is None:
        raise InputError(f"the study in {str(folder)!r} was never started: run it first")
    plan = Plan.of(contents, f"the plan in {str(store.path)!r}")
    return plan, StoredRuns(plan, store, PlanItems(plan))


class Results:
    """All complete runs of a plan, by cell. `runs` may read each when it is first needed.

    gates and cosines are by model, method and attribute. gates: how far a gate opens on the discovery tokens.
    cosines: of the largest angle between the subspace that was discovered with a prompt and the one without.
    facts: what the store has under VERSIONS and MACHINES.
    """

    def __init__(
        self,
        plan: Plan,
        runs: Mapping[Cell, Run],
        gates: Mapping[Fitted, Gates] | None = None,
        cosines: Mapping[Fitted, float] | None = None,
        facts: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.plan = plan
        self.gates = gates or {}
        self.cosines = cosines or {}
        self.facts = facts or {}
        self._runs = runs
        self._baselines: dict[Cell, Measured] = {}
        self._comparisons: dict[Cell, Comparison | None] = {}

    @classmethod
    def load(cls, folder: str | Path) -> "Results":
        """The results in a study's folder, whether it is finished or not."""
        return stored(folder)

    @property
    def models(self) -> list[str]:
        return [model.name for model in self.plan.models]

    @property
    def methods(self) -> list[str]:
        """Labels, in the plan's order."""
        return [method.label for method in self.plan.methods]

    @property
    def alphas(self) -> list[float]:
        return [float(alpha) for alpha in self.plan.alphas]

    @property
    def tasks(self) -> list[str]:
        """The bias tasks, by which alpha is chosen."""
        return list(self.plan.bias_tasks)

    @property
    def statistics(self) -> Statistics:
        return self.plan.statistics.settings

    def run(
        self, model: str, method: str, task: str, alpha: float | None = None, attribute: str | None = None
    ) -> Run | None:
        """The run of a cell; None if it is not in the plan, was not run or is not complete yet.

        attribute: which steering; the one that the task is about by default. For `none` and `prompt`, which steer
        nothing, alpha and attribute are ignored.
        """
        if method not in self.methods or task not in self.plan.tasks:
            return None
        return self._runs.get(grid.cell(self.plan, model, method, task, alpha, attribute))

    def comparison(
        self, model: str, method: str, task: str, alpha: float | None = None, attribute: str | None = None
    ) -> Comparison | None:
        """A cell compared with the unsteered model; None if one of the two is missing. The result is cached."""
        if method not in self.methods or task not in self.plan.tasks:
            return None
        cell = grid.cell(self.plan, model, method, task, alpha, attribute)
        if cell not in self._comparisons:
            self._comparisons[cell] = self._compared(cell)
        return self._comparisons[cell]

    def _compared(self, cell: Cell) -> Comparison | None:
        unsteered = grid.cell(self.plan, cell.model, UNSTEERED, cell.task, None, None)
        before, after = self._runs.get(unsteered), self._runs.get(cell)
        if before is None or after is None:
            return None
        comparison = compare(before, after, self.statistics)
        # Of a bias task only the published metric is kept: all runs of a large study fit in memory then. The
        # unsteered run is kept once for all methods, with its resamples.
        if not comparison.has_right_answers:
            comparison = comparison.published()
        before = self._baselines.setdefault(unsteered, comparison.before)
        return Comparison(before, comparison.after)

    def everything(
        self, model: str, method: str, task: str, alpha: float | None, attribute: str | None = None
    ) -> Comparison | None:
        """The comparison of a bias task in all its metrics; None if a run is missing. The result is not cached."""
        before, after = self.run(model, UNSTEERED, task), self.run(model, method, task, alpha, attribute)
        return compare(before, after, self.statistics) if before and after else None

    def strengths(self, method: str) -> tuple[float, ...]:
        """The strengths at which the plan runs a method; only 0 for a method that does not steer."""
        if method == UNSTEERED or method not in self.methods:
            return ()
        entry = self.plan.method(method)
        if not entry.steers:
            return (0.0,)
        return tuple(float(alpha) for alpha in entry.alphas or self.alphas)

    def sweep(self, model: str, method: str) -> Sweep:
        """A method's bias tasks at every strength."""
        return {alpha: self.bias(model, method, alpha) for alpha in self.strengths(method)}

    def bias(
        self, model: str, method: str, alpha: float | None, attribute: str | None = None
    ) -> dict[str, Comparison]:
        """The bias tasks that a method was run on at a strength. attribute: which steering, as in `run`."""
        comparisons = {task: self.comparison(model, method, task, alpha, attribute) for task in self.tasks}
        return {task: comparison for task, comparison in comparisons.items() if comparison is not None}

    def best_alpha(self, model: str, method: str) -> float | None:
        """best-avg-alpha; None for the unsteered method, or if nothing can be compared."""
        return best_alpha(self.sweep(model, method))

    def joint_alpha(self, model: str, method: str, attribute: str) -> float | None:
        """best-avg-alpha of the steering of several attributes at once, of the strengths that it was run at."""
        alphas = grid.joint_alphas(self.plan, self.plan.method(method), attribute)
        return best_alpha({alpha: self.bias(model, method, alpha, attribute) for alpha in alphas})

    def everyone(self, model: str) -> set[str]:
        """All identities that the bias tasks show."""
        unsteered = self.bias(model, UNSTEERED, None)
        return {cluster for comparison in unsteered.values() for cluster in comparison.before.clusters}

    def held_out(self, model: str, method: str, folds: int = 2) -> list[HeldOut]:
        """For each fold, the strength chosen on all other identities, and the change of bias in the fold."""
        return cross_fit(self.sweep(model, method), self.everyone(model), folds)

    def __iter__(self) -> Iterator[Run]:
        """All runs, in the plan's order."""
        for cell in grid.all_cells(self.plan):
            if (run := self._runs.get(cell)) is not None:
                yield run

    @cached_property
    def hash(self) -> str:
        """sha256 of all answers. Not of probabilities: their last digits differ between CPUs."""
        digest = hashlib.sha256()
        for run in self:
            source = run.source
            digest.update(
                json.dumps([source.model, source.method, source.attribute, source.alpha, run.task]).encode()
            )
            for item, answer in zip(run.items, run.texts, strict=True):
                digest.update(json.dumps([item.key, answer]).encode())
        return digest.hexdigest()


def export(folder: str | Path, file: str | Path) -> int:
    """Write all answers of the study's plan, finished or not, to a .jsonl or .parquet file; returns their number.

    One row for each answer, in the plan's order. Equal answers make equal files.
    """
    file = Path(file)
    if file.suffix not in FORMATS:
        raise InputError(f"cannot tell a format from {str(file)!r}: end it in {' or '.join(FORMATS)}")
    _, runs = opened(folder)
    answers = list(rows(runs))
    data = _parquet(answers) if file.suffix == ".parquet" else (f"{json.dumps(row)}\n".encode() for row in answers)
    write_whole(file, data)
    return len(answers)


def holds_export(file: Path) -> bool:
    """Whether a file is an export: its first row has the columns of one."""
    try:
        if file.suffix == ".parquet":
            return set(_pyarrow().parquet.read_schema(file).names) == set(COLUMNS)
        with file.open("rb") as lines:
            first = json.loads(lines.readline(_LONGEST))
    except (OSError, ValueError, RecursionError):  # pyarrow's errors are ValueErrors
        return False
    return isinstance(first, dict) and first.keys() == set(COLUMNS)


def rows(runs: StoredRuns) -> Iterator[dict[str, Any]]:
    """A row for each answered item of every cell, with the hashes that are the key of its answer in the store."""
    for cell in grid.all_cells(runs.plan):
        if (fit := runs.fit(cell)) is None:
            continue
        key = runs.key(cell, fit)
        answers = runs.store.answers(key)
        hashes = {"model_identity": key.identity, "steering": key.steering, "suite": key.suite}
        for item in runs.plan_items.items(cell.task):
            if item.key in answers:
                text, probabilities = answers[item.key]
                answer = {"item": item.key, "answer": text, "probabilities": probabilities}
                yield {**cell._asdict(), **hashes, **answer}


def _parquet(answers: list[dict[str, Any]]) -> bytes:
    pyarrow, buffer = _pyarrow(), BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(answers), buffer)
    return buffer.getvalue()


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise InputError("parquet needs pyarrow: pip install 'ggss[parquet]', or export to .jsonl") from error
    return pyarrow


def recommended_alpha(folder: str | Path, steerer: Steerer, label: str = "") -> float:
    """best-avg-alpha of the steerer's method on its model. InputError unless the study fitted the same steerer."""
    plan, runs = check_steerer(folder, steerer, label)
    method = label or steerer.method
    alpha = Results(plan, runs).best_alpha(str(steerer.source["model"]), method)
    if alpha is None:
        raise InputError(f"the study in {str(folder)!r} has chosen no alpha for {method!r} yet: run it further")
    return alpha


def check_steerer(folder: str | Path, steerer: Steerer, label: str = "") -> tuple[Plan, StoredRuns]:
    """A study's plan and runs; InputError unless it fitted this steerer. label: the method's in the plan."""
    plan, runs = opened(folder)
    method = plan.method(label or steerer.method)
    if differences := _differences(plan, method, steerer, runs):
        raise problems(f"the study in {str(folder)!r} did not measure this steerer", differences)
    return plan, runs


def _differences(plan: Plan, method: MethodPlan, steerer: Steerer, runs: StoredRuns) -> list[str]:
    """The differences between the steerer and the one that the study fitted."""
    if not isinstance(steerer.attribute, str) or steerer.attribute not in plan.attributes:
        return [f"it steers {steerer.attribute!r}, the study {', '.join(plan.attributes)}"]
    pairs = {
        "method": (steerer.method, method.name),
        "options": (steerer.options, method.options),
        "sites": (", ".join(steerer.operators), _sites(method, steerer)),
        "discovery pictures": (
            steerer.source.get("data_hash"),
            DiscoverySet(plan).of(steerer.attribute).content_hash,
        ),
    }
    differ = {what: pair for what, pair in pairs.items() if pair[0] != pair[1]}
    messages = [f"{what}: it has {value}, the study {other}" for what, (value, other) in differ.items()]
    return _model_differences(plan, steerer, runs) + messages


def _model_differences(plan: Plan, steerer: Steerer, runs: StoredRuns) -> list[str]:
    """Differences of the model. Its identity is compared, as another model may have the same name by now."""
    model, models = str(steerer.source.get("model")), [entry.name for entry in plan.models]
    if model not in models:
        return [f"it is for {model}, the study has {', '.join(models)}"]
    made_with, measured = (
        ModelIdentity({name: str(parts.get(name, "")) for name in COMPARED})
        for parts in (steerer.source.get("identity") or {}, runs.identity(model).parts)
    )
    if not any(measured.parts.values()):
        return []  # not run yet
    return [f"the model: it was made with another {part}" for part in made_with.differences(measured)]


def _sites(method: MethodPlan, steerer: Steerer) -> str:
    """The method's sites; "all" are those of the steerer's model."""
    return ", ".join(steerer.source.get("sites") or []) if method.sites == "all" else method.sites
