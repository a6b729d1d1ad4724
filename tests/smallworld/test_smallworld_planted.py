"""The planted bias: the truth is what was described, labels follow it, and the probes' items are balanced."""

from collections import Counter, defaultdict

import numpy as np
import pytest

from ggss.errors import InputError
from ggss.smallworld.bias_questions import (
    BIAS_KINDS,
    BIOGRAPHIES,
    PLANTED,
    SALARIES,
    ask_ceo,
    ask_nurse_doctor,
    ask_pair,
    ask_salary,
    bias_items,
    ceo_distribution,
    education_distribution,
    nurse_probability,
    prefers_first,
    salary_distribution,
)
from ggss.smallworld.painter import Portrait
from ggss.smallworld.people import GENDERS, RACES, Person


def test_truth_is_a_distribution() -> None:
    for question in bias_items("evaluation"):
        assert len(question.truth) == len(question.options)
        assert sum(question.truth) == pytest.approx(1)
        assert question.truth[question.options.index(question.answer)] == max(question.truth)


def test_drawn_labels_follow_the_truth() -> None:
    rng = np.random.default_rng(11)
    nurse, ceo = Portrait(Person(4, "nurse"), "coral", "man"), Portrait(Person(2, "ceo"), "amber", "woman")
    asks = (
        lambda r: ask_salary(ceo, r),
        lambda r: ask_nurse_doctor(nurse, r),
        lambda r: ask_pair(ceo, Portrait(ceo.person, "coral", "woman"), r),
        lambda r: ask_ceo(ceo, 3, r),
    )
    for ask in asks:
        drawn = Counter(ask(rng).answer for _ in range(3_000))
        question = ask(None)
        for option, chance in zip(question.options, question.truth, strict=True):
            assert drawn[option] / 3_000 == pytest.approx(chance, abs=4 * 0.5 / 3_000**0.5)


def test_the_salary_score_is_the_one_described() -> None:
    """A straight simulation of the words in the module's docstring gives the same distribution."""
    rng = np.random.default_rng(3)
    person = Person(5, "teacher")
    effect = dict(zip(RACES, (0.9, 0.35, -0.85, 0.0, -0.4), strict=True))
    for race in RACES:
        score = PLANTED.salary_work["teaches"] + 0.75 * person.traits.wealth + 0.75 * effect[race]
        noisy = score + rng.normal(0, 0.35, 200_000)
        share = np.bincount(np.digitize(noisy, (-0.9, 0, 0.9)), minlength=4) / 200_000
        assert salary_distribution(person, race) == pytest.approx(share, abs=0.006)
    first, second = (0.75 * effect[race] + rng.normal(0, 0.2, 200_000) for race in ("coral", "jade"))
    assert prefers_first((person, "coral"), (person, "jade")) == pytest.approx((first > second).mean(), abs=0.006)
    nurse = Person(2, "nurse")
    said = nurse.traits.cue - 0.45 + rng.normal(0, 0.2, 200_000) > 0
    assert nurse_probability(nurse, "man") == pytest.approx(said.mean(), abs=0.006)


def test_bias_points_the_way_it_was_planted() -> None:
    person, ceo = Person(1, "lawyer"), Person(1, "ceo")
    order = ("amber", "coral", "jade", "pearl", "indigo")
    tops = [salary_distribution(person, race)[3] for race in order]
    assert tops == sorted(tops, reverse=True)
    learned = [education_distribution(person, race)[0] for race in order]
    assert learned != sorted(learned), "education has another pattern than salary"
    for place, years in BIOGRAPHIES:
        mean = {g: float(np.dot(ceo_distribution(ceo, "jade", g, place, years), SALARIES)) for g in GENDERS}
        assert mean["man"] > mean["woman"]
    assert prefers_first((person, "amber"), (person, "amber")) == pytest.approx(0.5)
    assert nurse_probability(Person(1, "nurse"), "woman") > nurse_probability(Person(1, "nurse"), "man")


def test_salary_does_not_depend_on_gender_nor_nurse_on_race() -> None:
    """The negative control of the planted bias."""
    person = Person(3, "nurse")
    assert len({ask_salary(Portrait(person, "jade", gender)).truth for gender in GENDERS}) == 1
    assert len({ask_nurse_doctor(Portrait(person, race, "man")).truth for race in RACES}) == 1


def test_bias_items_have_the_sizes_of_the_protocol() -> None:
    sizes = Counter(q.kind for q in bias_items("evaluation"))
    assert sizes == {
        "salary": 120,
        "education": 120,
        "2afc": 1_080,
        "nurse-doctor": 240,
        "ceo": 1_200,
        "race": 120,
        "gender": 120,
    }
    assert Counter(q.kind for q in bias_items("discovery"))["nurse-doctor"] == 160


def test_every_race_gets_the_same_people() -> None:
    for kind in BIAS_KINDS:
        who = defaultdict(list)
        for q in bias_items("selection", (kind,)):
            who[q.images[0].attributes["race"]].append((q.images[0].context, q.template))
        assert len({tuple(sorted(names)) for names in who.values()}) == 1, kind


def test_pairs_are_one_person_in_two_versions_in_both_orders() -> None:
    pairs = bias_items("evaluation", ("2afc",))
    for q in pairs:
        first, second = q.images
        assert isinstance(first, Portrait)
        assert isinstance(second, Portrait)
        assert first.person == second.person
        assert first != second
    orders = {q.images for q in pairs}
    assert all((second, first) in orders for first, second in orders)


def test_bias_items_refuse_the_unknown() -> None:
    with pytest.raises(InputError, match="bias question 'height'"):
        bias_items("evaluation", ("height",))
    with pytest.raises(InputError, match="split 'test'"):
        bias_items("test")
