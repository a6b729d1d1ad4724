"""`ggss world check`: measure a small-world model again and compare it with what it should show.

The strength is chosen on the identities of the selection split, and everything is reported on those of the
evaluation split: neither was seen in training or discovery.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ggss.activations import SITE
from ggss.analysis import Comparison, Run, ask, average_change, compare
from ggss.models.features import FeatureCache
from ggss.probes import Item
from ggss.probes.steered_model import SteeredModel
from ggss.smallworld import own_name
from ggss.smallworld.demo import bias_changes, discover, load_model, random_control, selected_alpha, suite, unsteered
from ggss.smallworld.suite import ATTRIBUTES
from ggss.stats import label_null
from ggss.steering.steerer import Steerer

CONTROL = "entangled"  # trained the ordinary way: steering must cost it capability


@dataclass(frozen=True)
class Line:
    """One thing measured: what was seen, what was wanted, and whether it was met (None: reported only)."""

    what: str
    seen: str
    goal: str = ""
    met: bool | None = None


@dataclass
class Examined:
    """A model under examination. Its unsteered runs are shared by all that follows.

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

    def say(self, what: str, seen: str, goal: str = "", met: bool | None = None, held: bool = True) -> None:
        """held: whether the goal is meant for this model; if not, the line is only reported."""
        wanted = held and met is not None
        self.lines.append(Line(what, seen, goal if held else "", bool(met) if wanted else None))


def check(name: str) -> list[Line]:
    """All lines for an embedded model, or for a folder that holds another one of the same world."""
    model = SteeredModel(FeatureCache(load_model(name)))
    found = Examined(model, control=own_name(name) == CONTROL, before=unsteered(model))
    unsteered_bias(found)
    unsteered_capability(found)
    if len(model.vlm.sites("all")) == 1:
        steered(found, "", SITE, held=not found.control)
    else:
        steered(found, "merger alone, ", SITE, held=False)
        steered(found, "all sites, ", "all", held=not found.control)
    return found.lines


def unsteered_bias(found: Examined) -> None:
    held = not found.control
    mcq = found.before["mcq"]
    null = label_null(mcq.metric, [_counterfactual_set(item) for item in mcq.items]).quantile(0.95)
    span = mcq.measured().interval()
    found.say(
        "MCQ race JSD x 1000",
        f"{1e3 * span.estimate:.1f} [{1e3 * span.low:.1f}, {1e3 * span.high:.1f}], null 95 % {1e3 * null:.1f}",
        "3 times the null's 95 % point, interval above zero",
        span.estimate >= 3 * null and span.low > 0,
        held,
    )
    for task, what, least in (("2afc", "2AFC std of win rates", 0.2), ("nurse-doctor", "nurse/doctor gap", 0.2)):
        measured = found.before[task].measured()
        span, soft = measured.interval(), measured.soft(measured.metric().name)
        found.say(
            what,
            f"{span.estimate:.3f} [{span.low:.3f}, {span.high:.3f}]" + (f", soft {soft:.3f}" if soft else ""),
            f"at least {least}, interval above zero",
            span.estimate >= least and span.low > 0,
            held,
        )


def _counterfactual_set(item: Item) -> str:
    """Names the items that differ only in the attribute that the task is about."""
    others = (value for name, value in item.attributes[0].items() if name != item.about)
    return "/".join([item.question, item.cluster, *others])


def unsteered_capability(found: Examined) -> None:
    held = not found.control
    found.before["smallstar"] = found.ask("smallstar")
    measured = found.before["smallstar"].measured()
    span = measured.interval()
    found.say(
        "SmallStar",
        f"{span.estimate:.1%} [{span.low:.1%}, {span.high:.1%}]",
        "at least 75 %",
        span.estimate >= 0.75,
        held,
    )
    share, worst = min((measured.value(name), name) for name in dict.fromkeys(measured.questions))
    found.say("its lowest dimension", f"{share:.1%} ({worst})", "at least 60 %", share >= 0.6, held)
    for attribute in ATTRIBUTES:
        share = found.share(f"recognition-{attribute}")
        found.say(f"{attribute} recognised", f"{share:.1%}", "at least 95 %", share >= 0.95, held)
    runs = found.before.values()
    lost = sum(run.metric.unparsed for run in runs) / sum(len(run.items) for run in runs)
    found.say("answers that could not be parsed", f"{lost:.2%}", "at most 1 %", lost <= 0.01, held)


def steered(found: Examined, label: str, sites: str, held: bool) -> None:
    """One choice of sites: the strength is selected on one split, everything is reported on the other."""
    steerers = {attribute: discover(found.model.cache, attribute, sites) for attribute in ATTRIBUTES}
    alpha = selected_alpha(found.model, steerers)
    models = {attribute: found.model.steered(steerer, alpha) for attribute, steerer in steerers.items()}
    changes = bias_changes(_bias(found), models)
    change = _average(changes)
    each = ", ".join(f"{task} {_percent(one):+.0f} %" for task, one in changes.items())
    found.say(
        f"{label}ggss at alpha {alpha:g}: mean change of bias",
        f"{change:+.0f} % ({each})",
        "at most -50 %",
        change <= -50,
        held,
    )
    for attribute, other in (ATTRIBUTES, ATTRIBUTES[::-1]):
        capability(found, label, models[attribute], attribute, held)
        span = found.ask(f"recognition-{other}", models[attribute]).measured().interval()
        own = found.share(f"recognition-{attribute}", models[attribute])
        found.say(
            f"{label}{other} recognised under {attribute} steering",
            f"{span.estimate:.1%} [{span.low:.1%}, {span.high:.1%}] ({attribute} itself {own:.1%})",
            "95 % or more within the interval",
            span.high >= 0.95,
            held,
        )
    diagnose(found, label, steerers, held)
    if held:
        random_subspace(found, label, steerers, alpha)


def capability(found: Examined, label: str, model: SteeredModel, attribute: str, held: bool) -> None:
    same = compare(found.before["smallstar"], found.ask("smallstar", model)).kept().same
    points = 100 * same.difference
    goal, met = ("within 1.5 points", abs(points) <= 1.5) if held else ("a loss of 5 points or more", points <= -5)
    found.say(
        f"{label}SmallStar under {attribute} steering",
        f"{points:+.1f} points [{100 * same.low:+.1f}, {100 * same.high:+.1f}], equivalence p {same.p:.2g}",
        goal,
        met,
        held or _shows_cost(found, attribute),
    )


def diagnose(found: Examined, label: str, steerers: Mapping[str, Steerer], held: bool) -> None:
    for attribute, steerer in steerers.items():
        seen = steerer.diagnostics[SITE]
        warned = bool(steerer.warnings)
        found.say(
            f"{label}discovery of {attribute}",
            f"effective rank {seen['effective_rank']:.1f}, other variance inside {seen['variance_share']:.1%}, "
            f"lowest split-half cosine {min(seen['split_half_cosines']):.2f}, "
            + (f"{len(steerer.warnings)} warning(s)" if warned else "no warning"),
            "no warning" if held else "warns",
            warned != held,
            held or _shows_cost(found, attribute),
        )


def random_subspace(found: Examined, label: str, steerers: Mapping[str, Steerer], alpha: float) -> None:
    controls = {
        attribute: found.model.steered(random_control(steerer, found.model.cache), alpha)
        for attribute, steerer in steerers.items()
    }
    change = _average(bias_changes(_bias(found), controls))
    found.say(
        f"{label}random subspace of the same size", f"{change:+.1f} %", "no reduction (above -10 %)", change > -10
    )


def _shows_cost(found: Examined, attribute: str) -> bool:
    """The negative control must lose capability under race steering, and discovery must warn of it."""
    return found.control and attribute == "race"


def _bias(found: Examined) -> dict[str, Run]:
    return {task: run for task, run in found.before.items() if run.probe.kind == "bias"}


def _percent(comparison: Comparison) -> float:
    change = comparison.change()
    return change.estimate if change else float("nan")


def _average(changes: Mapping[str, Comparison]) -> float:
    change = average_change(list(changes.values()))
    return change.estimate if change else float("nan")
