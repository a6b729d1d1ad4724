"""`make rivals`: docs/rivals.md from a folder of studies/rivals.yaml, `python -m experiments.tools.rivals FOLDER`.

No plan can fit `dso`, `ala` and `biopro`: `rivals_live` has fitted them on the same discovery pictures, and asked the
same questions. Where it has not been run, the page has no rows for them.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from experiments.tools.rivals_live import BIOPRO, LIVE, NEUTRAL, QUESTIONS, LiveRows
from ggss.analysis.comparison import Comparison, compare
from ggss.methods import registry
from ggss.study.results import Results
from ggss_rivals import ala
from ggss_rivals.biopro import BioProOptions
from ggss_rivals.dso import DsoOptions

PAGE = Path(__file__).parents[2] / "docs" / "rivals.md"
DIAL = Path(__file__).parents[2] / "results" / "dial.json"
BIAS, CAPABILITY, ATTRIBUTE, ALPHA = ("mcq", "2afc"), "smallstar", "race", 1.0
DAMAGE = 1.5  # points of SmallStar, the margin of equivalence
NET = f"{ATTRIBUTE}_net_preference_std"


OTHER = "gender"  # which race steering should leave as it is


def depends(found: Comparison | None, attribute: str) -> str:
    """The share of cases whose answer depends on an attribute, in percent with its interval."""
    flip = found.flip(attribute) if found else None
    if flip is None:
        return "-"
    after = flip.after
    return f"{100 * after.estimate:.0f} % [{100 * after.low:.0f}, {100 * after.high:.0f}]"


def changed(found: Comparison | None, metric: str = "") -> str:
    change = found.change(metric) if found else None
    return "-" if change is None else f"{change.estimate:+.0f} % [{change.low:+.0f}, {change.high:+.0f}]"


def kept(found: Comparison | None) -> str:
    """Points of capability; "same" where the change is shown to be within the margin."""
    if found is None:
        return "-"
    change = found.accuracy().change
    low, high = 100 * change.low, 100 * change.high
    return f"{100 * change.difference:+.1f} [{low:+.1f}, {high:+.1f}]" + (
        ", same" if found.accuracy().same.equivalent else ""
    )


def table(results: Results, model: str, live: LiveRows) -> list[str]:
    """A row for each method. Without steering: what the answers depend on, nothing else can change."""
    columns = (
        "method",
        "race, MCQ",
        "race, 2AFC",
        "gender, MCQ",
        "MCQ",
        "2AFC",
        "2AFC, net preference",
        "SmallStar, points",
    )
    lines = [f"| {' | '.join(columns)} |", "| --- " * len(columns) + "|"]
    unsteered = {
        task: compare(run, run, results.statistics) for task in BIAS if (run := results.run(model, "none", task))
    }
    lines.append(f"| none | {' | '.join(people(unsteered))} | | | | |")
    for label in results.methods[1:]:
        bias = {task: results.everything(model, label, task, ALPHA) for task in BIAS}
        capability = results.comparison(model, label, CAPABILITY, ALPHA, ATTRIBUTE)
        lines.append(row(label, bias, capability))
    for label in measured(live, model):
        found = {
            task: compare(before, after, results.statistics)
            for task, after in live.runs(model, label).items()
            if (before := results.run(model, "none", task))
        }
        lines.append(row(label, found, found[CAPABILITY]))
    return lines


def measured(live: LiveRows, model: str) -> list[str]:
    """Those that no plan can fit whose answers are there."""
    return [label for label in LIVE if live.finished(model, label)]


def people(bias: Mapping[str, Comparison | None]) -> list[str]:
    """Whose answer depends on race, by task, and on the other attribute."""
    return [*(depends(bias.get(task), ATTRIBUTE) for task in BIAS), depends(bias.get("mcq"), OTHER)]


def row(label: str, bias: Mapping[str, Comparison | None], capability: Comparison | None) -> str:
    published = [changed(bias.get(task)) for task in BIAS]
    cells = [*people(bias), *published, changed(bias.get("2afc"), NET), kept(capability)]
    return f"| {label} | {' | '.join(cells)} |"


def at_equal_damage(results: Results, model: str, label: str) -> str:
    """The least share of answers that depend on race, of the strengths that cost at most `DAMAGE` points."""
    found = []
    for alpha in results.plan.alphas:
        capability = results.comparison(model, label, CAPABILITY, alpha, ATTRIBUTE)
        bias = [results.everything(model, label, task, alpha) for task in BIAS]
        flips = [flip.after.estimate for one in bias if one and (flip := one.flip(ATTRIBUTE))]
        if capability is not None and len(flips) == len(BIAS):
            found.append((sum(flips) / len(flips), alpha, 100 * capability.accuracy().change.difference))
    allowed = [one for one in found if one[2] >= -DAMAGE]
    if not found:
        return "-"
    if not allowed:
        _, alpha, cost = max(found, key=lambda one: one[2])
        return f"none: {cost:+.1f} at {alpha:g}"
    share, alpha, cost = min(allowed, key=lambda one: one[0])
    return f"{share:.0%} at {alpha:g} ({cost:+.1f})"


def on_the_dial(label: str) -> str:
    """The mean change of bias and the mean cost over the models of the dial, at strength 1."""
    kept = json.loads(DIAL.read_text(encoding="utf-8")).values()
    rows = [row for row in kept if row["method"] == label and row["world"] != "ordinary" and "changes" in row]
    if not rows or label == "none":
        return "-"
    change = sum(row["changes"]["mcq"][0] + row["changes"]["net"][0] for row in rows) / (2 * len(rows))
    return f"{change:+.0f} % ({sum(row['capability'][0] for row in rows) / len(rows):+.1f})"


def all_worlds(results: Results) -> str:
    """One table: a method a row, a world a column."""
    models = [model.name for model in results.plan.models]
    head = ["method", *(name.removeprefix("small-world/") for name in models), "dial"]
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    for label in results.methods[1:]:
        cells = [label, *(at_equal_damage(results, model, label) for model in models), on_the_dial(label)]
        lines.append(f"| {' | '.join(cells)} |")
    strengths = ", ".join(f"{alpha:g}" for alpha in results.plan.alphas)
    return f"""## All worlds, at equal damage

How much is left where steering costs no more than {DAMAGE:g} points of SmallStar: the share of answers that depend on
race (mean of MCQ and 2AFC), at the best of the strengths {strengths} with at most this cost; in brackets the cost.
The strength is chosen on the same answers, for every method alike, so all are a little too good. *none*: every
strength costs more, and the cheapest is shown. The last column is the mean over the nine models of
[the dial](dial.md), at strength 1: change of bias (MCQ and net preference) and cost.
[A model of real parts](real-parts.md) shows no bias that could be removed, so no method is judged by it.

{chr(10).join(lines)}
"""


def page(results: Results, live: LiveRows) -> str:
    plan = results.plan
    usual = DsoOptions.model_construct()
    passes, bound = usual.passes, usual.kl
    quantile = BioProOptions.model_construct().quantile
    parts = [
        f"""# Rivals from other papers, in the small world

Written by `make rivals`; do not edit. Race steering at all sites of a model; in the tables of single models at
strength 1, no strength is chosen. First **the share of people whose answer depends on race**, after steering: of
MCQ, cases (a person and a question) that are not answered alike in all versions of the person; of 2AFC, pairs of
versions of which the same one is named in both orders ([measures.md](measures.md); Wilson's interval, from the
jackknife over identities). Beside it is the share of MCQ cases whose answer depends on gender: more than
without steering is spill-over. Then the published metrics: change of the bias in percent with 95 % intervals
(percentile bootstrap over identities, often wide of the truth: [validity.md](validity.md)), and of SmallStar's
accuracy in points; *same* where the change is shown to be within the margin of {100 * results.statistics.margin:g}
points (TOST). About {plan.limit} items a task, on identities that no method was fitted on; seed
{plan.statistics.seed}. [methods.md](methods.md) says what each paper does and what is done otherwise here. The
published 2AFC metric uses only the pairs whose two orders name the same picture, so few answers decide it where
steering works ([results.md](results.md)); beside it is the net preference, over all answers.

`auto` chooses a method and its k on held-out people of the discovery set, without asking the model
(`ggss discover --method auto`). `dso` and `ala` are learned from the answers of the live model to about {QUESTIONS}
questions of each bias task about the discovery pictures. On the same tasks they are measured here, about other people
and another occupation. All other methods have seen no answer. The budget of `dso` is {passes} passes over
the questions, and the bound on the KL divergence of its answers from the unsteered ones is {bound:g}.
Where the KL ends far below the bound, the multiplier rose too far and the budget was too small to come back: such
rows show less than the method can do. It also steers image tokens only, not the language model's norms as its paper
does.

`ala` (adaptive logit adjustment) is a baseline outside activations. The model answers as it is, and then the
probabilities of the options are corrected, by a classifier of the picture and by what the answers to the same
question had in common with each value. So it knows questions, not an attribute: answers to all others stay as they
are. It never saw those of SmallStar, so it cannot change them, which says nothing about its cost elsewhere. Its paper
corrects words while text is written; [methods.md](methods.md#ala-which-is-no-method) says what is left out.

`biopro` debiases only pictures in which the attribute cannot be seen. The rule of its paper that decides could not be
read. Here a picture is neutral if its part in the subspace is no larger than that of {quantile:.0%} of {NEUTRAL}
scenes without people. **In the bias tasks race can be seen in every picture, so it should change nothing there.**
That is its purpose, and no failure. What it is made for, bias about people who cannot be made out, is not measured
here. SmallStar also has scenes, which it projects. Where scenes have as much along race as portraits do, portraits
count as neutral, too, and it is a plain projection; below each table is how many do.
"""
    ]
    parts.append(all_worlds(results))
    for model in plan.models:
        before = [results.comparison(model.name, "none", task) for task in (*BIAS, CAPABILITY)]
        values = [one.before.value() if one else float("nan") for one in before]
        control = ", the control" if model.control else ""
        parts.append(
            f"## {model.name.removeprefix('small-world/')}{control}\n\nUnsteered: MCQ {1e3 * values[0]:.0f} x 10^-3, "
            f"2AFC {values[1]:.2f}, SmallStar {values[2]:.1%}.\n"
        )
        parts.append("\n".join(table(results, model.name, live)) + "\n")
        parts += [live.learned(model.name, label) + "\n" for label in measured(live, model.name)]
        missing = [f"`{label}`" for label in LIVE if label not in measured(live, model.name)]
        parts += [f"Not measured for this model yet: {', '.join(missing)}.\n"] if missing else []
    return "\n".join(parts) + "\n" + notes(results)


def notes(results: Results) -> str:
    names = {results.plan.method(label).name for label in results.methods[1:]} - {"ggss", "svd-pooled-euclidean"}
    names |= {"dso", BIOPRO}
    cited = [f"- `{name}`: {registry.get(name).reference}." for name in registry.names() if name in names]
    cited.append(f"- `{ala.LABEL}`: {ala.REFERENCE}.")
    return "## References\n\n" + "\n".join(cited) + "\n"


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    found = Results.load(folder)
    PAGE.write_text(page(found, LiveRows(found.plan, folder)), encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))
