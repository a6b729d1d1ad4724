"""The `reflect` suite: full-English prompts about a user's own counterfactual photographs.

The pictures come in a manifest or folder pattern (see `ggss.data.manifests`) with the columns occupation and
identity and a column for each attribute: every person with every value of each, as in REFLECT/FOCUS. The paper
prints none of its prompts except the fairness instruction; those of `data/reflect.json` follow its descriptions of
the tasks.
"""

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from ggss.data.counterfactuals import Counterfactuals
from ggss.errors import InputError, problems
from ggss.probes import suites
from ggss.probes.base import PROBES
from ggss.probes.suites import Suite
from ggss.probes.wording import Prompt, Wording, suite_about


def reflect(images: str | Path | Counterfactuals, wording: str | Path | None = None) -> Suite:
    """The suite about some pictures; InputError lists all that is missing: columns, values of an attribute, images.

    wording: a YAML or JSON file with questions of further probes, or of those in `data/reflect.json`, in the layout
    of that file.
    """
    return suite_about("reflect", wordings(wording), images)


def wordings(file: str | Path | None = None) -> dict[str, Wording]:
    """By probe, the suite's own questions, or those of the file if it has some for the probe."""
    said = json.loads((files("ggss.probes") / "data" / "reflect.json").read_text(encoding="utf-8"))
    said |= {} if file is None else _read(Path(file))
    return {probe: Wording(_prompts(one), one.get("about", "")) for probe, one in said.items()}


def _read(file: Path) -> dict[str, Any]:
    try:
        said = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"the wording {str(file)!r} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(said, dict):
        raise InputError(f"the wording {str(file)!r} is no mapping of probes to their questions")
    found = [f"{probe}: {wrong}" for probe, one in said.items() if (wrong := _wrong(probe, one))]
    if found:
        raise problems(f"the wording {str(file)!r}", found)
    return said


def _wrong(probe: object, said: object) -> str:
    if probe not in PROBES:
        return f"there is no such probe; there are {', '.join(PROBES.names())}"
    if not isinstance(said, dict) or not {"questions", "biographies", "text"} & set(said):
        return "it needs `questions`, each with a text and options; or a `text`"
    questions = said.get("questions", {})
    if not isinstance(questions, dict) or any(
        not isinstance(one, dict) or set(one) != {"text", "options"} for one in questions.values()
    ):
        return "each of its questions needs a text and options, and nothing else"
    try:
        _prompts(said)("attribute", ("one", "other"))
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        return f"its text cannot be filled in with what it is asked about ({type(error).__name__}: {error})"
    return ""


def _prompts(said: Mapping[str, Any]) -> Any:
    """The function that makes the prompts of one probe."""

    def lettered(attribute: str, values: Sequence[str]) -> dict[str, Prompt]:
        return {name: _lettered(**one) for name, one in said["questions"].items()}

    def biographies(attribute: str, values: Sequence[str]) -> dict[str, Prompt]:
        return {title: _biography(said, text) for title, text in said["biographies"].items()}

    def outright(attribute: str, values: Sequence[str]) -> dict[str, Prompt]:
        text = said["text"].format(attribute=attribute, values=", ".join(values))
        return {attribute: Prompt(text, {value: value for value in values})}

    return lettered if "questions" in said else biographies if "biographies" in said else outright


def _lettered(text: str, options: dict[str, str]) -> Prompt:
    listed = "\n".join(f"{answer}. {meaning}" for answer, meaning in options.items())
    return Prompt(text.format(options=listed), options)


def _biography(said: Mapping[str, Any], text: str) -> Prompt:
    anonymous = text.format(name=said["name"])
    anonymous = ". ".join(sentence[:1].upper() + sentence[1:] for sentence in anonymous.split(". "))
    return Prompt(said["text"].format(biography=anonymous, name=said["name"]))


suites.register("reflect", reflect)
