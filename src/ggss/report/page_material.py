"""From a study, from one or two files, or from live runs to what a report is about (`reported`).

A report shows people under one method on each model: the study's `ggss`, or another that is asked for. All methods of
a study are in its comparisons, which come from `Figures`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ggss.analysis import records
from ggss.analysis.comparison import Comparison, compare_all
from ggss.analysis.pairing import check_one_run, in_order
from ggss.analysis.run import Run
from ggss.analysis.statistics import Statistics
from ggss.data.picture import Picture
from ggss.errors import InputError
from ggss.methods.registry import UNSTEERED
from ggss.progress import track
from ggss.report import names
from ggss.report.figures import Figures
from ggss.report.page_discovery import Discovered, fitted_again
from ggss.report.reported import Material, ReportedModel, TaskPair
from ggss.study import grid
from ggss.study.plan import PATHS, Plan
from ggss.study.results import Results
from ggss.study.status import status
from ggss.version import library_versions


def of_study(folder: str | Path, method: str = "") -> Material:
    """From a study's folder, finished or not. method: the label whose people are shown; `ggss` unless given."""
    results = Results.load(folder)
    _, progress = status(folder)
    left = [one for one in progress if one.answered < one.of]
    missing = [
        f"{names.method(one.unit.method)} on {one.unit.model}: {one.answered:,} of {one.of:,} questions answered"
        + (f"; the rest could not be run: {one.failure}" if one.failure else "")
        for one in left
    ]
    ended = all(one.failure for one in left)
    notes = {(one.unit.model, one.unit.method): one.warnings for one in progress if one.warnings}
    return replace(of_results(results, method, missing, notes, Path(folder).name), ended=ended)


def of_results(
    results: Results,
    method: str = "",
    missing: Sequence[str] = (),
    notes: Mapping[tuple[str, str], Sequence[str]] | None = None,
    made_from: str = "",
) -> Material:
    """From results in memory."""
    figures, plan = Figures(results), results.plan
    steering = [entry.label for entry in plan.methods if entry.steers]
    if method and method not in steering:
        raise InputError(f"the study has no steering method {method!r}: choose from {', '.join(steering)}")
    shown = method or (names.GGSS if names.GGSS in steering else next(iter(steering), ""))
    models = [_of_model(figures, model.name, shown, model.control) for model in plan.models]
    present = _keyed([model for model in models if model.pairs])
    if not present:
        raise InputError(f"the study {plan.name!r} has no complete unsteered run yet: run it further")
    return Material(
        plan.name,
        plan.description,
        present,
        results.statistics,
        made_from or plan.name,
        figures,
        tuple(missing),
        notes or {},
        results.gates,
        _told_plan(plan),
        {"answers": results.hash} | _identities(present),
        library_versions(),
    )


def _told_plan(plan: Plan) -> dict[str, Any]:
    """What the plan says, with files by their names alone: where they lie on this machine is nobody's business."""
    told = plan.model_dump(mode="json", exclude_defaults=True)
    told["discovery"] = _last(told["discovery"])
    told["suite"] = {name: _last(value) if name in PATHS else value for name, value in told["suite"].items()}
    if plan.benchmarks:
        told["benchmarks"] = {
            task: {name: _last(value) if name == "path" and value else value for name, value in own.items()}
            for task, own in told["benchmarks"].items()
        }
    return told


def _last(place: str) -> str:
    return place.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]


def _of_model(figures: Figures, model: str, method: str, control: bool) -> ReportedModel:
    results, pairs = figures.results, list[TaskPair]()
    alpha = figures.alpha(model, method) if method else None
    for task in figures.plan.tasks:
        before = results.run(model, UNSTEERED, task)
        if before is None:
            continue
        bias = task in results.tasks
        attributes = [grid.own_attribute(figures.plan, task)] if bias else list(figures.plan.steering)
        found = [
            (
                attribute,
                results.run(model, method, task, alpha, attribute),
                figures.at_best(model, method, task, attribute),
            )
            for attribute in attributes
            if alpha is not None
        ]
        found = [one for one in found if one[1] is not None] or [(attributes[0], None, None)]
        pairs += [
            TaskPair("", model, attribute, before, after, comparison, results.statistics)
            for attribute, after, comparison in found
        ]
    steered = method if any(pair.after for pair in pairs) else ""
    return ReportedModel(model, steered, alpha if steered else None, tuple(pairs), control)


def of_files(before: Path, after: Path | None = None, statistics: Statistics | None = None) -> Material:
    """From one or two files of `ggss probe`, the unsteered one first."""
    runs = {path: records.load(path) for path in (before, after) if path is not None}
    for path, found in runs.items():
        check_one_run(found, str(path))
    name = " and ".join(path.name for path in runs)
    return of_runs(runs[before], runs[after] if after else None, statistics, name)


def of_runs(
    before: Mapping[str, Run],
    after: Mapping[str, Run] | None = None,
    statistics: Statistics | None = None,
    made_from: str = "",
) -> Material:
    """From runs by task, before and after one steering."""
    chosen = statistics or Statistics()
    compared = compare_all(before, after, chosen) if after is not None else {}
    pairs = []
    for task, run in before.items():
        steered = in_order(after[task], run) if after is not None else None
        attribute = steered.source.attribute if steered else ""
        pairs.append((attribute, run, steered, compared.get(task)))
    return of_pairs(pairs, chosen, made_from)


def of_pairs(
    pairs: Sequence[tuple[str, Run, Run | None, Comparison | None]],
    statistics: Statistics,
    made_from: str,
    discovered: Sequence[Discovered] = (),
    description: str = "",
) -> Material:
    """From runs of one model: the attribute steered, before, after, and the comparison of the two."""
    first = pairs[0][1].source
    steered = next((after.source for _, _, after, _ in pairs if after is not None), None)
    found = tuple(
        TaskPair("", first.model, attribute, before, after, comparison, statistics)
        for attribute, before, after, comparison in pairs
    )
    method = steered.method if steered else first.method if first.steered else ""
    alpha = steered.alpha if steered else first.alpha if first.steered else None
    (model,) = _keyed([ReportedModel(first.model, method, alpha, found, discovered=tuple(discovered))])
    return Material(
        names.model(first.model),
        description,
        (model,),
        statistics,
        made_from,
        hashes=_identities((model,)) | ({"steerer": steered.steerer} if steered and steered.steerer else {}),
        versions=dict(first.versions) or library_versions(),
    )


def with_pictures(material: Material, pictures: Iterable[Picture]) -> Material:
    """The same with pictures where the runs have only their digests."""
    known = {picture.digest: picture for picture in pictures}

    def shown(run: Run) -> Run:
        items = tuple(
            replace(item, images=tuple(known.get(picture.digest, picture) for picture in item.images))
            for item in run.items
        )
        return replace(run, items=items)

    return replace(
        material,
        models=tuple(
            replace(model, pairs=tuple(replace(pair, before=shown(pair.before)) for pair in model.pairs))
            for model in material.models
        ),
    )


def with_discovery(material: Material, show: bool | None = None) -> Material:
    """The same with the steerers of its method, fitted again as the study fitted them. Loads the study's models."""
    assert material.figures is not None
    plan, found = material.figures.plan, []
    for model in track(material.models, "fitting again", len(material.models), show):
        if not model.method:
            found.append(model)
            continue
        pictures: dict[str, list[Picture]] = {attribute: [] for attribute in plan.steering}
        for pair in model.pairs:
            if pair.about and pair.after:
                pictures[pair.attribute] += [picture for item in pair.before.items for picture in item.images]
        discovered = fitted_again(plan, model.name, model.method, model.pairs[0].before.source.identity, pictures)
        found.append(replace(model, discovered=tuple(discovered)))
    return replace(material, models=tuple(found))


def _keyed(models: Sequence[ReportedModel]) -> tuple[ReportedModel, ...]:
    """Each task with a name that is unique on the page, of letters, digits and hyphens."""
    return tuple(
        replace(model, pairs=tuple(replace(pair, key=f"t{m}-{n}") for n, pair in enumerate(model.pairs)))
        for m, model in enumerate(models)
    )


def _identities(models: Sequence[ReportedModel]) -> dict[str, str]:
    found: dict[str, str] = {}
    for model in models:
        found |= {f"{model.title}: {part}": value for part, value in model.pairs[0].before.source.identity.items()}
        found |= {f"questions of {pair.task}": pair.before.source.suite_hash for pair in model.pairs}
    return {name: value for name, value in found.items() if value}
