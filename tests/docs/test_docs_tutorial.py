"""docs/tutorial.ipynb: its cells run, in order, and it shows what they give."""

import json

import matplotlib
import pytest

from experiments.tools import tutorial


def test_every_code_cell_was_run_and_is_short():
    cells = json.loads(tutorial.PAGE.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1)), (
        "python -m experiments.tools.tutorial"
    )
    assert all(cell["outputs"] for cell in code)
    assert tutorial.PAGE.stat().st_size < 500_000


def test_the_cells_run(tmp_path, monkeypatch):
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GGSS_CACHE", str(tmp_path / "cache"))
    names = {"__name__": "tutorial"}
    given = [tutorial.run_cell(source, names)[1] for source in tutorial.code_cells()]
    assert given[-1] is True, "what was saved is what was fitted"
    assert names["found"].change().estimate < 0, "steering lowers the bias"
    from matplotlib import pyplot as plt

    plt.close("all")


def test_a_cell_that_fails_is_noticed():
    with pytest.raises(ZeroDivisionError):
        tutorial.run_cell("1 / 0", {})
