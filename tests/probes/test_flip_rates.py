"""Whose answer depends on an attribute: against a count by hand, on planted truths, and where nobody's does."""

from dataclasses import replace
from itertools import combinations, cycle, permutations, product

import numpy as np
import pytest

from ggss.data.pictures import AbsentPicture
from ggss.probes import Item, get
from ggss.probes.base import Answers
from ggss.probes.metrics import flip_rates, intersection_gaps, within_person_range
from ggss.stats import difference, jackknife, label_null

RACES, GENDERS = ("amber", "coral", "jade"), ("man", "woman")
OPTIONS = {"a": "low", "b": "high"}


def portraits(people=4, questions=("pay", "school")):
    return [
        Item(
            f"{question}/{number}/{race}/{gender}",
            "?",
            (AbsentPicture(f"{number}{race}{gender}"),),
            ({"race": race, "gender": gender},),
            str(number),
            question,
            OPTIONS,
            about="race",
            context={"identity": str(number)},
        )
        for question in questions
        for number, race, gender in product(range(people), RACES, GENDERS)
    ]


def pairs(people=3):
    versions = [{"race": race, "gender": gender} for race, gender in product(RACES, GENDERS)]
    return [
        Item(
            f"{number}/{i}-{j}",
            "?",
            (AbsentPicture(f"{number}{i}"), AbsentPicture(f"{number}{j}")),
            (versions[i], versions[j]),
            str(number),
            "which",
            {"first": "first", "second": "second"},
            about="race",
            context={"identity": str(number)},
        )
        for number in range(people)
        for i, j in permutations(range(len(versions)), 2)
    ]


def measured(items, parsed, probabilities=None):
    return {name: float(metric) for name, metric in flip_rates(Answers(items, parsed, probabilities)).items()}


def by_hand(items, parsed, attribute):
    """The two rates by a plain count over all pairs of items."""
    sets = {}
    for item, answer in zip(items, parsed, strict=True):
        rest = tuple(sorted((n, v) for n, v in item.attributes[0].items() if n != attribute))
        sets.setdefault((item.question, item.cluster, rest), []).append(answer)
    flips = [len(set(answers)) > 1 for answers in sets.values() if any(a is not None for a in answers)]
    shares = [
        np.mean([first != second for first, second in combinations(answers, 2)])
        for answers in sets.values()
        if any(a is not None for a in answers)
    ]
    return np.mean(flips), np.mean(shares)


@pytest.mark.parametrize("attribute", ["race", "gender"])
@pytest.mark.parametrize("seed", range(3))
def test_agrees_with_a_count_by_hand(attribute, seed):
    items = portraits()
    parsed = np.random.default_rng(seed).choice(np.array(["a", "b", None], dtype=object), len(items)).tolist()
    rates = measured(items, parsed)
    expected = by_hand(items, parsed, attribute)
    assert (rates[f"{attribute}_flip_rate"], rates[f"{attribute}_pair_flip_rate"]) == pytest.approx(expected)


def test_finds_who_depends_on_race_and_not_on_gender():
    items = portraits()
    parsed = ["a" if item.attributes[0]["race"] == "jade" and item.cluster == "0" else "b" for item in items]
    rates = measured(items, parsed)
    assert rates["race_flip_rate"] == pytest.approx(1 / 4)  # one person of four, in both questions and genders
    assert rates["race_pair_flip_rate"] == pytest.approx(1 / 4 * 2 / 3)  # two of the three pairs of races
    assert rates["gender_flip_rate"] == 0


def test_nothing_depends_where_answers_differ_between_people_and_questions_only():
    """The negative control: the group metrics of such answers need not be zero, these are."""
    items = portraits()
    parsed = ["a" if (item.cluster in "01") == (item.question == "pay") else "b" for item in items]
    assert set(measured(items, parsed).values()) == {0.0}


def test_an_unreadable_answer_differs_from_a_readable_one_and_a_case_without_any_does_not_count():
    items = portraits(people=2, questions=("pay",))
    parsed = [None if item.cluster == "0" or item.attributes[0]["race"] == "jade" else "a" for item in items]
    metric = flip_rates(Answers(items, parsed))["race_flip_rate"]
    assert float(metric) == 1.0  # the second person alone
    assert metric.terms.sum(0).tolist() == pytest.approx([2, 2])
    assert (metric.unparsed, metric.asked) == (8, 12)


def test_soft_is_the_mean_total_variation_between_pictures_of_a_case():
    items = portraits(people=2, questions=("pay",))
    high = {"amber": 0.9, "coral": 0.5, "jade": 0.5}
    shares = [[1 - high[item.attributes[0]["race"]], high[item.attributes[0]["race"]]] for item in items]
    rates = measured(items, ["b"] * len(items), shares)
    assert rates["soft_race_pair_flip_rate"] == pytest.approx((0.4 + 0.4 + 0.0) / 3)
    assert rates["soft_gender_pair_flip_rate"] == 0
    assert rates["race_flip_rate"] == 0  # the answers themselves are all alike


def test_a_pair_counts_if_both_orders_name_the_same_picture():
    items = pairs()
    jade = ["first" if item.attributes[0]["race"] == "jade" else "second" for item in items]
    rates = measured(items, jade)
    assert rates["race_flip_rate"] == pytest.approx(2 / 3)  # amber beside coral: always the second
    always_first = measured(items, ["first"] * len(items))
    assert set(always_first.values()) == {0.0}


def test_pairs_that_differ_in_more_than_the_attribute_do_not_count():
    items = pairs(people=1)
    metric = flip_rates(Answers(items, ["first"] * len(items)))["race_flip_rate"]
    both_orders = 2 * len(list(combinations(RACES, 2))) * len(GENDERS)
    assert metric.asked == both_orders


def test_without_counterfactual_pictures_there_is_no_rate():
    items = [item for item in portraits() if item.attributes[0] == {"race": "jade", "gender": "man"}]
    assert flip_rates(Answers(items, ["a"] * len(items))) == {}


def test_pictures_that_show_one_value_are_no_case():
    """Two photographs of one version of a person: nothing is varied."""
    amber, coral = portraits(people=1, questions=("pay",))[0], portraits(people=2, questions=("pay",))[8]
    twice = [replace(amber, key="again"), amber]
    assert flip_rates(Answers(twice, ["a", "b"])) == {}
    other = replace(amber, key="other", cluster="1", context=coral.context)
    metric = flip_rates(Answers([*twice, other, coral], ["a", "b", "a", "a"]))["race_flip_rate"]
    assert (float(metric), metric.asked) == (0, 2)
    first = pairs(people=1)[2]
    assert flip_rates(Answers([first, replace(first, key="again")], ["first", "second"])) == {}


def test_an_identity_left_out_takes_its_cases_with_it():
    items = portraits(people=3, questions=("pay",))
    parsed = ["a" if item.attributes[0]["race"] == "jade" and item.cluster == "0" else "b" for item in items]
    metric = flip_rates(Answers(items, parsed))["race_flip_rate"].by([item.cluster for item in items])
    assert metric.without_each().tolist() == pytest.approx([0, 1 / 2, 1 / 2])


def test_the_range_of_numbers_within_a_person():
    items = portraits(people=2, questions=("pay",))
    pay = {"amber": 10.0, "coral": 40.0, "jade": 20.0}
    numbers = [pay[item.attributes[0]["race"]] if item.cluster == "0" else 7.0 for item in items]
    metric = within_person_range(Answers(items, numbers), numbers, "range")
    assert float(metric) == pytest.approx((30 + 0) / 2)
    assert float(within_person_range(Answers(items, numbers), [5.0] * len(items), "range")) == 0


def cells(answer, people=8):
    items = portraits(people, ("pay",))
    shown = [(int(item.cluster), *item.attributes[0].values()) for item in items]
    return Answers(items, [answer(*of) for of in shown])


def test_gaps_between_cells_find_what_only_the_two_attributes_together_explain():
    """Coral women alone are answered otherwise: neither race nor gender explains all of it."""
    planted = cells(lambda number, race, gender: "b" if (race, gender) == ("coral", "woman") else "a")
    measured = {name: float(metric) for name, metric in intersection_gaps(planted).items()}
    assert measured["race_x_gender_gap"] == 1.0
    assert measured["race_x_gender_unexplained"] == pytest.approx(1 - (1 / 2 + 1 / 3 - 1 / 6))
    additive = cells(lambda number, race, gender: "b" if race == "coral" else "a")
    assert float(intersection_gaps(additive)["race_x_gender_gap"]) == 1.0
    assert float(intersection_gaps(additive)["race_x_gender_unexplained"]) == pytest.approx(0)


def test_small_cells_differ_by_chance_and_the_null_says_how_much():
    rng = np.random.default_rng(3)
    chance = cells(lambda number, race, gender: str(rng.choice(["a", "b"])))
    blocks = [item.cluster for item in chance.items]
    for metric in intersection_gaps(chance).values():
        assert 0 < float(metric) <= label_null(metric, blocks, draws=500).quantile(0.99)
    planted = cells(lambda number, race, gender: "b" if (race, gender) == ("coral", "woman") else "a")
    for metric in intersection_gaps(planted).values():
        assert label_null(metric, blocks, draws=500).p < 0.01


def test_gaps_between_cells_have_intervals_within_0_and_1_and_a_width():
    """All coral women are answered otherwise than all others: nothing varies, and other people may be unlike them."""
    planted = cells(lambda number, race, gender: "b" if (race, gender) == ("coral", "woman") else "a")
    clusters = [item.cluster for item in planted.items]
    found = jackknife(intersection_gaps(planted)["race_x_gender_gap"], clusters)
    assert (found.estimate, found.high) == (1.0, 1.0)
    assert 0.2 < found.low < 0.5
    alike = cells(lambda *shown: "a")
    for metric in intersection_gaps(alike).values():
        found = jackknife(metric, clusters)
        assert (float(metric), found.estimate, found.low) == (0, 0, 0)
        assert 0.2 < found.high < 0.5


def test_the_largest_variation_is_that_of_its_contrasts():
    rng = np.random.default_rng(5)
    answers = cells(lambda *shown: str(rng.choice(list("abcd"))))
    for metric in intersection_gaps(answers).values():
        assert metric.contrasts is not None
        assert float(metric.contrasts(metric.terms.sum(0, keepdims=True)).max()) == pytest.approx(float(metric))


@pytest.mark.parametrize(("words", "count"), [("abcdefgh", 2), ("abcdefghi", 0)])
def test_cells_of_too_many_different_answers_are_not_compared(words, count):
    turn = cycle(words)
    assert len(intersection_gaps(cells(lambda *shown: next(turn)))) == count


def test_cells_of_too_few_people_are_not_compared():
    assert intersection_gaps(cells(lambda *shown: "a", people=4)) == {}
    assert len(intersection_gaps(cells(lambda *shown: "a", people=5))) == 2


def test_cells_without_a_readable_word_or_an_attribute_are_not_compared():
    assert intersection_gaps(cells(lambda *shown: None)) == {}
    answers = cells(lambda *shown: "a")
    for attribute in ("race", "gender"):
        lacking = replace(answers.items[3], attributes=({attribute: answers.items[3].attributes[0][attribute]},))
        items = [*answers.items[:3], lacking, *answers.items[4:]]
        assert intersection_gaps(Answers(items, answers.parsed)) == {}


def test_a_comparison_shows_the_gaps_between_cells():
    """Beside the bias: half of the gap is gone, and the interval of the difference leaves out 0."""
    before = cells(lambda number, race, gender: "b" if (race, gender) == ("coral", "woman") else "a", people=24)
    after = cells(
        lambda number, race, gender: "b" if (race, gender) == ("coral", "woman") and number % 2 else "a", 24
    )
    old, new = (intersection_gaps(answers)["race_x_gender_gap"] for answers in (before, after))
    change = difference(new, old, [item.cluster for item in before.items])
    assert change.low < -0.5 < change.high < 0
    assert all(get("mcq").display(name, "race").compared for name in intersection_gaps(before))
