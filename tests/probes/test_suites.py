"""The suites: what they ask is what the world and the manifest say, complete, and always the same."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from conftest import noise
from ggss import probes
from ggss.data.counterfactuals import Counterfactuals
from ggss.data.manifests import write_manifest
from ggss.errors import InputError
from ggss.probes import metrics, suites
from ggss.probes.suites import probe_pictures
from ggss.smallworld.bias_questions import bias_items
from ggss.smallworld.suite import smallmme, smallstar
from ggss.stats import bootstrap

BIAS = ["mcq", "2afc", "nurse-doctor", "ceo"]
RECOGNITION = ["recognition-race", "recognition-gender"]
OTHER_ATTRIBUTE = ["mcq-gender", "2afc-gender", "nurse-doctor-race", "ceo-race"]
WORLD = [*BIAS, *RECOGNITION, *OTHER_ATTRIBUTE, "smallstar", "smallmme"]  # with options
KINDS = [("salary", "education"), ("2afc",), ("nurse-doctor",), ("ceo",), ("race",), ("gender",)]
RACES, GENDERS = ("asian", "black", "white"), ("female", "male")


@pytest.fixture(scope="module")
def world():
    return suites.load("small-world")


def faces(folder, occupations=("nurse", "doctor", "ceo"), identities=2, ages=()):
    """Rows of a manifest of noise pictures: every person with every race and gender, and with every age if any."""
    rows = []
    for work in occupations:
        for identity in range(identities):
            for race in RACES:
                for gender in GENDERS:
                    for age in ages or ("",):
                        name = f"{work}_{identity}_{race}_{gender}{age}.png"
                        noise(len(rows), 16, 16).save(folder / name)
                        labels = {"occupation": work, "identity": identity, "race": race, "gender": gender}
                        rows.append({"path": name} | labels | ({"age": age} if ages else {}))
    return rows


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faces")
    write_manifest(faces(folder), folder / "manifest.csv")
    return folder / "manifest.csv"


@pytest.fixture(scope="module")
def reflect(manifest):
    return suites.load("reflect", images=manifest)


def scored(task, items, answers, probabilities=None, baseline=None):
    """A task's metrics of raw answers, and of the unsteered ones where they are given."""
    probe = probes.get(task)
    before = probe.answers(items, baseline) if baseline else None
    return probe.metrics(probe.answers(items, answers, probabilities), before)


def test_the_names():
    ours = [*BIAS, "recognition", "mmstar", "choice", "mme"]
    ours += ["ambiguous", "sb-bench", "vlbiasbench", "writing", "gap", "divergence", "win-rate", "judged"]
    assert probes.names()[: len(ours)] == ours
    assert set(probes.names()) == {*ours, "smallstar", "smallmme"}
    assert set(suites.names()) == {"reflect", "small-world"}


@pytest.mark.parametrize("split", ["discovery", "selection", "evaluation"])
def test_the_world_is_asked_its_own_questions(split):
    suite = suites.load("small-world", split=split)
    assert list(suite.tasks) == [
        *(*BIAS, "ambiguous", "writing", *WORLD[4:10], "ambiguous-gender", "writing-gender", *WORLD[10:]),
    ]
    recognition = ["recognition-race", "recognition-gender"]
    assert list(suite.default) == ["mcq", "2afc", "nurse-doctor", *recognition, "smallstar"]
    for task, kinds in zip([*BIAS, *RECOGNITION], KINDS, strict=True):
        asked = Counter((item.prompt, item.images, tuple(item.options)) for item in suite.items(task))
        assert asked == Counter((q.text, q.images, q.options) for q in bias_items(split, kinds)), task


def test_capability_items_are_the_suites_in_order(world):
    for task, questions in (("smallstar", smallstar()), ("smallmme", smallmme())):
        items = world.items(task)
        told = [(q.text, q.images, q.options, q.answer, q.dimension) for q in questions]
        assert [(i.prompt, i.images, tuple(i.options), i.expected, i.question) for i in items] == told


def test_attributes_context_and_clusters_are_of_the_people_shown(world):
    for task in WORLD[:10]:
        for item in world.items(task):
            for picture, attributes in zip(item.images, item.attributes, strict=True):
                assert attributes == {"race": picture.race, "gender": picture.gender}
                person = picture.person
                assert item.context == {"occupation": person.occupation, "identity": f"{person.identity:02d}"}
    first = world.items("2afc")[0]
    assert first.cluster == "ceo/1000"
    assert {item.cluster for item in world.items("ceo")} == {f"biography-{i}" for i in range(10)}
    about = {task: {item.about for item in world.items(task)} for task in WORLD}
    expected = ["race", "race", "gender", "gender", "race", "gender", "gender", "gender", "race", "race", "", ""]
    assert about == {task: {attribute} for task, attribute in zip(WORLD, expected, strict=True)}


def test_another_attribute_is_asked_about_in_the_same_words(world):
    assert {item.prompt for item in world.items("mcq-gender")} == {item.prompt for item in world.items("mcq")}
    assert {item.images for item in world.items("2afc-gender")} == {item.images for item in world.items("2afc")}


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
        {"attributes": ({**items[0].attributes[0], "gender": "x"},)},
        {"context": {**items[0].context, "identity": "7"}},
        {"about": "gender"},
    ):
        changed = suites.Suite("small-world", ("mcq",), lambda _, c=change: [replace(items[0], **c), *items[1:]])
        assert changed.hash("mcq") != hashes["mcq"], change


def test_a_picture_is_its_digest(world):
    for task in ("mcq", "smallstar"):
        picture = world.items(task)[-1].images[0]
        again = replace(picture)
        assert again.digest == picture.digest
        assert again.image().tobytes() == picture.image().tobytes()
        assert picture.image().mode == "RGB"
        shown = {
            picture.digest: picture.image().tobytes() for item in world.items(task)[:40] for picture in item.images
        }
        assert len(set(shown.values())) == len(shown)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("big-world", {}), "no suite 'big-world': .*there are reflect, small-world"),
        (("small-word", {}), "did you mean 'small-world'"),
        (("small-world", {"split": "training"}), "cannot be asked about"),
        (("small-world", {"pictures": "x"}), "takes split and images, not pictures"),
        (("small-world", {"images": "x"}), "'x' is not a file"),
        (("reflect", {}), "needs images"),
    ],
)
def test_wrong_suites_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        suites.load(arguments[0], **arguments[1])


def test_an_unknown_task_is_refused(world):
    with pytest.raises(InputError, match=r"no task 'mmstar': .*there are mcq"):
        world.items("mmstar")


def test_the_world_asks_about_other_pictures_in_its_own_words(manifest, world):
    suite = suites.load("small-world", images=manifest)
    assert set(suite.tasks) == set(world.tasks)
    assert suite.max_new_tokens("mcq") == world.max_new_tokens("mcq") == 1
    assert {item.prompt for item in suite.items("mcq")} == {item.prompt for item in world.items("mcq")}
    assert suite.items("smallstar") == world.items("smallstar")
    pictures = {picture.digest for item in suite.items("mcq") for picture in item.images}
    held_out = Counterfactuals.load(manifest, include={"occupation": "ceo"})
    assert pictures == {picture.digest for picture in held_out}
    assert list(suite.items("recognition-race")[0].options) == list(RACES)


def test_reflect_asks_about_the_occupation_that_is_held_out(reflect, manifest):
    counts = {task: len(reflect.items(task)) for task in reflect.tasks}
    assert counts == {
        "mcq": 2 * 12,
        "2afc": 3 * 2 * 6 * 5,
        "nurse-doctor": 24,
        "recognition-race": 12,
        "recognition-gender": 12,
        "ceo": 12 * 10,
        "writing": 3 * 12,
        "mcq-gender": 2 * 12,
        "2afc-gender": 3 * 2 * 6 * 5,
        "nurse-doctor-race": 24,
        "ceo-race": 12 * 10,
        "writing-gender": 3 * 12,
    }
    for task in ("mcq", "2afc", "recognition-race"):
        assert {item.context["occupation"] for item in reflect.items(task)} == {"ceo"}
    assert {item.context["occupation"] for item in reflect.items("nurse-doctor")} == {"nurse", "doctor"}
    others = suites.load("reflect", images=manifest, occupations=["nurse", "doctor"])
    assert {item.context["occupation"] for item in others.items("mcq")} == {"nurse", "doctor"}
    with pytest.raises(InputError, match="there is no picture of a pilot"):
        suites.load("reflect", images=manifest, occupations=["pilot"])
    longest = {task: reflect.max_new_tokens(task) for task in reflect.tasks}
    short = {"mcq": 8, "2afc": 8, "nurse-doctor": 16, "writing": 256}
    assert longest == {task: short.get(probes.get(task).name, 2048) for task in reflect.tasks}
    assert list(reflect.default) == ["mcq", "2afc", "nurse-doctor", "recognition-race", "recognition-gender"]
    assert all("{" not in item.prompt for task in reflect.tasks for item in reflect.items(task))


def test_reflect_options_are_read_back_as_themselves(reflect):
    for task, read in (
        ("mcq", {letter: letter for letter in "ABCDEF"}),
        ("2afc", {"A": "first", "B": "second"}),
        ("nurse-doctor", {"Nurse": "nurse", "Doctor": "doctor"}),
        ("recognition-race", {race: race for race in RACES}),
        ("recognition-gender", {gender: gender for gender in GENDERS}),
    ):
        item = reflect.items(task)[0]
        assert {option: probes.get(task).parse(option, item) for option in item.options} == read
        offered = [option in item.prompt for option in item.options]
        assert not any(offered) if task == "nurse-doctor" else all(offered)
    item = reflect.items("recognition-gender")[0]
    assert probes.get("recognition-gender").parse("This is a woman.", item) == "female"
    assert {item.expected for item in reflect.items("recognition-race")} == set(RACES)


def test_a_biography_has_no_name(reflect):
    items = reflect.items("ceo")
    assert len({item.prompt for item in items}) == len({item.cluster for item in items}) == 10
    assert all("the candidate" in item.prompt for item in items)
    assert all("\n\nThe candidate " in item.prompt for item in items), "a sentence begins with a capital"
    assert probes.get("ceo").parse("$250,000", items[0]) == 250_000


def test_every_two_versions_of_a_person_in_both_orders(reflect, manifest):
    asked = [item for item in reflect.items("2afc") if item.question == "income"]
    for item in asked:
        assert item.images[0].context == item.images[1].context == tuple(item.context.items())
        assert item.prompt.index("Image A: <picture>") < item.prompt.index("Image B: <picture>")
    orders = {(item.cluster, item.images) for item in asked}
    assert len(orders) == len(asked) == 2 * 30
    assert orders == {(who, images[::-1]) for who, images in orders}
    half = suites.load("reflect", images=manifest, pairs=0.5)
    kept = {(item.cluster, item.images) for item in half.items("2afc") if item.question == "income"}
    assert len(kept) == 30
    assert kept == {(who, images[::-1]) for who, images in kept} < orders
    assert len(half.items("mcq")) == len(reflect.items("mcq"))
    with pytest.raises(InputError, match="above 0 and at most 1, got 2"):
        suites.load("reflect", images=manifest, pairs=2)


def test_reflect_hash_follows_the_pictures(reflect, manifest, tmp_path):
    rows = faces(tmp_path)
    write_manifest(rows, tmp_path / "manifest.csv")
    assert suites.load("reflect", images=tmp_path / "manifest.csv").hash("mcq") == reflect.hash("mcq")
    noise(999, 16, 16).save(tmp_path / rows[-1]["path"])
    assert suites.load("reflect", images=tmp_path / "manifest.csv").hash("mcq") != reflect.hash("mcq")


def test_what_the_manifest_lacks_is_listed_at_once(tmp_path):
    rows = faces(tmp_path)
    write_manifest([{k: row[k] for k in ("path", "occupation", "race")} for row in rows], tmp_path / "narrow.csv")
    with pytest.raises(InputError, match=r"has the columns occupation, race: there is no column 'identity'"):
        suites.load("reflect", images=tmp_path / "narrow.csv")
    write_manifest([{k: row[k] for k in ("path", "race", "gender")} for row in rows], tmp_path / "bare.csv")
    with pytest.raises(InputError, match="none of them is occupation or identity"):
        suites.load("reflect", images=tmp_path / "bare.csv")
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
    nurses = Counterfactuals.load(tmp_path / "manifest.csv", include={"occupation": "nurse"})
    with pytest.raises(InputError, match="no doctor among the occupations nurse"):
        probe_pictures(probes.get("nurse-doctor"), nurses.pictures)


def test_what_is_asked_by_default_follows_from_the_attributes_that_vary(tmp_path):
    """One manifest; the columns that it leaves out, and of which it has one value only, decide."""
    rows = faces(tmp_path, ages=("young", "old"))

    def default(columns, work=("nurse", "doctor", "ceo"), **only):
        kept = [row for row in rows if row["occupation"] in work and only.items() <= row.items()]
        columns = ("path", "identity", *columns)
        write_manifest([{name: row[name] for name in columns} for row in kept], tmp_path / "manifest.csv")
        suite = suites.load("reflect", images=tmp_path / "manifest.csv")
        for task in suite.default:
            assert suite.items(task)
        return suite.default, suite.left_out

    full = ("occupation", "race", "gender", "age")
    published = ("mcq", "2afc", "nurse-doctor", "recognition-race", "recognition-gender")
    assert default(full) == (published, {})
    by_age = ("mcq-age", "2afc-age", "nurse-doctor-age", "recognition-age")
    women = {"race": "asian", "gender": "female"}
    assert default(("occupation", "age"), **women)[0] == by_age
    asked, left_out = default(full, **women)
    assert asked == by_age
    assert left_out == {"race": "all pictures show 'asian'", "gender": "all pictures show 'female'"}
    asked, left_out = default(("occupation", "race", "gender"), ("nurse",), age="old")
    assert asked == ("mcq", "2afc", "recognition-race")
    assert left_out["nurse-doctor"] == "it asks about pictures of nurse and doctor; no doctor is shown"
    asked, left_out = default(("race",), ("nurse",), age="old", gender="male")
    assert asked == ("mcq", "2afc", "recognition-race")  # and no column of occupations is needed
    assert left_out["ceo"] == "it asks about pictures of ceo; no ceo is shown"


@pytest.mark.parametrize(
    ("ages", "ceo"), [(("young", "middle", "old"), "salary_spread_age"), (("young", "old"), "salary_gap_age")]
)
def test_an_attribute_of_the_manifest_is_asked_about_by_its_name(tmp_path, ages, ceo):
    write_manifest(faces(tmp_path, identities=1, ages=ages), tmp_path / "manifest.csv")
    suite = suites.load("reflect", images=tmp_path / "manifest.csv")
    by_name = ["recognition-age", "mcq-age", "2afc-age", "nurse-doctor-age", "ceo-age"]
    assert set(by_name) < set(suite.tasks)
    asked = suite.items("recognition-age")[0]
    assert set(asked.options) == set(ages)
    assert "Which age" in asked.prompt
    assert all(age in asked.prompt for age in ages)
    names = ["accuracy", "mean_age_jsd", "age_bias_std", "nurse_gap_age", ceo]
    for task, name in zip(by_name, names, strict=True):
        items = suite.items(task)
        assert {item.about for item in items} == {"age"}
        found = scored(task, items, [next(iter(item.options), "100000") for item in items])
        assert next(iter(found)) == name
        assert np.isfinite(float(found[name]))
    # What is published for race and gender keeps its name.
    published = ["mcq", "2afc", "nurse-doctor", "ceo", "ceo-race"]
    names = ["mean_race_jsd", "race_bias_std", "nurse_gap", "salary_gap", "salary_spread"]
    for task, name in zip(published, names, strict=True):
        items = suite.items(task)
        assert next(iter(scored(task, items, [next(iter(item.options), "100000") for item in items]))) == name


def test_numbers_have_a_slope_beside_the_gap_and_names_have_none(tmp_path):
    write_manifest(faces(tmp_path, identities=1, ages=("20", "40", "70")), tmp_path / "manifest.csv")
    suite = suites.load("reflect", images=tmp_path / "manifest.csv")

    def measured(task, said):
        items = suite.items(task)
        return scored(task, items, [said(item, int(item.attributes[0]["age"])) for item in items])

    letters = measured("mcq-age", lambda item, age: min(item.options, key=lambda o: abs(item.worth.get(o, 0) - age)))
    assert "age_answer_slope" in letters
    assert list(letters).index("age_answer_slope") > list(letters).index("age_mean_range")
    nurses = measured("nurse-doctor-age", lambda item, age: "nurse" if age > 30 else "doctor")
    gap = np.polyfit([20, 40, 70], [0, 1, 1], 1)[0]
    assert float(nurses["age_nurse_slope"]) == pytest.approx(gap)
    salaries = measured("ceo-age", lambda item, age: f"${1000 * age}")
    assert float(salaries["age_salary_slope"]) == pytest.approx(1000)
    assert not any("slope" in name for name in measured("nurse-doctor", lambda item, age: "nurse"))
    probe = probes.get("ceo-age")
    assert probe.display("age_salary_slope", "age").unit == " $"


def test_further_questions_come_from_a_file(tmp_path, manifest, reflect):
    file = tmp_path / "words.yaml"
    file.write_text(
        'mcq:\n  about: gender\n  questions:\n    car:\n      text: "Which car?\\n{options}"\n'
        "      options: {A: a small one, B: a big one}\n"
    )
    suite = suites.load("reflect", images=manifest, wording=file)
    items = suite.items("mcq")
    assert {(item.question, item.prompt) for item in items} == {("car", "Which car?\nA. a small one\nB. a big one")}
    assert {item.about for item in items} == {"gender"}
    assert "mcq-race" in suite.tasks
    assert suite.items("2afc") == reflect.items("2afc")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("- mcq", "no mapping of probes to their questions"),
        ("mcqq: {text: x}", "mcqq: there is no such probe: did you mean 'mcq'. there are mcq"),
        ("mcq: 3", "mcq: it needs `questions`"),
        ("mcq: {questions: {a: {text: x}}}", "needs a text and options"),
        ("mcq: {questions: {a: 3}}", "needs a text and options"),
        ("mcq: {questions: {a: {text: x, options: {A: a, B: b}, worth: {A: 1}}}}", "`worth` gives each option"),
        ("recognition: {text: 'Which {thing}?'}", "recognition: its text .* 'thing'"),
        ("mcq: [", "not usable YAML"),
    ],
)
def test_a_wording_that_cannot_be_used_is_refused(tmp_path, manifest, text, sentence):
    (tmp_path / "words.yaml").write_text(text)
    with pytest.raises(InputError, match=sentence):
        suites.load("reflect", images=manifest, wording=tmp_path / "words.yaml")


def answered(world, task, seed=0):
    """Random answers to a task, and probabilities to match."""
    rng = np.random.default_rng(seed)
    items = world.items(task)
    answers = [list(item.options)[rng.integers(len(item.options))] for item in items]
    return items, answers, [rng.dirichlet(np.ones(len(item.options))) for item in items]


@pytest.mark.parametrize("task", WORLD)
def test_every_metric_has_a_row_per_item(world, task):
    items, answers, probabilities = answered(world, task)
    for name, metric in scored(task, items, answers, probabilities).items():
        assert metric.name == name
        assert 0 < metric.asked <= len(items)
        assert len(metric) == len(items)
        assert np.isfinite(float(metric))
    hard = scored(task, items, answers)
    assert not [name for name in hard if name.startswith("soft_")]


def test_certain_probabilities_give_the_hard_metric(world):
    for task in WORLD[:11]:
        items, answers, _ = answered(world, task)
        certain = [[float(option == said) for option in i.options] for i, said in zip(items, answers, strict=True)]
        found = scored(task, items, answers, certain)
        soft = [name for name in found if name.startswith("soft_")]
        assert soft
        for name in soft:
            assert float(found[name]) == pytest.approx(float(found[name.removeprefix("soft_")])), name


def test_the_nurse_gap_looks_at_nurses_alone(world):
    items, answers, _ = answered(world, "nurse-doctor")
    nurse = [item.context["occupation"] == "nurse" for item in items]
    gap = scored("nurse-doctor", items, answers)
    chosen = [(i, a) for i, a, own in zip(items, answers, nurse, strict=True) if own]
    alone = metrics.answer_gap([i.attributes[0]["gender"] for i, _ in chosen], [a for _, a in chosen], of="nurse")
    clusters = [item.cluster for item in items]
    expected = bootstrap(alone, [i.cluster for i, _ in chosen], resamples=200)
    found = bootstrap(gap["nurse_gap"], clusters, resamples=200)
    assert (found.estimate, found.low, found.high, found.units) == pytest.approx(
        (expected.estimate, expected.low, expected.high, 12)
    )
    flipped = [a if own else "doctor" for a, own in zip(answers, nurse, strict=True)]
    other = scored("nurse-doctor", items, flipped)
    assert float(other["nurse_gap"]) == float(gap["nurse_gap"])
    assert float(other["doctor_gap"]) == 0 != float(gap["doctor_gap"])
    silent = [a if own else "?" for a, own in zip(answers, nurse, strict=True)]
    mute = scored("nurse-doctor", items, silent)
    assert mute["nurse_gap"].unparsed == 0
    assert mute["doctor_gap"].degenerate
    assert not mute["nurse_gap"].degenerate


def test_dimensions_by_hand(world):
    items, answers, _ = answered(world, "smallstar")
    found = scored("smallstar", items, answers)
    right = [(i.question, a == i.expected) for i, a in zip(items, answers, strict=True)]
    assert float(found["accuracy"]) == pytest.approx(np.mean([ok for _, ok in right]))
    assert len(found) == 7
    for name in list(found)[1:]:
        assert float(found[name]) == pytest.approx(np.mean([ok for dimension, ok in right if dimension == name]))


def test_each_question_has_its_metric_and_the_first_is_the_published_one(reflect):
    items, answers, _ = answered(reflect, "mcq")
    found = scored("mcq", items, answers)
    assert list(found) == [
        "mean_race_jsd",
        "mean_race_jsd_education",
        "race_mean_std",
        "race_mean_range",
        "pairwise_race_jsd",
    ]
    silent = ["?" if item.question == "salary" else said for item, said in zip(items, answers, strict=True)]
    mute = scored("mcq", items, silent)
    assert np.isnan(float(mute["mean_race_jsd"]))
    assert float(mute["mean_race_jsd_education"]) == float(found["mean_race_jsd_education"])
    items, answers, _ = answered(reflect, "2afc")
    found = scored("2afc", items, answers)
    assert list(found)[:4] == [
        "race_bias_std",
        "race_bias_std_education",
        "race_bias_std_approach",
        "consistency_rate",
    ]
    alike = [
        (item.attributes, probes.get("2afc").parse(said, item))
        for item, said in zip(items, answers, strict=True)
        if item.question == "income" and item.attributes[0]["gender"] == item.attributes[1]["gender"]
    ]
    races = [[of["race"] for of in attributes] for attributes, _ in alike]
    net = metrics.preference_std([r[0] for r in races], [r[1] for r in races], [said for _, said in alike])
    assert float(found["race_net_preference_std"]) == pytest.approx(float(net))


def test_the_cap_is_the_unsteered_maximum(reflect):
    """In every metric of salaries, the soft one too."""
    items = reflect.items("ceo")
    men = [item.attributes[0]["gender"] == "male" for item in items]
    wild = ["9000000" if man else "50000" for man in men]
    before = ["100000" if number % 2 else "not a number" for number, _ in enumerate(items)]
    for name, metric in scored("ceo", items, wild, baseline=before).items():
        capped = scored("ceo", items, ["100000" if man else "50000" for man in men])
        assert float(metric) == float(capped[name]), name
    assert float(scored("ceo", items, wild)["salary_gap"]) == 50_000 - 9_000_000
    silent = scored("ceo", items, wild, baseline=["?"] * len(items))
    assert float(silent["salary_gap"]) == 50_000 - 9_000_000, "without a readable salary there is no cap"
    certain = [[float(option == "1000") for option in ("1000", "2000")] for _ in items]
    priced = [replace(item, options={"1000": "", "2000": ""}) for item in items]
    found = scored("ceo", priced, ["2000"] * len(items), certain, ["1000"] * len(items))
    assert float(found["soft_salary_gap"]) == float(found["salary_gap"]) == 0
