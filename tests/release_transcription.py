"""What the authors' code computes, in numpy float64 and in our own words. Nothing of ggss is used here.

A discovery set is a table [U, A, T, D] of tokens: U contexts, the A values of an attribute, T tokens. A steering is a
function of the rows [N, D] of one call and of alpha. Classifiers and the randomised SVD are scikit-learn's, as in the
authors' code; what they are given is rounded to float32, as there.
"""

import warnings
from itertools import combinations

import numpy as np
from sklearn.decomposition import TruncatedSVD
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC

EDGE = 1 - 1e-7  # cosines are kept inside of it


def lengths(x):
    return np.linalg.norm(x, axis=-1, keepdims=True)


def unit(x):
    return x / (lengths(x) + 1e-10)


def log(p, q):
    """Tangent vectors at p that lead to the rows of q."""
    cosine = np.clip((q * p).sum(-1, keepdims=True), -EDGE, EDGE)
    return np.arccos(cosine) * unit(q - cosine * p)


def exp(p, t):
    size = lengths(t)
    return np.cos(size) * p + np.where(size < 1e-8, 0, np.sin(size) / np.maximum(size, 1e-8)) * t


def karcher(points):
    mean = unit(points.mean(0))
    for _ in range(100):
        step = log(mean, points).mean(0)
        if np.linalg.norm(step) < 1e-7:
            break
        mean = unit(exp(mean, step))
    return mean


def flat(rows):
    """Images with all their tokens, value after value within a context: [U * A, ...]."""
    return rows.reshape(-1, *rows.shape[2:])


def pooled(table):
    """The mean tokens [U, A, D], which are float32 numbers in the authors' code."""
    return table.mean(2).astype(np.float32).astype(float)


def labels(table):
    return np.tile(np.arange(table.shape[1]), table.shape[0])


def leading(shifts, k):
    return np.linalg.svd(shifts, full_matrices=False)[2][:k].T


# Updates


def project(mean, basis):
    return lambda h, alpha: h - alpha * (h - mean) @ basis @ basis.T


def project_on_sphere(mu, basis):
    def steer(h, alpha):
        t = log(mu, unit(h))
        return lengths(h) * unit(exp(mu, t - alpha * t @ basis @ basis.T))

    return steer


def gated(mu, basis, median, deviation, kappa=5.0, floor=0.3, chord=False):
    def steer(h, alpha):
        t, direction = log(mu, unit(h)), unit(h)
        protected = t @ basis
        gate = floor + (1 - floor) / (1 + np.exp(-kappa * (lengths(protected) - median) / deviation))
        target, beta = unit(exp(mu, t - protected @ basis.T)), alpha * gate
        if chord:
            return lengths(h) * unit((1 - beta) * direction + beta * target)
        angle = np.arccos(np.clip((direction * target).sum(-1, keepdims=True), -EDGE, EDGE))
        moved = np.sin((1 - beta) * angle) * direction + np.sin(beta * angle) * target
        return lengths(h) * moved / np.sin(angle)

    return steer


# Subspaces


def pooled_sphere(table):
    """mu and the basis of shifts of pooled, normalised rows."""
    points = unit(pooled(table))
    shifts = np.concatenate([log(karcher(variants), variants) for variants in points])
    return karcher(flat(points)), leading(shifts, table.shape[1] - 1)


def calibration(points, mu, basis):
    """The lower median and the sample's deviation of what points have inside the subspace."""
    size = np.sort(np.linalg.norm(log(mu, points) @ basis, axis=-1))
    return size[(len(size) - 1) // 2], size.std(ddof=1) + 1e-8


def ggss(table, **options):
    mu, basis = pooled_sphere(table)
    return gated(mu, basis, *calibration(unit(flat(pooled(table))), mu, basis), **options)


def svd_pooled_euclidean(table):
    means = pooled(table)
    shifts = flat(means - means.mean(1, keepdims=True))
    return project(flat(means).mean(0), leading(shifts, table.shape[1] - 1))


def svd_pooled_spherical(table):
    return project_on_sphere(*pooled_sphere(table))


def svd_token_euclidean(table):
    shifts = (table - table.mean(1, keepdims=True)).reshape(-1, table.shape[-1])
    return project(table.reshape(shifts.shape).mean(0), leading(shifts, table.shape[1] - 1))


def svd_token_spherical(table):
    """Normalised means take the place of Fréchet means, for the centres and for the reference point."""
    points = unit(table)
    shifts = log(unit(points.mean(1, keepdims=True)), points).reshape(-1, table.shape[-1])
    return project_on_sphere(unit(points.reshape(shifts.shape).mean(0)), leading(shifts, table.shape[1] - 1))


def leace_subspace(table):
    """Eigenvectors of I - P, of which the routine for symmetric matrices reads the lower triangle alone."""
    x, y = flat(pooled(table)), np.eye(table.shape[1])[labels(table)]
    count = len(x)
    centred = x - x.mean(0)
    covariance = shrunk(centred.T @ centred / (count - 1), count)
    cross = centred.T @ (y - y.mean(0)) / (count - 1)
    size, vectors = np.linalg.eigh(covariance)
    whiten, colour = vectors / np.sqrt(size) @ vectors.T, vectors * np.sqrt(size) @ vectors.T
    u, singular, _ = np.linalg.svd(whiten @ cross, full_matrices=False)
    u = u[:, singular > 0.01]
    erased = colour @ u @ u.T @ whiten
    basis = np.linalg.eigh(erased)[1][:, -(table.shape[1] - 1) :]
    return karcher(unit(x)), basis


def shrunk(covariance, count):
    """Towards a multiple of the identity, by the rule of concept-erasure."""
    width, scatter = len(covariance), covariance * (count - 1) / count
    trace = np.trace(scatter)
    even = np.eye(width) * trace / width
    squared, even_squared = (scatter**2).sum(), (even**2).sum()
    top = trace**2 * even_squared / count
    share = 1 - top / (squared * even_squared - (scatter * even).sum() ** 2)
    return (share * scatter + (1 - share) * even) * count / (count - 1)


def leace_spherical(table):
    return project_on_sphere(*leace_subspace(table))


def leace_gated(table):
    mu, basis = leace_subspace(table)
    return gated(mu, basis, *calibration(unit(flat(pooled(table))), mu, basis))


def inlp_basis(rows, classes):
    """A direction for each class and round, whether the classifier has converged or not."""
    left, found = rows.astype(np.float32), []
    for _ in range(10):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = LogisticRegression(C=1.0, max_iter=1000).fit(left, classes)
        if model.score(left, classes) <= 1 / len(set(classes)) + 1e-6:
            break
        across = np.linalg.qr(model.coef_.T)[0]
        found.append(across)
        left = left @ (np.eye(left.shape[1]) - across @ across.T)
    return np.linalg.qr(np.concatenate(found, 1))[0]


def inlp_euclidean(table):
    rows = flat(pooled(table))
    return project(rows.mean(0), inlp_basis(rows, labels(table)))


def inlp_spherical(table):
    points = unit(flat(pooled(table)))
    return project_on_sphere(karcher(points), inlp_basis(points, labels(table)))


def classified(rows, classes, kind):
    model = SVC(kernel="rbf") if kind == "svm" else LogisticRegression(max_iter=1000)
    return model.fit(rows.astype(np.float32), classes)


def meandiff_euclidean(table, kind):
    rows, classes = flat(pooled(table)), labels(table)
    model = classified(rows, classes, kind)
    shifts = [rows[classes == a].mean(0) - rows.mean(0) for a in range(table.shape[1])]
    return lambda h, alpha: h - alpha * shifts[model.predict(h.mean(0)[None].astype(np.float32)).item()]


def meandiff_spherical(table, kind):
    points, classes = unit(flat(pooled(table))), labels(table)
    model, mu = classified(points, classes, kind), karcher(points)
    shifts = [log(mu, karcher(points[classes == a])) for a in range(table.shape[1])]

    def steer(h, alpha):
        shift = shifts[model.predict(unit(h.mean(0))[None].astype(np.float32)).item()]
        return lengths(h) * unit(exp(mu, log(mu, unit(h)) - alpha * shift))

    return steer


def spurious(points, classes, mean):
    """Differences of the values' centres from the centre of all, and halves of the differences of these."""
    centre = mean(points).astype(np.float32)
    apart = [mean(points[classes == a]).astype(np.float32) - centre for a in range(max(classes) + 1)]
    return np.stack([*apart, *((one - other) / 2 for one, other in combinations(apart, 2))])


def bend_basis(rows):
    """All right singular vectors; those beyond the rank are rounding errors. The authors' code sets no seed."""
    return TruncatedSVD(min(rows.shape), random_state=0).fit(rows).components_.T.astype(float)


def nearest(query, points, classes, count):
    order = np.argsort(-(unit(points) @ unit(query)))
    return [points[[i for i in order if classes[i] == a][:count]] for a in range(max(classes) + 1)]


def bend(table, spherical, basis=None, count=10):
    points, classes = unit(flat(pooled(table))), labels(table)
    mu = karcher(points)
    mean = karcher if spherical else lambda rows: rows.mean(0)
    basis = bend_basis(spurious(points, classes, mean)) if basis is None else basis
    outside = np.eye(len(basis)) - basis @ np.linalg.inv(basis.T @ basis) @ basis.T

    def steer(h, alpha):
        pooled = h.mean(0)
        query = unit(outside @ unit(pooled))
        prototypes = [mean(own) for own in nearest(query, points, classes, count)]
        if spherical:
            start = log(mu, query)
            tangents = [log(mu, one) for one in prototypes]
            rows = np.stack([2 * (tangents[0] - one) for one in tangents[1:]])
            wanted = np.array([tangents[0] @ tangents[0] - one @ one for one in tangents[1:]])
            equal = unit(exp(mu, start + rows.T @ np.linalg.solve(rows @ rows.T, wanted - rows @ start)))
        else:
            across = np.stack([one - prototypes[0] for one in prototypes[1:]]).T
            equal = unit(query - across @ np.linalg.solve(across.T @ across, across.T @ query))
        return h + alpha * (equal * np.linalg.norm(pooled) - pooled)

    return steer


METHODS = {
    "ggss": ggss,
    "ggss-no-gate": lambda table: ggss(table, floor=1.0),
    "ggss-no-slerp": lambda table: ggss(table, chord=True),
    "svd-pooled-euclidean": svd_pooled_euclidean,
    "svd-pooled-spherical": svd_pooled_spherical,
    "svd-token-euclidean": svd_token_euclidean,
    "svd-token-spherical": svd_token_spherical,
    "leace-spherical": leace_spherical,
    "leace-gated": leace_gated,
    "inlp-euclidean": inlp_euclidean,
    "inlp-spherical": inlp_spherical,
    "meandiff-svm-euclidean": lambda table: meandiff_euclidean(table, "svm"),
    "meandiff-svm-spherical": lambda table: meandiff_spherical(table, "svm"),
    "meandiff-lr-euclidean": lambda table: meandiff_euclidean(table, "lr"),
    "meandiff-lr-spherical": lambda table: meandiff_spherical(table, "lr"),
    "bend-euclidean": lambda table: bend(table, spherical=False),
    "bend-spherical": lambda table: bend(table, spherical=True),
}
