"""Every parameter of every command with hostile values: a sentence and an exit code, never a traceback."""

import ast
import re
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import typer
from typer.models import ArgumentInfo

from conftest import command_of
from ggss import cli
from ggss.cli import app

NUMBERS = ("", "-1", "0", "nan", "-inf", "1e308", "1e999", "0x10", "9" * 5000, "[/bold]")
TEXTS = (
    "",
    " ",
    "[/INST]",
    "\x1b]0;owned\x07",
    "\udcff",
    "a" * 5000,
    "/dev/null/x",
    "=1+1",
    "{a}{",
    "~nobody/x",
    "small-world/[/red]",
    "a/b",
)


def commands(group, path=()):
    """(words, parameters) of every command: name -> (type, what typer knows of it)."""
    for command in group.registered_commands:
        hints = get_type_hints(command.callback, include_extras=True)
        hints.pop("return", None)
        own = {name: (hint.__args__[0], hint.__metadata__[0]) for name, hint in hints.items()}
        yield (*path, command.name or command.callback.__name__), own
    for inner in group.registered_groups:
        yield from commands(inner.typer_instance, (*path, inner.name))


COMMANDS = dict(commands(app))


def calls(folder: Path) -> dict[tuple[str, ...], dict[str, str]]:
    """A call of each command that ends early: what it names does not exist."""
    none = str(folder / "none")
    return {
        ("demo",): {"model": none},
        ("doctor",): {"model": none},
        ("discover",): {"model": none, "images": none, "attribute": "race", "out": str(folder / "out")},
        ("ask",): {"model": none, "images_and_question": "what ?"},
        ("probe",): {"model": none},
        ("compare",): {"before": none, "after": none},
        ("recommend",): {"before": none, "after": none, "steerer": none},
        ("gate",): {"before": none, "after": none},
        ("judge",): {
            "texts": none,
            "rubric": none,
            "endpoint": "http://127.0.0.1:9",
            "model": "judge",
            "out": str(folder / "out.jsonl"),
        },
        ("export",): {"model": none, "steer": f"race={none}", "out": str(folder / "out")},
        ("report",): {"source": none, "out": str(folder / "out.html")},
        ("bundle",): {"source": none, "out": str(folder / "out.zip")},
        ("verify",): {"file": none},
        ("play",): {"model": none},
        ("serve",): {"model": none},
        ("convert",): {"source": none, "out": str(folder / "out")},
        ("methods",): {},
        ("probes",): {},
        ("data", "focus"): {"folder": none, "out": str(folder / "out.csv")},
        ("data", "pairs"): {"folder": none, "out": str(folder / "out.csv")},
        ("data", "social-counterfactuals"): {"folder": none, "out": str(folder / "out.csv")},
        ("data", "genderbias-vl"): {"folder": none, "out": str(folder / "out.csv")},
        ("data", "fairface"): {"folder": none, "out": str(folder / "out.csv")},
        ("data", "utkface"): {"folder": none, "out": str(folder / "out.csv")},
        ("data", "facet"): {"folder": none, "out": str(folder / "out.csv"), "crops": str(folder / "crops")},
        ("data", "mmstar"): {"to": none},
        ("data", "mme"): {"to": none},
        ("data", "wording"): {"folder": none, "out": str(folder / "out.yaml")},
        ("study", "new"): {"source": none},
        ("study", "plan"): {"file": none},
        ("study", "run"): {"file": none, "out": str(folder / "out")},
        ("study", "status"): {"folder": none},
        ("study", "watch"): {"folder": none},
        ("study", "export"): {"folder": none, "out": str(folder / "out.jsonl")},
        ("study", "tables"): {"directory": none},
        ("study", "recommend"): {"folder": none, "steerer": none},
        ("world", "paint"): {"folder": __file__},
        ("world", "check"): {"names": none},
        ("cache", "list"): {},
        ("cache", "prune"): {"older_than": "30d"},
    }


def spelled(words, given):
    """The command line; arguments come after `--`, so that a value may begin with a dash."""
    command = command_of(app)
    for word in words:
        command = command.commands[word]
    options, arguments = [], []
    for parameter in command.params:
        if parameter.name not in given:
            continue
        kind, info = COMMANDS[words][parameter.name]
        if isinstance(info, ArgumentInfo):
            arguments.append(given[parameter.name])
        else:
            options += [parameter.opts[0], *[given[parameter.name]] * (2 if "tuple" in str(kind) else 1)]
    return [*words, *options, "--", *arguments]


def is_number(kind):
    return bool({int, float} & {kind, *get_args(kind)})


@pytest.fixture
def run(monkeypatch, ggss_command, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GGSS_CACHE", str(tmp_path / "cache"))
    return lambda words: ggss_command(*words)


def test_the_table_has_every_command(tmp_path):
    assert calls(tmp_path).keys() == COMMANDS.keys()


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_hostile_values(run, tmp_path, words):
    base = calls(tmp_path)[words]
    for name, (kind, _) in COMMANDS[words].items():
        if kind is bool:
            continue
        for value in NUMBERS if is_number(kind) else TEXTS:
            if (words, name) == (("world", "paint"), "folder") and not value.startswith("/"):
                continue  # a name that can be painted into
            line = spelled(words, base | {name: value})
            code, out, err = run(line)
            assert code in (0, 1, 2), (line, err)
            assert "No such option" not in err, line
            assert "Traceback" not in out + err, (line, err)
            assert "\x1b" not in out + err, line
            if code == 2:
                assert err.startswith("ggss: "), (line, err)


def test_every_number_has_a_range():
    ranges = [(info.min, info.max) for own in COMMANDS.values() for kind, info in own.values() if is_number(kind)]
    assert len(ranges) > 10
    assert all(least is not None and most is not None for least, most in ranges)


def test_messages_name_options_that_exist():
    """Every option in a text of the program: in messages, in help and in examples."""

    def options(command):
        own = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        return own.union(*(options(inner) for inner in getattr(command, "commands", {}).values()))

    there = options(typer.main.get_command(app)) | {"--help"}
    sources = Path(cli.__file__).parents[1].rglob("*.py")
    texts = [
        node.value
        for path in sources
        if path.stem != "evaluation"
        and path.parent.name != "vllm_plugin"  # options of lmms-eval and of vLLM
        and path.parts[-2:] != ("report", "page.py")  # options of Chromium
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    named = {name for text in texts for name in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)}
    assert "--allow-amplify" in named
    assert named <= there


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_short_and_long_help(run, words):
    for option in ("-h", "--help"):
        code, out, _ = run([*words, option])
        assert code == 0
        assert "Usage" in out
