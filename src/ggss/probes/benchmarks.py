"""Benchmarks that are read from files: MMStar (multiple choice), MME (yes or no in pairs), and others of both kinds.

**choice** is any multiple-choice table of VLMEvalKit's, such as MMBench: columns index, question, A, B, ..., answer,
image, and where there are some hint and category. Its task has the file's name: `choice-mmbench_dev_en`.

**MMStar** has 1,500 multiple-choice questions about pictures, 250 in each of six dimensions. It is read from
VLMEvalKit's `MMStar.tsv`, which has the options in columns A, B, ..., or from the dataset's `mmstar.parquet` (or the
TSV beside it), which has them inside the question: "Options: A: ..., B: ..." or "Choices:\\n(A) ...\\n(B) ...". All
are asked with VLMEvalKit's prompt and scored by its exact matching. A question whose options cannot be read from its
text is asked unchanged and answered by letter only.

**MME** has two yes/no questions about each of 1,187 pictures, in ten subtasks of perception and four of reasoning. It
is read from the release's folders or from the parquet files that lmms-eval uses:

    MME_Benchmark/count/000000006040.jpg, .txt                  (nine of the subtasks)
    MME_Benchmark/artwork/images/*.jpg, questions_answers_YN/*.txt         (the other five)
    MME/data/test-00000-of-00004.parquet, ...         columns question_id, image, question, answer, category

A .txt has two lines, each a question, a tab, and Yes or No. Questions are asked in the release's words, which end in
"Please answer yes or no." A subtask scores 100 accuracy (over questions) + 100 accuracy+ (over pictures: both answers
are right); the totals are sums over the perception and the reasoning subtasks. The two answers about a picture are
resampled together. Accuracy is the first metric, as for every capability, followed by the published totals; a total
is given only if the file has all its subtasks.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ggss.data.hub import Cells, embedded, read_table, revision_of
from ggss.data.pictures import BytesPicture, FilePicture
from ggss.errors import InputError, problems
from ggss.files import read_utf8
from ggss.probes import base, metrics, parsers
from ggss.probes.base import ACCURACY, Answers, Display, Item, Labels, Parsed, Probe, register
from ggss.stats.metric import Array, Metric, ratio

DIMENSIONS = (
    "coarse perception",
    "fine-grained perception",
    "instance reasoning",
    "logical reasoning",
    "science & technology",
    "math",
)
LETTERS = "ABCDEFGH"
ANSWERS = "ABCD"  # the options of every question of MMStar
MMSTAR_DOWNLOAD = (
    "run `ggss data mmstar --download`; or download https://opencompass.openxlab.space/utils/VLMEval/MMStar.tsv, "
    "or mmstar.parquet from https://huggingface.co/datasets/Lin-Chen/MMStar"
)
_MMSTAR_NAMES = ("MMStar.tsv", "mmstar.parquet", "MMStar/MMStar.tsv", "MMStar/mmstar.parquet")
_CHOICE_COLUMNS = ("index", "question", "answer", "image")
_MMSTAR_COLUMNS = ("index", "question", "answer", "category", "image")
CHOICE_DOWNLOAD = "download a multiple-choice table that VLMEvalKit uses, such as MMBench_DEV_EN.tsv"
_HEADING = re.compile(r"(?:Options|Choices):")
_LABEL = re.compile(r"(?<!\S)(?:\(([A-H])\)|([A-H])[:.)](?=\s|$))")
_LONGEST_REFERENCE = 64  # VLMEvalKit: a shorter picture cell is the index of the row that has the picture

PERCEPTION = frozenset(
    {
        "OCR",
        "artwork",
        "celebrity",
        "color",
        "count",
        "existence",
        "landmark",
        "position",
        "posters",
        "scene",
    }
)
REASONING = frozenset({"commonsense_reasoning", "numerical_calculation", "text_translation", "code_reasoning"})
TOTALS = ("perception", "reasoning")
MME_DOWNLOAD = (
    "run `ggss data mme --download`; or ask for the release at "
    "https://github.com/BradyFU/Awesome-Multimodal-Large-Language-Models and put its folder MME_Benchmark, "
    "or download https://huggingface.co/datasets/lmms-lab/MME and put it as MME/data/test-*.parquet"
)
_MME_NAMES = ("MME_Benchmark", "MME_Benchmark_release_version/MME_Benchmark", "MME", ".")
_MME_COLUMNS = ("question_id", "image", "question", "answer", "category")
_PICTURES = (".jpg", ".jpeg", ".png")
_ANSWERS = {"Yes": "yes", "No": "no"}


def locate(
    benchmark: str,
    path: str | Path | None,
    names: Sequence[str],
    advice: str,
    fits: Callable[[Path], bool] = Path.is_file,
) -> Path:
    """`path` if it is a file, else the first of the `names` that fits in the folder `path` (None: GGSS_DATA).

    advice: what to download and how to name it, for the error if there is no such file.
    """
    remedy = f"{advice}, into the folder that the variable GGSS_DATA names, or give its path"
    folder = path or os.environ.get("GGSS_DATA")
    if not folder:
        raise InputError(f"the data of {benchmark} are not part of ggss: {remedy}")
    place = Path(folder).expanduser()
    if place.is_file():
        return place
    for name in names:
        if fits(place / name):
            return place / name
    reason = f"has none of {', '.join(names)}" if place.is_dir() else "does not exist"
    raise InputError(f"no {benchmark} at {str(place)!r}, which {reason}: {remedy}")


def multiple_choice_probe(
    name: str,
    title: str,
    summary: str,
    items: Callable[..., Sequence[Item]],
    max_new_tokens: int = 2048,
    from_file: bool = False,
) -> Probe:
    """A multiple-choice benchmark: accuracy, then accuracy in each dimension; an unreadable answer is wrong."""

    def parse(answer: str, item: Item) -> str | None:
        return parsers.option(answer, item.options)

    def measure(answers: Answers, baseline: Answers | None) -> Mapping[str, Metric]:
        return metrics.accuracy_by_question(answers)

    display = Display(f"{title} accuracy (%)", "share of questions answered right", 100, 1, " %", "higher")
    return Probe(
        name,
        title,
        summary,
        "multiple-choice",
        items,
        parse,
        measure,
        {"accuracy": display},
        max_new_tokens=max_new_tokens,
        from_file=from_file,
    )


def load_mmstar(path: str | Path | None = None) -> tuple[Item, ...]:
    """The questions of a .tsv or .parquet file, or of the folder that it is in (None: the folder GGSS_DATA).

    Pictures are decoded when asked for. InputError lists everything that is wrong with the rows.
    """
    file = locate("MMStar", path, _MMSTAR_NAMES, MMSTAR_DOWNLOAD)
    return _choice_items("MMStar", file, _MMSTAR_COLUMNS, DIMENSIONS)


def load_choice(path: str | Path | None, name: str) -> tuple[Item, ...]:
    """The questions of a table of VLMEvalKit's (None: that of this name in the folder GGSS_DATA)."""
    folder = Path(path or os.environ.get("GGSS_DATA") or ".").expanduser()
    present = sorted(file.name for file in folder.iterdir()) if folder.is_dir() else []
    names = [file for file in present if file.casefold() in (f"{name}.tsv".casefold(), f"{name}.parquet".casefold())]
    file = locate(name, path, names or [f"{name}.tsv"], CHOICE_DOWNLOAD)
    return _choice_items(name, file, _CHOICE_COLUMNS)


def _choice_items(
    title: str, file: Path, columns: Sequence[str], dimensions: Collection[str] = ()
) -> tuple[Item, ...]:
    """The items of a table. dimensions: the only categories that may be there; () is any."""
    errors: list[str] = []
    rows = read_table(file, columns, ("hint", "category", "l2_category", "l2-category", *LETTERS), errors)
    pictures = {str(row["index"]): row["image"] for _, row in rows}
    revision, items = revision_of(file), dict[str, Item]()
    for place, row in rows:
        try:
            item = _choice_item(row, pictures, dimensions, revision)
        except ValueError as error:
            errors.append(f"{place} {error}")
            continue
        if item.key in items:
            errors.append(f"{place} has index {item.key} a second time")
        items[item.key] = item
    if not rows and not errors:
        errors.append("it has no rows")
    if errors:
        raise problems(f"{title} in {str(file)!r}", errors)
    return tuple(items.values())


def prompt(question: str, options: Mapping[str, str], hint: str = "") -> str:
    """VLMEvalKit's prompt for a multiple-choice question."""
    question = f"Hint: {hint}\nQuestion: {question}" if hint else f"Question: {question}"
    if not options:
        return f"{question}\n"
    listed = "".join(f"{letter}. {text}\n" for letter, text in options.items())
    return f"{question}\nOptions:\n{listed}Please select the correct answer from the options above. \n"


def split_options(text: str) -> tuple[str, dict[str, str]]:
    """A question without the options at its end, and these options; {} if fewer than two are lettered in order."""
    headings = list(_HEADING.finditer(text))
    start = headings[-1].end() if headings else 0
    labels = [(match[1] or match[2], match) for match in _LABEL.finditer(text, start)]
    for first in reversed([i for i, (letter, _) in enumerate(labels) if letter == "A"]):
        run: list[re.Match[str]] = []
        for letter, match in labels[first:]:
            if letter == LETTERS[len(run) : len(run) + 1]:
                run.append(match)
        if len(run) > 1:
            ends = [*(match.start() for match in run[1:]), len(text)]
            texts = [text[m.end() : end].strip().removesuffix(",") for m, end in zip(run, ends, strict=True)]
            # The dataset was written by pandas, which writes nan for an option that is missing.
            options = {LETTERS[i]: option for i, option in enumerate(texts) if option != "nan"}
            return text[: headings[-1].start() if headings else run[0].start()].strip(), options
    return text.strip(), {}


def _choice_item(row: Cells, pictures: Mapping[str, object], dimensions: Collection[str], revision: str) -> Item:
    """The item of a row; ValueError says what is wrong with the row."""
    errors: list[str] = []
    text = {name: "" if cell is None else str(cell).strip() for name, cell in row.items() if name != "image"}
    question, options = text["question"], {letter: text[letter] for letter in LETTERS if text.get(letter)}
    if not options:
        question, options = split_options(question)
    answerable = options or dict.fromkeys(ANSWERS, "")
    category = text.get("category", "")
    errors += [f"has no {name}" for name in ("index", "question") if not text[name]]
    if not text["answer"]:
        errors.append("has no answer, as in a split whose answers are not published")
    elif text["answer"] not in answerable:
        errors.append(f"has answer {text['answer']!r}, which is none of its options {', '.join(answerable)}")
    if dimensions and category not in dimensions:
        errors.append(f"has category {category!r}, which is none of the six dimensions")
    picture = None
    try:
        picture = _picture(row["image"], pictures)
    except ValueError as error:
        errors.append(str(error))
    if errors or picture is None:
        raise ValueError("; ".join(errors))
    finer = text.get("l2_category", "") or text.get("l2-category", "")
    return Item(
        key=text["index"],
        prompt=prompt(question, options, text.get("hint", "")),
        images=(picture,),
        attributes=({},),
        cluster=picture.digest[:16],
        question=category or "all",
        options=answerable,
        expected=text["answer"],
        context={"category": category, "l2_category": finer, **_revision(revision)},
    )


def _revision(revision: str) -> dict[str, str]:
    """The revision of a file that was downloaded, as a part of what its items are."""
    return {"revision": revision} if revision else {}


def _picture(cell: object, pictures: Mapping[str, object]) -> BytesPicture:
    if isinstance(cell, str) and 0 < len(cell) <= _LONGEST_REFERENCE:
        if cell not in pictures:
            raise ValueError(f"has the picture of row {cell!r}, which is not there")
        cell = pictures[cell]
    return embedded(cell)


register(
    multiple_choice_probe(
        "mmstar",
        "MMStar",
        "MMStar: multiple-choice questions in six dimensions, by exact matching",
        load_mmstar,
        from_file=True,
    )
)
register(
    replace(
        multiple_choice_probe(
            "choice",
            "multiple choice",
            "any multiple-choice table of VLMEvalKit's, such as MMBench, by exact matching",
            load_choice,
            from_file=True,
        ),
        named_tasks=True,
    )
)


def mme(
    subtask: Labels,
    image: Labels,
    answer: Parsed,
    expected: Labels,
    reasoning: Collection[str] = REASONING,
) -> dict[str, Metric]:
    """The metrics `accuracy`, `accuracy+`, and the totals `perception` and `reasoning` where there are such subtasks.

    Columns have one row per question; the metrics' items are pictures, in sorted order of (subtask, image).
    `unparsed` counts pictures with an answer that is neither yes nor no; such an answer is wrong.
    """
    base.check_columns("mme", subtask=subtask, image=image, answer=answer, expected=expected)
    pictures = sorted(set(zip(subtask, image, strict=True)))
    place = {picture: i for i, picture in enumerate(pictures)}
    rows = np.array([place[picture] for picture in zip(subtask, image, strict=True)])
    counts = np.bincount(rows)
    odd = [f"{task}/{picture} has {n}" for (task, picture), n in zip(pictures, counts, strict=True) if n != 2]
    if odd:
        raise problems("mme: every picture needs two questions", odd)
    right = np.bincount(rows, [a == e for a, e in zip(answer, expected, strict=True)])
    unparsed = int(np.count_nonzero(np.bincount(rows, [a is None for a in answer])))
    tasks, numbers = base.codes([task for task, _ in pictures])
    terms = np.zeros((len(pictures), len(tasks), 3))
    terms[np.arange(len(pictures)), numbers] = np.column_stack([right / 2, right == 2, np.ones(len(pictures))])
    hard = np.array([task in reasoning for task in tasks])

    def rates(sums: Array) -> Array:
        """[R, tasks, (right, both right, pictures)]"""
        return sums.reshape(len(sums), len(tasks), 3)

    def overall(column: int):
        return lambda sums: ratio(rates(sums)[..., column].sum(1), rates(sums)[..., 2].sum(1))

    def total(part: np.ndarray):
        return lambda sums: 100 * ratio(rates(sums)[:, part, :2].sum(-1), rates(sums)[:, part, 2]).sum(1)

    values = {"accuracy": overall(0), "accuracy+": overall(1)}
    if not hard.all():
        values["perception"] = total(~hard)
    if hard.any():
        values["reasoning"] = total(hard)
    flat = terms.reshape(len(pictures), -1)
    most = {"accuracy": 1.0, "accuracy+": 1.0, "perception": 200.0 * (~hard).sum(), "reasoning": 200.0 * hard.sum()}
    return {name: Metric(name, flat, value, unparsed, bounds=(0.0, most[name])) for name, value in values.items()}


def on_questions(metric: Metric, subtask: Labels, image: Labels) -> Metric:
    """A metric of `mme` with a row per question instead of per picture, in the questions' order.

    A picture's terms are in the row of its first question; the row of its second is zero. So the rows match the
    questions and their clusters, and resampling pictures gives the same values.
    """
    pictures = list(zip(subtask, image, strict=True))
    first = {picture: place for place, picture in reversed(list(enumerate(pictures)))}
    terms = np.zeros((len(pictures), metric.terms.shape[1]))
    terms[[first[picture] for picture in sorted(first)]] = metric.terms
    return replace(metric, terms=terms)


def yes_or_no_probe(
    name: str,
    title: str,
    summary: str,
    items: Callable[..., Sequence[Item]],
    reasoning: Collection[str],
    perception: Collection[str] | None = None,
    from_file: bool = False,
) -> Probe:
    """A benchmark of yes-or-no questions in pairs: accuracy, accuracy+, and the totals of perception and reasoning.

    reasoning: its categories of reasoning; the others are perception. perception: if it is given, too, a total is
    reported only if the questions have all its categories.
    """

    def parse(answer: str, item: Item) -> str | None:
        """Yes or no in the spelling of the item's options."""
        word = parsers.yes_or_no(answer)
        return next((option for option in item.options if option.casefold() == word), word)

    def measure(answers: Answers, baseline: Answers | None) -> Mapping[str, Metric]:
        pictures = [item.cluster for item in answers.items]
        scores = mme(answers.questions, pictures, answers.parsed, answers.expected, reasoning)
        categories = {"perception": perception or (), "reasoning": reasoning if perception else ()}
        partial = {total for total, needed in categories.items() if not set(needed).issubset(answers.questions)}
        measured = {
            metric: on_questions(score, answers.questions, pictures)
            for metric, score in scores.items()
            if metric not in partial
        }
        # Counted by question, not by picture: two runs are compared question by question.
        return measured | {"accuracy": metrics.accuracy(answers.parsed, answers.expected)}

    displays = {
        "accuracy": Display(f"{title} accuracy (%)", "share of questions answered right", 100, 1, " %", "higher"),
        "accuracy+": ACCURACY,
        **{total: Display(f"{title} {total}", f"total over {total}", 1, 1, "", "higher") for total in TOTALS},
    }
    return Probe(name, title, summary, "yes-or-no", items, parse, measure, displays, from_file=from_file)


class _MmeQuestion(NamedTuple):
    place: str
    subtask: str
    picture_id: str
    question: str
    answer: str
    picture: FilePicture | BytesPicture


def load_mme(path: str | Path | None = None) -> tuple[Item, ...]:
    """The questions of the release's folder or of a parquet file or folder (None: looked for in GGSS_DATA).

    Pictures are decoded when asked for. InputError lists everything that is wrong with the questions.
    """
    place = locate(
        "MME", path, _MME_NAMES, MME_DOWNLOAD, fits=lambda folder: bool(_folders(folder) or _shards(folder))
    )
    errors: list[str] = []
    if place.is_dir() and (folders := _folders(place)):
        rows = [row for folder in folders for row in _folder_rows(folder, errors)]
    else:
        pictures: dict[str, BytesPicture] = {}
        files = _shards(place) if place.is_dir() else [place]
        rows = [row for file in files for row in _mme_rows(file, pictures, errors)]
    errors += _mme_errors(rows)
    if not rows and not errors:
        errors.append("there are no questions")
    if errors:
        raise problems(f"MME in {str(place)!r}", errors)
    counts: Counter[str] = Counter()
    return tuple(_mme_item(row, counts, _revision(revision_of(place))) for row in rows)


def _folders(place: Path) -> list[Path]:
    return [place / subtask for subtask in sorted(PERCEPTION | REASONING) if (place / subtask).is_dir()]


def _shards(place: Path) -> list[Path]:
    return sorted(place.glob("test-*.parquet")) or sorted(place.glob("data/test-*.parquet"))


def _folder_rows(folder: Path, errors: list[str]) -> Iterator[_MmeQuestion]:
    texts, images = folder / "questions_answers_YN", folder / "images"
    files = sorted((texts if texts.is_dir() else folder).glob("*.txt"))
    pictures = {
        file.stem: file
        for file in sorted((images if images.is_dir() else folder).iterdir())
        if file.suffix.lower() in _PICTURES
    }
    if not files:
        errors.append(f"{folder.name} has no .txt with questions")
    for file in files:
        name = f"{folder.name}/{file.name}"
        try:
            picture = FilePicture(pictures[file.stem])
            picture.size()
            lines = read_utf8(file, "the questions").split("\n")
        except KeyError:
            errors.append(f"{name} has no picture beside it")
            continue
        except InputError as error:
            errors.append(f"{name}: {error}")
            continue
        for number, line in enumerate(lines, start=1):
            if line.strip():
                question, _, answer = map(str.strip, line.rpartition("\t"))
                place, picture_id = f"{name}, line {number},", f"{folder.name}/{picture.path.name}"
                yield _MmeQuestion(place, folder.name, picture_id, question, answer, picture)


def _mme_rows(file: Path, pictures: dict[str, BytesPicture], errors: list[str]) -> Iterator[_MmeQuestion]:
    for place, row in read_table(file, _MME_COLUMNS, (), errors):
        try:
            picture = embedded(row["image"])
        except ValueError as error:
            errors.append(f"{file.name}, {place}, {error}")
            continue
        picture = pictures.setdefault(picture.digest, picture)  # a picture is stored with each of its two questions
        subtask, picture_id = _text(row["category"]), _text(row["question_id"])
        question, answer = _text(row["question"]), _text(row["answer"])
        yield _MmeQuestion(f"{file.name}, {place},", subtask, picture_id, question, answer, picture)


def _text(cell: Any) -> str:
    return "" if cell is None else str(cell).strip()


def _mme_errors(rows: Sequence[_MmeQuestion]) -> list[str]:
    errors: list[str] = []
    for row in rows:
        if row.subtask not in PERCEPTION | REASONING:
            errors.append(f"{row.place} has category {row.subtask!r}, which is no subtask of MME")
        if row.answer not in _ANSWERS:
            errors.append(f"{row.place} has answer {row.answer!r} instead of Yes or No")
        errors += [f"{row.place} has no {name}" for name in ("question", "picture_id") if not getattr(row, name)]
    counts = Counter((row.subtask, row.picture_id) for row in rows)
    errors += [f"{picture} has {n} questions instead of 2" for (_, picture), n in counts.items() if n != 2]
    return errors


def _mme_item(row: _MmeQuestion, counts: Counter[str], revision: Mapping[str, str]) -> Item:
    """The item of a question; counts: by picture, the questions so far."""
    counts[row.picture_id] += 1
    return Item(
        key=f"{row.picture_id}#{counts[row.picture_id]}",
        prompt=row.question,
        images=(row.picture,),
        attributes=({},),
        cluster=row.picture_id,
        question=row.subtask,
        options=_ANSWERS,
        expected=row.answer,
        context={"category": row.subtask, **revision},
    )


register(
    yes_or_no_probe(
        "mme",
        "MME",
        "MME: yes/no questions in pairs, accuracy, accuracy+, and the perception and reasoning totals",
        load_mme,
        REASONING,
        PERCEPTION,
        from_file=True,
    )
)
