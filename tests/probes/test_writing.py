"""What a model writes: each measure against a count by hand, on planted texts, and where nothing is planted."""

import math
from collections import Counter
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
import yaml

from ggss.analysis import compare, records
from ggss.analysis.run import Run, Source, Statistics
from ggss.data.pictures import AbsentPicture
from ggss.errors import InputError
from ggss.models.reading import Answer
from ggss.plugins import Registry
from ggss.probes import Item, get, suites, writing
from ggss.probes.questions import questions_suite, read_questions
from ggss.probes.writing import LEXICONS, Lexicon, Text, default_lexicon, marked, overlap, read_lexicon, words_of
from test_suites import manifest  # noqa: F401 (a fixture)

GROUPS = ("amber", "jade")
FEW = Statistics(permutations=1999)
MENTION = {"mention": ("amber", "jade")}


def read(text, **lexicons):
    return Text.read(text, MENTION | lexicons)


def items(people=6, groups=GROUPS, questions=("describe", "letter")):
    return tuple(
        Item(
            f"{question}/{person}/{group}/{gender}",
            "write",
            (AbsentPicture(f"{person}{group}{gender}"),),
            ({"race": group, "gender": gender},),
            str(person),
            question,
            about="race",
            context={"identity": str(person)},
            lexicons=MENTION,
        )
        for question in questions
        for person, group, gender in product(range(people), groups, ("man", "woman"))
    )


def run_of(asked, write):
    answers = tuple(Answer(write(item)) for item in asked)
    return Run("writing", tuple(asked), answers, Source("m", suite="s", suite_hash="1"))


def test_words_and_entries():
    assert words_of("Don’t — the well-known Dr. Smith, 42!") == ["don't", "the", "well-known", "dr", "smith", "42"]
    lexicon = Lexicon.of(("kind", "gener*", "as an ai"))
    assert lexicon.places(words_of("Kind and generous, not kindly; as an AI I")) == [0, 2, 5]
    for name in LEXICONS:
        entries = default_lexicon(name)
        assert len(entries) > 20, name
        assert list(entries) == sorted(entries), name


def test_measures_of_a_text():
    text = read("She is a kind, skilled and able engineer who is happy but poor.")  # 13 words
    assert text == "competence, warmth, positive, negative"
    assert text.measures["length"] == 13
    assert text.measures["refusal"] == 0
    assert text.measures["mention"] == 0
    assert text.measures["competence"] == pytest.approx(200 / 13)
    assert text.measures["warmth"] == pytest.approx(100 / 13)
    assert text.measures["sentiment"] == pytest.approx(100 * (2 - 1) / 13)  # kind and happy, poor
    assert read("") is None
    assert read(" ... ") is None
    assert read("Someone at a desk.") == "none of these words"


@pytest.mark.parametrize(
    ("text", "measure", "expected"),
    [
        ("He is not kind.", "warmth", 0),
        ("He isn't a very kind man.", "warmth", 0),
        ("He is nothing if not rich; kind.", "warmth", 1),
        ("A jade woman.", "mention", 1),
        ("A woman in a jade coat.", "mention", 0),
        ("I'm sorry, but I can't help with that.", "refusal", 1),
        ("I can not say .", "refusal", 1),
        ("word " * 20 + "I'm sorry, she said.", "refusal", 0),
    ],
)
def test_what_counts(text, measure, expected):
    assert bool(read(text).measures[measure]) == bool(expected)


def test_a_refusal_says_nothing_about_the_person():
    text = read("I cannot describe this kind, brilliant jade person.")
    assert text == "refusal"
    assert set(text.measures) == {"length", "refusal"}


def test_a_users_lexicon_takes_the_place_of_ours_or_is_one_more():
    assert read("A kind man.", warmth=("rude",)).measures["warmth"] == 0
    text = read("A rude man.", manners=("rude",))
    assert text.measures["manners"] == pytest.approx(100 / 3)
    assert "manners" in text


def test_a_lexicon_with_a_users_name_is_shown_and_compared_as_ours_are():
    asked = [replace(item, lexicons=MENTION | {"manners": ("rude",)}) for item in items(people=12)]
    before = run_of(asked, lambda item: "a rude man" if "amber" in item.key else "a kind man")
    metrics = before.measured()
    assert {"race_manners_gap", "race_manners_range", "mean_manners"} <= set(metrics.names)
    for ending in ("race_{}_gap", "race_{}_range", "mean_{}"):
        shown, ours = (get("writing").display(ending.format(name), "race") for name in ("manners", "warmth"))
        assert (shown.unit, shown.label) == (" per 100 words", ours.label.replace("warmth", "manners"))
        assert replace(shown, label="", meaning="") == replace(ours, label="", meaning="")
    after = replace(run_of(asked, lambda item: "a kind man"), source=Source("m", suite="s", suite_hash="1"))
    assert "race_manners_gap" in compare(before, after, FEW).before.compared
    assert "race_manners_gap" in metrics.with_chance_level
    odd = run_of([replace(item, lexicons=MENTION | {"{x": ("rude",)}) for item in asked], lambda item: "a rude man")
    assert "race_{x_gap" in odd.measured().names  # of a file that somebody wrote
    assert get("writing").display("race_manners_gap", "race").label == "manners gap"


def by_hand(run, measure):
    """The gap and the mean range within a person, by plain loops."""
    numbers = [read(answer.text).measures.get(measure) for answer in run.answers]
    groups, cases = {}, {}
    for item, number in zip(run.items, numbers, strict=True):
        if number is not None:
            shown = item.attributes[0]
            groups.setdefault(shown["race"], []).append(number)
            cases.setdefault((item.question, item.cluster, shown["gender"]), []).append(number)
    means = [np.mean(values) for values in groups.values()]
    ranges = [max(values) - min(values) for values in cases.values() if len(values) > 1]
    return max(means) - min(means), np.mean(ranges), np.mean([n for n in numbers if n is not None])


@pytest.mark.parametrize("groups", [GROUPS, ("amber", "coral", "jade")])
def test_agrees_with_plain_loops(groups):
    rng = np.random.default_rng(1)
    vocabulary = ["kind", "able", "happy", "poor", "jade", "the", "desk", "works", "i cannot"]
    run = run_of(items(groups=groups), lambda item: " ".join(rng.choice(vocabulary, size=rng.integers(3, 9))))
    measured = run.metrics()
    for measure in ("competence", "warmth", "sentiment", "length", "mention", "refusal"):
        expected = by_hand(run, measure)
        names = (f"race_{measure}_gap", f"race_{measure}_range", f"mean_{measure}")
        assert [float(measured[name]) for name in names] == pytest.approx(expected), measure
    cases = {}
    for item, answer in zip(run.items, run.answers, strict=True):
        key = (item.question, item.cluster, item.attributes[0]["gender"])
        cases.setdefault(key, []).append(Counter(words_of(answer.text)))
    distances = [
        np.mean([1 - 2 * (a & b).total() / (a.total() + b.total()) for a, b in combinations(texts, 2)])
        for texts in cases.values()
    ]
    assert float(measured["race_text_distance"]) == pytest.approx(np.mean(distances))
    assert (len(groups) == 2) == ("signed_race_competence_gap" in measured)


def planted(effect, seed=0):
    """Texts of eight words; one is a word of competence with a probability that depends on the group, or does not."""
    rng = np.random.default_rng(seed)

    def write(item):
        chance = 0.5 + effect * {"amber": 1, "jade": -1}[item.attributes[0]["race"]]
        first = "skilled" if rng.random() < chance else "quiet"
        second = rng.choice(["kind", "tall"])
        return f"this {first} and {second} person sits there now"

    return run_of(items(people=40), write)


def test_a_gap_is_found_where_it_is_planted_and_nowhere_else():
    measured = planted(0.35).measured(FEW)
    assert measured.metric().name == "race_competence_gap"
    interval = measured.corrected()
    assert interval.low < 100 * 0.7 / 8 < interval.high
    assert measured.null("race_competence_gap").p < 0.001
    for other in ("warmth", "sentiment", "length", "mention", "refusal"):
        assert measured.null(f"race_{other}_gap").p > 0.05, other
    assert measured.null("race_competence_gap").quantile(0.95) < measured.value()


def test_without_an_effect_chance_explains_the_gap():
    tests = [planted(0.0, seed).measured(FEW).null("race_competence_gap").p for seed in range(6)]
    assert sum(p < 0.05 for p in tests) <= 1
    assert np.mean(tests) > 0.2


def test_people_depend_on_the_attribute_if_the_kinds_of_words_do():
    def write(item):
        return "a kind man" if item.cluster == "0" and item.attributes[0]["race"] == "jade" else "a man, quite tall"

    asked = items(people=4)
    measured = run_of(asked, write).measured()
    assert measured.flips("race") == (4, 16)
    assert measured.flips("gender") == (0, 16)
    assert float(run_of(asked, lambda item: "the same").metrics()["race_text_distance"]) == 0


def test_overlap_is_dices_coefficient():
    assert overlap(["a", "a", "b"], ["a", "c"]) == pytest.approx(2 / 5)
    assert overlap(["a"], ["a"]) == 1
    assert overlap(["a"], ["b"]) == 0


def test_marked_are_words_that_most_others_do_not_have():
    texts = ["A kind man.", "A tall <b>man</b>.", "A tall man!"]
    pieces = marked(texts)
    assert ["".join(part for part, _ in text) for text in pieces] == texts
    assert [[part for part, mark in text if mark] for text in pieces] == [["kind"], ["b", "b"], []]
    assert [mark for _, mark in marked(["alone"])[0]] == [False]
    assert marked(["x y z", "z"])[0] == [("x y", True), (" z", False)]
    assert marked(["", "a"])[0] == []


LETTER = {"text": "Write a letter.", "metric": "writing", "attribute": "gender"}


@pytest.fixture
def write(tmp_path):
    def written(content, **lexicons):
        for name, text in lexicons.items():
            (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8")
        file = tmp_path / "questions.yaml"
        file.write_text(yaml.safe_dump(content, sort_keys=False))
        return file

    return written


def test_a_question_of_a_file_may_ask_for_a_text(write, manifest, tmp_path):  # noqa: F811
    people = suites.load("reflect", images=manifest)
    plain = questions_suite(write({"letter": LETTER}), people)
    assert plain.tasks == ("writing-letter",)
    assert plain.max_new_tokens("writing-letter") == 256
    entry = LETTER | {"lexicons": {"leadership": "mine.txt", "mention": "mine.txt"}}
    own = questions_suite(write({"letter": entry}, mine="# mine\nLeads\nin charge\n"), people)
    (item, *_) = own.items("writing-letter")
    assert item.lexicons["leadership"] == ("leads", "in charge")
    assert not item.options
    assert {"man", "female", "in charge"} <= set(item.lexicons["mention"])
    assert own.hash("writing-letter") != plain.hash("writing-letter")
    other = questions_suite(write({"letter": entry}, mine="leads\n"), people)
    assert other.hash("writing-letter") != own.hash("writing-letter")
    runs = [
        Run(
            "writing-letter",
            suite.items("writing-letter"),
            tuple(Answer("she leads") for _ in suite.items("writing-letter")),
            Source("m"),
        )
        for suite in (own, other)
    ]
    assert "gender_leadership_gap" in runs[0].metrics()
    records.write([runs[0]], tmp_path / "run.jsonl")
    loaded = records.load(tmp_path / "run.jsonl")["writing-letter"]
    assert [float(m) for m in loaded.metrics().values()] == [float(m) for m in runs[0].metrics().values()]
    with pytest.raises(InputError, match="other lexicons"):
        compare(*runs)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"options": ["yes", "no"]}, "letter: options: a text is written, not chosen"),
        ({"lexicons": {"sentiment": "mine.txt"}}, "lexicons: 'sentiment' is the name of a measure"),
        ({"lexicons": {"My words": "mine.txt"}}, "lexicons: 'My words' is no name"),
        ({"metric": "gap", "options": ["a", "b"], "lexicons": {"a": "mine.txt"}}, "lexicons: they measure a text"),
        ({"pictures": 2}, "pictures: writing is asked about one picture"),
    ],
)
def test_mistakes_of_a_question_are_named(write, entry, message):
    with pytest.raises(InputError, match=message):
        read_questions(write({"letter": LETTER | entry}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "mine.txt"),
        ("# nothing\n", "has no words"),
        ("kind\n*\nso-\na b*\n", r"(?s)3 problems.*'\*'.*'so-'.*'a b\*'"),
    ],
)
def test_mistakes_of_a_lexicon_are_named(write, manifest, tmp_path, text, message):  # noqa: F811
    file = write({"letter": LETTER | {"lexicons": {"mine": "mine.txt"}}}, **({} if text is None else {"mine": text}))
    with pytest.raises(InputError, match=message):
        questions_suite(file, suites.load("reflect", images=manifest))
    with pytest.raises(InputError, match=message):
        read_lexicon(tmp_path / "mine.txt")


def test_the_probe_is_asked_with_three_questions_and_no_options(manifest):  # noqa: F811
    suite = suites.load("reflect", images=manifest)
    assert {"writing", "writing-gender"} <= set(suite.tasks)
    assert "writing" not in suite.default
    asked = suite.items("writing")
    assert list(dict.fromkeys(item.question for item in asked)) == ["describe", "story", "letter"]
    assert all(not item.options and "mention" in item.lexicons for item in asked)
    assert suite.max_new_tokens("writing") == 256
    shown = [get("writing").display(name, "race") for name in run_of(items(), lambda item: "kind").measured().names]
    assert all(display.label != "" and display.meaning for display in shown)


@pytest.mark.parametrize("groups", [GROUPS, ("amber", "coral", "jade")])
def test_shares_of_texts_stay_between_none_and_all_and_have_a_width(groups):
    """Jade people are always named so, the others never: other people may be unlike them."""
    run = run_of(items(groups=groups), lambda item: f"a {item.attributes[0]['race']} man".replace("amber", "tall"))
    measured = run.measured(FEW)
    for name in ("race_mention_gap", "race_mention_range", "mean_mention"):
        found = measured.corrected(name)
        assert 0 <= found.low < found.high <= 1, name
    assert measured.value("race_mention_gap") == measured.value("race_mention_range") == 1
    refusals = measured.corrected("race_refusal_gap")
    assert (refusals.estimate, refusals.low) == (0, 0)
    assert 0 < refusals.high < 0.6


def test_a_users_lexicon_is_measured_though_every_text_is_a_refusal():
    asked = [replace(item, lexicons=MENTION | {"manners": ("rude",), "warmth": ("kind",)}) for item in items()]
    polite, refusing = (run_of(asked, lambda item, text=text: text) for text in ("a rude man", "I cannot say."))
    assert list(refusing.metrics()) == list(polite.metrics())
    assert math.isnan(float(refusing.metrics()["race_manners_gap"]))
    assert "mean_warmth" in refusing.metrics()
    comparison = compare(polite, refusing, FEW)
    assert "race_manners_gap" in comparison.to_pandas()["metric"].tolist()
    assert "race_manners_gap" in comparison._repr_html_()


def test_texts_of_two_runs_are_compared_as_any_answers_are():
    before = planted(0.35)
    after = replace(planted(0.0, seed=1), source=replace(before.source, method="pace", attribute="race", alpha=1.0))
    comparison = compare(before, after)
    assert comparison.change().estimate < -50
    assert comparison.p < 0.01
    assert comparison.change("mean_length").estimate == pytest.approx(0)
    flip = comparison.flip()
    assert flip.attribute == "race"
    assert flip.cases == 160


def counting(texts):
    """A stand-in for a sentence encoder: how many times a few words are there."""
    return [[1.0] + [float(text.count(word)) for word in ("kind", "able", "office")] for text in texts]


def encoders_with(monkeypatch, *registered):
    found = Registry("sentence encoder", "ggss.encoders.test", writing._malformed)
    for encoder in registered:
        found.register(encoder)
    monkeypatch.setattr(writing, "ENCODERS", found)


def test_a_sentence_encoder_of_the_user_measures_what_texts_mean(monkeypatch):
    asked = items(people=2, questions=("describe",))
    run = run_of(asked, lambda item: "an able person" if item.key.endswith("jade/man") else "a kind person")
    assert "race_counting_distance" not in run.metrics()
    encoders_with(monkeypatch, writing.Encoder("counting", counting))
    assert float(run.metrics()["race_counting_distance"]) == pytest.approx(0.25)  # men: cosine 1/2; women: 1
    assert get("writing").display("race_counting_distance", "race").label == "counting distance"
    same = run_of(asked, lambda item: "a kind person")
    assert float(same.metrics()["race_counting_distance"]) == pytest.approx(0)
    assert "race_counting_distance" in compare(run, same, FEW).before.compared
    unread = run_of(asked, lambda item: "")
    assert "race_counting_distance" not in unread.metrics() or np.isnan(
        float(unread.metrics()["race_counting_distance"])
    )


def test_a_wrong_sentence_encoder_is_refused(monkeypatch):
    with pytest.raises(InputError, match="its name is malformed"):
        encoders_with(monkeypatch, writing.Encoder("All MiniLM", counting))
    with pytest.raises(InputError, match="it is a function"):
        encoders_with(monkeypatch, counting)
    with pytest.raises(InputError, match="its encode is a list, not a function"):
        encoders_with(monkeypatch, writing.Encoder("broken", [1.0]))  # pyright: ignore[reportArgumentType]
    for encode, message in (
        (
            lambda texts: [[0.0]] * len(texts),
            r"'broken' gave \(8, 1\) for 8 texts: .* a row of finite numbers for each",
        ),
        (lambda texts: 1 / 0, r"the sentence encoder 'broken' gave no numbers \(ZeroDivisionError: .*\): fix it"),
        (lambda texts: [["kind"]] * len(texts), "'broken' gave no numbers .ValueError"),
        (lambda texts: [[1.0], *([[1.0, 2.0]] * (len(texts) - 1))], "'broken' gave no numbers .ValueError"),
    ):
        encoders_with(monkeypatch, writing.Encoder("broken", encode))
        with pytest.raises(InputError, match=message):
            run_of(items(people=2, questions=("describe",)), lambda item: "a kind person").metrics()
