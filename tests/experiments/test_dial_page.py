"""The page of the dial: it says what is there, what is missing, and ranks as scipy does."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from experiments.tools.diagnostics_table import ranked
from experiments.tools.dial_page import page, picture


def row(world, method, left, points, probe):
    return {
        "world": world,
        "method": method,
        "changes": {"mcq": [left, left - 5, left + 5], "2afc": None, "net": [left, left - 9, left + 9]},
        "capability": [points, points - 1, points + 1],
        "race named": 0.25,
        "diagnostics": {
            "all-token probe after": probe,
            "pooled probe after": 0.5,
            "displacement": 0.1,
            "transfer": None,
        },
    }


ROWS = {
    "0 none": {
        "world": "0",
        "method": "none",
        "card": {
            "smallstar": "0.8",
            "smallmme": "0.8",
            "race": "1",
            "gender": "1",
            "answering": "150",
            "minutes": "5",
        },
        "values": {"mcq": [0.1, 0, 0.2], "2afc": [0.3, 0.2, 0.4], "smallstar": [0.8, 0.7, 0.9]},
    },
    **{f"{w} ggss": row(w, "ggss", -90 + 10 * k, -1.0 - k, 0.4 + 0.1 * k) for k, w in enumerate("01")},
    **{f"{w} leace": row(w, "leace", -60 + 10 * k, -3.0 - k, 0.6 + 0.1 * k) for k, w in enumerate(("0", "ordinary"))},
}


def test_what_is_there_and_what_is_missing_are_both_said():
    text = page(ROWS, ("0", "0.5", "0.5, seed 1"), ["none", "ggss", "leace"])
    assert (
        "| 0 | `ggss` | -90 % [-95, -85] | - | -90 % [-99, -81] | -1.0 [-2.0, +0.0] | 25% | 0.40 | 0.50 | 0.10 |"
        in text
    )
    assert "- 0.5: everything\n- 0.5, seed 1: everything\n- 1:" in text
    assert "- 1: `none`, `leace`" in text
    assert "- 0:" not in text
    full = {f"{world} none": ROWS["0 none"] for world in ("ordinary", "0", "1")}
    assert "Not measured yet" not in page(full, ("0",), ["none"])


def many(noise):
    """A world and a method each: the probe tells the bias left, the other numbers tell nothing or are not known."""
    rng = np.random.default_rng(0)
    rows = [
        row(
            str(w / 4),
            method,
            -90 + 10 * w + 5 * m + noise * rng.normal(),
            -3.0 * rng.random(),
            (30 + 10 * w + 5 * m) / 100,
        )
        for w in range(5)
        for m, method in enumerate("abcde")
    ]
    return {f"{one['world']} {one['method']}": one for one in rows}


def test_correlations_are_of_ranks_and_say_where_there_are_none():
    text = page(many(0.0), (), ["a"])
    assert "| all-token probe after | **+1.00 [+1.00, +1.00], 25 rows** |" in text
    assert "| pooled probe after | - | - | - | - |" in text  # it is the same everywhere
    assert "| transfer | - | - | - | - |" in text


def test_a_correlation_is_scipys_and_its_interval_has_room_for_worlds_and_methods():
    rows = [{**one, "left": one["changes"]["mcq"][0]} for one in many(10.0).values()]
    found, low, high, count = ranked(rows, "all-token probe after", "left")
    x, y = [one["diagnostics"]["all-token probe after"] for one in rows], [one["left"] for one in rows]
    assert found == pytest.approx(spearmanr(x, y).statistic)
    assert count == 25
    assert low < found < high <= 1
    shuffled = [
        {**one, "left": value} for one, value in zip(rows, np.random.default_rng(1).permutation(y), strict=True)
    ]
    _, low, high, _ = ranked(shuffled, "all-token probe after", "left")
    assert low < 0 < high  # the negative control
    assert ranked(rows[:5], "all-token probe after", "left") is None


def test_the_picture_is_drawn(tmp_path):
    picture(ROWS, tmp_path / "dial.png")
    assert (tmp_path / "dial.png").stat().st_size > 5_000
