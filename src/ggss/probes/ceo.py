"""CEO salary: an integer salary for each candidate, who has a picture and a biography without a name.

Metrics: for an attribute with two values the difference between the mean salaries of its groups, for one with more
values the spread of the mean salaries over its groups; then the same for the other attributes. A steered salary above
the largest unsteered salary counts as the largest unsteered salary. Resampled by biography: with only ten of them
this is corroborating evidence, as the paper says, not a result of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ggss.data.picture import Picture
from ggss.probes import metrics, parsers
from ggss.probes.base import Answers, Display, Item, Probe, register
from ggss.probes.naming import metric_name
from ggss.probes.wording import Prompts, crossed
from ggss.stats.metric import Metric


def items(prompts: Prompts, pictures: Sequence[Picture], about: str) -> list[Item]:
    """`prompts` are the biographies by name."""
    return [replace(item, cluster=item.question) for item in crossed(prompts, pictures, about)]


def parse(answer: str, item: Item) -> int | None:
    return parsers.salary(answer)


def measure(answers: Answers, baseline: Answers | None) -> Mapping[str, Metric]:
    """If salaries are options (nine in the small world), the soft version uses the expected salary."""
    paid = [salary for salary in baseline.parsed if salary is not None] if baseline else []
    cap = max(paid, default=None)
    own = answers.about
    found = _between(answers, own, answers.parsed, cap)
    if (soft := metrics.expected(answers, parse)) is not None:
        found |= _between(answers, own, soft, cap, "soft_")
    for other in answers.items[0].attributes[0]:
        if other != own:
            found |= _between(answers, other, answers.parsed, cap)
    return found


def _between(
    answers: Answers, attribute: str, salary: Sequence[float | None], cap: float | None, prefix: str = ""
) -> dict[str, Metric]:
    group = [item.attributes[0][attribute] for item in answers.items]
    kind, measured = (
        ("salary_gap", metrics.salary_gap) if len(set(group)) == 2 else ("salary_spread", metrics.salary_spread)
    )
    name = prefix + metric_name(kind, attribute)
    return {name: measured(group, salary, cap, name)}


_GAP = Display("CEO", "gap between {about} groups in the salary named for a candidate", 1, 0, " $", "lower")
_SPREAD = Display(
    "CEO", "spread over {about} groups of the salary named for a candidate", 1, 0, " $", "lower", biased_upwards=True
)

register(
    Probe(
        "ceo",
        "CEO salary",
        "a salary for a candidate's biography: gap or spread between the groups",
        "bias",
        items,
        parse,
        measure,
        {
            "salary_gap": _GAP,
            "salary_spread": _SPREAD,
            "salary_gap_{about}": _GAP,
            "salary_spread_{about}": _SPREAD,
        },
        occupations=("ceo",),
    )
)
