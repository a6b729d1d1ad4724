"""Direct steering optimisation: its gradient is that of the bias, it lowers the bias, and it needs a live model."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import ggss
from conftest import noise
from ggss.methods.registry import Comparisons, LiveQuestion, PersonShown
from ggss.models.features import FeatureCache
from ggss.probes.steered_model import live_questions
from ggss.smallworld.demo import load_model
from ggss.smallworld.painter import town
from ggss.smallworld.suite import small_world
from ggss.study.plan import Plan
from ggss_rivals.dso import DsoOptions, _live, divergence, shrunk
from planted import planted

VALUES = ("amber", "coral", "jade")
OPTIONS = ("red", "blue", "green")
SITE = "projection-mlp2"
STUDY = Path(__file__).parents[2] / "studies" / "rivals.yaml"


def questions(vlm, count=6, values=VALUES):
    """One person each, a picture of noise with a brightness by value; and pairs of whom one is named."""
    pictures = [noise(seed).point(lambda x, k=k: int(x * (0.4 + 0.3 * k))) for seed in range(count) for k in range(3)]
    seen = vlm.encode(pictures, sites="all")
    found = [
        LiveQuestion("what colour hat ?", (one,), OPTIONS, (PersonShown("hat", values[k % 3], OPTIONS),))
        for k, one in enumerate(seen)
    ]
    said = ("chosen", "not chosen")
    return found + [
        LiveQuestion(
            "which of two earns more ?",
            (seen[3 * k + a], seen[3 * k + b]),
            ("yes", "no"),
            (
                PersonShown(f"{min(a, b)}{max(a, b)}", values[a], said),
                PersonShown(f"{min(a, b)}{max(a, b)}", values[b], said[::-1]),
            ),
        )
        for k in range(2)
        for a, b in ((0, 1), (1, 0), (2, 1), (1, 2))
    ]


def plain_bias(asked, probabilities):
    """The same from the definition, with dictionaries."""
    cells = {}
    for own, row in zip(asked, probabilities.tolist(), strict=True):
        for person in own.people:
            for option, outcome in enumerate(person.outcomes):
                cells.setdefault((person.question, outcome), {}).setdefault(person.value, []).append(row[option])
    found = []
    for by_value in cells.values():
        means = [np.mean(rows) for rows in by_value.values()]
        found += [abs(one - np.mean(means)) for one in means]
    return np.mean(found)


def invented():
    """Questions without pictures, and probabilities of their options."""
    generator = torch.Generator().manual_seed(3)
    asked = [
        LiveQuestion("", (), OPTIONS, (PersonShown(f"q{k % 2}", VALUES[k % 3], OPTIONS),)) for k in range(30)
    ] + [
        LiveQuestion("", (), ("yes", "no"), (PersonShown("pair", v, ("c", "n")), PersonShown("pair", w, ("n", "c"))))
        for v, w in (("amber", "jade"), ("jade", "amber"), ("amber", "jade"))
    ]
    probabilities = torch.randn(len(asked), 3, generator=generator, dtype=torch.float64).softmax(1)
    return [*asked, LiveQuestion("", (), OPTIONS)], torch.cat([probabilities, probabilities[:1]])


def test_the_expected_reward_has_the_gradient_of_the_bias():
    asked, probabilities = invented()
    compared = Comparisons.of(asked)
    probabilities.requires_grad_(True)
    bias = compared.bias(probabilities)
    assert float(bias.detach()) == pytest.approx(plain_bias(asked, probabilities.detach()), abs=1e-12)
    (wanted,) = torch.autograd.grad(bias, probabilities)
    torch.testing.assert_close(compared.rewards(probabilities.detach()), -wanted, rtol=0, atol=1e-12)
    assert not compared.rewards(probabilities.detach())[-1].any()  # nobody is compared there


@pytest.mark.parametrize(("name", "sites"), [("llava-vicuna", [SITE, "lm-layer0"]), ("qwen3-vl", "all")])
def test_the_gradient_through_the_model_is_that_of_finite_differences(tiny, name, sites):
    vlm = tiny(name)
    sites = list(vlm.sites(sites))
    live = _live(vlm, questions(vlm, 2), sites)
    numbers = list(range(len(live.questions)))
    generator = torch.Generator().manual_seed(1)
    rewards = torch.randn(len(numbers), 3, generator=generator)
    start = {site: 0.1 * torch.randn(2, 64, generator=generator) for site in sites}

    def objective(weights):
        return (live.probabilities(numbers, weights, 3)[0] * rewards).sum()

    weights = {site: own.clone().requires_grad_(True) for site, own in start.items()}
    found = torch.autograd.grad(objective(weights), list(weights.values()))
    for site, gradient in zip(sites, found, strict=True):
        along = gradient / gradient.norm()  # where the difference is largest beside rounding
        with torch.no_grad():
            ends = [float(objective(start | {site: start[site] + step * along})) for step in (0.02, -0.02)]
        assert (ends[0] - ends[1]) / 0.04 == pytest.approx(float(gradient.norm()), rel=0.02)
    assert not any(own.grad is not None for own in vlm.model.parameters())


def test_the_bias_goes_down_and_the_attached_steerer_does_what_was_learned(tiny, tmp_path):
    vlm = tiny("llava-vicuna")
    asked = questions(vlm)
    steerer = ggss.fit_live("dso", vlm, asked, "race", sites=[SITE, "lm-layer0"], passes=6, kl=1.0)
    seen = steerer.diagnostics[SITE]
    assert seen["bias_after"] < 0.6 * seen["bias_before"]
    assert steerer.values == VALUES
    loaded = ggss.Steerer.from_pretrained(steerer.save_pretrained(tmp_path))
    assert loaded.content_hash == steerer.content_hash
    weights = {site: torch.stack([own.scale, own.shift]) for site, own in loaded.operators.items()}
    with torch.no_grad():
        wanted = _live(vlm, asked, list(weights)).probabilities([0, 1], weights, 3)[0]
    steered = [own.images[0].steered(steerer.only_at([SITE])) for own in asked[:2]]
    with steerer.only_at(["lm-layer0"]).attach(vlm):
        read = vlm.read([own.prompt for own in asked[:2]], [[one] for one in steered], [OPTIONS] * 2, 1)
    np.testing.assert_allclose([one.probabilities for one in read], wanted, atol=1e-5)
    with torch.no_grad():  # what was learned from answers is for the text model that gave them
        vlm.model.base_model.language_model.layers[0].mlp.up_proj.weight.mul_(1.1)
    with pytest.raises(ggss.InputError, match="text weights: the steerer was made with"):
        loaded.only_at([SITE]).check(vlm)


def test_it_lowers_the_planted_bias_on_discovery_pictures():
    cache = FeatureCache(load_model("llava-vicuna"))
    faces = town().chosen(include={"occupation": ("cook", "teacher")})
    items = small_world(images=faces).items("mcq")
    asked = live_questions(cache, [item for item in items if item.question == "salary"][:60])
    found = ggss.fit_live("dso", cache.vlm, asked, "race", passes=3).diagnostics[SITE]
    assert found["bias_before"] > 0.05
    assert found["bias_after"] < 0.8 * found["bias_before"]


def test_nothing_moves_where_every_value_has_the_same_pictures(tiny):
    """The negative control: each picture is asked about once as each value, so there is nothing to learn."""
    vlm = tiny("llava-vicuna")
    alike = [
        replace(own, people=(PersonShown("hat", value, OPTIONS),))
        for own in questions(vlm, 2)[:6]
        for value in VALUES
    ]
    steerer = ggss.fit_live("dso", vlm, alike, "race", passes=2)
    assert steerer.diagnostics[SITE]["bias_before"] == pytest.approx(0, abs=1e-6)
    assert not steerer.operators[SITE].scale.any()
    assert not steerer.operators[SITE].shift.any()


def test_a_bound_keeps_the_answers_and_a_penalty_makes_zeros(tiny):
    vlm = tiny("llava-vicuna")
    asked = questions(vlm, 3)
    free = ggss.fit_live("dso", vlm, asked, "race", passes=4, kl=10.0).diagnostics[SITE]
    bound = ggss.fit_live("dso", vlm, asked, "race", passes=4, kl=free["kl"] / 10).diagnostics[SITE]
    assert bound["kl"] < free["kl"]
    sparse = ggss.fit_live("dso", vlm, asked, "race", passes=4, kl=10.0, l1=0.02).diagnostics[SITE]
    assert sparse["dimensions_used"] < free["dimensions_used"]
    assert shrunk(torch.tensor([-2.0, 0.5, 3.0]), torch.ones(3)).tolist() == [-1.0, 0.0, 2.0]
    logs = torch.randn(4, 5, generator=torch.Generator().manual_seed(0)).log_softmax(1)
    assert float(divergence(logs, logs)) == pytest.approx(0, abs=1e-7)


def test_it_cannot_be_fitted_without_the_model(tiny):
    acts, _ = planted(identities=4)
    with pytest.raises(ggss.InputError, match="learned from a live model's answers, not from activations"):
        ggss.fit("dso", acts, attribute="race")
    vlm = tiny("llava-vicuna")
    asked = questions(vlm, 2)
    with pytest.raises(ggss.InputError, match="ggss is fitted to activations"):
        ggss.fit_live("ggss", vlm, asked, "race")
    with pytest.raises(ggss.InputError, match="there are none"):
        ggss.fit_live("dso", vlm, [], "race")
    with pytest.raises(ggss.InputError, match="compare nobody"):
        ggss.fit_live("dso", vlm, [replace(own, people=()) for own in asked], "race")
    with pytest.raises(ggss.InputError, match="not at 'vision-block0'"):
        ggss.fit_live("dso", vlm, asked, "race", sites="vision-block0")
    with pytest.raises(ggss.InputError, match="not all single tokens"):
        ggss.fit_live("dso", vlm, [replace(asked[0], options=("red", "in this")), *asked], "race")
    assert DsoOptions().passes > 0


def test_a_plan_refuses_it():
    plan = Plan.load(STUDY).model_dump(mode="json")
    plan["methods"].append({"name": "dso"})
    with pytest.raises(ggss.InputError, match="'dso' learns from a live model's answers"):
        Plan.of(plan)
