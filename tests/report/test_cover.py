"""A person who reads only the cover says the same as one who reads the tables: both are read here, as text.

The tables on the page, and those that `ggss study tables` writes; of invented studies, and of the study in `results`.
"""

import csv
import re
from pathlib import Path

import pytest

import invented_study as invented
from ggss.report import page, tables
from ggss.report.material import of_results
from page_reader import Element, read

RESULTS = Path(__file__).parents[2] / "results" / "small-world"
OTHERS = ["org/two", {"name": invented.CONTROL, "control": True}]


class Reader:
    """What the tables of a page say of the models that are no controls."""

    def __init__(self, seen: Element) -> None:
        self.seen, self.cover = seen, seen.one("section", id="cover")
        self.heat = [row for row in seen.one("table", kind="heat").all("tr") if row.all("th", kind="m")]
        controls = {_model(row) for row in self.heat if row.all("th", kind="m")[0].all("small")}
        self.models = list(dict.fromkeys(model for row in self.heat if (model := _model(row)) not in controls))

    def sentence(self, heading: str) -> str:
        words = [one.words for one in self.cover.all("p", kind="sentence")]
        return next(text.removeprefix(f"{heading}. ") for text in words if text.startswith(f"{heading}. "))

    def rows(self, section: str, label: str) -> list[Element]:
        """The rows of the tables with this label, model by model."""
        wide = {one.attributes.get("aria-label", ""): one for one in self.seen.one("section", id=section).all("div")}
        return [row for model in self.models for row in wide[f"{label}{model}"].all("tr") if row.all("td")]


def _model(row: Element) -> str:
    return str(row.all("th", kind="m")[0].parts[0]).strip()


def _verdicts(rows: list[Element]) -> list[str]:
    return [row.all("span", kind="verdict")[0].words for row in rows]


def _cell(row: Element, name: str) -> str:
    return next(cell.words for cell in row.all("td") if cell.attributes.get("data-l") == name)


def _numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"[-+]?\d+(?:\.\d+)?", text.replace("−", "-").replace("–", " "))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("studies")


@pytest.fixture(scope="module", params=["one model", "models and a control", "the study"])
def case(request, folder):
    """A page, and the folder of the same study's tables."""
    if request.param == "the study":
        return Reader(read((RESULTS / "report.html").read_text(encoding="utf-8"))), RESULTS
    plan = invented.plan(
        models=[invented.QWEN, *(OTHERS if "control" in request.param else [])],
        methods=["none", "ggss"],
        measures=[{"tasks": ["mmstar", "recognition-race"], "at": "all"}],
        statistics={"resamples": 200, "permutations": 2000},
    )
    results = invented.results(plan)
    tables.write(results, folder / request.param, show=False)
    return Reader(read(page.render(of_results(results)))), folder / request.param


def test_bias_is_counted_as_the_tables_judge_it(case):
    reader, _ = case
    rows = [row for row in reader.rows("bias", "Bias by task, ") if "mean" not in row.attributes.get("class", "")]
    words, verdicts = reader.sentence("Bias"), _verdicts(rows)
    less, of = re.search(r"Less bias in (\d+) of (\d+) task", words).groups()
    assert (int(less), int(of)) == (verdicts.count("less bias"), len(verdicts))
    for heading, text in (("More bias", "more bias"), ("Inconclusive", "inconclusive")):
        count = sum(verdict.startswith(text) for verdict in verdicts)
        assert (heading in words) is bool(count)
        if told := re.search(rf"{heading} in (\d+)", words):
            assert int(told[1]) == count


def test_the_mean_is_that_of_the_tables(case):
    reader, folder = case
    rows = [row for row in reader.rows("bias", "Bias by task, ") if "mean" in row.attributes.get("class", "")]
    means = [_numbers(_cell(row, "Mean change"))[0] for row in rows]
    told = re.search(r"on average (?:by model between )?(.*?) %", reader.sentence("Bias"))[1]
    assert _numbers(told.replace(" and ", " ")) == sorted({min(means), max(means)})
    with (folder / "main_results.csv").open(encoding="utf-8", newline="") as stream:
        row = next(row for row in csv.DictReader(stream) if row["Method"] == "GGSS")
    assert [float(row[f"{model} Avg Δ%"]) for model in reader.models] == pytest.approx(means, abs=0.51)


def test_the_number_in_large_type_is_that_of_the_table_of_whose_answer_depends_on_what(case):
    reader, _ = case
    head = reader.seen.one("table", kind="heat").one("thead").all("tr")
    spans = [(th.words.removeprefix("depends on "), int(th.attributes["colspan"])) for th in head[0].all("th")[2:]]
    attributes = [attribute for attribute, count in spans for _ in range(count)]
    columns = list(zip(attributes, [th.words for th in head[1].all("th")], strict=True))
    headlines = reader.cover.all("div", kind="headline")
    assert headlines
    for one in headlines:
        attribute, before, after = re.search(
            r"on (\w+) for (\d+) % of people, steered for (\d+) %", one.words
        ).groups()
        task = re.search(r"people and questions \((.*?)[,)]", one.words)[1]
        n = columns.index((attribute, task))
        shares = [
            _numbers(row.all("td")[1 + n].words)[:2]
            for row in reader.heat
            if _model(row) in reader.models and row.all("td")[0].words == attribute
        ]
        # The same number of people and questions on each model, so that the mean of shares is the share of all.
        assert [float(before), float(after)] == pytest.approx(
            [sum(s) / len(s) for s in zip(*shares, strict=True)], abs=1
        )


def test_spill_over_is_told_if_a_cell_shows_it(case):
    reader, _ = case
    cells = [cell for row in reader.heat if _model(row) in reader.models for cell in row.all("td", kind="worse")]
    rose = [cell for cell in cells if "steered" not in cell.attributes["class"].split()]
    words = reader.sentence("What else changed")
    assert ("depend more on an attribute that is not steered" in words) is bool(rose)
    assert ("no answer depends significantly more on it" in words) is not bool(rose)


def test_cost_and_recognition_are_counted_as_the_tables_judge_them(case):
    reader, _ = case
    rows = [row for row in reader.rows("capability", "Right answers of ") if " x " not in _cell(row, "Steering")]
    names = [row.all("th")[0].words for row in rows]
    kept = [row for row, name in zip(rows, names, strict=True) if "recognition" not in name.lower()]
    verdicts = _verdicts(kept)
    same, of = re.search(r"in (\d+) of (\d+) case", reader.sentence("Cost")).groups()
    equal = sum(verdict.startswith(("equivalent", "better")) for verdict in verdicts)
    assert (int(same), int(of)) == (equal, len(verdicts))
    assert ("Worse" in reader.sentence("Cost")) is any(verdict.startswith("worse") for verdict in verdicts)
    for attribute, told in re.findall(r"Asked to name (\w+), right in (.*?) %", reader.sentence("What else changed")):
        of_attribute = [
            _numbers(_cell(row, "After"))[0]
            for row, name in zip(rows, names, strict=True)
            if "recognition" in name.lower() and attribute in name and _cell(row, "Steering") == attribute
        ]
        ends = [round(pick(of_attribute)) for pick in (min, max)]
        assert _numbers(told) == pytest.approx(sorted(set(ends)), abs=1)


def test_a_cover_that_says_more_than_its_tables_would_be_seen(case):
    """A table with one verdict turned, and the same cover: what the tests above would find."""
    reader, _ = case
    rows = [row for row in reader.rows("bias", "Bias by task, ") if "mean" not in row.attributes.get("class", "")]
    spans = [span for row in rows for span in row.all("span", kind="verdict") if span.words == "less bias"]
    spans[0].parts[:] = ["more bias"]
    with pytest.raises(AssertionError):
        test_bias_is_counted_as_the_tables_judge_it(case)
    spans[0].parts[:] = ["less bias"]
