"""The painted town: a counterfactual set as any other, whole or absent on disk, and the contact sheet."""

import csv
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ggss.data.counterfactuals import Counterfactuals
from ggss.data.pictures import labels
from ggss.errors import InputError
from ggss.smallworld.painter import HAIR_VALUES, MANIFEST, Portrait, contact_sheet, hair_town, paint_focus_set, town
from ggss.smallworld.people import GENDERS, RACES, Person


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
    for portrait in town().pictures[::37]:
        with Image.open(painted / f"{portrait.name}.png") as picture:
            assert (np.asarray(picture) == np.asarray(portrait.image())).all()
            assert picture.mode == "RGB"


def test_the_town_is_the_set_that_is_painted(painted: Path) -> None:
    """The same labels in the same order, whether it is taken by its name or read from its files."""
    files, named = Counterfactuals.load(painted / MANIFEST), Counterfactuals.load("small-world")
    assert [labels(picture) for picture in files] == [labels(picture) for picture in named]
    assert named.content_hash == town().content_hash
    assert named.content_hash != town(seed=1).content_hash


@pytest.mark.parametrize("name", ["small-world", "small-world-hair"])
def test_a_registered_set_is_valid(name: str) -> None:
    Counterfactuals.load(name).validate()


def test_a_registered_set_is_chosen_from_like_a_manifest() -> None:
    few = Counterfactuals.load("small-world", include={"occupation": ["nurse", "ceo"]}, exclude={"race": "jade"})
    assert len(few) == 2 * 8 * 4 * 2
    with pytest.raises(InputError, match="no attribute 'hair'"):
        Counterfactuals.load("small-world", attributes="hair")


def test_the_hair_set_varies_three_attributes() -> None:
    assert hair_town().attributes == {"race": RACES, "gender": GENDERS, "hair": HAIR_VALUES}
    assert {"nurse", "doctor", "ceo"} < {dict(picture.context)["occupation"] for picture in hair_town()}


def test_an_earlier_set_is_replaced_whole(painted: Path) -> None:
    victim = painted / "cook/00/amber_man.png"
    victim.unlink()
    paint_focus_set(painted, progress=False)
    assert victim.exists()
    assert not list(painted.parent.glob(".*"))


def test_a_foreign_folder_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_text("precious")
    with pytest.raises(InputError, match=r"holds 1 files or folders .* 'holiday.jpg'"):
        paint_focus_set(tmp_path)
    assert os.listdir(tmp_path) == ["holiday.jpg"]
    with pytest.raises(InputError, match="is a file"):
        paint_focus_set(tmp_path / "holiday.jpg")


def test_a_broken_run_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def image(self: Portrait) -> Image.Image:
        nonlocal calls
        calls += 1
        if calls > 20:
            raise OSError(28, "No space left on device")
        return Image.new("RGB", (64, 64))

    monkeypatch.setattr(Portrait, "image", image)
    with pytest.raises(InputError, match="No space left on device"):
        paint_focus_set(tmp_path / "focus", progress=False)
    assert os.listdir(tmp_path) == []


def test_the_contact_sheet_has_a_row_a_person_and_ten_columns() -> None:
    small = contact_sheet([Person(0, "cook"), Person(1, "ceo")], large=False)
    assert small.width > 10 * 64
    assert small.height > 2 * 64
    assert contact_sheet([Person(0, "cook")]).width > 10 * 128
