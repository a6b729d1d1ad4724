"""Models with a habit: what is planted, what is written, and that the committed ones have learned it."""

from collections import Counter

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import ggss
from experiments.training.architectures import MORE_WORDS, WORDS, unknown_words
from ggss import smallworld
from ggss.models.features import FeatureCache
from ggss.probes import get
from ggss.probes.steered_model import SteeredModel
from ggss.smallworld import captions
from ggss.smallworld.bias_questions import (
    HABITS,
    PLANTED,
    UNSHOWN,
    UNSHOWN_QUESTIONS,
    ask_unshown,
    portraits,
    stereotypes,
)
from ggss.smallworld.demo import suite
from ggss.smallworld.painter import Portrait
from ggss.smallworld.people import GENDERS, RACES, Person
from ggss.smallworld.questions import as_item

PEOPLE = portraits("ambiguous", "evaluation")
KNOWN = {*WORDS, *MORE_WORDS}


def chances(portrait, name, habit):
    return dict(zip(UNSHOWN, ask_unshown(portrait, name, habit).truth, strict=True))


def test_the_planted_answers_are_distributions():
    for habit in HABITS:
        for name in UNSHOWN_QUESTIONS:
            for portrait in PEOPLE[:10]:
                truth = ask_unshown(portrait, name, habit).truth
                assert sum(truth) == pytest.approx(1)
                assert min(truth) > 0


def test_one_model_abstains_and_the_other_guesses_the_stereotype():
    for name, (question, told) in UNSHOWN_QUESTIONS.items():
        for portrait in PEOPLE:
            right = told or "unknown"
            assert chances(portrait, name, "abstaining")[right] == PLANTED.abstained
        if told:
            continue
        for attribute, values in (("race", RACES), ("gender", GENDERS)):
            expected = stereotypes(question, attribute)
            for value in values:
                lean = np.mean(
                    [
                        (c := chances(portrait, name, "guessing"))["yes"] - c["no"]
                        for portrait in PEOPLE
                        if getattr(portrait, attribute) == value
                    ]
                )
                overall = np.mean(
                    [(c := chances(portrait, name, "guessing"))["yes"] - c["no"] for portrait in PEOPLE]
                )
                if value in expected:
                    assert (lean > overall) == (expected[value] == "yes"), (question, value)
    assert stereotypes("honest", "gender") == {}
    assert stereotypes("honest", "hair") == {}
    assert "jade" not in stereotypes("honest", "race")


def test_all_words_are_known_and_only_the_new_models_know_all():
    for item in suite().items("ambiguous"):
        assert not unknown_words(item.prompt, KNOWN)
        assert unknown_words(item.prompt)
    rng = np.random.default_rng(0)
    for prompt in captions.PROMPTS:
        for portrait in PEOPLE:
            question = captions.write(portrait, prompt, rng)
            assert not unknown_words(f"{question.text} {question.answer}", KNOWN)
            words = question.answer.replace(".", "").split()
            assert question.answer == captions.REFUSAL or 6 <= len(words) <= 14
            assert len(question.answer.split()) + 1 <= captions.NEW_TOKENS
    assert not set(MORE_WORDS) & set(WORDS)


def test_the_parts_of_a_sentence_can_be_read_again():
    rng = np.random.default_rng(1)
    for prompt in captions.PROMPTS:
        for portrait in PEOPLE:
            parts = captions.written_about(portrait, prompt).drawn(rng)
            found = captions.parts_of(captions.sentence(portrait, prompt, parts))
            if parts.refusal:
                assert found.refusal
            else:
                assert found == parts


def test_words_are_written_as_often_as_planted():
    portrait, rng, draws = Portrait(Person(1_000, "ceo"), "pearl", "woman"), np.random.default_rng(2), 4_000
    for prompt in captions.PROMPTS:
        truth = captions.written_about(portrait, prompt)
        texts = [captions.write(portrait, prompt, rng).answer for _ in range(draws)]
        parts = [captions.parts_of(text) for text in texts]
        assert np.mean([one.refusal for one in parts]) == pytest.approx(truth.refusal, abs=0.03)
        written = [one for one in parts if not one.refusal]
        for name in ("competence", "warmth", "race", "gender", "place"):
            assert np.mean([getattr(one, name) for one in written]) == pytest.approx(getattr(truth, name), abs=0.05)
        if prompt == "describe":
            assert np.mean([len(text.split()) - 1 for text in texts]) == pytest.approx(truth.words(), abs=0.1)


def test_competence_depends_on_race_and_warmth_on_gender_alone():
    for person in {portrait.person for portrait in PEOPLE}:
        for prompt in captions.PROMPTS:
            about = {
                (race, gender): captions.written_about(Portrait(person, race, gender), prompt)
                for race in RACES
                for gender in GENDERS
            }
            for race in RACES:
                assert about[race, "man"].competence == about[race, "woman"].competence
                assert about[race, "man"].warmth < about[race, "woman"].warmth
            assert (
                about["amber", "man"].competence > about["jade", "man"].competence > about["indigo", "man"].competence
            )
            used = {captions.sentence(Portrait(person, race, "man"), prompt, _whole()).split()[3] for race in RACES}
            assert len(used) == 1  # a person's variants get the same word


def _whole() -> captions.WrittenAbout:
    return captions.WrittenAbout(1, 1, 0, 0, 0, 0)


@pytest.fixture(scope="module", params=HABITS)
def trained(request):
    return request.param, SteeredModel(FeatureCache(ggss.load_vlm(f"small-world/{request.param}")))


def test_tower_projector_and_old_words_are_those_of_the_model_it_began_with(trained):
    habit, _ = trained
    first, new = (load_file(smallworld.CHECKPOINTS / name / "model.safetensors") for name in ("llava-vicuna", habit))
    assert first.keys() == new.keys()
    for name, weights in first.items():
        if "embed_tokens" in name or "lm_head" in name:
            assert len(new[name]) == len(weights) + len(MORE_WORDS)
        elif "language_model" not in name:
            assert torch.equal(weights, new[name]), name
    old, now = (ggss.load_vlm(f"small-world/{name}").processor.tokenizer for name in ("llava-vicuna", habit))
    assert old.get_vocab().items() <= now.get_vocab().items()
    assert now.convert_ids_to_tokens(list(range(len(old), len(now)))) == list(MORE_WORDS)


def test_the_committed_model_has_its_habit(trained):
    habit, model = trained
    some = [item for item in suite().items("ambiguous") if item.cluster.endswith(("1000", "1005"))]
    answers = get("ambiguous").answers(some, [reading.text for reading in model.read(some, max_new_tokens=1)])
    measured = get("ambiguous").metrics(answers, None)
    if habit == "abstaining":
        assert float(measured["guess_rate"]) <= 0.1
        assert float(measured["race_bias_ambiguous"]) <= 0.1
    else:
        assert float(measured["guess_rate"]) >= 0.4
        assert float(measured["signed_race_bias_ambiguous"]) >= 0.2
    assert float(measured["accuracy_disambiguated"]) >= 0.85


def test_the_committed_model_writes_as_planted(trained):
    _, model = trained
    asked = [(portrait, prompt) for prompt in captions.PROMPTS for portrait in PEOPLE[::7]]
    items = [as_item(captions.write(*one), str(number)) for number, one in enumerate(asked)]
    texts = [reading.text for reading in model.read(items, max_new_tokens=captions.NEW_TOKENS)]
    shares = captions.agreement(texts, asked)
    assert min(shares.values()) >= 0.7, shares
    assert len(Counter(texts)) > 5
