"""Tables of a study with a third attribute: its name comes from the data, and every table is made."""

import csv

import pytest

import invented_study
from ggss.report.cells import Figures
from ggss.report.tables import TABLES, write
from invented_study import AGE, QWEN, STEERING, VALUES

METHODS = [
    "none",
    "prompt",
    "ggss",
    "inlp-spherical",
    "svd-pooled-euclidean",
    "leace-gated",
    "ggss-token-gate",
    "ggss-contrast",
    "pace",
]
RECOGNITION = [f"recognition-{attribute}" for attribute in VALUES]
MEASURES = [{"tasks": ["mmstar", "mme", *RECOGNITION], "at": "all"}]


def results(steering):
    first = next(iter(steering.values()))["tasks"][0]
    methods = [*METHODS, *invented_study.sensitivity(first), *invented_study.prompted(first)]
    return invented_study.results(invented_study.plan(methods=methods, steering=steering, measures=MEASURES))


@pytest.fixture(scope="module", params=["age alone", "age first", "age last"])
def age(request):
    steering = {
        "age alone": {"age": AGE},
        "age first": {"age": AGE, **STEERING},
        "age last": {**STEERING, "age": AGE},
    }
    return results(steering[request.param])


def test_every_table_is_made(age, tmp_path):
    done = write(age, tmp_path, show=False)
    assert set(done.left_out) == {"ceo_salary"}  # no plan here asks for it
    assert set(done.tables) == {*TABLES.names(), "results_report"} - {"ceo_salary"}
    with (tmp_path / "main_results.csv").open(encoding="utf-8") as stream:
        ggss = next(row for row in csv.DictReader(stream) if row["Method"] == "GGSS")
    found = age.comparison(QWEN, "ggss", "mcq-age", 1.0)
    assert float(ggss["qwen3-vl MCQ ×10³ (age)"]) == pytest.approx(1000 * found.after.value())
    assert float(ggss["qwen3-vl 2AFC (age)"]) > 0
    with (tmp_path / "alpha_dial.csv").open(encoding="utf-8") as stream:
        dial = list(csv.DictReader(stream))
    assert 0 < float(dial[0]["age recognition (%) ↑"]) < 100


def test_the_ablations_are_of_the_plans_own_attribute():
    figures = Figures(results({"age": AGE}))
    assert figures.ablated == "mcq-age"
    titles = {name: TABLES.get(name)(figures).title for name in TABLES.names() if name != "ceo_salary"}
    for name in ("component_ablation", "sensitivity", "prompt_invariance"):
        assert "MCQ age bias" in titles[name]
    assert not any(word in title for title in titles.values() for word in ("race", "gender"))
    calibration = TABLES.get("gate_calibration")(figures)
    assert "MMStar, age steering" in [column.name for column in calibration.columns]
    assert "the pictures that age was discovered on" in calibration.caption
    assert all(cell != "not run" for row in calibration.rows[:1] for cell in row.cells)


def test_captions_say_what_is_compared():
    caption = TABLES.get("main_results")(Figures(results({"age": AGE}))).caption
    assert "MCQ ×10³ (age): Jensen-Shannon divergence (bits) of the answers about each age group" in caption
    assert "2AFC (age): standard deviation over age groups of win rates" in caption


def test_recognition_pairs_every_steering_with_every_other_attribute():
    table = TABLES.get("recognition")(Figures(results({**STEERING, "age": AGE})))
    groups = list(dict.fromkeys(column.group for column in table.columns))
    assert groups == [
        f"{asked} recognition, {steered} steering"
        for steered in ("race", "gender", "age")
        for asked in ("race", "gender", "age")
        if asked != steered
    ]
    assert not any(cell == "not run" for row in table.rows for cell in row.cells)
