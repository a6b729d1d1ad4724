"""MME from the release's folders: both kinds of folder, the published scores, and what is refused."""

import numpy as np
import pytest
from PIL import Image

from ggss import stats
from ggss.errors import InputError
from ggss.probes import get, suites
from ggss.probes.benchmarks import PERCEPTION, REASONING, load_mme, mme

SUBTASKS = sorted(PERCEPTION | REASONING)
SPLIT = ("artwork", "celebrity", "landmark", "posters", "scene")


def write_picture(folder, subtask, stem, seed, lines=None):
    images = folder / subtask / ("images" if subtask in SPLIT else "")
    texts = folder / subtask / ("questions_answers_YN" if subtask in SPLIT else "")
    images.mkdir(parents=True, exist_ok=True)
    texts.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(images / f"{stem}.png")
    asked = [f"Is this {subtask} {stem}? Please answer yes or no.\tYes", "Is it not? Please answer yes or no.\tNo"]
    (texts / f"{stem}.txt").write_text("\n".join(lines if lines is not None else asked) + "\n\n")


@pytest.fixture
def release(tmp_path):
    folder = tmp_path / "MME_Benchmark"
    for k, subtask in enumerate(SUBTASKS):
        for n in range(3):
            write_picture(folder, subtask, f"000{n}", 10 * k + n)
    return folder


def scored(items, said):
    """The probe's metrics of raw answers."""
    probe = get("mme")
    return probe.metrics(probe.answers(items, said), None)


def published(items, said):
    """MME's own scores, as its evaluation tool adds them up."""
    totals = {"perception": 0.0, "reasoning": 0.0}
    for subtask in SUBTASKS:
        pictures = {}
        for item, answer in zip(items, said, strict=True):
            if item.question == subtask:
                pictures.setdefault(item.cluster, []).append(answer.lower() == item.expected.lower())
        questions = [hit for pair in pictures.values() for hit in pair]
        both = [all(pair) for pair in pictures.values()]
        score = 100 * sum(questions) / len(questions) + 100 * sum(both) / len(both)
        totals["reasoning" if subtask in REASONING else "perception"] += score
    return totals


def test_both_kinds_of_folder_become_items(release):
    items = load_mme(release)
    assert len(items) == 14 * 3 * 2
    assert [item.question for item in items[::6]] == SUBTASKS
    first = items[6]
    assert (first.key, first.cluster, first.expected) == ("artwork/0000.png#1", "artwork/0000.png", "Yes")
    assert first.prompt == "Is this artwork 0000? Please answer yes or no."
    assert first.images == items[7].images != items[8].images
    assert first.images[0].image().size == (8, 8)
    assert (first.about, first.context) == ("", {"category": "artwork"})
    get("mme").check(items)


def test_totals_are_the_published_ones_and_every_metric_lines_up_with_the_items(release):
    items = load_mme(release)
    said = np.random.default_rng(0).choice(["Yes", "No"], size=len(items)).tolist()
    found = scored(items, said)
    assert list(found) == ["accuracy", "accuracy+", "perception", "reasoning"]
    for name, total in published(items, said).items():
        assert float(found[name]) == pytest.approx(total)
    hits = [answer == item.expected for answer, item in zip(said, items, strict=True)]
    assert float(found["accuracy"]) == pytest.approx(np.mean(hits))
    assert {len(score) for score in found.values()} == {len(items)}
    perfect = scored(items, [f"{item.expected}, it is." for item in items])
    assert (float(perfect["perception"]), float(perfect["reasoning"])) == (2000, 800)


def test_resampling_pictures_is_the_same_whether_rows_are_questions_or_pictures(release):
    items = load_mme(release)
    said = np.random.default_rng(1).choice(["Yes", "No"], size=len(items)).tolist()
    columns = [item.question for item in items], [item.cluster for item in items]
    by_picture = mme(*columns, said, [item.expected for item in items])
    by_question = scored(items, said)
    for name, score in by_question.items():
        whole = score.by([item.cluster for item in items])
        np.testing.assert_allclose(whole.without_each(), by_picture[name].without_each())
        intervals = [stats.bootstrap(m, resamples=500, seed=3) for m in (whole, by_picture[name])]
        assert intervals[0].low == pytest.approx(intervals[1].low)
        assert intervals[0].high == pytest.approx(intervals[1].high)
    assert by_question["accuracy+"].asked == len(items) / 2
    assert by_question["accuracy"].asked == len(items)


def test_answers_that_are_neither_yes_nor_no_are_wrong_and_counted(release):
    items = load_mme(release)
    found = scored(items, ["I cannot tell"] + [item.expected for item in items[1:]])
    assert found["accuracy"].unparsed == 1
    assert float(found["accuracy"]) == pytest.approx(1 - 1 / len(items))
    assert float(found["accuracy+"]) == pytest.approx(1 - 2 / len(items))


def test_a_total_needs_all_its_subtasks(release):
    items = [item for item in load_mme(release) if item.question != "scene"]
    assert list(scored(items, ["Yes"] * len(items))) == ["accuracy", "accuracy+", "reasoning"]


def test_bad_folders_are_all_listed(release):
    write_picture(release, "color", "one", 1, ["Is it red?\tYes"])
    write_picture(release, "count", "odd", 2, ["Are there two?\tYes", "Are there three?\tmaybe"])
    write_picture(release, "scene", "bare", 3, ["\tYes", "Is it night?\tNo"])
    (release / "OCR" / "alone.txt").write_text("Is it?\tYes\nIs it not?\tNo\n")
    (release / "OCR" / "broken.txt").write_text("Is it?\tYes\nIs it not?\tNo\n")
    (release / "OCR" / "broken.jpg").write_bytes(b"no picture")
    for file in (release / "position").iterdir():
        file.unlink()
    with pytest.raises(InputError) as caught:
        load_mme(release)
    for problem in (
        "6 problems",
        "color/one.png has 1 questions instead of 2",
        "count/odd.txt, line 2, has answer 'maybe' instead of Yes or No",
        "scene/bare.txt, line 1, has no question",
        "OCR/alone.txt has no picture beside it",
        f"OCR/broken.txt: image '{release / 'OCR' / 'broken.jpg'}' has no known image format",
        "position has no .txt with questions",
    ):
        assert problem in str(caught.value)


def test_the_release_is_a_suite_of_one_task(release):
    suite = suites.benchmark("mme", str(release))
    assert (suite.name, suite.tasks, suite.default) == ("mme", ("mme",), ("mme",))
    assert suite.items("mme") == load_mme(release)
    assert suite.hash("mme") == suites.benchmark("mme", str(release)).hash("mme")
    assert get("mme").display("perception").label == "MME perception"
    with pytest.raises(InputError, match="'mcq' is no benchmark that is read from a file"):
        suites.benchmark("mcq")


def test_it_is_found_in_the_data_folder_or_the_missing_data_are_named(release, monkeypatch, tmp_path):
    monkeypatch.setenv("GGSS_DATA", str(release.parent))
    assert load_mme() == load_mme(release)
    (release.parent / "MME_Benchmark_release_version").mkdir()
    release.rename(release.parent / "MME_Benchmark_release_version" / "MME_Benchmark")
    assert len(load_mme()) == 84
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"no MME at .* has none of MME_Benchmark.*download.*GGSS_DATA") as caught:
        load_mme(tmp_path / "empty")
    assert "\n" not in str(caught.value)
