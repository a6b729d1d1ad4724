"""Rotations of other papers: angular steering, WRING and spherical steering, against plain transcriptions."""

import numpy as np
import pytest
import torch

import ggss
from ggss_rivals.angular import turned
from planted import planted

SITE = "projection-mlp2"


def unit(vector):
    return vector / np.linalg.norm(vector)


def means(acts, attribute="race"):
    rows, labels = acts.pooled.double().numpy(), np.array(acts.labels(attribute))
    return np.array([rows[labels == value].mean(0) for value in sorted(set(labels))])


def test_two_values_turn_in_the_papers_plane():
    """h - Proj h + |Proj h| b2 with one feature, as printed, at 90 degrees."""
    acts, _ = planted(identities=6)
    man, woman = means(acts, "gender")
    b1 = unit(woman - man)
    table = acts.pooled.double().numpy()[acts.groups("gender").index.numpy()]
    differences = table[:, 1] - table[:, 0]
    _, _, components = np.linalg.svd(differences - np.outer(differences @ b1, b1), full_matrices=False)
    b2 = components[0] * np.sign((acts.pooled.double().numpy() @ components[0]).mean())
    steerer = ggss.fit("angular-steering", acts, attribute="gender")
    rows = acts.tokens[7].double().numpy()
    for h, seen in zip(rows, steerer.steer(acts.tokens[7]).double().numpy(), strict=True):
        inside = (b1 @ h) * b1 + (b2 @ h) * b2
        np.testing.assert_allclose(seen, h - inside + np.linalg.norm(inside) * b2, atol=1e-5)
    for h, seen in zip(rows, steerer.steer(acts.tokens[7], alpha=0.25).double().numpy(), strict=True):
        x, y = b1 @ h, b2 @ h
        angle = np.arctan2(x, y) * 0.75
        expected = h - x * b1 - y * b2 + np.hypot(x, y) * (np.sin(angle) * b1 + np.cos(angle) * b2)
        np.testing.assert_allclose(seen, expected, atol=1e-5)


def test_wring_ends_equally_similar_to_all_values_and_leaves_the_rest():
    acts, _ = planted(identities=6)
    concepts = np.array([unit(mean) for mean in means(acts)])
    steerer = ggss.fit("wring", acts, attribute="race")
    rows, steered = acts.tokens[4].double().numpy(), steerer.steer(acts.tokens[4]).double().numpy()
    similar = steered @ concepts.T
    assert np.ptp(rows @ concepts.T, axis=1).min() > 0.1
    assert np.ptp(similar, axis=1).max() < 1e-5
    span = np.linalg.qr(concepts.T)[0]
    np.testing.assert_allclose(steered - steered @ span @ span.T, rows - rows @ span @ span.T, atol=1e-5)
    lengths = (np.linalg.norm(one @ span, axis=1) for one in (rows, steered))
    np.testing.assert_allclose(*lengths, rtol=1e-6)


def test_projection_amplifies_what_rotation_leaves_alone():
    """The paper's claim, on rows that are brought back to unit length after either."""
    acts, axes = planted(identities=6)
    gender = axes[:, 4]

    def gap(steerer):
        rows = torch.stack([steerer.steer(own).mean(0) for own in acts.tokens])
        rows = rows / rows.norm(dim=1, keepdim=True)
        labels = torch.tensor([label == "woman" for label in acts.labels("gender")])
        return float((rows[labels].mean(0) - rows[~labels].mean(0)) @ gender)

    unsteered, turned_gap, removed = (
        gap(ggss.fit(name, acts, attribute="race")) for name in ("none", "wring", "svd-pooled-euclidean")
    )
    assert turned_gap == pytest.approx(unsteered, rel=2e-3)
    assert removed > 1.01 * unsteered


def test_a_token_opposite_to_the_axis_is_left_alone():
    inside = torch.tensor([[0.0, 0.0, -2.0], [1e-9, 0.0, -2.0], [0.0, 0.0, 3.0], [0.0, 0.0, 0.0], [3.0, 0.0, -4.0]])
    seen = turned(inside.double(), torch.ones(5, 1))
    torch.testing.assert_close(seen[:4], inside[:4].double())
    torch.testing.assert_close(seen[4], torch.tensor([0.0, 0.0, 5.0], dtype=torch.float64))


@pytest.mark.parametrize("alpha", [0.15, 1.0])
def test_spherical_steering_is_the_papers_formula(alpha):
    acts, _ = planted(identities=6)
    steerer = ggss.fit("spherical-steering", acts, attribute="race")
    points = np.array([unit(row) for row in acts.pooled.double().numpy()])
    labels = np.array(acts.labels("race"))
    target = unit(points.mean(0))
    values = [unit(points[labels == value].mean(0)) for value in sorted(set(labels))]
    rows = torch.cat([acts.tokens[2], acts.pooled.mean(0)[None] + 0.01 * acts.tokens[5][:2]])
    gates = []
    for h, seen in zip(rows.double().numpy(), steerer.steer(rows, alpha=alpha).double().numpy(), strict=True):
        direction = unit(h)
        to_target, to_value = direction @ target, max(direction @ value for value in values)
        shares = np.exp([20 * to_target, 20 * to_value])
        surplus = (shares[1] - shares[0]) / shares.sum()
        gates.append(max((surplus - 0.1) / 0.9, 0))
        left = (1 - alpha * gates[-1]) * np.arccos(to_target)
        across = unit(direction - to_target * target)
        np.testing.assert_allclose(
            seen, np.linalg.norm(h) * (np.cos(left) * target + np.sin(left) * across), atol=1e-5
        )
    np.testing.assert_allclose(steerer.gate(rows), gates, atol=1e-5)
    assert min(gates) == 0 < max(gates)


def test_spherical_steering_weakens_everything_alike():
    """What it cannot do, and GGSS can: hide the attribute and keep the rest."""
    acts, _ = planted()
    left = {}
    for name in ("spherical-steering", "ggss"):
        steerer = ggss.fit(name, acts, attribute="race")
        after = torch.stack([steerer.steer(own).mean(0) for own in acts.tokens])
        for attribute in ("race", "gender"):
            labels = acts.labels(attribute)
            groups = [torch.tensor([one == value for one in labels]) for value in sorted(set(labels))]
            spreads = [torch.stack([rows[g].mean(0) for g in groups]).var(0).sum() for rows in (after, acts.pooled)]
            left[name, attribute] = float(spreads[0] / spreads[1])
    assert left["spherical-steering", "race"] == pytest.approx(left["spherical-steering", "gender"], abs=0.1)
    assert 0.5 < left["spherical-steering", "race"] < 0.8
    assert left["ggss", "race"] < 0.2 < 0.8 < left["ggss", "gender"]


def test_values_without_a_difference_are_refused():
    acts, _ = planted(identities=4)
    generator = torch.Generator().manual_seed(0)
    person = [torch.randn(6, 64, generator=generator) for _ in range(4)]
    same = ggss.Activations([person[own[1]] for own in acts.contexts], acts.attributes, acts.contexts)
    for name, sentence in (
        ("wring", "the same mean row"),
        ("spherical-steering", "the same mean direction"),
        ("angular-steering", "the mean activations of all values are equal"),
        ("splince", "no linear trace"),
    ):
        with pytest.raises(ggss.InputError, match=sentence):
            ggss.fit(name, same, attribute="race")
