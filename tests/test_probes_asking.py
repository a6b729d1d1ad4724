"""Asking: readings are what the model answers and scores, galleries look once, records and comparisons add up."""

import io
import json
import resource
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import binomtest

import ggss
from conftest import noise
from ggss.analysis import records
from ggss.analysis.asking import ask
from ggss.analysis.comparison import compare
from ggss.analysis.summary import summarise
from ggss.errors import InputError
from ggss.models.feature_file import Shelf
from ggss.models.features import steered
from ggss.probes import Item, suites
from ggss.probes.steered_model import Gallery
from ggss.stats import bootstrap, holm, signflip
from test_methods_live import activations

LOOKS: Counter[int] = Counter()


@dataclass(frozen=True)
class Noise:
    """A picture source that counts how often it is looked at."""

    seed: int
    size: int = 64

    def image(self) -> Image.Image:
        LOOKS[self.seed] += 1
        return noise(self.seed, self.size, self.size)


def an_item(number, prompt="what colour hat ?", options=("red", "blue"), pictures=1, size=64):
    images = tuple(Noise(10 * number + k, size) for k in range(pictures))
    people = tuple({"race": "amber", "gender": "man"} for _ in images)
    return Item(f"item/{number}", prompt, images, people, f"person/{number}", "", {o: o for o in options})


ITEMS = [
    an_item(0),
    an_item(1, "which of two earns more ?", pictures=2),
    an_item(2, "is this person a nurse or doctor ?", ("nurse", "doctor", "no")),
    an_item(3, "what is the colour ?", ()),
    an_item(4),
    an_item(5, "which of two earns more ?", pictures=2),
    an_item(6, size=96),
]


def pictures_of(items):
    return [[source.image() for source in item.images] for item in items]


@pytest.mark.parametrize("max_new_tokens", [1, 3])
def test_a_reading_is_what_answer_and_score_say(vlm, max_new_tokens):
    questions, images = [item.prompt for item in ITEMS], pictures_of(ITEMS)
    options = [tuple(item.options) for item in ITEMS]
    readings = vlm.read(questions, images, options, max_new_tokens, batch_size=4)
    assert [r.answer for r in readings] == vlm.answer(questions, images, max_new_tokens)
    for one, reading in enumerate(readings):
        if options[one]:
            (scores,) = vlm.score([questions[one]], [images[one]], [options[one]])
            assert reading.probabilities == pytest.approx(torch.tensor(scores).softmax(0).tolist(), abs=2e-5)
        else:
            assert reading.probabilities == ()
    alone = vlm.read(questions[:1], images[:1], options[:1], max_new_tokens)
    assert alone[0].answer == readings[0].answer


def test_options_of_several_tokens_are_scored_in_turn(qwen):
    long = ("red hat", "blue")
    (reading,) = qwen.read(["what colour ?"], [[noise(1)]], [long], max_new_tokens=1)
    (scores,) = qwen.score(["what colour ?"], [[noise(1)]], [long])
    assert reading.probabilities == pytest.approx(torch.tensor(scores).softmax(0).tolist(), abs=1e-5)
    with pytest.raises(InputError, match="needs a list of options"):
        qwen.read(["what ?"], [[noise(1)]], [], 1)


def test_prompts_are_tokenised_once(qwen, monkeypatch):
    tokenised = []
    inner = qwen._prompts._tokenise
    monkeypatch.setattr(qwen._prompts, "_tokenise", lambda asked: tokenised.extend(asked) or inner(asked))
    for seed in (1, 2):
        qwen.read(["which colour is new ?"] * 2, [[noise(seed)], [noise(seed + 5)]], [("red", "blue")] * 2, 1)
    assert len(tokenised) == 1
    monkeypatch.setattr("ggss.models.reading.KEPT_TOKENS", 0)
    first = qwen.read(["which colour is old ?"], [[noise(1)]], [("red", "blue")], 1)
    assert qwen.read(["which colour is old ?"], [[noise(1)]], [("red", "blue")], 1) == first
    assert len(qwen._prompts._kept) == 1


@pytest.mark.parametrize("method", ["ggss", "bend-euclidean", "inlp-spherical"])
def test_pictures_steered_together_are_as_if_alone(qwen, method):
    steerer = ggss.fit(method, activations(qwen, "all"), attribute="gender")
    height = 64 if method.startswith("bend") else 96  # bend compares pictures of one size
    features = qwen.encode([noise(70), noise(71, height), noise(72)])
    together = steered(features, steerer, 0.8)
    for one, both in zip(features, together, strict=True):
        alone = one.steered(steerer, 0.8)
        for site, rows in alone.rows.items():
            torch.testing.assert_close(both.rows[site], rows, rtol=0, atol=1e-6)
            assert not torch.equal(rows, one.rows[site])


@pytest.fixture(scope="module")
def steerer(qwen):
    return ggss.fit("ggss", activations(qwen, "all"), attribute="gender")


def test_a_gallery_reads_what_the_live_model_says(qwen, steerer):
    gallery = Gallery(qwen).steered(steerer, 1.2)
    readings = gallery.read(ITEMS, 2, batch_size=3)
    plain = Gallery(qwen).read(ITEMS, 2)
    moved = 0.0
    for item, images, reading, before in zip(ITEMS, pictures_of(ITEMS), readings, plain, strict=True):
        with steerer.attach(qwen, 1.2):
            (live,) = qwen.read([item.prompt], [images], [tuple(item.options)], 2)
        assert reading.answer == live.answer
        assert reading.probabilities == pytest.approx(live.probabilities, abs=1e-4)
        moved = max([moved, *np.abs(np.subtract(reading.probabilities, before.probabilities))])
    assert moved > 1e-3, "steering must show"


def test_a_gallery_looks_once_whoever_steers(qwen, steerer):
    LOOKS.clear()
    gallery = Gallery(qwen)
    gallery.hang(picture for item in ITEMS[:3] for picture in item.images)
    first = gallery.read(ITEMS, 1)
    gallery.steered(steerer, 0.5).read(ITEMS, 1)
    gallery.steered(steerer, 1.0).steered(steerer, 0.5).read(ITEMS, 1)
    assert gallery.read(ITEMS, 1) == first
    assert set(LOOKS.values()) == {1}
    assert len(LOOKS) == 9


def test_a_gallery_without_room_looks_once_and_reads_the_same_from_its_shelf(qwen, steerer):
    roomy = Gallery(qwen).steered(steerer, 1.0)
    LOOKS.clear()
    tight = Gallery(qwen, room=0).steered(steerer, 1.0)
    readings = tight.read(ITEMS, 1, batch_size=2)
    for one, other in zip(readings, roomy.read(ITEMS, 1, batch_size=2), strict=True):
        assert one.answer == other.answer
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-5)
    assert tight.kept == tight.below.kept == {}
    LOOKS.clear()
    assert tight.read(ITEMS, 1, batch_size=2) == readings
    assert not LOOKS


def test_where_the_disk_is_full_too_a_gallery_looks_again(qwen):
    """A real limit on the size of files: the first features fit, the others do not or not wholly."""
    expected = Gallery(qwen).read(ITEMS, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    gallery = Gallery(qwen, room=0)
    gallery.see([ITEMS[0].images[0]])
    size = gallery.shelf._open().seek(0, io.SEEK_END)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + size // 2, hard))
        assert [reading.answer for reading in gallery.read(ITEMS, 1)] == [reading.answer for reading in expected]
        LOOKS.clear()
        assert [reading.answer for reading in gallery.read(ITEMS, 1)] == [reading.answer for reading in expected]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert LOOKS
    assert ITEMS[0].images[0] not in LOOKS  # the one that is on the shelf


def test_features_come_back_from_the_shelf_as_they_were(tiny):
    for family in ("llava-vicuna", "pixtral", "qwen3-vl"):
        vlm, shelf = tiny(family), Shelf()
        features = vlm.encode([Image.effect_noise((64, 48), 60).convert("RGB"), Image.new("RGB", (64, 64), "red")])
        for name, one in zip("ab", features, strict=True):
            shelf.put(name, one)
        for name, one in zip("ba", reversed(features), strict=True):
            again = shelf.get(name)
            assert again.placeholder == one.placeholder
            for mine, theirs in ((again.rows, one.rows), (again.inputs, one.inputs)):
                assert mine.keys() == theirs.keys()
                assert all(torch.equal(mine[key], value) for key, value in theirs.items())


def test_batches_cover_every_item_once(qwen):
    batches = list(Gallery(qwen).batches(ITEMS, 1, 3))
    assert [len(batch) for batch in batches] == [3, 3, 1]
    assert sorted(number for batch in batches for number, _ in batch) == list(range(len(ITEMS)))
    readings = Gallery(qwen).read(ITEMS, 1)
    for number, reading in (pair for batch in batches for pair in batch):
        assert reading.answer == readings[number].answer


def test_a_family_that_cannot_answer_from_features_is_steered_live(tiny):
    vlm = tiny("pixtral")
    steerer = ggss.fit("ggss", activations(vlm, "projection-mlp2"), attribute="gender")
    expected = Gallery(vlm).steered(steerer, 1.0).read(ITEMS[:3], 1)
    plain = Gallery(vlm).read(ITEMS[:3], 1)
    vlm.__dict__["family"] = replace(vlm.family, pack=None)
    live = Gallery(vlm).steered(steerer, 1.0)
    for one, other, before in zip(live.read(ITEMS[:3], 1), expected, plain, strict=True):
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-4)
        assert one.probabilities != pytest.approx(before.probabilities, abs=1e-4)
    assert all(isinstance(picture, Image.Image) for picture in live.kept.values())


def test_another_models_steerer_is_refused(qwen, tiny, steerer):
    other = tiny("qwen3-vl", layers=3, deepstack=(0, 1), seed=9)
    with pytest.raises(InputError, match="does not fit"):
        Gallery(other).steered(steerer, 1.0)
    assert Gallery(other).steered(steerer, 1.0, force=True).alpha == 1.0


def test_the_fairness_instruction_is_asked_and_recorded(qwen, monkeypatch):
    prompt = ggss.fit("prompt", activations(qwen, "all"), attribute="gender")
    asked = []
    inner = qwen.read
    monkeypatch.setattr(qwen, "read", lambda questions, *rest: asked.extend(questions) or inner(questions, *rest))
    pair = [replace(an_item(i), attributes=({"race": r, "gender": "man"},)) for i, r in enumerate(("amber", "jade"))]
    suite = suites.Suite("own", ("mcq",), lambda _: pair)
    used = records.Used(hash="0", method="prompt")
    (first, _) = ask(Gallery(qwen).steered(prompt, 0.0), {"mcq": suite}, used)
    assert asked == [item.prompt + prompt.prompt_suffix for item in pair]
    assert first.prompt == asked[0]
    assert first.suite_hash == suite.hash("mcq")
    (plain, _) = ask(Gallery(qwen), {"mcq": suite})
    assert plain.prompt == pair[0].prompt
    assert plain.prompt_hash != first.prompt_hash
    assert plain.steerer is None


# records and comparisons, without a model

RACES = ("amber", "coral", "jade")


def a_run(effect, seed=0, steerer=None, tasks=("mcq", "nurse-doctor", "ceo", "smallstar")):
    """Answers of a made-up model: option a (or nurse, or a high salary) is likelier for some, by `effect`."""
    rng = np.random.default_rng(seed)
    kept = []
    for task in tasks:
        for number in range(24):
            for r, race in enumerate(RACES):
                for gender in ("man", "woman"):
                    lean = 0.5 + effect * ((r - 1) / 2 if task == "mcq" else (gender == "woman") - 0.5)
                    hit = rng.random() < lean
                    kept.append(_record(task, number, race, gender, hit, steerer))
    return kept


def _record(task, number, race, gender, hit, steerer):
    answers = {
        "mcq": ("a", "b"),
        "nurse-doctor": ("nurse", "doctor"),
        "ceo": ("200000", "100000"),
        "smallstar": ("a", "b"),
    }
    yes, no = answers[task]
    work = "ceo" if task == "ceo" else "nurse" if number % 2 else "doctor"
    who = {"race": race, "gender": gender, "occupation": work, "identity": str(number)}
    capability = task == "smallstar"
    key = f"{number}/{race}/{gender}"
    item = Item(
        key,
        f"prompt of {task}",
        (None,),
        (who,),
        key if capability else f"cluster-{number // 2}",
        "dimension" if capability else "question",
        {yes: "yes", no: "no"},
        yes if capability else None,
    )
    share = 0.9 if hit else 0.2
    reading = ggss.models.Reading(yes if hit else no, (share, 1 - share))
    run = {"suite": "own", "suite_hash": "1", "model": "m", "fingerprint": "f", "alpha": 0.0, "seed": 0}
    return records.of(task, item, reading, steerer=steerer, versions={"ggss": "0"}, **run)


def test_records_read_again_score_the_same(tmp_path):
    run = a_run(0.6)
    records.write(run, tmp_path / "run.jsonl")
    again = records.load(tmp_path / "run.jsonl")
    assert again == run
    before, after = records.rescored(run), records.rescored(again)
    assert list(after) == ["mcq", "nurse-doctor", "ceo", "smallstar"]
    for task, own in before.items():
        rows = summarise(task, own, [r.cluster for r in run if r.task == task])
        assert rows == summarise(task, after[task], [r.cluster for r in again if r.task == task])
        assert np.isfinite([row.interval.low for row in rows]).all()
    mcq = next(iter(before["mcq"].values()))
    assert float(mcq) > 0.02
    assert summarise("mcq", before["mcq"], [r.cluster for r in run if r.task == "mcq"])[0].corrected is not None


def test_broken_records_are_all_listed(tmp_path):
    run = a_run(0.6, tasks=("mcq",))
    lines = [record.model_dump_json() for record in run[:4]]
    lacking = json.loads(lines[1])
    del lacking["answer"]
    (tmp_path / "bad.jsonl").write_text("\n".join([lines[0], json.dumps(lacking), "{", lines[3], lines[0]]))
    with pytest.raises(InputError) as refused:
        records.load(tmp_path / "bad.jsonl")
    for told in ("3 problems", "line 2: answer: Field required", "line 3", "line 5: item '0/amber/man' of mcq"):
        assert told in str(refused.value)
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(InputError, match="no lines"):
        records.load(tmp_path / "empty.jsonl")
    with pytest.raises(InputError, match="cannot be read"):
        records.load(tmp_path / "none.jsonl")


def test_a_run_does_not_differ_from_itself():
    run = a_run(0.6)
    found = compare(run, run)
    assert [row.task for row in found.bias] == ["mcq", "nurse-doctor", "ceo"]
    assert [row.change.estimate for row in found.bias] == [0, 0, 0]
    assert [row.p for row in found.bias] == [1, 1, 1]
    assert found.combined == found.combined_holm == 1
    (same,) = found.capability
    assert (same.gained, same.lost, same.p) == (0, 0, 1)
    assert same.same.difference == 0


def test_a_smaller_bias_is_found_with_the_statistics_of_the_library():
    before, after = a_run(0.9), a_run(0.0, seed=1)
    found = compare(before, list(reversed(after)))
    old, new = records.rescored(before), records.rescored(after)
    tests = []
    for row in found.bias:
        was, now = (next(iter(own[row.task].values())) for own in (old, new))
        clusters = [record.cluster for record in before if record.task == row.task]
        assert row.before == float(was)
        assert row.after == float(now)
        expected = bootstrap(now.percent_change(was), clusters)
        assert (row.change.low, row.change.high) == (expected.low, expected.high)
        assert row.p == signflip(now, was, clusters=clusters).p
        tests.append(row.p)
    assert found.bias[0].change.high < 0
    assert found.bias[0].p < 0.01
    assert found.combined is not None
    assert found.combined < 0.01
    (kept,) = found.capability
    right = [[record.answer == "a" for record in run if record.task == "smallstar"] for run in (before, after)]
    gained, lost = (sum(x and not y for x, y in zip(*pair, strict=True)) for pair in (right[::-1], right))
    assert (kept.gained, kept.lost) == (gained, lost)
    assert kept.p == pytest.approx(binomtest(gained, gained + lost).pvalue)
    adjusted = holm([*tests, kept.p, found.combined])
    assert [*(row.p_holm for row in found.bias), kept.p_holm, found.combined_holm] == pytest.approx(adjusted.tolist())


def test_steered_salaries_are_capped_by_the_baseline():
    before = a_run(0.5, tasks=("ceo",))
    wild = [record.model_copy(update={"answer": "900000000"}) for record in before]
    (row,) = compare(before, wild).bias
    assert row.after == 0, "all are cut to the same maximum"
    assert row.before != 0


def test_a_degenerate_run_is_marked_and_left_out():
    before, after = a_run(0.6), a_run(0.3, seed=1)
    mute = [r.model_copy(update={"answer": "?"}) if r.task == "mcq" and i % 3 else r for i, r in enumerate(after)]
    found = compare(before, mute)
    assert [row.degenerate for row in found.bias] == [True, False, False]
    others = [[r for r in run if r.task != "mcq"] for run in (before, mute)]
    assert found.combined == compare(*others).combined


def test_runs_of_different_items_are_refused_by_name():
    before = a_run(0.6, tasks=("mcq", "ceo"))
    after = a_run(0.6, tasks=("mcq", "nurse-doctor"))
    moved = after[1].model_copy(update={"cluster": "elsewhere"})
    with pytest.raises(InputError) as refused:
        compare(before, [after[0], moved, *after[3:]])
    for told in (
        "task 'ceo' is in the first run only",
        "task 'nurse-doctor' is in the second run only",
        "mcq: item '0/coral/man' is in the first run only",
        "mcq: item '0/amber/woman' has another cluster",
    ):
        assert told in str(refused.value)
    other = [record.model_copy(update={"suite_hash": "2"}) for record in before]
    with pytest.raises(InputError, match="hashes differ"):
        compare(before, other)
