"""Runs and comparisons in a notebook: as HTML, as a data frame, as a plot.

`Run` and `Comparison` call these in `_repr_html_`, `to_pandas` and `plot`. Text from outside is escaped.
"""

from collections import Counter
from typing import TYPE_CHECKING, Any

from ggss import escaping
from ggss.escaping import plot

if TYPE_CHECKING:
    from ggss.analysis.comparison import Comparison
    from ggss.analysis.run import Run
    from ggss.stats import Interval

SHOWN = 5  # answers of a run
MOST = 6  # kinds of answers in a plot; the rest are one kind
UNREAD, OTHER = "(not read)", "(other)"


def run_html(run: "Run") -> str:
    """What was asked, how many answers could be read, the published metric, and the first answers."""
    parsed = run.parsed.parsed
    name, metric = next(iter(run.metrics().items()))
    readable = sum(value is not None for value in parsed)
    lines = [
        run.source.label,
        f"{len(run.items):,} items, {readable:,} of them read",
        f"{name} = {float(metric):.4g}; `measured()` gives its interval",
    ]
    rows = [
        (item.key, item.prompt, text, UNREAD if value is None else value)
        for item, text, value in list(zip(run.items, run.texts, parsed, strict=True))[:SHOWN]
    ]
    more = [escaping.line(f"and {len(run.items) - SHOWN:,} more")] if len(run.items) > SHOWN else []
    table = escaping.table(("item", "asked", "answered", "read as"), rows)
    return escaping.titled(f"{run.task}, one run", *map(escaping.line, lines), table, *more)


def run_frame(run: "Run") -> Any:
    """A data frame with a row for each item."""
    rows = []
    for item, answer, value in zip(run.items, run.answers, run.parsed.parsed, strict=True):
        row: dict[str, Any] = {"item": item.key, "task": run.task, "question": item.question, "cluster": item.cluster}
        for number, attributes in enumerate(item.attributes, start=1):
            suffix = "" if len(item.attributes) == 1 else f"_{number}"
            row |= {f"{name}{suffix}": group for name, group in attributes.items()}
        row |= {f"context_{name}": part for name, part in item.context.items()}
        row |= {"prompt": item.prompt, "answer": answer.text, "parsed": value, "expected": item.expected}
        row |= {f"p({option})": share for option, share in zip(item.options, answer.probabilities, strict=False)}
        rows.append(row)
    source = run.source
    frame = escaping.pandas().DataFrame(rows)
    return frame.assign(model=source.model, method=source.method, steered=source.attribute, alpha=source.alpha)


def draw_run(run: "Run", axis: Any) -> Any:
    """The share of each answer in each group; of a task with right answers, of each kind of question."""
    groups = _counts_by_group(run)
    total: Counter[str] = sum(groups.values(), Counter())
    common = [answer for answer, _ in total.most_common(MOST)]
    options = {option for item in run.items if item.expected is None for option in item.options}
    unused = options if len(options) <= MOST and set(total) - {UNREAD} <= options else set()
    kinds = [*sorted({*common, *unused}), *([OTHER] if len(total) > MOST else [])]  # the same colours in every run
    axis = escaping.new_axis(axis)
    names = sorted(groups)
    bottom = [0.0] * len(names)
    for kind in kinds:
        shares = [_count(groups[name], kind, common) / groups[name].total() for name in names]
        axis.bar(range(len(names)), shares, bottom=bottom, label=plot(kind))
        bottom = [low + share for low, share in zip(bottom, shares, strict=True)]
    axis.set_xticks(range(len(names)), [plot(name) for name in names], rotation=30, ha="right")
    axis.set_ylabel("share of answers")
    axis.set_title(plot(f"{run.task}: {run.source.label}"))
    axis.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    return axis


def _counts_by_group(run: "Run") -> dict[str, Counter[str]]:
    """How often each answer was given: by group, or by question if the task compares no groups."""
    groups: dict[str, Counter[str]] = {}
    for item, value in zip(run.items, run.parsed.parsed, strict=True):
        values = [str(attributes[run.about]) for attributes in item.attributes if run.about in attributes]
        group = " / ".join(values) if run.about and values else item.question or run.task
        if item.expected is not None:
            answer = "right" if value == item.expected else "wrong"
        else:
            answer = UNREAD if value is None else str(value)
        groups.setdefault(group, Counter())[answer] += 1
    return groups


def _count(answers: Counter[str], kind: str, common: list[str]) -> int:
    return sum(count for answer, count in answers.items() if answer not in common) if kind == OTHER else answers[kind]


def comparison_html(comparison: "Comparison") -> str:
    """The model before and after, and every metric that both have with its interval and change."""
    before, after = comparison.before, comparison.after
    rows = []
    for name in before.names:
        if name not in after.metrics:
            continue
        change = comparison.change(name)
        values = (_span(before.interval(name)), _span(comparison.value(name)))
        rows.append((name, *values, "-" if change is None else f"{_span(change, '+.1f')} %"))
    parts = [escaping.line(f"before: {before.source.label}"), escaping.line(f"after: {after.source.label}")]
    parts.append(escaping.table(("metric", "before", "after", "change"), rows))
    level, clusters = comparison.statistics.level, len(set(after.clusters))
    parts.append(escaping.line(f"{level:.0%} intervals over {clusters:,} clusters"))
    if comparison.degenerate:
        parts.append(escaping.line("Warning: most answers of one run could not be read"))
    return escaping.titled(f"{comparison.task}, before and after", *parts)


def comparison_frame(comparison: "Comparison") -> Any:
    """A data frame with a row for each metric that both runs have.

    p, of the sign-flip test, is that of the first, the published one.
    """
    rows = []
    for number, name in enumerate(comparison.before.names):
        if name not in comparison.after.metrics:
            continue
        intervals = {
            "before": comparison.before.interval(name),
            "after": comparison.value(name),
            "change_percent": comparison.change(name),
        }
        row: dict[str, Any] = {"task": comparison.task, "metric": name}
        for column, interval in intervals.items():
            values = (None,) * 3 if interval is None else (interval.estimate, interval.low, interval.high)
            row |= dict(zip((column, f"{column}_low", f"{column}_high"), values, strict=True))
        rows.append(row | {"p": comparison.p if number == 0 else None})
    return escaping.pandas().DataFrame(rows)


def draw_comparison(comparison: "Comparison", axis: Any) -> Any:
    """The published metric before and after, with intervals."""
    axis = escaping.new_axis(axis)
    intervals = {"before": comparison.before.interval(), "after": comparison.value()}
    for place, (name, interval) in enumerate(intervals.items()):
        axis.vlines(place, interval.low, interval.high, color="#8a86a0")
        axis.plot(place, interval.estimate, "o", color="#c2452d" if name == "before" else "#2f7d4f", markersize=9)
    labels = [plot(run.source.label).replace(", ", "\n") for run in (comparison.before, comparison.after)]
    axis.set_xticks([0, 1], [f"before\n{labels[0]}", f"after\n{labels[1]}"])
    axis.set_xlim(-0.5, 1.5)
    axis.set_ylabel(plot(next(iter(comparison.before.metrics))))
    change = comparison.change()
    axis.set_title(plot(comparison.task if change is None else f"{comparison.task}: {change.estimate:+.0f} %"))
    return axis


def _span(interval: "Interval", spec: str = ".4g") -> str:
    return f"{interval.estimate:{spec}} [{interval.low:{spec}}, {interval.high:{spec}}]"
