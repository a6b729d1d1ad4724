"""The checkpoints of the authors' discovery script: read as they steer, refused where they are pickled."""

from functools import partial

import numpy as np
import pytest
import torch
from sklearn.svm import SVC

import ggss
import transcription
from ggss.steering.checkpoints import PICKLED, READABLE, read_released
from planted import planted

SITE = "projection-mlp2"
RACES = ["Asian", "Black", "Latino", "Middle_Eastern", "White"]
GATED = ["geodesic_gated", "geodesic_gated_pt", "leace_geodesic_gated"]
FLAT = ["geo_svd", "paired_geo", "paired_pt_geo", "per_token_geo", "inlp_geo"]
CURVED = ["sph_svd", "paired_sph", "paired_pt_sph", "per_token_sph", "inlp_sph", "leace_sph"]
WIDTH = 32


def frame():
    generator = torch.Generator().manual_seed(0)
    mu = torch.nn.functional.normalize(torch.randn(WIDTH, generator=generator), dim=0)
    return mu, torch.linalg.qr(torch.randn(WIDTH, 4, generator=generator))[0]


def stored(name, **more):
    """What the script stores under a name."""
    mu, basis = frame()
    content = {
        "V_bias": basis,
        "mu_global": 3 * mu if name.endswith("_geo") or name == "geo_svd" else mu,
        "k": 4,
        "metadata": {
            "type": name,
            "k": 4,
            "singular_values": [3.0, 2.0, 1.0, 0.5, 0.1],
            "explained_ratio": [0.6, 0.3, 0.05, 0.04, 0.01],
            "num_occupations": 5,
            "dim": WIDTH,
            "model_name": "qwen3-vl-4b",
            "layer_name": SITE,
        },
    }
    if name in GATED:
        content |= {"kappa": 5.0, "gate_floor": 0.0, "bias_median": 0.2, "bias_std": 0.1}
    if name.startswith("inlp"):
        content["metadata"]["classes"] = RACES
    content["metadata"] |= more.pop("metadata", {})
    return content | more


def write(folder, name, content=None):
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(stored(name) if content is None else content, folder / f"{name}.pt")
    return folder / f"{name}.pt"


def pickled(folder):
    """The files that hold Python objects."""
    estimator = SVC().fit(np.eye(4), [0, 1, 0, 1])
    deltas = {race: torch.zeros(WIDTH) for race in RACES}
    for name in PICKLED:
        if name.startswith("mean_diff"):
            content = {"mu_global": torch.zeros(WIDTH), "class_deltas": deltas, "clf_model": estimator}
        else:
            content = {"ref_embeddings": np.eye(4, dtype=np.float32), "ref_labels": np.array(RACES)}
        write(folder, name, content)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "results" / "qwen3-vl-4b" / SITE


@pytest.fixture
def run(ggss_command):
    return partial(ggss_command, "convert")


def rows():
    return torch.randn(9, WIDTH, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", [*GATED, *FLAT, *CURVED])
def test_every_file_of_tensors_steers_as_the_script_does(folder, name):
    steerer = read_released(write(folder, name), first_attribute="race")
    mu, basis = (x.double().numpy() for x in frame())
    for h, found in zip(rows().double().numpy(), steerer.steer(rows(), alpha=0.75), strict=True):
        t = transcription.log(mu, h / np.linalg.norm(h), 0)
        if name in GATED:
            expected, _ = transcription.steer(h, mu, basis, 0.2, 0.1, 0.75, kappa=5.0, floor=0.3)
        elif name in FLAT:
            expected = h - 0.75 * basis @ (basis.T @ (h - 3 * mu))
        else:
            target = transcription.exp(mu, t - 0.75 * basis @ (basis.T @ t))
            expected = np.linalg.norm(h) * transcription.normalize(target)
        np.testing.assert_allclose(found, expected, atol=1e-5)
    assert steerer.method in ggss.methods.names()
    assert (steerer.attribute, list(steerer.operators)) == ("race", [SITE])
    assert steerer.values == (tuple(RACES) if name.startswith("inlp") else ())
    assert (steerer.source["model"], steerer.source["checkpoint"]) == ("qwen3-vl-4b", name)
    assert steerer.statistics[SITE]["singular_values"].tolist() == pytest.approx([3.0, 2.0, 1.0, 0.5, 0.1])


def test_the_names_of_this_test_are_all_that_is_read():
    assert set(READABLE) == {*GATED, *FLAT, *CURVED}


def test_the_attribute_and_the_site_are_those_of_folder_and_file(folder, tmp_path):
    race, gender = write(folder, "geodesic_gated"), write(folder.with_name(f"{SITE}_gender"), "geodesic_gated")
    assert read_released(race, first_attribute="race").attribute == "race"
    assert read_released(gender, first_attribute="race").attribute == "gender"
    assert read_released(gender, attribute="age").attribute == "age"
    with pytest.raises(ggss.InputError, match="does not say which attribute"):
        read_released(race)
    moved = write(tmp_path / "downloads", "geodesic_gated")
    with pytest.raises(ggss.InputError, match="does not say which attribute"):
        read_released(moved, first_attribute="race")
    deep = write(folder.with_name("lm-layer12"), "sph_svd", stored("sph_svd", metadata={"layer_name": "lm-layer12"}))
    with pytest.raises(ggss.InputError, match="steers at 'lm-layer12', which is no site here"):
        read_released(deep, first_attribute="race")
    assert list(read_released(deep, first_attribute="race", site="elsewhere").operators) == ["elsewhere"]
    unsaid = stored("sph_svd")
    del unsaid["metadata"]["layer_name"]
    assert list(read_released(write(folder, "sph_svd", unsaid), first_attribute="race").operators) == [SITE]


def test_the_floor_that_is_stored_is_replaced_and_that_is_said(run, folder, tmp_path):
    path = write(folder, "geodesic_gated")
    code, out, err = run(path, "-o", tmp_path / "a")
    assert (code, err) == (0, "")
    assert "ggss steerer for race written to" in out
    assert "gate_floor is 0 in the file" in out
    assert "here 0.3, the paper's; --floor chooses another" in out
    made = ggss.Steerer.from_pretrained(tmp_path / "a")
    assert made.operators[SITE].scalars() == {"gate_median": 0.2, "gate_std": 0.1, "kappa": 5.0, "floor": 0.3}
    _, out, _ = run(path, "-o", tmp_path / "b", "--floor", "0", "--kappa", "2")
    assert "here 0, as --floor says" in out
    assert ggss.Steerer.from_pretrained(tmp_path / "b").options == {"k": 4, "kappa": 2.0, "floor": 0.0}
    chosen = write(folder, "geodesic_gated_pt", stored("geodesic_gated_pt", gate_floor=torch.tensor(0.5)))
    _, out, _ = run(chosen, "-o", tmp_path / "c")
    assert "gate_floor" not in out
    assert ggss.Steerer.from_pretrained(tmp_path / "c").operators[SITE].floor == 0.5


def test_a_folder_converts_all_it_can_and_lists_the_rest(run, folder, tmp_path):
    for name in READABLE:
        write(folder, name)
    pickled(folder)
    write(folder, "renamed", stored("geodesic_gated"))
    (folder / "log.txt").write_text("not a checkpoint")
    code, out, err = run(folder, "-o", tmp_path / "out", "--floor", "0.5")
    assert (code, err) == (0, "")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted([*READABLE, "renamed"])
    assert ggss.Steerer.from_pretrained(tmp_path / "out" / "renamed").operators[SITE].floor == 0.5
    for name, method in READABLE.items():
        made = ggss.Steerer.from_pretrained(tmp_path / "out" / name)
        assert made.method == method
        assert made.operators[SITE].scalars().get("floor", 1.0) == (0.5 if name in GATED else 1.0)
    text = " ".join(out.split())
    assert f"Not converted, {len(PICKLED)} of {len(PICKLED) + len(READABLE) + 1}:" in text
    for name, (what, method) in PICKLED.items():
        assert f"{name}.pt' holds {what}, and to read it would run code from the file" in text
        assert f"ggss discover --method {method}" in text
        assert method in ggss.methods.names()
    assert text.count("gate_floor is 0") == 1
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    code, _, err = run(folder, "-o", tmp_path / "out")
    assert code == 2
    assert "--force" in err
    assert before == {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert run(folder, "-o", tmp_path / "out", "--force")[0] == 0


def test_a_folder_of_nothing_that_can_be_read_is_refused(run, folder, tmp_path):
    pickled(folder)
    code, _, err = run(folder, "-o", tmp_path / "out")
    assert code == 2
    assert f"could be converted: {len(PICKLED)} problems" in err
    assert not (tmp_path / "out").exists()


class Trap:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return (pytest.fail, ("code of the file was run",))


def bad_files(folder):
    """Files that must be refused, by a part of the sentence."""
    basis = frame()[1]
    untyped, unknown = (stored("leace_sph", metadata={"type": name}) for name in ("", "mystery"))
    return {
        "loads without running code": write(folder, "sph_svd", stored("sph_svd", extra=Trap())),
        "holds a pickled scikit-learn estimator": write(folder, "mean_diff_geo", {"clf_model": Trap()}),
        "lacks k, metadata": write(folder, "geo_svd", {"V_bias": basis, "mu_global": basis[:, 0]}),
        "lacks kappa, gate_floor, bias_std": write(folder, "geodesic_gated", stored("sph_svd", bias_median=0.1)),
        "V_bias is (32, 4), mu_global and k say (32, 5)": write(folder, "paired_sph", stored("paired_sph", k=5)),
        "mu has length 3": write(folder, "inlp_sph", stored("inlp_sph", mu_global=3 * frame()[0])),
        "which does not steer as 'paired_geo' does": write(folder, "paired_geo", stored("sph_svd")),
        "is of type '' and has no gate": write(folder, "leace_geodesic_gated", untyped),
        "is of type 'mystery' and has no gate": write(folder, "mine", unknown),
        "mu_global: must be an array of real numbers: ": write(folder, "per_token_sph", stored("", mu_global=[None])),
        "V_bias: must be an array": write(folder, "per_token_geo", stored("per_token_geo", V_bias="four")),
        "metadata.classes": write(folder, "inlp_geo", stored("inlp_geo", metadata={"classes": 5})),
    }


def test_bad_files_are_refused_in_a_sentence_and_nothing_is_written(run, folder, tmp_path):
    for message, path in bad_files(folder).items():
        code, _, err = run(path, "-o", tmp_path / "out")
        assert code == 2, message
        assert message in " ".join(err.split()), err
        assert err.count("\n") == 1, err
        assert not (tmp_path / "out").exists()
    code, _, err = run(write(folder, "leace_sph"), "-o", tmp_path / "out", "--floor", "0.5")
    assert code == 2
    assert "has no gate" in err


def test_a_type_that_is_less_exact_than_the_name_does_not_hide_the_method(folder):
    """A file of LEACE inside the gate may be written by the same class as GGSS's."""
    content = stored("leace_geodesic_gated", metadata={"type": "geodesic_gated"})
    steerer = read_released(write(folder, "leace_geodesic_gated", content), first_attribute="race")
    assert steerer.method == "leace-gated"
    for kind in ("geodesic_gated", "paired_sph", "mystery"):  # the subspace's, perhaps
        content = stored("geodesic_gated", metadata={"type": kind})
        assert read_released(write(folder, "copy_of_mine", content), first_attribute="race").method == "ggss"


def test_a_file_with_the_numbers_of_a_fit_steers_as_the_fit(folder):
    acts, _ = planted(identities=4)
    steerer = ggss.fit("ggss", acts, attribute="race")
    own = steerer.operators[SITE]
    numbers = {"bias_median": torch.tensor(own.gate_median), "bias_std": own.gate_std, "V_bias": own.basis}
    content = stored("geodesic_gated", mu_global=own.mu, **numbers)
    read = read_released(write(folder, "geodesic_gated", content), first_attribute="race")
    torch.testing.assert_close(read.steer(acts.tokens[0]), steerer.steer(acts.tokens[0]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["leace_sph", "leace_geodesic_gated"])
def test_files_of_leace_leave_k_open(run, folder, tmp_path, name):
    """The script stores the k that it was asked for, None; V_bias has as many columns as were found."""
    file = write(folder, name, stored(name, k=None, metadata={"k": None}))
    assert run(file, "-o", tmp_path / "out")[0] == 0
    made, with_k = ggss.Steerer.from_pretrained(tmp_path / "out"), read_released(write(folder, name), "race")
    assert made.options["k"] == with_k.options["k"] == 4
    assert torch.equal(made.steer(rows()), with_k.steer(rows()))
    write(folder, name, stored(name, k=None, V_bias=frame()[1][:, 0]))
    assert "V_bias is (32,)" in run(file, "-o", tmp_path / "other")[2]
