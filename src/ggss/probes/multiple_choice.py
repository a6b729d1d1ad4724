"""Multiple-choice questions in several dimensions, as in MMStar: what such benchmarks share."""

from collections.abc import Callable, Mapping, Sequence

from ggss.probes import metrics, parsers
from ggss.probes.base import Answers, Display, Item, Probe
from ggss.stats.metric import Metric


def multiple_choice_probe(
    name: str,
    title: str,
    summary: str,
    items: Callable[..., Sequence[Item]],
    max_new_tokens: int = 2048,
    from_file: bool = False,
) -> Probe:
    """A benchmark of this kind: accuracy, and the accuracy in each dimension; an unreadable answer is wrong."""

    def parse(answer: str, item: Item) -> str | None:
        return parsers.option(answer, item.options)

    def measure(answers: Answers, baseline: Answers | None) -> Mapping[str, Metric]:
        return metrics.accuracy_by_question(answers)

    shown = Display(f"{title} accuracy (%)", "share of questions answered right", 100, 1, " %", "higher")
    return Probe(
        name,
        title,
        summary,
        "multiple-choice",
        items,
        parse,
        measure,
        {"accuracy": shown},
        max_new_tokens=max_new_tokens,
        from_file=from_file,
    )
