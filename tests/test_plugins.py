"""A package beside ggss: its method, probe, suite and table are found, said to be its own, and run by workers."""

import json
import os
import re
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import fresh_python
import ggss as ggss_package
from ggss.errors import InputError
from ggss.methods.registry import METHODS
from ggss.plugins import Registry, load_files
from ggss.probes import suites
from ggss.probes.base import PROBES
from ggss.probes.suites import SUITES
from ggss.study import executors, grid
from ggss.study.plan import Plan, PlanItems
from test_cli_help import VERBS

MODULE = """
from ggss import methods
from ggss.methods import Method
from ggss.probes import Display, Probe, metrics, parsers, register, suites
from ggss.probes.suites import Prompt, Wording, crossed, suite_about


def fit(activations, attribute, options):
    return methods.get("ggss").fit(activations, attribute, options)


def measure(answers, baseline):
    return {"x_gap": metrics.answer_gap(answers.values(), answers.parsed, "nurse", name="x_gap")}


def suite(images="small-world"):
    asked = Prompt("is this person nurse or doctor ?", {"nurse": "nurse", "doctor": "doctor"})
    return suite_about("x-suite", {"x-work": Wording(lambda attribute, values: {"work": asked}, "gender")}, images, 1)


methods.register(Method("x-method", "ggss under another name", "nobody", fit, methods.get("ggss").options))
register(
    Probe(
        "x-work",
        "X",
        "nurse or doctor, of everybody",
        "bias",
        crossed,
        lambda answer, item: parsers.nurse_or_doctor(answer),
        measure,
        {"x_gap": Display("X gap", better="lower")},
    )
)
suites.register("x-suite", suite)
"""

TABLES = """
from ggss.report.rendering import Column, Table
from ggss.report.tables import register

register("x_table", lambda figures: Table("x_table", "A table of X", "X", (Column("nothing"),), ()))
"""

PLAN = {
    "name": "x-study",
    "suite": "x-suite",
    "discovery": "small-world",
    "models": ["small-world/qwen3-vl"],
    "methods": ["none", "x-method"],
    "alphas": [1.0],
    "steering": {"gender": {"discover_on": ["cook"], "tasks": ["x-work"]}},
    "limit": 20,
    "threads": 1,
}


def install(folder: Path, module: str = MODULE, groups: str = "methods probes suites", tables: bool = True) -> Path:
    """A package `x` of version 1.0, as pip would leave it: its modules, and a dist-info with entry points."""
    written = folder / "site"
    about = written / "x-1.0.dist-info"
    about.mkdir(parents=True)
    (written / "x_plugin.py").write_text(module)
    points = "".join(f"[ggss.{group}]\nx = x_plugin\n" for group in groups.split())
    if tables:
        (written / "x_tables.py").write_text(TABLES)
        points += "[ggss.tables]\nx = x_tables\n"
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: x\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(points)
    return written


def python(code: str, *arguments: object, path: Path | None = None) -> CompletedProcess[str]:
    """Fresh registries: a process of its own, with a folder on its path."""
    tested = Path(ggss_package.__file__).parents[1]  # the same ggss as here, wherever it is installed from
    folders = os.pathsep.join(map(str, filter(None, (path, tested))))  # for the workers that it starts
    return fresh_python.python(code, *arguments, path=path, env={"PYTHONPATH": folders, "COLUMNS": "200"})


def ggss(*arguments: object, path: Path | None = None) -> str:
    """What a command prints; it must succeed."""
    done = python("from ggss.cli import main; main()", *arguments, path=path)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(*arguments: object, path: Path | None = None) -> str:
    """The one sentence of a command that must not succeed."""
    done = python("from ggss.cli import main; main()", *arguments, path=path)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert done.stderr.startswith("ggss: ")
    assert "Traceback" not in done.stderr
    return done.stderr


def studied(tmp_path: Path, path: Path, **pieces: object) -> Path:
    """The study's folder: the plan was run by a worker process and every question has its answer."""
    plan, study = tmp_path / "plan.yaml", tmp_path / "study"
    plan.write_text(json.dumps(PLAN | pieces))
    told = ggss("study", "run", plan, "-o", study, "--executor", "processes", "--workers", 1, path=path)
    assert " 0 answered before" in told
    with closing(sqlite3.connect(study / "study.sqlite")) as store:
        asked = store.execute("SELECT alpha, count(*) FROM answers JOIN runs ON run = id GROUP BY alpha").fetchall()
        said = {answer for (answer,) in store.execute("SELECT answer FROM answers")}
    assert dict(asked) == {0.0: 20, 1.0: 20}
    assert said <= {"nurse", "doctor"}
    return study


@pytest.mark.slow
def test_an_installed_package_is_shown_and_run_in_a_study(tmp_path):
    site = install(tmp_path)
    packages = {row["name"]: row["package"] for row in json.loads(ggss("methods", "--json", path=site))}
    assert (packages["x-method"], packages["ggss"]) == ("x 1.0", "ggss")
    packages = {row["name"]: row["package"] for row in json.loads(ggss("probes", "--json", path=site))}
    assert (packages["x-work"], packages["mcq"], packages["smallstar"]) == ("x 1.0", "ggss", "ggss")
    study = studied(tmp_path, site)
    written = json.loads(ggss("study", "tables", study, "--json", path=site))
    assert written["tables"]["x_table"] == "A table of X"
    assert (study / "tables" / "x_table.csv").exists()


def test_the_lists_have_a_column_of_packages(tmp_path):
    site = install(tmp_path, tables=False)
    (line,) = [line for line in ggss("probes", path=site).splitlines() if line.strip().startswith("x-work")]
    assert line.rstrip().endswith("x 1.0")


@pytest.mark.slow
def test_a_module_that_a_plan_names_is_imported_by_its_workers(tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "x_plugin.py").write_text(MODULE)
    study = studied(tmp_path, tmp_path / "here", plugins=["x_plugin"])
    units = json.loads(ggss("study", "status", study, "--json", path=tmp_path / "here"))["units"]
    assert {unit["method"]: unit["answered"] for unit in units} == {"none": 20, "x-method": 20}
    gone = refused("study", "status", study)
    assert "the plug-in 'x_plugin' cannot be imported" in gone
    assert "PYTHONPATH" in gone


def test_a_file_is_a_plug_in_of_every_command(tmp_path):
    """Before the command and after it. It can import the modules beside it, and worker processes know of it."""
    file = tmp_path / "here" / "x_plugin.py"
    file.parent.mkdir()
    file.write_text("import x_helper\n" + MODULE.replace('"x-work"', "x_helper.NAME"))
    (file.parent / "x_helper.py").write_text('NAME = "x-work"\n')
    packages = {row["name"]: row["package"] for row in json.loads(ggss("--plugin", file, "probes", "--json"))}
    assert packages["x-work"] == "x_plugin"
    code = (
        "import subprocess, sys\n"
        "from ggss.cli import main\n"
        "main()\n"
        "code = 'from ggss.methods.registry import METHODS; print(METHODS.package(\"x-method\"))'\n"
        "print(subprocess.run([sys.executable, '-c', code], capture_output=True, text=True).stdout)\n"
    )
    said = python(code, "probes", "--plugin", file).stdout
    assert " x-work " in said
    assert said.strip().endswith("x_plugin")


def test_every_command_takes_a_plug_in():
    for words, command in VERBS.items():
        assert "--plugin" in [name for option in command.params for name in option.opts], words


def test_a_file_that_is_no_plug_in_gets_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("GGSS_PLUGINS", "")
    (tmp_path / "random.py").write_text("")
    (tmp_path / "my-plugin.py").write_text("")
    (tmp_path / "x_fails.py").write_text("1 / 0")
    (tmp_path / "x_needs.py").write_text("import x_absent")
    (tmp_path / "x_exits.py").write_text("import sys\nsys.exit()")
    (tmp_path / "x_exits_0.py").write_text("raise SystemExit(0)")
    for name, sentence in {
        "absent.py": "there is no plug-in",
        "random.py": "has the name of another module",
        "my-plugin.py": "cannot be imported by its name",
        "x_fails.py": "fails (ZeroDivisionError: division by zero): fix it",
        "x_exits.py": "fails (SystemExit: ): fix it",
        "x_exits_0.py": "fails (SystemExit: 0): fix it",
        "x_needs.py": "cannot be imported (No module named 'x_absent')",
        "x_plugin": "is no Python file",
    }.items():
        with pytest.raises(InputError) as error:
            load_files([str(tmp_path / name)])
        assert sentence in str(error.value)
        assert name in str(error.value)
    assert os.environ["GGSS_PLUGINS"] == "", "workers are not told of what cannot be used"


def test_the_folder_of_a_plan_is_searched_for_its_plug_ins(tmp_path):
    """By name and by file; a plan that is kept has the file's place. Its code counts, as ever."""
    here = tmp_path / "here"
    (here / "x_package").mkdir(parents=True)
    (here / "x_plugin.py").write_text(MODULE)
    (here / "x_package" / "__init__.py").write_text("")
    for name, plugins in {
        "names": ["x_plugin", "x_package"],
        "files": ["x_plugin.py"],
        "none": ["x_no", "y.py"],
    }.items():
        (here / f"{name}.yaml").write_text(json.dumps(PLAN | {"plugins": plugins}))
    code = (
        "import sys\n"
        "from ggss.study.plan import Plan\n"
        "from ggss.methods.registry import METHODS\n"
        "for name in ('names', 'files'):\n"
        "    plan = Plan.read(f'{sys.argv[1]}/{name}.yaml')\n"
        "    print(*plan.plugins)\n"
        "print(METHODS.package('x-method'), *METHODS.code('x-method'))\n"
        "Plan.model_validate_json(plan.model_dump_json())\n"
        "Plan.read(f'{sys.argv[1]}/none.yaml')\n"
    )
    done = python(code, here)
    places = [f"{here}/x_plugin.py {here}/x_package", f"{here}/x_plugin.py"]
    assert done.stdout.splitlines() == [*places, "x_plugin x_plugin"]
    assert "the plug-in 'x_no' cannot be imported" in done.stderr
    assert f"there is no plug-in '{here}/y.py'" in done.stderr


def test_a_module_that_is_imported_by_itself_names_its_package_and_so_does_a_script():
    code = (
        "import dataclasses\n"
        "import ggss_rivals.dso\n"
        "from ggss.methods.registry import METHODS, register\n"
        "register(dataclasses.replace(METHODS.get('dso'), name='x-method'))\n"
        "print(METHODS.package('dso'), METHODS.package('x-method'), METHODS.package('ggss'))\n"
    )
    assert python(code).stdout.split() == ["ggss_rivals", "__main__", "ggss"]


def test_what_belongs_to_ggss_stays_its_own_whoever_imports_it_first(tmp_path):
    """The package's module is imported for its method, and imports all of ggss's probes on the way."""
    code = (
        "import json\n"
        "from ggss.plugins import load_plugins\n"
        "from ggss.methods.registry import METHODS\n"
        "{how}\n"
        "from ggss.probes.base import PROBES\n"
        "from ggss.probes.suites import SUITES\n"
        "print(json.dumps([{{n: r.package(n) for n in r.names()}} for r in (METHODS, PROBES, SUITES)]))\n"
    )
    site = install(tmp_path, tables=False)
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "x_plugin.py").write_text(MODULE)
    for path, how, package in (
        (site, "METHODS.names()", "x 1.0"),
        (bare, "load_plugins(['x_plugin'])", "x_plugin"),
    ):
        seen = python(code.format(how=how), path=path)
        assert seen.returncode == 0, seen.stderr
        found = json.loads(seen.stdout)
        theirs = [{name for name, own in packages.items() if own == package} for packages in found]
        assert theirs == [{"x-method"}, {"x-work"}, {"x-suite"}]
        assert {own for packages in found for own in packages.values()} == {"ggss", "ggss_rivals", package}


def test_all_registries_share_their_functions():
    """Nobody writes `names`, `get` and `register` again; a probe is found by the name of a task, too."""
    assert ggss_package.methods.names() == METHODS.names()
    for own in (
        *(ggss_package.methods.names, ggss_package.methods.get, ggss_package.methods.register),
        *(ggss_package.probes.names, ggss_package.probes.register, suites.names, suites.register),
        *(ggss_package.models.register, executors.register),
    ):
        assert isinstance(own.__self__, Registry)


METHOD = """
from ggss import methods
from ggss.methods import Method
from x_helper import SIGN


def fit(activations, attribute, options):
    return methods.get("ggss").fit(activations, attribute, options)


methods.register(Method("x-method", "ggss under another name", "nobody", fit, methods.get("ggss").options))
"""
CHANGED = METHOD.replace('get("ggss").fit(', 'get("svd-pooled-euclidean").fit(').replace(
    "options)\n\n\nmethods", 'methods.get("svd-pooled-euclidean").options())\n\n\nmethods'
)


def test_answers_of_other_plug_in_code_are_not_those_of_this_code(tmp_path):
    """80 questions, 40 of them steered by a method of a module beside the plan."""
    here, plan, study = tmp_path / "here", tmp_path / "plan.yaml", tmp_path / "study"
    here.mkdir()
    pieces = {"plugins": ["x_plugin"], "suite": {"name": "small-world", "split": "evaluation"}}
    steering = {"steering": {"gender": {"discover_on": ["cook"], "tasks": ["nurse-doctor"]}}}
    plan.write_text(json.dumps(PLAN | pieces | steering))

    def run(module: str, *more: str, helper: str = "SIGN = 1\n") -> tuple[int, int, str]:
        (here / "x_plugin.py").write_text(module)
        (here / "x_helper.py").write_text(helper)
        done = python("from ggss.cli import main; main()", "study", "run", plan, "-o", study, *more, path=here)
        assert done.returncode == 0, done.stderr
        asked, reused = map(int, re.search(r"(\d+) questions asked, (\d+) answered before", done.stdout).groups())
        return asked, reused, done.stderr

    def answers() -> list[tuple[str, ...]]:
        with closing(sqlite3.connect(study / "study.sqlite")) as store:
            rows = "SELECT steering, item, answer, probabilities FROM answers JOIN runs ON run = id"
            return store.execute(rows).fetchall()

    assert run(METHOD)[:2] == (80, 0)
    first = answers()
    asked, reused, told = run("# a comment changes nothing\n" + METHOD)
    assert (asked, reused) == (0, 80)
    assert "code" not in told
    asked, reused, told = run(CHANGED, "--keep-answers")
    assert (asked, reused) == (0, 80)
    asked, reused, told = run(CHANGED)
    assert (asked, reused) == (40, 40)
    (line,) = [line for line in told.splitlines() if "code" in line]
    assert "x_plugin" in line
    assert "--keep-answers" in line
    assert set(first) < set(answers())  # the old ones stay under their old key
    assert run(CHANGED, "--keep-answers")[:2] == (0, 80)  # also for those who read the sentence too late
    assert run(METHOD)[:2] == (0, 80)
    assert run(METHOD, helper="SIGN = -1\n")[:2] == (40, 40)  # a module that the plug-in imports


def test_the_key_of_a_task_has_the_code_of_the_plug_ins_that_ask_it(monkeypatch):
    pieces = {"suite": "small-world", "discovery": "small-world", "models": ["small-world/qwen3-vl"], "limit": 2}
    steering = {"race": {"discover_on": ["cook"], "tasks": ["mcq"]}}
    plan = Plan.of({"name": "x", **pieces, "methods": ["none", "ggss"], "alphas": [1.0], "steering": steering})
    items = PlanItems(plan)

    def key(**digests: str) -> str:
        for registry, name in ((PROBES, "probe"), (SUITES, "suite"), (METHODS, "method")):
            code = {f"x_{name}": digests.get(name, "before")}
            monkeypatch.setattr(registry, "code", lambda entry, code=code: code)
        return grid.questions_hash(items, "mcq", grid.code_digests(plan))

    before = key()
    assert key() == before
    assert key(method="edited") == before, "the unsteered answers do not depend on it"
    assert len({before, key(probe="edited"), key(suite="edited")}) == 3
    monkeypatch.setattr(PlanItems, "max_new_tokens", lambda *_: 99)
    assert key() != before
    assert grid.questions_hash(items, "mcq") == items.hash("mcq"), "as before code was recorded"


REGISTER = "from ggss.methods import Method, register\n"
MALFORMED = REGISTER + "register(Method('x-method', '', '', print))\n"
STRANGE = REGISTER + "register('x-method')\n"
DUPLICATE = REGISTER + "register(Method('ggss', 'another', 'nobody', print))\n"
NAMELESS = "from ggss.probes import suites\nsuites.register('', print)\n"


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        (MALFORMED, "the method 'x-method' (from x 1.0) cannot be registered: it needs a summary and a reference"),
        (STRANGE, "the method '' (from x 1.0) cannot be registered: it is a str, not a ggss.methods.Method"),
        (DUPLICATE, "the method 'ggss' (from x 1.0) cannot be registered: ggss has one of that name; choose another"),
        (NAMELESS, "the suite '' (from x 1.0) cannot be registered: it has no name"),
        ("1 / 0\n", "the package x 1.0 cannot be used: its entry point 'x' of ggss.methods fails (ZeroDivisionError"),
        ("exit(0)\n", "the package x 1.0 cannot be used: its entry point 'x' of ggss.methods fails (SystemExit: 0)"),
        ("import no_such_thing\n", "the package x 1.0 cannot be used: its entry point 'x' of ggss.methods fails"),
    ],
    ids=["malformed", "no method", "duplicate", "nameless", "failing", "exiting", "lacking a module"],
)
def test_a_registration_that_is_refused_names_its_package(tmp_path, module, sentence):
    site = install(tmp_path, module, groups="methods", tables=False)
    assert sentence in refused("methods", path=site)


def test_a_plug_in_of_a_plan_that_is_refused_is_named(tmp_path):
    (tmp_path / "x_plugin.py").write_text(DUPLICATE)
    (tmp_path / "plan.yaml").write_text(json.dumps(PLAN | {"plugins": ["x_plugin"]}))
    told = refused("study", "plan", tmp_path / "plan.yaml", "--no-forecast", path=tmp_path)
    assert "the method 'ggss' (from x_plugin) cannot be registered: ggss has one of that name" in told


def test_two_packages_with_one_name_are_told_apart(tmp_path):
    site = install(tmp_path, tables=False)
    other = site / "y-2.0.dist-info"
    other.mkdir()
    (site / "y_plugin.py").write_text(MODULE)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: y\nVersion: 2.0\n")
    (other / "entry_points.txt").write_text("[ggss.methods]\ny = y_plugin\n")
    told = refused("methods", path=site)
    assert "the method 'x-method' (from y 2.0) cannot be registered: x 1.0 has one of that name" in told
