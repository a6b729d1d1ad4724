"""Manifests, as CSV and as JSON lines, and folder patterns."""

import json
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from PIL import Image

from experiments.fuzz import texts, trees
from experiments.fuzz.harness import Target
from ggss.data.counterfactuals import Counterfactuals

ROWS = [
    {"path": f"{work}-{race}.png", "occupation": work, "identity": "1", "race": race}
    for work in ("nurse", "cook")
    for race in ("amber", "jade")
]
_PIECES = (
    "{race}", "{race}", "{gender}", "{identity}", "{race}_{gender}", "_", "_", ".png", ".png", "/", "a", ".",
    "{path}", "{", "}", "{}", "{a b}", "{1}", "{ß}", "*", "?", "[a]",
)  # fmt: skip
_FILES = ("a_b_c_d", "amber_man", "jade_woman", "_", "__", "a" * 60, "a_" * 40 + "b")


def paint(folder: Path) -> None:
    """The pictures of `ROWS`."""
    for shade, row in enumerate(ROWS):
        Image.new("RGB", (8, 8), (shade, 0, 0)).save(folder / row["path"])


def _manifests(folder: Path) -> Any:
    paint(folder)
    table = ",".join(ROWS[0]) + "\n" + "".join(",".join(row.values()) + "\n" for row in ROWS)
    objects = trees.changed(ROWS).filter(lambda rows: isinstance(rows, list)).map(_lines)
    cells = st.lists(st.lists(texts.answers, max_size=4).map(",".join), max_size=4).map(_encoded)
    named = st.tuples(st.just(".csv"), trees.damaged(table.encode(), 2)) | st.tuples(st.just(".jsonl"), objects)
    other = st.tuples(st.sampled_from([".csv", ".jsonl", ".JSONL", ".txt", ""]), cells | objects | st.binary())

    def read(case: tuple[str, bytes]) -> None:
        suffix, data = case
        file = folder / f"manifest{suffix}"
        file.write_bytes(data)
        Counterfactuals.load(file).validate(decode=False)

    return named | named | other, read


def _patterns(folder: Path) -> Any:
    place = folder / "nurse"
    place.mkdir()
    for name in _FILES:
        (place / f"{name}.png").touch()
    pattern = st.lists(st.sampled_from(_PIECES) | texts.words, min_size=1, max_size=24).map("".join)

    def read(text: str) -> None:
        Counterfactuals.load(f"{place}/{text.replace('..', '.')}", context=())  # it stays in the folder

    return pattern, read


def _lines(rows: list[Any]) -> bytes:
    return _encoded([json.dumps(row, ensure_ascii=False) for row in rows])


def _encoded(lines: list[str]) -> bytes:
    return "\n".join(lines).encode("utf-8", "surrogatepass")


TARGETS = (
    Target("manifests", 0.10, _manifests),
    Target("folder patterns", 0.06, _patterns, ("".join(f"{{a{n}}}_" for n in range(20)) + "{b}.jpg",)),
)
