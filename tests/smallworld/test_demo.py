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
    for row in seen.said["bias"]:
        display = probes.get(row["task"]).display(row["metric"], row["steered"])
        (line,) = [
            one
            for one in page.one("section", id="bias").all("tr")
            if any(link.attributes.get("title") == display.meaning for link in one.all("a"))
        ]
        before, after = (one.words.split(" [")[0].split(" (")[0] for one in line.all("td")[:2])
        assert (before, after) == tuple(display.number(row[side]) for side in ("before", "after"))
        assert row["verdict"]["words"] in line.words, "terminal and page have one verdict"
    kept = page.one("section", id="capability")
    for attribute in ("race", "gender"):
        accuracy = 100 * _smallstar(seen, attribute)["after"]
        rows = [row for row in kept.all("tr") if row.all("th") and row.all("th")[0].words == "SmallStar"]
        assert any([cell.words for cell in row.all("td")][2].startswith(f"{accuracy:.1f} ") for row in rows)
        assert f"qwen3-vl: {attribute}" in [head.words for head in page.one("section", id="discovery").all("h3")]
    assert "no evidence about any model trained on photographs" in page.one("section", id="cover").words


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


def _smallstar(seen, attribute):
    rows = seen.said["capability"]
    return next(row for row in rows if (row["task"], row["steered"]) == ("smallstar", attribute))


def test_bias_falls_and_capability_does_not(seen):
    assert [(row["task"], row["steered"]) for row in seen.said["bias"]] == [
        ("mcq", "race"),
        ("2afc", "race"),
        ("nurse-doctor", "gender"),
    ]
    for row in seen.said["bias"]:
        assert row["change"]["estimate"] == pytest.approx(100 * (row["after"] / row["before"] - 1))
        assert row["corrected"]["high"] < -10
    for attribute in ("race", "gender"):
        row = _smallstar(seen, attribute)
        assert row["same"]["difference"] == pytest.approx(row["after"] - row["before"])
        assert abs(row["after"] - row["before"]) < 0.03


def test_the_answer_of_nearly_everybody_depends_on_the_attribute_before_and_of_few_after(seen):
    flips = {(row["task"], row["attribute"]): row for row in seen.said["flips"]}
    for task, attribute, most in (("mcq", "race", 0.9), ("nurse-doctor", "gender", 0.4)):
        (before, after), cases = flips[task, attribute]["flips"], flips[task, attribute]["cases"]
        assert before > most * cases
        assert after < 0.2 * cases
        assert flips[task, attribute]["verdict"]["kind"] == "better"


def test_steering_hides_the_attribute_and_that_is_called_intended(seen):
    """Full strength takes away what the model sees of the attribute: asked outright, it no longer knows."""
    for row in seen.said["capability"]:
        if row["task"] == f"recognition-{row['steered']}":
            assert row["after"] < row["before"] - 0.2
            assert row["verdict"]["kind"] == "intended"
