"""The suites: what they ask is what the world and the manifest say, complete, and always the same."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from conftest import noise
from ggss import probes
from ggss.data.manifests import write_manifest
from ggss.errors import InputError
from ggss.probes import metrics, suites
from ggss.probes.faces import Face, at_work
from ggss.smallworld.bias_questions import bias_items
from ggss.smallworld.smallmme import smallmme
from ggss.smallworld.smallstar import smallstar
from ggss.stats import bootstrap

WORLD = ["mcq", "2afc", "nurse-doctor", "ceo", "recognition-race", "recognition-gender", "smallstar", "smallmme"]
KINDS = [("salary", "education"), ("2afc",), ("nurse-doctor",), ("ceo",), ("race",), ("gender",)]
RACES, GENDERS = ("asian", "black", "white"), ("female", "male")


@pytest.fixture(scope="module")
def world():
    return suites.load("small-world")


def faces(folder, occupations=("nurse", "doctor", "ceo"), identities=2):
    rows = []
    for work in occupations:
        for identity in range(identities):
            for race in RACES:
                for gender in GENDERS:
                    name = f"{work}_{identity}_{race}_{gender}.png"
                    noise(len(rows), 16, 16).save(folder / name)
                    labels = {"occupation": work, "identity": identity, "race": race, "gender": gender}
                    rows.append({"path": name} | labels)
    return rows


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faces")
    write_manifest(faces(folder), folder / "manifest.csv")
    return folder / "manifest.csv"


@pytest.fixture(scope="module")
def reflect(manifest):
    return suites.load("reflect", images=manifest)


def test_the_names():
    assert probes.names()[: len(WORLD)] == WORLD
    assert set(probes.names()) == {*WORLD, "mmstar", "mme"}
    assert suites.names() == ["small-world", "reflect"]


@pytest.mark.parametrize("split", ["discovery", "selection", "evaluation"])
def test_the_world_is_asked_its_own_questions(split):
    suite = suites.load("small-world", split=split)
    assert list(suite.tasks) == WORLD
    for task, kinds in zip(WORLD, KINDS, strict=False):
        asked = Counter((item.prompt, item.images, tuple(item.options)) for item in suite.items(task))
        assert asked == Counter((q.text, q.images, q.options) for q in bias_items(split, kinds)), task


def test_capability_items_are_the_suites_in_order(world):
    for task, questions in (("smallstar", smallstar()), ("smallmme", smallmme())):
        items = world.items(task)
        told = [(q.text, q.images, q.options, q.answer, q.dimension) for q in questions]
        assert [(i.prompt, i.images, tuple(i.options), i.expected, i.question) for i in items] == told


def test_attributes_and_clusters_are_of_the_people_shown(world):
    for task in WORLD[:6]:
        for item in world.items(task):
            for picture, attributes in zip(item.images, item.attributes, strict=True):
                assert (picture.race, picture.gender) == (attributes["race"], attributes["gender"])
                assert attributes["identity"] == str(picture.person.identity)
    first = world.items("2afc")[0]
    assert first.cluster == "cook/1000"
    assert {item.cluster for item in world.items("ceo")} == {f"biography-{i}" for i in range(10)}


def test_the_hash_is_of_everything_asked(world):
    again = suites.load("small-world")
    hashes = {task: world.hash(task) for task in WORLD}
    assert hashes == {task: again.hash(task) for task in WORLD}
    assert len(set(hashes.values())) == len(WORLD)
    assert suites.load("small-world", split="selection").hash("mcq") != hashes["mcq"]
    items = world.items("mcq")
    other = items[0].images[0]
    for change in (
        {"prompt": "how ?"},
        {"options": {"a": "low", "b": "high"}},
        {"cluster": "x"},
        {"images": (replace(other, person=replace(other.person, seed=1)),)},
        {"attributes": ({**items[0].attributes[0], "identity": "7"},)},
    ):
        changed = suites.Suite("small-world", ("mcq",), lambda _, c=change: [replace(items[0], **c), *items[1:]])
        assert changed.hash("mcq") != hashes["mcq"], change


def test_a_picture_is_painted_by_its_source(world):
    for task in ("mcq", "smallstar"):
        picture = world.items(task)[-1].images[0]
        assert picture.image().tobytes() == picture.paint().tobytes()
        assert picture.image().mode == "RGB"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("big-world", {}), "no suite 'big-world'; there are small-world, reflect"),
        (("small-world", {"split": "training"}), "cannot be asked about"),
        (("small-world", {"images": "x"}), "takes split, not images"),
        (("reflect", {}), "needs images"),
    ],
)
def test_wrong_suites_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        suites.load(arguments[0], **arguments[1])


def test_an_unknown_task_is_refused(world):
    with pytest.raises(InputError, match="no task 'mmstar': choose from mcq"):
        world.items("mmstar")


def test_reflect_asks_about_every_face(reflect):
    counts = {task: len(reflect.items(task)) for task in reflect.tasks}
    assert counts == {
        "mcq": 2 * 36,
        "2afc": 3 * 2 * 2 * 6,
        "nurse-doctor": 24,
        "recognition-race": 36,
        "recognition-gender": 36,
        "ceo": 12 * 10,
    }
    assert [reflect.max_new_tokens(task) for task in reflect.tasks] == [8, *[2048] * 5]
    assert all("{" not in item.prompt for task in reflect.tasks for item in reflect.items(task))


def test_reflect_options_are_read_back_as_themselves(reflect):
    for task, read in (
        ("mcq", {letter: letter for letter in "ABCD"}),
        ("2afc", {"First": "first", "Second": "second"}),
        ("nurse-doctor", {"Nurse": "nurse", "Doctor": "doctor"}),
        ("recognition-race", {race: race for race in RACES}),
        ("recognition-gender", {gender: gender for gender in GENDERS}),
    ):
        item = reflect.items(task)[0]
        assert {option: probes.get(task).parse(option, item) for option in item.options} == read
        assert all(option in item.prompt for option in item.options)
    item = reflect.items("recognition-gender")[0]
    assert probes.get("recognition-gender").parse("This is a woman.", item) == "female"
    assert {item.expected for item in reflect.items("recognition-race")} == set(RACES)


def test_a_biography_has_no_name(reflect):
    items = reflect.items("ceo")
    assert len({item.prompt for item in items}) == len({item.cluster for item in items}) == 10
    assert all("the candidate" in item.prompt for item in items)
    assert all("\n\nThe candidate " in item.prompt for item in items), "a sentence begins with a capital"
    assert probes.get("ceo").parse("$250,000", items[0]) == 250_000


def test_two_pictures_in_both_orders(reflect):
    pairs = Counter((i.attributes[0]["race"], i.attributes[1]["race"]) for i in reflect.items("2afc"))
    assert set(pairs.values()) == {12}
    assert len(pairs) == 6
    for item in reflect.items("2afc"):
        one, other = item.attributes
        assert all(one[name] == other[name] for name in ("occupation", "identity", "gender"))


def test_reflect_hash_follows_the_pictures(reflect, manifest, tmp_path):
    rows = faces(tmp_path)
    write_manifest(rows, tmp_path / "manifest.csv")
    assert suites.load("reflect", images=tmp_path / "manifest.csv").hash("mcq") == reflect.hash("mcq")
    noise(999, 16, 16).save(tmp_path / rows[0]["path"])
    assert suites.load("reflect", images=tmp_path / "manifest.csv").hash("mcq") != reflect.hash("mcq")


def test_what_the_manifest_lacks_is_listed_at_once(tmp_path):
    rows = faces(tmp_path)
    write_manifest([{k: row[k] for k in ("path", "identity", "race")} for row in rows], tmp_path / "narrow.csv")
    with pytest.raises(InputError, match=r"2 problems(.|\n)*'occupation'(.|\n)*'gender'"):
        suites.load("reflect", images=tmp_path / "narrow.csv")
    (tmp_path / rows[-1]["path"]).write_bytes(b"broken")
    write_manifest(rows[1:], tmp_path / "short.csv")
    with pytest.raises(InputError) as refused:
        suites.load("reflect", images=tmp_path / "short.csv")
    assert "missing asian" in str(refused.value)
    assert "missing female" in str(refused.value)
    assert "ceo_1_white_male.png" in str(refused.value)


def test_a_task_needs_its_occupations(tmp_path):
    write_manifest(faces(tmp_path, ("cook", "nurse")), tmp_path / "manifest.csv")
    suite = suites.load("reflect", images=tmp_path / "manifest.csv")
    assert "nurse-doctor" not in suite.tasks
    assert "ceo" not in suite.tasks
    assert "mcq" in suite.tasks
    with pytest.raises(InputError, match="no doctor among the occupations nurse"):
        at_work("nurse-doctor", [Face(None, {"occupation": "nurse"})], "nurse", "doctor")


def answered(world, task, seed=0):
    """Random answers to a task, and probabilities to match."""
    rng = np.random.default_rng(seed)
    items = world.items(task)
    answers = [list(item.options)[rng.integers(len(item.options))] for item in items]
    return items, answers, [rng.dirichlet(np.ones(len(item.options))) for item in items]


@pytest.mark.parametrize("task", WORLD)
def test_every_metric_has_a_row_per_item(world, task):
    items, answers, probabilities = answered(world, task)
    for name, metric in probes.get(task).score(items, answers, probabilities).items():
        assert metric.name == name
        assert len(metric) == len(items)
        assert np.isfinite(float(metric))
    hard = probes.get(task).score(items, answers)
    assert not [name for name in hard if name.startswith("soft_")]


def test_certain_probabilities_give_the_hard_metric(world):
    for task in WORLD[:7]:
        items, answers, _ = answered(world, task)
        certain = [[float(option == said) for option in i.options] for i, said in zip(items, answers, strict=True)]
        found = probes.get(task).score(items, answers, certain)
        soft = [name for name in found if name.startswith("soft_")]
        assert soft
        for name in soft:
            assert float(found[name]) == pytest.approx(float(found[name.removeprefix("soft_")])), name


def test_the_nurse_gap_looks_at_nurses_alone(world):
    items, answers, _ = answered(world, "nurse-doctor")
    nurse = [item.attributes[0]["occupation"] == "nurse" for item in items]
    gap = probes.get("nurse-doctor").score(items, answers)
    chosen = [(i, a) for i, a, own in zip(items, answers, nurse, strict=True) if own]
    alone = metrics.answer_gap([i.attributes[0]["gender"] for i, _ in chosen], [a for _, a in chosen], of="nurse")
    clusters = [item.cluster for item in items]
    expected = bootstrap(alone, [i.cluster for i, _ in chosen], resamples=200)
    found = bootstrap(gap["nurse_gap"], clusters, resamples=200)
    assert (found.estimate, found.low, found.high, found.units) == pytest.approx(
        (expected.estimate, expected.low, expected.high, 12)
    )
    flipped = [a if own else "doctor" for a, own in zip(answers, nurse, strict=True)]
    other = probes.get("nurse-doctor").score(items, flipped)
    assert float(other["nurse_gap"]) == float(gap["nurse_gap"])
    assert float(other["doctor_gap"]) == 0 != float(gap["doctor_gap"])
    silent = [a if own else "?" for a, own in zip(answers, nurse, strict=True)]
    mute = probes.get("nurse-doctor").score(items, silent)
    assert mute["nurse_gap"].unparsed == 0
    assert mute["doctor_gap"].degenerate
    assert not mute["nurse_gap"].degenerate


def test_dimensions_and_win_shares_by_hand(world):
    items, answers, _ = answered(world, "smallstar")
    found = probes.get("smallstar").score(items, answers)
    right = [(i.question, a == i.expected) for i, a in zip(items, answers, strict=True)]
    assert float(found["accuracy"]) == pytest.approx(np.mean([ok for _, ok in right]))
    assert len(found) == 7
    for name in list(found)[1:]:
        assert float(found[name]) == pytest.approx(np.mean([ok for dimension, ok in right if dimension == name]))
    items, answers, _ = answered(world, "2afc")
    found = probes.get("2afc").score(items, answers)
    races = [[of["race"] for of in item.attributes] for item in items]
    for race in ("amber", "pearl"):
        won = [(r[0] if a == "first" else r[1]) == race for r, a in zip(races, answers, strict=True) if race in r]
        assert float(found[f"win_share_{race}"]) == pytest.approx(np.mean(won))
    expected = metrics.win_shares([r[0] for r in races], [r[1] for r in races], answers)
    assert {name.removeprefix("win_share_"): float(m) for name, m in found.items() if "win" in name} == pytest.approx(
        expected
    )


def test_the_cap_is_the_unsteered_maximum():
    assert probes.ceo.capped([90_000, None, 9_000_000], [100_000, 50_000, None]) == [90_000, None, 100_000]
    assert probes.ceo.capped([5_000], [None]) == [5_000]
