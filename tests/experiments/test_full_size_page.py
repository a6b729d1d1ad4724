"""The page of the model of true size: what was measured is on it, and a goal counts as met only where it was."""

import json
import os
from dataclasses import replace

import pytest
from PIL import Image

import ggss
from experiments.bench.full_size_model import SIZES, saved
from experiments.bench.full_size_page import (
    ASK,
    BATCH,
    DOCTOR,
    PACE,
    PLAN,
    PRODUCTS,
    SERVE,
    STUDY,
    Step,
    judged,
    pace_section,
    section,
    with_section,
)

STEP = Step(DOCTOR, seconds=100.0, processor=150.0, peak=9_400_000_000, load=0.2, others=0.0, said="")
EXAMINED = {
    "healthy": True,
    "checks": [["alpha 0 changes nothing", True, "bit-identical"], ["something else", False, "it broke"]],
    "moved": 2.0,
    "leaks": {"projection-mlp2": 1.0, "all sites": 0.0},
}
BATCHED = {
    **{"questions": 2, "tokens": 64, "parameters": 4_800_000_000, "encoding": 3.0},
    **{"steering": 0.01, "seconds": 20.0, "identical": "that are bit-identical"},
}
SERVED = {"requests": 16, "seconds": 9.0, "steering": 0.0045, "share": 0.0005, "added": 0.001, "error": 0.002}
TIMES = {"bfloat16": 800.0, "whole": 250.0, "parts": 130.0, "float32": 120.0} | {
    **{"rows": 170, "inputs": 2560, "outputs": 9728}
}
SAID = {
    DOCTOR: json.dumps(EXAMINED),
    ASK: json.dumps({"unsteered": "yes", "steered": "yes"}),
    BATCH: json.dumps(BATCHED),
    SERVE: json.dumps(SERVED),
    PRODUCTS: json.dumps(TIMES),
    PLAN: "",
    STUDY: "some lines\n8 questions asked, 0 answered before; all in a/path",
}
REPORT = {name: replace(STEP, name=name, said=said) for name, said in SAID.items()}


def page(**other: Step | None) -> str:
    return section(SIZES["4b"], REPORT | {"build and save": STEP} | other)


@pytest.mark.parametrize(
    ("seconds", "processor", "others", "says"),
    [
        (100, 150, 0.0, "on a free machine: the goal of 2 minutes is met."),
        (130, 150, 0.0, "on a free machine: the goal of 2 minutes is **not met**."),
        (100, 150, 1.5, "the goal of 2 minutes is met all the same."),
        (500, 110, 1.5, "would be met even by one core."),
        (500, 130, 1.5, "should be met, but that was not measured."),
        (500, 10_000, 1.5, "would not be met either."),
    ],
)
def test_the_time_counts_on_a_free_machine_and_else_both_are_told(monkeypatch, seconds, processor, others, says):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    told = judged(replace(STEP, seconds=seconds, processor=processor, others=others))
    assert told.endswith(says)
    assert f"{seconds} s" in told
    assert (f"{processor} s" in told) == (seconds == 500)


def test_every_step_has_its_row_and_every_check_its_line():
    text = page()
    assert "| doctor | 100 s | 150 s | 9.4 GB | 0.2 | 0.0 cores |" in text
    assert "| products |" not in text
    assert "    - ok: alpha 0 changes nothing: bit-identical." in text
    assert "    - FAIL: something else: it broke." in text
    assert "projection-mlp2 silenced: 50.0%; all sites silenced: 0.0%" in text
    assert "**0.05%** (the goal of under 1% is met)" in text
    assert "- The study: 8 questions asked, 0 answered before." in text
    assert "a/path" not in text


def test_what_was_not_measured_or_not_met_says_so():
    slow = replace(STEP, said=json.dumps(BATCHED | {"steering": 1.0}))
    other = replace(STEP, said=json.dumps({"unsteered": "yes", "steered": "no"}))
    text = page(**{STUDY: None, BATCH: slow, ASK: other})
    assert f"| {STUDY} | not measured | | | | |" in text
    assert "The study:" not in text
    assert "**5%** (the goal of under 1% is **not met**)" in text
    assert "**NOT that of** the unsteered one" in text
    assert "a steered one +0.10% (95 % interval -0.29% to +0.49%; every strength its own)." in text
    assert "steering takes 4.5 ms of it, **0.05%**: the goal of under 1% is met.\n" in text
    unsure = replace(STEP, said=json.dumps(SERVED | {"error": 0.02}))
    assert "is met; the difference of whole requests is too unsteady to show it." in page(**{SERVE: unsure})
    dear = replace(STEP, said=json.dumps(SERVED | {"share": 0.02}))
    assert "**2%**: the goal of under 1% is **not met**" in page(**{SERVE: dear})


def test_of_a_model_too_slow_here_the_steps_left_out_are_named_with_their_cost():
    some = {name: None if name in (DOCTOR, STUDY, SERVE) else step for name, step in REPORT.items()}
    text = section(SIZES["llava-7b"], some)
    assert "## LLaVA-NeXT-7B\n" in text
    assert "one question about a picture of 1152 visual tokens takes" in text
    assert "doctor 7, serve, 17 requests 17, study run, 2 cells of 4 questions 8." in text
    whole = section(SIZES["llava-7b"], REPORT | {"build and save": STEP})
    assert "The doctor finds it healthy. It took 100 s.\n" in whole


def test_each_model_has_its_section_and_leaves_the_others_alone():
    one = with_section("", "4b", "four\n")
    both = with_section(one, "llava-7b", "seven\n")
    again = with_section(both, "4b", "again\n")
    assert one.startswith("# Models of true size")
    assert both.startswith(one)
    assert again == both.replace("four", "again")


@pytest.mark.parametrize("name", ["tiny", "tiny-llava"])
def test_a_model_of_each_class_is_saved_as_it_is_configured(name, tmp_path):
    saved(SIZES[name], tmp_path)
    vlm = ggss.load_vlm(str(tmp_path), dtype="bfloat16")
    assert str(vlm.model.config.dtype) == "torch.bfloat16"
    (features,) = vlm.encode([Image.new("RGB", (SIZES[name].side,) * 2)])
    tokens = {"tiny": 16, "tiny-llava": 3 * 16}  # LLaVA-NeXT: an overview and two tiles, padding and all
    assert len(features.rows["projection-mlp2"]) == tokens[name]


def test_discovery_with_pace_has_a_section_of_its_own():
    text = pace_section(SIZES["4b"], replace(STEP, name=PACE), 2_000_000)
    assert f"| {PACE} | 100 s | 150 s | 9.4 GB |" in text
    assert "Activations on disk afterwards: 2.0 MB." in text
    both = with_section(with_section("", "4b", page()), "4b pace", text)
    assert both.count("## PACE on Qwen3-VL-4B") == 1 == both.count("## Qwen3-VL-4B")
    assert with_section(both, "4b pace", text) == both
