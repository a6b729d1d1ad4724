"""Compiled, tuned, offloaded and split models: every hook fires, for every shape, and a model is known again."""

import threading

import pytest
import torch

from ggss import InputError
from ggss.models import Vlm, fingerprint
from ggss.models.hooks import eager
from ggss.models.identity import text_fingerprint, unwrapped
from ggss.steering.attach import NeverFired
from rounding import assert_same
from test_attachment import QUESTION, steerer_for
from test_layer_sites import steerer_at

accelerate = pytest.importorskip("accelerate")
peft = pytest.importorskip("peft")


def inputs_for(vlm, images):
    return vlm._inputs.of_questions([QUESTION] * len(images), [[image] for image in images])


@pytest.fixture(params=["method", "wrapper"])
def compiled(request, tiny):
    """A model whose projector is compiled, warmed by one picture; the backend needs no C++ compiler."""
    torch.compiler.reset()
    vlm = tiny("pixtral")
    projector = vlm.model.model.multi_modal_projector
    if request.param == "method":
        projector.compile(backend="eager")
    else:
        vlm.model.model.multi_modal_projector = torch.compile(projector, backend="eager")
    yield vlm
    torch.compiler.reset()


def test_a_compiled_model_is_steered_for_all_shapes_and_left_as_it_was(compiled, tiny, pictures):
    plain = tiny("pixtral")
    steerer = steerer_for(plain)
    seen, unseen = [[pictures[0]]], [[pictures[1]], [pictures[2]]]
    expected = [plain.logits([QUESTION] * len(own), own) for own in (seen, unseen)]
    with steerer.attach(plain):
        steered = [plain.logits([QUESTION] * len(own), own) for own in (seen, unseen)]
    compiled.logits([QUESTION], seen)  # from now on compiled code is there for this shape
    for _ in range(2):
        with steerer.attach(compiled) as run:
            for own, one in zip((seen, unseen), steered, strict=True):
                assert_same(compiled.logits([QUESTION] * len(own), own), one)
        assert run.calls == 2
        for own, one in zip((seen, unseen), expected, strict=True):
            assert_same(compiled.logits([QUESTION] * len(own), own), one)
    assert (steered[0] - expected[0]).abs().max() > 1e-2
    assert compiled.encode(pictures[:1])[0].rows.keys() == plain.encode(pictures[:1])[0].rows.keys()
    assert compiled.fingerprint == plain.fingerprint


def test_without_it_a_compiled_model_does_not_call_a_new_hook(tiny, pictures):
    """The control: this is what torch does, and what `eager` is for."""
    torch.compiler.reset()
    vlm, calls = tiny("pixtral"), []
    projector = vlm.model.model.multi_modal_projector
    projector.compile(backend="eager")
    vlm.logits([QUESTION], [pictures[:1]])
    hook = projector.linear_2.register_forward_hook(lambda *_: calls.append(1))
    vlm.logits([QUESTION], [pictures[:1]])
    assert not calls
    with eager():
        vlm.logits([QUESTION], [pictures[:1]])
    assert calls
    hook.remove()
    torch.compiler.reset()


def test_eager_blocks_of_threads_may_overlap():
    torch.compiler.reset()
    seen, twice = [], torch.compile(lambda x: x * 2, backend=lambda graph, _: seen.append(1) or graph.forward)
    first, second = eager(), eager()
    first.__enter__()
    thread = threading.Thread(target=second.__enter__)
    thread.start()
    thread.join()
    first.__exit__(None, None, None)
    twice(torch.ones(2))
    assert not seen  # the second block is still open
    second.__exit__(None, None, None)
    twice(torch.ones(2))
    assert seen


def test_the_wrapper_of_a_compiled_model_is_taken_off(tiny, pictures):
    vlm = tiny("pixtral")
    wrapped = torch.compile(vlm.model, backend="eager")
    assert unwrapped(wrapped) is vlm.model
    assert Vlm(wrapped, vlm.processor).model is vlm.model
    with steerer_for(vlm).attach(wrapped) as run:
        vlm.logits([QUESTION], [pictures[:1]])
    assert run.calls == 1
    with pytest.raises(InputError, match="a DataParallel is no"):
        unwrapped(torch.nn.DataParallel(vlm.model))


@pytest.mark.parametrize("only", [True, False])
def test_other_threads_are_steered_unless_it_is_for_this_one_only(vlm, pictures, only):
    steerer, found = steerer_for(vlm), {}
    plain = vlm.logits([QUESTION], [pictures[:1]])

    def work():
        found["there"] = vlm.logits([QUESTION], [pictures[:1]])
        found["features"] = vlm.encode(pictures[:1])

    with steerer.attach(vlm, alpha=torch.tensor([1.0]), only_this_thread=only) as run:
        here = vlm.logits([QUESTION], [pictures[:1]])
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert run.calls == (1 if only else 3)
    assert_same(found["there"], plain if only else here)
    assert bool(found["features"][0].under) != only
    assert (here - plain).abs().max() > 1e-2
    with pytest.raises(NeverFired), steerer.attach(vlm, only_this_thread=True):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()


def tuned(vlm, modules):
    torch.manual_seed(0)
    config = peft.LoraConfig(r=2, target_modules=modules, init_lora_weights=False)
    return peft.get_peft_model(vlm.model, config)


def test_lora_on_the_text_side_keeps_a_steerer(tiny, pictures):
    vlm = tiny("pixtral")
    steerer, text = steerer_for(vlm), text_fingerprint(vlm.model)
    model = tuned(vlm, r".*language_model.*q_proj")
    wrapped = Vlm(model, vlm.processor, vlm.name)
    with steerer.attach(model) as run, torch.no_grad():
        steered = model(**inputs_for(wrapped, pictures[:1])).logits
    assert run.calls == 1
    assert (model(**inputs_for(wrapped, pictures[:1])).logits - steered).abs().max() > 1e-3
    with steerer.attach(wrapped):
        assert_same(wrapped.logits([QUESTION], [pictures[:1]]), steered[:, -1].float())
    assert text_fingerprint(wrapped.model) != text
    with model.disable_adapter():
        assert text_fingerprint(wrapped.model) == text


def test_lora_on_the_vision_side_makes_another_model_while_it_is_on(tiny, pictures):
    vlm = tiny("pixtral")
    steerer, own = steerer_for(vlm), fingerprint(vlm.model)
    rows = vlm.encode(pictures[:1])[0].rows["projection-mlp2"]
    model = tuned(vlm, r".*multi_modal_projector.linear_2")
    wrapped = Vlm(model, vlm.processor, vlm.name)
    with pytest.raises(InputError, match="vision weights"), steerer.attach(model):
        pass
    on = fingerprint(wrapped.model)
    with model.disable_adapter():
        assert fingerprint(wrapped.model) == own
        assert_same(wrapped.encode(pictures[:1])[0].rows["projection-mlp2"], rows)
        with steerer.attach(wrapped) as run:
            wrapped.logits([QUESTION], [pictures[:1]])
        assert run.calls == 1
    assert on != own
    model.base_model.model.model.multi_modal_projector.linear_2.set_scale("default", 3.0)
    assert fingerprint(wrapped.model) not in (on, own)  # the same weights, used otherwise
    fitted = steerer_for(wrapped)
    before = wrapped.logits([QUESTION], [pictures[:1]])
    with fitted.attach(model) as run:
        assert (wrapped.logits([QUESTION], [pictures[:1]]) - before).abs().max() > 1e-3
    assert run.calls == 1


def test_learned_prompts_are_refused(tiny):
    vlm = tiny("pixtral")
    vlm.model.config.vocab_size = vlm.model.config.text_config.vocab_size
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2, token_dim=64, num_layers=3,
                                     num_attention_heads=8)  # fmt: skip
    with pytest.raises(InputError, match="learned prompts"):
        Vlm(peft.get_peft_model(vlm.model, config), vlm.processor)


# transformers 5.18 warns of the inputs' device, which accelerate sees to.
@pytest.mark.filterwarnings("ignore:You are calling .generate:UserWarning")
@pytest.mark.parametrize("name", ["pixtral", "qwen3-vl"])
@pytest.mark.parametrize("where", ["cpu", "disk"])
def test_a_model_whose_weights_are_elsewhere(tiny, pictures, tmp_path, name, where):
    plain, vlm = tiny(name), tiny(name)
    steerer = steerer_for(plain)
    with steerer.attach(plain):
        expected = plain.logits([QUESTION], [pictures[:1]])
        said = plain.answer([QUESTION], [pictures[:1]], max_new_tokens=3)
    if where == "cpu":
        accelerate.cpu_offload(vlm.model, execution_device="cpu")
    else:
        accelerate.disk_offload(vlm.model, tmp_path, execution_device="cpu")
    assert vlm.model.device.type == "meta"
    assert vlm.identity.parts["text weights"] == plain.identity.parts["text weights"]
    with steerer.attach(vlm) as run:  # which compares the weights of the vision path
        assert_same(vlm.logits([QUESTION], [pictures[:1]]), expected)
        assert vlm.answer([QUESTION], [pictures[:1]], max_new_tokens=3) == said
    assert run.calls == 2
    kept = [one.steered(steerer) for one in vlm.encode(pictures[:1])]
    assert_same(vlm.logits([QUESTION], [kept]), expected)


def test_a_weight_that_comes_too_late_is_named(tiny):
    vlm = tiny("llava-vicuna")
    accelerate.cpu_offload(vlm.model, execution_device="cpu")
    with pytest.raises(InputError, match="image_newline of this LlavaNextForConditionalGeneration is offloaded"):
        Vlm(vlm.model, vlm.processor)


def test_a_model_that_is_split_over_devices(tiny, pictures):
    """There is one processor here, so that the parts lie side by side; the hooks that move tensors are the same."""
    plain, vlm = tiny("pixtral"), tiny("pixtral")
    steerer = steerer_for(plain)
    with steerer.attach(plain):
        expected = plain.logits([QUESTION], [pictures[:1]])
    parts = {"model.vision_tower": "cpu", "model.multi_modal_projector": "cpu",
             "model.language_model": "cpu", "lm_head": "cpu"}  # fmt: skip
    vlm.model = accelerate.dispatch_model(vlm.model, parts, main_device="cpu", force_hooks=True)
    with steerer.attach(vlm) as run:
        assert_same(vlm.logits([QUESTION], [pictures[:1]]), expected)
    assert run.calls == 1


class EightBit(torch.nn.Linear):
    """As bitsandbytes' layer: a Linear by name and type, whose weights are integers with scales of their own."""

    def __init__(self, own):
        super().__init__(own.in_features, own.out_features)
        scale = own.weight.detach().abs().amax(1, keepdim=True) / 127
        self.weight = torch.nn.Parameter((own.weight / scale).round().to(torch.int8), requires_grad=False)
        self.bias = own.bias
        self.register_buffer("SCB", scale)

    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight.to(x.dtype) * self.SCB.to(x.dtype), self.bias)


def test_a_quantised_model_is_another_one_and_can_be_steered(tiny, pictures):
    plain, vlm = tiny("pixtral"), tiny("pixtral")
    projector = vlm.model.model.multi_modal_projector
    projector.linear_1, projector.linear_2 = EightBit(projector.linear_1), EightBit(projector.linear_2)
    with pytest.raises(InputError, match="vision weights"), steerer_for(plain).attach(vlm):
        pass
    before = vlm.logits([QUESTION], [pictures[:1]])
    with steerer_for(vlm).attach(vlm) as run:
        assert (vlm.logits([QUESTION], [pictures[:1]]) - before).abs().max() > 1e-3
    assert run.calls == 1


def test_a_bfloat16_checkpoint_is_known_in_float16(tiny):
    model = tiny("pixtral").model
    with torch.no_grad():  # numbers that float16 has only a few bits for
        model.model.multi_modal_projector.linear_2.bias.copy_(torch.logspace(-9, -3, 64, dtype=torch.float64))
    model.bfloat16()
    own = fingerprint(model)
    assert fingerprint(model.float()) == own
    assert fingerprint(model.half()) == own
    assert fingerprint(model.float()) == own
    with torch.no_grad():
        model.model.multi_modal_projector.linear_2.bias[63] *= 1.01
    assert fingerprint(model) != own


@pytest.mark.parametrize("site", ["vision-block0", "lm-layer0"])
@pytest.mark.parametrize("how", ["compiled", "offloaded", "split"])
def test_sites_inside_the_tower_and_the_text_model_fire_there_too(tiny, pictures, how, site):
    plain, vlm = tiny("pixtral"), tiny("pixtral")
    asked = [QUESTION], [pictures[:1]]
    steerer, before = steerer_at(plain, site), plain.logits(*asked)
    with steerer.attach(plain):
        expected = plain.logits(*asked)
    if how == "compiled":
        torch.compiler.reset()
        vlm.model.get_submodule(vlm.sites(site)[site]).compile(backend="eager")
        vlm.logits(*asked)  # from now on compiled code is there for this shape
    elif how == "offloaded":
        accelerate.cpu_offload(vlm.model, execution_device="cpu")
    else:
        parts = dict.fromkeys(("model.vision_tower", "model.multi_modal_projector", "lm_head"), "cpu")
        parts |= dict.fromkeys(
            (f"model.language_model.{own}" for own in ("embed_tokens", "norm", "rotary_emb")), "cpu"
        )
        parts |= {f"model.language_model.layers.{i}": "cpu" for i in range(3)}
        vlm.model = accelerate.dispatch_model(vlm.model, parts, main_device="cpu", force_hooks=True)
    with steerer.attach(vlm) as run:
        assert_same(vlm.logits(*asked), expected)
    assert run.calls == 1
    assert (expected - before).abs().max() > 1e-4
    assert_same(vlm.logits(*asked), before)
    torch.compiler.reset()


def test_an_adapter_of_the_text_model_makes_another_model_for_a_text_layer(tiny, pictures):
    vlm = tiny("pixtral")
    steerer = steerer_at(vlm, "lm-layer0")
    steerer.source["text_fingerprint"] = text_fingerprint(vlm.model)
    model = tuned(vlm, r".*language_model.*q_proj")
    wrapped = Vlm(model, vlm.processor, vlm.name)
    with pytest.raises(InputError, match="text weights"), steerer.attach(wrapped):
        pass
    with model.disable_adapter(), steerer.attach(model) as run:
        wrapped.logits([QUESTION], [pictures[:1]])
    assert run.calls == 1


@pytest.mark.parametrize("site", ["vision-block0", "projection-mlp2", "lm-layer0"])
def test_in_float16_it_fires_once_and_leaves_the_dtype(tiny, pictures, site):
    vlm = tiny("pixtral")
    vlm.model.half()
    seen = []
    before = vlm.logits([QUESTION], [pictures[:1]])
    with steerer_at(vlm, site).attach(vlm) as run:
        hook = vlm.model.get_submodule(vlm.sites(site)[site]).register_forward_hook(
            lambda _, __, out: seen.append((out[0] if isinstance(out, tuple) else out).dtype)
        )
        after = vlm.logits([QUESTION], [pictures[:1]])
        hook.remove()
    assert run.calls == 1
    assert seen == [torch.float16]
    assert (after - before).abs().max() > 1e-3


@pytest.mark.filterwarnings("ignore")  # torch is about to move its quantisation
def test_weights_that_are_packed_get_a_sentence(tiny):
    vlm = tiny("llava-vicuna")
    packed = torch.ao.quantization.quantize_dynamic(vlm.model, {torch.nn.Linear}, dtype=torch.qint8)
    with pytest.raises(InputError, match="quantize_dynamic packs weights"):
        _ = Vlm(packed, vlm.processor).identity
    with pytest.raises(InputError, match="quantize_dynamic packs weights"), steerer_for(vlm).attach(packed):
        pass
