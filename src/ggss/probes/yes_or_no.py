"""Yes-or-no questions in pairs about one picture, as in MME: what such benchmarks share."""

from collections.abc import Callable, Collection, Mapping, Sequence

from ggss.probes import metrics, parsers
from ggss.probes.base import ACCURACY, Answers, Display, Item, Probe
from ggss.probes.mme_scores import mme, on_questions
from ggss.stats.metric import Metric

TOTALS = ("perception", "reasoning")


def yes_or_no_probe(
    name: str,
    title: str,
    summary: str,
    items: Callable[..., Sequence[Item]],
    reasoning: Collection[str],
    perception: Collection[str] | None = None,
    from_file: bool = False,
) -> Probe:
    """A benchmark of this kind: accuracy first, as for every capability, then accuracy+ and the published totals.

    reasoning: its categories of reasoning; the others are perception. perception: if both are given, a total is
    reported only if all its categories are there.
    """

    def parse(answer: str, item: Item) -> str | None:
        """In the spelling of the item's options."""
        said = parsers.yes_or_no(answer)
        return next((option for option in item.options if option.casefold() == said), said)

    def measure(answers: Answers, baseline: Answers | None) -> Mapping[str, Metric]:
        pictures = [item.cluster for item in answers.items]
        scores = mme(answers.questions, pictures, answers.parsed, answers.expected, reasoning)
        whole = {"perception": perception or (), "reasoning": reasoning if perception else ()}
        partial = {total for total, needed in whole.items() if not set(needed).issubset(answers.questions)}
        found = {
            metric: on_questions(score, answers.questions, pictures)
            for metric, score in scores.items()
            if metric not in partial
        }
        # Counted by question, not by picture: two runs are compared question by question.
        return found | {"accuracy": metrics.accuracy(answers.parsed, answers.expected)}

    displays = {
        "accuracy": Display(f"{title} accuracy (%)", "share of questions answered right", 100, 1, " %", "higher"),
        "accuracy+": ACCURACY,
        **{total: Display(f"{title} {total}", f"total over {total}", 1, 1, "", "higher") for total in TOTALS},
    }
    return Probe(name, title, summary, "yes-or-no", items, parse, measure, displays, from_file=from_file)
