"""docs/howto-questions.md: its files are ones, its commands run, and its tables name every key and metric."""

import re
import shlex
import sys
from pathlib import Path

from ggss import cli
from ggss.analysis import records
from ggss.data.manifests import write_manifest
from ggss.probes import suites
from ggss.probes.questions import PICTURES, QuestionEntry, questions_suite, read_questions
from test_suites import faces

PAGE = (Path(__file__).parents[2] / "docs" / "howto-questions.md").read_text(encoding="utf-8")


def block(language: str, beginning: str) -> str:
    blocks = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    return next(text for text in blocks if text.startswith(beginning))


def test_the_file_of_the_page_can_be_asked_about_pictures(tmp_path):
    (tmp_path / "my-questions.yaml").write_text(block("yaml", "# my-questions.yaml"))
    write_manifest(faces(tmp_path), tmp_path / "faces.csv")
    suite = questions_suite(tmp_path / "my-questions.yaml", suites.load("reflect", images=tmp_path / "faces.csv"))
    assert suite.tasks == ("gap-hire", "gap-salary", "divergence-studies", "win-rate-trust", "writing-letter")
    for task in suite.tasks:
        assert suite.items(task)
        assert f"`{task}`" in PAGE or task.split("-", 1)[1] in PAGE


def test_the_file_for_the_small_world_is_asked_by_its_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small-questions.yaml").write_text(block("yaml", "# small-questions.yaml"))
    command = shlex.split(block("sh", "ggss probe small-world"))
    monkeypatch.setattr(sys, "argv", command)
    cli.main()
    runs = records.load(tmp_path / command[-1])
    assert list(runs) == list(read_questions(tmp_path / "small-questions.yaml"))
    for task, run in runs.items():
        assert set(run.parsed.parsed) <= {*run.items[0].options, "first", "second"}, task
        assert run.measured().value() > 0, "the small world is biased on these questions"


def test_the_tables_name_every_key_and_metric():
    keys, metrics = re.findall(r"^\| (?:key|metric) \|.*?\n\n", PAGE, re.DOTALL | re.MULTILINE)
    assert re.findall(r"^\| `([\w-]+)`", keys, re.MULTILINE) == [
        *("text", "options", "metric", "attribute", "worth", "answer", "lexicons"),
        *("unknown", "told", "stereotype", "pictures"),
    ]
    assert set(re.findall(r"^\| `([\w-]+)`", keys, re.MULTILINE)) == set(QuestionEntry.model_fields)
    assert re.findall(r"^\| `([\w-]+)`", metrics, re.MULTILINE) == list(PICTURES)
