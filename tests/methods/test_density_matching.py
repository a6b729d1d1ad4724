"""LEOPARD and MiMiC, which make the distributions of values alike: against references, and on planted data."""

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm
from sklearn.neighbors import KNeighborsClassifier

import ggss
from ggss_rivals.leopard import discrepancy
from ggss_rivals.mimic import gaussian_map
from planted import planted

SITE = "projection-mlp2"


def test_the_discrepancy_is_the_sum_over_all_pairs_of_rows():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(12, 3, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, 1, 2] * 4)

    def mean_kernel(a, b):
        return np.mean([np.exp(-((x - y) ** 2).sum() / (2 * 1.7**2)) for x in a for y in b])

    groups = [rows[labels == value].numpy() for value in range(3)]
    pairs = [(0, 1), (0, 2), (1, 2)]
    expected = np.mean(
        [
            mean_kernel(groups[a], groups[a])
            + mean_kernel(groups[b], groups[b])
            - 2 * mean_kernel(groups[a], groups[b])
            for a, b in pairs
        ]
    )
    assert float(discrepancy(rows, labels, 1.7)) == pytest.approx(expected, rel=1e-9)
    same = torch.cat([rows[:4]] * 3)
    assert float(discrepancy(same, torch.arange(3).repeat_interleave(4), 1.7)) == pytest.approx(0, abs=1e-12)


def wide_and_narrow(identities=150, seed=0):
    """Women vary more than men along axis 2, with the same mean; axis 0 has a small difference of means."""
    generator = torch.Generator().manual_seed(seed)
    tokens, attributes, contexts = [], [], []
    for identity in range(identities):
        person = 0.1 * torch.randn(8, generator=generator)
        for gender, size in (("man", 0.1), ("woman", 2.0)):
            row = person + 0.1 * torch.randn(8, generator=generator)
            row[2] = size * torch.randn(1, generator=generator)
            row[0] += 0.1 if gender == "man" else -0.1
            row[7] += 3
            tokens.append(row[None].repeat(2, 1))
            attributes.append({"gender": gender})
            contexts.append(identity)
    return ggss.Activations(tokens, attributes, contexts)


def neighbours(rows, labels):
    """How well neighbours tell the values: trained on one half of people, asked about the other."""
    half = len(rows) // 2
    probe = KNeighborsClassifier(5).fit(rows[:half], labels[:half])
    return probe.score(rows[half:], labels[half:])


def test_leopard_hides_a_difference_of_distributions_that_a_projection_of_means_leaves():
    acts = wide_and_narrow()
    labels = acts.labels("gender")
    assert neighbours(acts.pooled.numpy(), labels) > 0.8
    read = {}
    for name, options in (("directional-ablation", {}), ("leopard", {"k": 2, "steps": 0}), ("leopard", {"k": 2})):
        steerer = ggss.fit(name, acts, attribute="gender", **options)
        after = torch.stack([steerer.steer(own).mean(0) for own in acts.tokens]).numpy()
        read[name, options.get("steps")] = neighbours(after, labels)
    assert read["directional-ablation", None] > 0.8
    assert read["leopard", 0] > 0.75  # where the search begins
    assert read["leopard", None] < 0.65
    found = ggss.fit("leopard", acts, attribute="gender", k=2)
    assert float(found.operators[SITE].basis[2].norm()) > 0.95  # axis 2 is among the two that are removed
    diagnostics = found.diagnostics[SITE]
    assert diagnostics["discrepancy"] < 0.2 * diagnostics["discrepancy_before"]


def test_the_gaussian_map_is_the_optimal_transport():
    generator = np.random.default_rng(0)
    source, target = (np.cov(generator.normal(size=(5, 40)) * scale) for scale in (1.0, 2.0))
    root = sqrtm(source)
    inverse = np.linalg.inv(root)
    expected = inverse @ sqrtm(root @ target @ root) @ inverse
    seen = gaussian_map(torch.from_numpy(source), torch.from_numpy(target)).numpy()
    np.testing.assert_allclose(seen, expected, atol=1e-9)
    np.testing.assert_allclose(seen @ source @ seen.T, target, atol=1e-9)
    np.testing.assert_allclose(seen, seen.T, atol=1e-9)


def test_mimic_gives_every_value_the_mean_and_covariance_of_all():
    """On tokens of which neighbours cannot tell the value after it, where moving means alone leaves it."""
    generator = torch.Generator().manual_seed(0)
    tokens, attributes, contexts = [], [], []
    for identity in range(40):
        for gender, scale, side in (("man", 0.5, 2.0), ("woman", 2.5, -2.0)):
            rows = torch.randn(20, 8, generator=generator)
            rows[:, 2] *= scale
            rows[:, 0] += side
            rows[:, 7] += 5
            tokens.append(rows)
            attributes.append({"gender": gender})
            contexts.append(identity)
    acts = ggss.Activations(tokens, attributes, contexts)
    labels = [label for label in acts.labels("gender") for _ in range(20)]
    read = {}
    for covariance in (True, False):
        steerer = ggss.fit("mimic", acts, attribute="gender", rank=7, covariance=covariance)
        assert steerer.diagnostics[SITE]["accuracy"] == 1
        after = torch.cat([steerer.steer(own) for own in acts.tokens])
        by_value = [after[torch.tensor([label == value for label in labels])] for value in ("man", "woman")]
        torch.testing.assert_close(by_value[0].mean(0), by_value[1].mean(0), atol=1e-4, rtol=0)
        ratio = float(by_value[1][:, 2].std() / by_value[0][:, 2].std())
        assert (ratio < 1.1) if covariance else (ratio > 4)
        read[covariance] = neighbours(after[:, :3].numpy(), labels)
    assert read[False] > 0.65
    assert read[True] < 0.55


def test_bad_input_is_refused():
    acts, _ = planted(identities=4)
    with pytest.raises(ggss.InputError, match="rank = 64 components were asked for, but the tokens have 64"):
        ggss.fit("mimic", acts, attribute="race", rank=64)
    with pytest.raises(ggss.InputError, match="rank 39 was asked for, but these 40 images differ in 39 dimensions"):
        ggss.fit("leopard", acts, attribute="race", k=39)
    value = acts.labels("race")[0]
    tokens = [rows * (label != value) for rows, label in zip(acts.tokens, acts.labels("race"), strict=True)]
    blank = ggss.Activations(tokens, acts.attributes, acts.contexts)
    with pytest.raises(ggss.InputError, match=f"every token of the images of '{value}' is zero"):
        ggss.fit("mimic", blank, attribute="race")
