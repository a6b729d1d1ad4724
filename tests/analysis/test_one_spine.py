"""The same answers give the same numbers by every road: `probe`, `compare`, `study tables`, `world check`."""

from dataclasses import astuple

import pytest

import invented_study
from ggss.analysis import Measured, Run, Statistics, compare_all, records
from ggss.analysis.comparison import Comparison, sign_flip
from ggss.report.cells import Figures
from ggss.report.rendering import Figure
from ggss.report.tables import TABLES
from ggss.smallworld import demo
from ggss.stats import Interval
from ggss.study.results import Results
from invented_study import QWEN, answer

TASKS = ("mcq", "2afc", "nurse-doctor", "ceo")
CAPABILITY = {"mmstar": "race", "mme": "race"}  # measured under every steering: this one is looked at
ALPHA, OUTLIER = 1.0, 9_000_000


def say(cell, item, rng):
    """As invented, but one steered salary is far above everything that the unsteered model named."""
    given = answer(cell, item, rng)
    first = item is invented_study.ITEMS["ceo"][0]
    return str(OUTLIER) if cell.task == "ceo" and cell.method == "ggss" and first else given


@pytest.fixture(scope="module")
def results() -> Results:
    steering = {
        "race": {"discover_on": ["cook"], "tasks": ["mcq", "2afc"]},
        "gender": {"discover_on": ["cook"], "tasks": ["nurse-doctor", "ceo"]},
    }
    measures = [{"tasks": ["mmstar", "mme", "recognition-race"], "at": "all"}]
    study = invented_study.plan(methods=["none", "ggss"], models=[QWEN], steering=steering, measures=measures)
    return invented_study.results(study, say)


@pytest.fixture(scope="module")
def statistics(results) -> Statistics:
    return results.statistics


def run(results: Results, method: str, task: str) -> Run:
    found = results.run(QWEN, method, task, ALPHA, CAPABILITY.get(task))
    assert found
    return found


@pytest.fixture(scope="module")
def compared(results, statistics, tmp_path_factory) -> dict[str, Comparison]:
    """By way of two files, as `ggss compare` reads them."""
    folder = tmp_path_factory.mktemp("runs")
    for method in ("none", "ggss"):
        records.write([run(results, method, task) for task in results.plan.tasks], folder / f"{method}.jsonl")
    return compare_all(records.load(folder / "none.jsonl"), records.load(folder / "ggss.jsonl"), statistics)


def of_study(results: Results, task: str) -> Comparison:
    found = results.comparison(QWEN, "ggss", task, ALPHA, CAPABILITY.get(task))
    assert found
    return found


def numbers(interval: Interval | None) -> tuple:
    """All of an interval but its resamples."""
    return () if interval is None else astuple(interval)[:-1]


@pytest.mark.parametrize("task", TASKS)
def test_bias_by_files_and_by_study(results, compared, task):
    by_files, by_study = compared[task], of_study(results, task)
    assert by_files.before.value() == by_study.before.value()
    assert by_files.after.value() == by_study.after.value()
    assert numbers(by_files.value()) == numbers(by_study.value())
    assert numbers(by_files.change()) == numbers(by_study.change())
    assert numbers(by_files.corrected_change) == numbers(by_study.corrected_change)
    assert by_files.p == by_study.p
    assert by_files.change() is not None


@pytest.mark.parametrize("task", TASKS)
def test_bias_of_one_run_by_itself(results, statistics, compared, task):
    """`ggss probe` measures the unsteered run alone; a steered one is measured beside it."""
    before, after = run(results, "none", task), run(results, "ggss", task)
    alone = before.measured(statistics)
    assert isinstance(alone, Measured)
    assert alone.value() == compared[task].before.value() == of_study(results, task).before.value()
    assert numbers(alone.interval()) == numbers(of_study(results, task).before.interval())
    beside = after.measured(statistics, baseline=before)
    assert beside.value() == compared[task].after.value()
    assert numbers(beside.interval()) == numbers(compared[task].value()) == numbers(of_study(results, task).value())


@pytest.mark.parametrize("task", TASKS)
def test_bias_as_the_tables_print_it(results, compared, task):
    """The entries of a table are those numbers on the display's scale."""
    table = TABLES.get("main_results")(Figures(results))
    assert not isinstance(table, str)
    row = next(row for row in table.rows if row.label == "GGSS")
    value, change, *percentiles = row.cells[1 + results.tasks.index(task)]  # after `depends`
    found = compared[task]
    scale, wanted = found.after.display().scale, found.after.corrected()
    assert isinstance(value, Figure)
    assert (value.value, value.interval) == (scale * found.after.value(), (scale * wanted.low, scale * wanted.high))
    wanted = found.corrected_change
    assert wanted
    assert (change.value, change.interval) == (found.change().estimate, (wanted.low, wanted.high))
    for shown, over in zip(percentiles, ("identities", "items"), strict=True):
        wanted = found.change(over=over)
        assert (shown.value, shown.interval) == (wanted.estimate, (wanted.low, wanted.high))
    tests = TABLES.get("significance")(Figures(results))
    assert not isinstance(tests, str)
    p, _, by_item, _ = tests.rows[0].cells[1 + results.tasks.index(task)]
    assert p.value == compared[task].p
    assert by_item.value == sign_flip([compared[task]], over="items")


def test_bias_as_world_check_and_the_demo_measure_it(results, compared, monkeypatch):
    """They ask live; here the answers come from the same study."""
    monkeypatch.setattr(demo, "ask", lambda method, suite, task: run(results, method, task))
    before = {task: run(results, "none", task) for task in TASKS}
    found = demo.bias_changes(before, dict.fromkeys(("race", "gender"), "ggss"))
    assert list(found) == list(TASKS)
    for task, one in found.items():
        assert one.before.value() == compared[task].before.value()
        assert one.after.value() == compared[task].after.value()
        assert one.change().estimate == compared[task].change().estimate
        assert numbers(one.corrected_change) == numbers(compared[task].corrected_change)


@pytest.mark.parametrize("task", ["mmstar", "mme", "recognition-race"])
def test_right_answers_by_files_and_by_study(results, compared, task):
    by_files, by_study = compared[task], of_study(results, task)
    assert by_files.accuracy() == by_study.accuracy()
    assert by_files.detectable == by_study.detectable
    assert numbers(by_files.value()) == numbers(by_study.value())
    assert by_files.accuracy().after.estimate == pytest.approx(run(results, "ggss", task).measured().value())


def test_a_steered_salary_counts_no_more_than_the_largest_unsteered_one(results, statistics, compared):
    """The control: without the unsteered run there is no cap, and the outlier decides the number."""
    before, after = run(results, "none", "ceo"), run(results, "ggss", "ceo")
    largest = max(salary for salary in before.parsed.parsed if salary is not None)
    salaries = after.parsed.parsed
    assert salaries[0] == OUTLIER > largest

    def gap(paid):
        by_gender = {"man": [], "woman": []}
        for item, salary in zip(after.items, paid, strict=True):
            by_gender[item.attributes[0]["gender"]].append(salary)
        man, woman = (sum(own) / len(own) for own in by_gender.values())
        return man - woman

    capped = gap([min(salary, largest) for salary in salaries])
    assert compared["ceo"].after.value() == pytest.approx(capped)
    assert of_study(results, "ceo").after.value() == pytest.approx(capped)
    alone = after.measured(statistics).value()
    assert alone == pytest.approx(gap(salaries))
    assert alone > 10 * abs(capped)


def test_other_answers_give_other_numbers(results, compared):
    """The control of the whole file: the numbers are of the answers, not of the plan."""
    other = invented_study.results(results.plan, lambda cell, item, rng: say(cell._replace(alpha=0.25), item, rng))
    for task in TASKS:
        assert numbers(of_study(other, task).change()) != numbers(compared[task].change())
