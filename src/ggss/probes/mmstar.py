"""MMStar: 1,500 multiple-choice questions about pictures, 250 in each of six dimensions.

Read from VLMEvalKit's `MMStar.tsv`, which has the options in columns A, B, ..., or from the dataset's own
`mmstar.parquet` (or the TSV beside it), which has them inside the question: "Options: A: ..., B: ..." or
"Choices:\\n(A) ...\\n(B) ...". All are asked with VLMEvalKit's prompt and scored by its exact matching. A question
whose options cannot be read from its text is asked unchanged and answered by letter only.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from ggss.data.picture import BytesPicture
from ggss.errors import problems
from ggss.probes.base import Item, register
from ggss.probes.benchmark_files import Cells, embedded, locate, read_table
from ggss.probes.multiple_choice import multiple_choice_probe

DIMENSIONS = (
    "coarse perception",
    "fine-grained perception",
    "instance reasoning",
    "logical reasoning",
    "science & technology",
    "math",
)
LETTERS = "ABCDEFGH"
ANSWERS = "ABCD"  # what every question of MMStar is answered with
DOWNLOAD = (
    "download https://opencompass.openxlab.space/utils/VLMEval/MMStar.tsv, "
    "or mmstar.parquet from https://huggingface.co/datasets/Lin-Chen/MMStar"
)
_NAMES = ("MMStar.tsv", "mmstar.parquet", "MMStar/MMStar.tsv", "MMStar/mmstar.parquet")
_COLUMNS = ("index", "question", "answer", "category", "image")
_HEADING = re.compile(r"(?:Options|Choices):")
_LABEL = re.compile(r"(?<!\S)(?:\(([A-H])\)|([A-H])[:.)](?=\s|$))")
_LONGEST_REFERENCE = 64  # VLMEvalKit: a shorter picture cell is the index of the row that has the picture


def load(path: str | Path | None = None) -> tuple[Item, ...]:
    """The questions of a .tsv or .parquet file, or of the folder that it is in (None: the folder GGSS_DATA).

    Pictures are decoded when asked for. InputError lists everything that is wrong with the rows.
    """
    file = locate("MMStar", path, _NAMES, DOWNLOAD)
    found: list[str] = []
    rows = read_table(file, _COLUMNS, ("l2_category", *LETTERS), found)
    pictures = {str(row["index"]): row["image"] for _, row in rows}
    items: dict[str, Item] = {}
    for place, row in rows:
        try:
            item = _item(row, pictures)
        except ValueError as error:
            found.append(f"{place} {error}")
            continue
        if item.key in items:
            found.append(f"{place} has index {item.key} a second time")
        items[item.key] = item
    if not rows and not found:
        found.append("it has no rows")
    if found:
        raise problems(f"MMStar in {str(file)!r}", found)
    return tuple(items.values())


def prompt(question: str, options: Mapping[str, str]) -> str:
    """VLMEvalKit's prompt for a multiple-choice question."""
    if not options:
        return f"Question: {question}\n"
    listed = "".join(f"{letter}. {text}\n" for letter, text in options.items())
    return f"Question: {question}\nOptions:\n{listed}Please select the correct answer from the options above. \n"


def split_options(text: str) -> tuple[str, dict[str, str]]:
    """A question's own text and the options at its end; none if fewer than two are lettered in order."""
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


def _item(row: Cells, pictures: Mapping[str, object]) -> Item:
    """One row's question; ValueError says what is wrong with the row."""
    wrong: list[str] = []
    text = {name: "" if cell is None else str(cell).strip() for name, cell in row.items() if name != "image"}
    question, options = text["question"], {letter: text[letter] for letter in LETTERS if text.get(letter)}
    if not options:
        question, options = split_options(question)
    answerable = options or dict.fromkeys(ANSWERS, "")
    wrong += [f"has no {name}" for name in ("index", "question") if not text[name]]
    if text["answer"] not in answerable:
        wrong.append(f"has answer {text['answer']!r}, which is none of its options {', '.join(answerable)}")
    if text["category"] not in DIMENSIONS:
        wrong.append(f"has category {text['category']!r}, which is none of the six dimensions")
    picture = None
    try:
        picture = _picture(row["image"], pictures)
    except ValueError as error:
        wrong.append(str(error))
    if wrong or picture is None:
        raise ValueError("; ".join(wrong))
    return Item(
        key=text["index"],
        prompt=prompt(question, options),
        images=(picture,),
        attributes=({},),
        cluster=picture.digest[:16],
        question=text["category"],
        options=answerable,
        expected=text["answer"],
        context={"category": text["category"], "l2_category": text.get("l2_category", "")},
    )


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
        load,
        from_file=True,
    )
)
