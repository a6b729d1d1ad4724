"""A model goes to the accelerator in its own dtype, if nobody says otherwise; its memory is known without loading."""

import logging
import os
import subprocess
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig, AutoModelForImageTextToText

from ggss.errors import InputError
from ggss.models import load_vlm, placement, vlm
from ggss.models.placement import ModelSize, Placement, check_products, checkpoint_dtype, free_memory
from ggss.models.placement import placement as place


@pytest.fixture
def config(model_dir):
    return AutoConfig.from_pretrained(model_dir)


@pytest.fixture
def halved(config):
    config.dtype = torch.float16
    return config


@pytest.fixture
def gpu(monkeypatch):
    """A machine with a free accelerator of 24 GB; its memory can be changed."""
    here = SimpleNamespace(free=24e9)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 1)
    monkeypatch.setattr(torch.accelerator, "get_memory_info", lambda device: (int(here.free), int(24e9)))
    return here


def test_on_a_cpu_a_model_is_loaded_in_float32(halved):
    assert place(halved) == Placement("cpu", torch.float32)


def test_the_accelerator_is_used_with_the_checkpoint_s_dtype(halved, gpu):
    assert place(halved) == Placement("cuda:1", torch.float16)
    halved.dtype = "bfloat16"
    assert place(halved) == Placement("cuda:1", torch.bfloat16)


def test_what_the_user_says_wins(halved, gpu):
    assert place(halved, "float32", "cpu") == Placement("cpu", torch.float32)
    assert place(halved, torch.bfloat16, "cuda:0") == Placement("cuda:0", torch.bfloat16)
    assert place(halved, device="cpu").dtype == torch.float32
    assert place(halved, "auto", "cpu").dtype == torch.float16
    with pytest.raises(
        InputError,
        match=r"there is no dtype 'float12' for a model's weights: did you mean 'float.+'. there are float32",
    ):
        place(halved, "float12")


def test_a_model_that_does_not_fit_the_accelerator_is_spread(halved, gpu, caplog):
    gpu.free = ModelSize.of(halved).weights(torch.float16)  # not all of it is usable
    assert place(halved, name="org/model").device == "auto"
    assert "the weights of org/model" in caplog.text
    assert "--device auto" in caplog.text


def test_an_accelerator_that_does_not_tell_its_memory_is_used(halved, gpu, monkeypatch):
    def refuse(device):
        raise RuntimeError("not implemented")

    monkeypatch.setattr(torch.accelerator, "get_memory_info", refuse)
    assert place(halved).device == "cuda:1"


def test_on_a_cpu_bfloat16_only_where_float32_does_not_fit(halved, monkeypatch, caplog):
    needed = ModelSize.of(halved).weights(torch.float32)
    monkeypatch.setattr(placement, "free_memory", lambda device: needed)
    assert place(halved, name="org/model").dtype == torch.bfloat16
    assert "org/model needs" in caplog.text
    assert "is loaded in bfloat16" in caplog.text
    assert place(halved, "float32").dtype == torch.float32
    halved.dtype = torch.float32  # half of its digits would be lost
    halved.get_text_config().dtype = torch.float32
    assert place(halved).dtype == torch.float32


@pytest.mark.parametrize(
    ("dies", "expected"), [((), None), ((True,), placement.WITHOUT_AMX), ((True, True), InputError)]
)
def test_products_in_bfloat16_are_tried_in_another_process(monkeypatch, dies, expected):
    monkeypatch.delenv(placement.ISA, raising=False)
    codes = iter([*(-4 for _ in dies), 0])
    tried = []

    def run(command, env, capture_output):
        tried.append(env.get(placement.ISA))
        return SimpleNamespace(returncode=next(codes))

    monkeypatch.setattr(subprocess, "run", run)
    check_products.cache_clear()
    try:
        if expected is InputError:
            with pytest.raises(InputError, match="cannot compute in bfloat16"):
                check_products()
        else:
            check_products()
            assert os.environ.get(placement.ISA) == expected
        assert tried == [None, placement.WITHOUT_AMX][: len(tried)]
    finally:
        check_products.cache_clear()


def test_the_trial_passes_on_this_machine():
    assert placement._survives({placement.ISA: placement.WITHOUT_AMX})


@pytest.fixture
def options(monkeypatch):
    """What the loader passes to transformers; nothing is moved to a device that is not there."""
    seen = {}
    real = AutoModelForImageTextToText.from_pretrained

    def load(path, **given):
        seen.update(given)
        given["device_map"] = None
        for name in ("quantization_config", "attn_implementation"):
            given.pop(name, None)
        return real(path, **given)

    monkeypatch.setattr(vlm.AutoModelForImageTextToText, "from_pretrained", load)
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, where: seen.update(moved=where) or self)
    return seen


def test_transformers_is_told_all_of_it(model_dir, gpu, options):
    marker = object()
    load_vlm(model_dir, dtype="bfloat16", attention="eager", quantization_config=marker)
    assert options["dtype"] == torch.bfloat16
    assert options["device_map"] == "cuda:1"
    assert options["attn_implementation"] == "eager"
    assert options["quantization_config"] is marker


def test_without_accelerate_the_model_is_moved(model_dir, gpu, options, monkeypatch):
    monkeypatch.setattr(placement, "find_spec", lambda name: None)
    load_vlm(model_dir)
    assert options["device_map"] is None
    assert options["moved"] == "cuda:1"
    assert Placement("auto", torch.float32).device_map == "auto"  # transformers says what to install


def test_a_quantised_checkpoint_keeps_what_it_says(halved, gpu):
    halved.quantization_config = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    gpu.free = 1
    assert place(halved) == Placement("cuda:1", torch.float16)
    assert place(halved, device="cpu").dtype == torch.float16


def test_the_attention_is_what_was_asked_for(model_dir):
    assert load_vlm(model_dir, attention="eager").model.config._attn_implementation == "eager"


def test_weights_are_counted_without_loading_them(vlm, config):
    counted = ModelSize.of(config)
    assert counted.parameters == sum(parameter.numel() for parameter in vlm.model.parameters())
    assert counted.weights(torch.float32) == 4 * counted.parameters
    assert counted.context == 4096


def test_the_cache_of_a_prompt_is_as_large_as_its_keys_and_values(vlm, config, pictures):
    inputs = vlm._inputs.of_questions(["what colour is the hat ?"], [pictures[:1]])
    with torch.inference_mode():
        kept = vlm.model(**inputs, use_cache=True).past_key_values
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in kept.layers)
    assert ModelSize.of(config).cache(inputs["input_ids"].shape[1], torch.float32) == held


def test_the_batch_that_fits():
    counted = ModelSize(1000, 2, 8, 16, 4, 100)
    each = counted.question(10, torch.float16)
    free = 2000 + 3 * each
    assert counted.batch(10, torch.float16, round(free / placement.USABLE) + 1) == 3
    assert counted.batch(10, torch.float16, 100) == 0


def test_free_memory(gpu, monkeypatch):
    assert free_memory("cuda:1") == 24e9
    assert (free_memory("cpu") or 0) > 1e6


def test_a_checkpoint_s_dtype(config):
    for said, read in ((torch.bfloat16, torch.bfloat16), ("float16", torch.float16), (None, torch.float32)):
        config.dtype = said
        config.get_text_config().dtype = None
        assert checkpoint_dtype(config) == read


def test_nothing_is_said_of_an_ordinary_load(model_dir, caplog):
    with caplog.at_level(logging.INFO, "ggss"):
        load_vlm(model_dir)
    assert caplog.text == ""
