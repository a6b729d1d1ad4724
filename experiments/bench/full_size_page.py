"""The page of `full_size`: what the steps of each model took, and whether they met their goals."""

import json
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from experiments.bench.full_size_model import Dimensions, LlavaNext

DOCTOR_GOAL, SHARE_GOAL = 120, 0.01  # seconds; of a batch's time
QUIET = 0.1  # of a CPU, used by others: then the time is that of a free machine

BUILD, DISCOVER, ASK, BATCH = "build and save", "discover, 4 pictures", "ask at alpha 0", "one probe batch"
DOCTOR, PRODUCTS, PLAN, STUDY = "doctor", "products", "study plan", "study run, 2 cells of 4 questions"
SERVE = "serve, 17 requests"
PACE = "discover --method pace, 16 pictures"


@dataclass(frozen=True)
class Step:
    """A command that was run.

    seconds: how long it took. processor: the time of all its threads. peak: the most memory it had, in bytes. load:
    the machine's load average of the minute before it. others: how many CPUs other work used meanwhile. said:
    what it printed.
    """

    name: str
    seconds: float
    processor: float
    peak: int
    load: float
    others: float
    said: str


Report = dict[str, Step | None]
"""The steps by name; None: not measured."""


HEAD = """# Models of true size

`make full-size` builds models with random weights in the dimensions of real ones, in bfloat16, and runs them through
every command. Their answers mean nothing; their time and memory do.

Times include starting Python and loading the weights. The CPU time is that of all threads together; it depends
less than the time on what else the machine does (threads that wait for each other sleep: `OMP_WAIT_POLICY=passive`).
The load is the machine's average of the minute before the step, in which the step before may have run; the last
column says how many cores other work used while the step ran.

There are two models, Qwen3-VL-4B and LLaVA-NeXT-7B; one that has no section below was not measured.
"""


def with_section(page: str, size: str, text: str) -> str:
    """The page with a model's section, in the place of the one that it had."""
    begin, end = f"<!-- {size} -->\n", f"<!-- end of {size} -->\n"
    before, found, rest = page.partition(begin)
    if not found:
        before, rest = (page or HEAD), ""
    return f"{before.rstrip()}\n\n{begin}{text}{end}{rest.partition(end)[2]}"


def section(size: Dimensions, report: Report) -> str:
    """What is told about one model."""
    rows = [_row(what, step) for what, step in report.items() if what != PRODUCTS]
    lines = [
        f"## {size.title}",
        "",
        f"{size.told[0].upper()}{size.told[1:]}.",
        "",
        f"Measured on {platform.processor() or platform.machine()}, {os.cpu_count()} cores{_lacks()}, without an "
        f"accelerator; torch {torch.__version__}.",
        "",
        "| step | time | CPU time | peak memory | load before | used by others meanwhile |",
        "| --- | --- | --- | --- | --- | --- |",
        *rows,
        "",
        *_examined(size, report),
        *(line for find in (_asked, _batch, _served, _studied, _products) for line in find(report)),
        *_left_out(size, report),
        "",
    ]
    return "\n".join(lines)


def pace_section(size: Dimensions, step: Step, kept: int) -> str:
    """What is told about discovery with PACE. kept: the bytes of activations on disk afterwards."""
    return "\n".join(
        [
            f"## PACE on {size.title}",
            "",
            "Pictures of noise again, so there is nothing to find. The statistics that PACE needs are gathered while "
            "pictures are encoded. How its fit grows is on the page of [performance](performance.md).",
            "",
            "| step | time | CPU time | peak memory | load before | used by others meanwhile |",
            "| --- | --- | --- | --- | --- | --- |",
            _row(PACE, step),
            "",
            f"Activations on disk afterwards: {kept / 1e6:.1f} MB.",
            "",
        ]
    )


def _row(name: str, step: Step | None) -> str:
    if step is None:
        return f"| {name} | not measured | | | | |"
    used = f"{step.seconds:.0f} s | {step.processor:.0f} s | {step.peak / 1e9:.1f} GB"
    return f"| {name} | {used} | {step.load:.1f} | {step.others:.1f} cores |"


def _lacks() -> str:
    """Without instructions for bfloat16 a product of matrices takes many times as long."""
    return "" if _instructions() else " that have no instructions for bfloat16"


def _instructions() -> bool:
    """Whether the processor has instructions for bfloat16; elsewhere than on Linux it is taken to have them."""
    told = Path("/proc/cpuinfo")
    return not told.exists() or "bf16" in told.read_text()


def _found(report: Report, name: str) -> dict[str, Any] | None:
    """What a step printed as JSON."""
    step = report[name]
    return None if step is None else json.loads(step.said)


def _examined(size: Dimensions, report: Report) -> list[str]:
    step, found = report[DOCTOR], _found(report, DOCTOR)
    if step is None or found is None:
        return []
    took = f"It took {step.seconds:.0f} s." if isinstance(size, LlavaNext) else judged(step)  # the goal is the 4B's
    lines = [f"- The doctor finds it {'healthy' if found['healthy'] else 'NOT healthy'}. {took}"]
    lines += [f"    - {'ok' if passed else 'FAIL'}: {what}: {seen}." for what, passed, seen in found["checks"]]
    leaks = "; ".join(f"{site} silenced: {leak / found['moved']:.1%}" for site, leak in found["leaks"].items())
    return [*lines, f"    - Of the difference that two pictures make in the logits there is left, {leaks}."]


def judged(step: Step) -> str:
    """Whether the doctor met its goal. On a machine with other work the time says little."""
    goal, cores = f"the goal of {DOCTOR_GOAL / 60:.0f} minutes", os.cpu_count() or 1
    if step.others <= QUIET:
        return f"It took {step.seconds:.0f} s on a free machine: {goal} is {_met(step.seconds <= DOCTOR_GOAL)}."
    took = f"It took {step.seconds:.0f} s while others used {step.others:.1f} of {cores} cores"
    if step.seconds <= DOCTOR_GOAL:
        return f"{took}: {goal} is met all the same."
    alone = step.processor / cores
    return (
        f"{took}, so {goal} was **not met** in that run. Its CPU time is {step.processor:.0f} s of one free "
        f"core, or {alone:.0f} s of {cores} if all of it can be shared among them: on a free machine {goal} "
        f"{_would(step.processor, cores)}."
    )


def _would(processor: float, cores: int) -> str:
    if processor <= DOCTOR_GOAL:
        return "would be met even by one core"
    return (
        "should be met, but that was not measured" if processor / cores <= DOCTOR_GOAL else "would not be met either"
    )


def _met(met: bool) -> str:
    return "met" if met else "**not met**"


def _asked(report: Report) -> list[str]:
    if (found := _found(report, ASK)) is None:
        return []
    same = "identical to" if found["unsteered"] == found["steered"] else "**NOT that of**"
    return [f"- Asked at alpha 0, the answer is {same} the unsteered one."]


def _batch(report: Report) -> list[str]:
    if (found := _found(report, BATCH)) is None:
        return []
    share = found["steering"] / found["seconds"]
    return [
        f"- It has {found['parameters'] / 1e9:.2f} billion weights, {2 * found['parameters'] / 1e9:.1f} GB.",
        f"- A batch of {_questions(found['questions'])} with {found['tokens']} visual tokens a picture: "
        f"{found['seconds']:.1f} s of CPU time, of which steering takes {1000 * found['steering']:.1f} ms, "
        f"**{_percent(share)}** (the goal of under {SHARE_GOAL:.0%} is {_met(share < SHARE_GOAL)}); encoding its "
        f"pictures took {found['encoding']:.1f} s.",
        f"- In features that are kept, alpha 0 gives logits {found['identical']}.",
    ]


def _questions(count: int) -> str:
    return "one question" if count == 1 else f"{count} questions"


def _percent(share: float) -> str:
    """With two digits, however small it is."""
    return f"{100 * share:.2g}%"


def _served(report: Report) -> list[str]:
    if (found := _found(report, SERVE)) is None:
        return []
    low, high = (found["added"] + sign * 1.96 * found["error"] for sign in (-1, 1))
    return [
        f"- Behind `ggss serve`, {found['requests']} requests one after the other, unsteered and steered in turn: an "
        f"unsteered one takes {found['seconds']:.1f} s of CPU time, a steered one {found['added']:+.2%} "
        f"(95 % interval {low:+.2%} to {high:+.2%}; every strength its own). By the server's own count, steering "
        f"takes {1000 * found['steering']:.1f} ms of it, **{_percent(found['share'])}**: the goal of under "
        f"{SHARE_GOAL:.0%} is {_met(found['share'] < SHARE_GOAL)}"
        + ("." if high < SHARE_GOAL else "; the difference of whole requests is too unsteady to show it.")
    ]


def _studied(report: Report) -> list[str]:
    if (step := report[STUDY]) is None:
        return []
    said = step.said.split("\n")[-1].split(";")[0]  # behind it there is a path
    return [f"- The study: {said}."]


def _products(report: Report) -> list[str]:
    """What the missing instructions cost."""
    if (found := _found(report, PRODUCTS)) is None:
        return []
    told = ", ".join(f"{found[name]:.0f} ms {how}" for name, how in HOW.items())
    shape = f"{found['rows']} rows with a matrix of {found['inputs']} x {found['outputs']}"
    lines = [f"- A product of {shape}, on one thread: {told}."]
    if not _instructions():
        lines.append(
            f"- So on this CPU bfloat16 products take {found['bfloat16'] / found['float32']:.1f} times as long "
            f"as float32 ones: all but {found['float32'] / found['bfloat16']:.0%} of the time in products is the "
            "missing instructions. All steps therefore convert each matrix for its product, in parts "
            "(`ggss.models.placement`)."
        )
    return lines


HOW = {
    "bfloat16": "in bfloat16",
    "whole": "converted to float32 first",
    "parts": "converted in parts, as ggss does",
    "float32": "in float32",
}


def _left_out(size: Dimensions, report: Report) -> list[str]:
    """Why steps of a model were not measured: the time that a question takes at least, at the rate of products."""
    missing = {step: count for step, count in QUESTIONS.items() if step in report and report[step] is None}
    if not missing or not isinstance(size, LlavaNext) or (found := _found(report, PRODUCTS)) is None:
        return []
    weights = size.layers * (4 * size.hidden**2 + 3 * size.hidden * size.intermediate)
    tokens = 2 * (size.side // size.patch) ** 2  # an overview and a tile: the fewest visual tokens of a picture
    rate = found["rows"] * found["inputs"] * found["outputs"] / (found["parts"] / 1000)
    asked = ", ".join(f"{step} {count}" for step, count in missing.items())
    return [
        f"- At the rate of products above, one question about a picture of {tokens} visual tokens takes "
        f"{weights * tokens / rate / 60:.0f} minutes of one core. Left out therefore, with the questions that they "
        f"ask: {asked}. `--whole` runs them."
    ]


# Prompts that pass through the text model. Of the doctor: two before, two under alpha 1, one with two pictures, and
# one for both pictures while the site is silenced.
QUESTIONS = {DOCTOR: 7, SERVE: 17, STUDY: 8}
