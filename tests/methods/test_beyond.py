"""Beyond the paper: label-aware discovery, several attributes, all sites, a strength without a sweep."""

from dataclasses import replace

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score

import ggss
from ggss import sphere
from ggss.activations import Rows
from ggss.methods.diagnostics import principal_cosines
from ggss.methods.ggss import transport
from planted import planted
from rounding import assert_same

SITE = "projection-mlp2"


def accuracy(rows, labels):
    return cross_val_score(LogisticRegression(max_iter=2000), rows.numpy(), labels, cv=4).mean()


def after(steerer, acts, alpha=1.0):
    return torch.stack([steerer.steer(tokens, alpha=alpha).mean(0) for tokens in acts.tokens])


def test_transport_keeps_lengths_and_is_tangent():
    generator = torch.Generator().manual_seed(0)
    p, q = (sphere.normalize(torch.randn(5, 16, generator=generator, dtype=torch.float64)) for _ in range(2))
    v = torch.randn(5, 16, generator=generator, dtype=torch.float64)
    v = v - (v * p).sum(1, keepdim=True) * p
    moved = transport(p, q, v)
    torch.testing.assert_close((moved * q).sum(1), torch.zeros(5, dtype=torch.float64))
    torch.testing.assert_close(moved.norm(dim=1), v.norm(dim=1))
    # The direction of travel stays the direction of travel.
    torch.testing.assert_close(transport(p, q, sphere.log(p, q)), -sphere.log(q, p))
    torch.testing.assert_close(transport(q, p, moved), v)


def distracted(identities=8, seed=0):
    """Gender in axis 0; each image also differs from its siblings, by more, along axes 1 to 3 and without a sign."""
    generator = torch.Generator().manual_seed(seed)
    width, tokens, attributes = 48, [], []
    for _ in range(identities):
        person = torch.zeros(width)
        person[8:24] = 0.5 * torch.randn(16, generator=generator)
        for sign, gender in ((-0.5, "man"), (0.5, "woman")):
            row = 4 * torch.eye(width)[40] + person
            row[0] += sign
            row[1:4] += 0.9 * torch.randn(3, generator=generator)
            tokens.append(row[None])
            attributes.append({"gender": gender})
    return ggss.Activations(tokens, attributes, [i // 2 for i in range(2 * identities)])


def test_contrast_finds_the_attribute_where_other_variation_is_larger():
    acts = distracted(24)
    axis = torch.eye(48)[:, :1]
    found = {name: ggss.fit(name, acts, attribute="gender") for name in ("ggss", "ggss-contrast")}
    cosine = {name: float(principal_cosines(s.operators[SITE].basis, axis)[0]) for name, s in found.items()}
    assert cosine["ggss-contrast"] > 0.85
    assert cosine["ggss"] < 0.6
    stable = {name: min(s.diagnostics[SITE]["split_half_cosines"]) for name, s in found.items()}
    assert stable["ggss-contrast"] > stable["ggss"]


def test_contrast_agrees_with_ggss_where_nothing_distracts():
    acts, _ = planted()
    ours, theirs = (
        ggss.fit(name, acts, attribute="race").operators[SITE].basis for name in ("ggss-contrast", "ggss")
    )
    assert principal_cosines(ours, theirs).min() > 0.999
    with pytest.raises(ggss.InputError, match="k = 5 directions"):
        ggss.fit("ggss-contrast", acts, attribute="race", k=5)


def test_auto_brings_every_token_below_what_neutral_ones_have():
    acts, _ = planted(noise=0.3)
    steerer = ggss.fit("ggss-auto", acts, attribute="race")
    operator = steerer.operators[SITE]
    wide = replace(operator, neutral=0.1)
    rows = torch.cat(list(acts.tokens))
    before = magnitude(operator, rows)
    steered = replace(steerer, operators={SITE: wide}).steer(rows)
    left = magnitude(operator, steered)
    assert (before > 0.1).any()
    assert left.max() < 0.1 * 1.05
    quiet = before <= 0.1
    torch.testing.assert_close(steered[quiet], rows[quiet], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(left[~quiet], 0.1**2 / before[~quiet], rtol=0.05, atol=2e-3)


def magnitude(operator, rows):
    points = sphere.normalize(rows.double())
    return (sphere.log(operator.mu.double(), points) @ operator.basis.double()).norm(dim=1)


def test_autos_neutral_magnitude_is_that_of_the_contexts_centres():
    acts, _ = planted()
    steerer = ggss.fit("ggss-auto", acts, attribute="race")
    operator = steerer.operators[SITE]
    centres = sphere.frechet_mean(acts.groups("race").of(sphere.normalize(acts.pooled.double())))
    expected = magnitude(operator, centres).square().mean().sqrt()
    assert operator.neutral == pytest.approx(float(expected), rel=1e-4)
    # Here nothing but race lies in the subspace: the derived strength is nearly full removal.
    assert float(steerer.gate(torch.cat(list(acts.tokens))).mean()) > 0.95
    assert accuracy(after(steerer, acts), acts.labels("race")) < 0.4


def test_auto_holds_back_in_an_entangled_subspace():
    acts, axes = planted()
    people = torch.randn(12, generator=torch.Generator().manual_seed(1))
    mixed = [
        t + people[acts.contexts[i][1]] * axes[:, 0] for i, t in enumerate(acts.tokens)
    ]  # people differ there, too
    entangled = ggss.Activations(mixed, acts.attributes, acts.contexts)
    clean, held = (ggss.fit("ggss-auto", a, attribute="race") for a in (acts, entangled))
    assert held.operators[SITE].neutral > 5 * clean.operators[SITE].neutral
    rows = torch.cat(list(acts.tokens))
    assert held.gate(rows).mean() < 0.7 < clean.gate(rows).mean()


def test_several_attributes_give_their_own_subspaces_and_a_joint_one():
    acts, axes = planted(identities=8)
    steerer = ggss.fit("ggss", acts, attribute=("race", "gender"))
    assert steerer.operators[SITE].basis.shape == (64, 9)
    assert len(steerer.values) == 10
    kept = steerer.statistics[SITE]
    assert principal_cosines(kept["basis_race"], axes[:, :4]).min() > 0.99
    assert principal_cosines(kept["basis_gender"], axes[:, 4:5]).min() > 0.99
    cosines = steerer.diagnostics[SITE]["attribute_cosines"]
    assert [len(cosines["race"]), len(cosines["gender"])] == [4, 1]
    assert min(cosines["race"] + cosines["gender"]) > 0.98


@pytest.fixture(scope="module")
def pair():
    acts, _ = planted()
    return acts, *(ggss.fit("ggss", acts, attribute=a, floor=1.0) for a in ("race", "gender"))


def test_race_plus_gender_leaves_neither_readable(pair):
    acts, race, gender = pair
    both = race + gender
    assert (both.attribute, len(both.values)) == (("race", "gender"), 7)
    steered = after(both, acts)
    assert accuracy(steered, acts.labels("race")) < 0.35
    assert accuracy(steered, acts.labels("gender")) < 0.65
    assert accuracy(after(race, acts), acts.labels("gender")) > 0.95  # the control: one alone hides one
    assert accuracy(after(gender, acts), acts.labels("race")) > 0.95


def test_the_order_of_a_sum_does_not_matter(pair, tmp_path):
    acts, *_ = pair
    race, gender = (ggss.fit("ggss", acts, attribute=a) for a in ("race", "gender"))
    rows = torch.cat(list(acts.tokens))
    one, other = race + gender, gender + race
    torch.testing.assert_close(one.steer(rows), other.steer(rows), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        one.gate(rows), torch.maximum(race.gate(rows), gender.gate(rows)), rtol=1e-3, atol=1e-3
    )
    loaded = ggss.Steerer.from_pretrained(one.save_pretrained(tmp_path))
    assert loaded.content_hash == one.content_hash
    assert_same(loaded.steer(rows), one.steer(rows))
    torch.testing.assert_close(one.steer(rows).norm(dim=1), rows.norm(dim=1), rtol=1e-6, atol=0)


def test_with_open_gates_a_sum_is_ggss_in_the_union(pair):
    acts, race, gender = pair
    joint = (race + gender).operators[SITE]
    union = torch.linalg.qr(torch.cat([race.operators[SITE].basis, gender.operators[SITE].basis], 1))[0]
    alone = replace(race, operators={SITE: replace(race.operators[SITE], mu=joint.mu, basis=union)})
    rows = acts.tokens[0]
    torch.testing.assert_close(
        (race + gender).steer(rows, alpha=0.6), alone.steer(rows, alpha=0.6), rtol=1e-5, atol=1e-5
    )


def test_each_attribute_keeps_its_own_gate(pair):
    acts, *_ = pair
    race, gender = (ggss.fit("ggss", acts, attribute=a, floor=0.0) for a in ("race", "gender"))
    shut = replace(gender, operators={SITE: replace(gender.operators[SITE], gate_median=3.0, gate_std=0.01)})
    rows = torch.cat(list(acts.tokens))
    both, alone = (race + shut).steer(rows), race.steer(rows)
    assert (both - alone).norm(dim=1).mean() < 0.05 * (alone - rows).norm(dim=1).mean()


def test_three_attributes_add_up(pair):
    acts, race, gender = pair
    direction = torch.linalg.qr(
        torch.cat([race.operators[SITE].basis, gender.operators[SITE].basis, torch.eye(64)[:, :1]], 1)
    )
    age = replace(
        gender, attribute="age", operators={SITE: replace(gender.operators[SITE], basis=direction[0][:, -1:])}
    )
    everything = race + gender + age
    assert everything.operators[SITE].sizes.tolist() == [4, 1, 1]
    assert everything.attribute == ("race", "gender", "age")
    torch.testing.assert_close(
        everything.steer(acts.tokens[0]), (age + gender + race).steer(acts.tokens[0]), rtol=1e-4, atol=1e-4
    )


def test_sums_that_make_no_sense_are_refused(pair):
    acts, race, gender = pair
    with pytest.raises(ggss.InputError, match="share a direction"):
        _ = race + race
    with pytest.raises(ggss.InputError, match="only gated geodesic steerers can be combined"):
        _ = race + ggss.fit("inlp-euclidean", acts, attribute="gender", iterations=1)
    with pytest.raises(ggss.InputError, match="different models"):
        _ = race + replace(gender, source={"model": "another"})
    with pytest.raises(ggss.InputError, match="different sites"):
        _ = race + replace(gender, operators={"deepstack-0": gender.operators[SITE]})
    with pytest.raises(TypeError):
        _ = race + 1


@pytest.mark.parametrize("name", ["ggss", "inlp-spherical", "meandiff-lr-spherical", "bend-euclidean", "ggss-auto"])
def test_every_site_is_fitted_and_steered_with_its_own_numbers(name, tmp_path):
    first, second = planted(seed=0)[0], planted(width=80, seed=1)[0]
    sites = {SITE: Rows(first.pooled, first.tokens), "deepstack-0": Rows(second.pooled, second.tokens)}
    acts = ggss.Activations.from_rows(sites, first.attributes, first.contexts)
    both = ggss.fit(name, acts, attribute="race")
    for site, alone in ((SITE, first), ("deepstack-0", second)):
        expected = ggss.fit(name, alone, attribute="race").steer(alone.tokens[0])
        assert_same(both.steer(alone.tokens[0], site=site), expected)
    loaded = ggss.Steerer.from_pretrained(both.save_pretrained(tmp_path))
    assert loaded.content_hash == both.content_hash
    assert_same(loaded.steer(second.tokens[0], site="deepstack-0"), both.steer(second.tokens[0], site="deepstack-0"))
