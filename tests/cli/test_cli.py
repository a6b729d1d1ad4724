"""The commands as a user runs them: their output, their JSON, and one sentence with exit code 2 for bad input."""

import json
import re

import pytest

from conftest import noise
from ggss.data.manifests import write_manifest


@pytest.fixture(scope="module")
def faces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faces")
    rows = []
    for identity in range(5):
        for race in ("amber", "jade"):
            for gender in ("man", "woman"):
                name = f"{identity}_{race}_{gender}.png"
                noise(len(rows)).save(folder / name)
                work = "nurse" if identity == 4 else "cook"
                rows.append({"path": name, "occupation": work, "identity": identity, "race": race, "gender": gender})
    write_manifest(rows, folder / "manifest.csv")
    return folder


@pytest.fixture(scope="module")
def model(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    vlm = tiny("qwen3-vl")
    vlm.model.save_pretrained(folder)
    vlm.processor.save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("GGSS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def run(ggss_command):
    return ggss_command


@pytest.fixture
def steerer(run, model, faces, tmp_path):
    code, out, err = run(
        "discover", model, "--images", faces / "manifest.csv", "--attribute", "race", "-o", tmp_path / "s", "--json"
    )
    assert code == 0, err
    return tmp_path / "s", json.loads(out)


def test_discover_writes_a_steerer_and_says_what_it_saw(steerer):
    folder, said = steerer
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", "steerer.safetensors"]
    assert said["values"] == ["amber", "jade"]
    assert said["images"] == 20
    assert {"effective_rank", "variance_share", "split_half_cosines"} <= said["diagnostics"]["projection-mlp2"].keys()


def test_discover_shows_a_table_and_warnings(run, model, faces, tmp_path):
    code, out, _ = run(
        *("discover", model, "--images", faces / "manifest.csv", "--attribute", "gender", "-o", tmp_path / "g"),
        *("--sites", "all", "--exclude", "occupation=nurse", "--option", "kappa=2"),
    )
    assert code == 0
    assert "deepstack-0" in out
    assert "site: where the model is steered. k: in how many directions." in " ".join(out.split())
    assert "Warning:" in out, "noise has no stable gender direction"
    stored = json.loads((tmp_path / "g" / "config.json").read_text())
    assert stored["options"]["kappa"] == 2
    assert stored["source"]["images"] == 16


def test_discover_holds_fixed_what_it_is_told_to(run, model, faces, tmp_path):
    asked = ("discover", model, "--images", faces / "manifest.csv", "--attribute", "race", "--attributes", "race")
    code, out, err = run(*asked, "-o", tmp_path / "s", "--json")
    assert code == 0, err
    assert json.loads(out)["images"] == 20
    code, _, err = run(*asked, "--context", "identity", "-o", tmp_path / "t")
    assert code == 2
    assert "identity=0 race=amber has 2 images" in err


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    """One picture of each of sixty people; their race goes with their place, and their ages are numbers."""
    folder = tmp_path_factory.mktemp("people")
    rows = []
    for number in range(60):
        noise(200 + number, 28 + 28 * (number % 2), 28).save(folder / f"{number}.png")
        race, north = ("amber", "jade")[number % 2], (number % 10 < 8) == (number % 2)
        labels = {"race": race, "place": "north" if north else "south", "age": 20 + number // 2}
        rows.append({"path": f"{number}.png", **labels})
    write_manifest(rows, folder / "people.csv")
    return folder / "people.csv"


def test_discover_on_unpaired_pictures(run, model, people, tmp_path):
    asked = ("discover", model, "--images", people, "--attribute", "race", "-o", tmp_path / "s", "--unpaired")
    code, _, err = run(*asked, "--context", "place")
    assert code == 2
    assert "ggss compares the versions of a person, and these pictures are unpaired" in err
    assert not (tmp_path / "s").exists()
    code, out, err = run(*asked, "--method", "leace-spherical", "--context", "place", "--json")
    assert code == 0, err
    said = json.loads(out)
    compared = said["matching"]["race"]
    assert compared["matched_by"] == ["place"]
    assert (compared["images"], compared["compared"]) == (60, 60)
    assert list(compared["left"]) == ["age"]
    assert "Confounded: what pictures are matched by explains" in said["warnings"][0]
    assert json.loads((tmp_path / "s" / "config.json").read_text())["source"]["matching"]["race"] == compared
    code, out, err = run(*asked, "--method", "pace", "--context", "place", "--option", "k=1")
    assert code == 0, err
    text = " ".join(out.split())
    assert "Fitted to unpaired pictures, matched by place: 60 of 60 are in 2 of 2 strata" in text
    assert "Warning: Confounded" in text


def test_discover_an_ordered_attribute(run, model, people, tmp_path):
    asked = ("discover", model, "--images", people, "--attribute", "age", "-o", tmp_path / "s", "--unpaired")
    asked = (*asked, "--context", "place", "--method", "leace-spherical")
    code, _, err = run(*asked)
    assert code == 2
    assert "'age' has 30 values, all numbers: say that it is ordered (--ordered age" in " ".join(err.split())
    code, out, err = run(*asked, "--ordered", "age", "--json")
    assert code == 0, err
    assert json.loads(out)["ordered"] == ["age"]
    code, _, err = run(*asked[:-1], "ggss", "--ordered", "age")
    assert code == 2


def test_ask_side_by_side(run, model, faces, steerer):
    picture = faces / "0_amber_man.png"
    question = "what colour is the hat ?"
    code, out, _ = run("ask", model, picture, question, "--steer", steerer[0], "--alpha", "0.5", "--json")
    assert code == 0
    said = json.loads(out)
    assert said["calls"] == 1
    assert said["tokens"] == 16
    assert 0.3 <= said["mean_gate"] <= 1
    code, out, _ = run("ask", model, picture, question, "--steer", steerer[0], "--alpha", "0")
    assert code == 0
    assert "steered, alpha 0" in out
    code, out, _ = run("ask", model, picture, question, "--steer", steerer[0], "--alpha", "1")
    assert "(how much of the strength a token gets: 1 is all of it)" in " ".join(out.split())
    code, out, _ = run("ask", model, picture, picture, question, "--json")
    assert code == 0
    assert len(json.loads(out)["images"]) == 2


def test_doctor(run, model):
    code, out, _ = run("doctor", model)
    assert code == 0
    assert "leak test" in out
    code, out, _ = run("doctor", model, "--json")
    assert json.loads(out)["healthy"] is True


def test_methods(run):
    code, out, _ = run("methods", "--json")
    assert code == 0
    rows = {row["name"]: row for row in json.loads(out)}
    options = {"k": None, "kappa": 5.0, "floor": 0.3, "median": "lower", "deviation": "sample"}
    assert rows["ggss"]["options"] == options
    assert {row["package"] for row in rows.values()} == {"ggss", "ggss_rivals"}
    assert "ggss" in run("methods")[1]


def test_probes(run):
    code, out, _ = run("probes", "--json")
    assert code == 0
    rows = {row["name"]: row for row in json.loads(out)}
    assert {"mcq", "recognition", "mmstar", "smallstar"} <= rows.keys()
    assert (rows["mcq"]["kind"], rows["mcq"]["metrics"][0]) == ("bias", "mean_{about}_jsd")
    assert {row["package"] for row in rows.values()} == {"ggss"}
    code, out, _ = run("probes")
    assert code == 0
    assert "recognition" in out
    assert "package" in out


def bad_calls(model, faces, steerer, tmp_path):
    picture, manifest = faces / "0_amber_man.png", faces / "manifest.csv"
    (tmp_path / "note.txt").write_text("not an image")
    (tmp_path / "busy").mkdir()
    (tmp_path / "busy" / "mine.txt").write_text("precious")
    out = tmp_path / "out"
    find = ("discover", model, "-o", out, "--attribute", "race", "--images")
    return {
        "is not a file": (*find, tmp_path / "none.csv"),
        "no attribute 'age': there are race, gender": (*find[:5], "age", "--images", manifest),
        "no column 'age'": (*find, manifest, "--attributes", "age"),
        "none of the context": (*find, manifest, "--attributes", "race", "--context", "race"),
        "no image has occupation=pilot": (*find, manifest, "--exclude", "occupation=pilot"),
        "is not NAME=VALUE": (*find, manifest, "--exclude", "nurse"),
        "no method 'gss'": (*find, manifest, "--method", "gss"),
        "options of ggss: kapa": (*find, manifest, "--option", "kapa=1"),
        "has no site": (*find, manifest, "--sites", "nowhere"),
        "does not say that `ggss discover` wrote it.*--force": (*find[:3], tmp_path / "busy", *find[4:], manifest),
        "cannot load a model|does not exist|no config.json": ("doctor", tmp_path / "busy"),
        "there is no model": ("doctor", "small-world/atlantis"),
        "does not exist: correct": ("ask", model, tmp_path / "none.png", "what ?"),
        "no known image format": ("ask", model, tmp_path / "note.txt", "what ?"),
        "an image and a question are needed": ("ask", model, "what ?"),
        "a question are needed, seen only .*amber": ("ask", model, picture, " "),
        "no steerer at": ("ask", model, picture, "what ?", "--steer", tmp_path / "nosteerer"),
        "value for '--alpha'": ("ask", model, picture, "what ?", "--steer", steerer, "--alpha", "nan"),
        "would amplify": ("ask", model, picture, "what ?", "--steer", steerer, "--alpha", "-1"),
        "no readable config.json": ("ask", model, picture, "what ?", "--steer", tmp_path / "busy"),
    }


def test_bad_input_is_one_sentence_exit_2_and_nothing_written(run, model, faces, steerer, tmp_path):
    for message, arguments in bad_calls(model, faces, steerer[0], tmp_path).items():
        code, out, err = run(*arguments)
        assert code == 2, (arguments, out, err)
        assert err.startswith("ggss: "), err
        assert re.search(message, err), (message, err)
        assert "Traceback" not in err
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "busy" / "mine.txt").read_text() == "precious"


def test_a_broken_image_in_the_set_is_found_before_the_model_is_loaded(run, faces, tmp_path):
    rows = [
        {"path": str(faces / f"{i}_{r}_man.png"), "identity": i, "race": r} for i in "01" for r in ("amber", "jade")
    ]
    (tmp_path / "cut.png").write_bytes((faces / "0_amber_man.png").read_bytes()[:500])
    rows[0]["path"] = str(tmp_path / "cut.png")
    write_manifest(rows, tmp_path / "manifest.csv")
    code, _, err = run(
        *("discover", "no/model", "--images", tmp_path / "manifest.csv", "--attribute", "race", "-o", tmp_path / "o")
    )
    assert code == 2
    assert "cut.png" in err
    assert "does not decode" in err


def test_discover_with_neutral_pictures_and_by_itself(run, model, faces, tmp_path):
    asked = ("discover", model, "--images", faces / "manifest.csv", "--attribute", "race", "-o", tmp_path / "s")
    neutral = tmp_path / "neutral"
    neutral.mkdir()
    code, _, err = run(*asked, "--method", "pace", "--neutral", neutral)
    assert code == 2
    assert "no picture" in err
    for number in range(3):
        noise(100 + number).save(neutral / f"{number}.png")
    code, out, err = run(*asked, "--method", "pace", "--neutral", neutral, "--option", "k=1", "--json")
    assert code == 0, err
    stored = json.loads((tmp_path / "s" / "config.json").read_text())
    assert stored["source"]["neutral_images"] == 3
    assert json.loads(out)["diagnostics"]["projection-mlp2"]["neutral_displacement"] > 0
    code, out, err = run(*asked, "--method", "auto")
    assert code == 0, err
    assert "Chosen on held-out contexts" in (tmp_path / "s" / "README.md").read_text()
    code, _, err = run(*asked, "--method", "auto", "--option", "k=1")
    assert code == 2
    assert "options of auto: k: extra inputs are not permitted" in err
    code, _, err = run(*asked, "--neutral", neutral)
    assert code == 2
    assert "ggss does not use neutral pictures" in err
    code, _, err = run(*asked, "--method", "biopro")
    assert code == 2
    assert "biopro needs neutral pictures, in which the attribute cannot be seen" in err
    code, out, err = run(*asked, "--method", "biopro", "--neutral", neutral, "--json")
    assert code == 0, err
    assert json.loads(out)["diagnostics"]["projection-mlp2"]["neutral_pictures"] == 3
    (neutral / "3.png").write_bytes(b"no picture")
    code, _, err = run(*asked, "--method", "pace", "--neutral", neutral)
    assert code == 2
    assert "3.png" in err
