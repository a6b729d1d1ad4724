"""A plan: one YAML file with the models, methods, steering and questions of a study.

    plugins: [my_methods]                             # modules or files that register methods, probes, suites, ...
    suite: {name: reflect, images: faces.csv}         # the questions: a suite and its arguments
    questions: my-questions.yaml                      # tasks of your own, about the suite's people: gap-hire
    benchmarks: {mmstar: data/MMStar.tsv}             # tasks that are files; null: in the folder GGSS_DATA;
                                                      # or {path: data/MMStar.tsv, suffix: " Only the letter."}
    discovery: faces.csv                              # the counterfactual set: a manifest, or a registered set's name
    held_out: {identity: ["7", "8"]}                  # people who are asked about, and never fitted on
    models: [org/model]                               # or {name: org/model, dtype: bfloat16, device_map: auto}
    methods: [none, ggss, {name: ggss, label: ggss sharp, options: {kappa: 10}}]
    alphas: [0.5, 1.0]
    unpaired: [gender, age_group]                     # if discovery has no versions of a person: what is matched by
    ordered: [age]                                    # attributes that are numbers
    steering:                                         # by attribute: what it is discovered on, the bias measured
      race: {discover_on: [cook, lawyer], tasks: [mcq]}
      gender: {discover_on: [cook, lawyer], tasks: [nurse-doctor]}
      race x gender: {discover_on: [cook, lawyer], tasks: [mcq, nurse-doctor], methods: [ggss]}  # one steerer of both
    measures:                                         # what else is measured under every steering
      - {tasks: [mmstar], at: best}                   # at each method's best-avg-alpha, or at all

A method may be limited to `models`, `tasks` or `alphas` of the plan, and may discover with a `prompt`. Paths are
relative to the plan's file, and its folder is searched for plug-ins. No steering may be fitted on pictures that it is
scored on, unless the plan says `overlap: warn`.

`Plan` is the file, `PlanItems` the items of its suite and its benchmark files, `DiscoverySet` the pictures that its
methods are fitted on.
"""

import re
from collections.abc import Iterable, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from ggss import errors, methods, probes
from ggss.activations.collect import Pooling
from ggss.analysis.run import BOTH, Statistics, steered_attributes
from ggss.data import counterfactuals
from ggss.data.counterfactuals import PICTURE_SETS, Counterfactuals
from ggss.data.pictures import Picture, labels
from ggss.errors import InputError, nearest, no_such, problems
from ggss.files import read_yaml
from ggss.methods import registry
from ggss.methods.registry import UNSTEERED
from ggss.models.sites import MLP2
from ggss.plugins import beside, load_plugins
from ggss.probes import Item, suites
from ggss.probes.base import CAREFUL, Parser
from ggss.probes.questions import questions_suite
from ggss.probes.suites import Provenance, Suite
from ggss.probes.wording import read_wording


def _texts(value: Any) -> Any:
    """Labels of pictures are text; YAML reads some as whole numbers."""
    if not isinstance(value, list | tuple):
        return (str(value),) if isinstance(value, str | int) else value
    return tuple(str(label) if isinstance(label, int) else label for label in value)


PATHS = ("images", "wording")  # the arguments of a suite that are paths, relative to the plan's file
COLUMN = "occupation"  # of discovery pictures: steering is discovered on some of its values

Values = Annotated[tuple[str, ...], Field(min_length=1), BeforeValidator(_texts)]
Seed = Annotated[int, Field(ge=errors.SEED.least, le=errors.SEED.most)]
Names = Annotated[tuple[str, ...], Field(min_length=1)]
Alphas = Annotated[tuple[Annotated[float, Field(gt=0, le=errors.ALPHA.most)], ...], Field(min_length=1)]


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


def _placed(value: Any) -> Any:
    return {"path": value} if value is None or isinstance(value, str) else value


class Piece(BaseModel):
    """A part of a plan. Names and types are checked, and unknown names are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class SuitePlan(Piece):
    """A suite's name, and the other arguments of `suites.load`: `split`, `images`, files of benchmarks."""

    model_config = ConfigDict(extra="allow")

    name: str

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class BenchmarkPlan(Piece):
    """A task that is a file (None: in the folder GGSS_DATA). suffix: what is added to each of its questions."""

    path: str | None = None
    suffix: str = ""


class ModelPlan(Piece):
    """The arguments of `load_vlm`. control: a model on which steering should fail; it has a separate table."""

    name: str
    dtype: str | None = None
    device_map: str | None = None
    trust_remote_code: bool = False
    attention: str | None = None
    control: bool = False


class MethodPlan(Piece):
    """A method with its options. label: its name in the study, unique in the plan; the method's name by default.

    models, tasks, alphas: what it is limited to; None is all of the plan's. prompt: discovery runs the whole model on
    each picture with this prompt; None: the vision path alone.
    """

    name: str
    label: str = ""
    options: dict[str, Any] = {}
    sites: str = MLP2
    prompt: Annotated[str, Field(min_length=1)] | None = None
    pooling: Pooling | None = Field(None, description="how tokens are pooled for its fit; None: as the plan says")
    models: Names | None = None
    tasks: Names | None = None
    alphas: Alphas | None = None

    @model_validator(mode="after")
    def _known(self) -> "MethodPlan":
        checked = registry.checked_options(registry.get(self.name), self.options)
        object.__setattr__(self, "label", self.label or self.name)
        object.__setattr__(self, "options", checked.model_dump())
        if self.prompt and not self.steers:
            raise ValueError(f"{self.label!r} has a discovery prompt, but it discovers nothing: leave the prompt out")
        return self

    @property
    def steers(self) -> bool:
        """False for the baselines that do not change activations: they have no strength and no attribute."""
        return registry.get(self.name).steers


class SteeringPlan(Piece):
    """An attribute's discovery occupations (not those that its tasks are scored on) and its bias tasks.

    Without occupations it is discovered on all discovery pictures. methods, alphas: what the steering of several
    attributes by one steerer, such as `race x gender`, is limited to; None is all of the plan's. It is asked only its
    `tasks`, which may be any of the plan's.
    """

    discover_on: tuple[str, ...] = ()
    tasks: Names
    methods: Names | None = None
    alphas: Alphas | None = None


class MeasurePlan(Piece):
    """Tasks measured under every steering, at each method's best-avg-alpha or at all strengths."""

    tasks: Names
    at: Literal["best", "all"] = "best"
    methods: Names | None = None


class StatisticsPlan(Piece):
    resamples: int = Field(default=10_000, ge=100)
    permutations: int = Field(default=10_000, ge=100)
    seed: Seed = 0

    @property
    def settings(self) -> Statistics:
        return Statistics(self.resamples, self.permutations, self.seed)


class About(Piece):
    """What a report says besides the answers: who ran the study (a person, an organisation), and where its pictures
    come from (their source, licence, consent and scope)."""

    run_by: str = ""
    data: Provenance = Provenance()

    @classmethod
    def read_about(cls, path: str | Path) -> "About":
        """From a file with `run_by` and `data`. InputError lists every problem in it."""
        contents = read_yaml(Path(path), "the file")
        if not isinstance(contents, dict):
            raise InputError(f"{str(path)!r} holds {type(contents).__name__}, not a mapping of `run_by` and `data`")
        try:
            return About.model_validate(contents)
        except ValidationError as error:
            messages = [_field_message(details, About.model_fields) for details in error.errors()]
            raise problems(f"{str(path)!r} is not a file of `run_by` and `data`", messages) from None


class Plan(About):
    """A study's plan, from `Plan.load(path)` or `Plan.of(mapping)`. InputError of both lists every problem in it."""

    name: str
    description: str = ""
    plugins: tuple[str, ...] = ()
    suite: Annotated[SuitePlan, BeforeValidator(_named)]
    wording: str | None = Field(None, description="a file with the questions and how families of models are asked")
    questions: str | None = Field(None, description="a file with questions of your own, about the suite's people")
    benchmarks: dict[str, Annotated[BenchmarkPlan, BeforeValidator(_placed)]] = {}
    discovery: str
    unpaired: tuple[str, ...] | None = Field(
        None, description="discovery pictures have no versions of a person: the columns that they are matched by"
    )
    ordered: tuple[str, ...] = Field((), description="attributes that are numbers, such as an age in years")
    held_out: dict[str, Values] = Field({}, description="by column, people who are asked about and never fitted on")
    models: Annotated[tuple[Annotated[ModelPlan, BeforeValidator(_named)], ...], Field(min_length=1)]
    methods: Annotated[tuple[Annotated[MethodPlan, BeforeValidator(_named)], ...], Field(min_length=1)]
    alphas: Alphas
    steering: Annotated[dict[str, SteeringPlan], Field(min_length=1)]
    measures: tuple[MeasurePlan, ...] = ()
    overlap: Literal["warn", "refuse"] = Field("refuse", description="pictures that are both fitted and scored")
    max_side: int | None = Field(
        None, ge=errors.SIDE.least, le=errors.SIDE.most, description="pixels of a picture's longer side, at most"
    )
    pooling: Pooling = Field("kept", description="the mean of kept tokens, or that of the authors' code: `release`")
    limit: int | None = Field(None, ge=1, description="about this many items of each task, whole clusters of them")
    batch_size: Annotated[int, Field(ge=1, le=errors.BATCH.most)] | Literal["auto"] = errors.AUTO_BATCH
    threads: int | None = Field(
        None, ge=1, le=errors.THREADS.most, description="CPU threads of a worker; tiny models are fastest with one"
    )
    seed: Seed = 42
    statistics: StatisticsPlan = StatisticsPlan()
    parser: Parser = Field(CAREFUL, description="how answers are read: `release` is the rule of the authors' code")

    @model_validator(mode="before")
    @classmethod
    def _plugged_in(cls, data: Any) -> Any:
        """Import the plug-ins first: the rest of the plan may use what they register."""
        plugins = data.get("plugins", ()) if isinstance(data, dict) else ()
        if isinstance(plugins, list | tuple) and all(isinstance(name, str) for name in plugins):
            load_plugins(plugins)
        return data

    @classmethod
    def load(cls, path: str | Path) -> "Plan":
        """A plan without contradictions from a file."""
        return _consistent(cls.read(path), str(path))

    @classmethod
    def read(cls, path: str | Path) -> "Plan":
        """A plan from a file. Contradictions are not checked here but by `checking.CheckedPlan`, with all else."""
        path = Path(path)
        data = read_yaml(path, "the plan")
        if not isinstance(data, dict):
            raise InputError(f"{str(path)!r} is not a plan: it holds {type(data).__name__}, not a mapping of names")
        if isinstance(plugins := data.get("plugins"), list):
            data["plugins"] = [beside(path.parent, name) if isinstance(name, str) else name for name in plugins]
        return cls._of({"name": path.stem} | data, str(path))._at(path.parent.resolve())

    @classmethod
    def of(cls, data: Mapping[str, Any], where: str = "the plan") -> "Plan":
        """A plan without contradictions from what its file says."""
        return _consistent(cls._of(data, where), where)

    @classmethod
    def _of(cls, data: Mapping[str, Any], where: str) -> "Plan":
        usable, messages = _usable_plugins(data.get("plugins", ()))
        try:
            plan = cls.model_validate({**data, "plugins": usable})
        except ValidationError as error:
            messages += [_field_message(details) for details in error.errors()]
            raise problems(f"{where} is not a plan", messages) from None
        if messages:
            raise problems(f"{where} cannot be used", messages)
        return plan

    @property
    def tasks(self) -> tuple[str, ...]:
        """All tasks, those of bias first."""
        measured = (task for measure in self.measures for task in measure.tasks)
        return tuple(dict.fromkeys([*self.bias_tasks, *measured]))

    @property
    def questions_together(self) -> int:
        """The largest batch. With "auto", a model is asked no more at a time than its device has room for."""
        return errors.AUTO_BATCH if self.batch_size == errors.AUTO else self.batch_size

    @property
    def attributes(self) -> tuple[str, ...]:
        """The attributes that are steered one at a time."""
        return tuple(name for name in self.steering if BOTH not in name)

    @property
    def joint(self) -> tuple[str, ...]:
        """The steerings of several attributes at once, such as `race x gender`."""
        return tuple(name for name in self.steering if BOTH in name)

    @property
    def bias_tasks(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(task for name in self.attributes for task in self.steering[name].tasks))

    def method(self, label: str) -> MethodPlan:
        for method in self.methods:
            if method.label == label:
                return method
        raise no_such(f"the plan has no method {label!r}", label, (method.label for method in self.methods))

    def model(self, name: str) -> ModelPlan:
        for model in self.models:
            if model.name == name:
                return model
        raise no_such(f"the plan has no model {name!r}", name, (model.name for model in self.models))

    def _at(self, folder: Path) -> "Plan":
        """The plan with absolute paths, so that it can be used from any folder."""

        def placed(value: str) -> str:
            return value if value in PICTURE_SETS else str(folder / Path(value).expanduser())

        paths = {name: placed(value) for name, value in self.suite.options.items() if name in PATHS}
        suite = SuitePlan.model_validate({"name": self.suite.name, **self.suite.options, **paths})
        benchmarks = {
            task: benchmark.model_copy(update={"path": benchmark.path and placed(benchmark.path)})
            for task, benchmark in self.benchmarks.items()
        }
        files = {"suite": suite, "benchmarks": benchmarks, "discovery": placed(self.discovery)}
        files |= {"wording": self.wording and placed(self.wording)}
        files |= {"questions": self.questions and placed(self.questions)}
        return self.model_copy(update=files)


def _consistent(plan: Plan, where: str) -> Plan:
    if messages := contradictions(plan):
        raise problems(f"{where} contradicts itself", messages)
    return plan


def contradictions(plan: Plan) -> list[str]:
    """Contradictions between parts of the plan, a sentence each."""
    models, labels = [m.name for m in plan.models], [m.label for m in plan.methods]
    messages = [f"models: {name!r} is listed more than once: keep one" for name in _repeated(models)]
    messages += [
        f"methods: {name!r} is listed more than once: give one of them a label" for name in _repeated(labels)
    ]
    messages += [f"alphas: {alpha:g} is listed more than once: keep one" for alpha in _repeated(plan.alphas)]
    for task in plan.tasks:
        try:
            probes.get(task)
        except InputError as error:
            messages.append(f"tasks: {error}")
    messages += [
        f"benchmarks: {task!r} is not read from a file" for task in plan.benchmarks if not suites.is_benchmark(task)
    ]
    baseline = [method for method in plan.methods if method.label == method.name == UNSTEERED]
    if not baseline or baseline[0].models or baseline[0].tasks:
        messages.append(f"methods: {UNSTEERED!r}, unlimited, is what every method is compared with: add it")
    ordered = [attribute for attribute in plan.attributes if attribute in plan.ordered]
    messages += [
        str(no_such(f"ordered: {name!r} is not steered", name, plan.attributes))
        for name in plan.ordered
        if name not in plan.attributes
    ]
    for method in plan.methods:
        try:
            registry.check_pairing(registry.get(method.name), plan.unpaired is not None, ordered)
        except InputError as error:
            messages.append(f"methods: {error}")
        if registry.get(method.name).fit_live is not None:
            messages.append(f"methods: {method.name!r} learns from a live model's answers, and a plan cannot fit it")
        if registry.get(method.name).needs_neutral:
            messages.append(f"methods: {method.name!r} needs neutral pictures, and a plan has none")
        limits = (("model", method.models, models), ("task", method.tasks, plan.tasks))
        for what, chosen, known in (*limits, ("alpha", method.alphas, plan.alphas)):
            messages += [
                f"methods: {method.label!r} is limited to {what} {value!r}, which the plan does not have"
                for value in chosen or ()
                if value not in known
            ]
    for measure in plan.measures:
        messages += [
            f"measures: {', '.join(measure.tasks)} for method {label!r}, which the plan does not have"
            for label in measure.methods or ()
            if label not in labels
        ]
        messages += [
            f"measures: {task!r} is a bias task already" for task in measure.tasks if task in plan.bias_tasks
        ]
    for attribute, steering in plan.steering.items():
        repeated = _repeated(steering.discover_on)
        messages += [f"steering: {attribute} lists {name!r} more than once: keep one" for name in repeated]
        messages += _joint_problems(plan, attribute) if attribute in plan.joint else _limits(attribute, steering)
    return messages


def _limits(attribute: str, steering: SteeringPlan) -> list[str]:
    """What only the steering of several attributes may say, and names that look as if they meant several."""
    messages = [
        f"steering: {attribute} may not be limited to {name}: limit the methods themselves"
        for name in ("methods", "alphas")
        if getattr(steering, name) is not None
    ]
    parts = [part.strip() for part in re.split(r"[+,]", attribute)]
    if len(parts) > 1 and all(parts):
        messages.append(f"steering: {attribute!r}: one steerer of several attributes is called {BOTH.join(parts)!r}")
    return messages


def _joint_problems(plan: Plan, name: str) -> list[str]:
    steering, parts = plan.steering[name], steered_attributes(name)
    messages = [
        f"steering: {name} steers {part}, which the plan does not steer alone: add `{part}` under `steering`"
        for part in parts
        if part not in plan.attributes
    ]
    messages += [f"steering: {name} names {part!r} more than once: keep one" for part in _repeated(parts)]
    labels = [method.label for method in plan.methods if method.steers]
    for what, chosen, known in (
        ("method", steering.methods, labels),
        ("alpha", steering.alphas, plan.alphas),
        ("task", steering.tasks, plan.tasks),
    ):
        messages += [
            f"steering: {name} is limited to {what} {value!r}, which the plan does not have"
            + (" or does not steer" if what == "method" else "")
            for value in chosen or ()
            if value not in known
        ]
    return messages


def _usable_plugins(names: Any) -> tuple[Any, list[str]]:
    """The plug-ins that can be imported, and a sentence for each of the others."""
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        return names, []
    usable, messages = [], []
    for name in names:
        try:
            load_plugins([name])
            usable.append(name)
        except InputError as error:
            messages.append(f"plugins: {error}")
    return usable, messages


def _repeated(names: Any) -> list[Any]:
    return sorted({name for name in names if list(names).count(name) > 1})


def _field_message(details: Any, fields: Iterable[str] = ()) -> str:
    """A sentence from one of pydantic's errors. fields: the keys that there are; those of a plan by default."""
    place = ".".join(str(part) for part in details["loc"]) or "plan"
    extra = details["type"] == "extra_forbidden" and len(details["loc"]) == 1
    near = nearest(place, fields or Plan.model_fields) if extra else ""
    return f"{place}: {details['msg'].removeprefix('Value error, ')}{f', {near}' if near else ''}"


class PlanItems:
    """The tasks of a plan. Items come in a fixed order and are made when they are first needed."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._limited: dict[str, tuple[Item, ...]] = {}

    def problems(self) -> list[str]:
        """Why tasks cannot be asked: the suite does not have them, or pictures or files are missing."""
        messages, tasks = [], self.plan.tasks
        try:
            _ = self._suite
            _ = self._questions
        except InputError as error:
            messages.append(f"suite: {error}")
            tasks = [task for task in tasks if task in self.plan.benchmarks]
        for task in tasks:
            try:
                self.items(task)
            except InputError as error:
                messages.append(f"task {task}: {error}")
        return messages

    def items(self, task: str) -> tuple[Item, ...]:
        if task not in self._limited:
            self._limited[task] = self.suite(task).items(task, self.plan.limit)
        return self._limited[task]

    def pictures(self) -> list[Picture]:
        """Every picture that some task shows, once."""
        pictures = (picture for task in self.plan.tasks for item in self.items(task) for picture in item.images)
        return list({picture.digest: picture for picture in pictures}.values())

    def hash(self, task: str) -> str:
        """sha256 of everything the task asks. The plan's limit is no part of it, as it does not change the items."""
        return self.suite(task).hash(task)

    def max_new_tokens(self, task: str) -> int:
        return self.suite(task).max_new_tokens(task)

    def suite(self, task: str) -> Suite:
        """The suite that asks a task."""
        file = self.plan.benchmarks.get(task)
        if file is not None:
            return _benchmark(task, file.path, file.suffix, self.plan.wording, self.plan.max_side)
        return self._questions if self._questions is not None and task in self._questions.tasks else self._suite

    @cached_property
    def _suite(self) -> Suite:
        options: dict[str, Any] = {} if self.plan.wording is None else {"wording": self.plan.wording}
        options |= self.plan.suite.options
        if self.plan.held_out:
            if "images" not in options:
                raise InputError("held_out chooses among the `images` of the suite, and the plan's suite names none")
            options["images"] = Counterfactuals.load(options["images"]).chosen(include=self.plan.held_out)
        return suites.load(self.plan.suite.name, **options).shrunk(self.plan.max_side)

    @cached_property
    def _questions(self) -> Suite | None:
        """The suite of the plan's file of questions, if it has one."""
        if self.plan.questions is None:
            return None
        shapes = read_wording(self.plan.wording or self.plan.suite.options.get("wording")).shapes
        return questions_suite(self.plan.questions, self._suite).shaped(shapes).shrunk(self.plan.max_side)


@cache
def _benchmark(task: str, path: str | None, suffix: str, wording: str | None, max_side: int | None) -> Suite:
    return suites.benchmark(task, path, suffix, wording).shrunk(max_side)


_Source = tuple[str, tuple[str, ...] | None, tuple[str, ...]]  # pictures, what they are matched by, what is ordered


class DiscoverySet:
    """The pictures that a plan's methods are fitted on. tokens: some method needs all tokens."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        # Collected from the start if any method needs them, so that no picture is encoded twice.
        self.tokens = any(methods.get(method.name).needs_tokens for method in plan.methods)

    def problems(self) -> list[str]:
        """Attributes and occupations that the set does not have, and pictures that are missing or incomplete."""
        messages = []
        for attribute, steering in self.plan.steering.items():
            try:
                pictures = self._all(attribute)
            except InputError as error:
                messages.append(f"discovery: {error}")
                continue
            occupations = sorted({labels(picture).get(COLUMN, "") for picture in pictures})
            if occupations == [""] and steering.discover_on:
                messages.append(f"discovery: {self.plan.discovery!r} has no column {COLUMN!r}: add it")
                continue
            unknown = [name for name in steering.discover_on if name not in occupations]
            missing = f"no discovery picture has that {COLUMN}"
            messages += [
                str(no_such(f"steering: {attribute} is discovered on {name!r}, and {missing}", name, occupations))
                for name in unknown
            ]
            names = steered_attributes(attribute)
            constant = [name for name in names if name not in pictures.attributes]
            for name in constant:
                missing = f"steering: no attribute {name!r} varies in the discovery pictures"
                messages.append(str(no_such(missing, name, pictures.attributes)))
            if not constant and not unknown:
                lines = counterfactuals.problems_of(self.of(attribute), names, decode=False)
                messages += [f"discovery: {line}" for line in lines]
        return list(dict.fromkeys(messages))

    def pictures(self) -> list[Picture]:
        """Every discovery picture, once."""
        pictures = (picture for attribute in self.plan.steering for picture in self.of(attribute))
        return list({picture.digest: picture for picture in pictures}.values())

    def of(self, attribute: str) -> Counterfactuals:
        """The discovery pictures of an attribute: those of its occupations."""
        occupations = self.plan.steering[attribute].discover_on
        return _fitted_on(self._source(attribute), self.plan.max_side, occupations, self._held_out)

    def _all(self, attribute: str) -> Counterfactuals:
        return _fitted_on(self._source(attribute), self.plan.max_side, (), self._held_out)

    def _source(self, attribute: str) -> _Source:
        plan, names = self.plan, steered_attributes(attribute)
        matched_by = None if plan.unpaired is None else tuple(name for name in plan.unpaired if name not in names)
        return plan.discovery, matched_by, tuple(name for name in plan.ordered if name in names)

    @property
    def _held_out(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        return tuple(self.plan.held_out.items())


@cache
def _loaded(source: _Source, max_side: int | None) -> Counterfactuals:
    name, matched_by, ordered = source
    unpaired = matched_by is not None
    return Counterfactuals.load(name, context=matched_by, unpaired=unpaired, ordered=ordered).shrunk(max_side)


@cache
def _fitted_on(
    source: _Source,
    max_side: int | None,
    occupations: tuple[str, ...],
    held_out: tuple[tuple[str, tuple[str, ...]], ...],
) -> Counterfactuals:
    """The pictures of some occupations, () is all, without the people who are held out."""
    pictures = _loaded(source, max_side)
    include = {COLUMN: occupations} if occupations else None
    return pictures.chosen(include, dict(held_out)) if include or held_out else pictures
