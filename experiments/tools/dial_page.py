"""docs/dial.md and docs/dial.png from the rows that experiments/tools/dial.py measured."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.tools import diagnostics_table
from ggss.methods.diagnostics import SHARE_LIMIT, TRANSFER_LIMIT

Rows = Mapping[str, Mapping[str, Any]]
ORDINARY, UNSTEERED = "ordinary", "none"
TASKS = {"mcq": "MCQ", "2afc": "2AFC", "net": "2AFC, net preference"}

HEAD = """# The dial of entanglement

Written by `make dial`; do not edit. In the four disentangled models of the small world many methods remove nearly
all bias at little cost, so they cannot say which one to prefer. The models of the dial are of one class
(llava-vicuna) and differ in one number. At separation 1, which is `small-world/llava-vicuna` itself, race and gender
have directions of their own. Below it everything else that a picture shows is turned into these directions by a fixed
linear map, until at separation 0 half of the other variance lies inside them; then the text model learns to read such
tokens (`experiments/training/dial.py`). What is planted is therefore known exactly.

Separation 0 is *not* ordinary training. That is `small-world/entangled`, beside the dial: there the overlap came by
itself, and its tower never learned gender: a probe of all its tokens reads it badly, too
(`ggss discover small-world/entangled --images small-world --attribute gender --keep-tokens -o DIR`). In its training
the two variants of a person that a step shows are always of one gender. On the dial, all that carries race still lies
in one subspace, the same at every token, and the map can be inverted, so that a removal that is not orthogonal can in
principle be free of cost.

Race steering at the published site, at alpha 1, on evaluation identities, about 600 items
a task; 95 % intervals over identities (questions for SmallStar). Models of another training seed are named by it: the
seed decides towards which directions the rest is turned, and what the text model sees."""

CAUTION = """2AFC is the published one, over pairs answered alike in both orders. Where few are, the spread of their
win rates rests on a handful of pairs and can be anything: an estimate near or above the unsteered one with an
interval down to -100 % does not show that the bias is still there. The net preference beside it is over all
answers."""

PICTURE = """![Bias left and capability kept against the separation, a line a method](dial.png)

Bias left is what remains of the unsteered bias, of 2AFC by the net preference; SmallStar is the change in points.
The points at the left are `small-world/entangled`; a line goes through the means over training seeds."""

MARGIN, GOAL = 1.5, 10  # points of SmallStar; points of bias left

REGRET = f"""How far `auto`, which saw no answer, is from the best method of this page, which is known only after all
were asked: the lowest bias left (mean of MCQ and of 2AFC's net preference) among methods that lose at most
{MARGIN} points of SmallStar, or no more than `auto`."""

CORRELATIONS = """## Which diagnostic tells the outcome

Spearman's rank correlation of what can be measured at discovery with what came out, over models and methods, with
95 % intervals of a bootstrap that draws both; bold where the interval leaves out zero. On the dial: bias left is
the mean of MCQ and of 2AFC's net preference, in percent of the unsteered bias; points lost are SmallStar's. On
planted tokens (`python -m experiments.bench.planted_diagnostics`, the worlds of
[planted-tokens.md](planted-tokens.md) with an
attribute, three seeds each): what a probe of all tokens reads of people not seen at discovery, and the content
lost. Diagnostics are defined in `experiments/bench/planted_diagnostics.py`; the last three only methods with a
counterfactual
subspace have. None of this was seen on models of photographs."""


LIMITS = """Means on both sides of the two limits at which discovery warns. A subspace that does not transfer leaves
the attribute in other people; one that shares much variance with content costs capability. No model of
the dial has a transfer below the limit, so there it raises no false alarm and nothing more is shown;
that limit rests on the planted tokens, and the variance share's on the models."""


KEPT = """**What is kept.** Discovery reports the probe of all tokens and the displacement. The probe tells what is
left in other people on planted tokens; on the dial its correlation with the bias left is positive, too, but
its interval includes zero. The displacement tells the capability lost in the models. A probe of mean
tokens tells neither bias left nor attribute read and is not reported: on `ordinary` it calls methods
clean that leave most of the bias. Variance share and transfer keep their warnings. Effective rank is of
the model, the same for every method, and is told beside the variance share only to say how much room
there is. The lowest split-half cosine has no warning of its own: it ranks as the transfer does, and near zero it
went with nearly all bias removed."""


def world_name(separation: float, seed: int) -> str:
    """What rows and page call a model of the dial."""
    return f"{separation:g}" + (f", seed {seed}" if seed else "")


def page(rows: Rows, dial: Sequence[str], methods: Sequence[str], planted: Sequence[Mapping[str, Any]] = ()) -> str:
    """dial: the models that belong to the dial, besides 1. What is missing of these and the methods is said.

    planted: rows of `experiments.bench.planted_diagnostics`.
    """
    parts = [
        HEAD,
        _models(rows),
        _missing(rows, dial, methods),
        PICTURE,
        "## Results",
        _results(rows),
        CAUTION,
        _chosen(rows),
        _regrets(rows),
        CORRELATIONS,
        _correlations(rows, planted),
        _limits(rows, planted),
        KEPT,
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _order(world: str) -> tuple[float, str]:
    return (-1.0 if world == ORDINARY else _separation(world)), world


def _separation(world: str) -> float:
    return float(world.split(",")[0])


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


def _missing(rows: Rows, dial: Sequence[str], methods: Sequence[str]) -> str:
    lines = []
    for world in (ORDINARY, *sorted({*dial, "1"}, key=_order)):
        absent = [f"`{method}`" for method in methods if f"{world} {method}" not in rows]
        if absent:
            lines.append(f"- {world}: {'everything' if len(absent) == len(methods) else ', '.join(absent)}")
    if not lines:
        return ""
    return "Not measured yet; `make dial` goes on with it:\n\n" + "\n".join(lines)


def _results(rows: Rows) -> str:
    heads = [
        "separation",
        "method",
        *TASKS.values(),
        "SmallStar",
        "race named",
        "all-token probe",
        "pooled probe",
        "moved",
    ]
    lines = ["| " + " | ".join(line) + " |" for line in (heads, ["---"] * len(heads))]
    names = list(dict.fromkeys(row["method"] for row in rows.values()))
    for row in sorted(rows.values(), key=lambda row: (_order(row["world"]), names.index(row["method"]))):
        head = f"| {row['world']} | `{row['method']}` | "
        if row["method"] == UNSTEERED:
            value = {task: span[0] for task, span in row["values"].items()}
            cells = [f"{1000 * value['mcq']:.0f} (JSD x 1000)", f"{value['2afc']:.3f} (std)", ""]
            cells += [f"{value['smallstar']:.1%}", "", "", "", ""]
        else:
            seen = row["diagnostics"]
            cells = [_span(row["changes"].get(task), " %", 0) for task in TASKS]
            cells += [_span(row["capability"], "", 1), f"{row['race named']:.0%}"]
            cells += [f"{seen[name]:.2f}" for name in ("all-token probe after", "pooled probe after", "displacement")]
        lines.append(head + " | ".join(cells) + " |")
    return "\n".join(lines)


def _chosen(rows: Rows) -> str:
    """What `auto` took in each model: its first note says it."""
    own = sorted((row for row in rows.values() if row["method"] == "auto"), key=lambda row: _order(row["world"]))
    if not own:
        return ""
    lines = [f"- {row['world']}: {' '.join(row['notes'])}" for row in own]
    return "What `auto` chose, from the discovery set alone:\n\n" + "\n".join(lines)


def _regrets(rows: Rows) -> str:
    """What `auto` leaves more than the method that did best at as little cost."""
    lines, worst = ["| separation | auto | best of all | its bias left | regret, points |", "| --- " * 5 + "|"], 0.0
    outcomes = [row for row in _outcomes(rows) if row["left"] is not None]
    for own in sorted((row for row in outcomes if row["method"] == "auto"), key=lambda row: _order(row["world"])):
        most = max(own["lost"], MARGIN)
        rivals = [row for row in outcomes if row["world"] == own["world"] and row["lost"] <= most]
        best = min(rivals, key=lambda row: row["left"])
        regret = own["left"] - best["left"]
        worst = max(worst, regret)
        cells = (own["world"], f"{own['left']:.0f} % left", f"`{best['method']}`", f"{best['left']:.0f} %")
        lines.append(f"| {' | '.join(cells)} | {regret:.0f} |")
    if len(lines) == 2:
        return ""
    met = "met" if worst <= GOAL else "**not met**"
    said = f"The largest regret is {worst:.0f} points; the goal of at most {GOAL} is {met}."
    return f"{REGRET}\n\n" + "\n".join(lines) + f"\n\n{said}"


def _span(values: Sequence[float] | None, unit: str, digits: int) -> str:
    if values is None:
        return "-"
    estimate, low, high = (f"{value:+.{digits}f}" for value in values)
    return f"{estimate}{unit} [{low}, {high}]"


def _outcomes(rows: Rows) -> list[dict[str, Any]]:
    """The steered rows with the bias left in percent, None if a change is unknown, and the points lost."""
    found = []
    for row in rows.values():
        if "diagnostics" in row:
            spans = [row["changes"].get(task) for task in ("mcq", "net")]
            left = None if None in spans else 100 + float(np.mean([span[0] for span in spans if span]))
            found.append({**row, "left": left, "lost": -row["capability"][0]})
    return found


def _correlations(rows: Rows, planted: Sequence[Mapping[str, Any]]) -> str:
    return diagnostics_table.table(
        {
            "dial": (_outcomes(rows), {"bias left": "left", "points lost": "lost"}),
            "planted tokens": (planted, {"attribute read": "left", "content lost": "lost"}),
        }
    )


def _limits(rows: Rows, planted: Sequence[Mapping[str, Any]]) -> str:
    """What came out on either side of the two limits at which discovery warns."""
    heads = ["where", "diagnostic", "warned", "rows", "bias left, %, or attribute read", "points or content lost"]
    lines = ["| " + " | ".join(line) + " |" for line in (heads, ["---"] * len(heads))]
    for where, known in (("dial", _outcomes(rows)), ("planted tokens", planted)):
        for name, limit in (("transfer", TRANSFER_LIMIT), ("variance share", SHARE_LIMIT)):
            for warned in (True, False):
                own = [
                    row
                    for row in known
                    if (value := row["diagnostics"].get(name)) is not None
                    and (value < limit if name == "transfer" else value > limit) == warned
                ]
                left = [row["left"] for row in own if row["left"] is not None]
                sign = "below" if (name == "transfer") == warned else "above"
                cells = [where, f"{name} {sign} {limit:g}", "yes" if warned else "no", str(len(own))]
                cells.append(f"{np.mean(left):.{0 if where == 'dial' else 2}f}" if left else "-")
                cells.append(f"{np.mean([row['lost'] for row in own]):.1f}" if own else "-")
                lines.append("| " + " | ".join(cells) + " |")
    return f"{LIMITS}\n\n" + "\n".join(lines)


def picture(rows: Rows, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(13, 4.6))
    methods = [name for name in dict.fromkeys(row["method"] for row in rows.values()) if name != UNSTEERED]
    heads = ("MCQ: bias left, %", "2AFC, net preference: bias left, %", "SmallStar: change, points")
    for k, method in enumerate(methods):
        shift = 0.022 * (k - (len(methods) - 1) / 2)  # so that intervals do not hide one another
        own = sorted((row for row in rows.values() if row["method"] == method), key=lambda row: _order(row["world"]))
        for axis, name in zip(axes, ("mcq", "net", "capability"), strict=True):
            spans = [row["capability"] if name == "capability" else row["changes"].get(name) for row in own]
            drawn = [(row["world"], span) for row, span in zip(own, spans, strict=True) if span]
            for world, span in drawn:
                value, low, high = np.array(span) + (0 if name == "capability" else 100)
                at = -0.3 if world == ORDINARY else _separation(world)
                axis.errorbar(
                    at + shift,
                    value,
                    [[max(0.0, value - low)], [max(0.0, high - value)]],
                    color=f"C{k}",
                    marker="os^Dv<>*"[k % 8],
                    markersize=8 if method in ("pace", "auto") else 5,
                    elinewidth=0.8,
                    label=method if world == drawn[0][0] else None,
                )
            dial = sorted({_separation(world) for world, _ in drawn if world != ORDINARY})
            means = [
                np.mean([span[0] for world, span in drawn if world != ORDINARY and _separation(world) == at])
                for at in dial
            ]
            axis.plot(
                np.array(dial) + shift,
                np.array(means) + (0 if name == "capability" else 100),
                color=f"C{k}",
                linewidth=2.2 if method in ("pace", "auto") else 1.1,
            )
    for axis, head in zip(axes, heads, strict=True):
        axis.set_title(head, fontsize=11)
        axis.set_xticks([-0.3, 0, 0.25, 0.5, 0.75, 1], ["ordinary", "0", ".25", ".5", ".75", "1"])
        axis.set_xlabel("separation")
        axis.grid(axis="y", linewidth=0.4)
        axis.axhline(0, color="grey", linewidth=0.9)
        axis.axvline(-0.15, color="grey", linewidth=0.7, linestyle=":")
    for axis in axes[:2]:
        axis.set_ylim(-5, 125)
    axes[2].set_yscale("symlog", linthresh=8)  # one method loses ten times as much as the others
    axes[2].set_yticks([-40, -20, -8, -6, -4, -2, 0, 2, 4], ["-40", "-20", "-8", "-6", "-4", "-2", "0", "2", "4"])
    axes[2].minorticks_off()
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=max(-(-len(labels) // 2), 1), fontsize=9, frameon=False)
    figure.tight_layout(rect=(0, 0.1, 1, 1))
    figure.savefig(path, dpi=110)
    plt.close(figure)
