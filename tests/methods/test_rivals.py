"""Rivals from other papers: equal to plain transcriptions, right where the truth is planted, else refused."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_selection import f_classif
from sklearn.linear_model import LogisticRegression

import ggss
from ggss.methods import operator
from ggss_rivals.rlace import capped, fantope
from ggss_rivals.sae import separations, switched_off, train
from planted import planted
from rounding import assert_same

SITE = "projection-mlp2"


def fitted(name, acts, attribute="race", **options):
    return ggss.fit(name, acts, attribute=attribute, **options)


def projection(basis):
    return (basis @ basis.T).double().numpy()


def mean_differences(rows, labels):
    """The orthogonal projection on the span of the values' mean differences, with numpy alone."""
    labels = np.array(labels)
    means = np.array([rows[labels == value].mean(0) for value in sorted(set(labels))])
    basis = np.linalg.qr((means[1:] - means[0]).T)[0]
    return basis @ basis.T


@pytest.mark.parametrize("attribute", ["race", "gender"])
def test_directional_ablation_is_the_projection_of_mean_differences(attribute):
    acts, _ = planted(identities=4)
    rows, pooled = acts.tokens[3].double().numpy(), acts.pooled.double().numpy()
    expected = mean_differences(pooled, acts.labels(attribute))
    steerer = fitted("directional-ablation", acts, attribute)
    np.testing.assert_allclose(projection(steerer.operators[SITE].basis), expected, atol=1e-5)
    np.testing.assert_allclose(steerer.steer(acts.tokens[3], alpha=0.5), rows - 0.5 * rows @ expected, atol=1e-5)
    around = fitted("directional-ablation", acts, attribute, around="mean").steer(acts.tokens[3])
    np.testing.assert_allclose(around, rows - (rows - pooled.mean(0)) @ expected, atol=1e-5)


def test_directional_ablation_of_fewer_and_of_too_many_directions():
    acts, _ = planted(identities=4)
    whole = fitted("directional-ablation", acts)
    one = fitted("directional-ablation", acts, k=1).operators[SITE].basis
    assert_same(one[:, 0], whole.operators[SITE].basis[:, 0])
    shares = whole.statistics[SITE]["explained_variance"]
    assert shares.shape == (4,)
    assert float(shares.sum()) == pytest.approx(1)
    with pytest.raises(ggss.InputError, match=r"k = 5 directions were asked for, but the mean rows of .* span 4"):
        fitted("directional-ablation", acts, k=5)


@pytest.mark.parametrize("k", [1, 3])
def test_the_fantope_projection_is_the_nearest_point(k):
    """Against a general solver: of all matrices with eigenvalues from 0 to 1 that sum to k, the nearest one."""
    values = torch.randn(6, generator=torch.Generator().manual_seed(k), dtype=torch.float64) * 2
    seen = capped(values, k)
    solved = minimize(
        lambda x: ((x - values.numpy()) ** 2).sum(),
        np.full(6, k / 6),
        bounds=[(0, 1)] * 6,
        constraints={"type": "eq", "fun": lambda x: x.sum() - k},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    np.testing.assert_allclose(seen, solved.x, atol=1e-5)
    turned = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(9), dtype=torch.float64))[0]
    torch.testing.assert_close(fantope(turned @ values.diag() @ turned.T, k), turned @ seen.diag() @ turned.T)
    assert_same(capped(torch.tensor([1.0, 0.0, 1.0]), 2), torch.tensor([1.0, 0.0, 1.0]))


def plain_game(rows, labels, k, steps, seed=42, descent=0.1, ascent=100.0):
    """The basis after some steps of the game: numpy, gradients summed row by row, the shift found by bisection."""
    count, width = rows.shape
    generator = torch.Generator().manual_seed(seed)
    start = 0.1 * torch.randn(width, width, generator=generator, dtype=torch.float64).numpy()

    def projected(matrix):
        values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
        low, high = values.min() - 1, values.max()
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if np.clip(values - middle, 0, 1).sum() > k else (low, middle)
        return vectors @ np.diag(np.clip(values - low, 0, 1)) @ vectors.T

    p, classes = projected(start), max(labels) + 1
    w, b = np.zeros((classes, width)), np.zeros(classes)
    for _ in range(steps):
        for player in ("probe", "projection"):
            by_w, by_b, by_p = w / count, np.zeros(classes), np.zeros((width, width))
            for x, y in zip(rows, labels, strict=True):
                scores = w @ (x - p @ x) + b
                error = np.exp(scores) / np.exp(scores).sum() - np.eye(classes)[y]
                by_w = by_w + np.outer(error, x - p @ x) / count
                by_b = by_b + error / count
                by_p -= np.outer(x, w.T @ error) / count
            if player == "probe":
                w, b = w - descent * by_w, b - descent * by_b
            else:
                p = projected(p + ascent * (by_p + by_p.T) / 2)
    return np.linalg.eigh(p)[1][:, -k:]


def test_rlace_plays_the_game_as_written():
    """Few steps, before the game has converged, so that every line of it shows."""
    acts, _ = planted(identities=3, width=64)
    pooled = acts.pooled.double()
    values = sorted(set(acts.labels("race")))
    left, size, right = torch.linalg.svd(pooled - pooled.mean(0), full_matrices=False)
    kept = size > 1e-9 * size[0]
    rows = ((left * size)[:, kept] / (left * size)[:, kept].square().mean().sqrt()).numpy()
    basis = plain_game(rows, [values.index(value) for value in acts.labels("race")], 2, steps=3)
    expected = right[kept].T.numpy() @ basis
    seen = fitted("rlace", acts, k=2, steps=3).operators[SITE].basis
    np.testing.assert_allclose(projection(seen), expected @ expected.T, atol=1e-4)


@pytest.mark.parametrize("attribute", ["race", "gender"])
def test_rlace_ends_where_a_probe_is_at_chance(attribute):
    acts, _ = planted(identities=6)
    steerer = fitted("rlace", acts, attribute)
    found = steerer.diagnostics[SITE]
    assert found["probe_loss_before"] < 0.1 * found["chance_loss"]
    assert found["probe_loss"] == pytest.approx(found["chance_loss"], abs=1e-3)
    expected = mean_differences(acts.pooled.double().numpy(), acts.labels(attribute))
    np.testing.assert_allclose(projection(steerer.operators[SITE].basis), expected, atol=0.1)


def test_a_projection_of_one_dimension_cannot_hide_five_values():
    acts, _ = planted(identities=4)
    steerer = fitted("rlace", acts, k=1)
    assert steerer.operators[SITE].basis.shape == (64, 1)
    assert steerer.diagnostics[SITE]["probe_loss"] < 0.8 * steerer.diagnostics[SITE]["chance_loss"]
    with pytest.raises(ggss.InputError, match="rank 39 was asked for, but these 40 images differ in 39 dimensions"):
        fitted("rlace", acts, k=39)


@pytest.mark.parametrize("detect", ["image", "token"])
def test_fairsteer_detects_as_scikit_learn_does_and_then_steers(detect):
    acts, _ = planted(identities=6, noise=1.0)
    steerer = fitted("fairsteer", acts, detect=detect)
    pooled, labels = acts.pooled.double().numpy(), np.array(acts.labels("race"))
    table = acts.groups("race").index.numpy()
    plain = LogisticRegression(C=1.0, tol=1e-12, max_iter=100_000)
    plain.fit(np.concatenate([pooled, pooled[table].mean(1)]), [*labels, *["neutral"] * len(table)])
    vectors = {value: pooled.mean(0) - pooled[labels == value].mean(0) for value in set(labels)}
    seen = set()
    for image in range(0, len(acts), 5):
        rows = 0.6 * acts.tokens[image] + 0.4 * acts.pooled.mean(0)  # nearer to neutral, so that not all are detected
        read = rows.double().numpy() if detect == "token" else rows.double().numpy().mean(0, keepdims=True)
        expected, gate = rows.double().numpy(), np.zeros(len(rows))
        for i, chances in enumerate(plain.predict_proba(read)):
            value, chance = plain.classes_[chances.argmax()], chances.max()
            steered = value != "neutral" and chance > 0.5
            seen.add(steered)
            own = slice(None) if detect == "image" else slice(i, i + 1)
            expected[own] += 0.7 * steered * vectors.get(value, 0)
            gate[own] = steered
        np.testing.assert_allclose(steerer.steer(rows, alpha=0.7), expected, atol=1e-4)
        np.testing.assert_array_equal(steerer.gate(rows), gate)
    assert seen == {True, False}


def test_fairsteer_leaves_neutral_pictures_alone():
    acts, _ = planted()
    steerer = fitted("fairsteer", acts)
    assert steerer.diagnostics[SITE]["detected"] == 1
    assert steerer.diagnostics[SITE]["neutral_detected"] == 0
    members = acts.groups("race").index[0].tolist()
    neutral = torch.stack([acts.tokens[i] for i in members]).mean(0)
    assert torch.equal(steerer.steer(neutral), neutral)
    assert not torch.equal(fitted("fairsteer", acts, threshold=0.0).steer(acts.tokens[0]), acts.tokens[0])


def aligned(identities=8):
    """Race in dimensions 0 to 3, gender in 4: what an imputation of dimensions is made for."""
    acts, axes = planted(identities=identities)
    return ggss.Activations([tokens @ axes for tokens in acts.tokens], acts.attributes, acts.contexts)


def test_sfid_imputes_as_written():
    acts = aligned()
    operator = fitted("sfid", acts, dimensions=4).operators[SITE]
    assert operator.dimensions.tolist() == [0, 1, 2, 3]
    rows = acts.pooled.numpy()
    forest = RandomForestClassifier(100, oob_score=True, random_state=42).fit(rows, acts.labels("race"))
    unsure = forest.oob_decision_function_.max(1) < 0.7
    assert 0.1 * len(rows) < unsure.sum() < len(rows)
    np.testing.assert_allclose(operator.values, rows[unsure][:, :4].mean(0), rtol=1e-5, atol=1e-6)
    steered = fitted("sfid", acts, dimensions=4).steer(acts.tokens[7], alpha=0.25)
    np.testing.assert_allclose(steered[:, 4:], acts.tokens[7][:, 4:])
    np.testing.assert_allclose(steered[:, :4], 0.75 * acts.tokens[7][:, :4] + 0.25 * operator.values, atol=1e-6)


def test_sfid_hides_an_attribute_that_has_dimensions_and_only_weakens_a_rotated_one():
    for acts, hidden in ((aligned(), True), (planted(identities=8)[0], False)):
        steerer = fitted("sfid", acts, dimensions=4)
        after = torch.stack([steerer.steer(tokens).mean(0) for tokens in acts.tokens]).numpy()
        score = LogisticRegression(max_iter=2000).fit(after[::2], acts.labels("race")[::2])
        assert (score.score(after[1::2], acts.labels("race")[1::2]) < 0.4) == hidden


def test_sfid_takes_the_least_confident_tenth_where_all_are_sure():
    sure = fitted("sfid", aligned(), dimensions=4, confidence=0.01)
    assert sure.diagnostics[SITE]["low_confidence_images"] == 8
    with pytest.raises(ggss.InputError, match="65 dimensions were to be imputed, but the tokens have 64"):
        fitted("sfid", aligned(2), dimensions=65)
    with pytest.raises(ggss.InputError, match="different numbers below 64, seen up to 64"):
        type(sure.operators[SITE])(torch.tensor([3, 64]), torch.zeros(2), 64)


def sparse_rows(features=12, width=16, count=3000, seed=0):
    """Rows that are sums of a few of some known directions."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.linalg.qr(torch.randn(width, width, generator=generator))[0][:features]
    active = torch.rand(count, features, generator=generator) < 2 / features
    return (active * (1 + torch.rand(count, features, generator=generator))) @ truth, truth


def test_the_autoencoder_finds_planted_directions():
    rows, truth = sparse_rows()
    found = train(rows, 24, 2, 400, 256, torch.Generator().manual_seed(1))
    cosines = (truth @ found.decoder.T).abs().max(1).values
    assert float(cosines.min()) > 0.9
    left = (rows - found.decoded(found.features(rows))).square().sum() / (rows - found.centre).square().sum()
    assert float(left) < 0.1
    assert float((found.features(rows) > 0).float().sum(1).mean()) == pytest.approx(2, abs=0.5)
    torch.testing.assert_close(found.decoder.norm(dim=1), torch.ones(24))


def test_the_autoencoders_features_are_subtracted_as_written():
    rows, _ = sparse_rows()
    found = train(rows, 24, 2, 50, 256, torch.Generator().manual_seed(1))
    chosen = [3, 7, 20]
    e, b, d, centre = (getattr(found, part).double().numpy() for part in ("encoder", "bias", "decoder", "centre"))
    made = switched_off(found, torch.tensor(chosen))
    steered = operator.apply(made, rows[:40], torch.full((40, 1), 0.6)).rows
    moved = 0
    for h, seen in zip(rows[:40].double().numpy(), steered, strict=True):
        activations = np.maximum(e @ ((h - centre) / found.scale) + b, 0)
        activations[activations <= found.threshold] = 0
        taken = sum(found.scale * activations[j] * d[j] for j in chosen)
        moved += bool(np.any(taken))
        np.testing.assert_allclose(seen, h - 0.6 * taken, atol=1e-5)
    assert 5 < moved < 40


def test_a_features_separation_is_that_of_an_analysis_of_variance():
    table = torch.randn(7, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    table[:, :, 2] += torch.arange(4)
    table[:, :, 4] = 1
    flat = (table - table.mean(1, keepdim=True)).reshape(28, 5)[:, :4].numpy()
    f, _ = f_classif(flat, np.tile(np.arange(4), 7))
    expected = f * 3 / (f * 3 + 24)  # eta squared from F with 3 and 24 degrees of freedom
    seen = separations(table)
    np.testing.assert_allclose(seen[:4], expected, rtol=1e-9)
    assert float(seen[4]) == 0
    assert int(seen.argmax()) == 2


def test_sae_hides_an_attribute_that_has_features():
    """Each value has a direction that is active in some tokens of its images, among directions that anyone has."""
    generator = torch.Generator().manual_seed(2)
    axes = torch.linalg.qr(torch.randn(24, 24, generator=generator))[0]
    tokens, attributes, contexts = [], [], []
    for image in range(120):
        active = torch.rand(16, 24, generator=generator) < 0.08
        active[:, :3] = False
        active[:, image % 3] = torch.rand(16, generator=generator) < 0.5
        active[:, 3] |= ~active.any(1)  # a token that is zero would not count
        tokens.append((active * (1 + torch.rand(16, 24, generator=generator))) @ axes)
        attributes.append({"race": "abc"[image % 3]})
        contexts.append(image // 3)
    acts = ggss.Activations(tokens, attributes, contexts)
    steerer = fitted("sae", acts, features=48, top=2)
    after = torch.stack([steerer.steer(own).mean(0) for own in acts.tokens])
    labels = acts.labels("race")
    for rows, readable in ((acts.pooled, True), (after, False)):
        probe = LogisticRegression(max_iter=2000).fit(rows[:60].numpy(), labels[:60])
        assert (probe.score(rows[60:].numpy(), labels[60:]) > 0.7) == readable
    others = (after - acts.pooled) @ axes[:3].T
    moved = (after - acts.pooled).square().sum()
    assert float(others.square().sum() / moved) > 0.8


def test_no_feature_separates_labels_that_mean_nothing():
    acts, _ = planted(identities=6)
    order = torch.randperm(len(acts), generator=torch.Generator().manual_seed(3)).tolist()
    mixed = ggss.Activations([acts.tokens[i] for i in order], acts.attributes, acts.contexts)
    with pytest.raises(ggss.InputError, match=r"no feature of 32 separates \('amber', .*lower separation"):
        fitted("sae", mixed, features=32, separation=0.7, steps=200)
    with pytest.raises(ggss.InputError, match="top = 8 active features of 8"):
        fitted("sae", acts, features=8)
