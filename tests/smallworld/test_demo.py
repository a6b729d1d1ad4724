"""`ggss demo` as a user runs it, once and whole: what it writes, what its page says, and that bias falls."""

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image

import ggss
from ggss import cli, probes
from ggss.smallworld.demo import check_place
from page_reader import read


class Seen(NamedTuple):
    folder: Path
    said: dict
    page: str


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder, printed = tmp_path_factory.mktemp("demo") / "out", io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(sys, "argv", ["ggss", "demo", "-o", str(folder), "--model", "qwen3-vl", "--json"])
        with contextlib.suppress(SystemExit):
            cli.main()
    return Seen(folder, json.loads(printed.getvalue()), (folder / "report.html").read_text(encoding="utf-8"))


def test_everything_is_written(seen):
    assert seen.said["picture"] == str(seen.folder / "demo.png")
    pixels = np.asarray(Image.open(seen.folder / "demo.png").convert("L"))
    assert min(pixels.shape) > 800
    assert pixels.std() > 20  # not an empty sheet
    assert len((seen.folder / "faces" / "manifest.csv").read_text().splitlines()) == 481
    for attribute, values in (("race", 5), ("gender", 2)):
        steerer = ggss.Steerer.from_pretrained(seen.folder / f"{attribute}-steerer")
        assert (steerer.method, steerer.attribute, len(steerer.values)) == ("ggss", attribute, values)


def test_the_folder_is_known_again(seen):
    """`make demo` twice, or once more after it was stopped."""
    check_place(seen.folder)
    (seen.folder / "report.html").unlink()
    check_place(seen.folder)


def test_it_ends_in_the_report_of_what_it_found(seen):
    page = read(seen.page)
    assert "ggss demo" in seen.page[:2048]  # so that the demo may replace it
    for task, row in seen.said["bias"].items():
        digits = next(iter(probes.get(task).displays.values())).digits
        (line,) = [one for one in page.one("section", id="bias").all("tr") if row["meaning"] in one.words]
        before, after = (one.words.split(" [")[0].split(" (")[0] for one in line.all("td")[1:3])
        assert (before, after) == tuple(f"{row['published'][run]:.{digits}f}" for run in ("before", "after"))
    kept = page.one("section", id="capability")
    for attribute in ("race", "gender"):
        accuracy = 100 * seen.said["capability"][attribute]["estimate"]
        rows = [row for row in kept.all("tr") if row.all("th") and row.all("th")[0].words == "SmallStar"]
        assert any([cell.words for cell in row.all("td")][3].startswith(f"{accuracy:.1f} ") for row in rows)
        assert f"qwen3-vl: {attribute}" in [head.words for head in page.one("section", id="discovery").all("h3")]
    assert "no evidence about any model trained on photographs" in page.one("header").words


def test_the_report_shows_faces_and_their_gates(seen):
    people = read(seen.page).one("section", id="people")
    faces = people.all("svg", kind="face")
    heats = people.all("use", kind="heat")
    assert len(faces) > 500
    assert len(heats) > 300
    names = {one.attributes["href"] for one in people.all("use")}
    assert {one.attributes["id"] for one in read(seen.page).all("symbol")} >= {name[1:] for name in names}
    assert all(one.attributes["aria-label"] for one in faces)


def test_both_spellings_of_a_model_name_the_same(seen):
    """It was run with `--model qwen3-vl`."""
    assert seen.said["model"] == "small-world/qwen3-vl"


def test_names_and_scales_are_those_of_the_probes(seen):
    assert [row["name"] for row in seen.said["bias"].values()] == [
        "MCQ, race ×10³",
        "2AFC, race",
        "nurse or doctor, gender",
    ]
    assert seen.said["bias"]["mcq"]["before"]["estimate"] > 10  # nats times a thousand


def test_bias_falls_and_capability_does_not(seen):
    assert len(seen.said["bias"]) == 3
    for row in seen.said["bias"].values():
        before, after, change = (row[key]["estimate"] for key in ("before", "after", "change"))
        assert row["before"]["low"] > 0  # there was a bias to begin with
        assert change == pytest.approx(100 * (after / before - 1))
        assert row["change"]["high"] < -10
    accuracy = {name: row["estimate"] for name, row in seen.said["capability"].items()}
    for attribute in ("race", "gender"):
        assert seen.said["capability"][attribute]["change"] == pytest.approx(
            accuracy[attribute] - accuracy["unsteered"]
        )
        assert abs(accuracy[attribute] - accuracy["unsteered"]) < 0.03
        # Full strength takes away what the model sees of the attribute: asked outright, it no longer knows.
        named_before, named_after = seen.said["recognition"][attribute]
        assert named_after < named_before - 0.2
