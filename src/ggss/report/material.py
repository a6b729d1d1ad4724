"""The data of a report: models, their tasks before and after steering, and what discovery found.

It is made from a study's folder, from results in memory, from one or two files of runs, or from live runs. People
are shown under one method on each model: the study's `ggss`, or another that is asked for. All methods of a study are
in its comparisons, which come from `Figures`.

A study's store has the warnings of discovery and a summary of the gate, but no steerers. `with_discovery` fits them
again as the study did, from the same plan, seed and pictures; it needs the models.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ggss.analysis import records
from ggss.analysis.comparison import Comparison, check_one_run, compare_all, in_order
from ggss.analysis.groups import GroupValues, group_values
from ggss.analysis.run import Measured, Run, Statistics
from ggss.data.pictures import Picture
from ggss.errors import InputError, problems
from ggss.methods.registry import UNSTEERED
from ggss.models.sites import MLP2 as SITE
from ggss.probes import Probe
from ggss.probes.base import task_label, task_title
from ggss.probes.questions import JUDGED
from ggss.probes.questions import NAME as QUESTIONS
from ggss.probes.suites import SUITES, Provenance, provenance
from ggss.report import cells
from ggss.report.cells import Figures
from ggss.steering.fitting import Gates
from ggss.study import grid
from ggss.study.plan import PATHS, About, Plan
from ggss.study.results import MACHINES, VERSIONS, Results
from ggss.study.status import status
from ggss.terminal import track
from ggss.version import library_versions

if TYPE_CHECKING:
    from ggss.models.features import FeatureCache, Features
    from ggss.models.vlm import Vlm
    from ggss.steering.steerer import Steerer


@dataclass(frozen=True)
class TaskPair:
    """A task before and after the steering of an attribute.

    key: its name on the page, unique there. `after` and `comparison` are None if only one run is reported.
    """

    key: str
    model: str
    attribute: str
    before: Run
    after: Run | None
    comparison: Comparison | None
    statistics: Statistics

    @property
    def task(self) -> str:
        return self.before.task

    @property
    def probe(self) -> Probe:
        return self.before.probe

    @property
    def about(self) -> str:
        return self.before.about

    @property
    def task_title(self) -> str:
        return task_title(self.task, self.about)

    @property
    def title(self) -> str:
        """The task's title; with the steering, if it is of another attribute than the task is about."""
        other = self.about and self.after and self.attribute != self.about
        return f"{self.task_title}, under {self.attribute} steering" if other else self.task_title

    @property
    def label(self) -> str:
        return task_label(self.task, self.about)

    @property
    def judges_bias(self) -> bool:
        return self.probe.kind == "bias"

    @cached_property
    def measured(self) -> Measured:
        """The measurements of the task before steering."""
        return self.comparison.before if self.comparison else self.before.measured(self.statistics)

    @cached_property
    def groups_before(self) -> list[GroupValues]:
        return group_values(self.before, self.statistics)

    @cached_property
    def groups_after(self) -> list[GroupValues]:
        return group_values(self.after, self.statistics) if self.after else []


@dataclass(frozen=True)
class ReportedModel:
    """A model, the method it is shown under ("" if it was not steered), its strength, and its tasks.

    joint: the tasks under a steering of several attributes at once, if a study has one beside those of single ones.
    They have a row in the table of whose answer depends on what, and in that of capability.
    """

    name: str
    method: str
    alpha: float | None
    pairs: tuple[TaskPair, ...]
    control: bool = False
    discovered: "tuple[Discovered, ...]" = ()
    joint: tuple[TaskPair, ...] = ()

    @property
    def title(self) -> str:
        return cells.model_title(self.name)

    @property
    def bias(self) -> list[TaskPair]:
        return [pair for pair in self.pairs if pair.judges_bias]

    @property
    def others(self) -> list[TaskPair]:
        """The tasks of capability and recognition."""
        return [pair for pair in self.pairs if not pair.judges_bias]

    def is_joint(self, pair: TaskPair) -> bool:
        return any(pair is other for other in self.joint)


@dataclass(frozen=True)
class Missing:
    """A method on a model of which a study has not run everything, and how far it is, in words."""

    model: str
    method: str
    words: str


@dataclass(frozen=True)
class Material:
    """All that a report shows.

    made_from: files or folders. figures: of a study only. missing: what a study has not run yet; ended: whether all
    of that was tried and could not be run. notes: warnings of discovery, by model and method. about: who ran it, and
    where the pictures come from. commands: that make the same report again. machine: where it was run, and when; ""
    if that was not recorded.
    """

    name: str
    description: str
    models: tuple[ReportedModel, ...]
    statistics: Statistics
    made_from: str
    figures: Figures | None = None
    missing: tuple[Missing, ...] = ()
    notes: Mapping[tuple[str, str], Sequence[str]] = field(default_factory=dict)
    gates: Mapping[tuple[str, str, str], Gates] = field(default_factory=dict)
    plan: Mapping[str, Any] | None = None
    hashes: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    ended: bool = False
    about: About = field(default_factory=lambda: About())
    commands: tuple[str, ...] = ()
    machine: str = ""

    @property
    def provenance(self) -> Provenance:
        """Where the pictures come from: as the plan says, and else as the suites of the questions do."""
        said = self.about.data
        for suite in dict.fromkeys(pair.before.source.suite for pair in self.pairs):
            said = said.over(provenance(suite))
        return said

    @property
    def pairs(self) -> list[TaskPair]:
        return [pair for model in self.models for pair in model.pairs]

    def model(self, name: str) -> ReportedModel:
        return next(model for model in self.models if model.name == name)

    @property
    def subjects(self) -> list[ReportedModel]:
        """The models that the report is about: all but the controls, unless there are no others."""
        return [model for model in self.models if not model.control] or list(self.models)

    @property
    def controls(self) -> list[ReportedModel]:
        subjects = {model.name for model in self.subjects}
        return [model for model in self.models if model.name not in subjects]

    def shows(self, model: str, method: str) -> bool:
        """Whether people are shown under this method on this model, or it is what they are compared with."""
        return any(shown.name == model and method in (UNSTEERED, shown.method) for shown in self.models)


@dataclass(frozen=True)
class Discovered:
    """The steerer of an attribute. maps: by picture digest, the gate [rows, columns]."""

    attribute: str
    steerer: "Steerer"
    maps: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)

    @property
    def floor(self) -> float:
        """The smallest value that the gate can have."""
        return float(getattr(self.steerer.operators.get(SITE), "floor", 0.0))

    @property
    def gate(self) -> np.ndarray:
        """The gate of all tokens of these pictures, [tokens]."""
        return np.concatenate([values.ravel() for values in self.maps.values()]) if self.maps else np.empty(0)


def discovered(attribute: str, steerer: "Steerer", cache: "FeatureCache", pictures: Iterable[Picture]) -> Discovered:
    """A steerer with its gate over each of some pictures, if it has a gate and the model's tokens lie on a grid."""
    unique = list({picture.digest: picture for picture in pictures}.values())
    maps: dict[str, np.ndarray] = {}
    if cache.from_features and SITE in steerer.operators:
        for batch in cache.batches(unique):
            for picture, features in zip(batch, cache.features(batch), strict=True):
                if (gate := gate_map(steerer, cache.vlm, features)) is not None:
                    maps[picture.digest] = gate
    return Discovered(attribute, steerer, maps)


def fitted_again(
    plan: Plan, model: str, label: str, identity: Mapping[str, str], pictures: Mapping[str, Sequence[Picture]]
) -> list[Discovered]:
    """A method's steerers on a model, one for each attribute of `pictures`, with their gates over these pictures.

    identity: that of the model that the study asked; InputError if the model is another one now.
    """
    from ggss.study.results import COMPARED
    from ggss.study.worker import Worker

    worker = Worker(plan)
    now = worker.open(model).parts
    changed = [part for part in COMPARED if identity and now.get(part, "") != identity.get(part, "")]
    if changed:
        raise problems(f"{model} is not the model that the study asked", [f"another {part}" for part in changed])
    steerings = []
    for attribute, pictures_of_attribute in pictures.items():
        steerer, cache = worker.steerer(model, label, attribute)
        steerings.append(discovered(attribute, steerer, cache, pictures_of_attribute))
    return steerings


def gate_map(steerer: "Steerer", vlm: "Vlm", features: "Features") -> np.ndarray | None:
    """The gate of each token where it lies in the picture [rows, columns]; None without a gate or a grid."""
    gate = steerer.gate(features.rows[SITE], site=SITE)
    if gate is None:
        return None
    values = gate.detach().float().cpu().numpy().ravel()
    shape = token_grid(vlm, features, len(values))
    return None if shape is None else values[: shape[0] * shape[1]].reshape(shape)


def token_grid(vlm: "Vlm", features: "Features", tokens: int) -> tuple[int, int] | None:
    """Rows and columns of a picture's tokens; None if unknown. Of a tiled picture, those of its overview, tile 0."""
    inputs, vision = features.inputs, getattr(vlm.model.config, "vision_config", None)
    if "image_grid_thw" in inputs:
        frames, height, width = (int(n) for n in inputs["image_grid_thw"].flatten()[-3:])
        merge = round((frames * height * width / tokens) ** 0.5)
        shape = (height // merge, width // merge)
        return shape if frames == 1 and shape[0] * shape[1] == tokens else None
    patch = getattr(vision, "patch_size", 0)
    if not isinstance(patch, int) or not patch:
        return None
    side = getattr(vision, "image_size", 0) // patch
    if vlm.family.name == "Pixtral" and "image_sizes" in inputs:
        height, width = (int(n) // patch for n in inputs["image_sizes"].flatten()[-2:])
        return (height, width) if height * width == tokens else None
    return (side, side) if side and tokens % side**2 == 0 else None


def of_study(folder: str | Path, method: str = "") -> Material:
    """From a study's folder, finished or not. method: the label under which people are shown; `ggss` by default."""
    results = Results.load(folder)
    _, progress = status(folder)
    left = [entry for entry in progress if entry.answered < entry.of]
    missing = [
        Missing(
            entry.unit.model,
            entry.unit.method,
            f"{cells.method_title(entry.unit.method)} on {entry.unit.model}: "
            f"{entry.answered:,} of {entry.of:,} questions answered"
            + (f"; the rest could not be run: {entry.failure}" if entry.failure else ""),
        )
        for entry in left
    ]
    ended = all(entry.failure for entry in left)
    notes = {(entry.unit.model, entry.unit.method): entry.warnings for entry in progress if entry.warnings}
    return replace(of_results(results, method, missing, notes, Path(folder).name), ended=ended)


def of_results(
    results: Results,
    method: str = "",
    missing: Sequence[Missing] = (),
    notes: Mapping[tuple[str, str], Sequence[str]] | None = None,
    made_from: str = "",
) -> Material:
    """From results in memory."""
    figures, plan = Figures(results), results.plan
    steering = [entry.label for entry in plan.methods if entry.steers]
    if method and method not in steering:
        raise InputError(f"the study has no steering method {method!r}: choose from {', '.join(steering)}")
    label = method or (cells.GGSS if cells.GGSS in steering else next(iter(steering), ""))
    models = [_of_model(figures, model.name, label, model.control) for model in plan.models]
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
        _plan_data(plan),
        {"answers": results.hash} | _identities(present),
        dict(results.facts.get(VERSIONS, {})) or library_versions(),
        about=About(run_by=plan.run_by, data=plan.data),
        commands=_study_commands(plan, made_from or plan.name, method),
        machine=_machine(results.facts.get(MACHINES, {})),
    )


def _study_commands(plan: Plan, folder: str, method: str) -> tuple[str, ...]:
    shown = f" --method {shlex.quote(method)}" if method else ""
    file, place = shlex.quote(f"{plan.name}.yaml"), shlex.quote(folder)
    return f"ggss study run {file} -o {place}", f"ggss report {place}{shown} -o report.html"


def _machine(facts: Mapping[str, Any]) -> str:
    """Where and when a study was run, in words."""
    if not facts:
        return ""
    days = dict.fromkeys([facts["first"], facts["last"]])
    return f"{'; '.join(facts['hardware'])} ({' to '.join(days)})"


def _plan_data(plan: Plan) -> dict[str, Any]:
    """The plan as data. Files are named without their folders, which are of no concern to a report's readers."""
    contents = plan.model_dump(mode="json", exclude_defaults=True)
    contents |= {name: _last(contents[name]) for name in ("discovery", "wording", "questions") if contents.get(name)}
    if plan.plugins:
        contents["plugins"] = [_last(name) for name in contents["plugins"]]
    for entry in contents["models"]:
        entry["name"] = _without_folder(entry["name"])
    for entry in contents["methods"]:
        if entry.get("models"):
            entry["models"] = [_without_folder(name) for name in entry["models"]]
    contents["suite"] = {name: _last(value) if name in PATHS else value for name, value in contents["suite"].items()}
    if plan.benchmarks:
        contents["benchmarks"] = {
            task: {name: _last(value) if name == "path" and value else value for name, value in benchmark.items()}
            for task, benchmark in contents["benchmarks"].items()
        }
    return contents


def _without_folder(model: str) -> str:
    """A model of this machine by its folder's name; one of the hub, or of the small world, as it is."""
    return _last(model) if Path(model).is_absolute() or model.startswith(("~", ".")) else model


def _last(place: str) -> str:
    return place.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]


def _of_model(figures: Figures, model: str, method: str, control: bool) -> ReportedModel:
    results, pairs = figures.results, list[TaskPair]()
    alpha = _strength(figures, model, method) if method else None
    for task in figures.plan.tasks:
        before = results.run(model, UNSTEERED, task)
        if before is None:
            continue
        bias = task in results.tasks
        attributes = [grid.attribute_of(figures.plan, task)] if bias else list(figures.plan.attributes)
        steered_runs = [
            (
                attribute,
                results.run(model, method, task, alpha, attribute),
                figures.comparison(model, method, task, alpha, attribute),
            )
            for attribute in attributes
            if alpha is not None
        ]
        complete = [run for run in steered_runs if run[1] is not None] or [(attributes[0], None, None)]
        pairs += [
            TaskPair("", model, attribute, before, after, comparison, results.statistics)
            for attribute, after, comparison in complete
        ]
    steered = method if any(pair.after for pair in pairs) else ""
    joint = tuple(_joint(figures, model, method)) if steered else ()
    return ReportedModel(model, steered, alpha if steered else None, tuple(pairs), control, joint=joint)


def _joint(figures: Figures, model: str, method: str) -> Iterator[TaskPair]:
    """A model's tasks under the steerings of several attributes at once."""
    results = figures.results
    for attribute in figures.plan.joint:
        for task, comparison in figures.jointly(model, method, attribute).items():
            before = results.run(model, UNSTEERED, task)
            after = results.run(model, method, task, comparison.after.source.alpha, attribute)
            assert before is not None
            yield TaskPair("", model, attribute, before, after, comparison, results.statistics)


def _strength(figures: Figures, model: str, method: str) -> float | None:
    """best-avg-alpha. If none can be chosen, as nothing could be read, the first that was run: it is shown so."""
    chosen = figures.alpha(model, method)
    strengths = (alpha for alpha in figures.results.strengths(method) if figures.results.bias(model, method, alpha))
    return chosen if chosen is not None else next(strengths, None)


def of_files(before: Path, after: Path | None = None, statistics: Statistics | None = None) -> Material:
    """From one or two files of `ggss probe`, the unsteered one first."""
    runs = {path: records.load(path) for path in (before, after) if path is not None}
    for path, tasks in runs.items():
        check_one_run(tasks, str(path))
    name = " and ".join(path.name for path in runs)
    material = of_runs(runs[before], runs[after] if after else None, statistics, name)
    files = " ".join(shlex.quote(path.name) for path in runs)
    asked = [_probe_command(tasks, path.name) for path, tasks in runs.items()]
    machines = dict.fromkeys(run.hardware for tasks in runs.values() for run in tasks.values() if run.hardware)
    return replace(material, commands=(*asked, f"ggss report {files} -o report.html"), machine="; ".join(machines))


def _probe_command(runs: Mapping[str, Run], file: str) -> str:
    """The command that asks a run again. In capitals: what a file of answers does not name."""
    if all(run.probe.name == JUDGED for run in runs.values()):
        return _judge_command(runs, file)
    source = next(iter(runs.values())).source
    asked = dict.fromkeys(run.source.suite for run in runs.values() if not run.probe.from_file)
    suites = [suite for suite in asked if suite != QUESTIONS]
    if QUESTIONS in asked and not suites:  # they are about the people of the suite that is asked by default
        collection = source.model.partition("/")[0]
        suites = [collection if collection in SUITES else "reflect"]
    words = ["ggss", "probe"]
    words += ["--endpoint", source.endpoint, "--model", source.model] if source.endpoint else [source.model]
    for suite in suites:
        words += ["--suite", suite]
        if suite in SUITES and "images" in signature(SUITES.get(suite)).parameters and not provenance(suite).source:
            words += ["--images", "MANIFEST"]
    words += ["--questions", "QUESTIONS.yaml"] if QUESTIONS in asked else []
    words += ["--tasks", ",".join(runs)]
    if source.steered and not source.endpoint:
        words += ["--steer", "STEERER", "--alpha", f"{source.alpha:g}"]
    return " ".join(map(shlex.quote, [*words, "-o", file]))


def _judge_command(runs: Mapping[str, Run], file: str) -> str:
    """The same of a judge's scores."""
    identity = next(iter(runs.values())).source.identity
    words = ["ggss", "judge", "RUN.jsonl", "--rubric", "RUBRIC.yaml"]
    words += ["--endpoint", identity.get("judge's endpoint", "URL"), "--model", identity.get("judge", "JUDGE")]
    if any(item.expected is not None for run in runs.values() for item in run.items):
        words += ["--labels", "LABELS.csv"]
    return " ".join(map(shlex.quote, [*words, "-o", file]))


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
) -> Material:
    """From runs of one model: the attribute steered, before, after, and the comparison of the two."""
    first = pairs[0][1].source
    steered = next((after.source for _, _, after, _ in pairs if after is not None), None)
    task_pairs = tuple(
        TaskPair("", first.model, attribute, before, after, comparison, statistics)
        for attribute, before, after, comparison in pairs
    )
    method = steered.method if steered else first.method if first.steered else ""
    alpha = steered.alpha if steered else first.alpha if first.steered else None
    (model,) = _keyed([ReportedModel(first.model, method, alpha, task_pairs, discovered=tuple(discovered))])
    return Material(
        cells.model_title(first.model),
        "",
        (model,),
        statistics,
        made_from,
        hashes=_identities((model,)) | ({"steerer": steered.steerer} if steered and steered.steerer else {}),
        versions=dict(first.versions) or library_versions(),
    )


def with_pictures(material: Material, pictures: Iterable[Picture]) -> Material:
    """The same with pictures where the runs have only their digests."""
    by_digest = {picture.digest: picture for picture in pictures}

    def with_images(run: Run) -> Run:
        items = tuple(
            replace(item, images=tuple(by_digest.get(picture.digest, picture) for picture in item.images))
            for item in run.items
        )
        return replace(run, items=items)

    return replace(
        material,
        models=tuple(
            replace(model, pairs=tuple(replace(pair, before=with_images(pair.before)) for pair in model.pairs))
            for model in material.models
        ),
    )


def with_discovery(material: Material, show: bool | None = None) -> Material:
    """The same with the steerers of its method, fitted again as the study fitted them. Loads the study's models."""
    assert material.figures is not None
    plan, models = material.figures.plan, []
    for model in track(material.models, "fitting again", len(material.models), show):
        if not model.method:
            models.append(model)
            continue
        pictures: dict[str, list[Picture]] = {attribute: [] for attribute in plan.attributes}
        for pair in model.pairs:
            if pair.about and pair.after:
                pictures[pair.attribute] += [picture for item in pair.before.items for picture in item.images]
        discovered = fitted_again(plan, model.name, model.method, model.pairs[0].before.source.identity, pictures)
        models.append(replace(model, discovered=tuple(discovered)))
    return replace(material, models=tuple(models))


def _keyed(models: Sequence[ReportedModel]) -> tuple[ReportedModel, ...]:
    """Each task with a name that is unique on the page, of letters, digits and hyphens."""
    return tuple(
        replace(model, pairs=tuple(replace(pair, key=f"t{m}-{n}") for n, pair in enumerate(model.pairs)))
        for m, model in enumerate(models)
    )


def _identities(models: Sequence[ReportedModel]) -> dict[str, str]:
    hashes: dict[str, str] = {}
    for model in models:
        hashes |= {f"{model.title}: {part}": value for part, value in model.pairs[0].before.source.identity.items()}
        hashes |= {f"questions of {pair.task}": pair.before.source.suite_hash for pair in model.pairs}
    return {name: value for name, value in hashes.items() if value}
