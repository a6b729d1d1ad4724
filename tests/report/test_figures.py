"""The numbers that tables ask for, held against statistics made the long way."""

import numpy as np
import pytest

import invented_study
from ggss import probes
from ggss.report.cells import Figures
from ggss.stats import bootstrap, mcnemar, signflip
from invented_study import CONTROL, QWEN, answer


def say(cell, item, rng):
    """As invented, but in one task the control has no bias to begin with."""
    return "first" if cell.model == CONTROL and cell.task == "2afc" else answer(cell, item, rng)


@pytest.fixture(scope="module")
def results():
    return invented_study.results(say=say)


@pytest.fixture(scope="module")
def figures(results):
    return Figures(results)


def run_of(results, method, task, alpha=1.0, model=QWEN, attribute=None):
    run = results.run(model, method, task, alpha, attribute)
    assert run is not None
    return run


@pytest.mark.parametrize("task", ["mcq", "2afc", "nurse-doctor"])
def test_change_is_the_bootstrap_of_the_percent_change(results, figures, task):
    run, before = run_of(results, "ggss", task), run_of(results, "none", task)
    found = figures.comparison(QWEN, "ggss", task, 1.0)
    shown_metrics = [(found.value(), run.metric)]
    if task != "nurse-doctor":  # a gap's change is of the signed one: tests/analysis/test_comparison.py
        shown_metrics.append((found.change(), run.metric.percent_change(before.metric)))
    for shown, metric in shown_metrics:
        wanted = bootstrap(metric, run.clusters, resamples=200, seed=figures.statistics.seed_of(task))
        assert (shown.estimate, shown.low, shown.high) == pytest.approx((wanted.estimate, wanted.low, wanted.high))
        assert shown.low < shown.high


def weighed(metric, weights):
    """The metric with each item as often as its weight says."""
    return metric.value(np.array(weights, dtype=float) @ metric.terms)[0]


def test_average_is_resampled_by_identity_with_all_tasks(results, figures):
    """By hand: draw identities, weigh every item of every task by how often its identity was drawn.

    A draw with none of the people whom a task is about has no value.
    """
    runs = [(run_of(results, "ggss", t), run_of(results, "none", t)) for t in results.tasks]
    people = sorted({c for run, _ in runs for c in run.clusters})
    rng = np.random.default_rng(figures.statistics.seed_of("average"))
    drawn = rng.integers(len(people), size=(200, len(people)))
    values = []
    for draw in drawn:
        times = dict(zip(people, np.bincount(draw, minlength=len(people)), strict=True))
        changes = []
        for run, before in runs:
            weights = [[times[c] for c in run.clusters]]
            after, base = (own.measured().signed() or own.metric for own in (run, before))
            now, then = (weighed(metric, weights) for metric in (after, base))
            changes.append(100 * (now - then) / (float(base) if run.task == "nurse-doctor" else then))
        values.append(np.mean(changes))
    found = figures.average(QWEN, "ggss", 1.0)
    assert (found.low, found.high) == pytest.approx(tuple(np.nanquantile(values, [0.025, 0.975])))
    by_hand = np.mean([100 * (float(run.metric) / float(before.metric) - 1) for run, before in runs])
    assert found.estimate == pytest.approx(by_hand)


def test_the_mean_and_the_worst_over_models(figures):
    mean, worst = figures.across([QWEN, CONTROL], "ggss")
    each = [figures.average(model, "ggss", 1.0).estimate for model in (QWEN, CONTROL)]
    assert (mean.estimate, worst.estimate) == pytest.approx((np.mean(each), max(each)))
    assert figures.across([QWEN], "leace-gated") is None  # not in the plan


def test_a_zero_baseline_takes_no_part(results, figures):
    assert figures.comparison(CONTROL, "ggss", "2afc", 1.0).change() is None
    assert figures.averaged(CONTROL, "ggss", 1.0) == (2, 2)
    pairs = [
        [float(run_of(results, method, task, model=CONTROL).metric) for method in ("ggss", "none")]
        for task in ("mcq", "nurse-doctor")
    ]
    changes = [100 * (after / before - 1) for after, before in pairs]
    assert figures.average(CONTROL, "ggss", 1.0).estimate == pytest.approx(np.mean(changes))


def test_p_values_are_those_of_the_sign_flip_by_identity(results, figures):
    one, other = ([run_of(results, m, t) for t in results.tasks] for m in ("ggss", "none"))
    wanted = signflip(
        [run.metric for run in one],
        [run.metric for run in other],
        [float(run.metric) for run in other],
        [run.clusters for run in one],
        draws=199,
        seed=figures.statistics.seed_of("sign-flip", *results.tasks),
    )
    people, items = figures.p_values(QWEN, "ggss")
    assert people == wanted.p < 0.05
    assert items < 0.05
    assert figures.p_values(QWEN, "ggss", tasks=["mcq"])[0] == figures.comparison(QWEN, "ggss", "mcq", 1.0).p
    assert figures.p_values(QWEN, "ggss", "ggss") == (1.0, 1.0)  # nothing differs from itself
    assert figures.p_values(CONTROL, "ggss", tasks=["2afc"]) == (None, None)  # there was no bias to change


def test_capability_is_counted_question_by_question(results, figures):
    run, before = run_of(results, "ggss", "mmstar", attribute="race"), run_of(results, "none", "mmstar")
    parse = probes.get("mmstar").parse
    after, base = (
        np.array([parse(a, item) == item.expected for a, item in zip(r.texts, r.items, strict=True)])
        for r in (run, before)
    )
    found = figures.kept(QWEN, "ggss", "mmstar", 1.0, "race")
    assert found.after.estimate == pytest.approx(after.mean())
    assert found.before.estimate == pytest.approx(base.mean())
    assert found.change.difference == pytest.approx(after.mean() - base.mean())
    assert found.p == mcnemar(int((after & ~base).sum()), int((base & ~after).sum()))
    inside = np.array([item.question == "counts" for item in run.items])
    assert 0 < inside.sum() < len(inside)
    part = figures.kept(QWEN, "ggss", "mmstar", 1.0, "race", "counts")
    assert part.after.estimate == pytest.approx(after[inside].mean())
    assert 0 <= part.after.low < part.after.high <= 1


def test_the_part_of_a_fold_is_the_same_as_if_nobody_else_had_been_asked(results, figures):
    fold = figures.held_out(QWEN, "ggss")[0].fold
    found = figures.average(QWEN, "ggss", 1.0, fold)
    changes = []
    for task in results.tasks:
        run, before = run_of(results, "ggss", task), run_of(results, "none", task)
        inside = [[cluster in fold for cluster in run.clusters]]
        changes.append(100 * (weighed(run.metric, inside) / weighed(before.metric, inside) - 1))
    assert found.estimate == pytest.approx(np.mean(changes))
    assert found.low < found.high


def test_names_come_from_the_probes_with_or_without_answers(figures):
    empty = Figures(invented_study.results(keep=lambda cell: False))
    for one in (figures, empty):
        assert [one.label(task) for task in one.results.tasks] == ["MCQ ×10³", "2AFC", "N/D"]
        assert [one.about(task) for task in one.plan.tasks] == [*["race"] * 2, "gender", "", "", "race", "gender"]
        assert (one.display("mcq").scale, one.display("mcq").digits) == (1000, 2)
        assert one.display("mcq").meaning.startswith(
            "Jensen-Shannon divergence (bits) of the answers about each race"
        )
        assert one.label("recognition-race") == "race recognition (%)"
        assert one.recognition() == {"race": "recognition-race", "gender": "recognition-gender"}
        assert (one.benchmark("multiple-choice"), one.benchmark("yes-or-no")) == ("mmstar", "mme")
        assert one.ablated == "mcq"
