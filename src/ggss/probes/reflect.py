"""The `reflect` suite: full-English prompts about a user's own counterfactual photographs.

The pictures come in a manifest or folder pattern (see `ggss.data.manifests`) with the columns occupation and
identity and a column for each attribute: every person with every value of each, as in REFLECT/FOCUS. The paper
prints none of its prompts except the fairness instruction; those of `data/reflect.json` follow its descriptions of
the tasks, in their structure: the same questions, options and order of pictures.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from ggss.data.counterfactuals import Counterfactuals
from ggss.errors import InputError, no_such, problems
from ggss.probes import suites
from ggss.probes.base import PROBES, Item, parted
from ggss.probes.people import sampled
from ggss.probes.suites import Prompt, Suite, Wording, suite_about
from ggss.probes.wording import read_wording


def reflect(
    images: str | Path | Counterfactuals,
    wording: str | Path | None = None,
    occupations: Sequence[str] | None = None,
    pairs: float = 1.0,
) -> Suite:
    """The suite about some pictures; InputError lists all that is missing: columns, values of an attribute, images.

    wording: a YAML or JSON file with questions of further probes, or of those in `data/reflect.json`, in the layout
    of that file; it may say how families of models are asked (`ggss.probes.wording`). occupations: those held out
    from discovery, whose pictures are asked about. pairs: the share of the pairs that 2afc asks about; the published
    runs ask about half of them.
    """
    if not 0 < pairs <= 1:
        raise InputError(f"pairs is the share of the pairs that are asked about, above 0 and at most 1, got {pairs}")
    suite = suite_about("reflect", wordings(wording), images, held_out=occupations)

    def items(task: str) -> Sequence[Item]:
        asked = suite.make(task)
        return sampled(asked, pairs) if parted(task)[0] == "2afc" and pairs < 1 else asked

    return replace(suite, make=items).shaped(read_wording(wording).shapes)


def wordings(file: str | Path | None = None) -> dict[str, Wording]:
    """By probe, the suite's own questions, or those of the file if it has some for the probe."""
    questions = read_wording(file).questions
    said = json.loads((files("ggss.probes") / "data" / "reflect.json").read_text(encoding="utf-8"))
    if found := [f"{probe}: {wrong}" for probe, one in questions.items() if (wrong := _wrong(probe, one))]:
        raise problems(f"the wording {str(file)!r}", found)
    return {probe: Wording(_prompts(one), one.get("about", "")) for probe, one in (said | dict(questions)).items()}


def _wrong(probe: object, said: object) -> str:
    if probe not in PROBES:
        return str(no_such("there is no such probe", str(probe), PROBES.names()))
    if not isinstance(said, dict) or not {"questions", "biographies", "text"} & set(said):
        return "it needs `questions`, each with a text and options; or a `text`"
    questions = said.get("questions", {})
    if not isinstance(questions, dict) or any(
        not isinstance(one, dict) or set(one) - {"worth"} != {"text", "options"} for one in questions.values()
    ):
        return "each of its questions needs a text and options, may have a `worth` of the options, and nothing else"
    if any(set(one.get("worth", one["options"])) != set(one["options"]) for one in questions.values()):
        return "`worth` gives each option a number"
    try:
        filled = _prompts(said)("attribute", ("one", "other"))
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        return f"its text cannot be filled in with what it is asked about ({type(error).__name__}: {error})"
    asked = (part for one in filled.values() for part in (one.text, *one.options, *one.options.values()))
    numbers = [repr(part) for part in asked if not isinstance(part, str)]
    return f"its options are text, not {', '.join(numbers)}: put them in quotes" if numbers else ""


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


def _lettered(text: str, options: dict[str, str], worth: dict[str, float] | None = None) -> Prompt:
    listed = "\n".join(f"{answer}. {meaning}" for answer, meaning in options.items())
    return Prompt(text.format(options=listed), options, worth or {})


def _biography(said: Mapping[str, Any], text: str) -> Prompt:
    anonymous = text.format(name=said["name"])
    anonymous = ". ".join(sentence[:1].upper() + sentence[1:] for sentence in anonymous.split(". "))
    return Prompt(said["text"].format(biography=anonymous, name=said["name"]))


suites.register("reflect", reflect)
