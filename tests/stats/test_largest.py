"""The largest of several differences: its interval, that of its change, and that of its change in percent."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from scipy.stats import t

from ggss.probes.metrics import answer_gap, largest_less_smallest, mean_range, pairwise
from ggss.stats import difference, fieller, jackknife, label_null, mean, prediction_powered
from ggss.stats.metric import pseudovalues

GROUPS = np.array(["amber", "coral", "jade", "rose", "violet"])


def numbers(rng, means, people=12, noise=0.7):
    """Answers about people in all groups; an identity is high or low in all of them."""
    own = rng.normal(0, 1, (people, 1))
    return (own + np.array(means) + rng.normal(0, noise, (people, len(means)))).ravel()


def gap(values, groups=5):
    people = len(values) // groups
    return mean_range(np.tile(GROUPS[:groups], people), values.tolist(), np.full(len(values), True))


def of_people(values, groups=5):
    return np.repeat(np.arange(len(values) // groups), groups)


def test_a_difference_that_is_far_above_all_others_has_its_own_interval():
    """Student's t on the differences of the two groups, person by person."""
    values = numbers(np.random.default_rng(0), [9, 0, 5])
    found = jackknife(gap(values, 3), of_people(values, 3))
    own = values.reshape(-1, 3)[:, 0] - values.reshape(-1, 3)[:, 1]
    half = t.ppf(0.975, 11) * own.std(ddof=1) / np.sqrt(12)
    assert (found.estimate, found.low, found.high) == pytest.approx(
        (own.mean(), own.mean() - half, own.mean() + half)
    )


def by_hand(values, groups=5, level=0.95):
    """A transcription, with other draws: low, estimate and high, and the differences of the pair that is largest."""
    table = values.reshape(-1, groups)
    each = np.array([table[:, a] - table[:, b] for a, b in permutations(range(groups), 2)])
    n = len(table)
    centre, error = each.mean(1), each.std(1, ddof=1) / np.sqrt(n)
    best = centre.argmax()
    step = (each[best] - each).std(1, ddof=1) / np.sqrt(n)
    near = centre[best] - centre <= t.ppf(1 - (1 - level) / 4, n - 1) * step + 1e-9
    rng = np.random.default_rng(11)
    drawn = rng.multivariate_normal(np.zeros(near.sum()), np.cov(each[near]) / n, 200_000, method="eigh")
    largest = (drawn / error[near]).max(1) * np.sqrt((n - 1) / rng.chisquare(n - 1, 200_000))
    q, middle = (
        np.quantile(largest, [(1 + level) / 2, 0.5]) if near.sum() > 1 else (t.ppf((1 + level) / 2, n - 1), 0.0)
    )
    low = max((centre - q * error)[near].max(), 0)
    high = (centre + t.ppf((1 + level) / 2, n - 1) * error).max()
    return np.array([low, max((centre - middle * error)[near].max(), low), high]), each[best]


@pytest.mark.parametrize("people", [4, 12])
def test_the_interval_is_the_printed_one_recomputed_from_the_differences(people, monkeypatch):
    monkeypatch.setattr("ggss.stats.metric.DRAWS", 200_000)
    for seed in range(12):
        values = numbers(np.random.default_rng(seed), [2.5, 2, 0, 0, -0.2], people, noise=0.4)
        found = jackknife(gap(values), of_people(values), level=0.9)
        ends = found.low, found.estimate, found.high
        assert ends == pytest.approx(by_hand(values, level=0.9)[0], abs=0.02 * (found.high - found.low)), seed
        assert (found.method, found.level, found.units, found.undefined) == ("largest", 0.9, people, 0)


@pytest.mark.parametrize("people", [8, 24])
@pytest.mark.parametrize("means", [[0] * 5, [1, 0, 0, 0, 0], [0.4, 0.3, 0.2, 0.1, 0], [2, 1, 0, -1, -2]])
def test_the_interval_holds_the_truth_whatever_ties_there_are(means, people):
    """That of the jackknife, as if the largest had been named before, misses too often where groups are equal."""
    rng, truth = np.random.default_rng(1), max(means) - min(means)
    held = named = 0
    for _ in range(150):
        values = numbers(rng, means, people)
        metric, clusters = gap(values), of_people(values)
        found, naive = jackknife(metric, clusters), jackknife(replace(metric, contrasts=None), clusters)
        held += found.low <= truth + 1e-9 and truth <= found.high
        named += naive.low <= truth <= naive.high
    assert held >= 134  # less than once in 1,000 at 95 %
    assert any(means) or named < 125


def test_the_corrected_value_is_nearer_to_the_truth_than_the_plug_in_one():
    rng = np.random.default_rng(2)
    plain, corrected = [], []
    for _ in range(60):
        values = numbers(rng, [0.0] * 5, 24)
        plain.append(float(gap(values)))
        corrected.append(jackknife(gap(values), of_people(values)).estimate)
    assert np.mean(corrected) < np.mean(plain) / 3


@pytest.mark.parametrize("factor", [0.01, 7.0])
def test_unit_and_order_of_groups_change_nothing(factor):
    values = numbers(np.random.default_rng(4), [0.5, 0.2, 0, -0.1, -0.6])
    found = jackknife(gap(values), of_people(values))
    scaled = jackknife(gap(factor * values + 3), of_people(values))
    ends = np.array([found.estimate, found.low, found.high])
    assert [scaled.estimate, scaled.low, scaled.high] == pytest.approx(factor * ends)
    turned = values.reshape(-1, 5)[:, ::-1].ravel()
    other = jackknife(gap(turned), of_people(turned))
    assert [other.estimate, other.low, other.high] == pytest.approx(ends)


def test_a_wider_level_has_a_wider_interval():
    values = numbers(np.random.default_rng(5), [0.5, 0.2, 0, -0.1, -0.6])
    narrow, wide = (jackknife(gap(values), of_people(values), level=level) for level in (0.8, 0.95))
    assert wide.low <= narrow.low <= narrow.estimate <= narrow.high <= wide.high
    assert wide.high - wide.low > narrow.high - narrow.low


def test_gaps_of_shares_stay_within_0_and_1_and_have_a_width_where_nothing_varies():
    answers = ["nurse", "doctor", "doctor"] * 8
    metric = answer_gap(np.tile(GROUPS[:3], 8), answers, "nurse")
    found = jackknife(metric, np.repeat(np.arange(8), 3))
    assert (found.estimate, found.high) == (1.0, 1.0)
    assert 0.3 < found.low < 0.9
    alike = jackknife(answer_gap(np.tile(GROUPS[:3], 8), ["nurse"] * 24, "nurse"), np.repeat(np.arange(8), 3))
    assert (alike.estimate, alike.low) == (0.0, 0.0)
    assert 0.2 < alike.high < 0.9


def test_a_group_without_an_answer_has_no_interval():
    """Nor one that has none if a certain person is left out."""
    answers = ["nurse", "doctor", None] * 8
    clusters = np.repeat(np.arange(8), 3)
    nothing = answer_gap(np.tile(GROUPS[:3], 8), answers, "nurse")
    found = jackknife(nothing, clusters, level=0.9)
    assert np.isnan([found.estimate, found.low, found.high]).all()
    assert (found.undefined, found.method, found.level, found.units) == (1, "largest", 0.9, 8)
    alone = jackknife(answer_gap(np.tile(GROUPS[:3], 8), [*answers[:-1], "nurse"], "nurse"), clusters)
    assert (np.isnan(alone.estimate), alone.undefined) == (True, 1 / 8)
    full = answer_gap(np.tile(GROUPS[:3], 8), ["nurse", "doctor", "doctor"] * 8, "nurse")
    for change in (difference(nothing, full, clusters), fieller(nothing, full, clusters)):
        assert (np.isnan(change.estimate), change.undefined) == (True, 1)


def test_the_value_is_the_largest_of_its_contrasts_in_every_resample():
    values = numbers(np.random.default_rng(6), [0.5, 0.2, 0, -0.1, -0.6])
    metric = gap(values)
    sums = np.random.default_rng(0).integers(0, 3, (40, len(values))) @ metric.terms + 1
    assert metric.contrasts is not None
    np.testing.assert_allclose(metric.contrasts(sums).max(1), metric.value(sums))
    means = np.random.default_rng(1).normal(size=(30, 4))
    np.testing.assert_allclose(pairwise(means).max(1), largest_less_smallest(means))
    assert 0 < label_null(metric, of_people(values), draws=99).p <= 1


def two_runs():
    rng = np.random.default_rng(7)
    return numbers(rng, [3, 0, 0.2, 0, 0]), numbers(rng, [1.5, 0, 0, 0, 0.1])


def test_a_change_is_made_of_the_two_intervals():
    """Newcombe's, with the correlation of the two differences that are the largest."""
    old, new = two_runs()
    clusters = of_people(old)
    change = difference(gap(new), gap(old), clusters, level=0.9)
    before, after = (jackknife(gap(values), clusters, level=0.9) for values in (old, new))
    r = np.corrcoef(by_hand(new)[1], by_hand(old)[1])[0, 1]
    down, up = after.estimate - after.low, before.high - before.estimate
    assert change.estimate == pytest.approx(after.estimate - before.estimate)
    assert change.low == pytest.approx(change.estimate - np.sqrt(down**2 - 2 * r * down * up + up**2))
    down, up = before.estimate - before.low, after.high - after.estimate
    assert change.high == pytest.approx(change.estimate + np.sqrt(down**2 - 2 * r * down * up + up**2))
    assert (change.level, change.method, change.units, change.undefined) == (0.9, "newcombe", 12, 0)


def test_a_change_from_gaps_that_do_not_vary_has_the_width_of_both():
    """All are nurses before; some of the women after: nothing is known of how the two go together."""
    groups, clusters = np.tile(GROUPS[:2], 8), np.repeat(np.arange(8), 2)
    old = answer_gap(groups, ["nurse"] * 16, "nurse")
    new = answer_gap(groups, ["nurse", "doctor"] * 3 + ["nurse"] * 10, "nurse")
    before, after, change = jackknife(old, clusters), jackknife(new, clusters), difference(new, old, clusters)
    down, up = after.estimate - after.low, before.high - before.estimate
    assert change.low == pytest.approx(change.estimate - np.hypot(down, up))


def test_the_difference_of_ordinary_metrics_is_the_jackknifes():
    rng = np.random.default_rng(8)
    new, old, clusters = mean(rng.normal(size=20)), mean(rng.normal(size=20)), np.repeat(np.arange(5), 4)
    assert difference(new, old, clusters, level=0.9) == jackknife(new.minus(old), clusters, level=0.9)
    largest = gap(two_runs()[0])
    plain = mean(two_runs()[1])
    people = of_people(two_runs()[0])
    assert difference(largest, plain, people) == jackknife(largest.minus(plain), people)


def test_fieller_of_ordinary_metrics_is_the_textbooks():
    """The ratios r at which steered - r unsteered does not differ from zero by Student's t, by search."""
    rng = np.random.default_rng(9)
    old = rng.normal(5, 1, 15)
    new = 0.6 * old + rng.normal(0, 0.5, 15)
    found = fieller(new, old)
    a, b = pseudovalues(mean(new)), pseudovalues(mean(old))
    ratios = np.linspace(0.2, 1.2, 200_001)
    means = a.mean() - ratios * b.mean()
    variances = (a.var(ddof=1) - 2 * ratios * np.cov(a, b)[0, 1] + ratios**2 * b.var(ddof=1)) / 15
    inside = ratios[np.abs(means) <= t.ppf(0.975, 14) * np.sqrt(variances)]
    assert (found.low, found.high) == pytest.approx((100 * (inside[0] - 1), 100 * (inside[-1] - 1)), abs=0.01)


def test_a_change_in_percent_of_the_largest_of_several():
    """Bounded where the gap before is sure, unbounded where it may be zero."""
    rng = np.random.default_rng(10)
    old, new = numbers(rng, [4, 0, 0, 0, 0]), numbers(rng, [1, 0, 0, 0, 0])
    found = fieller(gap(new), gap(old), of_people(old))
    assert -100 <= found.low < found.estimate < found.high < 0
    unsure = fieller(gap(new), gap(numbers(rng, [0.2, 0, 0, 0, 0])), of_people(old))
    assert np.isinf([unsure.low, unsure.high]).all()


def test_each_end_of_a_change_in_percent_is_fiellers_with_its_own_widths():
    """The ratios r at which the lower end of new - r old, or its upper one, is 0."""
    old, new = two_runs()
    clusters = of_people(old)
    found, before, after = fieller(gap(new), gap(old), clusters), *(jackknife(gap(v), clusters) for v in (old, new))
    r = np.corrcoef(by_hand(new)[1], by_hand(old)[1])[0, 1]
    for end, sign in ((found.low, -1), (found.high, 1)):
        ratio = end / 100 + 1
        one = after.estimate - after.low if sign < 0 else after.high - after.estimate
        other = ratio * (before.high - before.estimate if sign < 0 else before.estimate - before.low)
        gone = after.estimate - ratio * before.estimate
        assert abs(gone) == pytest.approx(np.sqrt(one**2 - 2 * r * one * other + other**2))
        assert np.sign(gone) == -sign


def test_labels_of_all_texts_give_the_gap_of_the_labels():
    """The largest of several, corrected by labels, is that of the labels where all have one."""
    values = numbers(np.random.default_rng(12), [1, 0.5, 0, 0, 0])
    codes = np.tile(np.arange(5), 12)
    powered = prediction_powered(
        (values + 1).tolist(), values.tolist(), codes, largest_less_smallest, contrasts=pairwise
    )
    found, plain = jackknife(powered, of_people(values)), jackknife(gap(values), of_people(values))
    assert found.method == "largest"
    assert (found.estimate, found.low, found.high) == pytest.approx((plain.estimate, plain.low, plain.high))
