"""One verdict for each compared row: which words follow from which statistics."""

import json
import math
from dataclasses import replace
from itertools import product

import pytest

from ggss.analysis import Run, Source, Statistics, compare
from ggss.analysis import verdict as verdicts
from ggss.analysis.comparison import FlipChange
from ggss.analysis.selection import ComparedTasks
from ggss.cli.compare import comparison_data, show_comparison
from ggss.data.pictures import AbsentPicture
from ggss.models.reading import Answer
from ggss.probes import Item
from ggss.report import cells
from ggss.report.material import TaskPair
from ggss.report.summary import JudgedTask
from ggss.stats import Interval, mcnemar, signflip

RACES = ("amber", "coral")
SOURCE = Source("m", suite="own", suite_hash="1")
STEERED = replace(SOURCE, method="ggss", attribute="race", alpha=1.0, steerer="s")
FEW = Statistics(resamples=200, permutations=2000)


def run(task, answer, people=16, source=SOURCE):
    """A run in which `answer` gives the text for a person's number and race."""
    recognition = task.startswith("recognition")
    items = tuple(
        Item(
            f"{number}/{race}",
            "?",
            (AbsentPicture(f"{number}{race}"),),
            ({"race": race},),
            str(number),
            "pay",
            options={r: r for r in RACES} if recognition else {"a": "low", "b": "high"},
            expected=race if recognition else None,
            about="race",
            context={"identity": str(number)},
        )
        for number, race in product(range(people), RACES)
    )
    texts = [answer(int(item.cluster), item.attributes[0]["race"]) for item in items]
    return Run(task, items, tuple(Answer(text, ()) for text in texts), source)


def biased(number, race):
    return "a" if race == "amber" or number % 8 == 0 else "b"


def fair(number, race):
    return "a" if number % 2 else "b"


def compared(before, after, task="mcq"):
    return compare(run(task, before), run(task, after, source=STEERED), FEW)


def bias_verdict(comparison):
    return verdicts.of_bias(comparison, *ComparedTasks.of([comparison]).bias_holm)


def test_a_change_that_test_and_interval_agree_on_has_a_direction():
    assert bias_verdict(compared(biased, fair)) == verdicts.Verdict("better", "less bias")
    flip = compared(biased, fair).flip()
    assert verdicts.of_flips(flip, flip.p) == verdicts.Verdict("better", "depends less on race")
    back = compared(fair, biased).flip()
    assert verdicts.of_flips(back, back.p) == verdicts.Verdict("worse", "depends more on race")


def test_no_change_is_inconclusive_with_the_smallest_change_that_would_have_been_seen():
    def slightly(number, race):  # one person more, one fewer
        return fair(number, race) if number == 1 else biased(number or 2, race)

    verdict = bias_verdict(compared(biased, slightly))
    assert verdict.kind == "inconclusive"
    assert "smallest change that would have been seen" in verdict.words


def nearly_fair(number, race):
    """Of sixteen people eight or nine are answered a: less of a difference than chance makes."""
    return "a" if (number % 2 if race == "amber" else number < 9) else "b"


def test_where_the_corrected_baseline_is_below_zero_nothing_is_said_in_percent(capsys):
    """Bias rises. The corrected baseline is negative, so that the quotient would say that it falls."""
    comparison = compared(nearly_fair, biased)
    before, after = comparison.before.corrected().estimate, comparison.after.corrected().estimate
    assert before < 0 < after
    assert comparison.reached > comparison.baseline > 0
    change = comparison.corrected_change
    assert math.isnan(change.estimate)
    assert (change.low, change.high) == (-math.inf, math.inf)
    for p in (0.01, 0.9):
        words = verdicts.of_bias(comparison, p).words
        assert "falls" not in words
        assert words.startswith("inconclusive")
    tasks = ComparedTasks.of([comparison])
    data = json.loads(json.dumps(comparison_data(tasks), allow_nan=False))
    assert [data["bias"][0]["corrected"][end] for end in ("estimate", "low", "high")] == [None] * 3
    show_comparison(tasks)
    printed = capsys.readouterr().out
    assert "- % [no bound]" in printed
    assert "nan" not in printed
    figure = cells.changed(comparison)
    assert figure.number().startswith("+")
    assert figure.after() == " % (- [-inf, +inf])"
    pair = TaskPair("mcq", "m", "race", run("mcq", nearly_fair), None, comparison, FEW)
    row = JudgedTask(pair, 0.01, verdicts.of_bias(comparison, 0.01))
    assert row.change.endswith(" % (– [no bound])")


def flip_change(low, high, p=0.01):
    interval = Interval(0.5, 0.4, 0.6, 0.95, "jackknife", 8)
    return FlipChange(
        "mcq", "race", ("race",), 8, (4, 2), interval, interval, Interval(-0.2, low, high, 0.95, "n", 8), p, 0.3
    )


@pytest.mark.parametrize(
    ("low", "high", "p", "kind", "words"),
    [
        (-0.3, -0.1, 0.01, "better", "depends less on race"),
        (-0.3, 0.1, 0.01, "inconclusive", "the test finds a change, but its interval holds 0"),
        (-0.3, -0.1, 0.2, "inconclusive", "the interval leaves out 0, but the test finds no change"),
        (-0.3, 0.1, 0.2, "inconclusive", "smallest change that would have been seen: 30 points"),
    ],
)
def test_only_what_test_and_interval_both_find_counts(low, high, p, kind, words):
    verdict = verdicts.of_flips(flip_change(low, high), p)
    assert verdict.kind == kind
    assert words in verdict.words


def test_unreadable_answers_are_a_verdict_of_their_own():
    comparison = compared(biased, lambda number, race: "I cannot say")
    words = "32 of 32 steered answers could not be read: nothing is said about bias"
    assert bias_verdict(comparison) == verdicts.Verdict("unreadable", words)
    assert comparison.flip() is None


def test_loss_of_recognition_of_the_steered_attribute_is_intended_and_of_another_is_not():
    right, guess = (lambda number, race: race), (lambda number, race: "amber")
    comparison = compared(right, guess, "recognition-race")
    assert comparison.after.chance == 0.5
    verdict = verdicts.of_accuracy(comparison, comparison.accuracy(), comparison.accuracy().p)
    assert verdict.kind == "intended"
    assert verdict.words.endswith("(chance is 50 %)")
    other = replace(comparison, after=replace(comparison.after, source=replace(STEERED, attribute="gender")))
    assert verdicts.of_accuracy(other, other.accuracy(), other.accuracy().p) == verdicts.Verdict("worse", "worse")
    both = replace(comparison, after=replace(comparison.after, source=replace(STEERED, attribute="gender+race")))
    assert verdicts.of_accuracy(both, both.accuracy(), both.accuracy().p).kind == "intended"


def test_equal_answers_are_equivalent():
    comparison = compared(lambda number, race: race, lambda number, race: race, "recognition-race")
    accuracy = comparison.accuracy()
    same = replace(accuracy, same=replace(accuracy.same, p=0.001))
    assert verdicts.of_accuracy(comparison, same, None).kind == "equivalent"


def test_of_one_case_for_each_person_the_sign_flip_test_is_mcnemars():
    comparison = compared(biased, fair)
    flip = comparison.flip()
    assert flip.flips == (14, 0)
    assert flip.p == pytest.approx(mcnemar(0, 14), abs=0.002)
    name = "race_flip_rate"
    exact = signflip(
        comparison.after.metric(name), comparison.before.metric(name), clusters=comparison.after.clusters
    )
    assert flip.p == pytest.approx(exact.p, abs=0.002)


def test_every_comparison_has_its_flips_and_they_are_adjusted_together():
    tasks = ComparedTasks.of([compared(biased, fair)])
    assert [(flip.task, flip.attribute) for flip in tasks.flips] == [("mcq", "race")]
    assert tasks.flips_holm == pytest.approx([flip.p for flip in tasks.flips])
    assert tasks.flips[0].steered == ("race",)
