"""`ggss world check`: measure a small-world model again and compare it with what it should show.

The strength is chosen on the identities of the selection split, and everything is reported on those of the evaluation
split: neither was used in training or discovery.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ggss.activations import SITE
from ggss.analysis import Comparison, Run, ask, average_change, compare
from ggss.models.features import FeatureCache
from ggss.probes import Item
from ggss.probes.steered_model import SteeredModel
from ggss.smallworld import short_name
from ggss.smallworld.demo import bias_changes, discover, load_model, random_control, selected_alpha, suite, unsteered
from ggss.smallworld.suite import ATTRIBUTES
from ggss.stats import label_null
from ggss.steering.steerer import Steerer

CONTROL = "entangled"  # trained the ordinary way: steering must cost it capability


@dataclass(frozen=True)
class Line:
    """A measurement: what was measured, its value, its goal, and whether that was met (None: reported only)."""

    what: str
    seen: str
    goal: str = ""
    met: bool | None = None


@dataclass
class WorldCheck:
    """A model that is checked, its unsteered runs, and the lines so far.

    control: whether it is the negative control, which has other goals.
    """

    model: SteeredModel
    control: bool
    before: dict[str, Run] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)

    def ask(self, task: str, model: SteeredModel | None = None) -> Run:
        return ask(model or self.model, suite(), task)

    def share(self, task: str, model: SteeredModel | None = None) -> float:
        """The share of right answers."""
        return self.ask(task, model).measured().value()

    def report(self, what: str, value: str, goal: str = "", met: bool | None = None, applies: bool = True) -> None:
        """Add a line. applies: whether the goal is for this model; if not, the line is only reported."""
        judged = applies and met is not None
        self.lines.append(Line(what, value, goal if applies else "", bool(met) if judged else None))


def check(name: str) -> list[Line]:
    """All lines for an embedded model, or for a folder with another model of the small world."""
    model = SteeredModel(FeatureCache(load_model(name)))
    world = WorldCheck(model, control=short_name(name) == CONTROL, before=unsteered(model))
    unsteered_bias(world)
    unsteered_capability(world)
    if len(model.vlm.sites("all")) == 1:
        steered(world, "", SITE, applies=not world.control)
    else:
        steered(world, "merger alone, ", SITE, applies=False)
        steered(world, "all sites, ", "all", applies=not world.control)
    return world.lines


def unsteered_bias(world: WorldCheck) -> None:
    applies = not world.control
    mcq = world.before["mcq"]
    null = label_null(mcq.metric, [_counterfactual_set(item) for item in mcq.items]).quantile(0.95)
    span = mcq.measured().interval()
    world.report(
        "MCQ race JSD x 1000",
        f"{1e3 * span.estimate:.1f} [{1e3 * span.low:.1f}, {1e3 * span.high:.1f}], null 95 % {1e3 * null:.1f}",
        "3 times the null's 95 % point, interval above zero",
        span.estimate >= 3 * null and span.low > 0,
        applies,
    )
    for task, what, least in (("2afc", "2AFC std of win rates", 0.2), ("nurse-doctor", "nurse/doctor gap", 0.2)):
        measured = world.before[task].measured()
        span, soft = measured.interval(), measured.soft(measured.metric().name)
        world.report(
            what,
            f"{span.estimate:.3f} [{span.low:.3f}, {span.high:.3f}]" + (f", soft {soft:.3f}" if soft else ""),
            f"at least {least}, interval above zero",
            span.estimate >= least and span.low > 0,
            applies,
        )


def _counterfactual_set(item: Item) -> str:
    """The counterfactual set of an item: items in it differ only in the attribute that the task is about."""
    others = (value for name, value in item.attributes[0].items() if name != item.about)
    return "/".join([item.question, item.cluster, *others])


def unsteered_capability(world: WorldCheck) -> None:
    applies = not world.control
    world.before["smallstar"] = world.ask("smallstar")
    measured = world.before["smallstar"].measured()
    span = measured.interval()
    world.report(
        "SmallStar",
        f"{span.estimate:.1%} [{span.low:.1%}, {span.high:.1%}]",
        "at least 75 %",
        span.estimate >= 0.75,
        applies,
    )
    share, worst = min((measured.value(name), name) for name in dict.fromkeys(measured.questions))
    world.report("its lowest dimension", f"{share:.1%} ({worst})", "at least 60 %", share >= 0.6, applies)
    for attribute in ATTRIBUTES:
        share = world.share(f"recognition-{attribute}")
        world.report(f"{attribute} recognised", f"{share:.1%}", "at least 95 %", share >= 0.95, applies)
    runs = world.before.values()
    unparsed = sum(run.metric.unparsed for run in runs) / sum(len(run.items) for run in runs)
    world.report("answers that could not be parsed", f"{unparsed:.2%}", "at most 1 %", unparsed <= 0.01, applies)


def steered(world: WorldCheck, label: str, sites: str, applies: bool) -> None:
    """Report the model steered at these sites, at a strength selected on another split. label: begins the lines."""
    steerers = {attribute: discover(world.model.cache, attribute, sites) for attribute in ATTRIBUTES}
    alpha = selected_alpha(world.model, steerers)
    models = {attribute: world.model.steered(steerer, alpha) for attribute, steerer in steerers.items()}
    changes = bias_changes(_bias(world), models)
    change = _average(changes)
    by_task = ", ".join(f"{task} {_percent(comparison):+.0f} %" for task, comparison in changes.items())
    world.report(
        f"{label}ggss at alpha {alpha:g}: mean change of bias",
        f"{change:+.0f} % ({by_task})",
        "at most -50 %",
        change <= -50,
        applies,
    )
    for attribute, other in (ATTRIBUTES, ATTRIBUTES[::-1]):
        capability(world, label, models[attribute], attribute, applies)
        span = world.ask(f"recognition-{other}", models[attribute]).measured().interval()
        share = world.share(f"recognition-{attribute}", models[attribute])
        world.report(
            f"{label}{other} recognised under {attribute} steering",
            f"{span.estimate:.1%} [{span.low:.1%}, {span.high:.1%}] ({attribute} itself {share:.1%})",
            "95 % or more within the interval",
            span.high >= 0.95,
            applies,
        )
    diagnose(world, label, steerers, applies)
    if applies:
        random_subspace(world, label, steerers, alpha)


def capability(world: WorldCheck, label: str, model: SteeredModel, attribute: str, applies: bool) -> None:
    equivalence = compare(world.before["smallstar"], world.ask("smallstar", model)).accuracy().same
    points, low, high = 100 * equivalence.difference, 100 * equivalence.low, 100 * equivalence.high
    goal, met = ("within 1.5 points", abs(points) <= 1.5) if applies else ("a loss of 5 points or more", points <= -5)
    world.report(
        f"{label}SmallStar under {attribute} steering",
        f"{points:+.1f} points [{low:+.1f}, {high:+.1f}], equivalence p {equivalence.p:.2g}",
        goal,
        met,
        applies or _shows_cost(world, attribute),
    )


def diagnose(world: WorldCheck, label: str, steerers: Mapping[str, Steerer], applies: bool) -> None:
    for attribute, steerer in steerers.items():
        diagnostics = steerer.diagnostics[SITE]
        warned = bool(steerer.warnings)
        world.report(
            f"{label}discovery of {attribute}",
            f"effective rank {diagnostics['effective_rank']:.1f}, "
            f"other variance inside {diagnostics['variance_share']:.1%}, "
            f"lowest split-half cosine {min(diagnostics['split_half_cosines']):.2f}, "
            + (f"{len(steerer.warnings)} warning(s)" if warned else "no warning"),
            "no warning" if applies else "warns",
            warned != applies,
            applies or _shows_cost(world, attribute),
        )


def random_subspace(world: WorldCheck, label: str, steerers: Mapping[str, Steerer], alpha: float) -> None:
    controls = {
        attribute: world.model.steered(random_control(steerer, world.model.cache), alpha)
        for attribute, steerer in steerers.items()
    }
    change = _average(bias_changes(_bias(world), controls))
    world.report(
        f"{label}random subspace of the same size", f"{change:+.1f} %", "no reduction (above -10 %)", change > -10
    )


def _shows_cost(world: WorldCheck, attribute: str) -> bool:
    """The negative control must lose capability under race steering, and discovery must warn of it."""
    return world.control and attribute == "race"


def _bias(world: WorldCheck) -> dict[str, Run]:
    return {task: run for task, run in world.before.items() if run.probe.kind == "bias"}


def _percent(comparison: Comparison) -> float:
    change = comparison.change()
    return change.estimate if change else float("nan")


def _average(changes: Mapping[str, Comparison]) -> float:
    change = average_change(list(changes.values()))
    return change.estimate if change else float("nan")
