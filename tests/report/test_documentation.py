"""Technical documentation: what was measured stands under its heading, and all else says that it is missing."""

import re
from dataclasses import replace

import pytest

import invented_study as invented
from ggss.analysis import compare_all, verdict
from ggss.analysis.selection import ComparedTasks
from ggss.errors import InputError
from ggss.report import documentation
from ggss.report.documentation import measured_tables, render
from ggss.report.material import Missing, of_results, of_runs
from test_comparison import STATISTICS, STEERED, runs

TASKS = ("mcq", "nurse-doctor", "smallstar")
YOURS = "**To be written by you"


@pytest.fixture(scope="module")
def study():
    measures = [{"tasks": ["recognition-race"], "at": "all"}]
    plan = invented.plan(models=[invented.QWEN], methods=["none", "ggss"], alphas=[1.0], measures=measures)
    missing, notes = [Missing(invented.QWEN, "ggss", "the rest")], {(invented.QWEN, "ggss"): ["few people"]}
    return of_results(invented.results(plan), missing=missing, notes=notes)


@pytest.fixture(scope="module")
def text(study):
    return render(study)


def sections(text: str) -> dict[str, str]:
    """By number, what stands under a heading."""
    parts = re.split(r"^#{2,3} ([\d.]+?)\.? .*$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_heading_has_something_under_it_and_says_what_is_missing(text):
    parts = sections(text)
    assert [number for number in parts if "." not in number] == [str(n) for n in range(1, 10)]
    assert all(body.strip() for number, body in parts.items() if number not in ("2", "3")), "these have parts"
    filled_in_alone = {"2", "3", "3.1", "3.2"}
    assert {number for number, body in parts.items() if YOURS not in body} == filled_in_alone
    assert text.index("no legal advice") < text.index("## 1")


def test_data_hashes_warnings_and_gaps_are_filled_in(study, text):
    parts = sections(text)
    assert "| MCQ ×10³ |" in parts["2.4"]
    assert "amber 32" in parts["2.4"]
    assert "few people" in parts["2.4"]
    assert study.hashes["answers"] in parts["2.7"]
    assert study.hashes["answers"] in parts["6"]
    assert "the rest" in text
    assert "GGSS of race and gender at strength 1" in parts["2.1"]


def test_numbers_and_verdicts_are_those_of_compare():
    before, after = runs(0.9, tasks=TASKS), runs(0.1, seed=1, tasks=TASKS, source=STEERED)
    tasks = ComparedTasks.of(list(compare_all(before, after, STATISTICS).values()))
    tables = {table.name: table for table in measured_tables(of_runs(before, after, STATISTICS))}
    words = {name: [row.cells[-1] for row in table.rows] for name, table in tables.items()}
    assert words["bias"] == [verdict.of_bias(task, tasks.p_holm(task)).words for task in tasks.bias]
    assert words["capability"] == [
        verdict.of_accuracy(task, task.accuracy(), tasks.p_holm(task)).words for task in tasks.capability
    ]
    flips = zip(tasks.flips, tasks.flips_holm, strict=True)
    assert words["flips"] == [verdict.of_flips(flip, p).words for flip, p in flips]
    assert "less bias" in words["bias"]
    bias = next(row for row in tables["bias"].rows if row.label.startswith("MCQ"))
    display = tasks.bias[0].before.display()
    assert bias.cells[0][0].value == pytest.approx(display.scale * tasks.bias[0].before.value())
    assert bias.cells[2][0].value == pytest.approx(tasks.bias[0].change().estimate)


def test_what_became_worse_is_among_the_limits():
    tasks = ("mcq",)
    before, after = runs(0.4, tasks=tasks), runs(0.95, seed=1, tasks=tasks, source=STEERED)
    limits = sections(render(of_runs(before, after)))["3.3"]
    assert "more bias" in limits
    better = sections(render(of_runs(runs(0.95, tasks=tasks), runs(0.4, tasks=tasks, source=STEERED))))["3.3"]
    assert "more bias" not in better


def test_one_run_is_measured_and_not_compared():
    alone = render(of_runs(runs(0.9, tasks=TASKS)))
    assert "nothing was steered" in sections(alone)["2.1"]
    assert "not compared" in sections(alone)["3.1"]
    assert "nothing is compared with a steered model" in sections(alone)["3.3"]
    steered = render(of_runs(runs(0.9, tasks=TASKS, source=STEERED)))
    assert "Only the steered model was measured: m, ggss of race at alpha 1" in sections(steered)["2.1"]


def test_text_from_outside_is_text():
    hostile = replace(runs(0.9, tasks=("mcq",))["mcq"].source, model="a|b <script>\n# heading")
    before = runs(0.9, tasks=("mcq",), source=hostile)
    out = render(of_runs(before, made_from="x\n## 1. Mine"))
    assert "<script" not in out.replace("\\<script", "")
    assert len(re.findall(r"^#+ ", out, re.MULTILINE)) == len(re.findall(r"^#+ ", render(of_runs(runs(0.9))), re.M))


def test_a_template_that_is_none_is_named():
    with pytest.raises(InputError, match=r"--template 'annex-4' is none: did you mean 'annex-iv'\?"):
        documentation.check_template("annex-4")


def test_the_same_material_gives_the_same_text(study, text):
    assert render(study) == text
    assert not re.search(r"\n\n\n", text)
