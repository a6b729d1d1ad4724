"""`ggss demo` as a user runs it, once and whole: what it writes, what its page says, and that bias falls."""

import base64
import contextlib
import html
import io
import json
import sys
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image

import ggss
from ggss import cli, probes
from ggss.smallworld.demonstration import check_place


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
    return Seen(folder, json.loads(printed.getvalue()), (folder / "index.html").read_text(encoding="utf-8"))


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
    (seen.folder / "index.html").unlink()
    check_place(seen.folder)


def numbers(said):
    """What the page must name, as a reader of it would write it."""
    for task, row in said["bias"].items():
        digits = next(iter(probes.get(task).displays.values())).digits
        yield row["name"]
        yield row["meaning"]
        for run in (row["before"], row["after"]):
            middle, low, high = (f"{run[key]:.{digits}f}" for key in ("estimate", "low", "high"))
            yield f"<td>{middle} [{low}, {high}]</td>"
        yield f"{row['change']['estimate']:+.0f} % [{row['change']['low']:+.0f}, {row['change']['high']:+.0f}]"
    for row in said["capability"].values():
        yield f"{100 * row['estimate']:.1f} % [{100 * row['low']:.1f}, {100 * row['high']:.1f}]"
    for attribute, (before, after) in said["recognition"].items():
        yield f"the {attribute} in {100 * before:.0f} % of portraits before and {100 * after:.0f} % after"


def test_the_page_names_its_own_numbers_and_holds_the_picture(seen):
    expected = list(numbers(seen.said))
    assert len(expected) == 3 * 5 + 3 + 2
    template = (files("ggss.smallworld") / "data" / "demo.html").read_text(encoding="utf-8")
    shown = html.unescape(seen.page)
    for text in expected:
        assert text in shown
        assert text not in template
    assert f"{seen.said['model']}, race and gender steered with ggss at alpha 1." in seen.page
    assert base64.b64encode((seen.folder / "demo.png").read_bytes()).decode() in seen.page


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
