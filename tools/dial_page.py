"""docs/dial.md and docs/dial.png from the rows that tools/dial.py measured."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

Rows = Mapping[str, Mapping[str, Any]]
ORDINARY, UNSTEERED = "ordinary", "none"
TASKS = {"mcq": "MCQ", "2afc": "2AFC"}

HEAD = """# The dial of entanglement

Written by `make dial`; do not edit. In the four disentangled models of the small world nearly every method removes
nearly all bias at no cost, so they cannot say which one to prefer. The models of the dial are of one class
(llava-vicuna) and differ in one number. At separation 1, which is `small-world/llava-vicuna` itself, race and gender
have directions of their own. Below it everything else that a picture shows is turned into these directions by a fixed
linear map, until at separation 0 half of the other variance lies inside them; then the text model learns to read such
tokens (`src/ggss/smallworld/training_dial.py`). What is planted is therefore known exactly.

Separation 0 is *not* ordinary training. That is `small-world/entangled`, beside the dial: there the overlap came by
itself, and its tower never learned gender: a probe of all its tokens reads it badly, too
(`ggss discover small-world/entangled --images small-world --attribute gender --keep-tokens -o DIR`). In its training
the two variants of a person that a step shows are always of one gender. On the dial, all that carries race still lies
in one subspace, the same at every token, and the map can be inverted, so that a removal that is not orthogonal can in
principle be free of cost.

Race steering at alpha 1 at the published site, evaluation identities, 95 % intervals over identities (questions for
SmallStar). One training seed a model."""

CAUTION = """2AFC is the published one, over pairs answered alike in both orders. Where few are, the spread of their
win rates rests on a handful of pairs and can be anything: an estimate near or above the unsteered one with an
interval down to -100 % does not show that the bias is still there."""

PICTURE = """![Bias left and capability kept against the separation, a line a method](dial.png)

Bias left is what remains of the unsteered bias; SmallStar is the change in points. The points at the left are
`small-world/entangled`."""

CORRELATIONS = """## Which diagnostic tells the outcome

Spearman's rank correlation over all rows above (a model and a method each) of what discovery measures with what came
out: the change of bias (lower is better) and of SmallStar (higher is better). Diagnostics that only methods with a
subspace have are over fewer rows. Rows share models and methods, so the p-values are too small; and none of this was
seen on models of photographs."""


def page(rows: Rows, dial: Sequence[float], methods: Sequence[str]) -> str:
    """dial: the separations that belong to the dial, besides 1. What is missing of these and the methods is said."""
    parts = [
        HEAD,
        _models(rows),
        _missing(rows, dial, methods),
        PICTURE,
        "## Results",
        _results(rows),
        CAUTION,
        CORRELATIONS,
        _correlations(rows),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _order(world: str) -> float:
    return -1.0 if world == ORDINARY else float(world)


def _models(rows: Rows) -> str:
    """What the models can do before steering, from their cards."""
    cards = {row["world"]: row["card"] for row in rows.values() if "card" in row}
    names = ("smallstar", "smallmme", "race", "gender")
    head = ["separation", *names, "steps of answering", "minutes"]
    lines = [head, ["---"] * len(head)]
    for world in sorted(cards, key=_order):
        card = cards[world]
        lines.append([world, *(card[name] for name in names), card["answering"], card["minutes"]])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _missing(rows: Rows, dial: Sequence[float], methods: Sequence[str]) -> str:
    lines = []
    for world in (ORDINARY, *(f"{one:g}" for one in sorted({*dial, 1.0}))):
        absent = [f"`{method}`" for method in methods if f"{world} {method}" not in rows]
        if absent:
            lines.append(f"- {world}: {'everything' if len(absent) == len(methods) else ', '.join(absent)}")
    if not lines:
        return ""
    return "Not measured yet; `make dial` goes on with it:\n\n" + "\n".join(lines)


def _results(rows: Rows) -> str:
    lines = [
        "| separation | method | MCQ | 2AFC | SmallStar | race named | all-token probe | pooled probe | moved |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in sorted(rows.values(), key=lambda row: _order(row["world"])):
        head = f"| {row['world']} | `{row['method']}` | "
        if row["method"] == UNSTEERED:
            value = {task: span[0] for task, span in row["values"].items()}
            cells = [f"{1000 * value['mcq']:.0f} (JSD x 1000)", f"{value['2afc']:.3f} (std)"]
            cells += [f"{value['smallstar']:.1%}", "", "", "", ""]
        else:
            seen = row["diagnostics"]
            cells = [_span(row["changes"][task], " %", 0) for task in TASKS]
            cells += [_span(row["capability"], "", 1), f"{row['race named']:.0%}"]
            cells += [f"{seen[name]:.2f}" for name in ("all-token probe after", "pooled probe after", "displacement")]
        lines.append(head + " | ".join(cells) + " |")
    return "\n".join(lines)


def _span(values: Sequence[float] | None, unit: str, digits: int) -> str:
    if values is None:
        return "-"
    estimate, low, high = (f"{value:+.{digits}f}" for value in values)
    return f"{estimate}{unit} [{low}, {high}]"


def _correlations(rows: Rows) -> str:
    steered = [row for row in rows.values() if "diagnostics" in row]
    outcomes = [[row["changes"][task] and row["changes"][task][0] for row in steered] for task in TASKS]
    outcomes.append([row["capability"][0] for row in steered])
    head = ["diagnostic", "rows", *(f"with {name} left" for name in TASKS.values()), "with the change of SmallStar"]
    lines = ["| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head))]
    for name in steered[0]["diagnostics"] if steered else ():
        known = [k for k, row in enumerate(steered) if row["diagnostics"][name] is not None]
        values = [steered[k]["diagnostics"][name] for k in known]
        cells = [_rank(values, [outcome[k] for k in known]) for outcome in outcomes]
        lines.append("| " + " | ".join([name, str(len(known)), *cells]) + " |")
    return "\n".join(lines)


def _rank(values: Sequence[float], outcomes: Sequence[float | None]) -> str:
    if None in outcomes or len(values) < 4 or len(set(values)) < 2 or len(set(outcomes)) < 2:
        return "-"
    found = spearmanr(values, outcomes)
    return f"{found.statistic:+.2f} (p {found.pvalue:.2g})"


def picture(rows: Rows, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(12, 4.2))
    methods = [name for name in dict.fromkeys(row["method"] for row in rows.values()) if name != UNSTEERED]
    heads = ("MCQ: bias left, %", "2AFC: bias left, %", "SmallStar: change, points")
    for k, method in enumerate(methods):
        shift = 0.012 * (k - len(methods) / 2)  # so that intervals do not hide one another
        own = sorted((row for row in rows.values() if row["method"] == method), key=lambda row: _order(row["world"]))
        for axis, name in zip(axes, (*TASKS, "capability"), strict=True):
            spans = [row["capability"] if name == "capability" else row["changes"][name] for row in own]
            drawn = [(row["world"], span) for row, span in zip(own, spans, strict=True) if span]
            for control in (False, True):
                some = [(world, span) for world, span in drawn if (world == ORDINARY) == control]
                if not some:
                    continue
                at = [(-0.25 if control else float(world)) + shift for world, _ in some]
                values = np.array([span for _, span in some]) + (0 if name == "capability" else 100)
                errors = np.clip([values[:, 0] - values[:, 1], values[:, 2] - values[:, 0]], 0, 1e4)
                axis.errorbar(
                    at,
                    values[:, 0],
                    errors,
                    color=f"C{k}",
                    marker="os^Dv<>*"[k % 8],
                    linestyle="" if control else "-",
                    capsize=2,
                    label=None if control else method,
                )
    for axis, head in zip(axes, heads, strict=True):
        axis.set_title(head, fontsize=11)
        axis.set_xticks([-0.25, 0, 0.25, 0.5, 0.75, 1], ["ordinary", "0", ".25", ".5", ".75", "1"])
        axis.set_xlabel("separation")
        axis.axhline(0, color="grey", linewidth=0.7)
        axis.axvline(-0.125, color="grey", linewidth=0.7, linestyle=":")
    for axis in axes[:2]:
        axis.set_ylim(-5, 140)
    axes[2].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
