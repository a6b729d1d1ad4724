"""The report: all that it says is the analysis' own, text from outside is text, links lead to the items behind."""

import math
import re
import sys
from dataclasses import replace
from urllib.parse import parse_qs

import numpy as np
import pytest

import invented_study as invented
from ggss import cli
from ggss.analysis import Statistics, compare, records
from ggss.analysis.groups import group_values
from ggss.analysis.run import Run, Source
from ggss.data.pictures import AbsentPicture
from ggss.errors import InputError
from ggss.models.reading import Answer
from ggss.probes import Item
from ggss.report import cells, charts, page
from ggss.report.material import Missing, of_files, of_results
from ggss.report.people import Filters, Thumbnails, _allowed, heat_colours, shown_tasks
from ggss.stats import Interval
from ggss.study.grid import Cell
from page_reader import PACKED, read, unpacked

MEASURES = [{"tasks": ["mmstar", "recognition-race", "recognition-gender"], "at": "all"}]


def small(**changed):
    chosen = {"models": [invented.QWEN], "measures": MEASURES, "methods": ["none", "ggss", "inlp-spherical"]}
    return invented.plan(**chosen | changed)


@pytest.fixture(scope="module")
def material():
    return of_results(invented.results(small()))


@pytest.fixture(scope="module")
def html(material):
    return page.render(material)


@pytest.fixture(scope="module")
def seen(html):
    return read(html)


@pytest.mark.parametrize(
    ("value", "spec", "text"),
    [
        (-0.004, "+.1f", "+0.0"),
        (-0.0, ".0f", "0"),
        (-0.06, "+.1f", "−0.1"),
        (0.3, "+.0f", "+0"),
        (-1e6, ",.0f", "−1,000,000"),
    ],
)
def test_what_is_rounded_to_zero_has_no_minus_sign(value, spec, text):
    assert cells.number(value, spec) == text


def test_a_plan_is_shown_without_the_folders_of_a_machine():
    places = {"wording": "words.yaml", "questions": "own.yaml", "discovery": "faces.csv"}
    model = {"name": "/home/somebody/models/mine"}
    plan = small(
        models=[model],
        methods=["none", {"name": "ggss", "models": ["/home/somebody/models/mine"]}],
        benchmarks={"mmstar": "/home/somebody/MMStar.tsv"},
        suite={"name": "reflect", "images": "/home/somebody/faces.csv"},
        **{name: f"/home/somebody/{file}" for name, file in places.items()},
    )
    written = page.render(of_results(invented.results(plan)))
    shown = read(written).one("div", id="reproduce").words
    assert "somebody" not in shown
    for file in (*places.values(), "MMStar.tsv", "name: mine"):
        assert file in shown


def test_probabilities_of_some_items_are_checked_like_those_of_all(tmp_path, monkeypatch, capsys):
    run = invented.run(Cell(invented.QWEN, "none", "", 0.0, "mcq"))
    shares = [(0.7, 0.1, 0.1, 0.1), (), (0.5, 0.5), *[()] * (len(run.items) - 3)]
    answers = tuple(answer._replace(probabilities=row) for answer, row in zip(run.answers, shares, strict=True))
    file = tmp_path / "run.jsonl"
    records.write([replace(run, answers=answers)], file)
    monkeypatch.setattr(sys, "argv", ["ggss", "report", str(file), "-o", str(tmp_path / "report.html"), "--no-pdf"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert "has 4 options, but 2 probabilities" in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "report.html").exists()
    records.write([replace(run, answers=(*answers[:2], *run.answers[2:]))], file)
    cli.main()
    assert "0.70" in (tmp_path / "report.html").read_text()


def test_it_has_its_parts_with_headings_and_the_cover_is_first(seen):
    parts = [part.attributes["id"] for part in seen.one("main").parts if not isinstance(part, str)]
    assert parts == ["cover", "methods", "bias", "people", "capability", "discovery", "method"]
    for name in parts:
        assert seen.one("section", id=name).attributes["aria-labelledby"] == f"h-{name}"
        assert seen.all("h1" if name == "cover" else "h2", id=f"h-{name}")


def test_ids_are_unique_and_links_resolve(seen):
    ids = [one.attributes["id"] for one in seen.all() if "id" in one.attributes]
    assert len(ids) == len(set(ids))
    links = [one.attributes["href"] for one in seen.all("a")]
    assert len(links) > 100
    assert {link[1:] for link in links} <= set(ids)
    named = [one.attributes["aria-labelledby"] for one in seen.all() if "aria-labelledby" in one.attributes]
    assert set(named) <= set(ids)


def test_nothing_is_loaded_from_elsewhere(html, seen):
    assert not re.search(r"https?:|//[a-z]+\.[a-z]", html)
    sources = [one.attributes.get(name, "") for one in seen.all() for name in ("src", "href", "action")]
    assert all(source.startswith(("#", "data:")) or not source for source in sources)
    assert not seen.all("link")
    assert "default-src 'none'" in html


def test_every_filter_of_a_link_is_one_that_can_be_chosen(seen):
    chosen = {
        one.attributes["name"]: {o.attributes["value"] for o in one.all("option")} for one in seen.all("select")
    }
    links = [one for one in seen.all("a") if "data-filter" in one.attributes]
    for link in links:
        for name, values in parse_qs(link.attributes["data-filter"]).items():
            if name == "method":
                assert seen.one("tr", data_method=values[0])
            else:
                assert values[0] in chosen[name]
    assert len(links) > 50


def shown_by(seen, text):
    """The keys of the items that a link's filter leaves, by the rule of the page's script."""
    wanted = {name: values[0] for name, values in parse_qs(text).items()}
    section = seen.one("details", data_key=wanted["task"])
    keys = []
    for row in section.all("article", kind="row"):
        fits = ("occupation" not in wanted or row.attributes["data-o"] == wanted["occupation"]) and (
            "question" not in wanted or row.attributes["data-q"] == wanted["question"]
        )
        keys += [
            line.all("small")[0].words
            for line in (row.all("tr", kind="sub") if fits else ())
            if "group" not in wanted or wanted["group"] in line.attributes["data-g"].split()
        ]
    return sorted(keys)


@pytest.mark.parametrize(("task", "group", "what"), [("mcq", "amber", "salary"), ("nurse-doctor", "woman", "doctor")])
def test_a_number_leads_to_exactly_the_items_behind_it(seen, material, task, group, what):
    pair = next(pair for pair in material.pairs if pair.task == task)
    rows = [
        row
        for row in seen.one("section", id="bias").all("tr")
        if len(row.all("td")) == 5 and f"({what}" in row.all("td")[2].words and pair.title == row.all("td")[1].words
    ]
    link = next(row.all("a")[0] for row in rows if row.all("a") and row.all("a")[0].words == group)
    behind = sorted(
        item.key
        for item in pair.before.items
        if item.attributes[0][pair.about] == group and what in (item.question, item.context.get("occupation"))
    )
    assert behind
    assert shown_by(seen, link.attributes["data-filter"]) == behind


def test_the_table_of_bias_has_the_numbers_of_the_analysis(seen, material):
    for pair in (pair for pair in material.pairs if pair.judges_bias):
        found = compare(pair.before, pair.after, material.statistics)
        shown = found.before.display()
        cells = [cell.words for cell in seen.one("tr", id=f"b-{pair.key}").all("td")]

        def number(value, spec, scale=1.0):
            return format(scale * value, spec).replace("-", "−")

        for cell, run in zip(cells[:2], (found.before, found.after), strict=True):
            bounds = run.corrected()
            spec = f",.{shown.digits}f"
            plain, own, low, high = (
                number(x, spec, shown.scale) for x in (run.value(), bounds.estimate, bounds.low, bounds.high)
            )
            assert cell == (f"{plain} [{low}, {high}]" if plain == own else f"{plain} ({own} [{low}, {high}])")
        change, interval = found.change(), found.corrected_change
        plain, own, low, high = (
            number(x, "+.0f") for x in (change.estimate, interval.estimate, interval.low, interval.high)
        )
        assert cells[2] == (f"{plain} % [{low}, {high}]" if plain == own else f"{plain} % ({own} % [{low}, {high}])")


def test_the_table_of_capability_has_the_numbers_of_the_analysis(seen, material):
    tasks = [pair for pair in material.pairs if pair.probe.kind == "multiple-choice"]
    assert len(tasks) == 2
    for pair in tasks:
        kept = compare(pair.before, pair.after, material.statistics).accuracy()
        (row,) = [row for row in seen.all("tr") if row.all("a", href=f"#lost-{pair.key}")]
        cells = [cell.words for cell in row.all("td")]
        assert cells[4] == f"{kept.lost}, {kept.gained}"
        assert cells[1].startswith(f"{100 * kept.before.estimate:.1f} ")
        assert cells[3].replace("−", "-").startswith(f"{100 * kept.change.difference:+.1f} ")
        lost = seen.one("details", id=f"lost-{pair.key}")
        right = {
            item.key
            for item, before, after in zip(pair.before.items, pair.before.texts, pair.after.texts, strict=True)
            if before == item.expected != after
        }
        assert kept.lost == len(right) > 0
        assert {head.all("small")[0].words for head in lost.all("th") if head.all("small")} == right


def test_every_strength_and_average_is_the_studys(seen, material):
    figures = material.figures
    for label, name in (("ggss", "GGSS"), ("inlp-spherical", "INLP (sph.)")):
        alpha = figures.alpha(invented.QWEN, label)
        table = seen.one("table", id="strength-table")
        (row,) = [r for r in table.all("tr") if name in [h.words for h in r.all("th")]]
        cells = [cell.words.replace("−", "-") for cell in row.all("td")]
        assert cells[1] == f"{alpha:g}"
        assert cells[2] == f"{figures.average(invented.QWEN, label, alpha).estimate:+.0f} %"
        average = figures.corrected_average(invented.QWEN, label, alpha)
        assert cells[3].startswith(f"{average.estimate:+.0f} % [{average.low:+.0f}, ")
        changes = [turn.change for turn in figures.held_out(invented.QWEN, label)]
        assert cells[6] == f"{np.mean(changes):+.0f} %"
        (cell,) = [
            row.all("td")[0] for row in seen.one("table", kind="matrix").all("tr") if row.words.startswith(name)
        ]
        assert cell.words.replace("−", "-").startswith(
            f"{figures.average(invented.QWEN, label, alpha).estimate:+.0f}"
        )
        assert cell.one("a").attributes["href"] == f"#{row.attributes['id']}"


HOSTILE = "<script>alert(1)</script>\"'&<img src=x onerror=alert(2)>\u202eabc\x1b[2J"


@pytest.fixture(scope="module")
def hostile():
    """A study whose plan, prompts, answers and labels try to be markup."""
    plan = small(name=f"study {HOSTILE}", description=HOSTILE)

    def say(cell, item, rng):
        return HOSTILE if rng.random() < 0.2 else invented.answer(cell, item, rng)

    results = invented.results(plan, say)

    def spoiled(item):
        shown = tuple({name: v.replace("jade", HOSTILE) for name, v in own.items()} for own in item.attributes)
        return replace(item, prompt=HOSTILE, attributes=shown)

    runs = {cell: replace(run, items=tuple(map(spoiled, run.items))) for cell, run in results._runs.items()}
    results._runs = runs
    return page.render(of_results(results))


def test_hostile_text_is_text(hostile):
    seen = read(hostile)
    assert PACKED.search(hostile)
    assert len(seen.all("script")) == 1
    assert not seen.all("img")
    assert not [one for one in seen.all() for name in one.attributes if name.startswith("on")]
    shown = HOSTILE.replace("\x1b", "\\x1b")
    assert seen.one("h1").text.endswith(f"study {shown}")
    assert any(one.text == shown for one in seen.one("section", id="people").all("q", dir="auto"))
    assert "\x1b" not in seen.text
    charts = [one.text for one in seen.all("text", **{"class": "name"})]
    assert shown in charts


def test_right_to_left_text_is_kept_apart(hostile):
    """It cannot turn round what stands beside it: every such text is isolated, by `bdi` or by its own direction."""
    for one in read(hostile).one("section", id="people").all():
        own = "".join(part for part in one.parts if isinstance(part, str))
        if "\u202e" in own:
            assert one.tag == "bdi" or one.attributes.get("dir") == "auto"


def test_a_public_page_has_neither_pictures_nor_raw_answers():
    words = "The answer, it seems, is plainly option A."

    def say(cell, item, rng):
        return words if cell.task == "mcq" else invented.answer(cell, item, rng)

    found = of_results(invented.results(small(), say))
    assert words in unpacked(page.render(found))
    public = unpacked(page.render(found, public=True))
    assert words not in public
    assert "<symbol" not in public
    assert "public version" in public


def test_an_unfinished_study_says_what_is_missing():
    def keep(cell: Cell) -> bool:
        return cell.method == "none"

    missing = [Missing(invented.QWEN, "none", "Unsteered on org/qwen3-vl: 3 of 9")]
    side = [Missing(invented.QWEN, "inlp-spherical", f"INLP on org/qwen3-vl: {n} of 9") for n in range(2)]
    found = of_results(invented.results(small(), keep=keep), missing=[*missing, *side])
    seen = read(page.render(found))
    assert "Unsteered on org/qwen3-vl: 3 of 9" in seen.one(id="missing").words
    assert "This study is not finished." in seen.one(id="missing").words
    assert "INLP" not in seen.one("section", id="cover").words, "side methods are a footnote"
    assert "INLP on org/qwen3-vl: 1 of 9" in seen.one("details", id="left-out").words
    ended = read(page.render(replace(found, ended=True)))
    assert "Not everything could be run." in ended.one(id="missing").words
    assert not read(page.render(replace(found, missing=tuple(side)))).all(id="missing")
    assert "not run" in seen.one("tr", id=f"b-{found.pairs[0].key}").words
    with pytest.raises(InputError, match="no complete unsteered run"):
        of_results(invented.results(small(), keep=lambda cell: cell.method != "none"))


def test_a_task_under_the_steering_of_another_attribute_says_so(material):
    pair = material.models[0].bias[0]
    assert pair.title == pair.task_title
    other = replace(pair, attribute="hair")
    assert other.title == f"{pair.task_title}, under hair steering"
    assert replace(other, after=None).title == pair.task_title


def test_an_answer_that_nobody_gives_any_more_has_a_share_of_zero():
    """But not where nothing could be read."""

    def silent(cell, item, rng):
        said = invented.answer(cell, item, rng)
        return "B" if cell.task == "mcq" and cell.method == "ggss" else said

    material = of_results(invented.results(small(measures=[]), silent))
    (pair,) = [pair for pair in material.pairs if pair.task == "mcq"]
    charts = [one for one in page._group_charts(material, Filters()) if one.pair is pair]
    before = [one for one in pair.groups_before if one.answer == "A"]
    assert before
    assert not [one for one in pair.groups_after if one.answer == "A"]
    shown = [after for chart in charts if "“" in chart.title for _, _, after, _ in chart.rows]
    assert {after.split(" ")[0] for after in shown} == {"0.0", "100.0"}
    numbers = page._given_by_nobody(before[0], pair.groups_after)
    assert {one.estimate for one in numbers.values.values()} == {0.0}
    assert page._given_by_nobody(before[0], []) is None


def test_names_in_the_plane_stay_inside_it_and_apart():
    def at(x, y):
        return Interval(x, x, x, 0.95, "jackknife", 8), Interval(y, y, y, 0.95, "jackknife", 8)

    points = [charts.Point(f"m{n}", *at(30 + n, -0.1 * n), "other", charts.Link("#")) for n in range(5)]
    points.append(charts.Point("far", *at(60, -15), "main", charts.Link("#")))
    heights = [
        float(y) for y in re.findall(r'class="label[^"]*" x="[\d.]+" y="([\d.]+)"', charts.plane(points, "", "", ""))
    ]
    assert len(heights) == 6
    assert all(20 <= y <= 310 for y in heights)
    assert min(abs(a - b) for n, a in enumerate(heights) for b in heights[:n]) >= 12
    unknown = charts.Point("unread", *at(math.nan, -60), "other", charts.Link("#"))
    assert charts.plane([*points, unknown], "", "", "") == charts.plane(points, "", "", "")


def test_a_mean_over_fewer_tasks_is_a_hollow_mark():
    values = {alpha: Interval(50, 40, 60, 0.95, "jackknife", 8) for alpha in (0.5, 1.0, 1.5)}
    drawn = charts.dial([charts.DialLine("bias left", "bias", values, frozenset({1.5}))], 1.0, "")
    assert drawn.count('class="dot bias part"') == 1
    assert drawn.count('class="dot bias"') == 2
    assert "at α = 1.5: 50.0 %, of fewer tasks" in drawn


def test_groups_are_those_of_the_metric():
    """The gap between the groups' shares is the published metric; the spread of win rates is another."""
    cell = Cell(invented.QWEN, "none", "", 0.0, "nurse-doctor")
    run = invented.run(cell)
    (nurses,) = [one for one in group_values(run) if (one.answer, one.occupation) == ("nurse", "nurse")]
    shares = {group: one.estimate for group, one in nurses.values.items()}
    assert abs(shares["woman"] - shares["man"]) == pytest.approx(float(run.metric))
    for group, share in shares.items():
        said = [
            answer == "nurse"
            for item, answer in zip(run.items, run.texts, strict=True)
            if item.attributes[0]["gender"] == group and item.context["occupation"] == "nurse"
        ]
        assert share == pytest.approx(np.mean(said))
        assert 0 <= nurses.values[group].low <= share <= nurses.values[group].high <= 1
    pairs = invented.run(cell._replace(task="2afc"))
    (won,) = group_values(pairs)
    assert np.std([one.estimate for one in won.values.values()]) == pytest.approx(float(pairs.metric))
    paid = invented.run(cell._replace(task="ceo"))
    (means,) = group_values(paid)
    assert not means.is_share
    men = [int(a) for i, a in zip(paid.items, paid.texts, strict=True) if i.attributes[0]["gender"] == "man"]
    assert means.values["man"].estimate == pytest.approx(np.mean(men))


def test_too_many_items_leave_out_those_that_changed_least(material):
    tasks = shown_tasks(material, Thumbnails(True), Filters(), most=200)
    assert sum(task.items for task in tasks) < 400
    for task in tasks:
        assert task.left_out > 0
        assert len(task.rows) - len(task.rest) == 10
        shifts = [row.changed for row in task.rest]
        assert shifts == sorted(shifts, reverse=True)


@pytest.mark.parametrize(
    ("sizes", "most", "each"),
    [((10, 20), 30, math.inf), ((10, 20, 300), 90, 60), ((100, 100), 60, 30), ((5, 40, 50, 1000), 200, 105)],
)
def test_small_tasks_are_shown_whole_and_large_ones_alike(sizes, most, each):
    assert _allowed(sizes, most) == each
    assert sum(min(size, each) for size in sizes) == min(most, sum(sizes))


def test_heat_goes_from_dark_at_the_gates_floor_to_bright():
    light = heat_colours(np.array([[0.3, 0.65, 1.0]]), 0.3).sum(-1)[0]
    assert light[0] < light[1] < light[2]
    assert (heat_colours(np.array([[0.3]]), 0.3) == heat_colours(np.array([[0.0]]), 0.0)).all()


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["ggss", *map(str, arguments)])
    code = 0
    try:
        cli.main()
    except SystemExit as ended:
        code = ended.code
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_two_files_of_a_probe(tmp_path, monkeypatch, capsys):
    tasks = ("nurse-doctor", "recognition-gender")
    before = [invented.run(Cell(invented.QWEN, "none", "", 0.0, task)) for task in tasks]
    after = [invented.run(Cell(invented.QWEN, "ggss", "gender", 1.0, task)) for task in tasks]
    files = [tmp_path / name for name in ("before.jsonl", "after.jsonl")]
    for runs, file in zip((before, after), files, strict=True):
        records.write(runs, file)
    out = tmp_path / "page.html"
    code, said, _ = run(monkeypatch, capsys, "report", *files, "-o", out, "--no-pdf")
    assert (code, str(out) in said) == (0, True)
    seen = read(out.read_text(encoding="utf-8"))
    change = compare(before[0], after[0], Statistics()).corrected_change
    assert f"{change.estimate:+.0f} %".replace("-", "−") in seen.one("section", id="bias").words
    # The same command may replace its page, and one run alone has one, too.
    code, _, _ = run(monkeypatch, capsys, "report", files[0], "-o", out, "--no-pdf")
    assert code == 0
    assert "No steered run is reported" in out.read_text(encoding="utf-8")


def test_an_edited_run_is_neither_reported_nor_compared(tmp_path, monkeypatch, capsys):
    whole, edited, out = (tmp_path / name for name in ("whole.jsonl", "edited.jsonl", "page.html"))
    records.write([invented.run(Cell(invented.QWEN, "none", "", 0.0, "nurse-doctor"))], whole)
    lines = whole.read_text().splitlines(keepends=True)
    other = lines[3].replace('"answer": "nurse"', '"answer": "doctor"')
    if other == lines[3]:
        other = lines[3].replace('"answer": "doctor"', '"answer": "nurse"')
    assert other != lines[3]
    edits = {"line 4: it was changed": [*lines[:3], other, *lines[4:]], "has lost lines": lines[1:]}
    for said, content in edits.items():
        edited.write_text("".join(content))
        for words in (("report", edited, "-o", out), ("report", whole, edited, "-o", out)):
            code, _, err = run(monkeypatch, capsys, *words, "--no-pdf")
            assert code == 2
            assert said in err
            assert not out.exists()
        code, shown, err = run(monkeypatch, capsys, "compare", whole, edited)
        assert (code, shown) == (2, "")
        assert said in err


def test_what_cannot_be_reported_is_refused_before_anything_is_written(tmp_path, monkeypatch, capsys):
    other = tmp_path / "mine.html"
    other.write_text("my page")
    file = tmp_path / "a.jsonl"
    records.write([invented.run(Cell(invented.QWEN, "none", "", 0.0, "mcq"))], file)
    for arguments, words in (
        ((file, "-o", other), "--force"),
        ((tmp_path / "none.jsonl", "-o", tmp_path / "x.html"), "there is no file"),
        ((tmp_path, "-o", tmp_path / "x.html"), "no study"),
        ((file, "--gates", "-o", tmp_path / "x.html"), "are of a study"),
        ((tmp_path, file, "-o", tmp_path / "x.html"), "is a study"),
    ):
        code, _, err = run(monkeypatch, capsys, "report", *arguments, "--no-pdf")
        assert (code, words in err) == (2, True), err
    assert other.read_text() == "my page"
    assert not (tmp_path / "x.html").exists()


@pytest.mark.parametrize("value", [0.0, 40.0, 50.0, 100.0])
def test_labels_of_lines_that_end_together_are_apart(value):
    """They were once moved up and down for ever."""
    same = {alpha: Interval(value, value - 5, value + 5, 0.95, "jackknife", 8) for alpha in (0.5, 1.0)}
    lines = [charts.DialLine(f"line {n}", "bias", same) for n in range(9)]
    drawn = str(charts.dial(lines, 1.0, "dial"))
    heights = sorted(float(y) for y in re.findall(r'<text class="label bias" x="[\d.]+" y="([-\d.]+)"', drawn))
    assert len(heights) == 9
    assert min(np.diff(heights)) > charts.LABEL - 0.01


def written_material(tmp_path):
    """Two runs with texts about two people; one text is hostile."""
    return of_files(*_texts(tmp_path), Statistics(resamples=20, permutations=20))


def _texts(tmp_path):
    """The files of those runs."""
    items = tuple(
        Item(
            f"letter/{person}/{race}",
            "write a letter",
            (AbsentPicture(f"{person}{race}"),),
            ({"race": race},),
            person,
            "letter",
            about="race",
            context={"identity": person},
            lexicons={"mention": ("amber", "jade")},
        )
        for person in ("ann", "bob")
        for race in ("amber", "coral", "jade")
    )
    hostile = 'a kind </p><script>alert("x")</script> person'
    texts = [hostile, "a tall person", "a tall person", "a skilled jade person", "a tall person", "a tall person"]
    source = Source("m", suite="s", suite_hash="1")
    before = Run("writing", items, tuple(Answer(text) for text in texts), source)
    steered = replace(source, method="pace", attribute="race", alpha=1.0)
    after = replace(before, answers=tuple(Answer("a tall person") for _ in items), source=steered)
    for name, run in (("before", before), ("after", after)):
        records.write([run], tmp_path / name)
    return tmp_path / "before", tmp_path / "after"


def test_texts_stand_side_by_side_and_what_differs_is_marked(tmp_path):
    material = written_material(tmp_path)
    html = page.render(material)
    assert "<script>alert" not in html
    rows = read(unpacked(html)).all("article")
    assert [row.attributes["class"] for row in rows] == ["row written"] * 2
    marks = [[mark.text for mark in row.all("mark")] for row in rows]
    assert sorted(marks) == [["kind", "p", "script", "alert", "x", "script"], ["skilled jade"]]
    assert 'alert("x")' in rows[0].text + rows[1].text
    assert all("no longer depends on race" in row.text for row in rows)


JUDGE = {"judge": "vlm", "judge's endpoint": "http://localhost:8000/v1"}


@pytest.mark.parametrize(
    ("source", "task", "command"),
    [
        (
            Source("org/m", suite="questions"),
            "writing-speech",
            "ggss probe org/m --suite reflect --images MANIFEST --questions QUESTIONS.yaml --tasks writing-speech "
            "-o run.jsonl",
        ),
        (
            Source("small-world/llava", suite="questions"),
            "writing-speech",
            "ggss probe small-world/llava --suite small-world --questions QUESTIONS.yaml --tasks writing-speech "
            "-o run.jsonl",
        ),
        (
            Source("org/m, judged by vlm", suite="reflect, judged", identity=JUDGE),
            "judged-competence",
            "ggss judge RUN.jsonl --rubric RUBRIC.yaml --endpoint http://localhost:8000/v1 --model vlm -o run.jsonl",
        ),
    ],
)
def test_the_command_that_asks_a_run_again(tmp_path, source, task, command):
    run = records.load(_texts(tmp_path)[0])["writing"]
    items = tuple(replace(i, options={"A": "a", "B": "b"}, worth={"A": 0.0, "B": 1.0}) for i in run.items)
    run = replace(run, task=task, source=replace(source, suite_hash="1"))
    run = replace(run, items=items, answers=(Answer("A"),) * len(items)) if task.startswith("judged") else run
    records.write([run], tmp_path / "run.jsonl")
    assert of_files(tmp_path / "run.jsonl").commands[0] == command


def test_the_command_has_the_labels_of_a_judged_run_and_the_suite_beside_the_questions(tmp_path):
    run = records.load(_texts(tmp_path)[0])["writing"]
    items = [replace(i, options={"A": "a", "B": "b"}, worth={"A": 0.0, "B": 1.0}, expected="A") for i in run.items]
    judged = replace(run, task="judged-x", items=tuple(items), answers=(Answer("A"),) * len(items))
    records.write([judged], tmp_path / "run.jsonl")
    command = (
        "ggss judge RUN.jsonl --rubric RUBRIC.yaml --endpoint URL --model JUDGE --labels LABELS.csv -o run.jsonl"
    )
    assert of_files(tmp_path / "run.jsonl").commands[0] == command
    both = [replace(run, task=f"writing-{n}", source=replace(run.source, suite=n)) for n in ("questions", "reflect")]
    records.write(both, tmp_path / "run.jsonl")
    command = of_files(tmp_path / "run.jsonl").commands[0]
    assert "m --suite reflect --images MANIFEST --questions QUESTIONS.yaml --tasks" in command


def test_a_public_page_has_no_texts(tmp_path):
    html = unpacked(page.render(written_material(tmp_path), public=True))
    assert "skilled jade" not in html
    assert "competence, mention" in html
