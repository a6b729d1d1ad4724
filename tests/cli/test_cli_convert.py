"""`ggss convert` in both directions; nothing is overwritten that is not ours; bad input is one sentence, exit 2."""

from dataclasses import replace
from functools import partial

import pytest
import torch

import ggss
from ggss.probes.steered_model import SteeredModel
from ggss.steering.checkpoints import read_pt, write_pt
from planted import planted
from rounding import assert_same

SITE = "projection-mlp2"


@pytest.fixture(scope="module")
def steerer():
    return ggss.fit("ggss", planted(identities=4)[0], attribute="race")


@pytest.fixture
def run(ggss_command):
    return partial(ggss_command, "convert")


def published(operator, path, **more):
    """A checkpoint as somebody else would write it: the paper's five quantities."""
    stored = {"V_bias": operator.basis, "mu": operator.mu, "k": operator.basis.shape[1]}
    torch.save(stored | {"b_median": operator.gate_median, "b_std": operator.gate_std} | more, path)
    return path


def test_there_and_back_is_bit_exact(run, steerer, tmp_path):
    folder = steerer.save_pretrained(tmp_path / "race-steerer")
    code, out, err = run(folder, "-o", tmp_path / "race.pt")
    assert (code, err) == (0, "")
    assert f"ggss steerer for race at {SITE} written to {tmp_path / 'race.pt'}" in out
    code, out, _ = run(tmp_path / "race.pt", "-o", tmp_path / "again")
    assert code == 0
    assert f"ggss steerer for race written to {tmp_path / 'again'}" in out
    again = ggss.Steerer.from_pretrained(tmp_path / "again")
    rows = planted(identities=2, seed=5)[0].tokens[0]
    assert again.content_hash == steerer.content_hash
    assert_same(again.steer(rows), steerer.steer(rows))
    assert (again.attribute, again.values) == (steerer.attribute, steerer.values)
    for name, tensor in steerer.statistics[SITE].items():
        if name in again.statistics[SITE]:
            assert torch.equal(again.statistics[SITE][name], tensor)
    assert "magnitudes" in again.statistics[SITE]


def test_a_checkpoint_without_names_and_options_of_its_own(run, steerer, tmp_path):
    path = published(steerer.operators[SITE], tmp_path / "race.pt")
    code, _, err = run(path, "-o", tmp_path / "s")
    assert code == 2
    assert "give --attribute" in err
    assert not (tmp_path / "s").exists()
    code, _, err = run(
        *(path, "-o", tmp_path / "s", "--attribute", "race", "--values", "a, b,c"),
        *("--site", "deepstack-0", "--kappa", "2", "--floor", "0.5"),
    )
    assert code == 0, err
    made = ggss.Steerer.from_pretrained(tmp_path / "s")
    assert (made.attribute, made.values) == ("race", ("a", "b", "c"))
    assert made.operators["deepstack-0"].scalars() == {
        **steerer.operators[SITE].scalars(),
        "kappa": 2.0,
        "floor": 0.5,
    }
    assert made.options == {"k": 4, "kappa": 2.0, "floor": 0.5}


def test_what_a_pt_file_cannot_hold_is_said(run, steerer, tmp_path):
    operator = steerer.operators[SITE]
    other = replace(operator, mu=operator.mu.clone(), basis=operator.basis.clone())
    more = replace(
        steerer.recommending(0.75),
        operators={SITE: replace(operator, kappa=2.0), "deepstack-0": other},
        source={"model": "town/model"},
    )
    code, out, _ = run(more.save_pretrained(tmp_path / "s"), "-o", tmp_path / "race.pt")
    assert code == 0
    for lost in ("kappa 2", "the other sites (deepstack-0)", "the model town/model", "the recommended alpha 0.75"):
        assert lost in out.replace("\n", " ")
    assert "floor" not in out
    code, out, _ = run(steerer.save_pretrained(tmp_path / "plain"), "-o", tmp_path / "plain.pt")
    assert "Not saved" not in out


def test_the_only_site_of_a_steerer_is_written(run, steerer, tmp_path):
    elsewhere = replace(steerer, operators={"deepstack-0": steerer.operators[SITE]}, statistics={}, diagnostics={})
    folder = elsewhere.save_pretrained(tmp_path / "s")
    assert run(folder, "-o", tmp_path / "a.pt")[0] == 0
    assert run(folder, "-o", tmp_path / "b.pt", "--site", "deepstack-0")[0] == 0
    code, _, err = run(folder, "-o", tmp_path / "c.pt", "--site", SITE)
    assert code == 2
    assert f"no site {SITE!r}: there are deepstack-0" in err
    assert not (tmp_path / "c.pt").exists()


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_nothing_is_overwritten_that_is_not_ours(run, steerer, tmp_path):
    folder = steerer.save_pretrained(tmp_path / "s")
    path = published(steerer.operators[SITE], tmp_path / "race.pt", attribute="race")
    (tmp_path / "notes.txt").write_text("precious")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("precious")
    (tmp_path / "mine" / "config.json").write_text('{"model_type": "llava"}')
    write_pt(replace(steerer, attribute="old"), tmp_path / "old.pt")
    before = contents(tmp_path)
    refused = {
        "wrote it: give a new folder, or --force": (path, folder),
        "with 'config.json', and does not say": (path, tmp_path / "mine"),
        "is a file: give a folder": (path, tmp_path / "notes.txt"),
        "wrote it: give another file, or --force": (folder, tmp_path / "old.pt"),
        "is a folder: name a file": (folder, tmp_path / "mine"),
    }
    for message, (source, out) in refused.items():
        code, _, err = run(source, "-o", out)
        assert code == 2
        assert message in err
    for source, out in ((path, tmp_path / "notes.txt"), (folder, tmp_path / "mine")):
        assert run(source, "-o", out, "--force")[0] == 2
    assert contents(tmp_path) == before


def test_force_replaces_a_steerer_or_a_checkpoint(run, steerer, tmp_path):
    folder = replace(steerer, attribute="old").save_pretrained(tmp_path / "s")
    (folder / "streams.safetensors").write_bytes(b"of the steerer that was here")
    (folder / "notes.txt").write_text("precious")
    path = published(steerer.operators[SITE], tmp_path / "race.pt", attribute="race")
    assert run(path, "-o", folder, "--force")[0] == 0
    assert ggss.Steerer.from_pretrained(folder).attribute == "race"
    assert not (folder / "streams.safetensors").exists()
    assert (folder / "notes.txt").read_text() == "precious"
    write_pt(replace(steerer, attribute="old"), tmp_path / "old.pt")
    assert run(folder, "-o", tmp_path / "old.pt", "--force")[0] == 0
    assert read_pt(tmp_path / "old.pt").attribute == "race"
    (tmp_path / "empty").mkdir()
    assert run(path, "-o", tmp_path / "empty")[0] == 0


def bad_calls(steerer, tmp_path):
    operator = steerer.operators[SITE]
    named = {"attribute": "race"}
    (tmp_path / "note.pt").write_text("not a checkpoint")
    torch.save({"code": print}, tmp_path / "code.pt")
    torch.save(torch.ones(3), tmp_path / "tensor.pt")
    torch.save({"V_bias": operator.basis, "mu": operator.mu}, tmp_path / "half.pt")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "llava"}')
    good = published(operator, tmp_path / "good.pt", **named)
    folder = steerer.save_pretrained(tmp_path / "s")
    flat = ggss.fit("inlp-euclidean", planted(identities=4)[0], attribute="race").save_pretrained(tmp_path / "flat")
    nan = torch.full((64,), float("nan"))
    out = ("-o", tmp_path / "out")
    return {
        "does not exist: give a .pt file": (tmp_path / "none.pt", *out),
        "without running code": (tmp_path / "note.pt", *out),
        "loads without running code": (tmp_path / "code.pt", *out),
        "holds a Tensor, not a dictionary": (tmp_path / "tensor.pt", *out),
        "lacks k, b_median, b_std": (tmp_path / "half.pt", *out),
        "mu and k say (64, 64)": (
            published(operator, tmp_path / "turned.pt", V_bias=operator.basis.T, k=64, **named),
            *out,
        ),
        "k: Input should be a valid integer": (published(operator, tmp_path / "k.pt", k="four", **named), *out),
        "mu has length 8.0000, not 1": (published(operator, tmp_path / "mu.pt", mu=torch.ones(64), **named), *out),
        "not finite": (published(operator, tmp_path / "nan.pt", mu=nan, **named), *out),
        "'--kappa'": (good, *out, "--kappa", "nan"),
        "'--floor'": (good, *out, "--floor", "2"),
        "names no value": (good, *out, "--values", ","),
        "--kappa is for reading a .pt file": (folder, *out, "--kappa", "2"),
        "--attribute, --values is for reading": (folder, *out, "--attribute", "race", "--values", "a"),
        "does not describe a ggss steerer": (tmp_path / "model", *out),
        "has the operator 'euclidean'": (flat, *out),
    }


def test_bad_input_is_one_sentence_exit_2_and_nothing_written(run, steerer, tmp_path):
    for message, arguments in bad_calls(steerer, tmp_path).items():
        code, _, err = run(*arguments)
        assert code == 2, arguments
        assert err.startswith("ggss: "), err
        assert message in err
        assert err.count("\n") == 1, err
        assert not (tmp_path / "out").exists()


def test_help_teaches_by_example(run):
    code, out, _ = run("--help")
    assert code == 0
    assert "ggss convert race.pt -o race-steerer --attribute race" in out
    assert "ggss convert race-steerer -o race.pt" in out


UNVERIFIED = "does not record which model it was made for"


@pytest.fixture(scope="module")
def models(tiny, tmp_path_factory):
    """Two models of one family and one width, in folders."""
    place = tmp_path_factory.mktemp("models")
    folders = [place / "first", place / "second"]
    for seed, folder in enumerate(folders):
        vlm = tiny("qwen3-vl", seed=seed)
        vlm.model.save_pretrained(folder)
        vlm.processor.save_pretrained(folder)
    return folders


def test_a_checkpoint_is_for_the_model_that_is_named(run, steerer, models, tmp_path, caplog):
    first, second = map(ggss.load_vlm, map(str, models))
    source = published(steerer.operators[SITE], tmp_path / "race.pt")
    code, out, err = run(source, "-o", tmp_path / "made", "--attribute", "race", "--model", models[0])
    assert code == 0, err
    assert f"recorded as made for {models[0]}, as --model says" in out
    made = ggss.Steerer.from_pretrained(tmp_path / "made")
    assert made.source["fingerprint"] == first.fingerprint
    assert made.content_hash == read_pt(source).content_hash
    assert list(made.check(first)) == [SITE]
    assert UNVERIFIED not in caplog.text
    with pytest.raises(ggss.InputError, match="vision weights: the steerer was made with"):
        made.check(second)
    assert "nobody can check" not in (tmp_path / "made" / "README.md").read_text()


def test_without_a_model_every_use_says_that_the_steerer_is_unverified(run, steerer, models, tmp_path, caplog):
    source = published(steerer.operators[SITE], tmp_path / "race.pt")
    code, out, _ = run(source, "-o", tmp_path / "made", "--attribute", "race")
    assert code == 0
    assert "unverified: the file does not say its model" in out
    assert "nobody can check" in (tmp_path / "made" / "README.md").read_text()
    made, vlm = ggss.Steerer.from_pretrained(tmp_path / "made"), ggss.load_vlm(str(models[0]))
    uses = (lambda force: made.check(vlm, force=force), lambda force: SteeredModel.of(vlm).steered(made, 1.0, force))
    for use in uses:
        caplog.clear()
        use(False)
        assert caplog.text.count(UNVERIFIED) == 1
        caplog.clear()
        use(True)
        assert UNVERIFIED not in caplog.text


def test_a_model_that_a_checkpoint_does_not_fit_is_refused(run, models, tmp_path):
    wide = ggss.fit("ggss", planted(identities=4, width=80)[0], attribute="race")
    source = published(wide.operators[SITE], tmp_path / "race.pt")
    code, out, err = run(source, "-o", tmp_path / "made", "--attribute", "race", "--model", models[0])
    assert (code, out) == (2, "")
    assert "width at projection-mlp2: the steerer has 80, the model 64" in err
    assert not (tmp_path / "made").exists()
    folder = wide.save_pretrained(tmp_path / "wide")
    code, _, err = run(folder, "-o", tmp_path / "wide.pt", "--model", models[0])
    assert code == 2
    assert "--model is for reading a .pt file" in err
