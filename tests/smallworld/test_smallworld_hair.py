"""A third attribute from end to end: hair is discovered, probed before and after, and compared."""

import pytest

import ggss
from ggss.activations.collect import collect
from ggss.analysis import ask, average_change, compare
from ggss.models.features import FeatureCache
from ggss.probes.steered_model import SteeredModel
from ggss.smallworld.painter import HAIR_VALUES
from ggss.smallworld.suite import small_world

TASKS = ("mcq-hair", "2afc-hair", "recognition-hair", "recognition-race")


@pytest.fixture(scope="module")
def faces():
    return ggss.Counterfactuals.load("small-world-hair")


@pytest.fixture(scope="module")
def suite(faces):
    return small_world(images=faces)


@pytest.fixture(scope="module")
def plain():
    return SteeredModel(FeatureCache(ggss.load_vlm("small-world/llava-vicuna")))


@pytest.fixture(scope="module")
def steerer(faces, plain):
    return ggss.fit("ggss", collect(plain.vlm, faces, features=plain.cache), attribute="hair")


@pytest.fixture(scope="module")
def comparisons(plain, steerer, suite):
    steered = plain.steered(steerer, 1.0)
    return {task: compare(ask(plain, suite, task), ask(steered, suite, task)) for task in TASKS}


def test_hair_is_discovered(steerer):
    assert (steerer.attribute, tuple(steerer.values)) == ("hair", HAIR_VALUES)


def test_the_metrics_are_of_hair(comparisons):
    names = {task: list(one.before.metrics) for task, one in comparisons.items()}
    assert names["mcq-hair"][0] == "mean_hair_jsd"
    assert names["2afc-hair"][0] == "hair_bias_std"
    assert {f"win_rate_{value}" for value in HAIR_VALUES} <= set(names["2afc-hair"])
    assert comparisons["recognition-hair"].before.display().label == "hair recognition (%)"


def test_hair_is_seen_before_and_not_after(comparisons):
    hair, race = comparisons["recognition-hair"].accuracy(), comparisons["recognition-race"].accuracy()
    assert hair.before.estimate > 0.9
    assert hair.after.estimate < 0.6
    assert hair.p < 0.001
    assert race.after.estimate > 0.9  # what was not steered stays


def test_bias_by_hair_is_compared_as_any_other(comparisons):
    for task in ("mcq-hair", "2afc-hair"):
        one = comparisons[task]
        assert one.baseline is not None
        assert one.value().estimate == one.after.value()
    found = average_change([comparisons[task] for task in ("mcq-hair", "2afc-hair")])
    assert found is not None
    assert found.low <= found.estimate < 0
