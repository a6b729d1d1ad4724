"""The largest of several differences: its interval, that of its change, and that of its change in percent."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from scipy.stats import t

from ggss.probes.metrics import answer_gap, largest_less_smallest, mean_range, pairwise
from ggss.stats import difference, fieller, jackknife, label_null, mean
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


def test_the_interval_is_the_printed_one_recomputed_from_the_differences():
    """A plain transcription, with the quantiles of other draws."""
    values = numbers(np.random.default_rng(3), [0.6, 0.4, 0, 0, -0.2])
    table = values.reshape(-1, 5)
    each = np.array([table[:, a] - table[:, b] for a, b in permutations(range(5), 2)])
    n, centre, error = 12, each.mean(1), each.std(1, ddof=1) / np.sqrt(12)
    best = centre.argmax()
    step = (each[best] - each).std(1, ddof=1) / np.sqrt(n)
    near = centre[best] - centre <= t.ppf(0.9875, n - 1) * step + 1e-9
    cov = np.cov(each[near]) / n
    rng = np.random.default_rng(11)
    drawn = rng.multivariate_normal(np.zeros(near.sum()), cov, 100_000, method="eigh") / error[near]
    largest = drawn.max(1) * np.sqrt((n - 1) / rng.chisquare(n - 1, 100_000))
    q, middle = np.quantile(largest, [0.975, 0.5])
    found = jackknife(gap(values), of_people(values))
    assert found.method == "largest"
    assert found.low == pytest.approx(max((centre - q * error)[near].max(), 0), abs=0.05)
    assert found.estimate == pytest.approx((centre - middle * error)[near].max(), abs=0.03)
    assert found.high == pytest.approx((centre + t.ppf(0.975, n - 1) * error).max())


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
    answers = ["nurse", "doctor", None] * 8
    found = jackknife(answer_gap(np.tile(GROUPS[:3], 8), answers, "nurse"), np.repeat(np.arange(8), 3))
    assert np.isnan([found.estimate, found.low, found.high]).all()
    assert found.undefined == 1


def test_the_value_is_the_largest_of_its_contrasts_in_every_resample():
    values = numbers(np.random.default_rng(6), [0.5, 0.2, 0, -0.1, -0.6])
    metric = gap(values)
    sums = np.random.default_rng(0).integers(0, 3, (40, len(values))) @ metric.terms + 1
    assert metric.contrasts is not None
    np.testing.assert_allclose(metric.contrasts(sums).max(1), metric.value(sums))
    means = np.random.default_rng(1).normal(size=(30, 4))
    np.testing.assert_allclose(pairwise(means).max(1), largest_less_smallest(means))
    assert 0 < label_null(metric, of_people(values), draws=99).p <= 1


def test_a_change_is_made_of_the_two_intervals():
    """Newcombe's, with the correlation of the two differences that are the largest."""
    rng = np.random.default_rng(7)
    old, new = numbers(rng, [3, 0, 0.2, 0, 0]), numbers(rng, [1.5, 0, 0, 0, 0.1])
    clusters = of_people(old)
    change, before, after = (
        difference(gap(new), gap(old), clusters),
        *(jackknife(gap(v), clusters) for v in (old, new)),
    )
    pseudo = []
    for values in (new, old):
        table = values.reshape(-1, 5)
        each = np.array([table[:, a] - table[:, b] for a, b in permutations(range(5), 2)])
        pseudo.append(each[each.mean(1).argmax()])
    r = np.corrcoef(*pseudo)[0, 1]
    down, up = after.estimate - after.low, before.high - before.estimate
    assert change.estimate == pytest.approx(after.estimate - before.estimate)
    assert change.low == pytest.approx(change.estimate - np.sqrt(down**2 - 2 * r * down * up + up**2))
    down, up = before.estimate - before.low, after.high - after.estimate
    assert change.high == pytest.approx(change.estimate + np.sqrt(down**2 - 2 * r * down * up + up**2))


def test_the_difference_of_ordinary_metrics_is_the_jackknifes():
    rng = np.random.default_rng(8)
    new, old = mean(rng.normal(size=20)), mean(rng.normal(size=20))
    assert difference(new, old) == jackknife(new.minus(old))


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
