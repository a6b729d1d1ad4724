"""Portraits on disk: the FOCUS-shaped set is whole or absent, and the contact sheet."""

import csv
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ggss.errors import InputError
from ggss.smallworld.painter import Portrait
from ggss.smallworld.people import RACES, Person
from ggss.smallworld.scenes import Scene
from ggss.smallworld.sets import MANIFEST, contact_sheet, focus_set, paint_focus_set


def pixels(portrait: Portrait | Scene) -> np.ndarray:
    return np.asarray(portrait.paint())


@pytest.fixture(scope="module")
def painted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return paint_focus_set(tmp_path_factory.mktemp("world") / "focus", progress=False).parent


def test_the_focus_set_has_its_480_pictures_and_manifest(painted: Path) -> None:
    with (painted / MANIFEST).open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 6 * 8 * 5 * 2
    for row in rows:
        assert row["path"] == f"{row['occupation']}/{row['identity']}/{row['race']}_{row['gender']}.png"
    assert {row["path"] for row in rows} == {p.relative_to(painted).as_posix() for p in painted.rglob("*.png")}
    assert {row["race"] for row in rows} == set(RACES)
    assert not list(painted.parent.glob(".*"))


def test_the_focus_set_holds_what_the_painter_paints(painted: Path) -> None:
    for path, portrait in list(focus_set().items())[::37]:
        with Image.open(painted / path) as picture:
            assert (np.asarray(picture) == pixels(portrait)).all()
            assert picture.mode == "RGB"


def test_an_earlier_set_is_replaced_whole(painted: Path) -> None:
    victim = painted / "cook/00/amber_man.png"
    victim.unlink()
    paint_focus_set(painted, progress=False)
    assert victim.exists()
    assert not list(painted.parent.glob(".*"))


def test_a_foreign_folder_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_text("precious")
    with pytest.raises(InputError, match=r"holds 1 things .* 'holiday.jpg'"):
        paint_focus_set(tmp_path)
    assert os.listdir(tmp_path) == ["holiday.jpg"]
    with pytest.raises(InputError, match="is a file"):
        paint_focus_set(tmp_path / "holiday.jpg")


def test_a_broken_run_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def paint(self: Portrait) -> Image.Image:
        nonlocal calls
        calls += 1
        if calls > 20:
            raise OSError(28, "No space left on device")
        return Image.new("RGB", (64, 64))

    monkeypatch.setattr(Portrait, "paint", paint)
    with pytest.raises(InputError, match="No space left on device"):
        paint_focus_set(tmp_path / "focus", progress=False)
    assert os.listdir(tmp_path) == []


def test_the_contact_sheet_has_a_row_a_person_and_ten_columns() -> None:
    small = contact_sheet([Person(0, "cook"), Person(1, "ceo")], large=False)
    assert small.width > 10 * 64
    assert small.height > 2 * 64
    assert contact_sheet([Person(0, "cook")]).width > 10 * 128
