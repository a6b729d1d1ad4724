"""The bench of planted tokens: what is planted is there, and where nothing is planted nothing is read or lost."""

from dataclasses import replace

import pytest
import torch

from experiments.bench import planted_page
from experiments.bench.planted_diagnostics import diagnostics
from experiments.bench.planted_tokens import (
    ATTRIBUTE,
    CONTENTS,
    VALUES,
    Directions,
    World,
    activations,
    judged,
    outcome,
)
from ggss.activations import SITE
from ggss.methods import registry
from ggss.steering.fitting import fit

ONE = World(parts=1)


def seeds(world: World, method: str, count: int = 4):
    """The mean outcome of a few seeds."""
    found = [outcome(replace(world, seed=seed), method) for seed in range(count)]
    return {name: sum(getattr(one, name) for one in found) / count for name in vars(found[0])}


def test_the_overlap_is_what_was_asked_for():
    for overlap in (0.0, 0.3, 0.9):
        found = Directions.draw(replace(ONE, overlap=overlap))
        plane = torch.linalg.svd(found.attribute[0] - found.attribute[0].mean(0))[2][: VALUES - 1]
        inside = (found.content[0] @ plane.T).square().sum(1) / found.content[0].square().sum(1)
        assert inside.tolist() == pytest.approx([overlap] * CONTENTS, abs=1e-6)


def test_before_steering_everything_is_read():
    found = seeds(ONE, registry.UNSTEERED)
    assert min(found["pooled"], found["all_tokens"], found["content"]) > 0.85
    assert found["displacement"] == 0


def test_without_an_attribute_probes_are_at_chance():
    found = seeds(replace(ONE, strength=0.0), registry.UNSTEERED)
    assert abs(found["pooled"] - 1 / VALUES) < 0.12
    assert abs(found["all_tokens"] - 1 / VALUES) < 0.12


def test_without_overlap_removal_costs_no_content_and_with_it_does():
    apart, both = (
        seeds(replace(ONE, overlap=overlap), registry.UNSTEERED)["content"]
        - seeds(replace(ONE, overlap=overlap), "svd-pooled-euclidean")["content"]
        for overlap in (0.0, 0.9)
    )
    assert abs(apart) < 0.03
    assert both > 0.1


def test_the_pooled_probe_misses_what_all_tokens_show():
    found = seeds(World(parts=4), "svd-pooled-euclidean")
    assert found["pooled"] < 0.7
    assert found["all_tokens"] > 0.9
    assert seeds(ONE, "svd-pooled-euclidean")["all_tokens"] < 0.5


def test_erasing_the_planted_plane_by_hand_hides_the_attribute():
    """A reference without a method: tokens without their component in the plane."""
    planted = Directions.draw(replace(ONE, spread=0.0))
    pictures = planted.pictures(40, 5, discovery=False)
    plane = torch.linalg.svd(planted.attribute[0] - planted.attribute[0].mean(0))[2][: VALUES - 1].float()
    cleaned = pictures.tokens - pictures.tokens @ plane.T @ plane
    assert judged(pictures, cleaned).all_tokens < 0.5
    assert judged(pictures, pictures.tokens).all_tokens > 0.9


def test_mislabelling_and_confounds_hurt():
    clean = seeds(ONE, "ggss-contrast")["pooled"]
    assert seeds(replace(ONE, confound=3.0), "ggss-contrast")["pooled"] > clean
    assert (
        seeds(replace(ONE, mislabelled=0.5, identities=8), "leace-spherical")["pooled"]
        > seeds(replace(ONE, identities=8), "leace-spherical")["pooled"]
    )


def test_a_refusal_is_shown_as_one():
    assert planted_page.measured(World(identities=4), "bend-euclidean", 1) is None


def test_quick_run_writes_page_and_picture(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(planted_page, "OVERLAPS", (0.0, 0.9))
    monkeypatch.setattr(planted_page, "IDENTITIES", (6, 8))
    monkeypatch.setattr(planted_page, "PARTS", (1,))
    planted_page.main(["--quick", "-o", str(tmp_path / "page.md")])
    text = (tmp_path / "page.md").read_text()
    for world in planted_page.WORLDS:
        assert f"### {world.capitalize()}" in text
    assert (tmp_path / "page.png").stat().st_size > 5_000
    assert capsys.readouterr().out.strip().endswith(text.strip())


def test_the_other_variance_that_a_projection_moves_is_that_in_its_subspace():
    acts = activations(Directions.draw(ONE).pictures(8, 1, discovery=True))
    steerer = fit("svd-pooled-euclidean", acts, attribute=ATTRIBUTE)
    found = diagnostics(steerer, acts, ATTRIBUTE)
    pooled = torch.stack([own.mean(0) for own in acts.tokens]).double()
    contexts = torch.tensor(acts.contexts)
    centres = torch.stack([pooled[contexts == one].mean(0) for one in contexts.unique()])
    inside = (centres - centres.mean(0)) @ steerer.operators[SITE].basis.double()
    share = float((inside**2).sum() / ((centres - centres.mean(0)) ** 2).sum())
    assert found["other variance moved"] == pytest.approx(share, rel=1e-4)
    assert found["displacement"] > 0
    nothing = diagnostics(fit("none", acts, attribute=ATTRIBUTE), acts, ATTRIBUTE)
    assert nothing["other variance moved"] == 0
    assert nothing["pooled probe after"] > 0.9
