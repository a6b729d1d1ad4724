"""The cover and the verdicts of a report: they are the analysis' own, and the cover counts what the tables show."""

import json
import sys
from dataclasses import replace

import pytest

import invented_study as invented
from ggss import cli
from ggss.analysis import Statistics, records
from ggss.analysis.selection import ComparedTasks
from ggss.report import charts, page, summary
from ggss.report.material import of_files, of_results, of_runs
from ggss.stats import Interval
from ggss.study.grid import Cell
from ggss.study.plan import Provenance
from page_reader import read

FAST = {"resamples": 200, "permutations": 2000}
TASKS = ("mcq", "nurse-doctor", "recognition-race", "mmstar")


def small(**changed):
    measures = [{"tasks": ["mmstar", "recognition-race"], "at": "all"}]
    chosen = {"models": [invented.QWEN], "measures": measures, "methods": ["none", "ggss"], "statistics": FAST}
    return invented.plan(**chosen | changed)


def asked(method, alpha, tasks=TASKS, say=invented.answer):
    attribute = "race" if method != "none" else ""
    return {task: invented.run(Cell(invented.QWEN, method, attribute, alpha, task), say) for task in tasks}


@pytest.fixture(scope="module")
def material():
    return of_runs(asked("none", 0.0), asked("ggss", 1.0), Statistics(permutations=2000))


@pytest.fixture(scope="module")
def judged(material):
    (model,) = summary.judged(material)
    return model


def test_verdicts_are_those_that_compare_prints(tmp_path, monkeypatch, capsys, judged, material):
    files = [tmp_path / "before.jsonl", tmp_path / "after.jsonl"]
    for runs, file in zip((asked("none", 0.0), asked("ggss", 1.0)), files, strict=True):
        records.write(runs.values(), file)
    monkeypatch.setattr(sys, "argv", ["ggss", "compare", *map(str, files), "--json"])
    cli.main()
    printed = json.loads(capsys.readouterr().out)
    (model,) = summary.judged(of_files(*files))
    for rows, told in ((model.bias, printed["bias"]), (model.accuracy, printed["capability"])):
        assert [row.pair.task for row in rows] == [row["task"] for row in told]
        assert [row.verdict.words for row in rows] == [row["verdict"]["words"] for row in told]
        assert [row.adjusted for row in rows] == pytest.approx([row["p_holm"] for row in told])
    flips = printed["flips"]
    assert [(row.pair.task, row.attribute) for row in model.dependence] == [
        (f["task"], f["attribute"]) for f in flips
    ]
    assert [row.verdict.words for row in model.dependence] == [f["verdict"]["words"] for f in flips]
    assert [row.adjusted for row in model.dependence] == pytest.approx([f["p_holm"] for f in flips])
    assert model.average.estimate == pytest.approx(printed["average"]["estimate"])
    assert model.adjusted == pytest.approx(printed["combined"])
    tasks = ComparedTasks.of([pair.comparison for pair in material.pairs])
    assert [row.adjusted for row in judged.bias] == pytest.approx(list(tasks.bias_holm))


def test_the_number_in_large_type_counts_people(material, judged):
    (race,) = summary.cover(material, [judged]).headlines
    mcq = next(pair for pair in material.pairs if pair.task == "mcq")
    for flips, run in zip(race.flips, (mcq.before, mcq.after), strict=True):
        alike: dict[tuple[str, ...], set[str]] = {}
        for item, text in zip(run.items, run.texts, strict=True):
            alike.setdefault((item.question, item.cluster, item.attributes[0]["gender"]), set()).add(text)
        assert race.cases == len(alike) == 2 * 2 * invented.PEOPLE
        assert flips == sum(len(texts) > 1 for texts in alike.values())
    assert race.attribute == "race", "gender is not steered, so its number is no headline"
    words = read(page.render(material)).one("section", id="cover").one("div", kind="headline").words
    before, after = (f"{100 * flips / race.cases:.0f} %" for flips in race.flips)
    assert f"The answer depended on race for {before} of people, steered for {after}" in words


def test_without_a_steered_run_there_is_one_number_for_each_attribute():
    found = of_runs(asked("none", 0.0))
    (model,) = summary.judged(found)
    cover = summary.cover(found, [model])
    assert [one.attribute for one in cover.headlines] == ["race", "gender"]
    assert all(len(one.flips) == 1 for one in cover.headlines)
    assert "whether steering would change this is not known" in cover.sentences[0].words
    assert not cover.compares
    assert {row.verdict.words for row in model.bias} == {"no steered run to compare with"}


def test_words_are_chosen_by_the_statistics(monkeypatch):
    """Steering that works, steering that harms, and steering that does nothing."""

    def study(left):
        monkeypatch.setattr(invented, "left", lambda cell: left if cell.method == "ggss" else 0.5)
        found = of_results(invented.results(small(measures=[])))  # eight people are enough for few tests only
        (model,) = summary.judged(found)
        return model, summary.cover(found, [model])

    (works, better), (harms, worse), (none, unsure) = map(study, (0.0, 1.0, 0.5))
    assert [model.verdict.kind for model in (works, harms, none)] == ["better", "worse", "inconclusive"]
    for model, cover in ((works, better), (harms, worse), (none, unsure)):
        kinds = [row.verdict.kind for row in model.bias]
        assert cover.sentences[0].words.startswith(
            f"Less bias in {kinds.count('better')} of 3 tasks under GGSS at α = "
        )
        assert ("More bias" in cover.sentences[0].words) == ("worse" in kinds)
    assert "better" in [row.verdict.kind for row in works.bias]
    assert worse.sentences[0].kind == "worse"
    assert (unsure.sentences[0].kind, unsure.sentences[0].words[:21]) == ("inconclusive", "Less bias in 0 of 3 t")


def test_a_task_whose_bias_rose_is_named_on_the_cover(monkeypatch, material, judged):
    rows = [replace(row, verdict=summary.Verdict("better", "less bias")) for row in judged.bias]
    better = summary.cover(material, [replace(judged, bias=tuple(rows))]).sentences[0]
    assert (better.kind, "More bias" in better.words) == ("better", False)
    rows[1] = replace(rows[1], verdict=summary.Verdict("worse", "more bias"))
    worse = summary.cover(material, [replace(judged, bias=tuple(rows))]).sentences[0]
    assert worse.kind == "worse"
    assert f"More bias: {rows[1].pair.title}." in worse.words


def spilling(cell, item, rng):
    """Steering that makes the answers depend on gender, before which they did not."""
    if cell.task == "mcq":
        ranks = [invented.VALUES[name].index(item.attributes[0][name]) for name in ("race", "gender")]
        return "ABCD"[ranks[1]] if cell.method == "ggss" else "ABCD"[ranks[0] % 4]
    return invented.answer(cell, item, rng)


def test_a_spill_over_is_marked_and_has_a_remedy():
    before, after = (asked(*way, tasks=("mcq",), say=spilling) for way in (("none", 0.0), ("ggss", 1.0)))
    found = of_runs(before, after, Statistics(permutations=2000))
    (model,) = summary.judged(found)
    kinds = {row.attribute: (row.verdict.kind, row.is_steered, row.spills_over) for row in model.dependence}
    assert kinds == {"race": ("better", True, False), "gender": ("worse", False, True)}
    seen = read(page.render(found))
    warning = seen.one("section", id="bias").one("p", kind="warn").words
    assert "depend more on gender, which is not steered (0 → 100 %)" in warning
    assert "ggss discover --attribute race,gender steers both" in warning
    assert "ggss discover --attribute race,gender" in seen.one("section", id="cover").words
    cells = seen.one("table", kind="heat").all("td", kind="steered")
    assert [cell.words.split(" %")[0] for cell in cells] == ["100 → 0"]
    calm = asked("ggss", 1.0, tasks=("mcq",), say=lambda cell, item, rng: "A")
    quiet = read(page.render(of_runs(before, calm, Statistics(permutations=2000))))
    assert not quiet.one("section", id="bias").all("p", kind="warn")
    assert "no answer depends significantly more on it" in quiet.one("section", id="cover").words


def remedied(cell, item, rng):
    return "A" if cell.task == "mcq" and cell.attribute == "race x gender" else spilling(cell, item, rng)


def test_the_steering_of_both_is_a_row_of_the_heat_table_and_not_of_the_cover():
    steering = invented.STEERING | {"race": {"tasks": ["mcq"]}}  # eight people are enough for few tests only
    together = {"race x gender": {"tasks": ["mcq", "mmstar"], "methods": ["ggss"], "alphas": [0.5]}}
    alone, both = (of_results(invented.results(small(steering=steering | more), remedied)) for more in ({}, together))
    (before,), (model,) = map(summary.judged, (alone, both))
    covers = summary.cover(alone, [before]), summary.cover(both, [model])
    shown = [([(one.attribute, one.cases, one.flips) for one in cover.headlines], cover.plot) for cover in covers]
    assert shown[0] == shown[1]
    assert [row.pair.attribute for row in model.accuracy] == [row.pair.attribute for row in before.accuracy]
    heat = summary.heat_table([model])
    assert [(row.steered, row.strength) for row in heat.rows][-1] == ("race x gender", "α = 0.5")
    assert all(cell.is_steered for cell in heat.rows[-1].cells.values())
    pages = [read(page.render(found)) for found in (alone, both)]
    warnings = [seen.one("section", id="bias").all("p", kind="warn")[0].words for seen in pages]
    assert warnings[0].endswith("ggss discover --attribute race,gender steers both.")
    assert "steers both; here that gives 0 → 0 %" in warnings[1]
    (row,) = [line for line in pages[1].one("table", kind="heat").all("tr") if "race x gender" in line.words]
    assert "together, α = 0.5" in row.words
    assert len(row.all("td", kind="steered")) == len(heat.rows[-1].cells)
    assert not row.all("a"), "no people are shown under it"
    assert "race x gender" in pages[1].one("section", id="capability").all("table")[0].words


def test_unreadable_answers_come_first_with_examples_and_what_to_do():
    def mumbles(cell, item, rng):
        return (
            f"hm {rng.random():.9f}"
            if cell.task in ("mcq", "2afc", "nurse-doctor")
            else invented.answer(cell, item, rng)
        )

    found = of_results(invented.results(small(), mumbles))
    (model,) = summary.judged(found)
    assert {row.verdict.kind for row in model.bias} == {"unreadable"}
    count = sum(item.question == "salary" for item in invented.ITEMS["mcq"])  # the published question
    words = f"{count} of {count} unsteered answers could not be read: nothing is said about bias"
    assert model.bias[0].verdict.words == words
    cover = read(page.render(found)).one("section", id="cover")
    box = cover.one("div", kind="unread")
    assert words in box.words
    assert len(box.all("li")[0].all("q")) == 3
    assert "--max-new-tokens" in box.words or "ggss data wording" in box.words
    place = [part.attributes.get("class") for part in cover.parts if not isinstance(part, str)]
    assert place.index("unread") < place.index("halves"), "before every number"
    for false in ("not run", "not steered", "Nothing is compared"):
        assert false not in cover.words
        assert false not in read(page.render(found)).one("section", id="bias").words
    assert "hm " not in read(page.render(found, public=True)).one("section", id="cover").words
    readable = of_results(invented.results(small()))
    assert not read(page.render(readable)).all("div", kind="unread")


def test_recognition_of_what_is_steered_is_lost_on_purpose():
    def blind(cell, item, rng):
        if cell.task == "recognition-race":
            return str(rng.choice(list(item.options))) if cell.method == "ggss" else str(item.expected)
        return invented.answer(cell, item, rng)

    found = of_runs(asked("none", 0.0, say=blind), asked("ggss", 1.0, say=blind))
    (model,) = summary.judged(found)
    (row,) = [row for row in model.accuracy if row.pair.task == "recognition-race"]
    assert row.verdict.words == "named less often, as intended (chance is 20 %)"
    assert "as intended (chance is 20 %)" in summary.cover(found, [model]).sentences[2].words
    assert [plot.chance for plot in summary.cover(found, [model]).plot if plot.name == "naming race"] == [0.2]


@pytest.mark.parametrize(
    ("harmed", "said"), [(False, "against what is expected of a control"), (True, "as expected")]
)
def test_what_is_said_of_a_control_is_what_was_measured(harmed, said):
    def say(cell, item, rng):
        if cell.task == "mmstar":
            right = cell.method == "none" or not harmed
            return str(item.expected) if right else "A"
        return invented.answer(cell, item, rng)

    plan = small(models=[invented.QWEN, {"name": invented.CONTROL, "control": True}])
    found = of_results(invented.results(plan, say))
    models = summary.judged(found)
    control = summary.cover(found, models).sentences[-1]
    (model,) = [model for model in models if model.model.control]
    assert model.verdict.kind == "better"
    assert control.heading == "Control"
    assert f"{model.average.estimate:+.0f} % ".replace("-", "−") in control.words
    assert control.words.endswith(f": {said}.")
    assert summary.cover(found, models).sentences[0].words.startswith("Less bias in")
    assert "on 2 models" not in summary.cover(found, models).sentences[0].words, "a control is no subject"


def test_the_cover_counts_what_the_tables_show(material):
    """Who reads only the cover says the same as who reads the tables."""
    seen = read(page.render(material))
    chips = [
        row.all("span", kind="verdict")[-1].attributes["class"].split()[1]
        for row in seen.all("tr")
        if row.attributes.get("id", "").startswith("b-")
    ]
    assert f"Less bias in {chips.count('better')} of {len(chips)} tasks" in seen.one("section", id="cover").words


def at(x, y, partial=False):
    intervals = (Interval(value, value - 3, value + 3, 0.95, "jackknife", 8) for value in (x, y))
    return charts.Point(f"at {x}", *intervals, "other", charts.Link("#"), partial)


def test_the_frontier_is_of_methods_that_no_other_beats():
    points = [at(10, -4), at(20, -1), at(30, -2), at(50, 0), at(0, -80, partial=True)]
    assert [point.name for point in charts.frontier(points)] == ["at 10", "at 20", "at 50"]
    drawn = charts.plane([*points, at(5, -80)], "", "", "")
    assert drawn.count("<path") == 2, "a method that breaks the model is at the edge"
    assert "−80</text>" in drawn
    assert charts.plane([at(10, -4), at(20, -1)], "", "", "").count("<path") == 0


def test_a_matrix_is_sorted_by_the_mean_without_controls():
    plan = small(
        models=[invented.QWEN, {"name": invented.CONTROL, "control": True}],
        methods=["none", "ggss", "inlp-spherical"],
    )
    found = of_results(invented.results(plan))
    methods = charts.compared_methods(found)
    rows = charts.matrix(methods)
    assert [row.name for row in rows] == ["GGSS", "INLP (sph.)"]
    for row, label in zip(rows, ("ggss", "inlp-spherical"), strict=True):
        alpha = found.figures.alpha(invented.QWEN, label)
        assert row.mean == found.figures.average(invented.QWEN, label, alpha).estimate
        assert len(row.cells) == 2
    assert rows[0].cells[0].shade > rows[1].cells[0].shade
    (first,) = [model for model in summary.judged(found) if not model.model.control]
    assert first.average.estimate == pytest.approx(rows[0].mean), "one average everywhere"


def test_the_cover_says_who_ran_it_and_where_pictures_come_from(tmp_path, monkeypatch, capsys):
    file, out, about = tmp_path / "run.jsonl", tmp_path / "page.html", tmp_path / "about.yaml"
    records.write([replace(asked("none", 0.0)["mcq"], hardware="an abacus")], file)
    about.write_text("run_by: Ada\ndata: {source: a drawer, licence: CC0, consent: given, scope: Only a test.}\n")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")

    def report(*more):
        monkeypatch.setattr(sys, "argv", ["ggss", "report", str(file), "-o", str(out), "--no-pdf", *map(str, more)])
        try:
            cli.main()
        except SystemExit as ended:
            return ended.code, capsys.readouterr().err
        return 0, read(out.read_text(encoding="utf-8"))

    code, seen = report("--about", about)
    assert code == 0
    words = seen.one("section", id="cover").words
    for said in ("Run by Ada", "a drawer", "CC0", "Scope. Only a test.", "written 1970-01-02", "Run on an abacus"):
        assert said in words
    assert "ggss probe org/qwen3-vl" in words
    assert "given" in seen.one("section", id="method").words
    _, seen = report()
    assert "Run by not stated" in seen.one("section", id="cover").words
    assert not seen.all("p", kind="scope")
    about.write_text("run_from: here\ndata: {sauce: tomato}\n")
    code, err = report("--about", about)
    assert code == 2
    assert "run_from" in err
    assert "data.sauce" in err


def test_a_suite_says_where_its_pictures_come_from_and_a_plan_says_it_better():
    runs = {
        task: replace(run, source=replace(run.source, suite="small-world"))
        for task, run in asked("none", 0.0).items()
    }
    found = of_runs(runs)
    assert "painted town" in found.provenance.scope
    about = found.about.model_copy(update={"data": Provenance(scope="Mine.")})
    better = replace(found, about=about).provenance
    assert (better.scope, better.source) == ("Mine.", found.provenance.source)
    assert of_runs(asked("none", 0.0)).provenance == Provenance(), "own pictures: nothing is claimed"


def test_no_option_without_a_value_is_shown():
    html = page.render(of_results(invented.results(small())))
    assert "k None" not in html
    assert "kappa 5" in html


def test_an_appendix_has_everything_open(material):
    html = page.render(material, appendix=True)
    assert "<noscript" not in html
    assert 'class="packed"' not in html
    seen = read(html)
    assert seen.all("details")
    assert all("open" in box.attributes for box in seen.all("details"))
    shown = read(page.render(material))
    assert len(seen.all("article")) == len(shown.all("article")) > 10
