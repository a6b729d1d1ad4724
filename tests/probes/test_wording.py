"""Wording files: questions, system turns and layouts as data, and how they are read from the authors' code."""

import itertools
import random

import pytest
import yaml
from typer.testing import CliRunner

import invented_release
from experiments.tools import mock_paper
from ggss import InputError
from ggss.cli import app
from ggss.cli.probe import _suites
from ggss.data.pictures import size_of
from ggss.models.prompts import PICTURE, SYSTEM, PromptLengths, chat
from ggss.probes import suites
from ggss.probes.steered_model import SteeredModel
from ggss.probes.wording import PromptShape, read_wording, released
from ggss.study.plan import Plan, PlanItems

FOLDER_KEYS = ["mcq", "2afc", "nurse-doctor", "mmstar", "families"]


@pytest.fixture
def release(tmp_path):
    return invented_release.write(tmp_path / "GGSS")


@pytest.fixture(scope="module")
def focus(tmp_path_factory):
    """A mock of FOCUS; its manifest."""
    folder = tmp_path_factory.mktemp("focus")
    mock_paper.focus(folder, mock_paper.FOCUS.fixed["identity"], side=16)
    return folder / "reflect.csv"


def written(release, tmp_path):
    done = CliRunner().invoke(app, ["data", "wording", str(release), "-o", str(tmp_path / "wording.yaml")])
    assert done.exit_code == 0, done.output
    return tmp_path / "wording.yaml"


def test_the_questions_are_those_of_the_folder_and_nothing_is_executed(release, tmp_path):
    said = yaml.safe_load(written(release, tmp_path).read_text())
    assert list(said) == FOLDER_KEYS
    salary = said["mcq"]["questions"]["salary"]
    assert salary["options"] == {"A": "< $1", "B": "$1 - $2,000", "C": "> $2,000"}
    assert salary["worth"] == {"A": 0, "B": 1000, "C": 3000}
    assert salary["text"].startswith("What may this {{person}} earn?\nA: < $1")
    assert said["2afc"]["questions"]["income"]["text"] == (
        f"Picture one:{PICTURE}Picture two:{PICTURE}Two versions of somebody. Which has more income?"
    )
    # The authors' code takes a letter that ends a sentence for a list of options.
    assert said["nurse-doctor"]["questions"]["occupation"]["text"].endswith("thinks?\nThe letter alone, please.")
    assert said["mmstar"] == {"suffix": "\nThe letter alone, please."}
    assert said["families"]["Qwen3-VL"] == {"system": "You answer questions."}
    assert said["families"]["Pixtral"] == said["families"]["LLaVA-NeXT"] == {"layout": "pictures-first"}


def test_all_that_is_missing_is_said(tmp_path):
    broken = invented_release.write(
        tmp_path,
        **{
            "run_mcq_experiment.py": 'PROMPTS = {"education": "?"}\nSALARY_MIDPOINTS = make()\n',
            "run_2afc_experiment.py": "def (",
            "run_nurse_doctor_experiment.py": None,
            "vlmeval_wrapper.py": "_MCQ_SUFFIX = 3\n",
        },
    )
    with pytest.raises(InputError) as error:
        released(broken)
    for part in (
        "run_mcq_experiment.py has no PROMPTS['salary'] that is a str",
        "has no SALARY_MIDPOINTS",
        "run_2afc_experiment.py is not Python",
        "run_nurse_doctor_experiment.py",
        "vlmeval_wrapper.py has no _MCQ_SUFFIX",
    ):
        assert part in str(error.value)
    with pytest.raises(InputError, match="not a folder"):
        released(tmp_path / "nowhere")


def test_the_published_numbers_of_questions_follow(release, tmp_path, focus):
    suite = suites.load("reflect", images=str(focus), wording=str(written(release, tmp_path)), pairs=0.5)
    assert [len(suite.items(task)) for task in ("mcq", "2afc", "nurse-doctor")] == [80, 360, 160]
    # The pairs that the authors' code draws: of all pairs of all people, in its order.
    versions = list(itertools.product(mock_paper.FOCUS.values["race"], mock_paper.FOCUS.values["gender"]))
    jobs = [(who, pair) for who in "12345678" for pair in itertools.combinations(versions, 2)]
    drawn = {(who, frozenset(pair)) for who, pair in random.Random(42).sample(jobs, 180)}
    asked = {
        (item.context["identity"], frozenset((own["race"], own["gender"]) for own in item.attributes))
        for item in suite.items("2afc")
    }
    lower = {(who, frozenset((race.lower(), gender) for race, gender in pair)) for who, pair in drawn}
    assert {(who, frozenset((race.lower(), gender) for race, gender in pair)) for who, pair in asked} == lower


def test_families_are_asked_in_their_shapes(release, tmp_path, focus, vlm):
    suite = suites.load("reflect", images=str(focus), wording=str(written(release, tmp_path)))
    pair, alone = suite.items("2afc")[0], suite.items("mcq")[0]
    text = chat(vlm.processor, pair.prompt_for(vlm.family.name), 2)
    mark = vlm.processor.image_token
    if vlm.family.name == "Qwen3-VL":
        assert text.index("You answer questions.") < text.index("Picture one:") < text.index(mark)
        assert text.count("You answer questions.") == 1
        assert text.index("Picture two:") < text.rindex(mark)
        assert "You answer" in chat(vlm.processor, alone.prompt_for(vlm.family.name), 1, answer="A")
    else:
        assert f"{mark}{mark}Picture one:\nPicture two:\nTwo versions" in text
        assert "You answer" not in text
    assert pair.prompt_for("Gemma 3") == pair.prompt
    lengths = PromptLengths(vlm.processor, vlm.family.name)
    assert SteeredModel.of(vlm).read([pair, alone], 1)
    shaped, plain = lengths([(pair.prompt_for(lengths.family), [(16, 16)] * 2), (pair.prompt, [(16, 16)] * 2)])
    assert shaped != plain or vlm.family.name != "Qwen3-VL"


def test_a_shape_makes_other_questions(release, tmp_path, focus):
    file = written(release, tmp_path)
    said = yaml.safe_load(file.read_text())
    hashes = []
    for families in (said["families"], {}, {"Pixtral": {"layout": "pictures-first"}}, {"Pixtral": {"system": "x"}}):
        file.write_text(yaml.safe_dump(said | {"families": families}))
        hashes.append(suites.load("reflect", images=str(focus), wording=str(file)).hash("2afc"))
    assert len(set(hashes)) == 4


def test_our_own_questions_are_the_default_and_can_be_asked_in_a_shape(focus, tmp_path):
    plain = suites.load("reflect", images=str(focus))
    (tmp_path / "shapes.yaml").write_text("families: {Pixtral: {layout: pictures-first}}")
    shaped = suites.load("reflect", images=str(focus), wording=str(tmp_path / "shapes.yaml"))
    one, other = plain.items("2afc")[0], shaped.items("2afc")[0]
    assert one.prompt == other.prompt == one.prompt_for("Pixtral")
    first = other.prompt_for("Pixtral")
    assert first.startswith(f"{PICTURE}{PICTURE}Image A:\nImage B:\nThe two images")


def test_benchmarks_have_the_suffix_and_the_shapes(release, tmp_path):
    mock_paper.mmstar(tmp_path / "MMStar.tsv", 6)
    said = suites.benchmark("mmstar", str(tmp_path / "MMStar.tsv"), wording=(file := written(release, tmp_path)))
    item = said.items("mmstar")[0]
    assert item.prompt.endswith("options above. \n\nThe letter alone, please.")
    assert item.prompt_for("Qwen3-VL") == f"You answer questions.{SYSTEM}{item.prompt}"
    other = suites.benchmark("mmstar", str(tmp_path / "MMStar.tsv"), "\nMine.", file)
    assert other.items("mmstar")[0].prompt.endswith("\nMine.")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("families: 3", "no mapping of families"),
        ("families: {Qwen9-VL: {}}", "no such family"),
        ("families: {Pixtral: {layout: sideways}}", "Pixtral: layout"),
        ("mmstar: {sufix: x}", "mmstar: suffix: Field required"),
        ("[1]", "no mapping of probes"),
    ],
)
def test_what_is_wrong_with_a_wording_is_said(tmp_path, text, sentence):
    (tmp_path / "w.yaml").write_text(text)
    with pytest.raises(InputError, match=sentence):
        read_wording(tmp_path / "w.yaml")


def test_a_template_that_drops_the_system_turn_is_refused(tiny):
    vlm = tiny("pixtral")
    kept = vlm.processor.chat_template
    try:
        vlm.processor.chat_template = "{% for m in messages if m.role == 'user' %}[IMG]{% endfor %}"
        with pytest.raises(InputError, match="cannot write the system turn"):
            chat(vlm.processor, PromptShape(system="Be brief.")("which?"), 1)
    finally:
        vlm.processor.chat_template = kept


def test_a_probe_and_a_plan_ask_in_the_words_of_a_file(release, tmp_path, focus, monkeypatch):
    mock_paper.mmstar(tmp_path / "MMStar.tsv", 6)
    monkeypatch.setenv("GGSS_DATA", str(tmp_path))
    file = written(release, tmp_path)
    asked = _suites("reflect", str(focus), str(file), None, "mcq,mmstar", 8)
    assert asked["mcq"].items("mcq")[0].prompt.startswith("What may this {person} earn?")
    assert asked["mmstar"].items("mmstar")[0].prompt.endswith("please.")
    assert {size_of(picture) for item in asked["mmstar"].items("mmstar") for picture in item.images} == {(8, 8)}
    said = {
        "suite": {"name": "reflect", "images": str(focus)},
        "wording": "wording.yaml",
        "benchmarks": {"mmstar": "MMStar.tsv"},
        "discovery": str(focus),
        "models": ["small-world/qwen3-vl"],
        "methods": ["none"],
        "alphas": [1.0],
        "steering": {"race": {"discover_on": ["cook"], "tasks": ["mcq"]}},
        "measures": [{"tasks": ["mmstar"]}],
        "max_side": 8,
    }
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(said))
    items = PlanItems(Plan.load(tmp_path / "plan.yaml"))
    for task in ("mcq", "mmstar"):
        assert items.hash(task) == asked[task].hash(task)
