"""Tables: their numbers held against statistics made the long way, their files against one another."""

import csv
import io
import math
import re
import shutil
import subprocess

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import invented_study
from ggss import probes
from ggss.cli import study_tables
from ggss.report import capability_tables as capability
from ggss.report import names
from ggss.report import overview_picture as picture
from ggss.report.rendering import Column, Figure, Row, Table, comma_separated, latex, markdown
from ggss.report.tables import BUILDERS, Figures, write
from ggss.stats import bootstrap, holm, mcnemar, signflip
from invented_study import answer

QWEN, CONTROL = "small-world/qwen3-vl", "small-world/entangled"
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
    {"name": "ggss", "label": "ggss, all sites", "sites": "all"},
    *invented_study.GRID,
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
    return invented_study.results(invented_study.plan(methods=METHODS), say)


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


@pytest.mark.parametrize("task", ["mcq", "2afc", "nurse-doctor"])
def test_change_is_the_bootstrap_of_the_percent_change(results, figures, task):
    run, before = run_of(results, "ggss", task), run_of(results, "none", task)
    seed = figures._seed(task)
    for found, metric in (
        (figures.change(figures.run(QWEN, "ggss", task, 1.0)), run.metric.percent_change(before.metric)),
        (figures.value(figures.run(QWEN, "ggss", task, 1.0)), run.metric),
    ):
        wanted = bootstrap(metric, run.clusters, resamples=200, seed=seed)
        assert (found.estimate, found.low, found.high) == pytest.approx((wanted.estimate, wanted.low, wanted.high))
        assert found.low < found.high


def test_average_is_resampled_by_identity_with_all_tasks(results, figures):
    """By hand: draw identities, weigh every item of every task by how often its identity was drawn.

    A draw with none of the people whom a task is about has no value.
    """
    runs = [(run_of(results, "ggss", t), run_of(results, "none", t)) for t in results.tasks]
    people = sorted({c for run, _ in runs for c in run.clusters})
    drawn = np.random.default_rng(figures._seed("average")).integers(len(people), size=(200, len(people)))
    values = []
    for draw in drawn:
        times = dict(zip(people, np.bincount(draw, minlength=len(people)), strict=True))
        changes = []
        for run, before in runs:
            weights = [[times[c] for c in run.clusters]]
            changes.append(100 * (run.metric(weights)[0] / before.metric(weights)[0] - 1))
        values.append(np.mean(changes))
    found = figures.average(QWEN, "ggss", 1.0)
    assert (found.low, found.high) == pytest.approx(tuple(np.nanquantile(values, [0.025, 0.975])))
    by_hand = np.mean([100 * (float(run.metric) / float(before.metric) - 1) for run, before in runs])
    assert found.estimate == pytest.approx(by_hand)


def test_a_zero_baseline_takes_no_part(results, figures):
    assert figures.change(figures.run(CONTROL, "ggss", "2afc", 1.0)) is None
    assert figures.averaged(CONTROL, "ggss", 1.0) == (2, 2)
    changes = [
        100
        * (
            float(run_of(results, "ggss", t, model=CONTROL).metric)
            / float(run_of(results, "none", t, model=CONTROL).metric)
            - 1
        )
        for t in ("mcq", "nurse-doctor")
    ]
    assert figures.average(CONTROL, "ggss", 1.0).estimate == pytest.approx(np.mean(changes))


def test_p_values_are_those_of_the_sign_flip_by_identity(results, figures):
    one, other = ([run_of(results, m, t) for t in results.tasks] for m in ("ggss", "none"))
    wanted = signflip(
        [run.metric for run in one],
        [run.metric for run in other],
        [float(run.metric) for run in other],
        [run.clusters for run in one],
        draws=199,
        seed=figures._seed(QWEN, "ggss", "none"),
    )
    assert figures.p_value(QWEN, "ggss") == wanted.p
    assert figures.p_value(QWEN, "ggss") < 0.05
    assert figures.p_value(QWEN, "ggss", "ggss") == 1.0  # nothing differs from itself
    assert figures.p_value(CONTROL, "ggss", tasks=["2afc"]) is None


def test_capability_is_counted_question_by_question(results, figures):
    run, before = run_of(results, "ggss", "smallstar", attribute="race"), run_of(results, "none", "smallstar")
    parse = probes.get("smallstar").parse
    after, base = (
        np.array([parse(a, item) == item.expected for a, item in zip(r.answers, r.items, strict=True)])
        for r in (run, before)
    )
    found = figures.kept(QWEN, "ggss", "smallstar", 1.0, "race")
    assert found.accuracy.estimate == pytest.approx(after.mean())
    assert found.before.estimate == pytest.approx(base.mean())
    assert found.change.difference == pytest.approx(after.mean() - base.mean())
    assert found.p == mcnemar(int((after & ~base).sum()), int((base & ~after).sum()))
    inside = np.array([item.question == "counts" for item in run.items])
    assert 0 < inside.sum() < len(inside)
    part = figures.kept(QWEN, "ggss", "smallstar", 1.0, "race", "counts")
    assert part.accuracy.estimate == pytest.approx(after[inside].mean())
    assert 0 <= part.accuracy.low < part.accuracy.high <= 1


def test_every_table_is_written_in_every_form(written):
    done, folder = written
    assert not done.left_out
    assert set(done.tables) == {*BUILDERS, "results_report"}
    for name in BUILDERS:
        text = (folder / f"{name}.md").read_text()
        assert text.startswith(f"# {done.tables[name]}\n")
        assert text.count("\n# ") == 0
        assert "nan" not in text
        rows = [line for line in text.splitlines() if line.startswith("| ")]
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1
        assert name in (folder / "README.md").read_text()


@pytest.mark.parametrize("name", list(BUILDERS))
def test_titles_say_the_direction(written, name):
    assert re.search(r"\((.* )?(lower|higher|better|small p)\b.*\)", written[0].tables[name])


@pytest.mark.parametrize("name", list(BUILDERS))
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


def test_the_picture_is_drawn_once_more_the_same_and_linked(written, results, figures, tmp_path):
    folder = written[1]
    assert f"({picture.NAME})" in (folder / "README.md").read_text()
    with Image.open(folder / picture.NAME) as image:
        assert image.width > 700
    assert picture.draw(Figures(results)) == (folder / picture.NAME).read_bytes()
    points = picture._points(figures, QWEN, "smallstar")
    assert set(points) == set(names.compared(results))
    bias, kept = points["ggss"]
    assert bias.estimate == figures.average(QWEN, "ggss", 1.0).estimate
    changes = [capability.kept(figures, QWEN, "ggss", "smallstar", of).change.difference for of in ("race", "gender")]
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
    assert float(ggss["qwen3-vl Avg Δ% low"]) == pytest.approx(average.low)
    assert not any("entangled" in column for column in ggss)  # the control has a table of its own


def test_what_is_degenerate_or_was_not_run_says_so(written):
    rows = table(written[1], "main_results")
    bend = rows["BendVLM", "BendVLM (sph.)"]
    assert bend["qwen3-vl N/D"] == "* 80 of 80 unreadable"
    assert bend["qwen3-vl Avg Δ% mark"] == "†"
    assert rows["INLP", "INLP (Eucl.)"]["qwen3-vl MCQ ×10³"] == "not run"
    text = (written[1] / "main_results.md").read_text()
    assert "\n- * most answers could not be read" in text
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
    assert labels == ["Unsteered", "GGSS", "ggss, all sites"]


def test_the_published_setting_may_be_a_labelled_point_of_the_grid(tmp_path):
    """Then it is there twice, as the method and as a point, and only the method is compared with others."""
    again = {"name": "ggss", "label": "ggss kappa=5 floor=0.3", "tasks": ["mcq"], "alphas": [1.0]}
    for methods in (["none", again, "ggss", *invented_study.GRID], ["none", "ggss", again, *invented_study.GRID]):
        done = write(invented_study.results(invented_study.plan(methods=methods, measures=[])), tmp_path)
        assert "beyond" in done.left_out
        assert [label for _, label in table(tmp_path, "heldout_methods")] == ["GGSS"]
        assert float(table(tmp_path, "sensitivity")["qwen3-vl", "floor 0.3"]["κ = 5"]) > 0


def test_holm_is_over_the_whole_table(written):
    rows = table(written[1], "geometry_ablation")
    tested = [row for (_, label), row in rows.items() if label.startswith("p ") and row["qwen3-vl"] != "not run"]
    assert len(tested) == 2
    raw = [float(row["qwen3-vl"]) for row in tested]
    assert [float(row["qwen3-vl Holm"]) for row in tested] == pytest.approx(holm(raw).tolist())


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
    assert len(rows) == len(results.models) * (
        2 + 9 * 2 + 3
    )  # none and prompt, nine at two strengths, the grid at one
    assert "corrected change %" in text


def test_the_index_names_the_answers(results, written):
    text = written[0].index.read_text()
    assert results.hash in text
    assert "200 resamples, 199 permutations" in text
    assert not re.search(r"20\d\d-\d\d", text)  # no date: the same answers give the same bytes


def test_the_same_answers_give_the_same_bytes(results, written, tmp_path):
    again = invented_study.results(invented_study.plan(methods=METHODS), say)
    write(again, tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == sorted(path.name for path in written[1].iterdir())
    for name in names:
        assert (tmp_path / name).read_bytes() == (written[1] / name).read_bytes(), name

    def other(cell, item, rng):
        given = say(cell, item, rng)
        return "A" if cell.method == "ggss" and cell.task == "mcq" else given

    write(invented_study.results(invented_study.plan(methods=METHODS), other), tmp_path)
    changed = [name for name in names if (tmp_path / name).read_bytes() != (written[1] / name).read_bytes()]
    assert {"README.md", "main_results.md", "results_report.csv"} <= set(changed)


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
        "component_ablation",
        "significance",
        "alpha_choices",
        "heldout_alpha",
        "heldout_methods",
        "alpha_dial",
        "prompt_invariance",
        "results_report",
    }
    text = done.index.read_text()
    for name, reason in done.left_out.items():
        assert f"- {name}: {reason}" in text
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


SMALL = Table(
    "small",
    "What is left (lower is better)",
    "Method",
    (Column("MCQ", "one", "lower", ("", "change %")), Column("note")),
    (
        Row("none", ((Figure(20.0, (18.0, 22.0), ranked=False),), "100 % of it_")),
        Row("a|b", ((Figure(12.0, (10.0, 14.0)), Figure(-40.0, (-50.0, math.nan), "+.0f", "%", "†")), ""), "S & T"),
        Row("c", ((Figure(-0.001, None), Figure(math.nan, spec="+.0f")), "not run"), "S & T"),
    ),
    notes=("† a note",),
)


def test_markdown_by_hand():
    assert markdown(SMALL).splitlines() == [
        "# What is left (lower is better)",
        "",
        "| Method | one<br>MCQ ↓ (change %) | note |",
        "| --- | ---: | ---: |",
        "| none | 20.00 [18.00, 22.00] | 100 % of it_ |",
        "| *S & T* |  |  |",
        "| a\\|b | 12.00 [10.00, 14.00]<br>-40 % [undefined]† |  |",
        "| c | **0.00**<br>undefined | not run |",
        "",
        "- † a note",
    ]


def test_csv_by_hand():
    assert comma_separated(SMALL).splitlines() == [
        "section,Method,one MCQ,one MCQ low,one MCQ high,one MCQ change %,one MCQ change % low,one MCQ change % high,"
        "one MCQ change % mark,note",
        ",none,20,18,22,,,,,100 % of it_",
        "S & T,a|b,12,10,14,-40,-50,,†,",
        "S & T,c,-0.001,,,,,,,not run",
    ]


def test_latex_by_hand():
    lines = latex(SMALL).splitlines()
    assert r" & \multicolumn{1}{c}{\textbf{one}} & \multicolumn{1}{c}{\textbf{}} \\" in lines
    assert r"Method & \makecell[r]{MCQ $\downarrow$\\(change \%)} & note \\" in lines
    assert r"none & 20.00 [18.00, 22.00] & 100 \% of it\_ \\" in lines
    assert r"a|b & \makecell[r]{12.00 [10.00, 14.00]\\-40 \% [undefined]$^\dagger$} &  \\" in lines
    assert r"\multicolumn{3}{@{}l@{}}{\emph{S \& T}} \\" in lines


def test_a_row_of_the_wrong_length_is_refused():
    with pytest.raises(ValueError, match="row 'x' has 1 of 2 cells"):
        Table("t", "t", "m", SMALL.columns, (Row("x", ("",)),))


def test_the_command_writes_and_says_what(results, tmp_path, monkeypatch):
    import json

    import typer

    from ggss.study.results import Results

    small = invented_study.results(invented_study.plan(methods=["none", "ggss"], models=[QWEN], measures=[]))
    monkeypatch.setattr(Results, "load", classmethod(lambda cls, folder: small))
    app = typer.Typer()
    app.command()(study_tables.tables)
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
    shown = BUILDERS["prompt_baseline"](found)
    assert [row.label for row in shown.rows] == ["qwen3-vl", "entangled"]
    assert all("unreadable" in cell for row in shown.rows for cell in (row.cells[1], row.cells[3], row.cells[5]))
    capability = {row.label: row for row in BUILDERS["capability"](found).rows}["Fairness instruction"]
    assert "not run" not in capability.cells
