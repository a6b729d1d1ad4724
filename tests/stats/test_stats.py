"""The statistics against scipy, brute force and their own promises (p-values uniform under the null)."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy import stats as reference
from scipy.optimize import minimize_scalar
from scipy.special import xlogy

from ggss.errors import InputError
from ggss.probes.metrics import answer_gap, mean_jsd, preference_std
from ggss.stats import (
    Metric,
    bootstrap,
    fieller,
    holm,
    jackknife,
    label_null,
    mcnemar,
    mean,
    minimum_detectable_change,
    prediction_powered,
    share_change,
    signflip,
    tost,
)
from ggss.stats.metric import TINY, dispersion, grouped, mean_of, ratio, score_interval
from ggss.stats.resampling import Permutation, _coins, batches

RACES = np.array(["a", "b", "c", "d", "e"])


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def skewed(rng, n=60):
    return rng.exponential(size=n)


def powered(scores, labels):
    """The mean of one group, from a judge's scores and human labels."""
    return prediction_powered(scores, labels, np.zeros(len(scores), dtype=int), lambda means: means[:, 0])


def jsd(rng, identities=8, effect=0.0, shared=0.0):
    """An MCQ of five races and two versions per identity; and its identities and counterfactual sets."""
    identity, version, race = (g.ravel() for g in np.meshgrid(range(identities), range(2), range(5), indexing="ij"))
    score = rng.normal(0, 1, len(race)) + rng.normal(0, shared + 1e-9, identities)[identity] + effect * (race - 2)
    answer = ["ABCD"[k] for k in np.searchsorted([-0.9, 0, 0.9], score)]
    return mean_jsd(["q"] * len(race), RACES[race], answer, "ABCD"), identity, identity * 2 + version


@pytest.mark.parametrize("method", ["percentile", "bca"])
def test_bootstrap_of_the_mean_is_scipys(rng, method):
    values = skewed(rng)
    ours = bootstrap(values, method=method, resamples=20_000)
    theirs = reference.bootstrap((values,), np.mean, method=method, n_resamples=20_000, rng=rng).confidence_interval
    assert ours.estimate == pytest.approx(values.mean())
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs), abs=0.015)
    assert len(ours.draws) == 20_000


def test_bca_differs_from_percentile_where_the_sample_is_skewed(rng):
    values = skewed(rng)
    assert bootstrap(values, method="bca").high > bootstrap(values).high + 0.02


def test_bootstrap_draws_are_recounts_of_the_same_items(rng):
    """The same draws by hand: the values of the resampled items, one resample after the other."""
    values = skewed(rng, 30)
    drawn = np.random.default_rng(5).integers(30, size=(200, 30))
    np.testing.assert_allclose(bootstrap(values, resamples=200, seed=5).draws, values[drawn].mean(1))


def test_bootstrap_is_repeatable_and_its_seed_matters(rng):
    values = skewed(rng)
    assert bootstrap(values) == bootstrap(values, seed=0)
    assert bootstrap(values, seed=3) == bootstrap(values, seed=3)
    assert bootstrap(values, seed=3) != bootstrap(values, seed=4)


def test_memory_batches_change_nothing_but_the_stream(rng, monkeypatch):
    values = skewed(rng)
    whole = bootstrap(values)
    monkeypatch.setattr("ggss.stats.resampling._CELLS", 500)
    parts = bootstrap(values)
    assert len(parts.draws) == 10_000
    assert (parts.low, parts.high) == pytest.approx((whole.low, whole.high), abs=0.02)


def test_cluster_bootstrap_sees_what_items_of_a_cluster_share(rng):
    clusters = np.repeat(np.arange(20), 10)
    values = rng.normal(0, 1, 20)[clusters] + rng.normal(0, 0.1, 200)
    items, whole = bootstrap(values), bootstrap(values, clusters)
    assert (whole.units, items.units) == (20, 200)
    assert whole.high - whole.low > 2 * (items.high - items.low)


def test_percent_change_is_paired(rng):
    """Both runs vary a lot over items and their ratio does not: only a paired interval knows."""
    before = rng.exponential(size=200)
    after = 0.4 * before
    change = bootstrap(mean(after).percent_change(mean(before)))
    assert change.low == pytest.approx(-60)
    assert change.high == pytest.approx(-60)
    difference = bootstrap(mean(after).minus(mean(before)))
    assert difference.estimate == pytest.approx((after - before).mean())


def test_change_of_a_zero_baseline_is_undefined():
    interval = bootstrap(mean([1.0, 2.0, 3.0]).percent_change(mean([0.0, 0.0, 0.0])))
    assert np.isnan([interval.estimate, interval.low, interval.high]).all()
    assert interval.undefined == 1


def test_undefined_resamples_are_counted():
    sparse = answer_gap(["man"] * 5 + ["woman"] * 5, ["nurse"] + [None] * 4 + ["doctor"] * 5, "nurse")
    interval = bootstrap(sparse)
    assert interval.undefined == pytest.approx((1 - 0.1) ** 10, abs=0.02)  # the only man's answer not drawn
    assert np.isfinite(interval.low)


def test_jackknife_of_the_mean_is_students_interval(rng):
    values = skewed(rng)
    interval = jackknife(values)
    low, high = reference.t.interval(0.95, len(values) - 1, values.mean(), reference.sem(values))
    assert (interval.estimate, interval.low, interval.high) == pytest.approx((values.mean(), low, high))


def test_two_units_are_enough_for_an_interval():
    interval = jackknife([1.0, 3.0])
    low, high = reference.t.interval(0.95, 1, 2, 1)
    assert (interval.estimate, interval.low, interval.high) == pytest.approx((2, low, high))


def test_jackknife_makes_the_variance_unbiased(rng):
    """Its best known property: the plug-in variance becomes the one with n - 1."""
    x = skewed(rng, 12)
    terms = np.column_stack([np.ones(12), x, x**2])
    variance = Metric("variance", terms, lambda s: s[:, 2] / s[:, 0] - (s[:, 1] / s[:, 0]) ** 2)
    assert float(variance) == pytest.approx(x.var())
    assert jackknife(variance).estimate == pytest.approx(x.var(ddof=1))


def test_jackknife_removes_the_bias_of_the_jsd_and_the_percentile_interval_misses(rng):
    """Eighty answers without any bias: the plug-in value is far above zero and so is its whole interval."""
    plug_in, corrected, held, missed = [], [], 0, 0
    for seed in range(60):
        metric, identity, _ = jsd(rng, shared=0.5)
        interval = jackknife(metric, identity)
        plug_in.append(float(metric))
        corrected.append(interval.estimate)
        held += interval.low <= 0 <= interval.high
        missed += bootstrap(metric, identity, resamples=100, seed=seed).low > 0
    assert np.mean(plug_in) > 0.03
    assert abs(np.mean(corrected)) < 0.01
    assert held >= 54
    assert missed == 60


def test_jackknife_of_a_spread_works_on_its_square(rng):
    first, second = zip(*((a, b) for a in RACES for b in RACES if a != b), strict=True)
    choice = rng.choice(["first", "second"], size=20).tolist()
    metric = preference_std(first, second, choice)
    assert metric.root
    squared = Metric("squared", metric.terms, lambda sums: metric.value(sums) ** 2)
    expected = jackknife(squared)
    interval = jackknife(metric)
    assert interval.low == pytest.approx(max(expected.low, 0) ** 0.5)
    assert interval.high == pytest.approx(expected.high**0.5)


def test_jackknife_that_hangs_on_one_answer_has_no_interval():
    sparse = answer_gap(["man"] * 5 + ["woman"] * 5, ["nurse"] + [None] * 4 + ["doctor"] * 5, "nurse", signed=True)
    interval = jackknife(sparse)
    assert np.isnan(interval.low)
    assert interval.undefined == pytest.approx(0.1)


@pytest.mark.parametrize("wrong", [0, 1, 3, 40, 77, 79, 80])
@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-1.0, 1.0), (0.0, 200.0)])
def test_the_interval_of_a_share_stays_within_its_bounds(wrong, bounds):
    """Ten answers about each of eight identities."""
    clusters = np.repeat(np.arange(8), 10)
    least, most = bounds
    values = np.where(np.arange(80) < wrong, least, most)
    found = jackknife(mean(values, bounds=bounds), clusters)
    assert least <= found.low <= found.estimate <= found.high <= most
    assert found.high - found.low > 0.01 * (most - least)
    assert found.estimate == pytest.approx(values.mean())


def test_the_interval_of_a_share_is_wilsons_where_all_answers_are_right():
    found = jackknife(mean(np.ones(8), bounds=(0.0, 1.0)), level=0.95)
    assert (found.high, found.method) == (1.0, "wilson")
    assert found.low == pytest.approx(reference.binomtest(8, 8).proportion_ci(0.95, "wilson").low)


@pytest.mark.parametrize("right", [1, 10, 19])
def test_the_interval_of_units_that_are_all_or_nothing_is_wilsons(right):
    """The jackknife's variance divides by n - 1: it is Wilson's with 19 answers, of a mean of 20, and no t."""
    found = jackknife(mean(np.arange(20) < right, bounds=(0.0, 1.0)))
    for end in (found.low, found.high):
        distance = reference.norm.ppf(0.975) * np.sqrt(end * (1 - end) / 19)
        assert abs(right / 20 - end) == pytest.approx(distance)
    everybody = jackknife(mean(np.repeat(np.arange(20) < right, 7), bounds=(0.0, 1.0)), np.repeat(np.arange(20), 7))
    assert (everybody.low, everybody.high) == pytest.approx((found.low, found.high))


def test_far_from_the_ends_the_interval_of_a_share_is_nearly_students(rng):
    values = rng.uniform(0.48, 0.52, 30)
    found, student = jackknife(mean(values, bounds=(0.0, 1.0))), jackknife(values)
    assert (found.low, found.high) == pytest.approx((student.low, student.high), abs=1e-5)
    assert found.high - found.low > 1e-3


def test_a_difference_of_bounded_metrics_is_bounded():
    ones, zeros = (mean(np.full(6, value), bounds=(0.0, 1.0)) for value in (1.0, 0.0))
    less = ones.minus(zeros)
    assert less.bounds == (-1.0, 1.0)
    found = jackknife(less)
    assert found.low < found.estimate == found.high == 1
    assert ones.minus(mean(np.zeros(6))).bounds is None


def test_a_change_stays_within_what_a_share_can_change():
    """Student's bound of this change is +126 points: no share can gain that much."""
    clusters = [0] * 4 + [1] * 4 + [2] * 4
    before, after = np.zeros(12), np.array([1.0] * 8 + [0.0] * 4)
    found, unbounded = (tost(after + more, before + more, clusters=clusters, size=0.025) for more in (0, 1))
    assert unbounded.high > 1 >= found.high > found.difference == pytest.approx(2 / 3)
    assert unbounded.difference == pytest.approx(found.difference)
    assert -1 <= found.low <= found.difference


@pytest.mark.parametrize("margin", [0.02, 0.1, 0.3, 0.5])
def test_tost_of_shares_ends_where_its_interval_touches_the_margin(margin, rng):
    """Its p-value is the size at which the interval of the change is just within the margin."""
    clusters = np.repeat(np.arange(12), 5)
    before = rng.integers(2, size=60).astype(float)
    after = np.where(rng.random(60) < 0.3, 0.0, before)
    found = tost(after, before, margin, clusters)
    within = abs(found.difference) < margin
    assert (found.p < 0.5) is bool(within)
    touching = share_change(after, before, clusters, level=1 - 2 * min(found.p, 1 - found.p))
    ends = (max(touching.high, -touching.low), min(abs(touching.high), abs(touching.low)))
    assert ends[0 if within else 1] == pytest.approx(margin, abs=1e-6)
    ours = share_change(after, before, clusters, level=0.9)
    assert (found.low, found.high) == (ours.low, ours.high)
    assert (found.margin, found.size) == (margin, 0.05)
    assert found.equivalent is bool(max(ours.high, -ours.low) <= margin)
    other = tost(before, after, margin, clusters)
    assert (other.difference, other.p) == pytest.approx((-found.difference, found.p))
    assert tost(after, before, 0.9, clusters).p <= 1e-12  # no interval reaches so far


@pytest.mark.parametrize("sign", [1, -1])
def test_a_share_that_changes_by_just_the_margin_is_not_within_it(sign):
    """Of two people all these numbers are exact in float64."""
    before, after = np.array([0.25, 0.5]), np.array([0.5, 0.75])
    found = tost(after, before, 0.25) if sign > 0 else tost(before, after, 0.25)
    assert found.difference == sign * 0.25
    assert 0.5 < found.p < 0.51


def right(people, of=10):
    """Right answers (1) of each person, as one list, and whose they are."""
    return np.concatenate([np.arange(of) < n for n in people]).astype(float), np.repeat(np.arange(len(people)), of)


@pytest.mark.parametrize(
    ("after", "before", "margin"), [((5, 4, 5), (7, 2, 7), 0.1), ((6, 5), (7, 4), 0.2), ((7, 4), (6, 5), 0.2)]
)
def test_a_few_people_whose_shorter_interval_is_of_the_smaller_size_are_no_proof(after, before, margin):
    (new, clusters), (old, _) = right(after), right(before)
    found = tost(new, old, margin, clusters)
    assert max(-found.low, found.high) > margin
    assert found.p > found.size


def test_equivalent_means_that_the_interval_is_within_the_margin():
    rng, shown = np.random.default_rng(2), 0
    for _ in range(150):
        count = rng.integers(2, 5)
        before = rng.integers(0, 11, count)
        after = np.clip(before + rng.integers(-2, 3, count), 0, 10)
        (new, clusters), (old, _) = right(after), right(before)
        margin = rng.choice([0.1, 0.2, 0.3])
        found = tost(new, old, margin, clusters)
        shown += found.equivalent
        if found.equivalent:
            assert -margin < found.low <= found.high < margin, (after, before, margin)
    assert shown


@pytest.mark.parametrize("change", [0.1, -0.1, 0.06, 0.05])
def test_a_change_beyond_the_margin_is_never_equivalent(change):
    """Its p is 1 less the largest size at which the interval reaches into the margin."""
    before = np.full(12, 0.5) + np.tile([0.1, -0.1, 0.02], 4)
    after = before + change + np.tile([0.03, 0.05, -0.01, -0.07], 3)
    found = tost(after, before, 0.05)
    assert 0.5 <= found.p < 1
    touching = share_change(after, before, level=1 - 2 * (1 - found.p))
    assert min(abs(touching.low), abs(touching.high)) == pytest.approx(0.05, abs=1e-6)
    assert tost(before + 0.4, before, 0.05).p == pytest.approx(1)  # no interval reaches so far


def test_fieller_holds_what_the_jackknife_of_the_difference_holds(rng):
    """Its definition: r is in the interval if and only if zero is in that of steered - r unsteered."""
    before = rng.normal(1, 0.5, 40)
    after = 0.6 * before + rng.normal(0, 0.3, 40)
    interval = fieller(after, before)
    assert interval.estimate == pytest.approx(100 * (after.mean() / before.mean() - 1))
    for bound in (interval.low, interval.high):
        difference = jackknife(after - (1 + bound / 100) * before)
        assert min(abs(difference.low), abs(difference.high)) == pytest.approx(0, abs=1e-9)


def test_fieller_is_unbounded_where_there_was_no_bias(rng):
    before = rng.normal(0, 1, 40)
    interval = fieller(before + 0.1, before - before.mean() + 0.01)
    assert (interval.low, interval.high) == (-np.inf, np.inf)
    same = fieller(np.arange(1.0, 9), np.arange(1.0, 9))
    assert (same.low, same.high) == pytest.approx((0, 0))


def every_swap(one, other, value):
    """The exact two-sided p-value: all relabellings of two small runs."""
    observed = abs(value(one) - value(other))
    found = [
        abs(value(np.where(kept, one, other)) - value(np.where(kept, other, one)))
        for kept in product([True, False], repeat=len(one))
    ]
    return np.mean(np.array(found) >= observed - 1e-12)


def test_signflip_of_means_is_the_exact_test(rng):
    one, other = rng.normal(0.8, 1, 8), rng.normal(0, 1, 8)
    exact = every_swap(one, other, np.mean)
    result = signflip(one, other, draws=40_000)
    assert result.statistic == pytest.approx(one.mean() - other.mean())
    assert result.p == pytest.approx(exact, abs=0.01)


def test_signflip_recomputes_a_nonlinear_metric_on_every_swap(rng):
    gender = np.array(["man", "woman"] * 5)
    one, other = (rng.choice(["nurse", "doctor"], size=10) for _ in range(2))
    exact = every_swap(one, other, lambda said: float(answer_gap(gender, said.tolist(), "nurse")))
    metrics = (answer_gap(gender, said.tolist(), "nurse") for said in (one, other))
    assert signflip(*metrics, draws=40_000).p == pytest.approx(exact, abs=0.01)


def test_signflip_p_counts_the_data_itself():
    assert signflip(np.ones(30), np.zeros(30), draws=99).p == pytest.approx(1 / 100)
    assert signflip(np.ones(30), np.ones(30), draws=99).p == 1


def test_signflip_p_is_uniform_under_the_null():
    p = []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        (one, _, _), (other, _, _) = jsd(rng, effect=0.4), jsd(rng, effect=0.4)
        p.append(signflip(one, other, draws=199, seed=seed).p)
    assert reference.kstest(p, "uniform").pvalue > 0.01
    assert np.mean(np.array(p) <= 0.05) < 0.085


def test_rounding_makes_no_draw_undefined(rng):
    """One run never gives an option any chance: sums put together from differences may round below zero."""
    some = rng.dirichlet([1, 1, 1], size=60)
    none = np.column_stack([some[:, 0] + some[:, 2], some[:, 1], np.zeros(60)])
    one, other = (mean_jsd(["q"] * 60, np.tile(RACES, 12), shares, "ABC") for shares in (some, none))
    result = signflip(one, other, clusters=np.repeat([0, 1], 30), draws=200)
    assert np.isfinite(result.draws).all()


def test_clusters_do_not_change_what_is_tested(rng):
    one, other = rng.normal(size=(2, 30))
    clusters = rng.integers(6, size=30)
    assert signflip(one, other, clusters=clusters, draws=9).statistic == pytest.approx(one.mean() - other.mean())


def test_swapping_identities_is_honest_where_swapping_items_is_not():
    """Each run is of its own mind about an identity as a whole."""
    rejected = np.zeros(2)
    clusters = np.repeat(np.arange(12), 10)
    for seed in range(200):
        rng = np.random.default_rng(seed)
        one, other = (rng.normal(0, 1, 12)[clusters] + rng.normal(0, 1, 120) for _ in range(2))
        for k, of in enumerate((None, clusters)):
            rejected[k] += signflip(one, other, clusters=of, draws=199, seed=seed).p <= 0.05
    assert rejected[0] > 60
    assert rejected[1] < 20


def test_tasks_are_combined_by_normalised_differences(rng):
    small, large = rng.normal(1, 0.2, 40), rng.normal(1000, 200, 40)
    result = signflip(
        [mean(small * 0.5), mean(large * 0.5)], [mean(small), mean(large)], [small.mean(), large.mean()]
    )
    assert result.statistic == pytest.approx(-1)
    left_out = signflip([mean(small * 0.5), mean(large)], [mean(small), mean(large * 0)], [small.mean(), 0.0])
    assert left_out.statistic == pytest.approx(-0.5)
    # A gap of minus one that becomes minus one half has narrowed like a spread that was halved.
    narrowed = signflip([mean(small * 0.5), mean(-small * 0.5)], [mean(small), mean(-small)], [1.0, -1.0])
    assert narrowed.statistic == pytest.approx(-small.mean())


def test_a_cluster_swaps_together_in_all_tasks():
    """One identity in two tasks with opposite differences: swapped together their sum is always nil."""
    up, down = np.array([1.0, 1, 2, 2]), np.array([-1.0, -1, -2, -2])
    zero, identity = np.zeros(4), np.array(["x", "x", "y", "y"])
    result = signflip([mean(up), mean(down)], [mean(zero)] * 2, [1.0, 1.0], [identity, identity], draws=50)
    np.testing.assert_allclose(result.draws, 0, atol=1e-12)


def test_an_undefined_metric_has_no_p():
    nothing = answer_gap(["man", "woman"], [None, "nurse"], "nurse")
    something = answer_gap(["man", "woman"], ["doctor", "nurse"], "nurse")
    result = signflip(nothing, something, draws=20)
    assert np.isnan([result.p, result.statistic]).all()
    assert len(result.draws) == 20


def test_label_null_is_uniform_without_bias_and_small_with_it():
    p, points = [], []
    for seed in range(300):
        metric, _, sets = jsd(np.random.default_rng(seed), shared=2.0)
        null = label_null(metric, sets, draws=199, seed=seed)
        p.append(null.p)
        points.append(null.quantile(0.95) > float(metric))
    assert reference.kstest(p, "uniform").pvalue > 0.01
    assert np.mean(points) == pytest.approx(0.95, abs=0.03)
    biased, _, sets = jsd(np.random.default_rng(0), effect=0.8)
    assert label_null(biased, sets, draws=999).p == pytest.approx(0.001)


def test_label_null_shuffles_within_blocks_only(rng):
    """Answers fixed by the block: within it all are alike, so no shuffle can change anything."""
    blocks = np.repeat(np.arange(10), 5)
    answer = np.array(list("AABBABABBA"))[blocks].tolist()
    metric = mean_jsd(["q"] * 50, np.tile(RACES, 10), answer, "AB")
    np.testing.assert_allclose(label_null(metric, blocks, draws=100).draws, float(metric), atol=1e-12)
    across = label_null(metric, np.arange(50) % 2, draws=100)
    assert across.draws.std() > 0


def test_label_null_of_a_signed_gap_is_two_sided():
    blocks = np.repeat(np.arange(20), 2)
    for said in (["nurse", "doctor"], ["doctor", "nurse"]):
        gap = answer_gap(["man", "woman"] * 20, said * 20, "nurse", signed=True)
        assert label_null(gap, blocks, draws=999).p == pytest.approx(0.001)


def test_label_null_is_a_plain_shuffle(rng):
    sets = np.repeat(np.arange(6), 5)
    order = rng.permutation(len(sets))  # blocks need not be contiguous
    answer = rng.choice(list("AB"), size=30)
    race = np.tile(RACES, 6)[order]
    metric = mean_jsd(["q"] * 30, race, answer.tolist(), "AB")
    null = label_null(metric, sets[order], draws=4000)
    shuffled = []
    for _ in range(1500):
        labels = race.copy()
        for block in np.unique(sets):
            at = np.flatnonzero(sets[order] == block)
            labels[at] = rng.permutation(labels[at])
        shuffled.append(float(mean_jsd(["q"] * 30, labels, answer.tolist(), "AB")))
    assert reference.ks_2samp(null.draws, shuffled).pvalue > 0.01


def test_holm_by_hand():
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(holm([[0.9, 0.001], [0.4, 0.5]]), [[1, 0.004], [1, 1]])


@pytest.mark.parametrize(("b", "c"), [(0, 0), (1, 0), (5, 5), (3, 12), (40, 22), (0, 9)])
def test_mcnemar_is_the_binomial_test(b, c):
    expected = reference.binomtest(b, b + c, 0.5).pvalue if b + c else 1.0
    assert mcnemar(b, c) == pytest.approx(expected)


def paired(n, gained, lost, right=0.5):
    before = np.zeros(n)
    before[: int(n * right)] = 1
    after = before.copy()
    after[:lost] = 0
    after[n - gained :] = 1
    return after, before


def test_tost_at_margin_zero_would_be_mcnemar():
    """Tango's interval of the difference excludes zero exactly when the score form of McNemar's test rejects."""
    result = tost(*paired(1500, 60, 90), size=0.025)
    assert result.difference == pytest.approx(-0.02)
    assert result.high < 0
    edge = tost(*paired(1500, 60, 84), size=0.025)
    assert (edge.high < 0) == ((84 - 60) / np.sqrt(144) > reference.norm.ppf(0.975))


def score_of_difference(difference, gained, lost, n):
    """The score statistic with the loss that is likeliest given the difference, found by search."""

    def unlikely(loss):
        cells = np.array([loss + difference, loss, 1 - 2 * loss - difference])
        return -np.sum(xlogy([gained, lost, n - gained - lost], cells))

    bounds = (max(0.0, -difference), (1 - difference) / 2)
    loss = minimize_scalar(unlikely, bounds=bounds, method="bounded", options={"xatol": 1e-12}).x
    return (gained - lost - n * difference) / np.sqrt(n * (2 * loss + difference - difference**2))


@pytest.mark.parametrize(("gained", "lost", "n"), [(12, 2, 50), (3, 9, 200), (40, 55, 1500)])
def test_tost_bounds_invert_the_score_statistic(gained, lost, n):
    result = tost(*paired(n, gained, lost), size=0.025)
    assert score_of_difference(result.low, gained, lost, n) == pytest.approx(1.96, abs=1e-3)
    assert score_of_difference(result.high, gained, lost, n) == pytest.approx(-1.96, abs=1e-3)
    upper = reference.norm.cdf(score_of_difference(0.015, gained, lost, n))
    lower = reference.norm.sf(score_of_difference(-0.015, gained, lost, n))
    assert result.p == pytest.approx(max(upper, lower), abs=1e-4)


def test_tost_agrees_with_its_interval():
    for gained, lost in ((30, 35), (10, 15), (2, 1), (0, 0)):
        for margin in (0.005, 0.015, 0.03):
            result = tost(*paired(1500, gained, lost), margin)
            assert result.equivalent == (-margin <= result.low and result.high <= margin)


def test_few_questions_prove_no_equivalence():
    assert not tost(*paired(20, 0, 0)).equivalent
    assert tost(*paired(1500, 0, 0)).equivalent
    assert not tost(*paired(20, 0, 0), clusters=np.repeat(np.arange(5), 4)).equivalent


def test_not_significant_is_not_equivalent():
    after, before = paired(1500, 130, 140)
    assert mcnemar(130, 140) > 0.5
    assert not tost(after, before).equivalent


def test_tost_of_numbers_is_two_students_tests(rng):
    before = rng.random(200)
    after = before + rng.normal(0.002, 0.05, 200)
    result = tost(after, before, 0.015)
    upper = reference.ttest_1samp(after - before, 0.015, alternative="less").pvalue
    lower = reference.ttest_1samp(after - before, -0.015, alternative="greater").pvalue
    assert result.p == pytest.approx(max(upper, lower))
    assert tost(after, before, 0.015, clusters=np.arange(200)).p == pytest.approx(result.p)


def test_tost_rejects_seldom_at_the_margin(rng):
    equivalent = 0
    for _ in range(2000):
        change = rng.choice([1, -1, 0], size=500, p=[0.005, 0.02, 0.975])  # a loss of exactly 1.5 points
        before = np.where(change == 0, rng.integers(2, size=500), change == -1)
        equivalent += tost(before + change, before).equivalent
    assert equivalent / 2000 <= 0.06


def test_minimum_detectable_change_is_found_as_often_as_promised(rng):
    change = minimum_detectable_change(400, 1.0, power=0.8)
    samples = rng.normal(change, 1, (2000, 400))
    assert np.mean(reference.ttest_1samp(samples, 0, axis=1).pvalue <= 0.05) == pytest.approx(0.8, abs=0.03)
    assert minimum_detectable_change(1, 0.0) == 0
    assert minimum_detectable_change(1500, np.sqrt(0.1)) == pytest.approx(0.0229, abs=1e-4)


@pytest.mark.parametrize(
    ("call", "seen"),
    [
        (lambda: bootstrap([]), "at least one item"),
        (lambda: bootstrap([1.0, np.nan]), "1 terms are NaN"),
        (lambda: bootstrap([1.0, None]), "1 terms are NaN"),  # pyright: ignore
        (lambda: bootstrap([1.0, 2.0], seed=-1), "^a seed must be from 0"),
        (lambda: signflip([1.0, 2.0], [1.0, 2.0], seed=-1), "^a seed must be from 0"),
        (lambda: label_null(answer_gap(["man", "woman"], ["nurse"] * 2, "nurse"), [0, 1], seed=-1), "^a seed must"),
        (lambda: bootstrap([[1.0, 2.0]]), "one number per item"),
        (lambda: bootstrap([1.0, 2.0], [0]), "2 cluster labels"),
        (lambda: bootstrap([1.0, 2.0], [0, 0]), "one cluster"),
        (lambda: bootstrap([1.0, 2.0], method="magic"), "'magic' is unknown"),  # pyright: ignore
        (lambda: bootstrap([1.0, 2.0], level=95), "between 0 and 1"),
        (lambda: bootstrap([1.0, 2.0], level=0), "between 0 and 1"),
        (lambda: bootstrap([1.0, 2.0], level=1), "between 0 and 1"),
        (lambda: bootstrap([1.0, 2.0], level=1.5), "between 0 and 1"),
        (lambda: bootstrap([1.0, 2.0], resamples=0), "at least one resample"),
        (lambda: mean([1.0]).percent_change(mean([1.0, 2.0])), "has 1, mean 2"),
        (lambda: jackknife([1.0]), "at least two"),
        (lambda: fieller([1.0, 2.0], [1.0]), "same items"),
        (lambda: signflip([1.0, 2.0], [1.0]), "same items"),
        (lambda: signflip([mean([1.0])] * 2, [mean([1.0])]), "cannot be paired"),
        (lambda: signflip([mean([1.0])] * 2, [mean([1.0])] * 2), "baselines"),
        (lambda: signflip([mean([1.0])] * 2, [mean([1.0])] * 2, [1.0]), "2 baselines, got 1"),
        (lambda: signflip([mean([1.0])] * 2, [mean([1.0])] * 2, [1.0, np.nan]), "mean: nan"),
        (lambda: signflip([mean([1.0])] * 2, [mean([1.0])] * 2, [0.0, 0.0]), "baseline of zero"),
        (lambda: signflip([1.0, 2.0], [1.0, 2.0], clusters=[0]), r"shape \(1,\)"),
        (lambda: signflip([1.0, 2.0], [1.0, 2.0], draws=0), "at least one resample"),
        (lambda: label_null(mean([1.0, 2.0]), [0, 1]), "compares no groups"),
        (lambda: label_null(replace(mean([1.0, 2.0]), groups=np.arange(2)), [0, 1]), "compares no groups"),
        (lambda: label_null(answer_gap(["man", "woman"], ["nurse"] * 2, "nurse"), [0, 1]), "one group only"),
        (lambda: holm([0.5, np.nan]), "between 0 and 1"),
        (lambda: holm([]), "between 0 and 1"),
        (lambda: holm([-0.1, 0.5]), "between 0 and 1"),
        (lambda: holm([1.5]), "between 0 and 1"),
        (lambda: signflip([mean([1.0, 2.0])] * 2, [mean([1.0, 2.0])] * 2, [1.0] * 2, [[0, 1]]), "got 1 lists"),
        (lambda: mcnemar(-1, 2), "two counts"),
        (lambda: mcnemar(2, -1), "two counts"),
        (lambda: mcnemar(1.5, 2), "two counts"),  # pyright: ignore
        (lambda: mcnemar(2, 1.5), "two counts"),  # pyright: ignore
        (lambda: mcnemar(np.nan, 3), "two counts"),
        (lambda: mcnemar(3, np.inf), "two counts"),
        (lambda: tost([1.0, 0.0], [1.0, 0.0], size=0.9), "between 0 and 0.5, such as 0.05; got 0.9"),
        (lambda: tost([1.0, 0.0], [1.0, 0.0], size=0.5), "between 0 and 0.5, such as 0.05; got 0.5"),
        (lambda: tost([1.0, 0.0], [1.0, 0.0], size=0), "between 0 and 0.5"),
        (lambda: jackknife([1.0, 0.0], [None, "a"]), "all text or all numbers, got NoneType, str"),
        (lambda: powered([], []), "got 0, 0 and 0 of them"),
        (lambda: powered([1.0, 2.0, 3.0], [1.0, 2.0]), "got 3, 2 and 3 of them"),
        (lambda: tost([1.0, 0.0], [1.0, 0.0], margin=0), "0.015 for 1.5 points"),
        (lambda: tost([1.0, 0.0], [1.0, 0.0], margin=1), "0.015 for 1.5 points"),
        (lambda: minimum_detectable_change(1, np.inf), "at least one item"),
        (lambda: minimum_detectable_change(1, -1.0), "at least one item"),
        (lambda: tost([1.0], [1.0]), "at least two"),
        (lambda: tost([1.0, 0.0], [1.0]), "same questions"),
        (lambda: tost([1.0, np.nan], [1.0, 0.0]), "NaN"),
        (lambda: tost([1.0, None], [1.0, 0.0]), "NaN"),  # pyright: ignore
        (lambda: tost([1.0, 0.0], [None, 0.0]), "NaN"),  # pyright: ignore
        (lambda: tost([1.0, 0.0], [1.0, 0.0], margin=1.5), "0.015 for 1.5 points"),
        (lambda: minimum_detectable_change(0, 1.0), "at least one item"),
    ],
)
def test_bad_input_gets_one_sentence(call, seen):
    with pytest.raises(InputError, match=seen):
        call()


def test_runs_in_another_order_are_refused():
    one = answer_gap(["man", "man", "woman"], ["nurse"] * 3, "nurse")
    other = answer_gap(["man", "woman", "man"], ["nurse"] * 3, "nurse")
    with pytest.raises(InputError, match="item 1 is of another group in the other run; put both in the same order"):
        one.percent_change(other)


def test_different_metrics_cannot_swap_answers():
    one = mean_jsd(["q"] * 2, ["a", "b"], ["A", "B"], "AB")
    other = mean_jsd(["q"] * 2, ["a", "b"], ["A", "B"], "ABC")
    with pytest.raises(InputError, match="not the same metric"):
        signflip(one, other)


def test_what_an_interval_says_of_itself(rng):
    values, clusters = skewed(rng, 12), np.repeat(np.arange(4), 3)
    sparse = answer_gap(["man"] * 5 + ["woman"] * 5, ["nurse"] + [None] * 4 + ["doctor"] * 5, "nurse", signed=True)
    full = answer_gap(["man"] * 5 + ["woman"] * 5, ["nurse"] * 10, "nurse", signed=True)
    told = [
        (bootstrap(values, clusters, level=0.8, resamples=50), ("percentile", 0.8, 4, 0.0)),
        (bootstrap(values, method="bca", resamples=50), ("bca", 0.95, 12, 0.0)),
        (jackknife(values, clusters, level=0.8), ("jackknife", 0.8, 4, 0.0)),
        (fieller(values, values + 1, clusters, level=0.8), ("fieller", 0.8, 4, 0.0)),
        (fieller(sparse, full), ("fieller", 0.95, 10, 0.1)),
        (share_change(values > 1, values > 2, clusters, level=0.8), ("newcombe", 0.8, 4, 0.0)),
        (share_change(sparse, full), ("newcombe", 0.95, 10, 0.1)),
    ]
    for interval, expected in told:
        assert (interval.method, interval.level, interval.units, interval.undefined) == pytest.approx(expected)


def test_clusters_of_equal_size_are_their_means(rng):
    """The jackknife, Fieller's interval and Student's test over clusters are those of the clusters' means."""
    clusters = np.tile(np.arange(9), 4)
    before = rng.normal(1, 0.3, 9)[clusters] + rng.normal(0, 0.1, 36)
    after = 0.7 * before + rng.normal(0, 0.1, 9)[clusters]
    means = [np.array([x[clusters == c].mean() for c in range(9)]) for x in (after, before)]
    assert jackknife(after, clusters) == jackknife(means[0])
    ours, theirs = fieller(after, before, clusters), fieller(*means)
    assert (ours.estimate, ours.low, ours.high) == pytest.approx((theirs.estimate, theirs.low, theirs.high))
    result, change = tost(after, before, 0.4, clusters, size=0.1), means[0] - means[1]
    low, high = reference.t.interval(0.8, 8, change.mean(), reference.sem(change))
    assert (result.difference, result.low, result.high) == pytest.approx((change.mean(), low, high))
    upper = reference.ttest_1samp(change, 0.4, alternative="less").pvalue
    lower = reference.ttest_1samp(change, -0.4, alternative="greater").pvalue
    assert result.p == pytest.approx(max(upper, lower))
    assert (result.margin, result.size) == (0.4, 0.1)


def test_fieller_has_a_lower_and_an_upper_bound(rng):
    before = rng.normal(1, 0.5, 40)
    after = 0.6 * before + rng.normal(0, 0.3, 40)
    interval = fieller(after, before, level=0.9)
    assert interval.low < interval.estimate < interval.high
    for bound, end in ((interval.low, "low"), (interval.high, "high")):
        assert getattr(jackknife(after - (1 + bound / 100) * before, level=0.9), end) == pytest.approx(0, abs=1e-9)


def test_fieller_of_a_spread_works_on_its_square(rng):
    first, second = zip(*((a, b) for a in RACES for b in RACES if a != b), strict=True)
    sure = ["first" if a < b else "second" for a, b in zip(first * 3, second * 3, strict=True)]
    spreads = [
        preference_std(first * 3, second * 3, np.where(rng.random(60) < share, sure, "first")) for share in (0.4, 0.8)
    ]
    assert jackknife(spreads[1]).low > 0
    squares = [Metric("squared", one.terms, lambda sums, one=one: one.value(sums) ** 2) for one in spreads]
    ours, theirs = fieller(*spreads), fieller(*squares)
    for end in ("estimate", "low", "high"):
        expected = 100 * (max(1 + getattr(theirs, end) / 100, 0) ** 0.5 - 1)
        assert getattr(ours, end) == pytest.approx(expected)


@pytest.mark.parametrize("before", [[-1.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
def test_fieller_without_any_bias_before_has_no_estimate(before):
    interval = fieller([1.0, 2.0, 3.0], before)
    assert np.isnan(interval.estimate)
    assert (interval.low, interval.high) == (-np.inf, np.inf)


def test_a_spread_or_divergence_whose_corrected_baseline_is_not_above_zero_has_no_percent_change():
    """By its sign a percentage of it would say that bias falls where it rises."""
    seen = {True: 0, False: 0}
    for seed in range(20):
        rng = np.random.default_rng(seed)
        (before, identities, _), (after, *_) = jsd(rng, effect=0.0), jsd(rng, effect=1.0)
        corrected, interval = jackknife(before, identities).estimate, fieller(after, before, identities)
        seen[corrected > 0] += 1
        if corrected > 0:
            assert interval.estimate == pytest.approx(
                100 * (jackknife(after, identities).estimate / corrected - 1), abs=1e-6
            )
        else:
            assert np.isnan(interval.estimate)
            assert (interval.low, interval.high) == (-np.inf, np.inf)
    assert min(seen.values()) > 2
    first, second = zip(*((a, b) for a in RACES for b in RACES if a != b), strict=True)
    sure = ["first" if a < b else "second" for a, b in zip(first, second, strict=True)]
    before = preference_std(first, second, np.random.default_rng(7).choice(["first", "second"], size=20))
    assert float(before) > jackknife(before).estimate == 0
    assert np.isnan(fieller(preference_std(first, second, sure), before).estimate)


def test_a_gap_with_its_sign_may_be_negative_and_has_a_percent_change():
    group = ["man", "woman"] * 20
    before, after = (
        answer_gap(group, ["nurse" if n % 4 == 1 or n in few else "doctor" for n in range(40)], "nurse", signed=True)
        for few in ((), (0, 2, 4))
    )
    interval = fieller(after, before)
    assert float(before) < 0
    assert interval.estimate == pytest.approx(-30)
    assert interval.low < -30 < interval.high


def test_tost_of_all_or_nothing_ends_at_the_edge():
    lost, won = tost(np.zeros(8), np.ones(8)), tost(np.ones(8), np.zeros(8))
    assert lost.low == -1
    assert won.high == 1
    assert (lost.difference, lost.high) == pytest.approx((-won.difference, -won.low))
    assert -1 < lost.high < 0
    assert lost.p == won.p > 0.99
    assert tost(*paired(50, 3, 4), 0.2, size=0.1).margin == 0.2


def test_tost_where_nothing_changed_counts_clusters():
    few = tost(*paired(20, 0, 0), clusters=np.repeat(np.arange(5), 4))
    assert few == tost(*paired(5, 0, 0)) == tost(np.full(5, 0.5), np.full(5, 0.5))


def test_tost_takes_truth_values_and_mixed_scores(rng):
    after, before = rng.integers(2, size=(2, 60))
    clusters = np.repeat(np.arange(20), 3)
    assert tost(after > 0, before > 0, clusters=clusters) == tost(after, before, clusters=clusters)
    partly, units = before * 0.5, np.arange(60)
    assert tost(after, partly) == tost(after, partly, clusters=units)


def test_tost_of_a_change_that_does_not_vary():
    inside = tost(np.full(30, 1.51), np.full(30, 1.5), 0.02)
    assert inside.p == 0
    assert (inside.low, inside.high) == pytest.approx((0.01, 0.01))
    shares = tost(np.full(30, 0.51), np.full(30, 0.5), 0.02)
    assert not shares.equivalent  # thirty people are no proof that others change as little


@pytest.mark.parametrize("sign", [1, -1])
def test_tost_of_a_change_that_is_the_margin_and_does_not_vary(sign):
    before = np.array([2.0, 3.0, 4.0, 7.7])
    found = tost(before + sign * 0.5, before, 0.5)
    assert (found.p, found.equivalent) == (0.5, False)
    assert tost(before + sign * 0.6, before, 0.5).p == 1


def test_a_permutation_test_is_repeatable_and_its_seed_matters(rng):
    one, other = rng.normal(size=(2, 12))
    assert len(signflip(one, other).draws) == 10_000
    np.testing.assert_array_equal(signflip(one, other, draws=50).draws, signflip(one, other, draws=50, seed=0).draws)
    assert (signflip(one, other, draws=50, seed=1).draws != signflip(one, other, draws=50).draws).any()
    metric, _, sets = jsd(rng)
    assert len(label_null(metric, sets).draws) == 10_000
    first = label_null(metric, sets, draws=50)
    np.testing.assert_array_equal(first.draws, label_null(metric, sets, draws=50, seed=0).draws)
    assert (first.draws != label_null(metric, sets, draws=50, seed=1).draws).any()


def test_every_unit_swaps_half_of_the_time():
    coins = _coins(np.random.default_rng(0), 4_000, 17)
    assert coins.shape == (4_000, 17)
    np.testing.assert_allclose(coins.mean(0), 0.5, atol=0.04)


def test_three_tasks_are_each_swapped_by_their_own_units(rng):
    runs = [(rng.normal(1, 1, n), rng.normal(0, 1, n)) for n in (3, 5, 4)]
    left, right = ([mean(run[side]) for run in runs] for side in (0, 1))
    labels = [np.arange(n) + 100 * task for task, n in enumerate((3, 5, 4))]
    expected = sum(one.mean() - other.mean() for one, other in runs)
    alone = signflip(left, right, [1.0] * 3, draws=4_000)
    named = signflip(left, right, [1.0] * 3, labels, draws=4_000)
    spread = np.sqrt(sum(((one - other) ** 2).sum() / len(one) ** 2 for one, other in runs))
    for result in (alone, named):
        assert result.statistic == pytest.approx(expected)
        assert result.draws.std() == pytest.approx(spread, rel=0.05)


def test_one_task_may_be_given_as_a_list_with_a_list_of_clusters(rng):
    one, other = rng.normal(size=(2, 8))
    clusters = np.repeat(np.arange(4), 2)
    flat = signflip(one, other, clusters=clusters, draws=30)
    listed = signflip([mean(one)], [mean(other)], [1.0], [clusters], draws=30)
    np.testing.assert_allclose(flat.draws, listed.draws)


def test_the_quantile_of_a_permutation_is_of_its_defined_draws():
    draws = np.append(np.arange(101.0), np.nan)
    assert Permutation(0.0, 1.0, draws).quantile() == 95
    assert Permutation(0.0, 1.0, draws).quantile(0.5) == 50
    assert np.isnan(Permutation(0.0, 1.0, np.full(3, np.nan)).quantile())


def test_holm_takes_whole_numbers():
    adjusted = holm([1, 0])
    assert adjusted.dtype == float
    np.testing.assert_array_equal(adjusted, [1, 0])


def test_a_difference_is_as_unreadable_as_its_worse_run():
    some = answer_gap(["man", "woman"] * 4, ["nurse"] * 6 + [None] * 2, "nurse")
    none = answer_gap(["man", "woman"] * 4, ["nurse"] * 8, "nurse")
    assert some.percent_change(none).unparsed == none.minus(some).unparsed == 2


def test_percentiles_are_those_of_the_draws(rng):
    interval = bootstrap(skewed(rng), level=0.5, resamples=300)
    assert (interval.low, interval.high) == pytest.approx(tuple(np.quantile(interval.draws, [0.25, 0.75])))


def test_mostly_undefined_resamples_have_no_interval():
    """One readable answer in each group: most resamples lose one of them."""
    said = (["nurse"] + [None] * 4) + (["doctor"] + [None] * 4)
    interval = bootstrap(answer_gap(["man"] * 5 + ["woman"] * 5, said, "nurse"))
    assert interval.undefined == pytest.approx(1 - (1 - 2 * 0.9**10 + 0.8**10), abs=0.02)
    assert interval.estimate == 1
    assert np.isnan([interval.low, interval.high]).all()


def bca(interval, left_out, level=0.95):
    """Efron's bounds from an interval's own draws, by the book."""
    draws = interval.draws
    below = reference.percentileofscore(draws, interval.estimate, kind="mean") / 100
    bias = reference.norm.ppf(np.clip(below, 0.5 / len(draws), 1 - 0.5 / len(draws)))
    pull = left_out.mean() - left_out
    skew = (pull**3).sum() / (6 * (pull**2).sum() ** 1.5) if pull.any() else 0
    z = bias + reference.norm.ppf([(1 - level) / 2, (1 + level) / 2])
    return tuple(np.quantile(draws, reference.norm.cdf(bias + z / (1 - skew * z))))


@pytest.mark.parametrize("sign", [1, -1])
def test_bca_by_the_book(rng, sign):
    values = sign * skewed(rng, 25)
    coarse = np.round(values)  # many draws equal the estimate
    for sample in (values, coarse):
        interval = bootstrap(sample, method="bca", resamples=500)
        left_out = (sample.sum() - sample) / (len(sample) - 1)
        assert (interval.low, interval.high) == pytest.approx(bca(interval, left_out))
    # How many different items: every resample has fewer, and leaving out any one is the same.
    distinct = Metric("distinct", np.eye(25), lambda sums: sign * (sums > 0).sum(1).astype(float))
    interval = bootstrap(distinct, method="bca", resamples=500)
    assert (sign * interval.draws < 25).all()
    assert (interval.low, interval.high) == pytest.approx(bca(interval, np.full(25, 24.0)))
    assert np.isfinite([interval.low, interval.high]).all()


def test_bca_where_nothing_varies_or_nothing_can_be_left_out():
    constant = bootstrap([2.0] * 5, method="bca", resamples=20)
    assert (constant.low, constant.estimate, constant.high) == (2, 2, 2)
    gap = answer_gap(["man", "woman"], ["nurse", "doctor"], "nurse")
    found = [bootstrap(gap, method="bca", resamples=4, seed=seed) for seed in range(20)]
    half = [interval for interval in found if interval.undefined <= 0.5]
    assert half
    assert all((interval.low, interval.high) == (1, 1) for interval in half)


def test_batches_have_all_rows_and_stay_within_memory():
    assert batches(1, 10) == [1]
    assert batches(5, 10**9) == [1] * 5
    sizes = batches(10_000, 60)
    assert sum(sizes) == 10_000
    assert max(sizes) * 60 <= 250_000


def test_the_mean_of_metrics_is_that_of_their_values(rng):
    """Of all items, of those that are left, and of any resample; each metric has as many sums as it needs."""
    gender = np.array(["man", "woman"] * 6)
    parts = [
        mean(rng.normal(size=12)),
        answer_gap(gender, rng.choice(["nurse", "doctor"], size=12).tolist(), "nurse"),
        mean_jsd(["q"] * 12, np.tile(RACES[:3], 4), rng.choice(list("AB"), size=12).tolist(), "AB"),
    ]
    both = mean_of(parts)
    assert (both.name, mean_of(parts, "Avg").name) == ("mean", "Avg")
    assert float(both) == pytest.approx(sum(map(float, parts)) / 3)
    np.testing.assert_allclose(both.without_each(), np.mean([part.without_each() for part in parts], axis=0))
    weights = rng.integers(3, size=(5, 12)).astype(float)
    expected = [part.value(weights @ part.terms) for part in parts]
    np.testing.assert_allclose(both.value(weights @ both.terms), np.mean(expected, axis=0))
    undefined = answer_gap(gender, [None, "nurse"] * 6, "nurse")
    assert np.isnan(float(mean_of([parts[0], undefined])))
    assert float(mean_of(parts[:1])) == pytest.approx(float(parts[0]))


def test_a_change_says_what_it_is():
    one = mean([1.0, 2.0], "JSD")
    assert (one.minus(one).name, one.percent_change(one).name) == ("JSD, difference", "JSD, change in %")


def test_a_baseline_as_small_as_rounding_is_none():
    tiny = mean([TINY, TINY])
    assert float(tiny) == TINY
    assert np.isnan(float(mean([1.0, 2.0]).percent_change(tiny)))
    assert float(mean([4 * TINY] * 2).percent_change(mean([2 * TINY] * 2))) == pytest.approx(100)
    some = [mean([1.0, 2.0]), mean([3.0, 5.0])]
    assert signflip(some, some[::-1], [1.0, TINY], draws=9).statistic == pytest.approx(1.5 - 4)


def test_clusters_are_of_no_one_group():
    gap = answer_gap(["man", "woman"] * 2, ["nurse", "doctor"] * 2, "nurse").by([0, 0, 1, 1])
    assert (len(gap), gap.groups, gap.evidence) == (2, None, None)
    with pytest.raises(InputError, match="compares no groups"):
        label_null(gap, [0, 1])


def test_a_metric_of_groups_has_their_sums():
    groups, evidence = np.array([0, 2, 0]), np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    first = grouped("first", groups, evidence, lambda sums: sums[:, 0, 1] - sums[:, 2, 0] + sums[:, 1].sum(1))
    assert float(first) == 2 + 6 - 3
    assert (first.name, first.unparsed, first.root) == ("first", 0, False)
    assert first.root is False
    told = grouped("first", groups, evidence, first.value, 2, True)
    assert (told.unparsed, told.root) == (2, True)
    np.testing.assert_array_equal(told.groups, groups)
    np.testing.assert_array_equal(told.evidence, evidence)


def test_nothing_can_be_a_share_of_nothing():
    found = ratio(np.array([1.0, 0.0, 3.0]), np.array([0.0, 0.0, 4.0]))
    np.testing.assert_array_equal(found, [np.nan, np.nan, 0.75])


def test_a_metric_of_unread_answers_counts_those_that_were_asked():
    one = mean([1.0, 2.0, 3.0])
    assert (one.asked, replace(one, asked=7).asked) == (3, 7)
    assert [replace(one, unparsed=lost).degenerate for lost in (1, 2)] == [False, True]
    assert not replace(one, unparsed=2, asked=4).degenerate


def wilson_interval(p, n):
    z = reference.norm.ppf(0.975)
    centre, half = (p + z * z / (2 * n)) / (1 + z * z / n), z * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return centre - half / (1 + z * z / n), centre + half / (1 + z * z / n)


def newcombe_paired(after, before):
    """Newcombe's interval (1998, method 10) of two paired binomial shares, from its formulas, without clusters."""
    n, (p1, p2) = len(after), (np.mean(after), np.mean(before))
    (l1, u1), (l2, u2) = (
        # The jackknife's variance divides by n - 1: of n units as of n - 1 answers, unless all are alike.
        wilson_interval(p, n if p in (0, 1) else n - 1)
        for p in (p1, p2)
    )
    a, b = float(np.sum(after * before)), float(np.sum(after * (1 - before)))
    c, e = float(np.sum((1 - after) * before)), float(np.sum((1 - after) * (1 - before)))
    product, phi = a * e - b * c, 0.0
    if margins := (a + b) * (c + e) * (a + c) * (b + e):
        phi = (max(product - n / 2, 0) if product > 0 else product) / np.sqrt(margins)
    d = p1 - p2
    low = d - np.sqrt((p1 - l1) ** 2 - 2 * phi * (p1 - l1) * (u2 - p2) + (u2 - p2) ** 2)
    high = d + np.sqrt((u1 - p1) ** 2 - 2 * phi * (u1 - p1) * (p2 - l2) + (p2 - l2) ** 2)
    return low, high


@pytest.mark.parametrize(
    ("after", "before"), [(0, 30), (0, 0), (30, 0), (15, 15), (13, 17), (3, 29), (1, 1), (0, 13), (30, 13)]
)
@pytest.mark.parametrize("turned", [0, 10])
def test_share_change_is_newcombes_interval_where_units_are_all_or_nothing(after, before, turned):
    """The published correction for continuity, too; with units that turn one way, another way, or not at all."""
    new, old = np.arange(30) < after, np.roll(np.arange(30) < before, turned)
    change = share_change(new.astype(float), old.astype(float))
    low, high = newcombe_paired(new.astype(float), old.astype(float))
    assert (change.low, change.high) == pytest.approx((max(low, -1), min(high, 1)), abs=1e-9)
    assert change.low <= change.estimate <= change.high


def test_units_that_all_agree_are_taken_to_vary_as_much_as_those_of_the_other_run(rng):
    """People of ten answers each: that none of them changed says more than that ten coins fell alike."""
    clusters = np.repeat(np.arange(10), 10)
    before, after = (rng.random(100) < 0.3).astype(float), np.zeros(100)
    change = share_change(after, before, clusters)
    shares = before.reshape(10, 10).mean(1)
    phi = shares.var(ddof=1) / (shares.mean() * (1 - shares.mean()))
    z, t = reference.norm.ppf(0.975), reference.t.ppf(0.975, 9)
    q = z + (1 - phi * 0.9) * (t - z)
    most = q**2 * phi / 10 / (1 + q**2 * phi / 10)  # Wilson's bound for none of 10 / phi
    old = jackknife(mean(before, bounds=(0.0, 1.0)), clusters)
    assert change.high == pytest.approx(-shares.mean() + np.hypot(most, shares.mean() - old.low))
    alone = jackknife(mean(after, bounds=(0.0, 1.0)), clusters)
    assert most < 0.5 * alone.high
    back = share_change(before, after, clusters)
    assert (back.low, back.high) == pytest.approx((-change.high, -change.low))


def test_share_change_of_units_that_average_answers_is_its_formula(rng):
    """Its documentation's equations, written again: eight people of ten answers each who stay as they are."""
    people = np.repeat(rng.random(8), 10)
    old, new = ((rng.random(80) < share * people).astype(float) for share in (0.8, 0.6))
    ends, phis, units = [], [], [run.reshape(8, 10).mean(1) for run in (new, old)]
    for shares in units:
        p = shares.mean()
        phi = shares.var(ddof=1) / (p * (1 - p))
        q = reference.norm.ppf(0.975) * phi * 7 / 8 + reference.t.ppf(0.975, 7) * (1 - phi * 7 / 8)
        m = 8 / phi
        middle, half = p + q**2 / (2 * m), q * np.sqrt(p * (1 - p) / m + q**2 / (4 * m**2))
        ends.append(((middle - half) / (1 + q**2 / m), p, (middle + half) / (1 + q**2 / m)))
        phis.append(phi * 7 / 8)
    covariance = np.cov(*units, ddof=0)
    assert covariance[0, 1] > 0
    corrected = max(covariance[0, 1] - np.sqrt(phis[0] * phis[1]) ** 3 / 16, 0)
    r = corrected / np.sqrt(covariance[0, 0] * covariance[1, 1])
    (la, a, ua), (lb, b, ub) = ends
    low = a - b - np.sqrt((a - la) ** 2 - 2 * r * (a - la) * (ub - b) + (ub - b) ** 2)
    high = a - b + np.sqrt((ua - a) ** 2 - 2 * r * (ua - a) * (b - lb) + (b - lb) ** 2)
    found = share_change(new, old, np.repeat(np.arange(8), 10))
    assert (found.estimate, found.low, found.high) == pytest.approx((a - b, low, high))


def test_share_change_has_a_width_where_nothing_varies_and_stays_in_range():
    nothing, everything = np.zeros(12), np.ones(12)
    same = share_change(nothing, nothing)
    assert same.low < 0 < same.high  # twelve people are no proof that nobody differs
    fall = share_change(nothing, everything)
    assert fall.low == -1 < fall.high < -0.5


def test_the_change_of_a_share_that_is_not_defined_has_no_interval():
    for terms in ([[1.0, 1], [0, 0], [0, 0]], [[0.0, 0], [0, 0], [0, 0]]):
        share = Metric("share", np.array(terms), lambda sums: ratio(sums[:, 0], sums[:, 1]))
        found = share_change(share, share)
        assert np.isnan([found.estimate, found.low, found.high]).all()


def test_a_value_that_is_the_same_for_everybody_has_an_interval_for_those_who_may_differ():
    """At most so many of others are unlike ten people who are all alike; at the ends it is Wilson's interval."""
    clusters, answers = np.repeat(np.arange(10), 10), np.tile(np.arange(10) < 4, 10).astype(float)
    z = reference.norm.ppf(0.975)
    unlike = z**2 / (10 + z**2)
    found = jackknife(mean(answers, bounds=(0.0, 1.0)), clusters)
    assert (found.method, found.low, found.high) == (
        "wilson",
        pytest.approx(0.4 - 0.4 * unlike),
        pytest.approx(0.4 + 0.6 * unlike),
    )
    nobody = jackknife(mean(np.zeros(10), bounds=(0.0, 1.0)), np.arange(10))
    assert (nobody.low, nobody.high) == (0, pytest.approx(unlike))  # Wilson's for 0 of 10
    gap = jackknife(mean(np.zeros(10), bounds=(-1.0, 1.0)), np.arange(10))
    assert (gap.low, gap.high) == (pytest.approx(-unlike), pytest.approx(unlike))
    change = share_change(answers, 1 - answers, clusters)
    assert change.low < change.estimate < change.high
    free = jackknife(answers, clusters)  # without bounds it is no share, and Student's interval stands
    assert free.low == pytest.approx(free.high)


def test_share_change_holds_the_truth_as_often_as_it_says():
    rng, clusters, held = np.random.default_rng(5), np.repeat(np.arange(16), 4), 0
    truth = reference.beta(2, 2).expect(lambda share: 0.4 * share - np.minimum(1.6 * share, 1))
    for _ in range(200):
        people = rng.beta(2, 2, 16)
        new, old = (rng.random((16, 4)) < people[:, None] * factor for factor in (0.4, 1.6))
        change = share_change(new.ravel(), old.ravel(), clusters)
        held += change.low <= truth <= change.high
    assert 180 <= held < 200


@pytest.mark.parametrize("c", [0.1, 0.3, 0.7, 4.0])
def test_a_judge_that_gives_all_labelled_items_one_score_says_nothing(c):
    """Whatever that score is: rounding does not decide whether the other items count."""
    labels = [0.2, 0.5, 0.9, 0.1, None, None, None]
    found = jackknife(powered([c] * 4 + [c + 0.4] * 3, labels))
    alone = jackknife(powered([4.0] * 4 + [4.4] * 3, labels))
    assert (found.estimate, found.low, found.high) == pytest.approx((alone.estimate, alone.low, alone.high))
    assert float(powered([c] * 4 + [c + 0.4] * 3, labels)) == pytest.approx(np.mean([0.2, 0.5, 0.9, 0.1]))


def powered_by_hand(scores, labels, groups):
    """The groups' means and lambda, by the formulas, item by item."""
    read = [row for row in zip(scores, labels, groups, strict=True) if row[0] is not None]
    known = [[row for row in read if row[1] is not None and row[2] == group] for group in range(max(groups) + 1)]
    others = [[row[0] for row in read if row[1] is None and row[2] == group] for group in range(max(groups) + 1)]
    mean_scores, mean_labels = ([np.mean([row[k] for row in rows]) for rows in known] for k in (0, 1))
    covariance = sum((f - mean_scores[g]) * (y - mean_labels[g]) for rows in known for f, y, g in rows)
    variance = sum((f - mean_scores[g]) ** 2 for rows in known for f, _, g in rows)
    share = sum(map(len, known)) / sum(map(len, others))
    tuned = float(np.clip(covariance / ((1 + share) * variance), 0, 1))
    shifts = [
        np.mean(rest) - mean_score if rest else 0.0 for rest, mean_score in zip(others, mean_scores, strict=True)
    ]
    return [label + tuned * shift for label, shift in zip(mean_labels, shifts, strict=True)], tuned


def test_prediction_powered_means_are_those_of_the_formulas_in_any_resample(rng):
    """Of three groups: one has many items without a label, one has a single one, one has none."""
    groups = np.repeat([0, 1, 2], [12, 6, 5])
    labels = rng.integers(0, 4, 23).astype(float)
    scores = (labels + rng.integers(0, 3, 23)).tolist()
    labels = [None if n in (1, 3, 4, 6, 8, 10, 11, 17) else label for n, label in enumerate(labels.tolist())]
    scores[2] = scores[8] = None
    scores[20] = labels[13] = 0.0
    metric = prediction_powered(scores, labels, groups, lambda means: means @ [1.0, 10.0, 100.0])
    means, tuned = powered_by_hand(scores, labels, groups)
    assert 0.1 < tuned < 0.9
    assert float(metric) == pytest.approx(np.dot(means, [1, 10, 100]))
    weights = rng.integers(1, 4, (6, 23))
    drawn = metric.value(weights.astype(float) @ metric.terms)
    for row, value in zip(weights, drawn, strict=True):
        again = [np.repeat(np.array(given, dtype=object), row) for given in (scores, labels, groups)]
        means, _ = powered_by_hand(*again)
        assert value == pytest.approx(np.dot(means, [1, 10, 100]))


def test_a_judge_that_contradicts_the_labels_does_not_count_and_one_that_underrates_counts_once():
    labels = [1.0, 2.0, 3.0, 6.0, None, None]
    known = [-label for label in labels if label is not None]
    assert float(powered([*known, 50.0, 60.0], labels)) == pytest.approx(3)
    slight = [-score / 100 for score in known]
    assert float(powered([*slight, 0.5, 0.7], labels)) == pytest.approx(3 + 0.6 - 0.03)


@pytest.mark.parametrize("factor", [1e-6, 1e-3, 7.0, 1e5])
def test_scores_and_labels_in_another_unit_give_the_same_in_that_unit(rng, factor):
    labels = rng.integers(0, 5, 12).astype(float)
    scores = np.concatenate([labels, np.zeros(20)]) + rng.normal(0, 1.5, 32)
    plain, scaled = (
        jackknife(powered((unit * scores).tolist(), [*(unit * labels).tolist(), *[None] * 20]))
        for unit in (1, factor)
    )
    ends = (scaled.estimate / factor, scaled.low / factor, scaled.high / factor)
    assert ends == pytest.approx((plain.estimate, plain.low, plain.high))
    assert plain.estimate != pytest.approx(labels.mean())


def test_a_resample_does_not_depend_on_those_that_are_computed_with_it():
    """Even where scores vary little for their size."""
    metric = powered([1000.0, 1001.0, 1000.0, 1002.0, 1001.5], [1.0, 2.0, 2.0, 4.0, None])
    many = metric.value(np.repeat(metric.terms.sum(0, keepdims=True), 3000, axis=0))
    np.testing.assert_allclose(many, float(metric))
    assert float(metric) != pytest.approx(9 / 4)


@pytest.mark.parametrize("score", [1e9, 3e11, 7e12])
def test_large_scores_that_are_all_the_same_say_nothing(score):
    for labels in ([0.2, 0.5, 0.9, 0.1], [0.7, 0.1, 0.1, 0.4]):  # their sums round down and up
        found = powered([score] * 4 + [3 * score] * 2, [*labels, None, None])
        assert float(found) == pytest.approx(np.mean(labels))


def test_an_item_without_a_score_does_not_count_and_is_counted_as_unread():
    scores, labels = [1.0, 2.0, 4.0, 3.0, 2.0], [1.0, 3.0, 4.0, None, None]
    metric = powered([None, *scores, None], [9.0, *labels, None])
    assert (metric.unparsed, metric.asked) == (2, 7)
    assert float(metric) == pytest.approx(float(powered(scores, labels)))
    assert powered(scores, labels).unparsed == 0


@pytest.mark.parametrize(
    ("scores", "labels", "groups"),
    [
        ([1.0], [1.0], [0]),
        ([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, None], [0, 0, 1, 1]),
        ([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, None, None], [0, 0, 1, 1]),  # the last group has no label
        ([1.0, 2.0, 3.0, None], [1.0, 2.0, 3.0, 4.0], [0, 0, 1, 1]),  # a label without a score
    ],
)
def test_a_group_with_fewer_than_two_labels_is_refused(scores, labels, groups):
    with pytest.raises(InputError, match=r"^prediction-powered: each group needs two labels or more"):
        prediction_powered(scores, labels, np.array(groups), lambda means: means[:, 0])
    two = prediction_powered(
        [1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0], np.array([0, 0, 1, 1]), lambda m: m[:, 1], "x"
    )
    assert (two.name, float(two)) == ("x", 3.5)


def test_a_difference_has_the_bounds_that_two_ranges_leave():
    one, other = mean([2.0, 3.0], bounds=(1.0, 5.0)), mean([3.0, 3.0], bounds=(2.0, 4.0))
    assert one.minus(other).bounds == (-3.0, 3.0)
    assert mean([2.0], bounds=(1.0, 5.0)).minus(mean([7.0], bounds=(6.0, 8.0))).bounds == (-7.0, -1.0)


def test_an_interval_within_bounds_moves_and_widens_with_them(rng):
    shares = rng.uniform(0.2, 0.9, 9)
    unit = jackknife(mean(shares, bounds=(0.0, 1.0)))
    scaled = jackknife(mean(20 * shares - 5, bounds=(-5.0, 15.0)))
    ends = (unit.estimate, unit.low, unit.high)
    assert (scaled.estimate, scaled.low, scaled.high) == pytest.approx(tuple(20 * end - 5 for end in ends))


def test_a_corrected_share_beyond_its_bounds_is_at_the_bound():
    for estimate, bound in ((1.2, 1.0), (-0.2, 0.0)):
        assert score_interval(estimate, 0.1, 10, 0.95, (0.0, 1.0)) == score_interval(bound, 0.1, 10, 0.95, (0.0, 1.0))


def test_units_that_vary_more_than_all_or_nothing_have_the_normal_quantile():
    """As the pseudo-values of people of unlike numbers of answers may."""
    low, _, high = score_interval(0.4, 0.35, 4, 0.95, (0.0, 1.0))
    independent = 0.4 * 0.6 / 0.35**2
    assert independent < 3
    for end in (low, high):
        assert abs(0.4 - end) == pytest.approx(1.96 * np.sqrt(end * (1 - end) / independent), abs=1e-4)


def test_what_rounding_leaves_of_a_variance_is_none():
    assert dispersion(0.25, 0.25**2) == pytest.approx(1 / 3)
    assert (dispersion(0.3, 1e-34), dispersion(0.3, 0.0)) == (0, 0)
    assert (dispersion(1.0, 0.1), dispersion(0.0, 0.1)) == (0, 0)
    third = mean(np.tile([0.1, 0.2, 0.3], 7) + 0.1, bounds=(0.0, 1.0))
    alike = jackknife(third, np.repeat(np.arange(7), 3))
    assert alike.high - alike.low > 0.1
