"""Adaptive logit adjustment: answers become equal between values, as transcribed, and only to questions it saw."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import ggss
from ggss.methods import registry
from ggss.models.reading import Answer
from ggss.probes import Item
from ggss_rivals.ala import LogitAdjustment
from planted import RACES, planted

OPTIONS = {"a": "low", "b": "middle", "c": "top"}
EFFECTS = np.random.default_rng(0).normal(size=(5, 3))  # of a value on the options' log probabilities
PLACES = np.random.default_rng(1).normal(size=(2, 5, 2))  # the same at two places
CERTAIN = 1e4  # a penalty so weak that the classifier is certain


@cache
def acts():
    return planted(identities=12)[0]


def asked(shown, prompt="how much ?", options=OPTIONS):
    """An item about these pictures, by number."""
    return Item(
        key=f"{prompt}/{'/'.join(map(str, shown))}",
        prompt=prompt,
        images=tuple(object() for _ in shown),
        attributes=tuple(acts().attributes[i] for i in shown),
        cluster="",
        options=dict.fromkeys(options, ""),
    )


def answer(options, logs):
    probabilities = np.exp(logs) / np.exp(logs).sum()
    return Answer(list(options)[int(probabilities.argmax())], tuple(probabilities.tolist()))


def race(i):
    return RACES.index(acts().attributes[i]["race"])


@cache
def salaries():
    """A question about each picture, whose answer depends on race and the person."""
    items = [asked((i,)) for i in range(len(acts()))]
    person = np.random.default_rng(2).normal(size=(12, 3))  # the same for all races
    return items, [answer(OPTIONS, EFFECTS[race(i)] + person[i // 10]) for i in range(len(acts()))]


@cache
def pairs():
    """Which of two versions of a person; two of the same race are never shown, so that values meet unequally."""
    shown = [
        (10 * person + a, 10 * person + b)
        for person in range(12)
        for a in range(10)
        for b in range(10)
        if race(a) != race(b)
    ]
    items = [asked(pair, "who earns more ?", ("first", "second")) for pair in shown]
    logs = [np.array([0.3, 0.0]) + PLACES[0, race(i)] + PLACES[1, race(j)] for i, j in shown]
    return items, [answer(("first", "second"), scores) for scores in logs]


@cache
def fitted(c=CERTAIN, attribute="race"):
    items, answers = (salaries()[k] + pairs()[k] for k in (0, 1))
    return LogitAdjustment.fit(acts(), attribute, items, answers, c)


def rows(items):
    """The mean rows of each item's pictures, which the key names."""
    return [acts().pooled[[int(i) for i in item.key.split("/")[1:]]] for item in items]


def adjusted(adjustment, items, answers, alpha=1.0):
    return adjustment.adjusted(items, answers, rows(items), alpha)


def gaps(items, answers):
    """By option, how far the mean log odds of the values lie apart, over the first picture's values."""
    shares = np.array([answer.probabilities for answer in answers])
    logs = np.log(shares) - np.log(shares).mean(1, keepdims=True)
    values = np.array([RACES.index(item.attributes[0]["race"]) for item in items])
    return np.ptp([logs[values == v].mean(0) for v in range(5)], axis=0).max()


def test_answers_are_equal_between_values():
    for items, answers in (salaries(), pairs()):
        after = adjusted(fitted(), items, answers)
        assert (after.unseen, after.unread) == (0, 0)
        assert gaps(items, answers) > 1
        assert gaps(items, after.answers) < 0.02
        half = adjusted(fitted(), items, answers, alpha=0.5)
        assert gaps(items, half.answers) == pytest.approx(gaps(items, answers) / 2, rel=0.02)


def test_what_a_person_shows_beside_race_stays():
    items, answers = salaries()
    after = np.array([answer.probabilities for answer in adjusted(fitted(), items, answers).answers])
    people = np.array([of_person.mean(0) for of_person in np.split(np.log(after), 12)])
    assert np.ptp(people, axis=0).min() > 0.5


def softmax(scores):
    return np.exp(scores) / np.exp(scores).sum()


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_it_is_the_transcription(alpha):
    """With a classifier that is unsure, and each of the two pictures' effects by its own least squares."""
    pooled = acts().pooled.double().numpy()
    plain = LogisticRegression(C=0.01, solver="newton-cg", tol=1e-9, max_iter=1000)
    plain.fit(pooled - pooled.mean(0), acts().labels("race"))
    chances = plain.predict_proba(pooled - pooled.mean(0))
    assert chances.max() < 0.9
    for items, answers in (salaries(), pairs()):
        logs = np.log([answer.probabilities for answer in answers])
        shown = np.array([[RACES.index(labels["race"]) for labels in item.attributes] for item in items])
        # Effect coding: the last value has minus the sum of the others' coefficients.
        coded = np.vstack([np.eye(4), -np.ones(4)])
        design = np.hstack([np.ones((len(items), 1)), *(coded[place] for place in shown.T)])
        solved = np.linalg.lstsq(design, logs, rcond=None)[0][1:].reshape(shown.shape[1], 4, -1)
        association = np.einsum("vk,jko->jvo", coded, solved)
        after = adjusted(fitted(0.01), items, answers, alpha).answers
        for item, new, log in zip(items[::7], after[::7], logs[::7], strict=True):
            numbers = [int(i) for i in item.key.split("/")[1:]]
            moved = log - alpha * sum(chances[i] @ association[place] for place, i in enumerate(numbers))
            np.testing.assert_allclose(new.probabilities, softmax(moved), atol=1e-6)
            assert new.text == list(item.options)[int(moved.argmax())]


def test_one_pictures_associations_are_means():
    logs = np.log([answer.probabilities for answer in salaries()[1]])
    labels = np.array(acts().labels("race"))
    means = np.array([logs[labels == value].mean(0) for value in RACES])
    association = fitted().associations["how much ?", tuple(OPTIONS), 1]
    np.testing.assert_allclose(association[0], means - means.mean(0), atol=1e-9)


def test_alpha_zero_is_the_identity():
    for items, answers in (salaries(), pairs()):
        assert adjusted(fitted(), items, answers, alpha=0.0).answers == answers


def test_labels_that_mean_nothing_adjust_nothing():
    """The negative control. Gender is crossed with race, and no answer depends on it; permuted races are noise."""
    items, answers = salaries()
    before = np.array([answer.probabilities for answer in answers])

    def moved(adjustment):
        after = [answer.probabilities for answer in adjusted(adjustment, items, answers).answers]
        return np.abs(np.array(after) - before).mean()

    assert moved(fitted()) > 0.1
    assert moved(fitted(attribute="gender")) < 1e-9
    order = np.random.default_rng(5).permutation(len(items))
    permuted = [replace(item, attributes=items[i].attributes) for item, i in zip(items, order, strict=True)]
    assert moved(LogitAdjustment.fit(acts(), "race", permuted, answers, CERTAIN)) < 0.4 * moved(fitted())


def test_a_question_that_was_never_asked_is_left_alone_and_counted():
    items, answers = salaries()
    other = [
        asked((0,), "what colour is the wall ?"),  # as a capability question
        asked((1,), options=("a", "b", "d")),
        asked((2, 3)),
        asked((4,)),
    ]
    unsteered = [answer("xyz", np.arange(3.0) + k)._replace(text="a") for k in range(4)]
    after = adjusted(fitted(), other, unsteered)
    assert after.answers[:3] == unsteered[:3]
    assert after.answers[3] != unsteered[3]
    assert (after.unseen, after.unread) == (3, 0)
    assert [fitted().knows(item) for item in other] == [False, False, False, True]
    assert fitted().knows(items[0])
    assert not adjusted(fitted(), items, answers).unseen


def test_an_answer_that_is_no_option_is_left_alone_and_counted():
    items, answers = salaries()
    odd = [answer._replace(text="I cannot tell") for answer in answers[:2]]
    after = adjusted(fitted(), items[:2], odd)
    assert after.answers == odd
    assert (after.unseen, after.unread) == (0, 2)


def test_the_text_is_the_likeliest_option_and_kept_where_that_is_the_same():
    items, answers = salaries()
    spaced = [answer._replace(text=f" {answer.text}\n") for answer in answers]
    after = adjusted(fitted(), items, spaced).answers
    changed = 0
    for item, old, new in zip(items, spaced, after, strict=True):
        likeliest = list(item.options)[int(np.argmax(new.probabilities))]
        changed += likeliest != old.text.strip()
        assert new.text == (old.text if likeliest == old.text.strip() else likeliest)
    assert 10 < changed < len(items) - 10


def test_two_values_have_one_row_of_weights_and_two_probabilities():
    adjustment = fitted(0.01, "gender")
    pooled = acts().pooled.double().numpy()
    plain = LogisticRegression(C=0.01, solver="newton-cg", tol=1e-9).fit(
        pooled - pooled.mean(0), acts().labels("gender")
    )
    expected = plain.predict_proba(pooled - pooled.mean(0))
    np.testing.assert_allclose(adjustment.probabilities(acts().pooled), expected, atol=1e-6)
    assert adjustment.values == ("man", "woman")


def test_an_option_without_probability_stays_without():
    items, answers = salaries()
    nothing = Answer("a", (1.0, 0.0, 0.0))
    (after,) = adjusted(fitted(), items[:1], [nothing]).answers
    assert after.probabilities == (1.0, 0.0, 0.0)
    adjustment = LogitAdjustment.fit(acts(), "race", items, [nothing, *answers[1:]])
    assert all(torch.isfinite(association).all() for association in adjustment.associations.values())


def test_what_it_cannot_learn_from_is_refused():
    items, answers = salaries()

    def fit(items, answers, attribute="race"):
        return LogitAdjustment.fit(acts(), attribute, items, answers)

    with pytest.raises(ggss.InputError, match="there are none: give it items"):
        fit([], [])
    with pytest.raises(ggss.InputError, match="120 items, but 119 answers"):
        fit(items, answers[1:])
    with pytest.raises(ggss.InputError, match="has no options: ala adjusts options"):
        fit([replace(items[0], options={})], [Answer("a")])
    with pytest.raises(ggss.InputError, match="has no pictures: ala adjusts options"):
        fit([replace(items[0], images=(), attributes=())], answers[:1])
    with pytest.raises(ggss.InputError, match="has 3 options, and its answer 0 probabilities"):
        fit(items, [Answer("a"), *answers[1:]])
    with pytest.raises(ggss.InputError, match=r"shows race 'violet'; the values .* are amber, coral"):
        fit([replace(items[0], attributes=({"race": "violet"},)), *items[1:]], answers)
    with pytest.raises(ggss.InputError, match=r"no picture of the 3 items that ask 'how much \?' shows race 'jade'"):
        fit(items[:3], answers[:3])
    kept = [pair for pair in zip(*pairs(), strict=True) if pair[0].attributes[1]["race"] != "coral"]
    with pytest.raises(ggss.InputError, match="shows race 'coral' at one of the places: ask about all values"):
        fit(*map(list, zip(*kept, strict=True)))


def test_it_is_no_steering_method():
    assert "ala" not in registry.names()
