"""`make pace`: PACE, its ablations and its peers on the five embedded small-world models; writes docs/pace.md.

Race steering at alpha 1, fitted on the town without CEOs, asked about CEOs that nothing was fitted on. Answers are
kept in `pace-out`, one file for each steering: stop it whenever you like, and the same command goes on. `--page`
writes the page from the answers that are there.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ggss.activations import SITE, Activations
from ggss.activations.collection import collect
from ggss.analysis import Comparison, Run, ask, average_change, compare
from ggss.analysis.run import Source
from ggss.data.counterfactuals import Counterfactuals
from ggss.models.feature_cache import FeatureCache
from ggss.probes.steered_model import SteeredModel
from ggss.smallworld.bias_questions import portraits
from ggss.smallworld.check import CONTROL
from ggss.smallworld.discovery import HELD_OUT, load_model
from ggss.smallworld.scenes import PLANS, draw_scene
from ggss.smallworld.sweeps import suite
from ggss.smallworld.town import town
from ggss.steering.fitting import fit
from ggss.steering.steerer import Steerer
from ggss.steering.tuning import AUTO, tune

ROOT = Path(__file__).parent.parent
PAGE, OUT = ROOT / "docs" / "pace.md", ROOT / "pace-out"
MODELS = (CONTROL, "llava-vicuna", "llava-mistral", "pixtral", "qwen3-vl")
BIAS, CAPABILITY, NAMED = ("mcq", "2afc"), "smallstar", "recognition-race"
TASKS = (*BIAS, CAPABILITY, NAMED)
NEUTRAL, SEEN_SCENES = 200, 48  # scenes for discovery, and others on which displacement is measured


@dataclass(frozen=True)
class Steering:
    """A line of a table. identities: how many of the 40 are used; None: all."""

    label: str
    method: str = "pace"
    options: Mapping[str, Any] = field(default_factory=dict)
    neutral: bool = False
    identities: int | None = None
    alpha: float = 1.0


PEERS = [Steering(name, name) for name in ("ggss", "ggss-contrast", "leace-spherical")]
MAIN = [*PEERS, Steering("pace"), Steering("pace, neutral pictures", neutral=True), Steering("auto", AUTO)]
ABLATED = [
    Steering(name, name)
    for name in ("pace-no-whitening", "pace-pooled", "pace-orthogonal", "pace-gated", "pace-within-parts")
]
PATHS = [
    Steering(f"{name}, alpha {alpha:g}", name, alpha=alpha) for alpha in (0.5, 1.5) for name in ("pace", "pace-slerp")
]
DIRECTIONS = [Steering(f"k = {k}", options={"k": k}) for k in (1, 2, 4, 8, 16)]
CLUSTERS = [Steering(f"{n} clusters", options={"parts": n}) for n in (4, 8, 16, 32)]
SHRUNK = [Steering(f"shrinkage {s:g}", options={"shrinkage": s}) for s in (0.001, 0.1, 0.3)]
IDENTITIES = [Steering(f"{n} identities", identities=n) for n in (4, 8, 20)]
TABLES = {
    "Peers and PACE": (MAIN, MODELS),
    "Ablations": (ABLATED, (CONTROL, "llava-vicuna")),
    "How many directions": (DIRECTIONS, (CONTROL,)),
    "How many identities": (IDENTITIES, (CONTROL,)),
    "Content clusters instead of positions": (CLUSTERS, (CONTROL,)),
    "Shrinkage": (SHRUNK, (CONTROL, "llava-vicuna")),
    "The arc, at other strengths": (PATHS, (CONTROL,)),
}


def scenes(count: int, split: str, seed: int) -> Counterfactuals:
    """Pictures without people; those of the split 'training' share no layout with SmallStar's."""
    rng, plans = np.random.default_rng(seed), tuple(PLANS)
    return Counterfactuals(tuple(draw_scene(rng, split, plans[i % len(plans)]) for i in range(count)))


@dataclass
class Asked:
    """One model, with what all of its steerings share."""

    name: str

    def __post_init__(self) -> None:
        self.plain = SteeredModel(FeatureCache(load_model(self.name)))
        vlm, features = self.plain.vlm, self.plain.cache
        faces = town().chosen(exclude={"occupation": HELD_OUT["race"]})
        self.acts = collect(vlm, faces, "all", features=features, keep_tokens=True)
        neutral = scenes(NEUTRAL, "training", 7)
        self.neutral = collect(vlm, neutral, "all", features=features, keep_tokens=True)
        others = Counterfactuals(tuple(portraits("mcq", "evaluation")))
        self.seen = {
            "moved": collect(vlm, others, features=features, keep_tokens=True),
            "neutral moved": collect(vlm, scenes(SEEN_SCENES, "evaluation", 8), features=features, keep_tokens=True),
        }

    def steerer(self, steering: Steering) -> Steerer:
        acts = self.acts if steering.identities is None else first_identities(self.acts, steering.identities)
        if steering.method == AUTO:
            return tune(acts, "race", neutral=self.neutral if steering.neutral else None)
        neutral = {"neutral": self.neutral} if steering.neutral else {}
        return fit(steering.method, acts, attribute="race", **neutral, **steering.options)

    def facts(self, steerer: Steerer, alpha: float) -> dict[str, Any]:
        """What is told of a steering besides its answers."""
        found = steerer.diagnostics.get(SITE, {})
        told = {name: found[name] for name in ("k", "shrinkage", "notes") if name in found}
        for name, acts in self.seen.items():
            rows = torch.cat([tokens.float() for tokens in acts.tokens])
            steered = steerer.steer(rows, torch.zeros(len(rows), dtype=torch.long), alpha, site=SITE)
            told[name] = float(((steered - rows).norm(dim=1) / rows.norm(dim=1)).mean())
        return told


def first_identities(acts: Activations, count: int) -> Activations:
    """Every n-th identity, so that all occupations are among few."""
    sources = list(dict.fromkeys(acts.contexts))
    chosen = set(sources[:: len(sources) // count][:count])
    return acts.of([i for i, context in enumerate(acts.contexts) if context in chosen])


def place(model: str, label: str) -> Path:
    return OUT / f"{model} {label}.json".replace("=", "").replace(",", "").replace(" ", "-")


def ask_all(names: Sequence[str]) -> None:
    """Whatever has no answer yet, the main table of all models first."""
    for model, lines in [*((name, MAIN) for name in names), *((name, lines_of(name)) for name in names)]:
        wanted = [Steering("none"), *lines]
        missing = [one for one in wanted if not place(model, one.label).exists()]
        if not missing:
            continue
        asked = Asked(model)
        for steering in missing:
            steerer = None if steering.label == "none" else asked.steerer(steering)
            alpha = steering.alpha if steering.method != AUTO or steerer is None else steerer.strength()
            under = asked.plain if steerer is None else asked.plain.steered(steerer, alpha)
            known = None if steerer is None or steering.method != AUTO else same_steering(asked, steerer, alpha)
            answers = known or {
                task: [run.answers, run.probabilities]
                for task, run in ((task, ask(under, suite(), task)) for task in TASKS)
            }
            kept = {
                "steering": asdict(replace(steering, alpha=alpha)),
                "facts": {} if steerer is None else asked.facts(steerer, alpha),
                "answers": answers,
            }
            path = place(model, steering.label)
            path.parent.mkdir(exist_ok=True)
            path.with_suffix(".part").write_text(json.dumps(kept))
            path.with_suffix(".part").rename(path)
            print(model, steering.label, flush=True)


def same_steering(asked: Asked, steerer: Steerer, alpha: float) -> Mapping[str, Any] | None:
    """The answers of another line of the main table that steers in the very same way; None if there is none."""
    for other in MAIN:
        path = place(asked.name, other.label)
        alike = other.method == steerer.method and other.alpha == alpha and path.exists()
        if alike and asked.steerer(other).content_hash == steerer.content_hash:
            return json.loads(path.read_text())["answers"]
    return None


def lines_of(model: str) -> Iterator[Steering]:
    for lines, models in TABLES.values():
        if model in models:
            yield from lines


@dataclass(frozen=True)
class Line:
    """A steering's runs beside the unsteered ones."""

    steering: Steering
    facts: Mapping[str, Any]
    compared: Mapping[str, Comparison]

    @property
    def mean(self) -> float:
        found = average_change([self.compared[task] for task in BIAS])
        return float("nan") if found is None else found.estimate

    @property
    def cost(self) -> Any:
        return self.compared[CAPABILITY].kept().same

    @property
    def named(self) -> float:
        return self.compared[NAMED].after.value()

    def cells(self) -> list[str]:
        changes = [self.compared[task].change() for task in BIAS]
        said = [f"{c.estimate:+.0f} % [{c.low:+.0f}, {c.high:+.0f}]" if c else "-" for c in changes]
        same = self.cost
        capability = f"{100 * same.difference:+.1f} [{100 * same.low:+.1f}, {100 * same.high:+.1f}]"
        equal = f"{same.p:.2g}"
        of_fit = [f"{self.facts[name]:g}" if name in self.facts else "" for name in ("k", "shrinkage")]
        moved = [f"{self.facts[name]:.3f}" for name in ("moved", "neutral moved")]
        return [
            self.steering.label,
            *of_fit,
            *said,
            f"{self.mean:+.0f} %",
            capability,
            equal,
            f"{self.named:.2f}",
            *moved,
        ]


HEAD = (
    *("steering", "k", "shrinkage", "MCQ", "2AFC", "mean", "SmallStar, points", "TOST p"),
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
            tuple(answers),
            tuple(map(tuple, chances)),
            Source(model, suite="small-world", suite_hash=suite().hash(task), **steered),
        )
        for task, (answers, chances) in kept["answers"].items()
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
            cost = 100 * found.cost.difference
            if model == CONTROL:
                wanted = {
                    f"mean change at most -85 %: {found.mean:+.0f} %": found.mean <= -85,
                    f"SmallStar equivalent within 1.5 points: {cost:+.1f}, TOST p {found.cost.p:.2g}": found.cost.p
                    < 0.05,
                    f"race named at most .45: {found.named:.2f}": found.named <= 0.45,
                }
            else:
                lost = 100 * peer.cost.difference
                wanted = {
                    f"mean change within 5 points of ggss: {found.mean:+.0f} %, ggss {peer.mean:+.0f} %": found.mean
                    <= peer.mean + 5,
                    f"SmallStar at least as good as ggss: {cost:+.1f}, ggss {lost:+.1f}": cost >= lost,
                }
            moved, others = found.facts["moved"], found.facts["neutral moved"]
            wanted[f"neutral tokens moved no further: {others:.3f}, portraits {moved:.3f}"] = others <= moved
            said += [
                f"| {model} | {label} | {what} | {'met' if met else '**not met**'} |" for what, met in wanted.items()
            ]
    return ["| model | steering | goal and what was seen | |", "| --- | --- | --- | --- |", *said]


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

Written by `make pace`; do not edit. `pace` (its formulas: [methods.md](methods.md)) beside `ggss`, `ggss-contrast`
and `leace-spherical` on the five embedded small-world models. Race is steered at all sites, at alpha 1 unless told
otherwise. Steerers are fitted on 40 identities of five occupations, and asked about CEOs among other identities,
who are in no fit. k, shrinkage and parts are chosen on the discovery pictures alone. "Neutral pictures" are
{NEUTRAL} painted scenes without people whose layouts are not among SmallStar's.

One thing was not chosen on the discovery pictures alone. That the covariance is taken around mu, and not around each
part's mean, has a reason, but it was settled when ten prototypes had been tried on the evaluation answers of
`entangled`. So the lines of that model are optimistic; those of the other four are not touched by it.

MCQ and 2AFC: change of bias in percent with 95 % intervals over identities; mean: of the two. SmallStar: change in
points with the 90 % interval of the equivalence test, and its p for a margin of 1.5 points (below .05: shown
equivalent). Race named: the share of right answers when the model is asked for it, .20 by guessing. Moved: mean of
|h' - h| / |h| over tokens of evaluation portraits, and of {SEEN_SCENES} scenes that no fit has seen. One seed. "Not
asked": stopped before it was its turn."""


def page() -> str:
    parts = [INTRODUCTION, "## Goals", "\n".join(goals())]
    for title, (lines, models) in TABLES.items():
        parts.append(f"## {title}")
        for model in models:
            parts += [f"### {model}", "\n".join(table(model, lines))]
    parts += ["## Choosing without a sweep", REGRET, "\n".join(regrets()), "## What was chosen, and why"]
    for model in MODELS:
        found = line(model, "pace")
        parts += [f"{model}:", "\n".join(f"- {note}" for note in found.facts["notes"])] if found else []
    return "\n\n".join(parts) + "\n"


REGRET = """`ggss.tune` (`ggss discover --method auto`) chooses on the discovery pictures. The oracle saw every
answer of this page, and takes the lowest mean change among steerings that lose at most 1.5 points of SmallStar, or no
more than auto's choice."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS), help="ask only these, comma separated")
    parser.add_argument("--page", action="store_true", help="ask nothing: write the page from what is there")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if not chosen.page:
        ask_all(chosen.models.split(","))
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
