"""The page of the dial: it says what is there, what is missing, and ranks as scipy does."""

from tools.dial_page import page, picture


def row(world, method, left, points, probe):
    return {
        "world": world,
        "method": method,
        "changes": {"mcq": [left, left - 5, left + 5], "2afc": None},
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
    text = page(ROWS, (0.0, 0.5), ["none", "ggss", "leace"])
    assert "| 0 | `ggss` | -90 % [-95, -85] | - | -1.0 [-2.0, +0.0] | 25% | 0.40 | 0.50 | 0.10 |" in text
    assert "- 0.5: everything" in text
    assert "- 1: `none`, `leace`" in text
    assert "- 0:" not in text
    full = {f"{world} none": ROWS["0 none"] for world in ("ordinary", "0", "1")}
    assert "Not measured yet" not in page(full, (0.0,), ["none"])


def test_correlations_are_of_ranks_and_say_where_there_are_none():
    text = page(ROWS, (), ["ggss"])
    assert "| all-token probe after | 4 | +1.00 (p 0) | - | -1.00 (p 0) |" in text
    assert "| pooled probe after | 4 | - | - | - |" in text  # it is the same everywhere
    assert "| transfer | 0 | - | - | - |" in text


def test_the_picture_is_drawn(tmp_path):
    picture(ROWS, tmp_path / "dial.png")
    assert (tmp_path / "dial.png").stat().st_size > 5_000
