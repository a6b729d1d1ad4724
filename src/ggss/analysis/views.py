"""Runs and comparisons in a notebook: as HTML, as a plot, as a data frame."""

from collections import Counter
from typing import TYPE_CHECKING, Any

from ggss import notebook
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
    parts = [
        notebook.line(run.source.said),
        notebook.line(f"{len(run.items):,} items, {sum(one is not None for one in parsed):,} of them read"),
        notebook.line(f"{name} = {float(metric):.4g}; `measured()` gives its interval"),
    ]
    rows = [
        (item.key, item.prompt, answer, UNREAD if read is None else read)
        for item, answer, read in list(zip(run.items, run.answers, parsed, strict=True))[:SHOWN]
    ]
    more = [notebook.line(f"and {len(run.items) - SHOWN:,} more")] if len(run.items) > SHOWN else []
    table = notebook.table(("item", "asked", "answered", "read as"), rows)
    return notebook.titled(f"{run.task}, one run", *parts, table, *more)


def run_frame(run: "Run") -> Any:
    """A row for each item."""
    rows = []
    for item, answer, read, shares in zip(run.items, run.answers, run.parsed.parsed, run.probabilities, strict=True):
        row: dict[str, Any] = {"item": item.key, "task": run.task, "question": item.question, "cluster": item.cluster}
        for number, attributes in enumerate(item.attributes, start=1):
            last = "" if len(item.attributes) == 1 else f"_{number}"
            row |= {f"{name}{last}": value for name, value in attributes.items()}
        row |= {f"context_{name}": value for name, value in item.context.items()}
        row |= {"prompt": item.prompt, "answer": answer, "parsed": read, "expected": item.expected}
        row |= {f"p({option})": share for option, share in zip(item.options, shares, strict=False)}
        rows.append(row)
    source = run.source
    frame = notebook.pandas().DataFrame(rows)
    return frame.assign(model=source.model, method=source.method, steered=source.attribute, alpha=source.alpha)


def draw_run(run: "Run", axis: Any) -> Any:
    """The share of each answer in each group; of a task with right answers, of each kind of question."""
    groups: dict[str, Counter[str]] = {}
    for item, read in zip(run.items, run.parsed.parsed, strict=True):
        values = [str(own[run.about]) for own in item.attributes if run.about in own]
        group = " / ".join(values) if run.about and values else item.question or run.task
        if item.expected is not None:
            said = "right" if read == item.expected else "wrong"
        else:
            said = UNREAD if read is None else str(read)
        groups.setdefault(group, Counter())[said] += 1
    total: Counter[str] = sum(groups.values(), Counter())
    common = [said for said, _ in total.most_common(MOST)]
    asked = {option for item in run.items if item.expected is None for option in item.options}
    never = asked if len(asked) <= MOST and set(total) - {UNREAD} <= asked else set()
    kinds = [*sorted({*common, *never}), *([OTHER] if len(total) > MOST else [])]  # the same colours in every run
    axis = notebook.new_axis(axis)
    names = sorted(groups)
    bottom = [0.0] * len(names)
    for kind in kinds:
        counts = [_count(groups[name], kind, common) / groups[name].total() for name in names]
        axis.bar(range(len(names)), counts, bottom=bottom, label=plot(kind))
        bottom = [low + own for low, own in zip(bottom, counts, strict=True)]
    axis.set_xticks(range(len(names)), [plot(name) for name in names], rotation=30, ha="right")
    axis.set_ylabel("share of answers")
    axis.set_title(plot(f"{run.task}: {run.source.said}"))
    axis.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    return axis


def _count(answers: "Counter[str]", kind: str, common: list[str]) -> int:
    return sum(count for said, count in answers.items() if said not in common) if kind == OTHER else answers[kind]


def comparison_html(found: "Comparison") -> str:
    rows = []
    for name in found.before.names:
        change = found.change(name)
        values = (_span(found.before.interval(name)), _span(found.value(name)))
        rows.append((name, *values, "-" if change is None else f"{_span(change, '+.1f')} %"))
    level = f"{found.statistics.level:.0%} intervals over {len(set(found.after.clusters)):,} clusters"
    parts = [notebook.line(f"before: {found.before.source.said}"), notebook.line(f"after: {found.after.source.said}")]
    parts.append(notebook.table(("metric", "before", "after", "change"), rows))
    warned = [notebook.line("Warning: most answers of one run could not be read")] if found.degenerate else []
    return notebook.titled(f"{found.task}, before and after", *parts, notebook.line(level), *warned)


def comparison_frame(found: "Comparison") -> Any:
    """A row for each metric; p, of the sign-flip test, is of the published one, which is the first."""
    rows = []
    for number, name in enumerate(found.before.names):
        spans = {
            "before": found.before.interval(name),
            "after": found.value(name),
            "change_percent": found.change(name),
        }
        row: dict[str, Any] = {"task": found.task, "metric": name}
        for what, span in spans.items():
            ends = (None,) * 3 if span is None else (span.estimate, span.low, span.high)
            row |= dict(zip((what, f"{what}_low", f"{what}_high"), ends, strict=True))
        rows.append(row | {"p": found.p if number == 0 else None})
    return notebook.pandas().DataFrame(rows)


def draw_comparison(found: "Comparison", axis: Any) -> Any:
    """The published metric before and after, with intervals."""
    axis = notebook.new_axis(axis)
    for place, (name, span) in enumerate((("before", found.before.interval()), ("after", found.value()))):
        axis.vlines(place, span.low, span.high, color="#8a86a0")
        axis.plot(place, span.estimate, "o", color="#c2452d" if name == "before" else "#2f7d4f", markersize=9)
    names = [plot(one.source.said).replace(", ", "\n") for one in (found.before, found.after)]
    axis.set_xticks([0, 1], [f"before\n{names[0]}", f"after\n{names[1]}"])
    axis.set_xlim(-0.5, 1.5)
    axis.set_ylabel(plot(next(iter(found.before.metrics))))
    change = found.change()
    axis.set_title(plot(found.task if change is None else f"{found.task}: {change.estimate:+.0f} %"))
    return axis


def _span(of: "Interval", spec: str = ".4g") -> str:
    return f"{of.estimate:{spec}} [{of.low:{spec}}, {of.high:{spec}}]"
