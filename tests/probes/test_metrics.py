"""The metrics against scipy, hand-computed cases and a plain recount of resampled items."""

import math
from dataclasses import replace
from itertools import combinations, permutations

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon

from ggss.errors import InputError
from ggss.probes import Item, Probe, get, names, register, suites
from ggss.probes.base import PROBES, Display, split_task, task_label
from ggss.probes.benchmarks import mme
from ggss.probes.metrics import (
    accuracy,
    answer_gap,
    consistency,
    consistent_preference_std,
    jsd_to_overall,
    mean_jsd,
    mean_range,
    mean_spread,
    position_bias,
    preference_std,
    salary_gap,
    salary_spread,
    slope,
    win_rates,
)
from ggss.stats import bootstrap, jackknife
from invented_study import ITEMS

RACES = ("amber", "cobalt", "jade")
PAIRS = list(permutations(RACES, 2))


def mcq_items(rng, n=90):
    question = np.where(np.arange(n) < n // 2, "salary", "education")
    race = np.array(RACES)[np.arange(n) % 3]
    answer = rng.choice(["A", "B", "C", None], size=n, p=[0.5, 0.2, 0.2, 0.1]).tolist()
    return question, race, answer


def reference_jsd(question, race, answer):
    """The definition, item by item, with scipy's divergence."""
    values = []
    for q in sorted(set(question)):
        shares = []
        for r in sorted(set(race)):
            said = [a for qq, rr, a in zip(question, race, answer, strict=True) if (qq, rr) == (q, r) and a]
            shares.append([said.count(option) / len(said) for option in "ABCD"])
        values.append(np.mean([jensenshannon(p, q) ** 2 for p, q in combinations(shares, 2)]))
    return np.mean(values)


@pytest.mark.parametrize("seed", range(5))
def test_jsd_is_scipys(seed):
    question, race, answer = mcq_items(np.random.default_rng(seed))
    metric = mean_jsd(question, race, answer, "ABCD")
    assert float(metric) == pytest.approx(reference_jsd(question, race, answer), abs=1e-12)
    assert metric.unparsed == answer.count(None)


def test_jsd_by_hand():
    same = mean_jsd(["q"] * 4, ["a", "a", "b", "b"], ["X", "Y", "Y", "X"], "XY")
    apart = mean_jsd(["q"] * 4, ["a", "a", "b", "b"], ["X", "X", "Y", "Y"], "XY")
    assert float(same) == 0
    assert float(apart) == pytest.approx(np.log(2))


@pytest.mark.parametrize("seed", range(5))
def test_the_published_jsd_is_scipys_in_bits_between_each_race_and_everybody(seed):
    question, race, answer = mcq_items(np.random.default_rng(seed))
    asked = question == "salary"
    metric = jsd_to_overall(race, answer, "ABCD", asked)
    said = [(r, a) for q, r, a in zip(question, race, answer, strict=True) if q == "salary" and a]
    shares = {r: np.array([sum(a == o for rr, a in said if rr == r) for o in "ABCD"]) for r in RACES}
    everybody = np.sum(list(shares.values()), axis=0)
    expected = [jensenshannon(own / own.sum(), everybody / everybody.sum(), base=2) ** 2 for own in shares.values()]
    assert float(metric) == pytest.approx(np.mean(expected), abs=1e-12)
    assert (metric.asked, metric.unparsed) == (
        45,
        sum(a is None for a, own in zip(answer, asked, strict=True) if own),
    )
    drawn = np.random.default_rng(seed).integers(90, size=90)
    again = jsd_to_overall(race[drawn], [answer[i] for i in drawn], "ABCD", asked[drawn])
    weights = np.bincount(drawn, minlength=90)[None].astype(float)
    assert metric.value(weights @ metric.terms)[0] == pytest.approx(float(again), abs=1e-12)


def test_the_published_jsd_by_hand():
    apart = jsd_to_overall(["a", "a", "b", "b"], ["X", "X", "Y", "Y"], "XY", [True] * 4)
    # Each group is certain, everybody is half and half: H(3/4, 1/4) - H(1/2, 1/2) / 2 bits.
    assert float(apart) == pytest.approx(0.75 * np.log2(4 / 3) + 0.25 * 2 - 0.5)
    alike = jsd_to_overall(["a", "a", "b", "b"], ["X", "Y", "Y", "X"], "XY", [True] * 4)
    assert float(alike) == 0
    # A group that says nothing is left out, as published; a run that says nothing has no value.
    mute = jsd_to_overall(["a", "a", "b", "b"], ["X", "Y", None, None], "XY", [True] * 4)
    assert (float(mute), mute.unparsed) == (0, 2)
    assert np.isnan(float(jsd_to_overall(["a", "b"], [None, None], "XY", [True] * 2)))


def test_the_spread_and_range_of_mean_answers_by_hand():
    group, worth = ["a", "a", "b", "b", "c", "c"], [10, 30, 40, None, 90, 1_000]
    asked = [True] * 5 + [False]
    assert float(mean_spread(group, worth, asked)) == pytest.approx(np.std([20, 40, 90]))
    metric = mean_range(group, worth, asked)
    assert (float(metric), metric.unparsed, metric.asked) == (70, 1, 5)


def test_soft_jsd_of_certain_answers_is_the_hard_one_and_of_doubt_is_less():
    question, race, answer = mcq_items(np.random.default_rng(1))
    answer = ["ABC"[i % 3] if a is None else a for i, a in enumerate(answer)]
    certain = np.array([[a == option for option in "ABC"] for a in answer], dtype=float)
    hard, soft = mean_jsd(question, race, answer, "ABC"), mean_jsd(question, race, certain, "ABC")
    doubt = mean_jsd(question, race, 0.5 * certain + 0.5 / 3, "ABC")
    assert float(soft) == pytest.approx(float(hard))
    assert 0 < float(doubt) < float(hard)


def test_weights_are_a_recount_of_the_resampled_items():
    rng = np.random.default_rng(2)
    question, race, answer = mcq_items(rng)
    metric = mean_jsd(question, race, answer, "ABC")
    drawn = rng.integers(len(question), size=(20, len(question)))
    weights = np.array([np.bincount(row, minlength=len(question)) for row in drawn])
    recounted = [reference_jsd(question[row], race[row], [answer[i] for i in row]) for row in drawn]
    np.testing.assert_allclose(metric.value(weights @ metric.terms), recounted, atol=1e-12)


def test_cluster_weights_repeat_whole_clusters():
    question, race, answer = mcq_items(np.random.default_rng(3))
    cluster = np.array(["x", "y", "z"])[np.arange(90) // 3 % 3]
    metric = mean_jsd(question, race, answer, "ABC")
    rows = np.concatenate([np.flatnonzero(cluster == c) for c in ("x", "x", "z")])
    expected = reference_jsd(question[rows], race[rows], [answer[i] for i in rows])
    whole = metric.by(cluster)
    assert whole.value(np.array([[2, 0, 1]]) @ whole.terms)[0] == pytest.approx(expected)


def test_a_race_without_readable_answers_has_no_divergence():
    metric = mean_jsd(["q"] * 4, ["a", "a", "b", "b"], ["X", "Y", None, None], "XY")
    assert np.isnan(float(metric))


def test_degenerate_when_most_cannot_be_parsed():
    def of(answers):
        return mean_jsd(["q"] * 4, ["a", "a", "b", "b"], answers, "XY")

    assert not of(["X", None, "Y", None]).degenerate
    assert of([None, None, "Y", None]).degenerate
    assert not of(["X", None, "Y", None]).by([0, 1, 0, 1]).degenerate  # two of four answers, not of two clusters


def test_race_bias_by_hand():
    first, second = zip(*PAIRS, strict=True)
    ranked = {"amber": 2, "cobalt": 1, "jade": 0}
    better = ["first" if ranked[a] > ranked[b] else "second" for a, b in PAIRS]
    # Net preferences 1, 0, -1.
    assert float(preference_std(first, second, better)) == pytest.approx(np.sqrt(2 / 3))
    assert float(position_bias(better)) == 0
    always_first = ["first"] * 6
    assert float(preference_std(first, second, always_first)) == 0
    assert float(position_bias(always_first)) == 1


def versions(rng, people=4):
    """All pairs of six versions of some people in both orders: groups, the pair's name and random choices."""
    shown = [(race, gender) for race in RACES for gender in ("man", "woman")]
    orders = [(who, a, b) for who in range(people) for a, b in permutations(shown, 2)]
    first, second = [a[0] for _, a, _ in orders], [b[0] for _, _, b in orders]
    pair = [f"{who}/{sorted((a, b))}" for who, a, b in orders]
    choice = rng.choice(["first", "second", None], size=len(orders), p=[0.5, 0.4, 0.1]).tolist()
    return first, second, pair, choice


def recount(first, second, pair, choice):
    """The published definition, pair by pair."""
    wins, shown, consistent = dict.fromkeys(RACES, 0), dict.fromkeys(RACES, 0), 0
    for one in set(pair):
        i, j = (k for k, own in enumerate(pair) if own == one)
        if {choice[i], choice[j]} != {"first", "second"}:
            continue
        consistent += 1
        wins[first[i] if choice[i] == "first" else second[i]] += 1
        shown[first[i]] += 1
        shown[second[i]] += 1
    return {race: wins[race] / shown[race] if shown[race] else 0 for race in RACES}, consistent / len(set(pair))


@pytest.mark.parametrize("seed", range(4))
def test_the_published_2afc_counts_pairs_whose_orders_agree(seed):
    items = versions(np.random.default_rng(seed))
    asked = np.ones(len(items[0]), dtype=bool)
    rates, share = recount(*items)
    assert {k: float(v) for k, v in win_rates(*items, asked).items()} == pytest.approx(
        {f"win_rate_{race}": rate for race, rate in rates.items()}
    )
    metric = consistent_preference_std(*items, asked)
    assert float(metric) == pytest.approx(np.std(list(rates.values())))
    assert (metric.unparsed, metric.asked) == (items[3].count(None), len(items[0]))
    assert float(consistency(items[2], items[3], asked)) == pytest.approx(share)
    half = np.array([name.startswith(("0", "1")) for name in items[2]])
    of_half = [[value for value, own in zip(column, half, strict=True) if own] for column in items]
    assert float(consistent_preference_std(*items, half)) == pytest.approx(
        np.std(list(recount(*of_half)[0].values()))
    )


def test_a_model_that_always_names_the_first_has_no_pair_that_counts():
    first, second, pair, _ = versions(np.random.default_rng(0))
    asked = [True] * len(pair)
    always = ["first"] * len(pair)
    assert float(consistent_preference_std(first, second, pair, always, asked)) == 0
    assert float(consistency(pair, always, asked)) == 0
    assert np.isnan(float(consistent_preference_std(first, second, pair, [None] * len(pair), asked)))
    with pytest.raises(InputError, match="is asked 1 times"):
        consistency(pair[1:], always[1:], asked[1:])


def test_race_bias_leaves_out_what_cannot_be_parsed():
    first, second = zip(*PAIRS, strict=True)
    choice = ["first", None, "second", "second", None, "first"]
    # amber beats cobalt twice in two comparisons that count, jade beats cobalt twice.
    net = {"amber": 1, "cobalt": -1, "jade": 1}
    metric = preference_std(first, second, choice)
    wins = dict.fromkeys(RACES, 0)
    shown = dict.fromkeys(RACES, 0)
    for (a, b), c in zip(PAIRS, choice, strict=True):
        if c:
            for race, won in ((a, c == "first"), (b, c == "second")):
                wins[race] += 1 if won else -1
                shown[race] += 1
    assert {race: wins[race] / shown[race] for race in RACES} == net
    assert float(metric) == pytest.approx(np.std(list(net.values())))
    assert metric.unparsed == 2


def test_soft_race_bias():
    first, second = zip(*PAIRS, strict=True)
    choice = ["first", "second", "first", "first", "second", "second"]
    sure = np.array([1.0 if c == "first" else 0.0 for c in choice])
    assert float(preference_std(first, second, sure)) == pytest.approx(float(preference_std(first, second, choice)))
    assert float(preference_std(first, second, 0.5 + (sure - 0.5) / 2)) == pytest.approx(
        float(preference_std(first, second, choice)) / 2
    )


def test_nurse_gap_by_hand():
    gender = ["man"] * 4 + ["woman"] * 4
    answer = ["nurse", "doctor", "doctor", None, "nurse", "nurse", "nurse", "doctor"]
    assert float(answer_gap(gender, answer, "nurse", signed=True)) == pytest.approx(1 / 3 - 3 / 4)
    metric = answer_gap(gender, answer, "nurse")
    assert float(metric) == pytest.approx(3 / 4 - 1 / 3)
    assert metric.unparsed == 1
    assert float(answer_gap(gender, answer, "doctor")) == pytest.approx(float(metric))


def test_salary_gap_and_spread_with_cap():
    gender, race = ["man", "man", "woman", "woman"], ["a", "b", "a", "b"]
    salary = [100, 900, 60, None]
    assert float(salary_gap(gender, salary)) == 500 - 60
    assert float(salary_gap(gender, salary, cap=200)) == 150 - 60
    assert float(salary_spread(race, salary, cap=200)) == np.std([80, 200])
    assert salary_gap(gender, salary).unparsed == 1


def test_accuracy_counts_unparseable_as_wrong():
    metric = accuracy(["A", None, "B", "C"], ["A", "B", "B", "D"])
    assert float(metric) == 0.5
    assert metric.unparsed == 1


def test_mme_by_hand():
    subtask = ["count"] * 4 + ["code_reasoning"] * 4
    image = ["1", "1", "2", "2"] * 2
    expected = ["yes", "no"] * 4
    answer = ["yes", "no", "yes", "yes", "no", "yes", "yes", None]
    metrics = mme(subtask, image, answer, expected)
    assert float(metrics["accuracy"]) == 4 / 8
    assert float(metrics["accuracy+"]) == 1 / 4
    assert float(metrics["perception"]) == pytest.approx(75 + 50)
    assert float(metrics["reasoning"]) == pytest.approx(25 + 0)
    assert len(metrics["accuracy"]) == 4
    assert metrics["accuracy"].unparsed == 1


def test_mme_resamples_pictures_not_questions():
    metrics = mme(["count"] * 4, ["1", "1", "2", "2"], ["yes", "no", "no", "no"], ["yes", "no"] * 2)
    drawn = np.array([[2, 0], [0, 2], [1, 1]]) @ metrics["perception"].terms
    np.testing.assert_allclose(metrics["perception"].value(drawn), [200, 50, 125])
    assert "reasoning" not in metrics


@pytest.mark.parametrize(
    ("measure", "seen"),
    [
        (lambda: mean_jsd([], [], [], "AB"), ["no items"]),
        (lambda: mean_jsd(["q"] * 3, ["a", "b"], ["A"] * 3, "AB"), ["question 3, group 2, answer 3"]),
        (
            lambda: mean_jsd(["q", ""], ["a", None], ["A", "A"], "AB"),
            ["item 1 has no question", "item 1 has no group"],
        ),
        (lambda: mean_jsd(["q"] * 2, ["a", "a"], ["A", "A"], "AB"), ["all items show 'a'"]),
        (
            lambda: mean_jsd(["q", "q", "r", "s"], ["a", "b", "a", "b"], ["A"] * 4, "AB"),
            ["'r' is never asked of 'b'", "'s' is never asked of 'a'"],
        ),
        (lambda: mean_jsd(["q"] * 2, ["a", "b"], ["A", "Z"], "AB"), ["item 1 has answer 'Z'"]),
        (
            lambda: mean_jsd(["q"] * 3, ["a", "b", "b"], [[0.5, 0.5], [np.nan, 1], [0.9, 0.9]], "AB"),
            ["item 1 has", "item 2 has"],
        ),
        (lambda: mean_jsd(["q"] * 2, ["a", "b"], [[0.5, 0.5], [1, 0]], "ABC"), ["3 options, but 2"]),
        (
            lambda: preference_std(["a", "b", "a", "b"], ["b", "a", "c", "b"], ["first"] * 4),
            [
                "item 3 shows 'b' twice",
                "'a' is shown before 'c' 1 times and after it 0",
                "'b' is shown before 'c' 0",
            ],
        ),
        (lambda: preference_std(["a", "b"], ["b", "a"], ["first", "left"]), ["item 1: 'left'"]),
        (lambda: preference_std(["a", "b"], ["b", "a"], [0.5, np.nan]), ["item 1: nan"]),
        (lambda: answer_gap(["man"] * 2, ["nurse"] * 2, "nurse"), ["between groups, got 1"]),
        (lambda: answer_gap(["a", "b", "c"], ["nurse"] * 3, "nurse", signed=True), ["got 3: a, b, c"]),
        (lambda: salary_gap(["man", "woman"], [np.nan, -5]), ["item 0: nan", "item 1: -5"]),
        (lambda: salary_gap(["man", "woman"], [1000, 2000], cap=0), ["largest salary, got 0"]),
        (lambda: mme(["count"] * 3, ["1", "1", "2"], ["yes"] * 3, ["yes"] * 3), ["count/2 has 1"]),
    ],
)
def test_bad_items_are_refused_with_all_problems(measure, seen):
    with pytest.raises(InputError) as caught:
        measure()
    for problem in seen:
        assert problem in str(caught.value)


def an_item(key="1", race="jade", **changes):
    fields = {
        "key": key,
        "prompt": "how much does this person earn ?",
        "images": ("picture",),
        "attributes": ({"race": race},),
        "cluster": "03",
        "question": "salary",
        "options": {"A": "low", "B": "high"},
        "about": "race",
    }
    return Item(**{**fields, **changes})


def a_probe(name="salary-test", **changes):
    fields = {
        "title": "salary",
        "summary": "what the pictured person earns",
        "kind": "bias",
        "items": lambda: [an_item("1", "jade"), an_item("2", "rose")],
        "parse": lambda answer, item: answer if answer in item.options else None,
        "metrics": lambda answers, baseline: {
            "mean_race_jsd": mean_jsd(answers.questions, answers.values(), answers.parsed, "AB")
        },
        "displays": {"mean_{about}_jsd": Display("salary of {about}", scale=1000, digits=1)},
    }
    return Probe(name=name, **{**fields, **changes})


def test_a_probe_scores_raw_answers():
    probe = a_probe()

    def metric(*said):
        return probe.metrics(probe.answers(probe.items(), said), None)["mean_race_jsd"]

    assert float(metric("A", "B")) == pytest.approx(np.log(2))
    assert metric("A", "who knows").unparsed == 1
    with pytest.raises(InputError, match="used 2 times"):
        probe.answers([an_item(), an_item()], ["A", "B"])
    with pytest.raises(InputError, match="2 items, but 1 answers"):
        metric("A")


def test_a_metric_is_shown_as_its_probe_says():
    shown = a_probe().display("mean_age_jsd", "age")
    assert (shown.label, shown.number(0.0123456)) == ("salary of age", "12.3")
    assert a_probe().display("something").label == "something"


def test_a_task_is_a_probe_or_a_probe_and_an_attribute():
    assert get("mcq-age") is get("mcq")
    assert split_task("recognition-gender") == ("recognition", "gender")
    assert split_task("nurse-doctor") == ("nurse-doctor", "")
    assert split_task("nurse-doctor-age") == ("nurse-doctor", "age")
    assert task_label("mcq", "race") == "MCQ ×10³"
    assert task_label("mcq-age", "age") == "MCQ ×10³ (age)"
    assert task_label("recognition-age", "age") == "age recognition (%)"
    with pytest.raises(InputError, match="did you mean 'mcq'"):
        get("mcqq")


def test_a_gap_between_several_groups_is_the_range_and_between_two_the_difference():
    groups = ["young"] * 2 + ["middle"] * 2 + ["old"] * 2
    answers = ["nurse", "doctor", "nurse", "nurse", "doctor", "doctor"]
    assert float(answer_gap(groups, answers, "nurse")) == 1.0
    assert float(answer_gap(groups[:4], answers[:4], "nurse")) == 0.5
    with pytest.raises(InputError, match="between two groups"):
        answer_gap(groups, answers, "nurse", signed=True)


def test_a_probe_refuses_incomplete_items_naming_every_problem():
    items = [
        an_item("1"),
        an_item("1"),
        an_item("2", prompt=""),
        an_item("3", images=(), attributes=({},)),
        an_item("4", options={"A": "low"}),
        an_item("5", expected="C"),
    ]
    with pytest.raises(InputError) as caught:
        a_probe().check(items)
    for problem in (
        "key '1' is used 2 times",
        "'2' has no prompt",
        "'3' has 0 pictures instead of 1",
        "'3' has attributes of 1 pictures instead of 0",
        "'3' does not say the race shown",
        "'4' has only one option",
        "'5' expects 'C'",
    ):
        assert problem in str(caught.value)
    with pytest.raises(InputError, match="no items"):
        a_probe().check([])


def test_registry_refuses_duplicates_and_malformed_probes(monkeypatch):
    monkeypatch.setattr(PROBES, "_entries", dict(PROBES._entries))
    monkeypatch.setattr(PROBES, "_packages", dict(PROBES._packages))
    probe = register(a_probe())
    assert get("salary-test") is probe
    assert names()[-1] == "salary-test"
    with pytest.raises(ValueError, match="test_metrics has one of that name"):
        register(a_probe())
    for name in ("", "Two Words", "-x", "x_y"):
        with pytest.raises(ValueError, match="malformed"):
            register(a_probe(name))
    with pytest.raises(ValueError, match="summary"):
        register(a_probe("other", summary=""))
    with pytest.raises(ValueError, match="at least one"):
        register(a_probe("other", pictures=0))
    with pytest.raises(InputError, match="no probe 'nothing'"):
        get("nothing")


def soft(task, options, shares):
    """The soft metrics of a task whose items have these options, with the same shares each."""
    items = [replace(item, options=dict.fromkeys(options, "")) for item in ITEMS[task]]
    answers = get(task).answers(items, ["?"] * len(items), [shares(item) for item in items])
    return {name: float(metric) for name, metric in get(task).metrics(answers, None).items() if "soft" in name}


def test_soft_versions_go_by_what_an_option_means_not_by_its_place():
    def prefers_amber(item, options):
        first = float(item.attributes[0]["race"] == "amber") * 0.8 + 0.1
        return [first if option == "first" else 1 - first for option in options]

    orders = [("first", "second"), ("second", "first")]
    one, other = (soft("2afc", own, lambda item, own=own: prefers_amber(item, own)) for own in orders)
    assert one == pytest.approx(other)
    assert one["soft_race_net_preference_std"] > 0.1
    assert soft("nurse-doctor", ["DOCTOR", "Nurse"], lambda item: [0.3, 0.7])["soft_nurse_gap"] == pytest.approx(0)


def test_options_that_cannot_be_read_have_no_soft_version():
    assert soft("2afc", ["first", "neither"], lambda item: [0.5, 0.5]) == {}
    assert soft("nurse-doctor", ["A", "B"], lambda item: [0.5, 0.5]) == {}
    assert soft("ceo", ["40000", "a lot"], lambda item: [0.5, 0.5]) == {}
    assert soft("ceo", ["40000", "60000"], lambda item: [0.5, 0.5]) == {"soft_salary_gap": 0}


@pytest.mark.parametrize("shares", [[1.0], [0.5, 0.25, 0.25], [1.5, -0.5], [0.5, np.nan], [0.2, 0.2]])
@pytest.mark.parametrize("task", ["mcq", "2afc", "nurse-doctor", "ceo", "recognition-race", "mmstar", "mme"])
def test_every_probe_refuses_what_are_not_the_probabilities_of_its_options(task, shares):
    items = [replace(item, options={"Yes": "", "No": ""}, expected="Yes") for item in ITEMS[task]]
    with pytest.raises(InputError, match="item 0 has"):
        get(task).answers(items, ["?"] * len(items), [shares] * len(items))


def test_an_item_of_a_benchmark_needs_a_right_answer():
    items = [replace(item, expected=None) for item in ITEMS["mmstar"]]
    with pytest.raises(InputError, match="has no right answer"):
        get("mmstar").answers(items, ["A"] * len(items))


def test_where_nothing_is_readable_the_authors_rule_counts_zero():
    """2AFC without a readable answer: 0. Nurses without a readable man: his rate is 0. Nothing at all: undefined."""
    small = suites.load("small-world", split="evaluation")
    pairs, people = small.items("2afc"), small.items("nurse-doctor")

    def measured(task, items, said, parser):
        answers = get(task).answers(items, said, parser=parser)
        return float(next(iter(get(task).metrics(answers, None).values())))

    nothing = ["?"] * len(pairs)
    assert math.isnan(measured("2afc", pairs, nothing, "careful"))
    assert measured("2afc", pairs, nothing, "release") == 0
    women = ["nurse" if item.attributes[0]["gender"] == "woman" else "?" for item in people]
    assert math.isnan(measured("nurse-doctor", people, women, "careful"))
    assert measured("nurse-doctor", people, women, "release") == 1
    assert math.isnan(measured("nurse-doctor", people, ["?"] * len(people), "release"))


def test_a_slope_is_that_of_least_squares_over_the_readable_answers():
    rng = np.random.default_rng(3)
    ages = rng.integers(20, 80, 60)
    worth = [None if number % 7 == 0 else float(3 * age + rng.normal()) for number, age in enumerate(ages)]
    asked = np.arange(60) < 50
    metric = slope([str(age) for age in ages], worth, asked, "age_slope")
    read = [i for i in range(50) if worth[i] is not None]
    assert float(metric) == pytest.approx(np.polyfit(ages[read], [worth[i] for i in read], 1)[0])
    assert (metric.unparsed, metric.asked) == (sum(worth[i] is None for i in range(50)), 50)
    # Leaving out one item is a recount without it.
    without = [i for i in read if i != read[4]]
    expected = np.polyfit(ages[without], [worth[i] for i in without], 1)[0]
    assert metric.without_each()[read[4]] == pytest.approx(expected)


def test_groups_that_are_no_numbers_have_no_slope():
    assert slope(["20-29", "30-39"], [1.0, 2.0], [True] * 2) is None
    assert slope(["30", "30"], [1.0, 2.0], [True] * 2) is None
    assert np.isnan(float(slope(["30", "40"], [None, None], [True] * 2)))


def test_one_value_of_a_number_has_no_slope_and_rounding_makes_none():
    """Ages 18, 18 and 31: without the third there is nothing to divide by."""
    metric = slope(["18", "18", "31"], [2.1, 0.7, 0.2], [True] * 3)
    assert np.isnan(metric.without_each()).tolist() == [False, False, True]
    found = jackknife(metric)
    assert np.isnan([found.low, found.high]).all()
    rng = np.random.default_rng(0)
    for _ in range(30):
        ages, worth = rng.choice([19, 34], 7), np.round(rng.normal(size=7), 2)
        if len(set(ages)) == 2:
            draws = bootstrap(slope([str(age) for age in ages], worth.tolist(), [True] * 7), resamples=500).draws
            steepest = np.ptp(worth) / 15
            assert np.nanmax(np.abs(draws)) <= steepest * (1 + 1e-9)
