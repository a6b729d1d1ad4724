"""The averaging and the choice of a strength: held against the published tables, by hand, and by brute force."""

from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

import invented_study
import published
from ggss.analysis import selection
from ggss.analysis.comparison import Comparison, compare, sign_flip
from ggss.analysis.run import Measured, Run, Source, Statistics
from ggss.analysis.selection import ComparedTasks, Side, best_alpha, changes, choose, counted, mean_change
from ggss.errors import InputError
from ggss.models.reading import Answer
from ggss.stats import holm, jackknife, mean, minimum_detectable_change, share_change, signflip
from ggss.stats.metric import TINY
from ggss.study.grid import Cell
from ggss.study.results import Results
from invented_study import CONTROL, QWEN, answer
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


STATISTICS = Statistics(resamples=60, permutations=99, seed=3, level=0.8)


def compared(task: str, model: str = QWEN, say: invented_study.Say = answer) -> Comparison:
    """A task before and after steering by ggss, with few resamples."""
    cells = [Cell(model, "none", "", 0.0, task), Cell(model, "ggss", "race", 1.0, task)]
    return compare(*(invented_study.run(cell, say) for cell in cells), STATISTICS)


def unread(task: str, side: str) -> Comparison:
    """A task of which nothing can be read in one of the runs."""
    method = {"before": "none", "after": "ggss"}[side]
    return compared(task, say=lambda cell, item, rng: "hm" if cell.method == method else answer(cell, item, rng))


def without_bias(task: str) -> Comparison:
    """A task in which the unsteered run says the same of everybody."""
    return compared(task, say=lambda cell, item, rng: "A" if cell.method == "none" else answer(cell, item, rng))


def drawn_average(comparisons: list[Comparison]) -> np.ndarray:
    """Avg in each resample, person by person: a person who is drawn is drawn in all tasks."""
    people = sorted({cluster for task in comparisons for cluster in task.before.clusters})
    drawn = np.random.default_rng(STATISTICS.seed_of("average")).integers(len(people), size=(60, len(people)))
    averages = []
    for draw in drawn:
        each = []
        for task in comparisons:
            after, before = (value_of(run, [people[k] for k in draw]) for run in (task.after, task.before))
            gap = task.before.signed()
            each.append(100 * (after - before) / (before if gap is None else float(gap)))
        averages.append(np.mean(each))
    return np.array(averages)


def value_of(run: Measured, people: list[str]) -> float:
    """The published metric of some people, who may be named more than once; of a gap, with its sign."""
    metric = run.signed() or run.metric()
    rows = [row for who in people for row, cluster in zip(metric.terms, run.clusters, strict=True) if cluster == who]
    return float(metric.value(np.sum(rows, axis=0)[None])[0])


def assert_is_percentile(found, estimate, draws, units):
    assert found.estimate == pytest.approx(estimate)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(draws, [0.1, 0.9])))
    assert (found.level, found.units, found.method) == (0.8, units, "percentile")


def test_avg_resamples_a_person_in_all_tasks_at_once():
    """Recounted by hand. Cooks are asked about in two tasks, nurses in one; there are eight of each."""
    bias = [compared(task) for task in ("mcq", "2afc", "nurse-doctor")]
    estimate = np.mean([task.change().estimate for task in bias])
    assert_is_percentile(selection.average_change(bias), estimate, drawn_average(bias), 16)
    assert_is_percentile(
        selection.average_change(bias[:1]), bias[0].change().estimate, drawn_average(bias[:1]), 8
    )  # after the average over more people, whose resamples are others
    assert selection.average_change(bias) == selection.average_change(bias)


def test_the_unsteered_run_is_resampled_once_for_all_averages(monkeypatch):
    task, resampled, bootstrap = compared("mcq"), [], selection.bootstrap

    def counting(metric, **settings):
        resampled.append(metric)
        return bootstrap(metric, **settings)

    monkeypatch.setattr(selection, "bootstrap", counting)
    first = selection.average_change([task])
    assert len(resampled) == 2
    assert selection.average_change([task]) == first
    assert len(resampled) == 3


def test_tasks_without_a_change_do_not_count_in_avg():
    found = selection.average_change([compared("mcq"), without_bias("mcq-age"), unread("2afc", "after")])
    assert found.estimate == compared("mcq").change().estimate
    for task in (without_bias("mcq"), unread("mcq", "before"), unread("mcq", "after")):
        assert selection.average_change([task]) is None
        assert selection.corrected_average([task]) is None
        assert selection.across([[compared("mcq")], [task]]) is None
    assert selection.average_change([]) is None


def test_the_mean_and_the_worst_of_models_resample_the_same_people_in_all():
    models = [[compared(task, model) for task in ("mcq", "nurse-doctor")] for model in (QWEN, CONTROL)]
    averages, draws = zip(
        *((np.mean([task.change().estimate for task in model]), drawn_average(model)) for model in models),
        strict=True,
    )
    mean_of_models, worst = selection.across(models)
    assert_is_percentile(mean_of_models, np.mean(averages), np.mean(draws, axis=0), 16)
    assert_is_percentile(worst, max(averages), np.max(draws, axis=0), 16)
    assert averages[0] != averages[1]
    assert selection.across([]) is None
    one = [compared("mcq")]
    assert selection.across([one]) == (selection.average_change(one), selection.average_change(one))


def test_the_corrected_avg_is_the_jackknife_over_people():
    bias = [compared("mcq"), compared("2afc"), unread("mcq", "after"), without_bias("mcq")]
    people = [f"cook/{who:02d}" for who in range(8)]

    def average(names):
        return np.mean([100 * (value_of(task.after, names) / value_of(task.before, names) - 1) for task in bias[:2]])

    left_out = [average([other for other in people if other != who]) for who in people]
    by_hand = jackknife(8 * average(people) - 7 * np.array(left_out), level=0.8)
    found = selection.corrected_average(bias)
    assert (found.estimate, found.low, found.high) == pytest.approx((by_hand.estimate, by_hand.low, by_hand.high))
    assert (found.units, found.level) == (8, 0.8)


@pytest.mark.parametrize("average", [selection.corrected_average, selection.average_flip_rate])
def test_a_jackknife_needs_two_people(average):
    task = compared("mcq")
    assert average([task.within({"cook/00"})]) is None
    assert average([task.within({"cook/00", "cook/01"})]).units == 2
    assert average([]) is None


def dependent(run: Run, attribute: str) -> dict[str, tuple[int, int]]:
    """By person, in how many cases the answer depends on an attribute, and of how many: read from the answers."""
    said = {}
    for item, text in zip(run.items, run.texts, strict=True):
        if len(item.images) == 1:
            others = tuple(value for name, value in item.attributes[0].items() if name != attribute)
            case = (item.cluster, item.question, *item.context.values(), *others)
            said.setdefault(case, set()).add(text)
        else:  # a pair in its two orders: another place is named where the same picture is
            case = (item.cluster, *sorted(attributes[attribute] for attributes in item.attributes))
            said.setdefault(case, set()).add(text)
    people = sorted({case[0] for case in said})
    own = {who: [len(answers) > 1 for case, answers in said.items() if case[0] == who] for who in people}
    return {who: (sum(flips), len(flips)) for who, flips in own.items()}


def runs(task: str) -> list[Run]:
    return [
        invented_study.run(cell)
        for cell in (Cell(QWEN, "none", "", 0.0, task), Cell(QWEN, "ggss", "race", 1.0, task))
    ]


def mean_share(tasks: list[dict[str, tuple[int, int]]], left_out: str = "") -> float:
    """The mean over tasks of the share of cases, without a person."""
    counts = [[own for who, own in task.items() if who != left_out] for task in tasks]
    return float(np.mean([sum(flips for flips, _ in own) / sum(cases for _, cases in own) for own in counts]))


def person_by_person(tasks: list[dict[str, tuple[int, int]]]) -> np.ndarray:
    """The jackknife's pseudo-values of the mean share: of each person in any of the tasks."""
    people = sorted(set().union(*tasks))
    n, share = len(people), mean_share(tasks)
    return np.array([n * share - (n - 1) * mean_share(tasks, who) for who in people])


def test_the_mean_flip_rate_is_of_each_tasks_own_attribute_after_steering():
    """Recounted from the answers; a task that cannot be read, and one that varies nothing, are left out."""
    about = {"mcq": "race", "2afc": "race", "nurse-doctor": "gender"}
    shares = person_by_person([dependent(runs(task)[1], attribute) for task, attribute in about.items()])
    found = selection.average_flip_rate([compared(task) for task in about])
    by_hand = jackknife(mean(shares, bounds=(0.0, 1.0)), level=0.8)
    assert (found.estimate, found.low, found.high) == pytest.approx((by_hand.estimate, by_hand.low, by_hand.high))
    assert (found.units, found.level, found.method) == (16, 0.8, "wilson")
    assert 0.1 < found.estimate < 0.99
    alone = selection.average_flip_rate([compared("mcq")])
    assert selection.average_flip_rate([compared("mcq"), unread("2afc", "after")]) == alone
    assert selection.average_flip_rate([unread("mcq", "after")]) is None
    assert selection.average_flip_rate([compared("mmstar")]) is None
    with_others = selection.average_flip_rate([compared("mcq"), compared("mmstar")])
    assert with_others.estimate == pytest.approx(alone.estimate, abs=0.01)


def test_spill_over_is_recounted_from_the_answers():
    """Of gender, under a steering of race: multiple choice and nurses show it, pairs do not."""
    label, tasks = "mcq, nurse-doctor", ["mcq", "nurse-doctor"]
    found = selection.spill_over([compared("mcq"), compared("2afc"), compared("nurse-doctor")], "gender")
    counts = [[dependent(runs(task)[side], "gender") for task in tasks] for side in (0, 1)]
    totals = [[sum(own[k] for task in side for own in task.values()) for k in (0, 1)] for side in counts]
    assert (found.task, found.attribute, found.steered) == (label, "gender", ("race",))
    assert (found.cases, found.flips) == (totals[0][1], (totals[0][0], totals[1][0]))
    assert totals[0][1] == 8 * 2 * 5 + 8 * 2 * 5
    before, after = (person_by_person(side) for side in counts)
    shares = [mean(units, bounds=(0.0, 1.0)) for units in (before, after)]
    for interval, share in zip((found.before, found.after), shares, strict=True):
        expected = jackknife(share, level=0.8)
        assert (interval.estimate, interval.low, interval.high) == pytest.approx(
            (expected.estimate, expected.low, expected.high)
        )
        assert (interval.level, interval.units, interval.method) == (0.8, 16, "wilson")
    change = share_change(shares[1], shares[0], level=0.8)
    assert (found.change.estimate, found.change.low, found.change.high) == pytest.approx(
        (change.estimate, change.low, change.high)
    )
    assert found.detectable == pytest.approx(minimum_detectable_change(16, float(np.std(after - before))))
    people = sorted(set().union(*counts[0]))
    # Everybody has ten cases, all in one of the tasks, so the mean share is the mean of these parts.
    parts = [np.array([sum(task.get(who, (0, 10))[0] for task in side) / 10 for who in people]) for side in counts]
    seed = STATISTICS.seed_of("flip", label, "gender")
    assert found.p == signflip(parts[1], parts[0], draws=99, seed=seed).p
    assert found.p < 1


def test_spill_over_needs_a_task_that_shows_the_attribute_to_two_people():
    task = compared("mcq")
    assert selection.spill_over([compared("2afc")], "gender") is None
    assert selection.spill_over([], "gender") is None
    assert selection.spill_over([task.within({"cook/03"})], "gender") is None
    assert selection.spill_over([task.within({"cook/03", "cook/04"})], "gender").cases == 2 * 2 * 5
    for side in ("before", "after"):
        assert selection.spill_over([unread("mcq", side)], "gender") is None


def test_compared_tasks_have_their_tests_adjusted_by_kind():
    """Holm's correction is over the bias tests, over the capability tests, and over the flips, each alone."""
    names = ["mcq", "mmstar", "2afc", "mme", "nurse-doctor"]
    by_name = {task: compared(task) for task in names}
    found = ComparedTasks.of(list(by_name.values()))
    bias, capability = [by_name[task] for task in names[::2]], [by_name[task] for task in names[1::2]]
    assert (found.bias, found.capability) == (tuple(bias), tuple(capability))
    assert found.bias_holm == pytest.approx(holm([task.p for task in bias]).tolist())
    assert found.capability_holm == pytest.approx(holm([task.accuracy().p for task in capability]).tolist())
    assert found.average == selection.average_change(bias)
    assert found.combined == sign_flip(bias)
    shown = [
        ("mcq", "race"),
        ("mcq", "gender"),
        ("2afc", "race"),
        ("nurse-doctor", "gender"),
        ("nurse-doctor", "race"),
    ]
    assert [(flip.task, flip.attribute) for flip in found.flips] == shown
    assert found.flips_holm == pytest.approx(holm([flip.p for flip in found.flips]).tolist())
    adjusted = dict(zip(names[::2] + names[1::2], [*found.bias_holm, *found.capability_holm], strict=True))
    assert {task: found.p_holm(by_name[task]) for task in names} == adjusted
    assert (found.before.tasks, found.after.tasks) == (5, 5)
    assert (found.before.steered, found.after.steered) == (False, True)


def test_compared_tasks_without_any_of_a_kind_have_none_of_its_numbers():
    capability = ComparedTasks.of([compared("mmstar")])
    assert (capability.bias, capability.average, capability.combined) == ((), None, None)
    assert (capability.flips, capability.flips_holm, capability.bias_holm) == ((), (), ())
    single = ComparedTasks.of([compared("mcq"), unread("2afc", "after"), without_bias("mcq-age")])
    assert single.combined is None  # one task is left that can be combined
    assert single.average.estimate == compared("mcq").change().estimate
    assert [flip.task for flip in single.flips] == ["mcq", "mcq", "mcq-age", "mcq-age"]
    two = ComparedTasks.of([compared("mcq"), compared("nurse-doctor")])
    assert two.combined == sign_flip(list(two.bias))


def test_tests_that_are_not_defined_do_not_count_in_holms_correction():
    assert selection.adjusted([0.01, None, 0.04, float("nan")]) == (
        pytest.approx(0.02),
        None,
        pytest.approx(0.04),
        None,
    )
    assert selection.adjusted([None, float("nan")]) == (None, None)
    assert selection.adjusted([]) == ()


def test_a_side_of_a_comparison_says_what_was_asked_of_whom():
    hash_of_steerer = "0123456789abcdef"
    source = Source("org/model", "ggss", "race", 0.5, "reflect", steerer=hash_of_steerer)
    items = invented_study.ITEMS["mcq"][:6]
    answers = tuple(Answer("A") for _ in items)
    first = Run("mcq", items, answers, source).measured(STATISTICS)
    second = Run("mcq", items[:4], answers[:4], replace(source, suite="own", model="other")).measured(STATISTICS)
    assert Side.of([first, second, first]) == Side(
        "org/model",
        True,
        "ggss",
        "race",
        0.5,
        hash_of_steerer,
        ("reflect", "own"),
        3,
        16,
        "org/model, ggss of race at alpha 0.5, steerer 0123456789ab; 16 items, 3 tasks of reflect and own",
    )
    assert Side.of([first, second]).said.endswith("; 10 items, 2 tasks of reflect and own")
    plain = Run("mcq", items, answers, Source("m", suite="own")).measured(STATISTICS)
    assert Side.of([plain]).said == "m, unsteered; 6 items, 1 task of own"
    assert Side.of([plain]).steerer == ""


def test_whose_answer_depends_on_gender_is_known_though_the_gap_is_not():
    """Nothing that is said about men can be read: there is no gap, but the answers are not the same for a woman."""

    def silent(cell, item, rng):
        return "hm" if item.attributes[0]["gender"] == "man" else answer(cell, item, rng)

    task = compared("nurse-doctor", say=silent)
    assert (task.baseline, task.reached) == (None, None)
    assert selection.average_flip_rate([task]).estimate == pytest.approx(1)
    spilled = selection.spill_over([task], "gender")
    assert (spilled.flips, spilled.cases) == ((80, 80), 80)


def test_identities_are_ordered_by_number_and_then_by_name():
    """A number that is too long to count with is a name."""
    names = ["2", "10", "9" * 19, "ann", "bob", "²"]
    clusters = {f"studio/nurse/{name}" for name in names}
    expected = [frozenset({f"studio/nurse/{name}"}) for name in names]
    assert selection.folds_of(clusters, len(names)) == expected
    assert selection.folds_of(names, len(names)) == [frozenset({name}) for name in names]
    assert len(selection.folds_of({"9" * 5000, "1"})) == 2


def test_a_strength_is_chosen_without_each_of_four_folds():
    found = invented_study.results()
    turns = selection.cross_fit(found.sweep(QWEN, "ggss"), found.everyone(QWEN), 4)
    assert [len({selection.identity(cluster) for cluster in turn.fold}) for turn in turns] == [2] * 4


@pytest.mark.parametrize(
    "average", [selection.average_change, selection.corrected_average, selection.average_flip_rate]
)
def test_people_of_a_task_that_does_not_count_are_no_units(average):
    """Nurse/Doctor is about other people than the MCQ; where it cannot be read, Avg is that of the MCQ alone."""
    alone, both = average([compared("mcq")]), average([compared("mcq"), unread("nurse-doctor", "after")])
    people = set(compared("mcq").after.clusters)
    assert people.isdisjoint(compared("nurse-doctor").after.clusters)
    assert both == alone
    assert both.units == len(people)
