"""What the paper's text says of the methods that its authors' code does otherwise, in numpy float64.

As in release_transcription, whose parts are used where the text and that code are one, a discovery set is a table
[U, A, T, D], and a steering is a function of the rows of a call and of alpha. Here each image of a call is steered
for itself; it has as many tokens as those of the table. Nothing of ggss is used. Per-token SVD is not here: the text
does not name its reference point.
"""

import numpy as np
from sklearn.linear_model import LogisticRegression

from tests import transcription
from tests.release_transcription import (
    calibration,
    exp,
    flat,
    gated,
    karcher,
    labels,
    lengths,
    log,
    meandiff_euclidean,
    meandiff_spherical,
    pooled,
    project,
    project_on_sphere,
    shrunk,
    unit,
)


def image_by_image(steering, table):
    tokens = table.shape[2]
    return lambda h, alpha: np.concatenate([steering(image, alpha) for image in h.reshape(-1, tokens, h.shape[-1])])


def no_slerp(table):
    """Hard projection, times the gate."""
    basis, mu, median, deviation, _ = transcription.discover(table, table.shape[1] - 1)

    def steer(h, alpha):
        gate = np.array([[transcription.steer(row, mu, basis, median, deviation, alpha)[1]] for row in h])
        t = log(mu, unit(h))
        return lengths(h) * unit(exp(mu, t - alpha * gate * (t @ basis @ basis.T)))

    return steer


def leace(table):
    """mu, and W and U of the pooled rows."""
    x, z = flat(pooled(table)), np.eye(table.shape[1])[labels(table)]
    centred = x - x.mean(0)
    size, vectors = np.linalg.eigh(shrunk(centred.T @ centred / (len(x) - 1), len(x)))
    whiten = vectors / np.sqrt(size) @ vectors.T
    u = np.linalg.svd(whiten @ centred.T @ (z - z.mean(0)))[0][:, : table.shape[1] - 1]
    return karcher(unit(x)), whiten, u


def leace_spherical(table):
    mu, whiten, u = leace(table)
    oblique = np.linalg.inv(whiten) @ u @ u.T @ whiten

    def steer(h, alpha):
        t = log(mu, unit(h))
        return lengths(h) * unit(exp(mu, t - alpha * t @ oblique.T))

    return steer


def leace_gated(table):
    mu, _, u = leace(table)
    return gated(mu, u, *calibration(unit(flat(pooled(table))), mu, u))


def inlp_basis(rows, classes):
    """The directions of each round's classifier, of which there are one fewer than classes."""
    left, found, count = rows, [], len(set(classes))
    for _ in range(10):
        model = LogisticRegression(C=1.0, solver="newton-cg", tol=1e-10, max_iter=1000).fit(left, classes)
        if model.score(left, classes) <= 1 / count + 1e-6:
            break
        across = np.linalg.svd(model.coef_, full_matrices=False)[2][: count - 1].T
        found.append(across)
        left = left - left @ across @ across.T
    return np.linalg.qr(np.concatenate(found, 1))[0]


def inlp_euclidean(table):
    rows = flat(pooled(table))
    return project(rows.mean(0), inlp_basis(rows, labels(table)))


def inlp_spherical(table):
    points = unit(flat(pooled(table)))
    return project_on_sphere(karcher(points), inlp_basis(points, labels(table)))


def bend(table, spherical):
    """All tokens of an image in a row; the projector spans the differences of the values' centres."""
    classes, k = labels(table), table.shape[1] - 1
    references = unit(flat(table).reshape(len(classes), -1))
    mu = karcher(references)
    points = log(mu, references) if spherical else references
    centres = np.stack([points[classes == a].mean(0) for a in range(k + 1)])
    basis = np.linalg.svd(centres - centres.mean(0), full_matrices=False)[2][:k]

    def steer(h, alpha):
        image = h.ravel()
        size, direction = np.linalg.norm(image), image / np.linalg.norm(image)
        start = log(mu, direction) if spherical else direction
        order = np.argsort(-references @ direction)
        prototypes = np.stack([points[[i for i in order if classes[i] == a][:10]].mean(0) for a in range(k + 1)])
        if not spherical:
            prototypes = unit(prototypes)
        across = prototypes[1:] - prototypes[0]
        squares = (prototypes**2).sum(1)
        equal = (squares[1:] - squares[0]) / 2 if spherical else np.zeros(k)
        outside = start - basis.T @ (basis @ start)
        target = outside + across.T @ np.linalg.solve(across @ across.T, equal - across @ outside)
        moved = start + alpha * (target - start)
        return (size * (exp(mu, moved) if spherical else moved)).reshape(h.shape)

    return image_by_image(steer, table)


METHODS = {
    "ggss-no-slerp": no_slerp,
    "leace-spherical": leace_spherical,
    "leace-gated": leace_gated,
    "inlp-euclidean": inlp_euclidean,
    "inlp-spherical": inlp_spherical,
    **{
        f"meandiff-{kind}-{form}": lambda table, kind=kind, fit=fit: image_by_image(fit(table, kind), table)
        for kind in ("svm", "lr")
        for form, fit in (("euclidean", meandiff_euclidean), ("spherical", meandiff_spherical))
    },
    "bend-euclidean": lambda table: bend(table, spherical=False),
    "bend-spherical": lambda table: bend(table, spherical=True),
}
