"""MME: two yes/no questions about each of 1,187 pictures, in ten subtasks of perception and four of reasoning.

Read from the release's folders or from the parquet files that lmms-eval uses:

    MME_Benchmark/count/000000006040.jpg, .txt                  (nine of the subtasks)
    MME_Benchmark/artwork/images/*.jpg, questions_answers_YN/*.txt         (the other five)
    MME/data/test-00000-of-00004.parquet, ...         columns question_id, image, question, answer, category

A .txt has two lines, each a question, a tab, and Yes or No. Questions are asked in the release's words, which end in
"Please answer yes or no." Accuracy is the first metric, as for every capability, followed by the published totals; a
total is given only if all its subtasks are there.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ggss.data.picture import BytesPicture, FilePicture
from ggss.errors import InputError, problems
from ggss.files import read_utf8
from ggss.probes.base import Item, register
from ggss.probes.benchmark_files import embedded, locate, read_table
from ggss.probes.mme_scores import PERCEPTION, REASONING
from ggss.probes.yes_or_no import yes_or_no_probe

DOWNLOAD = (
    "ask for the release at https://github.com/BradyFU/Awesome-Multimodal-Large-Language-Models and put its folder "
    "MME_Benchmark, or download https://huggingface.co/datasets/lmms-lab/MME and put it as MME/data/test-*.parquet"
)
_NAMES = ("MME_Benchmark", "MME_Benchmark_release_version/MME_Benchmark", "MME", ".")
_COLUMNS = ("question_id", "image", "question", "answer", "category")
_PICTURES = (".jpg", ".jpeg", ".png")
_ANSWERS = {"Yes": "yes", "No": "no"}


class _Question(NamedTuple):
    place: str
    subtask: str
    picture_id: str
    question: str
    answer: str
    picture: FilePicture | BytesPicture


def load(path: str | Path | None = None) -> tuple[Item, ...]:
    """The questions of the release's folder or of a parquet file or folder (None: looked for in GGSS_DATA).

    Pictures are decoded when asked for. InputError lists everything that is wrong with the questions.
    """
    place = locate("MME", path, _NAMES, DOWNLOAD, fits=lambda folder: bool(_folders(folder) or _shards(folder)))
    found: list[str] = []
    if place.is_dir() and (folders := _folders(place)):
        rows = [row for folder in folders for row in _folder_rows(folder, found)]
    else:
        kept: dict[str, BytesPicture] = {}
        files = _shards(place) if place.is_dir() else [place]
        rows = [row for file in files for row in _parquet_rows(file, kept, found)]
    found += _wrong(rows)
    if not rows and not found:
        found.append("there are no questions")
    if found:
        raise problems(f"MME in {str(place)!r}", found)
    asked: Counter[str] = Counter()
    return tuple(_item(row, asked) for row in rows)


def _folders(place: Path) -> list[Path]:
    return [place / subtask for subtask in sorted(PERCEPTION | REASONING) if (place / subtask).is_dir()]


def _shards(place: Path) -> list[Path]:
    return sorted(place.glob("test-*.parquet")) or sorted(place.glob("data/test-*.parquet"))


def _folder_rows(folder: Path, found: list[str]) -> Iterator[_Question]:
    texts, images = folder / "questions_answers_YN", folder / "images"
    files = sorted((texts if texts.is_dir() else folder).glob("*.txt"))
    pictures = {
        file.stem: file
        for file in sorted((images if images.is_dir() else folder).iterdir())
        if file.suffix.lower() in _PICTURES
    }
    if not files:
        found.append(f"{folder.name} has no .txt with questions")
    for file in files:
        name = f"{folder.name}/{file.name}"
        try:
            picture = FilePicture(pictures[file.stem])
            picture.size()
            lines = read_utf8(file, "the questions").split("\n")
        except KeyError:
            found.append(f"{name} has no picture beside it")
            continue
        except InputError as error:
            found.append(f"{name}: {error}")
            continue
        for number, line in enumerate(lines, start=1):
            if line.strip():
                question, _, answer = map(str.strip, line.rpartition("\t"))
                place, picture_id = f"{name}, line {number},", f"{folder.name}/{picture.path.name}"
                yield _Question(place, folder.name, picture_id, question, answer, picture)


def _parquet_rows(file: Path, kept: dict[str, BytesPicture], found: list[str]) -> Iterator[_Question]:
    for place, row in read_table(file, _COLUMNS, (), found):
        try:
            picture = embedded(row["image"])
        except ValueError as error:
            found.append(f"{file.name}, {place}, {error}")
            continue
        picture = kept.setdefault(picture.digest, picture)  # a picture is stored with each of its two questions
        subtask, picture_id = _text(row["category"]), _text(row["question_id"])
        question, answer = _text(row["question"]), _text(row["answer"])
        yield _Question(f"{file.name}, {place},", subtask, picture_id, question, answer, picture)


def _text(cell: Any) -> str:
    return "" if cell is None else str(cell).strip()


def _wrong(rows: Sequence[_Question]) -> list[str]:
    found: list[str] = []
    for row in rows:
        if row.subtask not in PERCEPTION | REASONING:
            found.append(f"{row.place} has category {row.subtask!r}, which is no subtask of MME")
        if row.answer not in _ANSWERS:
            found.append(f"{row.place} has answer {row.answer!r} instead of Yes or No")
        found += [f"{row.place} has no {name}" for name in ("question", "picture_id") if not getattr(row, name)]
    asked = Counter((row.subtask, row.picture_id) for row in rows)
    found += [f"{picture} has {n} questions instead of 2" for (_, picture), n in asked.items() if n != 2]
    return found


def _item(row: _Question, asked: Counter[str]) -> Item:
    asked[row.picture_id] += 1
    return Item(
        key=f"{row.picture_id}#{asked[row.picture_id]}",
        prompt=row.question,
        images=(row.picture,),
        attributes=({},),
        cluster=row.picture_id,
        question=row.subtask,
        options=_ANSWERS,
        expected=row.answer,
        context={"category": row.subtask},
    )


register(
    yes_or_no_probe(
        "mme",
        "MME",
        "MME: yes/no questions in pairs, accuracy, accuracy+, and the perception and reasoning totals",
        load,
        REASONING,
        PERCEPTION,
        from_file=True,
    )
)
