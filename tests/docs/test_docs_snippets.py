"""README and docs: every Python snippet runs, every `ggss` command runs or at least parses, as they stand.

A command that names `org/model`, or a word in capitals such as MODEL, is for the reader to fill in: it is parsed by
the command line's own parser and not run. Neither is what comes after it in its block: it may need what that wrote.
"""

import re
import shlex
import sys
from collections.abc import Iterator
from itertools import chain, takewhile
from pathlib import Path

import pytest
import torch
import typer
import yaml

import ggss
from conftest import noise
from ggss import cli
from ggss.analysis.policy import Policy
from ggss.methods.registry import METHODS
from ggss.models.families import FAMILIES
from ggss.probes import suites
from ggss.probes.base import PROBES
from ggss.probes.suites import SUITES
from ggss.report.tables import TABLES
from planted import planted
from test_mme import write_picture
from test_mmstar import row, write

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TO_FILL_IN = re.compile(r"org/\w+|\b[A-Z]{3,}\b|\.\.\.|…")
COMMAND = typer.main.get_command(cli.app)


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def words(line: str) -> list[str]:
    return shlex.split(line, comments=True)


def by_block(page: Path) -> list[list[list[str]]]:
    """The `ggss` commands in each of a page's shell blocks, without their comments and broken lines."""
    lines = [text.replace("\\\n", " ").splitlines() for text in blocks(page, "sh")]
    return [[words(line)[1:] for line in block if line.startswith("ggss ")] for block in lines]


def commands(page: Path) -> list[list[str]]:
    return [command for block in by_block(page) for command in block]


def mentioned(page: Path) -> list[list[str]]:
    """The `ggss` commands within sentences; they may be shortened."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return [words(found.replace("\n", " "))[1:] for found in re.findall(r"`(ggss [^`]+)`", text)]


def leaves(command=COMMAND, path=()) -> Iterator[tuple[tuple[str, ...], object]]:
    if hasattr(command, "commands"):
        for name, own in command.commands.items():
            yield from leaves(own, (*path, name))
    else:
        yield path, command


VERBS = dict(leaves())


def parse(arguments: list[str]) -> None:
    """As the command line would, without running it; a wrong or hidden option, argument or value raises."""
    path, command = next((path, own) for path, own in VERBS.items() if tuple(arguments[: len(path)]) == path)
    context = command.make_context(" ".join(path), arguments[len(path) :])
    for parameter in command.params:
        if getattr(parameter, "hidden", False) and context.params[parameter.name] != parameter.default:
            raise ValueError(f"{parameter.opts[0]} is hidden: it only says what to type instead")


def to_fill_in(arguments: list[str]) -> bool:
    return any(TO_FILL_IN.search(word) for word in arguments)


PYTHON = [(page, code) for page in PAGES for code in blocks(page, "python")]
SHELL = [(page, command) for page in PAGES for command in commands(page)]


def test_there_are_snippets():
    assert len(PYTHON) >= 7
    assert len(SHELL) >= 25
    assert sum(to_fill_in(command) for _, command in SHELL) < len(SHELL) / 2


@pytest.fixture
def somewhere(tmp_path, monkeypatch):
    """An empty folder, and registries that are as before afterwards."""
    for table in (METHODS, PROBES, SUITES, FAMILIES, TABLES):
        table.names()
        monkeypatch.setattr(table, "_entries", dict(table._entries))
        monkeypatch.setattr(table, "_packages", dict(table._packages))
    monkeypatch.setenv("GGSS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "somewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def given(page: Path, folder: Path, monkeypatch, tiny) -> dict[str, object]:
    """What the text around a snippet says that the reader has."""
    if page.name == "capability.md":
        write(folder / "MMStar.tsv", [row(index) for index in range(4)])
        for number in range(2):
            write_picture(folder / "data" / "MME_Benchmark", "color", f"{number}", number)
        monkeypatch.setenv("GGSS_DATA", str(folder))
    if page.name == "methods.md":
        vlm = tiny("llava-vicuna")
        rows, images = torch.randn(8, 64), torch.zeros(8, dtype=torch.long)
        known = {"ggss": ggss, "vlm": vlm, "activations": planted()[0]}
        return {**known, "rows": rows, "images": images, "picture": noise(0)}
    return {}


@pytest.mark.parametrize(("page", "code"), PYTHON, ids=[f"{page.stem}-{i}" for i, (page, _) in enumerate(PYTHON)])
def test_a_python_snippet_runs(page, code, somewhere, monkeypatch, tiny):
    names = given(page, somewhere, monkeypatch, tiny)
    exec(compile(code, page.name, "exec"), {"__name__": "snippet", **names})


@pytest.mark.parametrize(("page", "arguments"), SHELL, ids=[" ".join(own)[:40] for _, own in SHELL])
def test_a_command_parses(page, arguments):
    parse(arguments)


def test_the_workflow_of_the_gate_calls_commands_that_exist():
    workflow = next(
        yaml.safe_load(text) for text in blocks(ROOT / "docs" / "howto-gate.md", "yaml") if "jobs:" in text
    )
    steps = [step["run"] for step in workflow["jobs"]["gate"]["steps"] if "run" in step]
    called = [words(line)[1:] for line in steps if line.startswith("ggss ")]
    assert [arguments[0] for arguments in called] == ["probe", "gate"]
    for arguments in called:
        parse(arguments)


def test_the_policy_of_the_page_is_one(tmp_path):
    policy = next(text for text in blocks(ROOT / "docs" / "howto-gate.md", "yaml") if "max_bias" in text)
    (tmp_path / "policy.yaml").write_text(policy)
    shown = Policy.load(tmp_path / "policy.yaml")
    assert shown.model_copy(update={"tasks": {}}) == Policy(), "what is shown are the defaults"
    assert shown.model_fields_set == set(Policy.model_fields), "and every rule is shown"


@pytest.mark.parametrize(
    "arguments",
    [
        ["probe", "m", "--tasks"],
        ["probe", "--no-such"],
        ["probe", "--compare", "a", "b"],
        ["study", "plan"],
        ["ask"],
    ],
)
def test_a_command_that_is_wrong_does_not(arguments):
    with pytest.raises(Exception, match=r"--tasks|--no-such|--compare is hidden|file|model"):
        parse(arguments)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_verbs_and_options_within_sentences_exist(page):
    for arguments in mentioned(page):
        named = [word for word in arguments if re.fullmatch(r"[a-z]+", word)]
        path = tuple(named[: 2 if named[:1] in (["study"], ["world"]) else 1])
        verbs = [verb for own, verb in VERBS.items() if own[: len(path)] == path]
        assert verbs, arguments
        parameters = [parameter for verb in (COMMAND, *verbs) for parameter in verb.params]
        options = {option for own in parameters if not getattr(own, "hidden", False) for option in own.opts}
        assert {word for word in arguments if word.startswith("-")} <= {*options, "--help"}, arguments


def shown(verb) -> str:
    """The help of a command, with the example at its end."""
    return f"{verb.help or ''}\n{verb.epilog or ''}"


def test_examples_in_the_help_of_a_command_parse():
    seen = 0
    for verb in VERBS.values():
        for line in re.findall(r"^ *(?:Example: )?ggss (.+)$", shown(verb), re.MULTILINE):
            parse(words(line))
            seen += 1
    assert seen >= 12


def test_make_targets_that_are_named_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for page in PAGES for name in re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(), re.MULTILINE)}
    assert {"demo", "test"} <= named <= targets


def test_readme_says_how_to_get_torch_without_cuda_before_ggss_brings_it():
    """`pip install ggss` alone takes torch as the registry has it, with gigabytes of CUDA on Linux."""
    installed = [
        line for block in blocks(ROOT / "README.md", "sh") for line in block.splitlines() if "pip install" in line
    ]
    (torch_first,) = [line for line in installed if "--index-url https://download.pytorch.org/whl/cpu" in line]
    assert " torch" in torch_first
    after = installed[installed.index(torch_first) + 1 :]
    assert any(re.search(r"pip install (\.|'?ggss)", line) for line in after)


def test_the_small_world_knows_the_questions_that_are_asked_of_it():
    suite = suites.load("small-world")
    people = [task for task in suite.tasks if task not in ("smallstar", "smallmme")]
    known = {item.prompt for task in people for item in suite.items(task)}
    asked = [own for page in PAGES for own in commands(page) if own[0] == "ask" and own[1].startswith("small-world/")]
    asked += [words(line)[1:] for line in re.findall(r"ggss ask small-world.*", shown(VERBS["ask",]))]
    questions = [next(word for word in own if " " in word) for own in asked]
    questions += re.findall(r'vlm\.answer\(\["(.*?)"\]', (ROOT / "README.md").read_text())
    assert len(questions) >= 3
    assert set(questions) <= known


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


# `make test-wheel` runs walks.md.
@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if commands(page) and page.stem != "walks"], ids=lambda page: page.stem
)
def test_commands_run_one_after_the_other(page, somewhere, monkeypatch, capsys):
    for text in blocks(page, "yaml"):
        if named := re.match(r"# ([\w-]+\.yaml)\n", text):
            (somewhere / named[1]).write_text(text)
    complete = [takewhile(lambda command: not to_fill_in(command), block) for block in by_block(page)]
    for arguments in chain.from_iterable(complete):
        monkeypatch.setattr(sys, "argv", ["ggss", *arguments])
        assert exit_code() == 0, (arguments, capsys.readouterr().err)
        assert capsys.readouterr().out, arguments


def exit_code() -> int:
    try:
        cli.main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0
