"""Steerers, runs, comparisons and sets in a notebook: text is text, nothing is fetched, a plot is an axis."""

import re
import sys
from dataclasses import replace
from html.parser import HTMLParser

import matplotlib
import numpy as np
import pytest

import ggss
import invented_study
from conftest import noise
from ggss import escaping
from ggss.data.manifests import write_manifest
from ggss.errors import InputError
from ggss.models.reading import Answer
from planted import planted

HOSTILE = "<script>alert('x')</script>\" onload=\"x & \u202eright to left\x1b"
COMPARED = ("mcq", "2afc", "mmstar")


@pytest.fixture(autouse=True)
def no_window():
    matplotlib.use("Agg")
    yield
    from matplotlib import pyplot as plt

    plt.close("all")


@pytest.fixture(scope="module")
def results():
    return invented_study.results()


@pytest.fixture(scope="module")
def run(results):
    return next(one for one in results if one.task == "mcq" and not one.source.steered)


@pytest.fixture
def faces(tmp_path):
    rows = []
    for number, race in enumerate(("amber", HOSTILE)):
        noise(number).save(tmp_path / f"{number}.png")
        rows.append({"path": f"{number}.png", "occupation": "cook", "identity": "1", "race": race})
    write_manifest(rows, tmp_path / "manifest.csv")
    return ggss.Counterfactuals.load(tmp_path / "manifest.csv")


class Tags(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.seen, self.open, self.said = [], [], ""
        self.feed(page)
        assert self.open == [], "every tag is closed"

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))
        if tag != "img":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.said += data


def checked(page, size=60_000):
    tags = Tags(page)
    assert len(page) < size
    allowed = {"div", "strong", "bdi", "table", "thead", "tbody", "tr", "th", "td", "img"}
    assert {tag for tag, _ in tags.seen} <= allowed
    names = {name for _, attributes in tags.seen for name in attributes}
    assert names <= {"style", "scope", "src", "alt", "title"}, "no script in an attribute"
    assert all(own["src"].startswith("data:image/jpeg;base64,") for tag, own in tags.seen if tag == "img")
    assert not re.search(r"https?://", page), "nothing is fetched"
    assert "\x1b" not in page
    return tags


def test_hostile_text_is_text(run, faces, results):
    found = run.items[0]
    own = replace(
        run, items=(replace(found, prompt=HOSTILE), *run.items[1:]), answers=(Answer(HOSTILE), *run.answers[1:])
    )
    shown = HOSTILE.replace("\x1b", r"\x1b")
    assert checked(own._repr_html_()).said.count(shown) == 2
    tags = checked(faces._repr_html_())
    assert shown in tags.said
    assert any(shown in own.get("alt", "") for tag, own in tags.seen if tag == "img")
    comparison = results.comparison(invented_study.QWEN, "ggss", "mcq", 1.0, "race")
    hostile = replace(comparison, before=replace(comparison.before, source=replace(run.source, model=HOSTILE)))
    assert shown in checked(hostile._repr_html_()).said
    steerer = replace(ggss.fit("ggss", planted()[0], attribute="race"), source={"model": HOSTILE})
    assert shown in checked(steerer._repr_html_()).said


def test_a_page_says_what_the_object_holds(run, results):
    said = checked(run._repr_html_()).said
    assert f"{len(run.items)} items" in said
    assert f"and {len(run.items) - 5} more" in said
    comparison = results.comparison(invented_study.QWEN, "ggss", "mcq", 1.0, "race")
    said = checked(comparison._repr_html_()).said
    assert f"{comparison.change().estimate:+.1f}" in said
    assert f"{comparison.value().estimate:.4g}" in said
    steerer = ggss.fit("ggss", planted()[0], attribute="race").recommending(0.75)
    said = checked(steerer._repr_html_()).said
    assert "recommended alpha 0.75" in said
    assert all(str(value) in said for value in steerer.values)


def test_a_set_is_shown_although_a_picture_is_broken(faces, tmp_path):
    (tmp_path / "0.png").write_bytes(b"no picture")
    tags = checked(faces._repr_html_())
    assert "has no known image format" in tags.said
    assert sum(tag == "img" for tag, _ in tags.seen) == 1


def test_plots_are_axes_and_show_the_numbers(run, results, faces):
    from matplotlib.axes import Axes

    axis = run.plot()
    assert isinstance(axis, Axes)
    groups = [label.get_text() for label in axis.get_xticklabels()]
    assert groups == sorted(invented_study.VALUES["race"])
    heights = np.array([[bar.get_height() for bar in kind] for kind in axis.containers])
    assert np.allclose(heights.sum(0), 1), "all answers of a group are shown"
    answers = zip(run.items, run.parsed.parsed, strict=True)
    own = [read for item, read in answers if item.attributes[0]["race"] == groups[0]]
    first = axis.get_legend_handles_labels()[1][0]
    assert np.isclose(heights[0, 0], own.count(first) / len(own))
    comparison = results.comparison(invented_study.QWEN, "ggss", "mcq", 1.0, "race")
    assert comparison.plot(axis) is axis, "it draws where it is told to"
    points = [one.get_ydata()[0] for one in comparison.plot().get_lines()]
    assert points == [comparison.before.value(), comparison.value().estimate]
    assert isinstance(faces.plot(), Axes)
    steerer = ggss.fit("ggss", planted()[0], attribute="race")
    assert isinstance(steerer.plot(), Axes)
    with pytest.raises(InputError, match="there is nothing to plot"):
        replace(steerer, statistics={}).plot()


@pytest.mark.parametrize("task", COMPARED)
def test_every_kind_of_task_can_be_shown(task, results):
    comparison = results.comparison(invented_study.QWEN, "ggss", task, 1.0, "race")
    checked(comparison._repr_html_())
    own = next(one for one in results if one.task == task)
    checked(own._repr_html_())
    assert own.plot().get_title().startswith(task)


def test_a_data_frame_has_all_items_and_all_metrics(run, results):
    pytest.importorskip("pandas")
    frame = run.to_pandas()
    assert list(frame["item"]) == [item.key for item in run.items]
    assert list(frame["answer"]) == list(run.texts)
    assert list(frame["race"]) == [item.attributes[0]["race"] for item in run.items]
    pairs = next(one for one in results if one.task == "2afc").to_pandas()
    assert {"race_1", "race_2"} <= set(pairs.columns)
    comparison = results.comparison(invented_study.QWEN, "ggss", "mcq", 1.0, "race")
    frame = comparison.to_pandas()
    assert list(frame["metric"]) == comparison.before.names
    assert frame["after"][0] == comparison.value().estimate
    assert frame["change_percent_low"][0] == comparison.change().low
    assert frame["p"][0] == comparison.p


def test_without_pandas_the_sentence_says_how_to_get_it(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match=r"pip install 'ggss\[pandas\]'"):
        run.to_pandas()


def test_pieces():
    assert escaping.text('<b a="1">&') == "<bdi>&lt;b a=&quot;1&quot;&gt;&amp;</bdi>"
    assert escaping.picture(noise(0), "a").count("<img") == 1


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_metric_that_only_one_run_has_is_left_out(results, side):
    comparison = results.everything(invented_study.QWEN, "ggss", "mcq", 1.0, "race")
    names = comparison.before.names
    lacking = {name: metric for name, metric in getattr(comparison, side).metrics.items() if name != names[1]}
    comparison = replace(comparison, **{side: replace(getattr(comparison, side), metrics=lacking)})
    frame = comparison.to_pandas()
    assert list(frame["metric"]) == [name for name in names if name != names[1]]
    assert frame["p"][0] == comparison.p
    assert names[1] not in checked(comparison._repr_html_()).said
