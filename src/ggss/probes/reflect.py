"""The `reflect` suite: prompts in full English about a user's counterfactual photographs.

The pictures come in a manifest or folder pattern (see `ggss.data.manifests`) with the columns occupation and
identity and a column for each attribute: every person with every value of each, as in REFLECT/FOCUS. The paper
prints none of its prompts except the fairness instruction. Those of `data/reflect.json` follow its descriptions of
the tasks: the same questions, options and order of pictures.
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
from ggss.probes.base import PROBES, Item, split_task
from ggss.probes.people import sample_pairs
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
        made = suite.make(task)
        return sample_pairs(made, pairs) if split_task(task)[0] == "2afc" and pairs < 1 else made

    return replace(suite, make=items).shaped(read_wording(wording).shapes)


def wordings(file: str | Path | None = None) -> dict[str, Wording]:
    """The questions by probe: those of the file where it has some for a probe, else the suite's."""
    probes = json.loads((files("ggss.probes") / "data" / "reflect.json").read_text(encoding="utf-8"))
    questions = read_wording(file).questions
    mistakes = [f"{probe}: {mistake}" for probe, entry in questions.items() if (mistake := _mistake(probe, entry))]
    if mistakes:
        raise problems(f"the wording {str(file)!r}", mistakes)
    about = {probe: entry.get("about", "") for probe, entry in probes.items()}
    return {
        probe: Wording(_prompts(entry), entry.get("about", about.get(probe, "")))
        for probe, entry in (probes | dict(questions)).items()
    }


def _mistake(probe: object, entry: object) -> str:
    """What is wrong with a probe's entry in the file, "" if nothing is."""
    if probe not in PROBES:
        return str(no_such("there is no such probe", str(probe), PROBES.names()))
    if not isinstance(entry, dict) or not {"questions", "biographies", "text"} & set(entry):
        return "it needs `questions`, each with a text and options; or a `text`"
    questions = entry.get("questions", {})
    if not isinstance(questions, dict) or any(
        not isinstance(question, dict) or set(question) - {"worth"} != {"text", "options"}
        for question in questions.values()
    ):
        return "each of its questions needs a text and options, may have a `worth` of the options, and nothing else"
    if any(
        set(question.get("worth", question["options"])) != set(question["options"]) for question in questions.values()
    ):
        return "`worth` gives each option a number"
    try:
        prompts = _prompts(entry)("attribute", ("one", "other"))
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        return f"its text cannot be filled in with what it is asked about ({type(error).__name__}: {error})"
    parts = (part for prompt in prompts.values() for part in (prompt.text, *prompt.options, *prompt.options.values()))
    numbers = [repr(part) for part in parts if not isinstance(part, str)]
    return f"its options are text, not {', '.join(numbers)}: put them in quotes" if numbers else ""


def _prompts(entry: Mapping[str, Any]) -> Any:
    """The function that makes the prompts of a probe, as in `Wording`."""

    def lettered(attribute: str, values: Sequence[str]) -> dict[str, Prompt]:
        return {name: _lettered(**question) for name, question in entry["questions"].items()}

    def biographies(attribute: str, values: Sequence[str]) -> dict[str, Prompt]:
        return {title: _biography(entry, text) for title, text in entry["biographies"].items()}

    def outright(attribute: str, values: Sequence[str]) -> dict[str, Prompt]:
        text = entry["text"].format(attribute=attribute, values=", ".join(values))
        return {attribute: Prompt(text, {value: value for value in values})}

    return lettered if "questions" in entry else biographies if "biographies" in entry else outright


def _lettered(text: str, options: dict[str, str], worth: dict[str, float] | None = None) -> Prompt:
    listed = "\n".join(f"{answer}. {meaning}" for answer, meaning in options.items())
    return Prompt(text.format(options=listed), options, worth or {})


def _biography(entry: Mapping[str, Any], text: str) -> Prompt:
    anonymous = text.format(name=entry["name"])
    anonymous = ". ".join(sentence[:1].upper() + sentence[1:] for sentence in anonymous.split(". "))
    return Prompt(entry["text"].format(biography=anonymous, name=entry["name"]))


suites.register("reflect", reflect)
