"""The documentation site: its nav, the pages that are made for it, and what the reference promises to name.

`make docs` builds it; this looks at its sources, which needs no MkDocs.
"""

import json
import re
from pathlib import Path

import pytest
import typer
import yaml

from experiments.tools import cli_page, docs_nav, notebook_page, site_check
from ggss.analysis.records import Record
from ggss.cli import app
from ggss.report.bundle import BundleManifest, FileHash, Origin
from ggss.steering.artefact import Description
from ggss.study.plan import MeasurePlan, MethodPlan, ModelPlan, Plan, StatisticsPlan
from ggss.study.store import _SCHEMA
from test_docs_examples import PUBLIC

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
KINDS = [
    Description,
    Record,
    Plan,
    ModelPlan,
    MethodPlan,
    MeasurePlan,
    StatisticsPlan,
    BundleManifest,
    FileHash,
    Origin,
]
NAMED = list(docs_nav.pages(CONFIG["nav"]))
FORMATS = (DOCS / "formats.md").read_text(encoding="utf-8")


def test_the_nav_names_pages_that_exist():
    missing = [name for name in NAMED if not (DOCS / name).is_file()]
    assert set(missing) <= {*docs_nav.MADE, *docs_nav.UNWRITTEN}
    kept = list(docs_nav.pages(docs_nav.present(CONFIG["nav"])))
    assert set(missing) & set(kept) == set(docs_nav.MADE)


def test_every_page_is_in_the_nav_once():
    assert len(NAMED) == len(set(NAMED))
    there = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert sorted(there - set(NAMED)) == []


def test_a_page_that_is_not_written_yet_leaves_no_hole():
    nav = [{"One": "index.md"}, {"Two": [{"Three": "no-such.md"}]}, {"Four": [{"Five": "index.md"}]}]
    assert docs_nav.present(nav) == nav, "a page that should be there stays in the nav, and MkDocs refuses it"
    unwritten = [{"One": docs_nav.UNWRITTEN[0]}]
    assert docs_nav.present(unwritten) == ([] if not (DOCS / docs_nav.UNWRITTEN[0]).is_file() else unwritten)


def test_the_site_loads_nothing_from_elsewhere():
    assert CONFIG["theme"]["font"] is False
    assert "offline" in CONFIG["plugins"]
    given = [*CONFIG["extra"]["polyfills"], *CONFIG["extra_css"], *CONFIG.get("extra_javascript", [])]
    assert all((DOCS / name).is_file() for name in given)
    assert not [path.name for path in DOCS.glob("*.md") if "```mermaid" in path.read_text(encoding="utf-8")]


def test_the_page_of_commands_has_every_command_option_and_example():
    text = cli_page.page()
    for words, verb in cli_page.verbs(typer.main.get_command(app)):
        own = text.partition(f"## ggss {' '.join(words)}\n")[2].partition("\n## ")[0]
        assert own, words
        options = [one for one in verb.params if one.param_type_name == "option" and not one.hidden]
        options = [name for one in options for name in one.opts]
        assert [name for name in options if name not in own] == []
        assert "# for example" in own
    assert "[bold]" not in text


def test_the_notebook_as_a_page_has_all_that_it_says():
    notebook = json.loads((DOCS / "tutorial.ipynb").read_text(encoding="utf-8"))
    text = notebook_page.page(notebook)
    for cell in notebook["cells"]:
        assert "".join(cell["source"]).strip() in text
    given = [output.get("data", {}) for cell in notebook["cells"] for output in cell.get("outputs", ())]
    pictures = sum("image/png" in data for data in given)
    assert text.count("data:image/png;base64,") >= pictures > 0
    assert not re.search(r'<div class="output">[^`]*?\n\s*\n[^`]*?</div>', text), "an empty line ends a block of HTML"


def test_the_reference_names_the_whole_public_api():
    text = "".join(page.read_text(encoding="utf-8") for page in DOCS.glob("api*.md"))
    named = set(re.findall(r"^::: (\S+)", text, re.MULTILINE))
    shown = [name for name in PUBLIC if name not in named and name.rpartition(".")[0] not in named]
    assert shown == []


def test_the_examples_begin_with_what_the_page_makes():
    made = re.findall(r"^(\w+(?:, \w+)*) = ", (DOCS / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
    names = {name for line in made for name in line.split(", ")}
    used = "faces vlm acts steerer model suite before after comparison recognition"
    assert set(used.split()) <= names


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_of_a_file_is_described(kind):
    assert [name for name in kind.model_fields if not re.search(rf"[`{{ ]{name}[`}},: ]", FORMATS)] == []


def test_every_table_and_column_of_the_store_is_described():
    for table, columns in re.findall(r"CREATE TABLE (\w+) \((.*?)\n?\)(?: WITHOUT ROWID)?;", _SCHEMA, re.DOTALL):
        row = next(
            line for line in FORMATS.partition("## Store")[2].splitlines() if line.startswith(f"| `{table}` |")
        )
        names = re.findall(r"(?:^|,)\s*([a-z]\w*)(?= (?:TEXT|INTEGER|REAL))", columns)
        assert names
        assert [name for name in names if f"`{name}`" not in row] == []


def test_the_check_of_the_built_site_notices(tmp_path):
    links = '<a href="two.html#there">two</a><a href="https://example.org">out</a>'
    (tmp_path / "one.html").write_text(f'<h1 id="top">One</h1>{links}<img src="a.png">')
    (tmp_path / "two.html").write_text('<p id="there">Two</p>')
    assert site_check.problems(tmp_path) == []
    wrong = '<a href="three.html">no</a><a href="one.html#no">no</a><script src="https://example.org/x.js"></script>'
    (tmp_path / "two.html").write_text(f'<p id="there">Two</p>{wrong}')
    (tmp_path / "s.css").write_text("@import url(https://example.org/font.css); a { background: url(data:x) }")
    assert len(site_check.problems(tmp_path)) == 4
