"""Every method under the plan `release` steers as the authors' code does; by default some do not."""

import numpy as np
import pytest
import torch

import ggss
import paper_transcription
import release_transcription
from experiments.tools.release_differences import (
    OWNERS,
    PAIR,
    TABLE,
    fitted,
    planted_activations,
    released_options,
    share,
    steered,
)
from ggss.methods.bend import released_basis
from ggss.models.features import FeatureCache
from ggss.probes import suites
from ggss.probes.steered_model import SteeredModel
from ggss.steering.steerer import Steerer

CLOSE = 1e-4  # of the movement
OPTIONS = released_options()


def apart(name, options, alpha=1.0, table=TABLE):
    """How far the steered tokens are from those of the authors' code, as a share of the movement."""
    theirs = release_transcription.METHODS[name](table)(PAIR, alpha)
    return share(steered(fitted(name, options, table), alpha), theirs)


@pytest.mark.parametrize("alpha", [0.5, 1.5])
@pytest.mark.parametrize("name", paper_transcription.METHODS)
def test_the_defaults_steer_as_the_papers_text(name, alpha):
    """BendVLM of all tokens has a name of its own."""
    theirs = paper_transcription.METHODS[name](TABLE)(PAIR, alpha)
    steerer = fitted(name.replace("bend-", "bend-token-"), {})
    assert share(steered(steerer, alpha), theirs) < CLOSE


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.5])
@pytest.mark.parametrize("name", release_transcription.METHODS)
def test_the_plan_release_steers_as_the_authors_code(name, alpha):
    assert apart(name, OPTIONS.get(name, {}), alpha) < CLOSE


@pytest.mark.parametrize(
    "name", ["inlp-euclidean", "bend-spherical", "leace-gated", "meandiff-svm-spherical", "ggss"]
)
def test_two_values_have_the_same_steering_too(name):
    assert apart(name, OPTIONS.get(name, {}), table=TABLE[:, :2]) < CLOSE


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("ggss-no-slerp", 0.005),
        ("svd-token-spherical", 0.005),
        ("leace-spherical", 0.2),
        ("leace-gated", 0.1),
        ("inlp-euclidean", 0.3),
        ("inlp-spherical", 0.3),
        ("meandiff-svm-spherical", 0.9),
        ("bend-euclidean", 0.5),
        ("bend-spherical", 0.5),
    ],
)
def test_the_defaults_differ_where_the_page_says_so(name, least):
    assert apart(name, {}) > least


@pytest.mark.parametrize("name", sorted(set(release_transcription.METHODS) - set(OPTIONS)))
def test_the_others_have_no_option_for_it(name):
    assert apart(name, {}) < CLOSE


def test_the_authors_projector_removes_mu_on_the_sphere_and_some_rounding():
    points = release_transcription.unit(release_transcription.pooled(TABLE))
    by_value = [torch.from_numpy(points[:, value]) for value in range(5)]
    flat = released_basis(by_value, lambda rows: rows.mean(0))
    curved = released_basis(by_value, ggss.sphere.frechet_mean)
    assert flat.shape == curved.shape == (96, 15)
    rows = release_transcription.spurious(
        points.reshape(-1, 96), release_transcription.labels(TABLE), lambda own: own.mean(0)
    )
    size = np.linalg.svd(rows.astype(float))[1]
    assert size[3] > 1e-3 > 1e-5 > size[4]  # of 15 directions 4 are of the data
    mu = ggss.sphere.frechet_mean(torch.cat(by_value))
    assert float((curved.T @ mu).norm()) > 0.9 > 0.7 > float((flat.T @ mu).norm())


def test_pictures_of_a_prompt_are_steered_by_their_common_mean(qwen, tmp_path):
    """As both pictures of a 2AFC question: what is done to one depends on the other."""
    steerer = ggss.fit("meandiff-svm-euclidean", planted_activations(TABLE), attribute="value", pooled_over="prompt")
    each = ggss.fit("meandiff-svm-euclidean", planted_activations(TABLE), attribute="value")
    rows = torch.tensor(PAIR).float()
    joint = steerer.steer(rows, OWNERS)
    assert torch.equal(joint, each.steer(rows))  # without images all rows are of one
    moved = (joint - rows)[:, 0]
    torch.testing.assert_close(moved, moved[:1].expand_as(moved), rtol=0, atol=1e-6)
    steerer.save_pretrained(tmp_path)
    loaded = Steerer.from_pretrained(tmp_path)
    assert loaded.together
    assert not each.together
    assert torch.equal(loaded.steer(rows, OWNERS), joint)


def test_a_model_is_asked_about_pictures_that_are_steered_together():
    vlm = ggss.load_vlm("small-world/qwen3-vl")
    suite = suites.load("small-world", split="evaluation")
    pair, single = suite.items("2afc")[3], suite.items("mcq")[0]
    faces = ggss.Counterfactuals.load("small-world").chosen(include={"occupation": ["cook", "lawyer"]})
    acts = ggss.collect(vlm, faces, features=FeatureCache(vlm))
    model = SteeredModel.of(vlm)
    together, apart = (
        model.steered(ggss.fit("bend-euclidean", acts, attribute="race", pooled_over=over), 1.0)
        for over in ("prompt", "image")
    )
    features = model.cache.features(pair.images)
    rows = [one.rows["projection-mlp2"] for one in features]
    shown = together._seen_together(pair.images)
    expected = together.steerings[0][0].steer(torch.cat(rows))
    assert torch.equal(torch.cat([one.rows["projection-mlp2"] for one in shown]), expected)
    first, second, alone = (answer.probabilities for answer in together.read([pair, pair, single], 1))
    assert first == second != apart.read([pair], 1)[0].probabilities
    assert alone == pytest.approx(apart.read([single], 1)[0].probabilities, abs=1e-5)
