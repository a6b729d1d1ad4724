"""Discovery: equal to the printed equations, finds what was planted, warns where it should, refuses what it must."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score

import ggss
import transcription
from ggss.methods import diagnostics
from ggss.methods.ggss import GateOptions, calibrated
from planted import planted


def test_fit_equals_the_papers_equations():
    acts, _ = planted(identities=4, width=24 + 40)
    steerer = ggss.fit("ggss", acts, attribute="race")
    operator = steerer.operators["projection-mlp2"]
    groups = acts.groups("race")
    table = np.array([[acts.tokens[i].double().numpy() for i in row] for row in groups.index.tolist()])
    basis, mu, median, std, singular = transcription.discover(table, 4)
    np.testing.assert_allclose(operator.mu, mu, atol=1e-6)
    np.testing.assert_allclose(operator.basis @ operator.basis.T, basis @ basis.T, atol=1e-5)
    assert operator.gate_median == pytest.approx(median, rel=1e-5)
    assert operator.gate_std == pytest.approx(std, rel=1e-5)
    found = steerer.statistics["projection-mlp2"]
    np.testing.assert_allclose(found["singular_values"], singular, atol=1e-5)
    np.testing.assert_allclose(found["explained_variance"], singular**2 / (singular**2).sum(), atol=1e-5)
    assert found["magnitudes"].shape == (len(acts),)
    assert (operator.kappa, operator.floor) == (5.0, 0.3)


@pytest.mark.parametrize("median", ["lower", "mean"])
@pytest.mark.parametrize("deviation", ["sample", "population"])
@pytest.mark.parametrize("name", ["ggss", "ggss-contrast", "leace-gated", "ggss-no-slerp", "gated-euclidean"])
def test_the_median_and_the_deviation_of_the_gate_are_options(name, median, deviation):
    acts, _ = planted(identities=3)
    steerer = ggss.fit(name, acts, attribute="race", median=median, deviation=deviation)
    found = steerer.statistics["projection-mlp2"]["magnitudes"].double().numpy()
    operator = steerer.operators["projection-mlp2"]
    assert len(found) % 2 == 0
    assert np.ptp(np.sort(found)[14:16]) > 1e-4  # or the two medians would be the same
    expected = transcription.gate_statistics(found, median, deviation)
    assert (operator.gate_median, operator.gate_std) == pytest.approx(expected, rel=1e-6)


def test_the_gate_is_calibrated_as_in_the_authors_code_by_default():
    magnitudes = torch.tensor([4.0, 1.0, 2.0, 3.0], dtype=torch.float64)
    found = calibrated(magnitudes, GateOptions())
    assert found == {"gate_median": 2.0, "gate_std": pytest.approx((5 / 3) ** 0.5 + 1e-8), "kappa": 5.0, "floor": 0.3}
    other = calibrated(magnitudes, GateOptions(median="mean", deviation="population"))
    assert (other["gate_median"], other["gate_std"]) == (2.5, pytest.approx(1.25**0.5, rel=1e-12))


@pytest.mark.parametrize(("attribute", "k"), [("race", 4), ("gender", 1), (("race", "gender"), 9)])
def test_k_is_the_number_of_values_minus_one(attribute, k):
    acts, _ = planted(identities=8)
    operator = ggss.fit("ggss", acts, attribute=attribute).operators["projection-mlp2"]
    assert operator.basis.shape == (64, k)


def probe_accuracy(rows: torch.Tensor, labels: list) -> float:
    return cross_val_score(LogisticRegression(max_iter=2000), rows.numpy(), labels, cv=4).mean()


def test_the_planted_attribute_is_found_removed_and_nothing_else():
    acts, axes = planted(noise=0.1)
    steerer = ggss.fit("ggss", acts, attribute="race", floor=1.0)  # no gate: everything is removed at alpha 1
    operator = steerer.operators["projection-mlp2"]
    assert diagnostics.principal_cosines(operator.basis, axes[:, :4]).min() > 0.98
    steered = torch.stack([steerer.steer(tokens).mean(0) for tokens in acts.tokens])
    assert probe_accuracy(acts.pooled, acts.labels("race")) > 0.95
    assert probe_accuracy(steered, acts.labels("race")) < 0.35
    assert probe_accuracy(steered, acts.labels("gender")) > 0.95
    # The control: as many random directions remove nothing.
    random = torch.linalg.qr(torch.randn(64, 4, generator=torch.Generator().manual_seed(1)))[0]
    control = replace(steerer, operators={"projection-mlp2": replace(operator, basis=random)})
    left = torch.stack([control.steer(tokens).mean(0) for tokens in acts.tokens])
    assert probe_accuracy(left, acts.labels("race")) > 0.95


def test_a_clean_subspace_gives_no_warning():
    acts, _ = planted(identities=16)
    found = ggss.fit("ggss", acts, attribute="race").diagnostics["projection-mlp2"]
    assert found["warnings"] == []
    assert min(found["split_half_cosines"]) > 0.95
    assert found["variance_share"] < 0.05
    assert 8 < found["effective_rank"] < 20


def test_an_unstable_subspace_warns():
    generator = torch.Generator().manual_seed(0)
    tokens = [torch.randn(1, 64, generator=generator) for _ in range(40)]
    attributes = [{"gender": g} for _ in range(20) for g in ("man", "woman")]
    acts = ggss.Activations(tokens, attributes, [i // 2 for i in range(40)])
    steerer = ggss.fit("ggss", acts, attribute="gender")
    assert any("does not transfer" in text for text in steerer.warnings)


def test_a_large_subspace_that_transfers_does_not_warn():
    """Its last directions are noise, and differ between any two halves; what the attribute does is in the first."""
    acts, _ = planted(identities=40)
    found = ggss.fit("ggss", acts, attribute="race", k=8).diagnostics["projection-mlp2"]
    assert min(found["split_half_cosines"]) < 0.7
    assert found["transfer"] > 0.95
    assert not any("transfer" in text for text in found["warnings"])
    noisy, _ = planted(identities=4, noise=3.0)
    unsure = ggss.fit("ggss", noisy, attribute="race").diagnostics["projection-mlp2"]
    assert unsure["transfer"] < 0.8
    assert any("does not transfer" in text for text in unsure["warnings"])


def test_halves_too_small_for_k_leave_stability_unknown_and_the_fit_alone():
    acts, _ = planted(identities=6)
    for name in ("ggss", "ggss-contrast"):
        assert len(ggss.fit(name, acts, attribute="race").diagnostics["projection-mlp2"]["split_half_cosines"]) == 4
    steerer = ggss.fit("ggss", acts, attribute="race", k=30)  # of 48; half of the identities span 24
    assert steerer.operators["projection-mlp2"].basis.shape == (64, 30)
    assert steerer.diagnostics["projection-mlp2"]["split_half_cosines"] == []
    assert any("half of them do not span 30 directions" in text for text in steerer.warnings)


def test_identities_are_told_apart_by_their_whole_context():
    """Contexts of two named columns, as a manifest gives them, in a set that varies one attribute only."""
    acts, _ = planted(identities=12)
    men = [i for i, row in enumerate(acts.attributes) if row["gender"] == "man"]
    races = [{"race": acts.attributes[i]["race"]} for i in men]
    named = [(("occupation", acts.contexts[i][0]), ("identity", acts.contexts[i][1])) for i in men]
    alone = ggss.Activations([acts.tokens[i] for i in men], races, named)
    found = ggss.fit("ggss", alone, attribute="race").diagnostics["projection-mlp2"]
    assert min(found["split_half_cosines"]) > 0.95
    assert found["warnings"] == []


def test_a_subspace_full_of_other_variance_warns():
    generator = torch.Generator().manual_seed(0)
    width, contexts = 32, 24
    base = torch.zeros(width)
    base[10] = 3
    tokens, attributes = [], []
    for _ in range(contexts):
        person = torch.zeros(width)
        person[:3] = torch.randn(3, generator=generator)  # people differ along the same directions as genders do
        for sign, gender in ((-1, "man"), (1, "woman")):
            shift = torch.zeros(width)
            shift[0] = 0.5 * sign
            tokens.append((base + person + shift)[None])
            attributes.append({"gender": gender})
    acts = ggss.Activations(tokens, attributes, [i // 2 for i in range(2 * contexts)])
    steerer = ggss.fit("ggss", acts, attribute="gender")
    assert any("cost capability" in text for text in steerer.warnings)
    assert steerer.diagnostics["projection-mlp2"]["effective_rank"] < 4


def test_effective_rank_and_principal_cosines():
    assert diagnostics.effective_rank(torch.eye(7)) == pytest.approx(7)
    assert diagnostics.effective_rank(torch.ones(5, 3)) == pytest.approx(1)
    e = torch.eye(4)
    assert diagnostics.principal_cosines(e[:, :2], e[:, 1:3]).tolist() == pytest.approx([1, 0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kapa": 1}, "kapa: extra inputs are not permitted"),
        ({"kappa": -1}, "kappa: input should be greater than 0"),
        ({"floor": 2}, "floor: input should be less than or equal to 1"),
        ({"floor": float("nan")}, "floor"),
        ({"median": "upper"}, "median: input should be 'lower' or 'mean'"),
        ({"deviation": 1}, "deviation: input should be 'sample' or 'population'"),
        ({"k": 0}, "k: input should be greater than or equal to 1"),
        ({"k": 63}, "span 48; choose a smaller k"),
    ],
)
def test_options_are_checked(options, message):
    acts, _ = planted(identities=6)
    with pytest.raises(ggss.InputError, match=message):
        ggss.fit("ggss", acts, attribute="race", **options)


def test_bad_activations_are_refused():
    acts, _ = planted(identities=2)
    with pytest.raises(ggss.InputError, match="no attribute 'age'"):
        ggss.fit("ggss", acts, attribute="age")
    with pytest.raises(ggss.InputError, match="no method 'ggs'"):
        ggss.fit("ggs", acts, attribute="race")
    same = ggss.Activations([torch.ones(2, 8)] * 4, [{"race": r} for r in "abab"], [0, 0, 1, 1])
    with pytest.raises(ggss.InputError, match="equal activations"):
        ggss.fit("ggss", same, attribute="race")
    zero = ggss.Activations([torch.zeros(2, 8)] * 4, [{"race": r} for r in "abab"], [0, 0, 1, 1])
    with pytest.raises(ggss.InputError, match="mean token of image 0 is zero"):
        ggss.fit("ggss", zero, attribute="race")
