"""What a person meets first: the help of every command, its completion, quiet, and the name that was meant."""

import inspect
import os
import re
import shlex
import subprocess
import sys
from dataclasses import fields

import pytest
import typer

from ggss import cli
from ggss.cli import app, flowing
from ggss.cli.arguments import Loading, loads_model
from ggss.cli.doctor import VARIABLES, environment
from ggss.errors import InputError, nearest, no_such
from ggss.terminal import Terminal, note, track


def verbs(command, words=()):
    """Every command that does something, with its words."""
    if not hasattr(command, "commands"):
        yield words, command
    for name, own in getattr(command, "commands", {}).items():
        yield from verbs(own, (*words, name))


VERBS = dict(verbs(typer.main.get_command(app)))


@pytest.fixture
def run(monkeypatch, ggss_command, tmp_path):
    monkeypatch.setenv("GGSS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    return ggss_command


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_help_ends_with_an_example_that_can_be_called(words, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run(*words, "--help")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "\x1b" not in out
    last = " ".join(out.rpartition("╯")[2].split())
    assert last.startswith(f"Example: ggss {' '.join(words)}"), "the last paragraph of the docstring is an example"
    given = shlex.split(last)[2 + len(words) :]
    VERBS[words].make_context("ggss", given)  # raises for an option or an argument that is not there


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_help_is_shown_as_it_is_written(words, run, monkeypatch):
    """Brackets are no markup, and no word or option is cut at 80 columns."""
    command = VERBS[words]
    written = [command.help, *(parameter.help for parameter in command.params if hasattr(parameter, "help"))]
    monkeypatch.setenv("COLUMNS", "400")
    shown = " ".join(run(*words, "-h")[1].split())
    for part in re.findall(r"\S*\[\S*", " ".join(text.replace("\\[", "[") for text in written if text)):
        assert part in shown
    monkeypatch.setenv("COLUMNS", "80")
    assert not [line for line in run(*words, "-h")[1].splitlines() if "…" in line]


LOADING = {
    "dtype": ("--dtype", "float16"),
    "device_map": ("--device", "cpu"),
    "trust_remote_code": ("--trust-remote-code",),
    "attention": ("--attention", "eager"),
}


def test_every_command_that_loads_a_model_has_the_same_options_for_it():
    """`serve` runs no code of a model, and `convert` loads one to identify it only."""
    loading = {
        words: [parameter for parameter in verb.params if parameter.name in LOADING] for words, verb in VERBS.items()
    }
    alike = [("ask",), ("discover",), ("doctor",), ("export",), ("play",), ("probe",)]
    assert {words for words, options in loading.items() if len(options) == len(LOADING)} == set(alike)
    for words in alike:
        assert [option.name for option in loading[words]] == [field.name for field in fields(Loading)], words
        assert [option.help for option in loading[words]] == [option.help for option in loading["ask",]], words


@pytest.mark.parametrize("left_out", [None, *LOADING])
def test_what_is_typed_is_how_the_model_is_loaded(left_out, run, monkeypatch):
    from ggss.models.vlm import load_vlm

    def loads(*how, **named):
        seen.update(inspect.signature(load_vlm).bind(*how, **named).arguments)
        raise InputError("loaded")

    seen = {}
    monkeypatch.setattr("ggss.models.load_vlm", loads)
    typed = [word for name, words in LOADING.items() if name != left_out for word in words]
    assert run("doctor", "small-world/pixtral", *typed)[2] == "ggss: loaded\n"
    expected = {"dtype": "float16", "device_map": "cpu", "trust_remote_code": True, "attention": "eager"}
    if left_out is not None:
        expected[left_out] = getattr(Loading(), left_out)
    assert {name: seen[name] for name in LOADING} == expected


def test_the_options_of_loading_stand_where_the_command_has_its_parameter():
    @loads_model
    def command(model: str, *, loading: Loading, as_json: bool = False) -> None:
        """What it does."""
        calls.append((model, loading, as_json))

    calls = []
    assert list(inspect.signature(command).parameters) == ["model", *LOADING, "as_json"]
    assert (command.__name__, command.__doc__) == ("command", "What it does.")
    rest = {"device_map": None, "trust_remote_code": True, "attention": None}
    command(model="m", dtype="auto", as_json=True, **rest)
    assert calls == [("m", Loading(dtype="auto", trust_remote_code=True), True)]


def test_a_paragraph_is_as_wide_as_the_screen_and_code_is_left_alone():
    assert flowing("one\ntwo\n\n  ggss a\n  ggss b\n\nthree") == "one two\n\n  ggss a\n  ggss b\n\nthree"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("discover", "--method", "gggs"), "ggss"),
        (("discovr",), "discover"),
        (("study", "statuss"), "status"),
        (("discover", "m", "--imges", "x"), "--images"),
        (("doctor", "small-world/qwen3vl"), "small-world/qwen3-vl"),
        (("doctor", "pixtral"), "small-world/pixtral"),
        (("probe", "small-world/pixtral", "--suite", "Smallworld"), "small-world"),
        (("probe", "small-world/pixtral", "--tasks", "mqc"), "mcq"),
        (("study", "new", "--from", "smallworld"), "small-world"),
        (("discover", "m", "--images", "small-world", "--attribute", "rase", "-o", "x"), "race"),
        (("discover", "m", "--images", "x", "--attribute", "race", "-o", "x", "--option", "kapa=1"), "kappa"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_an_error_suggests_the_nearest_name(words, meant, run):
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert f"did you mean {meant!r}?" in err
    assert err.count("did you mean") == 1


def test_what_is_not_near_is_not_suggested(run):
    assert nearest("zebra", ["ggss", "none"]) == ""
    assert str(no_such("no method 'zebra'", "zebra", ["ggss"])) == "no method 'zebra': there are ggss"
    assert str(no_such("no method 'x'", "x", [])) == "no method 'x': there are none"
    assert "did you mean" not in run("zebra")[2]


def test_an_option_for_all_commands_is_told_its_place(run):
    code, _, err = run("methods", "--quiet")
    assert code == 2
    assert "it is for all commands and goes before them: ggss --quiet" in err


def test_quiet_leaves_results_and_errors(run, monkeypatch, capsys):
    def work():
        note("a note")
        list(track([1, 2], "counting"))
        Terminal(stderr=True).print("left out: one")
        Terminal().print("a result")
        return capsys.readouterr()

    monkeypatch.setattr("ggss.terminal.EVERY", 0.0)
    assert work().err.count("\n") >= 3
    code, out, err = run("--quiet", "methods")
    assert (code, err) == (0, "")
    assert "ggss" in out
    assert os.environ["GGSS_QUIET"] == "1", "worker processes are quiet too"
    seen = work()
    assert (seen.out, seen.err) == ("a result\n", "")
    assert run("--quiet", "zebra")[2].startswith("ggss: No such command")


def test_completion_is_installed_and_answers(tmp_path):
    """By bash, in a home of its own."""
    program = "import sys; sys.argv[0] = 'ggss'; from ggss.cli import main; main()"
    home = {**os.environ, "HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}

    def call(*words, **more):
        command = [sys.executable, "-c", program, *words]
        return subprocess.run(command, env=home | more, capture_output=True, text=True)

    done = call("--install-completion", "bash")
    assert done.returncode == 0, done.stderr
    script = next(tmp_path.rglob("ggss.sh")).read_text()
    assert "_GGSS_COMPLETE=complete_bash" in script
    asked = {"_GGSS_COMPLETE": "complete_bash", "COMP_WORDS": "ggss study w", "COMP_CWORD": "2"}
    assert call(**asked).stdout.split() == ["watch"]
    asked |= {"COMP_WORDS": "ggss discover --meth", "COMP_CWORD": "2"}
    assert call(**asked).stdout.split() == ["--method"]


def test_doctor_env_knows_every_variable_and_keeps_a_secret(run, monkeypatch):
    code, out, _ = run("doctor", "--env")
    assert code == 0
    assert "hf_secret" not in out
    root = os.path.dirname(cli.__file__) + "/.."
    named = set()
    for folder, _, files in os.walk(root):
        for file in files:
            if file.endswith(".py"):
                with open(os.path.join(folder, file), encoding="utf-8") as source:
                    named |= set(re.findall(r"\bGGSS_[A-Z]+\b", source.read()))
    assert named <= set(VARIABLES), "a variable that doctor --env does not list"
    assert {"cpu"} <= environment()["devices"].keys()
    for secret in ("HF_TOKEN", "GGSS_SERVE_KEYS", "GGSS_SERVE_ADMIN_KEY", "GGSS_METRICS_KEY"):
        monkeypatch.setenv(secret, "a-secret-of-the-user")
        assert environment()["variables"][secret] == "(set, not shown)"
    assert run("doctor")[0] == 2
    assert "leave out 'x'" in run("doctor", "x", "--env")[2]
