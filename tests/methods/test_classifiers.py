"""INLP and MeanDiff: equal to plain scikit-learn, image by image."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC

import ggss
import transcription
from planted import planted

SITE = "projection-mlp2"


def unit_rows(acts):
    return np.array([transcription.normalize(y) for y in acts.pooled.double().numpy()])


def tangent_rows(acts):
    points = unit_rows(acts)
    mu = transcription.karcher(points)
    return np.array([transcription.log(mu, y, 0) for y in points])


def pooled_rows(acts):
    return acts.pooled.double().numpy()


def plain_inlp(rows, labels, iterations=10):
    """The loop of appendix A.4 with scikit-learn alone, on all dimensions."""
    found, left = [], rows - 0
    for _ in range(iterations):
        model = LogisticRegression(C=1.0, solver="newton-cholesky", tol=1e-10).fit(left, labels)
        if model.score(left, labels) <= 1 / len(set(labels)) + 1e-6:
            break
        _, size, directions = np.linalg.svd(model.coef_, full_matrices=False)
        directions = directions[size > 1e-6 * size[0]]
        found.append(directions)
        left = left - left @ directions.T @ directions
    stacked = np.linalg.qr(np.concatenate(found).T)[0]
    return stacked @ stacked.T


@pytest.mark.parametrize(("identities", "attribute"), [(4, "race"), (4, "gender"), (2, "race")])
@pytest.mark.parametrize(
    ("name", "options", "rows_of"),
    [
        ("inlp-euclidean", {}, pooled_rows),
        ("inlp-spherical", {}, unit_rows),
        ("inlp-spherical", {"trained_on": "unit"}, unit_rows),
        ("inlp-spherical", {"trained_on": "tangent"}, tangent_rows),
    ],
)
def test_inlp_equals_a_plain_loop(name, options, rows_of, identities, attribute):
    acts, _ = planted(identities=identities, width=48 + 16)
    operator = ggss.fit(name, acts, attribute=attribute, iterations=2, **options).operators[SITE]
    basis = operator.basis.double().numpy()
    expected = plain_inlp(rows_of(acts), acts.labels(attribute), iterations=2)
    assert basis.shape[1] == round(np.trace(expected))
    np.testing.assert_allclose(basis @ basis.T, expected, atol=1e-5)
    if name == "inlp-spherical":
        np.testing.assert_allclose(operator.mu, transcription.karcher(unit_rows(acts)), atol=1e-6)


def test_what_spherical_inlp_is_trained_on_shows():
    acts, _ = planted(identities=4)
    unit, tangent = (
        ggss.fit("inlp-spherical", acts, attribute="race", trained_on=what, iterations=2).operators[SITE].basis
        for what in ("unit", "tangent")
    )
    assert (unit @ unit.T - tangent @ tangent.T).norm() > 1e-2


def test_inlp_stops_at_chance_and_after_ten():
    acts, _ = planted()
    accuracies = ggss.fit("inlp-euclidean", acts, attribute="race").statistics[SITE]["accuracies"]
    assert accuracies[0] == 1
    assert accuracies[-1] <= 0.2 + 1e-6 or len(accuracies) == 10
    assert len(ggss.fit("inlp-euclidean", acts, attribute="race", iterations=1).statistics[SITE]["accuracies"]) == 1


def noisy(seed, scale=1.0):
    """New mean rows, many of them between the classes."""
    acts, _ = planted(identities=6, noise=2.5, seed=seed)
    return acts.pooled * scale


def named(steerer, rows):
    """The value that a steerer's classifier gives to each image of one row: it subtracts the shift of that value."""
    operator, seen = steerer.operators[SITE], []
    made = type("Seen", (type(operator),), {"subtract": lambda self, rows, alpha, label, out: seen.append(label)})
    watched = made(**operator.tensors(), **operator.scalars())
    watched(rows, torch.ones(len(rows), 1), torch.arange(len(rows)), rows.clone())
    return [steerer.values[label] for label in seen]


@pytest.mark.parametrize("attribute", ["race", "gender"])
@pytest.mark.parametrize(
    ("classifier", "make"),
    [
        ("svm", lambda: SVC(kernel="rbf", C=1.0, gamma="scale")),
        ("lr", lambda: LogisticRegression(C=1.0, tol=1e-12, max_iter=100_000)),
    ],
)
@pytest.mark.parametrize(
    ("geometry", "options", "rows_of"),
    [
        ("euclidean", {}, pooled_rows),
        ("spherical", {}, unit_rows),
        ("spherical", {"trained_on": "pooled"}, pooled_rows),
    ],
)
def test_meandiff_predicts_as_scikit_learn_does(classifier, make, geometry, options, rows_of, attribute):
    acts, _ = planted(identities=8, noise=1.5)
    steerer = ggss.fit(f"meandiff-{classifier}-{geometry}", acts, attribute=attribute, **options)
    model = make().fit(rows_of(acts), acts.labels(attribute))
    rows = torch.cat([noisy(1), noisy(2, 3.0), noisy(3, 0.2)])
    seen = rows.double().numpy()
    if rows_of is unit_rows:
        seen = np.array([transcription.normalize(row) for row in seen])
    expected = model.predict(seen).tolist()
    assert len(set(expected)) == len(steerer.values)
    assert named(steerer, rows) == expected


def test_a_classifier_of_directions_does_not_see_how_large_an_image_is():
    acts, _ = planted(identities=8, noise=1.5)
    unit = ggss.fit("meandiff-lr-spherical", acts, attribute="race")
    pooled = ggss.fit("meandiff-lr-spherical", acts, attribute="race", trained_on="pooled")
    assert named(unit, noisy(2, 10.0)) == named(unit, noisy(2))
    assert named(pooled, noisy(2, 0.01)) != named(pooled, noisy(2))


@pytest.mark.parametrize("kind", ["svm", "lr"])
def test_meandiff_subtracts_the_shift_of_the_images_class(kind):
    acts, _ = planted(identities=6)
    values = acts.groups("race").values
    pooled = acts.pooled.double().numpy()
    labels = np.array([values.index(v) for v in acts.labels("race")])
    flat = ggss.fit(f"meandiff-{kind}-euclidean", acts, attribute="race")
    curved = ggss.fit(f"meandiff-{kind}-spherical", acts, attribute="race")
    points = np.array([transcription.normalize(y) for y in pooled])
    mu = transcription.karcher(points)
    for image in (0, 3, 17):
        rows, label = acts.tokens[image], labels[image]
        shift = pooled[labels == label].mean(0) - pooled.mean(0)
        np.testing.assert_allclose(flat.steer(rows, alpha=0.5), rows.numpy() - 0.5 * shift, atol=1e-5)
        towards = transcription.log(mu, transcription.karcher(points[labels == label]), 0)
        for h, found in zip(rows.double().numpy(), curved.steer(rows, alpha=0.5), strict=True):
            t = transcription.log(mu, h / np.linalg.norm(h), 0)
            expected = transcription.normalize(transcription.exp(mu, t - 0.5 * towards))
            np.testing.assert_allclose(found, np.linalg.norm(h) * expected, atol=1e-5)
