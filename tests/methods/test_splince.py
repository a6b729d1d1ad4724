"""SPLINCE: its two conditions, a transcription of its formula, and PACE under the same rule."""

import numpy as np
import pytest
import torch

import ggss
from ggss_rivals.splince import kept_columns, outside
from planted import planted

SITE = "projection-mlp2"


def related(identities=10, seed=0):
    """Planted noisy tokens; those of a nurse have some of race's direction, so task and attribute are not apart."""
    acts, axes = planted(identities=identities, noise=3.0, seed=seed)
    tokens = [
        own + (acts.contexts[i][0] == "nurse") * (axes[:, 0] + axes[:, 30]) for i, own in enumerate(acts.tokens)
    ]
    contexts = [(("occupation", work), ("identity", str(identity))) for work, identity in acts.contexts]
    return ggss.Activations(tokens, acts.attributes, contexts)


def one_hot(labels):
    values = sorted(set(labels))
    return np.eye(len(values))[[values.index(label) for label in labels]]


def covariance(rows, labels):
    coded = one_hot(labels)
    return (rows - rows.mean(0)).T @ (coded - coded.mean(0)) / len(rows)


def occupations(acts):
    return [dict(context)["occupation"] for context in acts.contexts]


@pytest.mark.parametrize(("name", "options"), [("splince", {}), ("splince-pace", {"k": 4, "parts": 1})])
def test_the_attributes_covariance_is_gone_and_the_tasks_is_as_it_was(name, options):
    acts = related()
    steerer = ggss.fit(name, acts, attribute="race", keep="occupation", **options)
    before = acts.pooled.double().numpy()
    after = torch.stack([steerer.steer(own).double().mean(0) for own in acts.tokens]).numpy()
    was = np.linalg.norm(covariance(before, acts.labels("race")))
    assert np.linalg.norm(covariance(after, acts.labels("race"))) < 1e-5 * was
    work = covariance(before, occupations(acts))
    np.testing.assert_allclose(covariance(after, occupations(acts)), work, atol=1e-5 * np.linalg.norm(work))
    # The control: without the rule, the erasure takes some of the task's covariance with it.
    plain_methods = {"leace-spherical": {}, "pace": {"k": 4, "parts": 1}, "splince": {"keep": "gender"}}
    for other, plain_options in plain_methods.items():
        plain = ggss.fit(other, acts, attribute="race", **plain_options)
        rows = torch.stack([plain.steer(own).double().mean(0) for own in acts.tokens]).numpy()
        assert np.linalg.norm(covariance(rows, occupations(acts)) - work) > 0.05 * np.linalg.norm(work)


def transcribed(x, z, y, shrinkage):
    """P of the theorem as it is printed, in D dimensions: W^+ V (U^T V)^-1 U^T W."""
    width = x.shape[1]
    centred = x - x.mean(0)
    sigma = centred.T @ centred / len(x)
    sigma = (1 - shrinkage) * sigma + shrinkage * np.trace(sigma) / width * np.eye(width)
    values, vectors = np.linalg.eigh(sigma)
    w = vectors @ np.diag(values**-0.5) @ vectors.T

    def spanned(matrix):
        left, sizes, _ = np.linalg.svd(matrix)
        rank = int((sizes > 1e-6 * sizes[0]).sum())
        return left[:, :rank], left[:, rank:]

    a, u = spanned(w @ (centred.T @ (z - z.mean(0)) / len(x)))
    b, _ = spanned(w @ (centred.T @ (y - y.mean(0)) / len(x)))
    _, apart = spanned(np.concatenate([a, b], 1))
    v = np.concatenate([b, apart], 1)
    return np.linalg.inv(w) @ v @ np.linalg.inv(u.T @ v) @ u.T @ w


def test_it_is_the_theorem():
    acts = related()
    x = acts.pooled.double().numpy()
    centred = torch.from_numpy(x - x.mean(0))
    variances = torch.linalg.svdvals(centred) ** 2 / len(x)
    trace, squares = float(variances.sum()), float((variances**2).sum())
    # concept-erasure's shrinkage towards trace / D * identity.
    target = trace**2 / x.shape[1]
    share = trace**2 * target / len(x) / (squares * target - target**2)
    p = transcribed(x, one_hot(acts.labels("race")), one_hot(occupations(acts)), share)
    operator = ggss.fit("splince", acts, attribute="race", keep="occupation").operators[SITE]
    erased = (operator.movement.double() @ operator.detection.double().T).numpy()
    np.testing.assert_allclose(np.eye(x.shape[1]) - erased, p, atol=1e-4)
    np.testing.assert_allclose(operator.mu, x.mean(0), atol=1e-5)


def test_where_nothing_is_shared_it_is_leace_and_pace_is_pace():
    acts, _ = planted(noise=0.01)  # gender and race are orthogonal, in the labels and in the tokens
    plain, ruled = (ggss.fit(name, acts, attribute="race").operators[SITE] for name in ("pace", "splince-pace"))
    torch.testing.assert_close(ruled.detection, plain.detection, atol=2e-3, rtol=0)
    assert torch.equal(ruled.movement, plain.movement)


def test_the_affine_map_is_what_the_operator_does():
    acts = related()
    operator = ggss.fit("splince", acts, attribute="race").operators[SITE]
    rows = acts.tokens[3]
    steered = torch.empty_like(rows)
    operator(rows, torch.full((len(rows), 1), 0.6), None, steered)
    torch.testing.assert_close(operator.affine(0.6)(rows.double()).float(), steered, atol=1e-5, rtol=1e-5)


def test_what_is_kept_by_default_and_what_cannot_be_kept():
    acts = related()
    assert list(kept_columns(acts, "race", None)) == ["gender", "occupation"]
    assert list(kept_columns(planted()[0], "race", None)) == ["gender"]
    assert list(kept_columns(acts, ("race", "gender"), None)) == ["occupation"]
    for wrong, sentence in (
        ("work", "no column 'work' that could be kept"),
        ("race", "'race' is to be erased, so it cannot be kept"),
    ):
        with pytest.raises(ggss.InputError, match=sentence):
            ggss.fit("splince", acts, attribute="race", keep=wrong)
    alone = ggss.Activations(acts.tokens, [{"race": row["race"]} for row in acts.attributes], range(len(acts)))
    with pytest.raises(ggss.InputError, match="no column but race varies"):
        kept_columns(alone, "race", None)
    basis = torch.linalg.qr(torch.randn(9, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64))[0]
    with pytest.raises(ggss.InputError, match="share a direction"):
        outside(basis[:, :3], basis[:, 2:])
    detection, sine = outside(basis[:, :3], basis[:, 3:])
    assert sine == pytest.approx(1)
    torch.testing.assert_close(detection, basis[:, :3])
