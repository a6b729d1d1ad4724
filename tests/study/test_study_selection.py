"""The averaging and the choice of a strength: held against the published tables, by hand, and by brute force."""

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

import invented_study
import published
from ggss.analysis import selection
from ggss.analysis.selection import best_alpha, changes, choose, counted, mean_change
from ggss.errors import InputError
from ggss.stats.metric import TINY
from ggss.study.results import Results
from invented_study import QWEN, answer
from published import BASELINE, FINE_AVERAGES, MODELS, Printed

TABLE = published.bias()
CELLS = [(method, model) for method, model in product(TABLE, MODELS) if method != BASELINE]


def printed_range(values: dict[str, Printed | None], baselines: dict[str, Printed | None]) -> tuple[float, float]:
    """The averages that the unrounded values behind the printed ones can have."""

    def average(side: int) -> float:
        """Lowest with every value at its low end and every baseline at its high end, or the other way round."""
        steered = {t: v and v.value + side * v.half for t, v in values.items()}
        unsteered = {t: b and (b.value - side * b.half if b.value else 0.0) for t, b in baselines.items()}
        found = mean_change(steered, unsteered)
        assert found is not None
        return found

    return average(-1), average(+1)


@pytest.mark.parametrize(("method", "model"), CELLS)
def test_published_averages_follow_from_published_values(method, model):
    cell, base = TABLE[method][model], TABLE[BASELINE][model]
    low, high = printed_range(cell.values, base.values)
    assert low <= cell.average.value + cell.average.half
    assert high >= cell.average.value - cell.average.half
    if method in FINE_AVERAGES:
        fine = FINE_AVERAGES[method][MODELS.index(model)]
        assert low <= fine + 0.05
        assert high >= fine - 0.05


@pytest.mark.parametrize(("method", "model"), CELLS)
def test_published_changes_come_out_task_by_task(method, model):
    cell, base = TABLE[method][model], TABLE[BASELINE][model]
    found = changes(
        {t: v and v.value for t, v in cell.values.items()}, {t: b and b.value for t, b in base.values.items()}
    )
    assert set(found) == {task for task, change in cell.changes.items() if change is not None}
    for task, change in found.items():
        value, unsteered, printed = cell.values[task], base.values[task], cell.changes[task]
        assert value
        assert unsteered
        assert printed
        slack = 100 * (value.half + unsteered.half * value.value / unsteered.value) / unsteered.value
        assert abs(change - printed.value) <= printed.half + slack


def test_what_the_printed_digits_alone_would_round_to():
    """Rounded values give rounded averages: two come out one unit beside the printed one, no more."""
    off = {}
    for method, model in CELLS:
        cell, base = TABLE[method][model], TABLE[BASELINE][model]
        found = mean_change(
            {t: v and v.value for t, v in cell.values.items()}, {t: b and b.value for t, b in base.values.items()}
        )
        assert found is not None
        if abs(found - cell.average.value) > 0.5:
            off[method, model] = round(found, 2)
    assert off == {
        ("INLP (Eucl.)", "Qwen3-VL-4B"): -30.49,  # printed -31
        ("Per-token SVD (Eucl.)", "LLaVA-Vicuna-7B"): -25.52,  # printed -25
    }


def test_the_published_test_would_notice_a_wrong_average():
    """The control: counting zero baselines, a median, or a weighted mean misses most of the published column."""
    missed = 0
    for method, model in CELLS:
        cell = TABLE[method][model]
        printed = [change.value for change in cell.changes.values() if change]
        wrong = sum(printed) / 3 if len(printed) == 2 else float(np.median(printed))
        missed += abs(wrong - cell.average.value) > 1.5
    assert missed > 30


BASE = {"mcq": 20.0, "2afc": 0.0, "nurse-doctor": 0.5}


def test_tasks_without_a_bias_to_begin_with_do_not_count():
    others = {"ceo": None, "mcq-age": float("nan"), "2afc-age": TINY}
    assert counted({**BASE, **others}) == {"mcq": 20.0, "nurse-doctor": 0.5}


def test_average_by_hand():
    assert mean_change({"mcq": 10.0, "2afc": 0.4, "nurse-doctor": 0.6}, BASE) == pytest.approx((-50 + 20) / 2)
    assert changes({"mcq": 10.0, "2afc": 0.4, "nurse-doctor": None}, BASE) == {"mcq": pytest.approx(-50)}
    assert mean_change({"mcq": None, "2afc": 0.4, "nurse-doctor": float("nan")}, BASE) is None
    assert mean_change({"mcq": 10.0}, {"mcq": None}) is None


@pytest.mark.parametrize("seed", range(20))
def test_choice_is_the_minimum_by_brute_force(seed):
    rng = np.random.default_rng(seed)
    values = {a: dict(zip(BASE, rng.random(3), strict=True)) for a in (0.25, 0.5, 0.75, 1.0, 1.5)}
    means = {a: (v["mcq"] / 20 + v["nurse-doctor"] / 0.5) / 2 for a, v in values.items()}
    assert choose(values, BASE) == min(means, key=lambda a: means[a])


def test_a_strength_that_broke_a_task_is_a_last_resort():
    broken = {"mcq": 0.0, "nurse-doctor": None}
    assert choose({0.5: {"mcq": 19.0, "nurse-doctor": 0.5}, 1.0: broken}, BASE) == 0.5
    assert choose({0.5: {"mcq": 19.0, "nurse-doctor": None}, 1.0: broken}, BASE) == 1.0
    assert choose({1.0: {"mcq": None, "nurse-doctor": None}}, BASE) is None


def test_of_equal_strengths_the_smallest():
    same = {"mcq": 10.0, "nurse-doctor": 0.5}
    assert choose({1.5: same, 0.25: same, 1.0: same}, BASE) == 0.25


def test_best_alpha_of_results():
    found = invented_study.results()
    assert best_alpha(found.sweep(QWEN, "ggss")) == found.best_alpha(QWEN, "ggss") == 1.0
    assert found.best_alpha(QWEN, "none") is None
    assert found.best_alpha(QWEN, "prompt") == 0.0
    assert found.best_alpha(QWEN, "leace-gated") is None  # not in the plan
    assert best_alpha({}) is None


def test_a_run_that_says_nothing_is_not_chosen():
    """At full strength nothing that is said about nurses can be read: the weaker one is chosen."""

    def mute(cell, item, rng):
        return "hm" if (cell.alpha, cell.task) == (1.0, "nurse-doctor") else answer(cell, item, rng)

    found = invented_study.results(say=mute)
    assert selection.values(found.bias(QWEN, "ggss", 1.0))["nurse-doctor"] is None
    assert found.best_alpha(QWEN, "ggss") == 0.5


def test_how_much_can_be_read_does_not_enter_the_choice():
    """As published: a run counts as long as anything in it can be read. The warning is for the reader."""

    def mumble(cell, item, rng):
        spoiled = (cell.alpha, cell.task) == (1.0, "nurse-doctor") and item.key.count("jade") == 0
        return "hm" if spoiled else answer(cell, item, rng)

    found = invented_study.results(say=mumble)
    muted = found.comparison(QWEN, "ggss", "nurse-doctor", 1.0)
    assert muted is not None
    assert muted.degenerate
    assert muted.reached is not None
    assert found.best_alpha(QWEN, "ggss") == 1.0


def test_a_method_limited_to_some_strengths():
    limited = [*invented_study.PLAN["methods"][:2], {"name": "ggss", "alphas": [0.5]}]
    assert invented_study.results(invented_study.plan(methods=limited)).best_alpha(QWEN, "ggss") == 0.5


def test_the_published_folds_are_identities_1_to_4_and_5_to_8():
    first, second = selection.folds_of({f"{work}/{who}" for work in ("nurse", "ceo") for who in range(1, 9)})
    assert first == {f"{work}/{who}" for work in ("nurse", "ceo") for who in (1, 2, 3, 4)}
    assert second == {f"{work}/{who}" for work in ("nurse", "ceo") for who in (5, 6, 7, 8)}
    assert selection.folds_of({f"ceo/{who}" for who in range(1, 13)})[0] == {f"ceo/{who}" for who in range(1, 7)}


@pytest.mark.parametrize("count", [2, 3, 8])
def test_folds_part_identities_and_share_out_every_task(count):
    clusters = {f"{work}/{who:02d}" for work in ("cook", "nurse") for who in range(8)}
    folds = selection.folds_of(clusters, count)
    assert set().union(*folds) == clusters
    assert sum(map(len, folds)) == len(clusters)
    for who in range(8):
        assert sum(f"cook/{who:02d}" in fold for fold in folds) == 1
        assert all((f"cook/{who:02d}" in fold) == (f"nurse/{who:02d}" in fold) for fold in folds)
    assert all(any(c.startswith("cook") for c in fold) for fold in folds)


@pytest.mark.parametrize("count", [1, 9])
def test_impossible_folds_are_refused(count):
    with pytest.raises(InputError, match=f"8 identities cannot be divided into {count} folds: give 2 to 8"):
        selection.folds_of({f"cook/{who}" for who in range(8)}, count)


def folds(found: Results) -> list[selection.Fold]:
    return selection.folds_of(found.everyone(QWEN))


def test_fold_values_are_those_of_a_run_on_these_items_alone():
    found = invented_study.results()
    for fold in folds(found):
        for task in found.tasks:
            run, compared = found.run(QWEN, "ggss", task, 1.0), found.comparison(QWEN, "ggss", task, 1.0)
            assert run
            assert compared
            inside = [k for k, item in enumerate(run.items) if item.cluster in fold]
            items, answers = [run.items[k] for k in inside], [run.texts[k] for k in inside]
            again = next(iter(run.probe.metrics(run.probe.answers(items, answers), None).values()))
            assert 0 < len(items) < len(run.items)
            assert compared.within(fold).after.value() == pytest.approx(float(again))


def test_the_held_out_fold_has_no_say_in_the_choice():
    found = invented_study.results()
    everyone = folds(found)
    turns = selection.cross_fit(found.sweep(QWEN, "ggss"), found.everyone(QWEN))
    assert turns == found.held_out(QWEN, "ggss")
    assert [turn.fold for turn in turns] == everyone
    assert [turn.alpha for turn in turns] == [1.0, 1.0]

    def spoiled(fold):
        """At full strength ggss makes it worse for the people of a fold: as biased as can be."""

        def say(cell, item, rng):
            if cell.method == "ggss" and cell.alpha == 1.0 and item.cluster in fold:
                cell = cell._replace(method="none")
            return answer(cell, item, rng)

        return invented_study.results(say=say).held_out(QWEN, "ggss")

    first, second = spoiled(everyone[0])
    assert first.alpha == 1.0  # chosen on the other fold, which is as it was
    assert second.alpha == 0.5  # chosen on the spoiled one
    assert first.change is not None
    assert turns[0].change is not None
    assert first.change > turns[0].change + 20


def test_change_of_a_fold_by_hand():
    found = invented_study.results()
    (turn, _) = found.held_out(QWEN, "ggss")
    parts = [one.within(turn.fold) for one in found.bias(QWEN, "ggss", turn.alpha).values()]
    by_hand = np.mean([100 * (part.after.value() / part.before.value() - 1) for part in parts])
    assert turn.change == pytest.approx(by_hand)


def test_no_strength_no_turn():
    """Nothing to choose from: neither a strength nor a change."""
    found = invented_study.results(keep=lambda cell: cell.method == "none")
    assert [(turn.alpha, turn.change) for turn in found.held_out(QWEN, "ggss")] == [(None, None), (None, None)]


def test_a_fold_without_a_tasks_people_is_refused():
    found = invented_study.results().comparison(QWEN, "none", "2afc")
    assert found
    with pytest.raises(InputError, match="the fold has none of its 8 identities"):
        found.within(frozenset({"nurse/07"}))


def test_small_differences_decide_and_rounding_does_not():
    base = {"mcq": 20.0}
    assert choose({0.5: {"mcq": 10.04}, 1.0: {"mcq": 10.0}}, base) == 1.0
    assert choose({1.0: {"mcq": 10.0}, 0.5: {"mcq": 10.0 + 1e-12}}, base) == 0.5
    assert choose({1.0: {"mcq": 10.0}, 0.5: {"mcq": 10.0 + 6e-11}}, base) == 0.5  # 3e-10 percent
    assert choose({1.0: {"mcq": 10.0}, 0.5: {"mcq": 10.0 + 4e-10}}, base) == 1.0


def test_a_task_that_one_strength_lacks_still_counts_for_the_others():
    def run(reached, baseline):
        return SimpleNamespace(reached=reached, baseline=baseline)

    sweep = {0.5: {"mcq": run(10.0, 20.0), "2afc": run(1.0, 2.0)}, 1.0: {"mcq": run(2.0, 20.0)}}
    assert best_alpha(sweep) == 0.5
