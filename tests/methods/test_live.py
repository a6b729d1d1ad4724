"""Methods on live models: image by image in a mixed batch, at every site, and equal to steering encoded features."""

import pytest
import torch

import ggss
from conftest import noise
from ggss.activations import Rows
from rounding import ABSOLUTE

QUESTION = "what colour hat ?"
LIVE = ["none", "prompt", "inlp-spherical", "meandiff-svm-euclidean", "meandiff-lr-spherical", "bend-spherical"]


def activations(vlm, sites, count=24):
    encoded = vlm.encode([noise(seed) for seed in range(count)], sites=sites)
    rows = {}
    for site in encoded[0].rows:
        tokens = [features.rows[site].float().cpu().clone() for features in encoded]
        rows[site] = Rows(torch.stack([t.mean(0) for t in tokens]), tokens)
    attributes = [{"gender": g} for _ in range(count // 2) for g in ("man", "woman")]
    return ggss.Activations.from_rows(rows, attributes, [i // 2 for i in range(count)], vlm.describe())


@pytest.mark.parametrize("name", ["bend-euclidean", "bend-spherical"])
def test_bend_steers_pictures_of_another_number_of_tokens(vlm, name):
    """As every LLaVA-NeXT image of the paper is: 2880 tokens, and references of 2048 at most."""
    acts = activations(vlm, "projection-mlp2").at("projection-mlp2")
    steerer = ggss.fit(name, acts, attribute="gender")
    (other,) = vlm.encode([noise(51, 128)])
    count = len(other.rows["projection-mlp2"])
    assert count not in {len(tokens) for tokens in acts.tokens}
    plain = vlm.logits([QUESTION], [[noise(51, 128)]])
    with steerer.attach(vlm, alpha=2.0) as run:
        live = vlm.logits([QUESTION], [[noise(51, 128)]])
    assert run.tokens >= count
    assert float((live - plain).abs().max()) > 1e-4


@pytest.mark.parametrize("name", LIVE)
def test_a_live_model_steers_as_features_do(vlm, name):
    acts = activations(vlm, "projection-mlp2").at("projection-mlp2")
    steerer = ggss.fit(name, acts, attribute="gender")
    pictures = [[noise(50)], [noise(51), noise(52)]]
    questions = [QUESTION, QUESTION]
    plain = vlm.logits(questions, pictures)
    with steerer.attach(vlm, alpha=2.0) as run:
        live = vlm.logits(questions, pictures)
    assert run.calls >= 1
    features = [[one.steered(steerer, alpha=2.0) for one in vlm.encode(own)] for own in pictures]
    torch.testing.assert_close(vlm.logits(questions, features), live, rtol=1e-3, atol=1e-4)
    changed = float((live - plain).abs().max())
    assert changed < 2 * ABSOLUTE if name in ("none", "prompt") else changed > 1e-4


def test_all_sites_of_a_family_in_one_artefact(qwen, tmp_path):
    acts = activations(qwen, "all")
    assert len(acts.sites) == 3
    steerer = ggss.fit("ggss", acts, attribute="gender")
    loaded = ggss.Steerer.from_pretrained(steerer.save_pretrained(tmp_path))
    assert list(loaded.operators) == list(acts.sites)
    bases = [operator.basis for operator in loaded.operators.values()]
    assert not torch.allclose(bases[0], bases[1])
    with loaded.attach(qwen) as run:
        qwen.logits([QUESTION], [[noise(60)]])
    assert run.calls == 3
