"""A chat template is a program from outside: what takes forever or writes without end is refused by name."""

import sys
import threading

import pytest

from ggss.errors import InputError
from ggss.models import prompts
from ggss.models.prompts import chat, conversation

LOOPS = "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}"
ENDLESS = "{% for i in range(9999) %}{{ 'x' * 9999 }}{% endfor %}"
MACRO = "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}"
REFUSED = {
    "a range": ("{% for i in range(1000000000) %}x{% endfor %}", "Range too big"),
    "a range of a power": ("{% for i in range(10**9) %}x{% endfor %}", r"it computes a power \(10 \*\* ...\)"),
    "a power": ("{{ (10)**(10**10) }}", r"it computes a power"),
    "loops": (LOOPS, r"stopped after 0.05 s of CPU time"),
    "output": (ENDLESS, "it wrote more than 1,000,000 characters"),
    "a text": ("{{ 'x' * 999999 * 999999999 }}", "it runs out of memory"),
    "a macro": (MACRO, "recursion"),
    "a number": ("{{ 1 / 0 }}", "division by zero"),
}


@pytest.fixture
def processor(tiny, monkeypatch):
    monkeypatch.setattr(prompts, "TEMPLATE_CHARACTERS", 1_000_000)
    return tiny("pixtral").processor


@pytest.mark.parametrize("name", REFUSED)
def test_a_template_without_bounds_is_refused_by_name(processor, name, monkeypatch):
    if name == "loops":
        monkeypatch.setattr(prompts, "TEMPLATE_SECONDS", 0.05)
    processor.chat_template, reason = REFUSED[name]
    with pytest.raises(InputError, match=f"(?s)this model's chat template .*{reason}"):
        chat(processor, "which ?", 1)
    with pytest.raises(InputError, match="this model's chat template"):
        conversation(processor, [("user", [None, "which ?"])])
    with pytest.raises(InputError, match="this model's chat template"):
        chat(processor, "which ?", 1, "A")


def test_the_limits_hold_in_every_thread(processor, monkeypatch):
    monkeypatch.setattr(prompts, "TEMPLATE_SECONDS", 0.05)
    processor.chat_template = LOOPS
    refused = []

    def ask():
        try:
            chat(processor, "which ?", 1)
        except InputError as error:
            refused.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert "of CPU time" in refused[0]


def test_whoever_traces_goes_on_tracing(processor):
    lines = []

    def tracer(frame, event, value):
        lines.append(event)

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        chat(processor, "which ?", 1)
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)


def test_two_stars_that_are_no_power_are_allowed(processor):
    processor.chat_template = "{% macro said(a) %}{{ a }}{% endmacro %}** 2 ** {{ said(**{'a': 'yes'}) }}"
    assert chat(processor, "which ?", 1) == "** 2 ** yes"
