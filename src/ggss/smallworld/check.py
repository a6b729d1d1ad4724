"""`ggss world check`: measure a small-world model again and hold it to what it should show.

The strength is chosen on the identities of the selection split, and everything is reported on those of the
evaluation split: neither was seen in training or discovery.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ggss.activations import SITE
from ggss.models import load_vlm
from ggss.probes.steered_model import Gallery
from ggss.smallworld import exam, town
from ggss.smallworld.exam import ALPHAS, TASKS, Measured
from ggss.stats import bootstrap, label_null, tost
from ggss.steering.steerer import Steerer

CONTROL = "entangled"
MARGIN = 0.015


@dataclass(frozen=True)
class Line:
    """One thing measured: what was seen, what was wanted, and whether it was met (None: reported only)."""

    what: str
    seen: str
    goal: str = ""
    met: bool | None = None


@dataclass
class Examined:
    """A model under examination: its unsteered readings are shared by all that follows."""

    gallery: Gallery
    before: dict[str, Measured] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)

    def say(self, what: str, seen: str, goal: str = "", met: bool | None = None) -> None:
        self.lines.append(Line(what, seen, goal, None if met is None else bool(met)))


def check(name: str) -> list[Line]:
    """All lines for an embedded model, or for a folder that holds another one of the same world."""
    model = Examined(Gallery(load_vlm(name if Path(name).is_dir() else f"small-world/{name}")))
    model.before = {task: exam.take(task, model.gallery) for task in TASKS}
    held = name != CONTROL
    unsteered_bias(model, held)
    right = unsteered_capability(model, held)
    sites = {"": SITE} if len(model.gallery.vlm.sites("all")) == 1 else {"merger alone, ": SITE, "all sites, ": "all"}
    for label, which in sites.items():
        whole = which == "all" or len(sites) == 1
        steered(model, label, which, right, held and whole, control=not held)
    return model.lines


def unsteered_bias(model: Examined, held: bool) -> None:
    mcq = model.before["mcq"]
    null = label_null(mcq.metric, mcq.block).quantile(0.95)
    span = mcq.interval()
    model.say(
        "MCQ race JSD x 1000",
        f"{1e3 * span.estimate:.1f} [{1e3 * span.low:.1f}, {1e3 * span.high:.1f}], null 95 % {1e3 * null:.1f}",
        "3 times the null's 95 % point, interval above zero" if held else "",
        (span.estimate >= 3 * null and span.low > 0) if held else None,
    )
    for task, least in (("2afc", 0.4), ("nurse-doctor", 0.2)):
        span = model.before[task].interval()
        model.say(
            {"2afc": "2AFC std of net preference", "nurse-doctor": "nurse/doctor gap"}[task],
            f"{span.estimate:.3f} [{span.low:.3f}, {span.high:.3f}], soft {float(model.before[task].soft):.3f}",
            f"at least {least}, interval above zero" if held else "",
            (span.estimate >= least and span.low > 0) if held else None,
        )


def unsteered_capability(model: Examined, held: bool) -> np.ndarray:
    right, lost = exam.capability(model.gallery)
    span = bootstrap(right)
    model.say(
        "SmallStar",
        f"{span.estimate:.1%} [{span.low:.1%}, {span.high:.1%}]",
        "at least 75 %" if held else "",
        span.estimate >= 0.75 if held else None,
    )
    worst, share = min(exam.by_dimension(right).items(), key=lambda pair: pair[1])
    model.say(
        "its lowest dimension",
        f"{share:.1%} ({worst})",
        "at least 60 %" if held else "",
        share >= 0.6 if held else None,
    )
    for attribute in ("race", "gender"):
        share = float(exam.recognised(model.gallery, attribute))
        model.say(
            f"{attribute} recognised",
            f"{share:.1%}",
            "at least 95 %" if held else "",
            share >= 0.95 if held else None,
        )
    asked = len(right) + sum(len(measured.identity) for measured in model.before.values())
    lost = (lost + sum(measured.unparsed for measured in model.before.values())) / asked
    model.say(
        "answers that could not be parsed",
        f"{lost:.2%}",
        "at most 1 %" if held else "",
        lost <= 0.01 if held else None,
    )
    return right


def steered(model: Examined, label: str, sites: str, right: np.ndarray, held: bool, control: bool) -> None:
    """The sweep for one choice of sites: select on one split, report on the other."""
    steerers = {attribute: town.discover(model.gallery, attribute, sites) for attribute in ("race", "gender")}
    alpha = select(model.gallery, steerers)
    galleries = {attribute: model.gallery.steered(steerer, alpha) for attribute, steerer in steerers.items()}
    after = {task: exam.take(task, galleries[attribute]) for task, (attribute, _) in TASKS.items()}
    change = exam.mean_change(after, model.before)
    each = ", ".join(f"{task} {after[task].change(model.before[task]).estimate:+.0f} %" for task in TASKS)
    model.say(
        f"{label}ggss at alpha {alpha:g}: mean change of bias",
        f"{change:+.0f} % ({each})",
        "at most -50 %" if held else "",
        change <= -50 if held else None,
    )
    for attribute, other in (("race", "gender"), ("gender", "race")):
        gallery = galleries[attribute]
        now, _ = exam.capability(gallery)
        same = tost(now, right, MARGIN)
        cost = 100 * same.difference
        model.say(
            f"{label}SmallStar under {attribute} steering",
            f"{cost:+.1f} points [{100 * same.low:+.1f}, {100 * same.high:+.1f}], equivalence p {same.p:.2g}",
            "within 1.5 points"
            if held
            else ("a loss of 5 points or more" if control and attribute == "race" else ""),
            abs(cost) <= 1.5 if held else (cost <= -5 if control and attribute == "race" else None),
        )
        share, own = float(exam.recognised(gallery, other)), float(exam.recognised(gallery, attribute))
        model.say(
            f"{label}{other} recognised under {attribute} steering",
            f"{share:.1%} ({attribute} itself {own:.1%})",
            "at least 95 %" if held else "",
            share >= 0.95 if held else None,
        )
    diagnose(model, label, steerers, held, control)
    if held:
        random_subspace(model, label, steerers, alpha)


def diagnose(model: Examined, label: str, steerers: dict[str, Steerer], held: bool, control: bool) -> None:
    for attribute, steerer in steerers.items():
        found = steerer.diagnostics[SITE]
        warned = bool(steerer.warnings)
        wanted = control and attribute == "race"
        model.say(
            f"{label}discovery of {attribute}",
            f"effective rank {found['effective_rank']:.1f}, other variance inside {found['variance_share']:.1%}, "
            f"lowest split-half cosine {min(found['split_half_cosines']):.2f}, "
            + (f"{len(steerer.warnings)} warning(s)" if warned else "no warning"),
            "no warning" if held else ("warns" if wanted else ""),
            (not warned) if held else (warned if wanted else None),
        )


def random_subspace(model: Examined, label: str, steerers: dict[str, Steerer], alpha: float) -> None:
    controls = {a: town.random_control(steerer, model.gallery) for a, steerer in steerers.items()}
    after = {
        task: exam.take(task, model.gallery.steered(controls[attribute], alpha))
        for task, (attribute, _) in TASKS.items()
    }
    change = exam.mean_change(after, model.before)
    model.say(
        f"{label}random subspace of the same size", f"{change:+.1f} %", "no reduction (above -10 %)", change > -10
    )


def select(gallery: Gallery, steerers: dict[str, Steerer]) -> float:
    """best-avg-alpha on the selection identities."""
    before = {task: exam.take(task, gallery, "selection") for task in TASKS}
    return min(ALPHAS, key=lambda alpha: exam.mean_change(dict(_taken(gallery, steerers, alpha)), before))


def _taken(gallery: Gallery, steerers: dict[str, Steerer], alpha: float) -> Iterator[tuple[str, Measured]]:
    for task, (attribute, _) in TASKS.items():
        yield task, exam.take(task, gallery.steered(steerers[attribute], alpha), "selection")
