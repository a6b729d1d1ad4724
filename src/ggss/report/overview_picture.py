"""The study in one picture: for every model, how much bias each method leaves and what it costs in capability."""

import io
from collections.abc import Mapping
from typing import Any

from ggss import probes
from ggss.escaping import plot
from ggss.report import names
from ggss.report.figures import Figures
from ggss.stats import Interval

NAME = "bias_and_capability.png"
TITLE = "How much bias each method leaves, and what it costs in capability"
INK, SOFT = "#2b2640", "#8a86a0"
# Family, colour and marker, by how a method's label begins; the longest beginning that fits is taken.
_LOOKS: Mapping[str, tuple[str, str, str]] = {
    "": ("other", "#8a86a0", "o"),
    "ggss": ("GGSS, its ablations and variants", "#e0a030", "o"),
    "gated-": ("GGSS, its ablations and variants", "#e0a030", "o"),
    "inlp": ("INLP", "#3d6fb4", "s"),
    "meandiff": ("MeanDiff", "#6aa84f", "^"),
    "bend": ("BendVLM", "#8e5ea2", "v"),
    "leace": ("LEACE", "#2a9d9d", "D"),
    "svd": ("hard projection (SVD)", "#b0565b", "P"),
    "prompt": ("fairness instruction", "#8a86a0", "X"),
    "pace": ("PACE and auto", "#d43d8c", "h"),
    "auto": ("PACE and auto", "#d43d8c", "h"),
}
_NEAR = 5  # points: costs up to this are drawn to scale, larger ones closer together
_TICKS = (-80, -40, -20, -10, -5, -2, 0, 2)
_GGSS = ("GGSS", "#c2452d", "*")
PACE = "pace"


def draw(figures: Figures) -> bytes | str:
    """A PNG, or why there is none."""
    task = figures.benchmark("multiple-choice")
    if task is None:
        return "the plan measures no multiple-choice benchmark"
    panels = {model: found for model in figures.results.models if (found := _points(figures, model, task))}
    if not panels:
        return "needs a method's runs on the bias tasks and on a multiple-choice benchmark"
    return _drawn(panels, probes.get(task).title)


def _points(figures: Figures, model: str, task: str) -> dict[str, tuple[Interval, Interval]]:
    """By method: the mean change of bias in percent, and of accuracy, averaged over the steerings."""
    attributes, found = list(figures.plan.steering), {}
    for label in names.compared(figures.results):
        bias = figures.average(model, label, figures.alpha(model, label))
        kept = figures.kept_across([model], label, task, attributes)
        if bias and kept:
            found[label] = (bias, kept[1])
    return found


def _look(label: str) -> tuple[str, str, str]:
    return _GGSS if label == names.GGSS else _LOOKS[max(filter(label.startswith, _LOOKS), key=len)]


def _drawn(panels: Mapping[str, Mapping[str, tuple[Interval, Interval]]], benchmark: str) -> bytes:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    width = max(9.0, 3.1 * len(panels) + 1)
    figure, axes = plt.subplots(1, len(panels), figsize=(width, 4.9), sharex=True, sharey=True, squeeze=False)
    drawn: dict[str, Any] = {}
    for axis, (model, points) in zip(axes.flat, panels.items(), strict=True):
        axis.axhline(0, color=SOFT, linewidth=0.8, zorder=0)
        axis.axvline(100, color=SOFT, linewidth=0.8, linestyle=":", zorder=0)
        for label, (bias, kept) in sorted(points.items(), key=lambda point: point[0] == names.GGSS):
            kind, colour, mark = _look(label)
            x, y = 100 + bias.estimate, 100 * kept.estimate
            axis.hlines(y, 100 + bias.low, 100 + bias.high, color=colour, alpha=0.35, linewidth=1)
            axis.vlines(x, 100 * kept.low, 100 * kept.high, color=colour, alpha=0.35, linewidth=1)
            large = 190 if label == names.GGSS else 95 if label == PACE else 42
            drawn[kind] = axis.scatter(x, y, s=large, color=colour, marker=mark, zorder=4 if large > 42 else 3)
        axis.set_title(plot(names.model(model)), color=INK, fontsize=12)
        axis.tick_params(colors=SOFT, labelsize=9)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    axes[0, 0].set_yscale("symlog", linthresh=_NEAR)
    axes[0, 0].set_yticks(_TICKS, map(str, _TICKS))
    points = [100 * kept.high for points in panels.values() for _, kept in points.values()]
    axes[0, 0].set_ylim(top=max(2.5, *points))
    axes[0, 0].minorticks_off()
    axes[0, 0].set_ylabel(plot(f"{benchmark}: change in points"), color=INK)
    figure.supxlabel("bias left, percent of unsteered", color=INK, fontsize=10, y=0.16)
    figure.suptitle(f"{TITLE}\n(best: top left)", color=INK, fontsize=13, y=0.985)
    kinds = sorted(drawn, key=lambda kind: (kind != _GGSS[0], kind))
    figure.legend([drawn[kind] for kind in kinds], kinds, loc="lower center", ncols=4, frameon=False, fontsize=9)
    figure.subplots_adjust(left=0.8 / width, right=0.985, top=0.81, bottom=0.28, wspace=0.08)
    data = io.BytesIO()
    figure.savefig(data, dpi=110, metadata={"Software": None})
    plt.close(figure)
    return data.getvalue()
