"""docs/pace.md: the page that `make pace` writes from the answers in `pace-out`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from experiments.tools.pace import (
    BIAS,
    CAPABILITY,
    MAIN,
    MODELS,
    NAMED,
    NEUTRAL,
    PAGE,
    SEEN_SCENES,
    TABLES,
    Steering,
    lines_of,
    place,
)
from experiments.tools.pace_limits import HEAD as HEADINGS
from experiments.tools.pace_limits import measure
from ggss.analysis import Comparison, Run, average_change, compare
from ggss.analysis.comparison import sign_flip
from ggss.analysis.run import Source
from ggss.models.reading import Answer
from ggss.smallworld.demo import CONTROL, suite
from ggss.stats import holm

NET = "race_net_preference_std"
WORSE = -0.015  # of SmallStar: the library's margin of equivalence


@dataclass(frozen=True)
class Line:
    """A steering's runs beside the unsteered ones."""

    steering: Steering
    facts: Mapping[str, Any]
    compared: Mapping[str, Comparison]

    @cached_property
    def mean(self) -> float:
        found = average_change([self.compared[task] for task in BIAS])
        return float("nan") if found is None else found.estimate

    @cached_property
    def net_mean(self) -> float:
        """The mean of the changes of MCQ and of 2AFC's net preference."""
        change = self.compared["mcq"].change()
        return float("nan") if change is None else (change.estimate + self.net) / 2

    @cached_property
    def cost(self) -> Any:
        return self.compared[CAPABILITY].accuracy().same

    @cached_property
    def named(self) -> float:
        return self.compared[NAMED].after.value()

    @cached_property
    def net(self) -> float:
        """The change of 2AFC's net preference over all answers."""
        found = self.compared["2afc"].change(NET)
        return float("nan") if found is None else found.estimate

    def soft(self, task: str) -> float:
        """The change of a task's metric of the options' probabilities."""
        one = self.compared[task]
        name = NET if task == "2afc" else one.before.metric().name
        before, after = one.before.soft(name), one.after.soft(name)
        return float("nan") if not before or after is None else 100 * (after / before - 1)

    def depends(self, task: str) -> str:
        """The share of answers that depend on race."""
        flip = self.compared[task].flip("race")
        return "-" if flip is None else f"{flip.after.estimate:.0%}"

    def cells(self) -> list[str]:
        changes = [self.compared["mcq"].change(), self.compared["2afc"].change(), self.compared["2afc"].change(NET)]
        said = [f"{c.estimate:+.0f} % [{c.low:+.0f}, {c.high:+.0f}]" if c else "-" for c in changes]
        said += [f"{self.soft(task):+.0f} %" for task in BIAS]
        same = self.cost
        capability = f"{100 * same.difference:+.1f} [{100 * same.low:+.1f}, {100 * same.high:+.1f}]"
        equal = f"{same.p:.2g}"
        of_fit = [f"{self.facts[name]:g}" if name in self.facts else "" for name in ("k", "shrinkage")]
        moved = [f"{self.facts[name]:.3f}" for name in ("moved", "neutral moved")]
        return [
            self.steering.label,
            *of_fit,
            *(self.depends(task) for task in BIAS),
            *said,
            f"{self.mean:+.0f} %",
            capability,
            equal,
            f"{self.named:.2f}",
            *moved,
        ]


HEAD = (
    *(
        "steering",
        "k",
        "shrinkage",
        "depends, MCQ",
        "depends, 2AFC",
        "MCQ",
        "2AFC",
        "2AFC net",
        "soft MCQ",
        "soft 2AFC",
        "mean",
    ),
    *("SmallStar, points", "TOST p"),
    *("race named", "moved", "neutral moved"),
)


@cache
def runs_of(model: str, label: str) -> tuple[Mapping[str, Any], Mapping[str, Run]] | None:
    """The facts and the runs that were kept, or None."""
    path = place(model, label)
    if not path.exists():
        return None
    kept = json.loads(path.read_text())
    steered = {} if label == "none" else {"method": label, "attribute": "race", "alpha": kept["steering"]["alpha"]}
    runs = {
        task: Run(
            task,
            suite().items(task),
            tuple(Answer(text, tuple(row)) for text, row in zip(texts, probabilities, strict=True)),
            Source(model, suite="small-world", suite_hash=suite().hash(task), **steered),
        )
        for task, (texts, probabilities) in kept["answers"].items()
    }
    return kept["facts"], runs


@cache
def line(model: str, label: str) -> Line | None:
    before, after = runs_of(model, "none"), runs_of(model, label)
    if before is None or after is None:
        return None
    steering = next(one for one in lines_of(model) if one.label == label)
    return Line(steering, after[0], {task: compare(run, after[1][task]) for task, run in before[1].items()})


def table(model: str, steerings: Sequence[Steering]) -> list[str]:
    rows = [list(HEAD), ["---"] * len(HEAD)]
    for steering in steerings:
        found = line(model, steering.label)
        rows.append(found.cells() if found else [steering.label, *["not asked"] * (len(HEAD) - 1)])
    return ["| " + " | ".join(row) + " |" for row in rows]


def goals() -> list[str]:
    """The goals that PACE was made for, each met or not."""
    said = []
    for label in ("pace", "pace, neutral pictures"):
        for model in MODELS:
            found, peer = line(model, label), line(model, "ggss")
            if found is None or peer is None:
                said.append(f"| {model} | {label} | not asked | | |")
                continue
            cost, net = 100 * found.cost.difference, found.net_mean
            if model == CONTROL:
                wanted = {
                    f"mean change at most -85 %: {found.mean:+.0f} %": found.mean <= -85,
                    f"the same with net preference for 2AFC: {net:+.0f} %": net <= -85,
                    f"SmallStar equivalent within 1.5 points: {cost:+.1f}, TOST p {found.cost.p:.2g}": found.cost.p
                    < 0.05,
                    f"race named at most .45: {found.named:.2f}": found.named <= 0.45,
                }
            else:
                same = between(model, "ggss", label)
                paired = f"{100 * same.difference:+.1f} [{100 * same.low:+.1f}, {100 * same.high:+.1f}]"
                wanted = {
                    f"mean change within 5 points of ggss: {found.mean:+.0f} %, ggss {peer.mean:+.0f} %": found.mean
                    <= peer.mean + 5,
                    f"the same with net preference for 2AFC: {net:+.0f} %, ggss {peer.net_mean:+.0f} %": net
                    <= peer.net_mean + 5,
                    f"SmallStar no worse than ggss, paired: {paired} points": same.low > WORSE,
                }
            moved, others = found.facts["moved"], found.facts["neutral moved"]
            wanted[f"neutral tokens moved no further: {others:.3f}, portraits {moved:.3f}"] = others <= moved
            said += [
                f"| {model} | {label} | {what} | {'met' if met else '**not met**'} |" for what, met in wanted.items()
            ]
    return ["| model | steering | goal and what was seen | |", "| --- | --- | --- | --- |", *said]


def between(model: str, one: str, other: str) -> Any:
    """The paired difference of SmallStar from one steering to another, with its 90 % interval."""
    before, after = runs_of(model, one), runs_of(model, other)
    assert before is not None
    assert after is not None
    return compare(before[1][CAPABILITY], after[1][CAPABILITY], unlike=True).accuracy().same


def significance() -> list[str]:
    """`pace` against every other steering of the main table: sign-flip over identities, Holm over the table."""
    found = []
    for model in MODELS:
        ours = line(model, "pace")
        for steering in (one for one in MAIN if one.label != "pace"):
            other = line(model, steering.label)
            if ours is None or other is None:
                continue
            mine, theirs = ([one.compared[task] for task in BIAS] for one in (ours, other))
            p, same = sign_flip(mine, theirs), between(model, steering.label, "pace")
            found.append((model, steering.label, ours.mean - other.mean, p, same))
    adjusted = iter(holm([p for *_, p, _ in found if p is not None]).tolist() if found else [])
    said = ["| model | pace against | mean change, points | p | Holm | SmallStar, points |"]
    said.append("| --- | --- | --- | --- | --- | --- |")
    for model, label, difference, p, same in found:
        tested = "- | -" if p is None else f"{p:.2g} | {next(adjusted):.2g}"
        paired = f"{100 * same.difference:+.1f} [{100 * same.low:+.1f}, {100 * same.high:+.1f}]"
        said.append(f"| {model} | {label} | {difference:+.0f} | {tested} | {paired} |")
    return said


def regrets() -> list[str]:
    """What `auto` costs against the steering that did best of all that were asked at no loss of capability."""
    said = ["| model | auto chose | its mean change | best of all asked | its mean change | regret, points |"]
    said.append("| --- | --- | --- | --- | --- | --- |")
    for model in MODELS:
        found = line(model, "auto")
        asked = [one for one in (line(model, steering.label) for steering in lines_of(model)) if one]
        if found is None:
            said.append(f"| {model} | not asked | | | | |")
            continue
        bound = min(found.cost.difference, -0.015)  # as much capability as auto keeps, or a loss within the margin
        best = min((one for one in asked if one.cost.difference >= bound), key=lambda one: one.mean)
        chose = next(iter(found.facts.get("notes", [])), "").split(": ")[-1].split(". ")[0]
        numbers = f"{found.mean:+.0f} % | {best.steering.label} | {best.mean:+.0f} % | {found.mean - best.mean:.0f}"
        said.append(f"| {model} | {chose} | {numbers} |")
    return said


INTRODUCTION = f"""# PACE, measured

Written by `make pace`; do not edit. `pace` and `pace-kernel` (formulas: [methods.md](methods.md)) beside `ggss`,
`ggss-contrast`, `leace-spherical`, `svd-pooled-euclidean` and `bend-token-euclidean` on the five embedded small-world
models. Race is steered at all sites, at alpha 1 unless told otherwise. Steerers are fitted on 40 identities of five
occupations, and asked about CEOs among other identities, who are in no fit. k, shrinkage and parts are chosen on
discovery pictures alone. "Neutral pictures" are {NEUTRAL} painted scenes without people, whose layouts are not
among SmallStar's.

One thing was not chosen on the discovery pictures alone: that the covariance is taken around mu, and not around each
part's mean. There is a reason for it, but it was settled after ten prototypes had been tried on the evaluation
answers of `entangled`. So the lines of that model are optimistic; those of the other four are not touched by it. That
norms are not restored was settled on held-out people of the discovery set, and looked at on the selection
identities, before these answers were asked. So was the order of the two steps of `pace-kernel`, and that there is a
second step; how smooth it is, it chooses on held-out people of the discovery set.

Depends: the share of answers that depend on race, of MCQ and of 2AFC ([measures.md](measures.md)).
MCQ and 2AFC: change of bias in percent with 95 % intervals (percentile bootstrap over identities, often wide of
the truth: [validity.md](validity.md)); mean: of the two. The published 2AFC metric counts only pairs whose two orders
agree. Where steering works these are few, and they decide it; 2AFC net is the net preference over all
answers, and the soft versions are of the options' probabilities (2AFC: of net preference).
The first trial of `pace`, after which the goals were set, had reported net preference. SmallStar: change
in points with the 90 % interval of the equivalence test, and its p for a margin of 1.5 points (below .05: shown
equivalent). Race named: the share of right answers when the model is asked for it, .20 by guessing. Moved: mean of
|h' - h| / |h| over tokens of evaluation portraits, and of {SEEN_SCENES} scenes that no fit has seen. One seed. "Not
asked": stopped before it was its turn."""


def page() -> str:
    parts = [INTRODUCTION, "## Goals", "\n".join(goals())]
    for title, (lines, models) in TABLES.items():
        parts.append(f"## {title}")
        for model in models:
            parts += [f"### {model}", "\n".join(table(model, lines))]
    parts += ["## What else could be removed", LIMITS]
    for model in LIMITED:
        rows = [f"| {name} | " + " | ".join(f"{n:.2f}" for n in own) + " |" for name, own in measure(model).items()]
        head = [f"| {' | '.join(('steering', *HEADINGS))} |", "| --- " * (len(HEADINGS) + 1) + "|"]
        parts += [f"### {model}", "\n".join([*head, *rows])]
    parts += ["## PACE against the others", SIGNIFICANCE, "\n".join(significance())]
    parts += ["## Choosing without a sweep", REGRET, "\n".join(regrets()), "## What was chosen, and why"]
    for model in MODELS:
        found = line(model, "pace")
        parts += [f"{model}:", "\n".join(f"- {note}" for note in found.facts["notes"])] if found else []
    return "\n\n".join(parts) + "\n"


SIGNIFICANCE = """Sign-flip test over identities of MCQ and 2AFC together, and Holm's correction over the table.
Negative points: `pace` leaves less bias. SmallStar: `pace` minus the other, paired, with the 90 % interval."""
LIMITS = """Judged on held-out people of the discovery set (`experiments/tools/pace_limits.py`); no model is
asked. Parts left and
people left: what remains of the mean contrast of each part, which `pace` removes, and of each person's own contrast.
Read: a linear probe of all tokens, fitted after steering, names the value of people whom it has not seen; known: of
people whom it has seen as the other gender. Chance is .20. 2AFC compares two versions of one person, so what is left
in each person is what it is answered from."""
LIMITED = (CONTROL, "llava-vicuna")
REGRET = """`ggss discover --method auto` chooses on the discovery pictures. The oracle saw every
answer of this page, and takes the lowest mean change among steerings that lose at most 1.5 points of SmallStar, or no
more than auto's choice."""


if __name__ == "__main__":
    PAGE.write_text(page())
