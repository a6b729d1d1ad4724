"""docs/architecture.md: every name on it exists, its layers are those that are proved, and names have one meaning."""

import ast
import inspect
import re
import tomllib
from collections import Counter
from importlib import import_module
from itertools import groupby
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
NAMES = sorted(set(re.findall(r"`(ggss(?:\.\w+)+)`", PAGE)))
SOURCES = sorted((ROOT / "src" / "ggss").rglob("*.py"))


def found(name: str) -> object:
    """What a dotted name leads to: a module, or something in one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            here = import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            here = getattr(here, part)
        return here
    raise ModuleNotFoundError(name)


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("ggss.evaluation")])
def test_every_name_on_the_page_exists(name):
    assert found(name) is not None


def test_a_name_that_does_not_exist_is_noticed():
    with pytest.raises((AttributeError, ModuleNotFoundError)):
        found("ggss.analysis.comparison.Comparison.nothing")


def test_the_layers_on_the_page_are_those_that_are_proved():
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = linter["contracts"][0]["layers"]
    layers = layers[: layers.index("ggss.plugins") + 1]
    assert re.findall(r"^\| `(ggss\.\w+)` \|", PAGE, re.MULTILINE) == layers
    rooms = {f"ggss.{path.name}" for path in (ROOT / "src" / "ggss").iterdir() if (path / "__init__.py").is_file()}
    assert rooms <= set(layers)


def steps(title: str) -> list[list[str]]:
    """The names in each step of a walk."""
    section = PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
    texts = re.split(r"^\d+\. ", section, flags=re.MULTILINE)[1:]
    return [re.findall(r"`(ggss(?:\.\w+)+)`", text.split("\n\n")[0]) for text in texts]


@pytest.mark.parametrize(("title", "most"), [("The walk of a picture", 25), ("The walk of a request", 12)])
def test_a_walk_is_short_and_passes_no_function_twice(title, most):
    functions = [name for step in steps(title) for name in step if inspect.isroutine(found(name))]
    assert len(functions) == len(set(functions)) <= most
    assert f"in {len(functions)} functions" in PAGE.split(f"## {title}\n")[1].split("\n1. ")[0].lower()


def test_the_walk_of_a_picture_goes_up_through_the_rooms():
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = linter["contracts"][0]["layers"][::-1]
    rooms = [layers.index(".".join(step[0].split(".")[:2])) for step in steps("The walk of a picture")]
    assert rooms == sorted(rooms)


def test_the_walk_of_a_request_comes_back_to_no_module():
    modules = [".".join(step[0].split(".")[:3]) for step in steps("The walk of a request")]
    assert len(list(groupby(modules))) == len(set(modules)) > 4


def test_a_class_name_has_one_meaning():
    classes = Counter(
        node.name
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, times in classes.items() if times > 1] == []


def test_no_room_below_the_small_world_names_an_attribute():
    """Attributes and their values come from the data: none is a word of the code."""
    words = re.compile(r"[\"'](?:race|gender|man|woman|races|genders)[\"']")
    rooms = ("methods", "probes", "analysis", "study", "report", "steering", "stats")
    code = [path for path in SOURCES if path.relative_to(ROOT / "src" / "ggss").parts[0] in rooms]
    named = {
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in code
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and words.fullmatch(repr(node.value))
    }
    assert named == set()
