"""The paper's equations in numpy float64, token by token, as they are printed. Nothing of ggss is used here."""

import numpy as np

EPS, EPS_GEO, CLAMP = 1e-10, 1e-8, 1e-7


def normalize(x):
    return x / (np.linalg.norm(x) + EPS)


def log(p, q, clamp=CLAMP):
    cosine = np.clip(p @ q, -1 + clamp, 1 - clamp)
    angle = np.arccos(cosine)
    across = q - (p @ q) * p
    length = np.linalg.norm(across)
    if angle < EPS_GEO or length < EPS_GEO:
        return np.zeros_like(p)
    return angle * across / length


def exp(p, t):
    length = np.linalg.norm(t)
    if length < EPS_GEO:
        return p
    return np.cos(length) * p + np.sin(length) * t / length


def slerp(p, q, beta):
    theta = np.arccos(np.clip(p @ q, -1, 1))
    if theta < EPS_GEO or np.pi - theta < EPS_GEO:
        return p
    return np.sin((1 - beta) * theta) / np.sin(theta) * p + np.sin(beta * theta) / np.sin(theta) * q


def karcher(points):
    eta = normalize(points.mean(0))
    for _ in range(100):
        t = np.mean([log(eta, y, 0) for y in points], 0)
        if np.linalg.norm(t) < 1e-7:
            break
        eta = normalize(exp(eta, t))
    return eta


def discover(table, k):
    """table [U, A, T, D] of tokens -> V [D, k], mu, median, std, singular values (section 3.1)."""
    contexts, values = table.shape[:2]
    y = np.array([[normalize(table[u, a].mean(0)) for a in range(values)] for u in range(contexts)])
    rows = []
    for u in range(contexts):
        centre = karcher(y[u])
        rows += [log(centre, y[u, a], 0) for a in range(values)]
    _, singular, vt = np.linalg.svd(np.array(rows), full_matrices=False)
    basis = vt[:k].T
    mu = karcher(y.reshape(-1, y.shape[-1]))
    b = [np.linalg.norm(basis.T @ log(mu, c, 0)) for c in y.reshape(-1, y.shape[-1])]
    return basis, mu, *gate_statistics(b), singular


def gate_statistics(b, median="lower", deviation="sample"):
    """Which median and which deviation the paper leaves open; the defaults are those of the authors' code."""
    middle = sorted(b)[(len(b) - 1) // 2] if median == "lower" else np.median(b)
    return middle, np.std(b, ddof=1) + 1e-8 if deviation == "sample" else np.std(b)


def chord(p, q, beta):
    """The authors' code where there is no slerp."""
    return normalize((1 - beta) * p + beta * q)


def steer(h, mu, basis, median, std, alpha, kappa=5.0, floor=0.3, path=slerp):
    """One token [D] -> its steered token and gate (section 3.2)."""
    r = np.linalg.norm(h)
    direction = h / r
    t = log(mu, direction, 0)
    protected = basis @ (basis.T @ t)
    target = normalize(exp(mu, t - protected))
    z = (np.linalg.norm(basis.T @ t) - median) / (std + EPS)
    gate = floor + (1 - floor) / (1 + np.exp(-np.clip(kappa * z, -700, 700)))
    return r * path(direction, target, alpha * gate), gate
