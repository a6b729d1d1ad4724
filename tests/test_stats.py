"""The statistics against scipy, brute force and their own promises (p-values uniform under the null)."""

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
    signflip,
    tost,
)

RACES = np.array(["a", "b", "c", "d", "e"])


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def skewed(rng, n=60):
    return rng.exponential(size=n)


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
    assert np.isnan(signflip(nothing, something, draws=20).p)


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
    assert minimum_detectable_change(1500, np.sqrt(0.1)) == pytest.approx(0.0229, abs=1e-4)


@pytest.mark.parametrize(
    ("call", "seen"),
    [
        (lambda: bootstrap([]), "at least one item"),
        (lambda: bootstrap([1.0, np.nan]), "1 terms are NaN"),
        (lambda: bootstrap([[1.0, 2.0]]), "one number per item"),
        (lambda: bootstrap([1.0, 2.0], [0]), "2 cluster labels"),
        (lambda: bootstrap([1.0, 2.0], [0, 0]), "one cluster"),
        (lambda: bootstrap([1.0, 2.0], method="magic"), "'magic' is unknown"),  # pyright: ignore
        (lambda: bootstrap([1.0, 2.0], level=95), "between 0 and 1"),
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
        (lambda: label_null(answer_gap(["man", "woman"], ["nurse"] * 2, "nurse"), [0, 1]), "one group only"),
        (lambda: holm([0.5, np.nan]), "between 0 and 1"),
        (lambda: holm([]), "between 0 and 1"),
        (lambda: mcnemar(-1, 2), "two counts"),
        (lambda: tost([1.0], [1.0]), "at least two"),
        (lambda: tost([1.0, 0.0], [1.0]), "same questions"),
        (lambda: tost([1.0, np.nan], [1.0, 0.0]), "NaN"),
        (lambda: tost([1.0, 0.0], [1.0, 0.0], margin=1.5), "0.015 for 1.5 points"),
        (lambda: minimum_detectable_change(0, 1.0), "at least one item"),
    ],
)
def test_bad_input_gets_one_sentence(call, seen):
    with pytest.raises(InputError, match=seen):
        call()


def test_runs_in_another_order_are_refused():
    one = answer_gap(["man", "woman"], ["nurse", "nurse"], "nurse")
    other = answer_gap(["woman", "man"], ["nurse", "nurse"], "nurse")
    with pytest.raises(InputError, match="same order"):
        one.percent_change(other)


def test_different_metrics_cannot_swap_answers():
    one = mean_jsd(["q"] * 2, ["a", "b"], ["A", "B"], "AB")
    other = mean_jsd(["q"] * 2, ["a", "b"], ["A", "B"], "ABC")
    with pytest.raises(InputError, match="not the same metric"):
        signflip(one, other)
