"""Suites: the items of some tasks, made of the wording of their questions and the pictures they are asked about.

A wording says which attribute a task is about. Runs with equal `Suite.hash` were asked the same questions.

`reflect` asks prompts in full English about a user's counterfactual photographs. The pictures come in a manifest or
folder pattern (see `ggss.data.manifests`) with the columns occupation and identity and a column for each attribute:
every person with every value of each, as in REFLECT/FOCUS. The paper prints none of its prompts except the fairness
instruction. Those of `data/reflect.json` follow its descriptions of the tasks: the same questions, options and order
of pictures.
"""

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from importlib.resources import files
from inspect import signature
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from ggss import errors
from ggss.data.counterfactuals import IDENTITY, OCCUPATION, Counterfactuals
from ggss.data.pictures import PICTURE, Picture, shrunk
from ggss.errors import InputError, no_such, problems
from ggss.plugins import Registry
from ggss.probes.base import PROBES, Item, Probe, get, split_task
from ggss.probes.wording import PromptShape, read_wording

HELD_OUT = "ceo"  # the paper asks MCQ, 2AFC and recognition about it; no discovery set contains it
DEFAULT = ("mcq", "2afc", "nurse-doctor")  # the paper's three bias tasks; recognition is asked with them
SEED = 42  # of the published sample of pairs of 2AFC


@dataclass(frozen=True)
class Prompt:
    """A question's text, and the answers whose probabilities are scored, with what each stands for.

    `<picture>` in the text is where a picture is shown; without it, pictures come before the text. worth: the number
    that each answer counts as in a mean. expected: the right answer, if there is one. stereotype: by group, the
    answer that a stereotype about it gives (`ggss.probes.ambiguous`). lexicons: by which a text is measured, besides
    our own.
    """

    text: str
    options: Mapping[str, str] = field(default_factory=dict)
    worth: Mapping[str, float] = field(default_factory=dict)
    expected: str | None = None
    stereotype: Mapping[str, str] = field(default_factory=dict)
    lexicons: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


Prompts = Mapping[str, Prompt]


@dataclass(frozen=True)
class Wording:
    """A probe's questions: `prompts(attribute, values)` makes them by name; about: the attribute by default.

    A wording without a default, as that of recognition, is asked about each attribute by name. new_tokens: the
    longest answer, if it is not that of the suite's other questions.
    """

    prompts: Callable[[str, Sequence[str]], Prompts]
    about: str = ""
    new_tokens: int | None = None


@dataclass(frozen=True)
class Suite:
    """The items of some tasks. `make` gives a task's items, always the same and in the same order.

    default: the tasks that are asked if none are named. new_tokens: the longest answer, if the suite's answers are
    shorter than the probes allow; longer: by probe, where it is another one. people: makes the pictures that a
    question about people is asked about. left_out: why probes and attributes are not among the default tasks.
    """

    name: str
    tasks: tuple[str, ...]
    make: Callable[[str], Sequence[Item]]
    default: tuple[str, ...] = ()
    new_tokens: int | None = None
    people: Callable[[], Sequence[Picture]] | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)
    longer: Mapping[str, int] = field(default_factory=dict)
    _items: dict[str, tuple[Item, ...]] = field(default_factory=dict, repr=False, compare=False)
    _hashes: dict[str, str] = field(default_factory=dict, repr=False, compare=False)

    def items(self, task: str, limit: int | None = None) -> tuple[Item, ...]:
        """All items of a task, checked; with a limit, a `subset` of them."""
        if task not in self.tasks:
            raise no_such(f"suite {self.name!r} has no task {task!r}", task, self.tasks)
        if task not in self._items:
            items = tuple(self.make(task))
            get(task).check(items)
            self._items[task] = items
        return subset(self._items[task], limit)

    def hash(self, task: str) -> str:
        """sha256 over everything asked: keys, prompts, options, attributes, clusters, right answers, pictures."""
        if task not in self._hashes:
            lines = sha256()
            for item in self.items(task):
                lines.update((json.dumps(_content(item), ensure_ascii=False) + "\n").encode())
            self._hashes[task] = lines.hexdigest()
        return self._hashes[task]

    def shrunk(self, max_side: int | None) -> "Suite":
        """The same questions about pictures with at most so many pixels on the longer side; None: as they are."""

        def items(task: str) -> list[Item]:
            return [
                replace(item, images=tuple(shrunk(picture, max_side) for picture in item.images))
                for item in self.make(task)
            ]

        return self if max_side is None else replace(self, make=items, _items={}, _hashes={})

    def shaped(self, shapes: Mapping[str, PromptShape]) -> "Suite":
        """The same questions, asked of some families of models in another shape."""

        def items(task: str) -> list[Item]:
            return [replace(item, shapes=shapes) for item in self.make(task)]

        return replace(self, make=items, _items={}, _hashes={}) if shapes else self

    def max_new_tokens(self, task: str) -> int:
        probe = get(task)
        return self.longer.get(probe.name) or self.new_tokens or probe.max_new_tokens


def subset(items: Sequence[Item], limit: int | None) -> tuple[Item, ...]:
    """About `limit` of the items: all items of some clusters, evenly spread, so that groups stay balanced."""
    if limit is not None:
        errors.ITEMS.check("the number of items", limit)
    if limit is None or limit >= len(items):
        return tuple(items)
    sizes: dict[str, int] = {}
    for item in items:
        sizes[item.cluster] = sizes.get(item.cluster, 0) + 1
    names = list(sizes)
    count = min(len(names), max(2, round(limit * len(names) / len(items))))
    clusters = {names[i * len(names) // count] for i in range(count)}
    return tuple(item for item in items if item.cluster in clusters)


def _content(item: Item) -> list[Any]:
    """All that an item asks, for the hash of its suite."""
    return [
        item.key,
        item.prompt,
        list(item.options.items()),
        [dict(attributes) for attributes in item.attributes],
        dict(item.context),
        item.cluster,
        item.question,
        item.expected,
        item.about,
        [picture.digest for picture in item.images],
        *([_shapes(item)] if item.shapes else []),
        *([{name: list(entries) for name, entries in item.lexicons.items()}] if item.lexicons else []),
    ]


def _shapes(item: Item) -> list[tuple[str, str]]:
    """By family, what is made of a question about two pictures."""
    return sorted((family, shape(f"A{PICTURE}B{PICTURE}C")) for family, shape in item.shapes.items())


def worded_suite(
    name: str,
    wordings: Mapping[str, Wording],
    pictures: Callable[[str, str], Sequence[Picture]],
    attributes: Sequence[str],
    occupations: Iterable[str],
    new_tokens: int | None = None,
    held_out: Sequence[str] = (),
) -> "Suite":
    """The suite of all tasks that can be asked about some pictures.

    wordings: by the name of the probe. pictures: from a probe and an attribute to its pictures. attributes and
    occupations: all that the pictures show. held_out: the occupations for probes that name none; () is all.
    """
    present = set(occupations)
    missing = {probe: [work for work in get(probe).occupations if work not in present] for probe in wordings}
    usable = {probe: wording for probe, wording in wordings.items() if not missing[probe]}
    published = [probe for probe, wording in usable.items() if wording.about in attributes]
    by_name = [f"{probe}-{a}" for probe, wording in usable.items() for a in attributes if a != wording.about]
    recognition = [task for task in by_name if get(task).kind == "recognition"]
    rest = [task for task in by_name if task not in recognition]

    def items(task: str) -> Sequence[Item]:
        probe, attribute = split_task(task)
        wording = wordings[probe]
        about = attribute or wording.about
        portraits = probe_pictures(get(task), pictures(probe, about), held_out)
        values = sorted({picture.attributes[about] for picture in portraits})
        return get(task).items(wording.prompts(about, values), portraits, about)

    def people() -> list[Picture]:
        probe = next(probe for probe in usable if not get(probe).occupations)
        return probe_pictures(get(probe), pictures(probe, usable[probe].about), held_out)

    default = [task for probe in usable if probe in DEFAULT for task in _default_tasks(probe, usable, attributes)]
    asked_about = {split_task(task)[1] or usable[task].about for task in default}
    default += [task for task in recognition if split_task(task)[1] in asked_about]
    left_out = {
        probe: f"it asks about pictures of {' and '.join(get(probe).occupations)}; no {' or '.join(work)} is shown"
        for probe, work in missing.items()
        if work
    }
    about_anyone = any(not get(probe).occupations for probe in usable)
    tasks = (*published, *recognition, *rest)
    longer = {probe: wording.new_tokens for probe, wording in usable.items() if wording.new_tokens}
    return Suite(name, tasks, items, tuple(default), new_tokens, people if about_anyone else None, left_out, longer)


def _default_tasks(probe: str, wordings: Mapping[str, Wording], attributes: Sequence[str]) -> list[str]:
    """A probe about the attribute that it is published for; about every attribute, if that one does not vary."""
    return [probe] if wordings[probe].about in attributes else [f"{probe}-{attribute}" for attribute in attributes]


def suite_about(
    name: str,
    wordings: Mapping[str, Wording],
    images: str | Path | Counterfactuals,
    new_tokens: int | None = None,
    held_out: Sequence[str] | None = None,
) -> "Suite":
    """The suite of all tasks about a counterfactual set: a manifest, a folder pattern or a registered set by name.

    held_out: the occupations for probes that name none. None is the published one, or all if the set does not have
    it. An attribute of which all pictures have the same value is left out. InputError lists all that is missing: who
    is shown, values of an attribute, images.
    """
    faces = Counterfactuals.load(images) if isinstance(images, str | Path) else images
    context = dict(faces.pictures[0].context)
    source = repr(str(images)) if isinstance(images, str | Path) else "the set of pictures"
    if IDENTITY not in context:
        columns = ", ".join([*context, *faces.attributes])
        raise InputError(
            f"{source} has the columns {columns}: there is no column {IDENTITY!r}, which says who is shown"
        )
    single = {name: values[0] for name, values in faces.attributes.items() if len(values) == 1}
    varied = tuple(name for name in faces.attributes if name not in single)
    faces.validate(varied or None, decode=False)
    occupations = {occupation(picture) for picture in faces}
    if held_out is None:
        held_out = [work for work in (HELD_OUT,) if work in occupations]
    if unknown := [f"there is no picture of a {work}" for work in held_out if work not in occupations]:
        raise problems(f"{source} shows the occupations {', '.join(sorted(occupations))}", unknown)
    everyone = faces.pictures
    suite = worded_suite(name, wordings, lambda probe, about: everyone, varied, occupations, new_tokens, held_out)
    the_same = {attribute: f"all pictures show {value!r}" for attribute, value in single.items()}
    return replace(suite, left_out={**the_same, **suite.left_out})


def person(picture: Picture) -> str:
    """The name of the person shown, from what is held fixed. Pictures of one person are not independent."""
    return "/".join(value for _, value in picture.context)


def crossed(prompts: Prompts, pictures: Iterable[Picture], about: str) -> list[Item]:
    """The items that ask every question about every picture, clustered by person."""
    return [
        Item(
            key="/".join([name, person(picture), *picture.attributes.values()]),
            prompt=prompt.text,
            images=(picture,),
            attributes=(dict(picture.attributes),),
            cluster=person(picture),
            question=name,
            options=prompt.options,
            about=about,
            context=dict(picture.context),
            worth=prompt.worth,
            lexicons=prompt.lexicons,
        )
        for name, prompt in prompts.items()
        for picture in pictures
    ]


def pictures_shown(item: Item) -> str:
    """The person and the versions shown; the same for both orders of a pair."""
    versions = sorted(",".join(attributes.values()) for attributes in item.attributes)
    return "/".join([item.cluster, *versions])


def probe_pictures(probe: Probe, pictures: Sequence[Picture], held_out: Sequence[str] = ()) -> list[Picture]:
    """The pictures of the occupations that a probe is about; InputError if an occupation has no picture.

    held_out: the occupations of a probe that names none; () is all.
    """
    needed = probe.occupations or tuple(held_out)
    present = {occupation(picture) for picture in pictures}
    if missing := [work for work in needed if work not in present]:
        raise InputError(
            f"{probe.name} is asked about {' and '.join(needed)} pictures; there is no "
            f"{' or '.join(missing)} among the occupations {', '.join(sorted(present)) or 'none'}"
        )
    return [picture for picture in pictures if not needed or occupation(picture) in needed]


def occupation(picture: Picture) -> str:
    return dict(picture.context).get(OCCUPATION, "")


def is_benchmark(task: str) -> bool:
    """Whether a task's questions are read from a file: `mmstar`, or `choice-NAME`, which needs the file's name."""
    try:
        name, rest = split_task(task)
    except InputError:
        return False
    return get(name).from_file and get(name).named_tasks == bool(rest)


def benchmark(task: str, path: str | None = None, suffix: str = "", wording: str | Path | None = None) -> "Suite":
    """A benchmark whose questions are in a file (None: in the folder GGSS_DATA), as a suite of one task.

    suffix: appended to each question unchanged, such as a line that asks for the letter alone. wording: a file with
    another suffix, and with the shapes in which families of models are asked.
    """
    if not is_benchmark(task):
        raise InputError(f"{task!r} is no benchmark that is read from a file")
    probe, name = get(task), split_task(task)[1]

    def items(_: str) -> list[Item]:
        questions, said = probe.items(path, name) if probe.named_tasks else probe.items(path), read_wording(wording)
        appended = suffix or said.suffixes.get(task, "")
        return [replace(item, prompt=item.prompt + appended, shapes=said.shapes) for item in questions]

    return Suite(task, (task,), items, (task,))


class Provenance(BaseModel):
    """Where the pictures of a suite or of a study come from, and what may be concluded from answers about them.

    source: who made or collected them. licence: under which they are used. consent: of the people that are shown.
    scope: what answers about them are evidence of, or not. Each is a sentence; "" if nothing is said.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str = ""
    licence: str = ""
    consent: str = ""
    scope: str = ""

    def over(self, other: "Provenance") -> "Provenance":
        """The same, with what another one says where this one says nothing."""
        return other.model_copy(update={name: words for name, words in self.model_dump().items() if words})


SUITES: Registry[Callable[..., Suite]] = Registry("suite", "ggss.suites")
"""Functions that make a suite from keyword arguments such as `images`, by the suite's name."""
register, names = SUITES.add, SUITES.names
_PROVENANCE: dict[str, Provenance] = {}


def describe(name: str, provenance: Provenance) -> None:
    """Say where the pictures of a registered suite come from; a report shows it."""
    _PROVENANCE[name] = provenance


def provenance(name: str) -> Provenance:
    """What a suite says about its pictures; nothing if it does not, or if they are the user's own."""
    return _PROVENANCE.get(name, Provenance()) if name in SUITES else Provenance()


def load(name: str, **material: Any) -> "Suite":
    """A suite by name.

    Args:
        name: `small-world`, `reflect`, or one that a plug-in registers.
        **material: the suite's arguments, such as `images="faces/manifest.csv"`.

    Returns:
        The suite: its tasks and their items.

    Raises:
        InputError: if there is no such suite, or it takes or needs something else.

    Examples:
        >>> ggss.probes.suites.load("small-world", split="evaluation").tasks[:2]
        ('mcq', '2afc')
    """
    make = SUITES.get(name)
    parameters = signature(make).parameters
    mistakes = [f"it takes {' and '.join(parameters)}, not {key}" for key in material if key not in parameters]
    needed = [key for key, parameter in parameters.items() if parameter.default is parameter.empty]
    mistakes += [f"it needs {key}" for key in needed if not material.get(key)]
    if mistakes:
        raise problems(f"suite {name!r}", mistakes)
    return make(**material)


def sample_pairs(items: Sequence[Item], share: float, seed: int = SEED) -> list[Item]:
    """A share of the pairs of each question, each in both orders. The published runs ask about half of them."""
    sample: set[tuple[str, str]] = set()
    for question in dict.fromkeys(item.question for item in items):
        pairs = list(dict.fromkeys(pictures_shown(item) for item in items if item.question == question))
        count = max(1, int(share * len(pairs)))
        sample |= {(question, pair) for pair in random.Random(seed).sample(pairs, count)}
    return [item for item in items if (item.question, pictures_shown(item)) in sample]


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


register("reflect", reflect)
