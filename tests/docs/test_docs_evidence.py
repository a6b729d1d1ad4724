# ruff: noqa: F811 (fixtures of another file)
"""docs/howto-evidence.md: its example, with other runs than those of the small world, prints what the page says."""

import re
from dataclasses import replace

import pytest

import ggss
from ggss.analysis import records
from ggss.files import LARGEST_SUM, LARGEST_ZIPPED, MOST_ZIPPED
from planted import planted
from test_bundle import changed, edited_table, files_of
from test_cli import run  # noqa: F401 (fixtures)
from test_comparison import SOURCE, STEERED, runs
from test_docs_snippets import ROOT, blocks, by_block

PAGE = ROOT / "docs" / "howto-evidence.md"
TASKS = ("mcq", "smallstar")


def shape(line: str) -> str:
    """A line without what depends on the runs: numbers, hashes, and the name of a row."""
    line = re.sub(r"\((m|llava-vicuna), .*?\), column", "(ROW), column", line)
    return re.sub(r"\b(?=[0-9a-f]*\d)[0-9a-f]+(\.\d+)?\b", "#", line)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    steerer = ggss.fit("ggss", planted()[0], attribute="race")
    steerer.save_pretrained(tmp_path / "race-steerer")
    model = "small-world/llava-vicuna"  # the page's, of which it says a licence
    source = replace(STEERED, steerer=steerer.content_hash, model=model)
    unsteered = replace(SOURCE, model=model)
    records.write(runs(0.9, tasks=TASKS, source=unsteered).values(), tmp_path / "before.jsonl")
    records.write(runs(0.1, seed=1, tasks=TASKS, source=source).values(), tmp_path / "after.jsonl")
    return tmp_path


def test_the_example_of_the_page(run, folder):
    *_, bundle, verify = next(block for block in by_block(PAGE) if block[0][0] == "discover")
    assert run(*bundle)[0] == 0
    code, out, err = run(*verify)
    assert (code, err) == (0, "")
    equal, differs = ([shape(line) for line in text.splitlines()] for text in blocks(PAGE, "text"))
    assert [shape(line) for line in out.splitlines()[-len(equal) :]] == equal
    data, _, _ = edited_table(files_of(folder / "evidence.zip")["tables/bias.csv"], "9.9")
    changed(folder / "evidence.zip", folder / "edited.zip", {"tables/bias.csv": data})
    code, out, _ = run("verify", folder / "edited.zip")
    assert code == 1
    assert [shape(line) for line in out.splitlines() if line.startswith("DIFFERS")] == differs
    changed(folder / "evidence.zip", folder / "resigned.zip", {"tables/bias.csv": data}, resigned=True)
    out = run("verify", folder / "resigned.zip")[1]
    assert [shape(line) for line in out.splitlines() if line.startswith("DIFFERS")] == differs[1:]


def test_the_page_names_every_file_and_the_limits(run, folder):
    text = PAGE.read_text(encoding="utf-8")
    assert run("bundle", "before.jsonl", "after.jsonl", "--steerer", "race-steerer")[0] == 0
    table = text.partition("## What is in it")[2].partition("**Privacy")[0]
    for name in files_of(folder / "evidence.zip"):
        assert f"`{name}`" in table or f"`{name.partition('/')[0]}/" in table, name
    assert f"{MOST_ZIPPED:,} files, {LARGEST_ZIPPED >> 20} MiB in one file or {LARGEST_SUM >> 30} GiB" in " ".join(
        text.split()
    )
