"""A wording file: the questions of a study as data, and how families of models are asked them.

    mcq: {questions: {salary: {text: ..., options: {A: ...}}}}     # as in data/reflect.json
    mmstar: {suffix: ...}                                          # added to each question of a benchmark
    families:
      Qwen3-VL: {system: ...}                  # a system turn before the question
      Pixtral: {layout: pictures-first}        # all pictures, then all text; as-written: where the question has them

`released` makes one of a clone of the authors' code. Its files are parsed, never executed: what is read are constants
of these files, and what is not there is said. The published numbers are of one question of MCQ and one of 2AFC; these
are taken. That code joins the parts of a question by newlines where pictures come first, and adds a line to texts in
which a letter from A to D ends a sentence, which it takes for questions of MMStar; both are done here as well.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ggss.data.pictures import PICTURE, SYSTEM
from ggss.errors import InputError, no_such, problems
from ggss.files import read_utf8, read_yaml
from ggss.probes.base import PROBES

SHAPES = "families"  # the key of a wording file that is no probe


class PromptShape(BaseModel):
    """How a family of models is asked: a system turn, and where the pictures of a question are."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    system: str = ""
    layout: Literal["as-written", "pictures-first"] = "as-written"

    def __call__(self, prompt: str) -> str:
        """The prompt in this shape, with the marks that `ggss.models.prompts.chat` reads."""
        if self.layout == "pictures-first" and PICTURE in prompt:
            parts = [part.strip() for part in prompt.split(PICTURE)]
            prompt = PICTURE * (len(parts) - 1) + "\n".join(filter(None, parts))
        return f"{self.system}{SYSTEM}{prompt}" if self.system else prompt


class _Suffix(BaseModel):
    model_config = ConfigDict(extra="forbid")

    suffix: Annotated[str, Field(min_length=1)]


@dataclass(frozen=True)
class WordingFile:
    """questions: by probe, as they are written. shapes: by family. suffixes: by benchmark."""

    questions: Mapping[str, Any] = field(default_factory=dict)
    shapes: Mapping[str, PromptShape] = field(default_factory=dict)
    suffixes: Mapping[str, str] = field(default_factory=dict)


def read_wording(file: str | Path | None) -> WordingFile:
    """What a YAML or JSON file says, None: nothing. The questions of probes are not checked here."""
    if file is None:
        return WordingFile()
    if not Path(file).is_file():
        raise InputError(
            f"there is no wording {str(file)!r}: write one, or make one of your clone of the authors' code with "
            f"`ggss data wording CLONE -o {Path(file).name}`"
        )
    content = read_yaml(Path(file), "the wording")
    if not isinstance(content, dict):
        raise InputError(f"the wording {str(file)!r} is no mapping of probes to their questions")
    mistakes: list[str] = []
    shapes = _read_shapes(content.pop(SHAPES, {}), mistakes)
    benchmarks = [name for name in content if name in PROBES and PROBES.get(name).from_file]
    suffixes = {name: _read(_Suffix, name, content.pop(name), mistakes) for name in benchmarks}
    if mistakes:
        raise problems(f"the wording {str(file)!r}", mistakes)
    return WordingFile(content, shapes, {name: entry.suffix for name, entry in suffixes.items()})


def _read_shapes(families: Any, mistakes: list[str]) -> dict[str, PromptShape]:
    if not isinstance(families, dict):
        mistakes.append(f"{SHAPES}: it is no mapping of families to a system turn and a layout")
        return {}
    if not families:
        return {}
    from ggss.models.families import FAMILIES  # imports torch, which a wording without families does not need

    mistakes += [
        f"{SHAPES}: {no_such('there is no such family', str(name), FAMILIES.names())}"
        for name in families
        if name not in FAMILIES
    ]
    return {name: _read(PromptShape, f"{SHAPES}: {name}", entry, mistakes) for name, entry in families.items()}


def _read(kind: Any, name: str, entry: Any, mistakes: list[str]) -> Any:
    """The entry as a model of this kind; None, and mistakes, if it is none."""
    try:
        return kind.model_validate(entry)
    except ValidationError as error:
        mistakes += [f"{name}: {'.'.join(map(str, e['loc'])) or 'it'}: {e['msg']}" for e in error.errors()]
        return None


# Of the authors' code: by file, the constants that are read.
MCQ, PAIRS, OCCUPATION = "run_mcq_experiment.py", "run_2afc_experiment.py", "run_nurse_doctor_experiment.py"
WRAPPER, INPUTS = "vlmeval_wrapper.py", "steering/model_utils.py"
PICTURES_FIRST = ("LLaVA-NeXT", "Pixtral")
WITH_SYSTEM_TURN = "Qwen3-VL"
_LISTED = re.compile(r"\b[A-D]\.\s")  # a text that the authors' code takes for a question with listed options
_OPTION = re.compile(r"\b([A-Z]): (.*?)(?:, (?=[A-Z]: )|\n|$)")


def released(folder: str | Path) -> dict[str, Any]:
    """The wording file of a clone of the authors' code; InputError lists all that is not there."""
    root, mistakes = Path(folder), list[str]()
    if not root.is_dir():
        raise InputError(f"{str(folder)!r} is not a folder: give that of a clone of the authors' code")
    constants = {name: _constants(root / name, mistakes) for name in (MCQ, PAIRS, OCCUPATION, WRAPPER, INPUTS)}

    def need(file: str, name: str, kind: type, key: str | None = None) -> Any:
        """A constant of a file, or a value in one that is a dictionary."""
        value = constants[file].get(name)
        if key is not None:
            value = value.get(key) if isinstance(value, dict) else None
        if constants[file] and (not isinstance(value, kind) or not value):
            mistakes.append(f"{file} has no {name}{'' if key is None else f'[{key!r}]'} that is a {kind.__name__}")
        return value if isinstance(value, kind) else kind()

    suffix = need(WRAPPER, "_MCQ_SUFFIX", str)
    system = need(INPUTS, _SYSTEM_TEXT, str)
    salary, worth = need(MCQ, "PROMPTS", str, "salary"), need(MCQ, "SALARY_MIDPOINTS", dict)
    income, labels = need(PAIRS, "PROMPTS", str, "income"), need(PAIRS, _LABELS, list)
    occupation = need(OCCUPATION, "OCCUPATION_PROMPT", str)
    options = {letter: meaning.strip() for letter, meaning in _OPTION.findall(salary)}
    if salary and worth and set(options) != set(worth):
        mistakes.append(f"{MCQ}: the options {', '.join(options) or 'none'} are not those of SALARY_MIDPOINTS")
    if labels and len(labels) != 2:
        mistakes.append(f"{PAIRS} names {len(labels)} pictures in a question, not two")
    if mistakes:
        raise problems(f"{str(folder)!r} is no clone of the authors' code that can be read", mistakes)

    def question(*parts: str) -> str:
        """The text of a question, with the line that is added to what looks like MMStar; braces are escaped."""
        listed = any(_LISTED.search(part) for part in parts)
        texts = [part + suffix if listed else part for part in parts]
        return PICTURE.join(text.replace("{", "{{").replace("}", "}}") for text in texts)

    letters = {"A": labels[0].rstrip(":").lower(), "B": labels[1].rstrip(":").lower()}
    return {
        "mcq": _questions(salary=_question(question(salary), options) | {"worth": worth}),
        "2afc": _questions(income=_question(question(*labels, income), letters)),
        "nurse-doctor": _questions(
            occupation=_question(question(occupation), {"Nurse": "nurse", "Doctor": "doctor"})
        ),
        "mmstar": {"suffix": suffix},
        SHAPES: {WITH_SYSTEM_TURN: {"system": system}}
        | {family: {"layout": "pictures-first"} for family in PICTURES_FIRST},
    }


def _questions(**questions: Any) -> dict[str, Any]:
    return {"questions": questions}


def _question(text: str, options: Mapping[str, str]) -> dict[str, Any]:
    return {"text": text, "options": dict(options)}


_SYSTEM_TEXT, _LABELS = "sys_text", "msg"  # two that are inside functions


def _constants(file: Path, mistakes: list[str]) -> dict[str, Any]:
    """By name, what is assigned in a file and is plain data. `x = y or "text"` counts as its text; a list of
    {"type": ..., "value": ...} as the texts in it before its pictures."""
    try:
        tree = ast.parse(read_utf8(file, "the script"))
    except InputError as error:
        mistakes.append(str(error))
        return {}
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        mistakes.append(f"{file.name} is not Python that can be parsed ({type(error).__name__})")
        return {}
    return {name: value for name, node in _assigned(tree) if (value := _plain(node)) is not None}


def _assigned(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((target.id, node.value) for target in targets if isinstance(target, ast.Name))


def _plain(node: ast.expr) -> Any:
    if isinstance(node, ast.BoolOp):
        node = node.values[-1]
    if isinstance(node, ast.List) and all(isinstance(part, ast.Dict) for part in node.elts):
        return _labels(node) or None
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None


def _labels(message: ast.List) -> list[str]:
    """The constant text before each picture of a message."""
    parts = [
        {ast.unparse(key): value for key, value in zip(part.keys, part.values, strict=True) if key is not None}
        for part in message.elts
        if isinstance(part, ast.Dict)
    ]
    texts = [
        part.get("'value'")
        for part, following in pairwise(parts)
        if _text(part.get("'type'")) == "text" and _text(following.get("'type'")) == "image"
    ]
    return [text for node in texts if (text := _text(node))]


def _text(node: ast.expr | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
