"""Steering live models of all four classes: fires once, at the right rows, and leaves nothing behind."""

import copy
import threading
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch

import ggss
from ggss import InputError
from ggss.methods.operator import Operator
from ggss.methods.spherical import Geodesic
from ggss.steering.attach import NeverFired
from ggss.steering.steerer import Steerer
from rounding import assert_same

QUESTION = "what colour is the hat ?"
SITE = "projection-mlp2"


def steerer_for(vlm, sites=SITE, seed=0, **gate):
    """A steerer in random directions, at the sites and widths of the model, that knows the model it is for."""
    generator = torch.Generator().manual_seed(seed)
    operators = {}
    for site, path in vlm.sites(sites).items():
        width = vlm.model.get_submodule(path).out_features
        frame = torch.linalg.qr(torch.randn(width, 4, generator=generator))[0]
        operators[site] = Geodesic(frame[:, 0].contiguous(), frame[:, 1:].contiguous(), 0.1, 0.1, **gate)
    return Steerer("ggss", "race", ("a", "b"), operators, source=vlm.describe())


def hooks_of(model):
    return [
        (name, len(m._forward_hooks), len(m._forward_pre_hooks), len(m._forward_hooks_always_called))
        for name, m in model.named_modules()
    ]


def state_of(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@contextmanager
def rows_at(vlm):
    """What the site's module gives out meanwhile, after the hooks that it has already."""
    seen = []
    module = vlm.model.get_submodule(vlm.sites()[SITE])
    hook = module.register_forward_hook(lambda _, __, output: seen.append(output.clone()))
    yield seen
    hook.remove()


@pytest.mark.parametrize("count", [1, 2])
def test_one_call_per_generate_and_every_token_counted(vlm, pictures, count):
    steerer = steerer_for(vlm)
    rows = sum(features.rows[SITE].shape[0] for features in vlm.encode(pictures[:count]))
    with steerer.attach(vlm.model) as run:
        vlm.answer([QUESTION], [pictures[:count]], max_new_tokens=4)
    assert (run.calls, run.tokens) == (1, rows)
    assert run.gate.shape == (rows,)
    assert ((run.gate >= 0.3) & (run.gate <= 1)).all()


def test_alpha_zero_leaves_every_bit_and_alpha_one_does_not(vlm, pictures):
    before = vlm.logits([QUESTION], [pictures[:1]])
    with steerer_for(vlm).attach(vlm.model, alpha=0.0) as run:
        assert_same(vlm.logits([QUESTION], [pictures[:1]]), before)
    assert run.calls == 1
    for alpha in (0.0, 1.0):
        with rows_at(vlm) as own, steerer_for(vlm).attach(vlm, alpha=alpha), rows_at(vlm) as steered:
            after = vlm.logits([QUESTION], [pictures[:1]])
        assert torch.equal(own[0], steered[0]) == (alpha == 0)
        assert ((after - before).abs().max() > 1e-3) == (alpha == 1)
    assert_same(vlm.logits([QUESTION], [pictures[:1]]), before)


@pytest.mark.parametrize("sites", [SITE, "projection-mlp1", "all"])
def test_steered_features_equal_the_live_hook(vlm, pictures, sites):
    steerer = steerer_for(vlm, sites)
    asked = [[pictures[0], pictures[2]], [pictures[1]]]
    with steerer.attach(vlm.model, alpha=0.8):
        live = vlm.logits([QUESTION, QUESTION], asked)
    encoded = iter(vlm.encode([pictures[0], pictures[2], pictures[1]], sites=list(steerer.operators)))
    kept = [[next(encoded).steered(steerer, 0.8) for _ in own] for own in asked]
    assert_same(vlm.logits([QUESTION, QUESTION], kept), live)


def test_one_alpha_per_image_reaches_the_right_image(vlm, pictures):
    steerer = steerer_for(vlm)
    asked = [[pictures[0], pictures[2]], [pictures[1]]]
    with steerer.attach(vlm.model, alpha=torch.tensor([0.0, 1.0, 0.0])):
        live = vlm.logits([QUESTION, QUESTION], asked)
    encoded = vlm.encode([pictures[0], pictures[2], pictures[1]])
    expected = vlm.logits([QUESTION, QUESTION], [[encoded[0], encoded[1].steered(steerer, 1.0)], [encoded[2]]])
    assert_same(live, expected)
    with (
        pytest.raises(InputError, match="2 alphas were given for 3 images"),
        steerer.attach(vlm.model, alpha=torch.tensor([1.0, 1.0])),
    ):
        vlm.logits([QUESTION, QUESTION], asked)


def test_the_model_is_untouched_after_an_exception(vlm, pictures):
    before = vlm.logits([QUESTION], [pictures[:1]])  # transformers' own hooks stay after the first call
    hooks, state = hooks_of(vlm.model), state_of(vlm.model)
    with pytest.raises(ZeroDivisionError), steerer_for(vlm).attach(vlm.model, alpha=torch.tensor([1.0])):
        vlm.logits([QUESTION], [pictures[:1]])
        raise ZeroDivisionError
    assert hooks_of(vlm.model) == hooks
    assert "get_image_features" not in vars(vlm.model.base_model)
    assert all(torch.equal(tensor, state[name]) for name, tensor in vlm.model.state_dict().items())
    assert_same(vlm.logits([QUESTION], [pictures[:1]]), before)


def test_a_failing_operator_leaves_no_hook(vlm, pictures):
    class Broken(Geodesic):
        kind = "broken"

        def __call__(self, *arguments):
            raise RuntimeError("broken")

    hooks = hooks_of(vlm.model)
    steerer = steerer_for(vlm)
    whole = steerer.operators[SITE]
    broken = replace(steerer, operators={SITE: Broken(**whole.tensors(), **whole.scalars())})
    with pytest.raises(RuntimeError, match="broken"), broken.attach(vlm.model):
        vlm.logits([QUESTION], [pictures[:1]])
    assert hooks_of(vlm.model) == hooks


def test_never_fired_is_an_error(vlm, pictures):
    with pytest.raises(NeverFired, match="never called it"), steerer_for(vlm).attach(vlm.model):
        pass


@pytest.mark.parametrize("before", [True, False])
def test_features_from_before_are_refused_even_beside_images(vlm, pictures, before):
    steerer, features = steerer_for(vlm), vlm.encode(pictures[:1])
    with steerer.attach(vlm.model):
        live = vlm.logits([QUESTION], [[pictures[0]]])
        if before:
            for asked in ([features], [[*features, pictures[1]]]):
                with pytest.raises(InputError, match="these features were encoded before"):
                    vlm.answer([QUESTION], asked, max_new_tokens=2)
        else:  # encoded while the steerer acts, they are steered
            assert_same(vlm.logits([QUESTION], [vlm.encode(pictures[:1])]), live)


def test_two_steerers_act_in_the_order_of_attaching(vlm, pictures):
    first, second = steerer_for(vlm, seed=1), steerer_for(vlm, seed=2)
    with first.attach(vlm.model), second.attach(vlm.model):
        live = vlm.logits([QUESTION], [pictures[:1]])
    features = vlm.encode(pictures[:1])[0]
    in_order = vlm.logits([QUESTION], [[features.steered(first, 1.0).steered(second, 1.0)]])
    reverse = vlm.logits([QUESTION], [[features.steered(second, 1.0).steered(first, 1.0)]])
    assert_same(live, in_order)
    assert (live - reverse).abs().max() > 1e-4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_models(tiny, pictures, dtype):
    vlm = tiny("pixtral")
    vlm.model.to(dtype).float()  # weights as a checkpoint in that dtype would have them
    steerer = steerer_for(vlm)
    vlm.model.to(dtype)
    with steerer.attach(vlm.model) as run:
        logits = vlm.logits([QUESTION], [pictures[:1]])
    assert run.calls == 1
    assert torch.isfinite(logits).all()


def test_threads_share_one_attached_model(vlm, pictures):
    steerer = steerer_for(vlm)
    alphas = torch.tensor([0.5])
    with steerer.attach(vlm.model, alpha=alphas):
        alone = [vlm.logits([QUESTION], [[picture]]) for picture in pictures[:2]]
        results = {}

        def work(i):
            results[i] = [vlm.logits([QUESTION], [[pictures[i]]]) for _ in range(5)]

        threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for i in range(2):
        for result in results[i]:
            assert_same(result, alone[i])
    assert (alone[0] - alone[1]).abs().max() > 1e-2  # the control: an image of the other thread would show


def test_a_model_put_in_place_by_device_map(tiny, pictures, tmp_path):
    vlm = tiny("llava-mistral")
    vlm.model.save_pretrained(tmp_path)
    vlm.processor.save_pretrained(tmp_path)
    mapped = ggss.load_vlm(tmp_path, device_map="cpu")
    steerer = steerer_for(vlm)
    with steerer.attach(vlm.model):
        expected = vlm.logits([QUESTION], [pictures[:1]])
    plain = vlm.logits([QUESTION], [pictures[:1]])
    state = mapped.model.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in vlm.model.state_dict().items())
    # The weights are the same to the bit, and yet lie elsewhere in memory: what is computed is the same to rounding.
    with steerer.attach(mapped.model):
        assert_same(mapped.logits([QUESTION], [pictures[:1]]), expected)
    assert (plain - expected).abs().max() > 1e-2  # the control: a steerer that did nothing would show


def test_another_model_width_or_site_is_refused(tiny, pictures):
    vlm, other, wide = tiny("llava-vicuna"), tiny("llava-vicuna", seed=1), tiny("llava-vicuna", width=128)
    steerer = steerer_for(vlm)
    with pytest.raises(InputError, match="vision weights: the steerer was made with"), steerer.attach(other.model):
        pass
    with (
        pytest.raises(InputError, match="the steerer has 64, the model 128"),
        steerer.attach(wide.model),
    ):
        pass
    with (
        pytest.raises(InputError, match="family: the steerer was made with LLaVA-NeXT, the model has Pixtral"),
        steerer.attach(tiny("pixtral").model),
    ):
        pass
    deep = steerer_for(tiny("qwen3-vl"), "all")
    with pytest.raises(InputError, match="site 'deepstack-0': the model has projection-mlp"), deep.attach(vlm.model):
        pass
    with steerer.attach(other.model, force=True) as run:
        other.answer([QUESTION], [pictures[:1]], max_new_tokens=2)
    assert run.calls == 1
    with pytest.raises(InputError, match="width"), steerer.attach(wide.model, force=True):
        pass


def test_bad_alpha_is_refused_before_anything_is_attached(vlm):
    hooks = hooks_of(vlm.model)
    for alpha in (float("nan"), -1.0, torch.tensor([1.0, float("inf")])):
        with pytest.raises(InputError), steerer_for(vlm).attach(vlm.model, alpha=alpha):
            pass
    assert hooks_of(vlm.model) == hooks


def test_an_operator_needs_a_kind_of_its_own():
    from ggss.methods.operator import register_kind

    with pytest.raises(ValueError, match="needs a kind of its own"):
        register_kind(type("Copy", (Operator,), {"kind": "geodesic"}))


@pytest.mark.parametrize("how", ["module", "parent", "forward", "hooks"])
def test_what_is_replaced_while_a_steerer_is_attached_is_told(tiny, pictures, how):
    vlm = tiny("llava-vicuna")
    parent, name = vlm.model.base_model.multi_modal_projector, "linear_2"
    before = getattr(parent, name)

    def replace():
        if how == "module":
            setattr(parent, name, copy.deepcopy(before))
        elif how == "parent":
            vlm.model.base_model.multi_modal_projector = copy.deepcopy(parent)
        elif how == "forward":
            before.forward = lambda rows: torch.nn.functional.linear(rows, before.weight, before.bias)
        else:
            before._forward_hooks.clear()

    try:
        with pytest.raises(InputError, match="was replaced or its hook removed"), steerer_for(vlm).attach(vlm, 1.0):
            vlm.answer(["which colour ?"], [pictures[:1]], 1)
            replace()
            vlm.answer(["which colour ?"], [pictures[:1]], 1)
    finally:
        vars(before).pop("forward", None)
        vlm.model.base_model.multi_modal_projector = parent
        setattr(parent, name, before)
    with steerer_for(vlm).attach(vlm, 1.0) as run:  # the control
        vlm.answer(["which colour ?"], [pictures[:1]], 1)
    assert run.calls == 1


def test_one_alpha_for_each_image_may_be_a_list(vlm, pictures):
    question, images = ["which colour ?"] * 2, [[picture] for picture in pictures[:2]]
    steerer = steerer_for(vlm)
    results = []
    for alpha in ([0.0, 1.0], (0.0, 1.0), torch.tensor([0.0, 1.0]), np.array([0.0, 1.0])):
        with steerer.attach(vlm, alpha):
            results.append(vlm.logits(question, images))
    assert all(torch.equal(results[0], other) for other in results[1:])
    with steerer.attach(vlm, 0.0):
        assert_same(vlm.logits(question, images)[0], results[0][0])


@pytest.mark.parametrize(
    "alpha",
    [
        torch.ones(6, 1),
        1j,
        torch.ones(2, dtype=torch.complex64),
        [],
        "strong",
        [[1.0]],
        True,
        [1.0, "a"],
        {"race": 1},
    ],
)
def test_what_is_no_strength_gets_a_sentence(vlm, alpha):
    with pytest.raises(InputError, match="alpha must be a number, or a list"), steerer_for(vlm).attach(vlm, alpha):
        pass
