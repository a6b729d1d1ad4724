"""Every table of a study: what is in the files, held against the runs and against one another."""

import csv
import io
import json
import math
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

import invented_study
from ggss import escaping, files
from ggss.cli import study
from ggss.errors import InputError
from ggss.files import write_whole
from ggss.report import capability_tables as capability
from ggss.report import cells
from ggss.report import tables as picture
from ggss.report.cells import Figures
from ggss.report.tables import COMMAND, TABLES, register, write
from ggss.stats import holm
from ggss.study.results import Results
from invented_study import CONTROL, QWEN, answer

METHODS = [
    "none",
    "prompt",
    "ggss",
    "inlp-spherical",
    "bend-spherical",
    "svd-pooled-euclidean",
    "svd-pooled-spherical",
    "leace-gated",
    "gated-euclidean",
    "ggss-token-gate",
    "pace",
    {"name": "ggss", "label": "ggss, all sites", "sites": "all"},
    *invented_study.sensitivity(),
    *invented_study.prompted(),
]


def say(cell, item, rng):
    """As invented, but bend breaks one task, and in one task the control has no bias to begin with."""
    if cell.method == "bend-spherical" and cell.task == "nurse-doctor":
        return "hm"
    if cell.model == CONTROL and cell.task == "2afc":
        return "first"
    return answer(cell, item, rng)


@pytest.fixture(scope="module")
def results():
    measures = [*invented_study.PLAN["measures"], {"tasks": ["ceo"], "at": "all"}]
    return invented_study.results(invented_study.plan(methods=METHODS, measures=measures), say)


@pytest.fixture(scope="module")
def figures(results):
    return Figures(results)


@pytest.fixture(scope="module")
def written(results, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    return write(results, folder), folder


def table(folder, name):
    """The rows of a CSV file by their section and label."""
    rows = list(csv.DictReader(io.StringIO((folder / f"{name}.csv").read_text())))
    first = next(key for key in rows[0] if key != "section")
    return {(row.get("section", ""), row[first]): row for row in rows}


def run_of(results, method, task, alpha=1.0, model=QWEN, attribute=None):
    run = results.run(model, method, task, alpha, attribute)
    assert run is not None
    return run


def test_every_table_is_written_in_every_form(written):
    done, folder = written
    assert not done.left_out
    assert set(done.tables) == {*TABLES.names(), "results_report"}
    for name in TABLES.names():
        text = (folder / f"{name}.md").read_text()
        assert text.startswith(f"# {done.tables[name]}\n")
        assert text.count("\n# ") == 0
        assert "nan" not in text
        rows = [line for line in text.splitlines() if line.startswith("| ")]
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1
        assert name in (folder / "README.md").read_text()


@pytest.mark.parametrize("name", TABLES.names())
def test_titles_say_the_direction(written, name):
    assert re.search(r"\((.* )?(lower|higher|better|small p)\b.*\)", written[0].tables[name])


@pytest.mark.parametrize("name", TABLES.names())
def test_latex_is_well_formed(written, name):
    text = re.sub(r"^% needs .*\n|(?<=\{)%$", "", (written[1] / f"{name}.tex").read_text(), flags=re.MULTILINE)
    bare = re.sub(r"\\[{}]", "", text)
    assert bare.count("{") == bare.count("}")
    assert not re.search(r"(?<!\\)[%#_]", text.replace("\\label{tab:" + name + "}", ""))
    assert not re.search(r"[^\x00-\x7f]", text)
    columns = len(re.search(r"\\begin\{tabular\}\{@\{\}l(r+)@\{\}\}", text)[1])
    body = text[text.index("\\toprule") : text.index("\\bottomrule")]
    lines = [line for line in body.splitlines() if line.endswith("\\\\") and "\\multicolumn" not in line]
    assert {len(re.findall(r"(?<!\\)&", line)) for line in lines} == {columns}


def test_tables_that_were_cut_short_are_known_as_ours(tmp_path, monkeypatch):
    ours = files.marked(COMMAND, "README.md")

    def full(path, data):
        if path.name != "README.md":
            raise InputError("No space left on device")
        write_whole(path, data)

    monkeypatch.setattr("ggss.report.tables.write_whole", full)
    alone = invented_study.results(invented_study.plan(methods=["none", "ggss"]))
    with pytest.raises(InputError, match="No space"):
        write(alone, tmp_path, show=False)
    files.check_folder(tmp_path, COMMAND, ours)
    with pytest.raises(InputError, match="--force"):
        files.check_folder(tmp_path, "ggss demo", files.marked("ggss demo", "README.md"))


def test_the_picture_is_drawn_once_more_the_same_and_linked(written, results, figures, tmp_path):
    folder = written[1]
    assert f"({picture.NAME})" in (folder / "README.md").read_text()
    with Image.open(folder / picture.NAME) as image:
        assert image.width > 700
    assert picture.draw(Figures(results)) == (folder / picture.NAME).read_bytes()
    points = picture._points(figures, QWEN, "mmstar")
    assert set(points) == set(cells.compared(results))
    bias, kept = points["ggss"]
    assert bias.estimate == figures.average(QWEN, "ggss", 1.0).estimate
    both = [capability.kept_at_best(figures, QWEN, "ggss", "mmstar", of) for of in ("race", "gender")]
    changes = [result.change.difference for result in both]
    assert kept.estimate == pytest.approx(np.mean(changes))
    without = invented_study.plan(measures=[])
    assert "no multiple-choice" in write(invented_study.results(without), tmp_path).left_out[picture.NAME]


def test_gate_calibration_shows_how_the_gates_lie(written):
    rows = table(written[1], "gate_calibration")
    pooled, by_token = (rows["qwen3-vl", f"GGSS, {what} statistics"] for what in ("pooled", "per-token"))
    assert (pooled["Gate's median"], pooled["Gate's median std"], pooled["Tokens' median"]) == (
        "0.113",
        "0.05",
        "0.196",
    )
    assert pooled["Mean gate"] == "0.85"
    assert (pooled["Tokens above 0.9"], pooled["Tokens below 0.4"]) == ("72", "14")
    assert by_token["Mean gate"] == "not run"


def test_discovery_prompts_are_shown_with_their_cosine_and_their_own_run(results, written):
    rows = table(written[1], "prompt_invariance")
    alpha = results.best_alpha(QWEN, "ggss")
    for label, words in {"see": "What do you see?", "caption": "Caption this."}.items():
        row = rows["", words]
        assert float(row["qwen3-vl cosine"]) == 0.9999
        own = results.comparison(QWEN, label, "mcq", alpha).after.value()
        assert float(row["qwen3-vl MCQ ×10³"]) == pytest.approx(1000 * own)
    plain = results.comparison(QWEN, "ggss", "mcq", alpha).after.value()
    assert float(rows["", "(no prompt: the vision path alone)"]["qwen3-vl MCQ ×10³"]) == pytest.approx(1000 * plain)
    assert len({row["qwen3-vl MCQ ×10³"] for row in rows.values()}) == len(rows)  # each row is of its own run


def test_discovery_prompts_are_no_methods_that_are_compared(results):
    assert not {"see", "caption"} & {*cells.compared(results), *cells.grid_points(results).values()}


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="needs pdflatex")
def test_latex_compiles_and_fits_its_page(written, tmp_path):
    pages = "".join(rf"\input{{{file}}}\clearpage" for file in sorted(written[1].glob("*.tex")))
    makecell = r"\providecommand{\makecell}[2][c]{\begin{tabular}[c]{@{}#1@{}}#2\end{tabular}}"
    (tmp_path / "all.tex").write_text(
        r"\documentclass{article}\usepackage[landscape,margin=1cm]{geometry}\usepackage{booktabs,graphicx}"
        rf"\IfFileExists{{makecell.sty}}{{\usepackage{{makecell}}}}{{}}{makecell}\begin{{document}}{pages}\end{{document}}"
    )
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout


def test_main_results_hold_the_runs_numbers(results, figures, written):
    rows = table(written[1], "main_results")
    ggss = rows["Calibrated gate and slerp", "GGSS"]
    assert float(ggss["qwen3-vl MCQ ×10³"]) == pytest.approx(1000 * float(run_of(results, "ggss", "mcq").metric))
    assert float(ggss["qwen3-vl N/D"]) == pytest.approx(float(run_of(results, "ggss", "nurse-doctor").metric))
    average = figures.average(QWEN, "ggss", 1.0)
    assert float(ggss["qwen3-vl Avg Δ%"]) == pytest.approx(average.estimate)
    assert float(ggss["qwen3-vl Avg Δ% percentile low"]) == pytest.approx(average.low)
    own = figures.corrected_average(QWEN, "ggss", 1.0)
    assert float(ggss["qwen3-vl Avg Δ% low"]) == pytest.approx(own.low)
    found = figures.comparison(QWEN, "ggss", "mcq", 1.0)
    name = "qwen3-vl MCQ ×10³"
    assert float(ggss[f"{name} low"]) == pytest.approx(1000 * found.after.corrected().low)
    assert float(ggss[f"{name} change %"]) == pytest.approx(found.change().estimate)
    assert float(ggss[f"{name} change % high"]) == pytest.approx(found.corrected_change.high)
    for over in ("identities", "items"):
        assert float(ggss[f"{name} percentile over {over} low"]) == pytest.approx(found.change(over=over).low)
    assert not any("entangled" in column for column in ggss)  # the control has a table of its own


def test_every_interval_of_ours_holds_the_estimate_that_it_is_about(figures):
    """That of the jackknife and of Fieller; the published estimate, which is biased upwards, need not lie in it."""
    tables = [table for name in TABLES.names() if not isinstance(table := TABLES.get(name)(figures), str)]
    shown = [
        (table.name, one)
        for table in tables
        for row in table.rows
        for cell in row.cells
        if isinstance(cell, tuple)
        for one in cell
        if one.centre is not None and one.interval and all(map(math.isfinite, (*one.interval, one.centre)))
    ]
    assert {"main_results", "component_ablation", "all_metrics", "ceo_salary"} <= {name for name, _ in shown}
    for name, one in shown:
        low, high = one.interval
        assert low <= one.centre <= high, (name, one)
    outside = [one for _, one in shown if not one.interval[0] - 1e-9 <= one.value <= one.interval[1] + 1e-9]
    assert outside  # such as have to show their own estimate
    assert all(f"({one.centre:{one.spec}} [" in one.after() for one in outside)


def test_a_metric_that_only_the_unsteered_run_has_is_left_out(results, monkeypatch):
    of_all = results.everything

    def lacking(*of):
        found = of_all(*of)
        metrics = {name: one for name, one in found.after.metrics.items() if name != found.before.names[1]}
        return replace(found, after=replace(found.after, metrics=metrics))

    full = TABLES.get("all_metrics")(Figures(results))
    monkeypatch.setattr(results, "everything", lacking)
    table = TABLES.get("all_metrics")(Figures(results))
    assert 0 < len(table.rows) < len(full.rows)
    assert {row.label for row in table.rows} < {row.label for row in full.rows}


def test_what_is_degenerate_or_was_not_run_says_so(written):
    rows = table(written[1], "main_results")
    bend = rows["BendVLM", "BendVLM (sph.)"]
    assert bend["qwen3-vl N/D"] == "* 80 of 80 unreadable"
    assert bend["qwen3-vl Avg Δ% mark"] == "†"
    assert rows["INLP", "INLP (Eucl.)"]["qwen3-vl MCQ ×10³"] == "not run"
    text = (written[1] / "main_results.md").read_text()
    assert "\n- \\* more than half of the answers could not be read" in text
    assert "\n- † averaged over fewer tasks" in text


def test_a_broken_average_never_wins(written):
    """BendVLM's average is over two tasks; even if it were the lowest, bold would not be its."""
    line = next(
        x for x in (written[1] / "main_results.md").read_text().splitlines() if x.startswith("| BendVLM (sph.)")
    )
    assert "**" not in line.rsplit("|", 2)[1]


def test_sensitivity_grid_has_its_points(results, written):
    rows = table(written[1], "sensitivity")
    sharp = run_of(results, "ggss kappa=1 floor=0.0", "mcq")
    assert float(rows["qwen3-vl", "floor 0"]["κ = 1"]) == pytest.approx(1000 * float(sharp.metric))
    full = run_of(results, "ggss", "mcq")
    assert float(rows["qwen3-vl", "floor 0.3"]["κ = 5"]) == pytest.approx(1000 * float(full.metric))


def test_beyond_lists_what_has_no_published_row(written):
    labels = [label for _, label in table(written[1], "beyond")]
    assert labels == ["Unsteered", "GGSS", "pace", "ggss, all sites"]


def test_pace_is_paired_with_every_other_method(tmp_path):
    methods = ["none", "ggss", "pace", "inlp-spherical", *invented_study.sensitivity()]
    found = invented_study.results(invented_study.plan(methods=methods))
    write(found, tmp_path)
    figures = Figures(found)
    rows = table(tmp_path, "pace_against")
    assert [label for _, label in rows] == ["GGSS", "INLP (sph.)"] * 2
    for (section, label), row in rows.items():
        model, other = f"org/{section}", {"GGSS": "ggss", "INLP (sph.)": "inlp-spherical"}[label]
        averages = [figures.average(model, one, figures.alpha(model, one)).estimate for one in ("pace", other)]
        assert float(row["Avg Δ%, PACE minus it, points"]) == pytest.approx(averages[0] - averages[1])
        runs = [figures.at_best(model, one, "mmstar", "race").after.value() for one in ("pace", other)]
        shown = float(row["MMStar, PACE minus it, points, race steering"])
        assert shown == pytest.approx(100 * (runs[0] - runs[1]), abs=1e-6)
    raw = [float(row["sign-flip test p"]) for row in rows.values()]
    assert [float(row["sign-flip test Holm"]) for row in rows.values()] == pytest.approx(holm(raw).tolist())
    assert raw[0] == figures.p_values("org/qwen3-vl", "pace", "ggss")[0]


def test_the_published_setting_may_be_a_labelled_point_of_the_grid(tmp_path):
    """Then it is there twice, as the method and as a point, and only the method is compared with others."""
    again = {"name": "ggss", "label": "ggss kappa=5 floor=0.3", "tasks": ["mcq"], "alphas": [1.0]}
    for methods in (
        ["none", again, "ggss", *invented_study.sensitivity()],
        ["none", "ggss", again, *invented_study.sensitivity()],
    ):
        done = write(invented_study.results(invented_study.plan(methods=methods, measures=[])), tmp_path)
        assert "beyond" in done.left_out
        assert [label for _, label in table(tmp_path, "heldout_methods")] == ["GGSS"]
        assert float(table(tmp_path, "sensitivity")["qwen3-vl", "floor 0.3"]["κ = 5"]) > 0


def test_holm_is_over_the_whole_table(written):
    rows = table(written[1], "geometry_ablation")
    tested = [row for (_, label), row in rows.items() if label.startswith("p ") and row["qwen3-vl"] != "not run"]
    assert len(tested) == 2
    raw = [float(row["qwen3-vl"]) for row in tested]
    assert [float(row["qwen3-vl percentile or Holm"]) for row in tested] == pytest.approx(holm(raw).tolist())
    by_item = [float(row["qwen3-vl p over items"]) for row in tested]
    assert [float(row["qwen3-vl Holm over items"]) for row in tested] == pytest.approx(holm(by_item).tolist())


def test_held_out_columns_are_of_the_other_fold(results, figures, written):
    held_a, held_b = figures.held_out(QWEN, "ggss")
    row = table(written[1], "heldout_alpha")["", "qwen3-vl"]
    assert float(row["Avg Δ% on B, α of A"]) == pytest.approx(held_b.change)
    assert float(row["Avg Δ% on A, α of B"]) == pytest.approx(held_a.change)
    assert float(row["chosen on A"]) == held_b.alpha
    average = figures.average(QWEN, "ggss", held_a.alpha, held_a.fold)
    assert average.estimate == pytest.approx(held_a.change)
    assert average.low < average.high


def test_recognition_is_of_the_attribute_that_is_not_steered(results, written):
    row = table(written[1], "recognition")["", "qwen3-vl"]
    run = run_of(results, "ggss", "recognition-gender", attribute="race")
    assert float(row["gender recognition, race steering GGSS"]) == pytest.approx(100 * float(run.metric))


def test_the_dial_steers_the_attribute_itself(results, written):
    row = table(written[1], "alpha_dial")["qwen3-vl", "0.5"]
    run = run_of(results, "ggss", "recognition-race", 0.5, attribute="race")
    assert float(row["race recognition (%) ↑"]) == pytest.approx(100 * float(run.metric))


def test_report_has_every_method_at_every_strength(results, written):
    text = (written[1] / "results_report.md").read_text()
    rows = table(written[1], "results_report")
    for alpha in ("0.5", "1 (best-avg-α)"):
        assert f"| GGSS, {alpha} |" in text
    # None and prompt, ten methods and two discovery prompts at two strengths, the grid at one.
    assert len(rows) == len(results.models) * (2 + 10 * 2 + 2 * 2 + 3)
    assert "percentile over identities" in text


def test_the_index_names_the_answers(results, written):
    text = written[0].index.read_text()
    assert results.hash in text
    assert "200 resamples, 199 permutations" in text
    assert not re.search(r"20\d\d-\d\d", text)  # no date: the same answers give the same bytes


def test_the_same_answers_give_the_same_bytes(results, written, tmp_path):
    again = invented_study.results(results.plan, say)
    write(again, tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == sorted(path.name for path in written[1].iterdir())
    for name in names:
        assert (tmp_path / name).read_bytes() == (written[1] / name).read_bytes(), name


def test_other_answers_give_other_tables(tmp_path):
    """The control of the test above."""

    def other(cell, item, rng):
        given = answer(cell, item, rng)
        return "A" if cell.method == "ggss" and cell.task == "mcq" else given

    study = invented_study.plan(methods=["none", "ggss"], models=[QWEN], measures=[])
    for name, said in (("one", answer), ("other", other)):
        write(invented_study.results(study, said), tmp_path / name)
    files = [path.name for path in (tmp_path / "one").iterdir()]
    changed = {f for f in files if (tmp_path / "one" / f).read_bytes() != (tmp_path / "other" / f).read_bytes()}
    assert {"README.md", "main_results.md", "results_report.csv"} <= changed


def test_too_few_people_to_hold_some_out_cost_no_other_table(tmp_path, monkeypatch):
    few = {
        task: tuple(i for i in items if i.cluster[-3:] in ("/00", "/02"))
        for task, items in invented_study.ITEMS.items()
    }
    monkeypatch.setattr(invented_study, "ITEMS", invented_study.ITEMS | {"mcq": few["mcq"]})
    done = write(invented_study.results(invented_study.plan(methods=["none", "ggss"])), tmp_path, show=False)
    assert "the fold has none of its 2 identities" in done.left_out["heldout_alpha"]
    assert "heldout_methods" in done.left_out
    assert {"main_results", "results_report"} <= done.tables.keys()
    assert (tmp_path / picture.NAME).exists()
    monkeypatch.setitem(invented_study.ITEMS, "mcq", tuple(i for i in few["mcq"] if i.cluster.endswith("/00")))
    alone = write(invented_study.results(invented_study.plan(methods=["none", "ggss"])), tmp_path, show=False)
    assert "in one cluster, 'cook/00': at least two are needed" in alone.left_out["main_results"]
    assert "at least two are needed" in alone.left_out["results_report"]
    assert not (tmp_path / "main_results.md").exists()


def test_tables_without_runs_are_left_out_with_the_reason(tmp_path):
    study = invented_study.plan(methods=["none", "ggss"], models=[QWEN], measures=[])
    (tmp_path / "capability.md").write_text("of an earlier time")
    done = write(invented_study.results(study), tmp_path)
    assert not (tmp_path / "capability.md").exists()
    assert set(done.tables) == {
        "main_results",
        "all_metrics",
        "component_ablation",
        "hyperparameters",
        "significance",
        "alpha_choices",
        "heldout_alpha",
        "heldout_methods",
        "alpha_dial",
        "spillover",
        "results_report",
    }
    assert "needs runs of ggss with a discovery `prompt` on mcq" in done.left_out["prompt_invariance"]
    text = done.index.read_text()
    for name, reason in done.left_out.items():
        assert f"- {name}: {escaping.markdown(reason)}" in text
        assert not (tmp_path / f"{name}.csv").exists()


def test_a_study_that_has_only_begun(tmp_path):
    """Nothing but the unsteered answers of one task: no table is invented."""
    found = invented_study.results(keep=lambda cell: cell.method == "none" and cell.task == "mcq")
    done = write(found, tmp_path)
    assert set(done.tables) == {"results_report"}
    empty = invented_study.results(keep=lambda cell: False)
    assert not write(empty, tmp_path).tables
    assert not (tmp_path / "results_report.md").exists()


def test_a_plan_without_the_usual_tasks(tmp_path):
    steering = {"gender": {"discover_on": ["cook"], "tasks": ["nurse-doctor"]}}
    study = invented_study.plan(methods=["none", "ggss"], steering=steering, measures=[])
    done = write(invented_study.results(study), tmp_path)
    assert "main_results" in done.tables
    assert "component_ablation" in done.left_out


def test_the_command_writes_and_says_what(results, tmp_path, monkeypatch):
    small = invented_study.results(invented_study.plan(methods=["none", "ggss"], models=[QWEN], measures=[]))
    monkeypatch.setattr(Results, "load", classmethod(lambda cls, folder: small))
    app = typer.Typer()
    app.command()(study.tables)
    said = CliRunner().invoke(app, [str(tmp_path), "--json"])
    assert said.exit_code == 0, said.output
    found = json.loads(said.stdout)
    assert found["index"] == str(tmp_path / "tables" / "README.md")
    assert "main_results" in found["tables"]
    assert "mme" in found["left_out"]
    assert (tmp_path / "tables" / "main_results.tex").exists()
    plain = CliRunner().invoke(app, [str(tmp_path), "-o", str(tmp_path / "other")])
    assert "left out" in plain.output
    assert (tmp_path / "other" / "README.md").exists()


def test_an_instruction_that_makes_all_answers_unreadable_is_still_shown():
    def confused(cell, item, rng):
        return "hm" if cell.method == "prompt" else answer(cell, item, rng)

    found = Figures(invented_study.results(invented_study.plan(), confused))
    shown = TABLES.get("prompt_baseline")(found)
    assert [row.label for row in shown.rows] == ["qwen3-vl", "entangled"]
    assert all("unreadable" in cell for row in shown.rows for cell in (row.cells[1], row.cells[3], row.cells[5]))
    capability = {row.label: row for row in TABLES.get("capability")(found).rows}["Fairness instruction"]
    assert "not run" not in capability.cells


PLUGIN = """
from ggss.report.rendering import Column, Figure, Row, Table
from ggss.report.tables import register

def gains(figures):
    rows = [Row(m, ((Figure(figures.average(m, "ggss", 1.0).estimate),),)) for m in figures.results.models]
    return Table("gains", "Mean change under GGSS (lower is better)", "Model", (Column("Avg"),), tuple(rows))

register("gains", gains)
"""


@pytest.fixture
def registry(monkeypatch):
    """The table of tables as it was, whatever a test adds."""
    for entries in ("_entries", "_packages"):
        monkeypatch.setattr(TABLES, entries, dict(getattr(TABLES, entries)))
    return TABLES


def test_a_plans_plugin_adds_a_table(registry, tmp_path, monkeypatch):
    (tmp_path / "my_gains.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    study = invented_study.plan(plugins=["my_gains"], methods=["none", "ggss"], measures=[])
    del sys.modules["my_gains"]
    done = write(invented_study.results(study), tmp_path / "tables")
    assert registry.names()[-1] == "gains"
    assert registry.package("gains") == "my_gains"
    assert done.tables["gains"] == "Mean change under GGSS (lower is better)"
    assert float(table(tmp_path / "tables", "gains")["", QWEN]["Avg"]) < 0
    assert "| gains |" in done.index.read_text()


def test_tables_are_registered_in_the_published_order():
    ours = [name for name in TABLES.names() if TABLES.package(name) == "ggss"]
    assert ours[:4] == ["main_results", "capability", "component_ablation", "sensitivity"]
    assert ours[-4:] == ["beyond", "control", "pace_against", "spillover"]


@pytest.mark.parametrize("name", ["main_results", "README", "results_report", "../escaped", ""])
def test_a_table_under_a_name_that_cannot_be_a_file_of_its_own_is_refused(registry, name):
    with pytest.raises(InputError, match=f"the table {name!r} .*cannot be registered"):
        register(name, lambda figures: "never")
    with pytest.raises(InputError, match="it must be a function of Figures, got str"):
        register("words", "no function")


def test_without_latex_there_is_none_and_what_there_was_is_gone(results, tmp_path):
    write(results, tmp_path)
    assert (tmp_path / "main_results.tex").is_file()
    index = write(results, tmp_path, latex=False).index.read_text(encoding="utf-8")
    assert not list(tmp_path.glob("*.tex"))
    assert "[tex]" not in index
    assert "[md](main_results.md) [csv](main_results.csv) |" in index


def test_spill_over_is_the_share_under_the_steering_of_another_attribute(written, figures):
    """Against a count by hand of the runs: of race steering, for how many people the answer depends on gender."""
    row = table(written[1], "spillover")["qwen3-vl", "GGSS, race"]
    runs = [figures.at_best(QWEN, "ggss", "mcq")]  # the invented pairs differ in race alone
    shares = [flips / cases for run in runs for flips, cases in [run.after.flips("gender")]]
    assert float(row["depends on gender"]) == pytest.approx(100 * np.mean(shares), abs=0.5)
    change = np.mean(
        [share - b / c for share, run in zip(shares, runs, strict=True) for b, c in [run.before.flips("gender")]]
    )
    assert float(row["depends on gender points"]) == pytest.approx(100 * change, abs=0.5)


def jointly(cell, item, rng):
    """As invented; the steering of both leaves nothing of race, and costs a quarter of the benchmark."""
    if cell.attribute == "race x gender" and cell.task == "mcq":
        return "A"
    if cell.attribute == "race x gender" and cell.task == "mmstar" and rng.random() < 0.25:
        return "hm"
    return answer(cell, item, rng)


def test_the_steering_of_both_attributes_is_a_row_and_changes_no_other_table(tmp_path):
    both = {"discover_on": ["cook"], "tasks": ["mcq", "nurse-doctor", "mmstar"], "methods": ["ggss"], "alphas": [0.5]}
    studies = {
        name: invented_study.plan(methods=["none", "ggss"], models=[QWEN], steering=invented_study.STEERING | more)
        for name, more in (("alone", {}), ("both", {"race x gender": both}))
    }
    done = {name: write(invented_study.results(plan, jointly), tmp_path / name) for name, plan in studies.items()}
    assert done["both"].tables.keys() == done["alone"].tables.keys()
    rows = table(tmp_path / "both", "spillover")
    assert [label for _, label in rows] == ["GGSS, race", "GGSS, gender", "GGSS, race x gender"]
    figures = Figures(invented_study.results(studies["both"], jointly))
    runs = [figures.comparison(QWEN, "ggss", task, 0.5, "race x gender") for task in ("mcq", "nurse-doctor")]
    for attribute in ("race", "gender"):
        shares = [flips / cases for run in runs for flips, cases in [run.after.flips(attribute)]]
        told = rows["qwen3-vl", "GGSS, race x gender"]
        assert float(told[f"depends on {attribute}"]) == pytest.approx(100 * np.mean(shares), abs=0.5)
    kept = figures.comparison(QWEN, "ggss", "mmstar", 0.5, "race x gender").accuracy()
    cost = table(tmp_path / "both", "capability_significance")["GGSS", "qwen3-vl, race x gender"]
    assert float(cost["Δ points"]) == pytest.approx(100 * kept.change.difference, abs=0.05)
    adjusted_together = {"spillover", "capability_significance"}
    for name in done["alone"].tables.keys() - adjusted_together:
        assert (tmp_path / "both" / f"{name}.csv").read_text() == (tmp_path / "alone" / f"{name}.csv").read_text(), (
            name
        )


def test_main_results_begin_with_whose_answer_depends_on_it(written, figures):
    row = table(written[1], "main_results")["Calibrated gate and slerp", "GGSS"]
    shares = [flips / cases for task in figures.results.tasks for flips, cases in [_at_best(figures, task).flips()]]
    assert float(row["qwen3-vl depends"]) == pytest.approx(100 * np.mean(shares), abs=0.5)


def _at_best(figures, task):
    return figures.at_best(QWEN, "ggss", task).after
