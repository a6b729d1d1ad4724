"""Sites inside the vision tower and the text model: found in every family, an image's rows and no others are steered,
and nothing that was encoded before is used unsteered."""

import pytest
import torch

import ggss
from ggss import InputError
from ggss.data.counterfactuals import Counterfactuals
from ggss.methods.spherical import Geodesic
from ggss.models.hooks import _tower_counts
from ggss.models.sites import check_layer, in_text, in_tower, is_layer, layer_counts, layer_path, layer_width
from ggss.probes.base import Item
from ggss.probes.steered_model import SteeredModel
from ggss.steering.attach import NeverFired
from ggss.steering.doctor import leak
from ggss.steering.steerer import Steerer
from noise_pictures import NoisePicture
from rounding import assert_same

QUESTION, LONGER = (
    "what colour is the hat ?",
    "which of the two is a nurse or doctor who earns more than this person ?",
)
SITES = ("vision-block0", "vision-block1", "lm-layer0", "lm-layer2")


def steerer_at(vlm, *sites, seed=0, images=False):
    """In random directions; images: one that must know the image of each row."""
    generator, operators = torch.Generator().manual_seed(seed), {}
    for site in sites:
        module = vlm.model.get_submodule(vlm.sites(site)[site])
        width = layer_width(vlm.model.config, site) if is_layer(site) else module.out_features
        frame = torch.linalg.qr(torch.randn(width, 4, generator=generator))[0]
        operators[site] = Geodesic(frame[:, 0].contiguous(), frame[:, 1:].contiguous(), 0.1, 0.1)
    return Steerer("ggss", "race", ("a", "b"), operators, source=vlm.describe())


def hidden(vlm, site, questions, images):
    """What the site's module gives out after all other hooks, and the ids of the prompts."""
    seen, ids = [], []
    module = vlm.model.get_submodule(vlm.sites(site)[site])
    hooks = [
        module.register_forward_hook(
            lambda _, __, out: seen.append((out[0] if isinstance(out, tuple) else out).clone())
        ),
        vlm.model.base_model.register_forward_pre_hook(
            lambda _, args, given: ids.append(args[0] if args else given["input_ids"]), with_kwargs=True
        ),
    ]
    try:
        vlm.logits(questions, images)
    finally:
        for hook in hooks:
            hook.remove()
    return seen[0], ids[0]


def test_every_family_has_its_blocks_and_layers(vlm):
    assert layer_counts(vlm.model.config) == {"lm-layer": 3, "vision-block": 2}
    for site, kind in (("lm-layer2", "DecoderLayer"), ("vision-block1", "")):
        module = vlm.model.get_submodule(vlm.sites(site)[site])
        assert kind in type(module).__name__
        assert ("language_model" in vlm.sites(site)[site]) == in_text(site) != in_tower(site)
    assert set(vlm.sites(["lm-layer0", "projection-mlp2"])) == {"lm-layer0", "projection-mlp2"}
    assert not any(in_text(site) or in_tower(site) for site in vlm.sites("all"))
    for absent, has in (("lm-layer3", "lm-layer0 to lm-layer2"), ("vision-block2", "vision-block0 to vision-block1")):
        with pytest.raises(InputError, match=has):
            vlm.sites(absent)
    for odd in ("lm-layer", "lm-layer01", "lm-layer-1", "vision-block٣"):
        with pytest.raises(InputError, match=f"no site '{odd}'"):
            vlm.sites(odd)


def test_a_block_whose_output_is_not_used_is_no_site(tiny):
    config = tiny("llava-vicuna").model.config
    config.vision_feature_layer = -2
    check_layer(config, "vision-block0")
    with pytest.raises(InputError, match="no site 'vision-block1'"):
        check_layer(config, "vision-block1")
    config.vision_feature_layer = [-2, 1]
    assert layer_counts(config)["vision-block"] == 1


@pytest.mark.parametrize("site", ["lm-layer0", "lm-layer2"])
def test_in_the_text_model_the_rows_of_images_are_steered_and_no_others(vlm, pictures, site):
    steerer = steerer_at(vlm, site)
    asked = [QUESTION, LONGER], [[pictures[0], pictures[2]], [pictures[1]]]  # padded on the left
    before, ids = hidden(vlm, site, *asked)
    image = ids == vlm.model.config.image_token_id
    with steerer.attach(vlm) as run:
        after, _ = hidden(vlm, site, *asked)
    assert (run.calls, run.tokens) == (1, int(image.sum()))
    assert_same(after[~image], before[~image])
    assert_same(after[image], steerer.steer(before[image]))
    assert (after[image] - before[image]).abs().amax(1).min() > 1e-4
    assert not image.all()
    assert image.any(1).all()


@pytest.mark.parametrize("site", SITES)
def test_it_reaches_the_answer_and_leaves_no_trace(vlm, pictures, site):
    before = vlm.logits([QUESTION], [pictures[:1]])
    for alpha in (0.0, 1.0):
        with steerer_at(vlm, site).attach(vlm, alpha=alpha) as run:
            moved = (vlm.logits([QUESTION], [pictures[:1]]) - before).abs().max()
        assert run.calls == 1
        # In the last layer an image's rows are only read by nobody: the answer is read off the last token.
        assert (moved > 1e-4) == (alpha == 1 and site != "lm-layer2")
    assert_same(vlm.logits([QUESTION], [pictures[:1]]), before)


@pytest.mark.parametrize("site", SITES)
def test_each_row_is_known_to_be_of_its_image(vlm, pictures, site):
    """A strength of its own for each image must change that image as it is changed alone."""
    steerer = steerer_at(vlm, site)
    asked = [QUESTION, LONGER], [[pictures[0]], [pictures[2]]]
    plain, whole = vlm.logits(*asked), {}
    for alphas in ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0)):
        with steerer.attach(vlm, alpha=torch.tensor(alphas)):
            whole[alphas] = vlm.logits(*asked)
    with steerer.attach(vlm):
        both = vlm.logits(*asked)
    assert_same(whole[1.0, 1.0], both)
    for alphas, own in whole.items():
        expected = torch.stack([both[i] if alpha else plain[i] for i, alpha in enumerate(alphas)])
        assert_same(own, expected)


@pytest.mark.parametrize("site", SITES)
def test_collected_rows_are_those_that_are_steered(vlm, pictures, site):
    alone = [vlm.layer_rows([picture], [site], QUESTION)[0][site] for picture in pictures]
    together = vlm.layer_rows(pictures, [site], QUESTION)
    for own, rows in zip(alone, together, strict=True):
        assert_same(rows[site], own)
    with steerer_at(vlm, site).attach(vlm) as run:
        vlm.answer([QUESTION], [[pictures[2]]], max_new_tokens=3)
    assert (run.calls, run.tokens) == (1, len(alone[2]))


def test_features_do_not_have_these_sites(vlm, pictures):
    features = vlm.encode(pictures[:1])
    for site in ("lm-layer0", "vision-block0"):
        with pytest.raises(InputError, match="do not have"):
            vlm.encode(pictures[:1], sites=[site])
        with pytest.raises(InputError, match="attach the steerer"):
            features[0].steered(steerer_at(vlm, site))
    with pytest.raises(InputError, match="encoded before"), steerer_at(vlm, "vision-block0").attach(vlm):
        vlm.answer([QUESTION], [features])
    with steerer_at(vlm, "lm-layer0").attach(vlm) as run:  # the text model still runs
        vlm.answer([QUESTION], [features])
    assert run.calls == 1


@pytest.mark.parametrize(
    "sites",
    [("vision-block0",), ("projection-mlp1",), ("lm-layer0",), ("vision-block0", "projection-mlp2", "lm-layer0")],
)
def test_a_steered_model_answers_as_the_live_one(vlm, pictures, sites):
    steerer, other = steerer_at(vlm, *sites), steerer_at(vlm, "projection-mlp2", seed=1)
    options = {"red": "red", "blue": "blue"}
    items = [Item(str(i), QUESTION, (NoisePicture(i),), ({},), str(i), options=options) for i in range(2)]
    items.append(Item("text", QUESTION, (), (), "text", options=options))
    model = SteeredModel.of(vlm).steered(other, 0.5, force=True).steered(steerer, 1.0, force=True)
    with other.attach(vlm, 0.5), steerer.attach(vlm):
        live = vlm.read([QUESTION] * 2, [[image] for image in pictures[:2]], [("red", "blue")] * 2)
    plain = vlm.read([QUESTION] * 2, [[image] for image in pictures[:2]], [("red", "blue")] * 2)
    for _ in range(2):  # from the cache too
        found = model.read_batch(items, 4)
        for own, one in zip(found, live, strict=False):
            assert own.probabilities == pytest.approx(one.probabilities, rel=1e-4)
    assert max(abs(a.probabilities[0] - b.probabilities[0]) for a, b in zip(live, plain, strict=True)) > 1e-4
    with pytest.raises(NeverFired), steerer.attach(vlm):
        vlm.answer([QUESTION], [[]])


def test_a_text_layer_without_input_ids_is_refused(vlm, pictures):
    steerer = steerer_at(vlm, "lm-layer0")
    embeds = torch.randn(1, 4, 64)
    for call in (vlm.model, vlm.model.base_model.language_model):
        with pytest.raises(InputError, match="not with inputs_embeds"), steerer.attach(vlm), torch.no_grad():
            call(inputs_embeds=embeds)


def test_collected_fitted_and_refused_on_another_text_model_where_that_matters(tiny, tmp_path):
    vlm = tiny("pixtral")
    faces = Counterfactuals(
        [NoisePicture(i, attributes={"race": "ab"[i % 2]}, context=(("identity", str(i // 2)),)) for i in range(12)]
    )
    acts = ggss.collect(vlm, faces, ["lm-layer0", "vision-block0"], cache=tmp_path, keep_tokens=True)
    for site in acts.sites:
        expected = vlm.layer_rows([faces.pictures[3].image()], [site], "Describe this image in detail.")[0][site]
        assert_same(acts.sites[site].tokens[3], expected)
        assert_same(acts.sites[site].pooled[3], expected.mean(0))
    steerers = {site: ggss.fit("ggss", acts.at(site), "race") for site in acts.sites}
    with torch.no_grad():
        vlm.model.base_model.language_model.layers[0].mlp.up_proj.weight.mul_(1.1)
    steerers["vision-block0"].check(vlm)
    with pytest.raises(InputError, match="text weights"):
        steerers["lm-layer0"].check(vlm)


@pytest.mark.parametrize(("site", "leaks"), [("vision-block0", False), ("vision-block1", True), ("lm-layer0", True)])
def test_the_leak_is_of_the_site(qwen, site, leaks):
    """Deepstack takes what block 0 gives out past the later blocks, and attention what layer 0 has read."""
    assert (leak(qwen, site) > 0.01) == leaks


def test_rows_that_cannot_be_told_apart_are_refused():
    tiles = {"pixel_values": torch.zeros(3, 3, 8, 8)}
    assert _tower_counts("vision-block0", [32, 16], torch.zeros(3, 17, 4), tiles) == [34, 17]
    assert _tower_counts("vision-block0", [6, 2], torch.zeros(1, 32, 4), tiles) == [24, 8]
    assert _tower_counts("vision-block0", [6, 2], torch.zeros(32, 4), {}) == [24, 8]
    padded = {"pixel_values": torch.zeros(2, 64, 8)}
    for counts, output, inputs in (
        ([30, 10], torch.zeros(2, 40, 4), padded),
        ([30, 10], torch.zeros(4, 40, 4), tiles | {"pixel_attention_mask": torch.ones(4)}),
        ([5, 2], torch.zeros(1, 32, 4), tiles),
    ):
        with pytest.raises(InputError, match="use one image at a time"):
            _tower_counts("vision-block0", counts, output, inputs)


def test_a_model_without_such_a_list_has_no_such_site(tiny):
    vlm = tiny("pixtral")
    vlm.model.config.text_config.num_hidden_layers = 7
    with pytest.raises(InputError, match="no list of 7 modules was found in the text model"):
        layer_path(vlm.model, "lm-layer0")
