"""The probe of all tokens: scikit-learn's ridge classifier, people not seen, and what a mean hides."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import RidgeClassifier

import ggss
from ggss.activations import SITE, Activations, Rows
from ggss.methods.diagnostics import FOLDS, PENALTY, folds, positions, probe_accuracy, probe_tokens
from ggss.steering.artefact import NOT_MEASURED, card
from planted import planted


def rows(seed=0, people=16, values=3, width=20, strength=1.0):
    rng = np.random.default_rng(seed)
    labels = np.tile(np.arange(values), people)
    contexts = np.repeat(np.arange(people), values)
    signs = rng.normal(size=(values, width))
    found = strength * signs[labels] + 0.5 * rng.normal(size=(people, width))[contexts]
    return torch.from_numpy(found + rng.normal(size=found.shape)), torch.from_numpy(labels), contexts.tolist()


@pytest.mark.parametrize("values", [2, 3])
def test_it_is_the_ridge_classifier_of_scikit_learn(values):
    points, labels, contexts = rows(values=values)
    fold = folds(contexts)
    right = []
    for held in range(FOLDS):
        train = (fold != held).numpy()
        x, y = points.numpy()[train], labels.numpy()[train]
        penalty = PENALTY * ((x - x.mean(0)) ** 2).sum(1).mean()
        model = RidgeClassifier(alpha=penalty, solver="svd").fit(x, y)
        right += (model.predict(points.numpy()[~train]) == labels.numpy()[~train]).tolist()
    assert 0.5 < np.mean(right) < 1  # a number that could be another
    assert probe_accuracy(points, labels, fold) == pytest.approx(np.mean(right))


def test_labels_that_mean_nothing_are_read_at_chance():
    points, labels, contexts = rows(people=80, strength=0.0)
    assert abs(probe_accuracy(points, labels, folds(contexts)) - 1 / 3) < 0.08


def test_all_images_of_a_context_are_in_one_fold():
    """Else the probe would know people by sight: here the label is a property of the person, and nothing else is."""
    rng = np.random.default_rng(0)
    contexts = np.repeat(np.arange(24), 6)
    points = torch.from_numpy(rng.normal(size=(24, 40))[contexts])
    labels = torch.from_numpy(rng.integers(2, size=24)[contexts])
    assert probe_accuracy(points, labels, folds(contexts.tolist())) < 0.75
    leaking = torch.arange(len(contexts)) % FOLDS
    assert probe_accuracy(points, labels, leaking) == 1


def test_a_reader_that_is_not_told_of_a_change_reads_what_is_left():
    points, labels, contexts = rows(strength=2.0)
    fold = folds(contexts)
    same = probe_accuracy(points, labels, fold)
    assert probe_accuracy(points, labels, fold, points.clone()) == same
    assert probe_accuracy(points, labels, fold, -points) < same / 2


def test_positions_are_spread_over_the_image():
    assert positions(16).tolist() == list(range(16))
    assert positions(32).tolist() == list(range(1, 32, 2))
    assert positions(4).max() == 3
    assert positions(577).tolist() == sorted(set(positions(577).tolist()))


def test_what_the_mean_hides_all_tokens_show():
    """Two halves of a picture carry the attribute with opposite signs: the mean token knows nothing of it."""
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(16, generator=generator)
    labels, contexts = ["a", "b"] * 20, [k // 2 for k in range(40)]
    tokens = []
    for label in labels:
        sign = 1 if label == "a" else -1
        noise = 0.3 * torch.randn(2, 16, generator=generator)
        halves = torch.stack([sign * direction, -sign * direction]) + noise
        tokens.append(halves.repeat_interleave(8, 0))
    wanted = torch.tensor([label == "b" for label in labels]).long()
    pooled = torch.stack([one.mean(0) for one in tokens])
    assert probe_accuracy(pooled, wanted, folds(contexts)) < 0.8
    read = probe_tokens(tokens, labels, contexts, lambda own: own)
    assert read is not None
    assert read.before == read.after == 1
    assert read.displacement == 0
    assert read.chance == 0.5


def test_displacement_is_relative_to_the_token():
    points, labels, contexts = rows()
    tokens = [point[None] * scale for point, scale in zip(points, range(1, len(points) + 1), strict=True)]
    read = probe_tokens(tokens, labels.tolist(), contexts, lambda own: 0.75 * own)
    assert read is not None
    assert read.displacement == pytest.approx(0.25)


def test_fitting_reports_it_and_the_card_says_it(tmp_path):
    acts, _ = planted()
    steerer = ggss.fit("ggss-no-gate", acts, attribute="race")
    read = steerer.diagnostics[SITE]["all_tokens"]
    assert read["before"] > 0.95
    assert read["after"] < 0.5
    assert 0.05 < read["displacement"] < 1
    assert f"{read['before']:.0%} of the images before and {read['after']:.0%} after" in card(steerer)
    steerer.save_pretrained(tmp_path / "s")
    assert ggss.Steerer.from_pretrained(tmp_path / "s").diagnostics[SITE]["all_tokens"] == read


def test_methods_of_whole_images_get_whole_images():
    acts, _ = planted()
    read = ggss.fit("bend-euclidean", acts, attribute="race").diagnostics[SITE]["all_tokens"]
    assert read["after"] < read["before"]


def test_without_tokens_it_says_that_nothing_was_measured():
    acts, _ = planted()
    pooled = Activations.from_rows({SITE: Rows(acts.pooled)}, acts.attributes, acts.contexts)
    steerer = ggss.fit("ggss", pooled, attribute="race")
    assert "all_tokens" not in steerer.diagnostics[SITE]
    assert NOT_MEASURED in card(steerer)
    assert NOT_MEASURED not in card(ggss.fit("none", pooled, attribute="race"))
