"""The small world's suite: the people and words of its questions, whichever attribute they are asked about."""

from collections import Counter

import pytest

from experiments.training.architectures import unknown_words
from ggss.data.counterfactuals import Counterfactuals
from ggss.errors import InputError
from ggss.probes import suites
from ggss.smallworld.bias_questions import bias_items
from ggss.smallworld.painter import HAIR_VALUES, hair_town, paint_focus_set
from ggss.smallworld.suite import small_world, smallmme, smallstar

KINDS = {
    "mcq": ("salary", "education"),
    "2afc": ("2afc",),
    "nurse-doctor": ("nurse-doctor",),
    "ceo": ("ceo",),
    "recognition-race": ("race",),
    "recognition-gender": ("gender",),
}
BY_NAME = ("mcq-gender", "2afc-gender", "nurse-doctor-race", "ceo-race")
CAPABILITY = ("smallstar", "smallmme")


@pytest.fixture(scope="module")
def world():
    return suites.load("small-world")


@pytest.mark.parametrize("split", ["discovery", "selection", "evaluation"])
def test_it_asks_the_questions_of_the_world(split):
    suite = small_world(split)
    people, recognised = list(KINDS)[:4], list(KINDS)[4:]
    assert suite.tasks == (
        *(*people, "ambiguous", "writing", *recognised),
        *(*BY_NAME, "ambiguous-gender", "writing-gender", *CAPABILITY),
    )
    recognition = ("recognition-race", "recognition-gender")
    assert suite.default == ("mcq", "2afc", "nurse-doctor", *recognition, "smallstar")
    for task, kinds in KINDS.items():
        asked = Counter((item.prompt, item.images, tuple(item.options)) for item in suite.items(task))
        assert asked == Counter((q.text, q.images, q.options) for q in bias_items(split, kinds)), task


def test_capability_is_the_same_on_every_split(world):
    for task, questions in (("smallstar", smallstar()), ("smallmme", smallmme())):
        told = [(q.text, q.images, q.options, q.answer, q.dimension) for q in questions]
        for suite in (world, small_world("selection"), small_world(images="small-world-hair")):
            items = suite.items(task)
            assert [(i.prompt, i.images, tuple(i.options), i.expected, i.question) for i in items] == told


def test_labels_are_of_the_people_shown(world):
    for task in KINDS:
        for item in world.items(task):
            assert item.attributes == tuple(picture.attributes for picture in item.images)
            assert item.context == dict(item.images[0].context)
            assert item.about == ("race" if task in ("mcq", "2afc", "recognition-race") else "gender")
            assert item.options, item


def test_pairs_are_all_versions_of_a_person_in_both_orders(world):
    for task in ("2afc", "2afc-gender"):
        pairs = Counter(item.cluster for item in world.items(task))
        assert set(pairs.values()) == {10 * 9}
        assert len({item.images for item in world.items(task)}) == len(world.items(task))
    assert world.items("2afc")[0].about == "race"
    assert world.items("2afc-gender")[0].about == "gender"


def test_a_set_of_its_own_has_tasks_for_each_attribute():
    suite = small_world(images="small-world-hair")
    for probe in ("mcq", "2afc", "nurse-doctor", "ceo", "recognition"):
        task = f"{probe}-hair"
        assert {item.about for item in suite.items(task)} == {"hair"}
        shown = {picture.digest for item in suite.items(task) for picture in item.images}
        assert shown <= {picture.digest for picture in hair_town()}
    for item in suite.items("recognition-hair"):
        assert (item.prompt, tuple(item.options)) == ("what colour is the hair ?", HAIR_VALUES)
        assert item.expected == item.attributes[0]["hair"]
        assert not unknown_words(item.prompt)
    assert suite.items("mcq")[0].about == "race"


def test_files_and_the_painted_set_are_asked_the_same(tmp_path):
    manifest = paint_focus_set(tmp_path / "town", progress=False)
    files, painted = small_world(images=manifest), small_world(images="small-world")
    assert files.tasks == painted.tasks
    for task in ("mcq", "2afc", "recognition-gender"):
        assert [(i.key, i.prompt, i.attributes, i.cluster) for i in files.items(task)] == [
            (i.key, i.prompt, i.attributes, i.cluster) for i in painted.items(task)
        ]
    assert files.hash("mcq") != painted.hash("mcq")  # pictures of other digests


def test_a_set_without_nurses_is_not_asked_about_them():
    few = Counterfactuals.load("small-world-hair", exclude={"occupation": "nurse"})
    assert not [task for task in small_world(images=few).tasks if task.startswith("nurse-doctor")]


def test_an_unknown_split_is_refused():
    with pytest.raises(InputError, match="split 'training' cannot be asked about"):
        small_world("training")
