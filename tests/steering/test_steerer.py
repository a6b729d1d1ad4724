"""The artefact: steering rows, strengths, and saving, loading and refusing."""

import json
from dataclasses import replace

import pytest
import torch

import ggss
from ggss import InputError
from ggss.steering import artefact
from ggss.steering.checkpoints import read_pt, write_pt
from planted import planted
from rounding import assert_same

SITE = "projection-mlp2"


@pytest.fixture(scope="module")
def steerer():
    return ggss.fit("ggss", planted(identities=6)[0], attribute="race")


@pytest.fixture
def rows():
    return planted(identities=2, seed=5)[0].tokens[0]


def test_alpha_zero_is_the_identity_and_a_copy(steerer, rows):
    steered = steerer.steer(rows, alpha=0.0)
    assert torch.equal(steered, rows)
    assert steered.data_ptr() != rows.data_ptr()


def test_norms_shape_dtype_are_kept_and_input_untouched(steerer, rows):
    before = rows.clone()
    steered = steerer.steer(rows)
    assert torch.equal(rows, before)
    torch.testing.assert_close(steered.norm(dim=1), rows.norm(dim=1), rtol=1e-6, atol=0)
    assert not torch.allclose(steered, rows)
    assert steerer.steer(rows.bfloat16()).dtype == torch.bfloat16
    assert steerer.steer(rows[:0]).shape == (0, 64)


def test_one_alpha_per_image(steerer, rows):
    both = torch.cat([rows, rows, rows])
    images = torch.arange(3).repeat_interleave(len(rows))
    steered = steerer.steer(both, images=images, alpha=torch.tensor([0.0, 0.5, 1.0])).split(len(rows))
    for alpha, part in zip((0.0, 0.5, 1.0), steered, strict=True):
        torch.testing.assert_close(part, steerer.steer(rows, alpha=alpha), rtol=1e-6, atol=1e-6)


def test_out_steers_in_place(steerer, rows):
    expected = steerer.steer(rows)
    assert steerer.steer(rows, out=rows) is rows
    assert_same(rows, expected)


def test_gate_of_rows(steerer, rows):
    gate = steerer.gate(rows)
    assert gate.shape == (len(rows),)
    assert ((gate >= 0.3) & (gate <= 1)).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alpha": float("nan")}, "alpha must be from -1,000 to 1,000, seen nan"),
        ({"alpha": float("inf")}, "alpha must be from -1,000 to 1,000, seen inf"),
        ({"alpha": -0.5}, "would amplify"),
        ({"alpha": torch.tensor([1.0, 1.0])}, "needs `images`"),
        (
            {"alpha": torch.tensor([1.0]), "images": torch.tensor([0, 0, 0, 0, 1, 1])},
            "1 alphas .* 2 images",
        ),
        ({"images": torch.tensor([0])}, "one image per row"),
        ({"site": "deepstack-0"}, "no site 'deepstack-0'"),
    ],
)
def test_bad_strengths_are_refused(steerer, rows, arguments, message):
    with pytest.raises(InputError, match=message):
        steerer.steer(rows, **arguments)


def test_a_negative_alpha_must_be_asked_for(steerer, rows):
    basis = steerer.operators[SITE].basis
    amplified = steerer.steer(rows, alpha=-0.5, allow_amplify=True)
    assert (amplified @ basis).norm() > (rows @ basis).norm()


def test_save_and_load_are_bit_exact(steerer, rows, tmp_path):
    steerer.save_pretrained(tmp_path / "s")
    loaded = ggss.Steerer.from_pretrained(tmp_path / "s")
    for name, tensor in steerer.operators[SITE].tensors().items():
        assert torch.equal(loaded.operators[SITE].tensors()[name], tensor)
    assert loaded.operators[SITE].scalars() == steerer.operators[SITE].scalars()
    assert (loaded.attribute, loaded.values, loaded.method) == (steerer.attribute, steerer.values, steerer.method)
    assert loaded.diagnostics == steerer.diagnostics
    assert_same(loaded.steer(rows, alpha=0.7), steerer.steer(rows, alpha=0.7))  # its tensors lie elsewhere in memory
    for name, tensor in steerer.statistics[SITE].items():
        assert torch.equal(loaded.statistics[SITE][name], tensor)
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == [
        "README.md",
        "config.json",
        "steerer.safetensors",
    ]
    again = loaded.save_pretrained(tmp_path / "again")
    for name in ("config.json", "steerer.safetensors", "README.md"):
        assert (again / name).read_bytes() == (tmp_path / "s" / name).read_bytes()


def test_the_content_hash_is_of_what_steers_and_nothing_else(steerer, tmp_path):
    own = steerer.content_hash
    loaded = ggss.Steerer.from_pretrained(steerer.save_pretrained(tmp_path))
    assert loaded.content_hash == replace(steerer, source={}, recommended_alpha=0.5).content_hash == own
    operator = steerer.operators[SITE]
    others = [
        replace(steerer, prompt_suffix=" Be fair."),
        replace(steerer, operators={SITE: replace(operator, kappa=operator.kappa + 1)}),
        replace(steerer, operators={SITE: replace(operator, basis=operator.basis.flip(1))}),
        replace(steerer, operators={"elsewhere": operator}),
    ]
    assert len({own, *(other.content_hash for other in others)}) == 1 + len(others)


def test_intersectional_values_survive(tmp_path):
    steerer = ggss.fit("ggss", planted(identities=4)[0], attribute=("race", "gender"))
    loaded = ggss.Steerer.from_pretrained(steerer.save_pretrained(tmp_path / "s"))
    assert (loaded.attribute, loaded.values) == (("race", "gender"), steerer.values)


def test_the_card_says_what_was_measured(steerer, tmp_path):
    text = (steerer.save_pretrained(tmp_path) / "README.md").read_text()
    assert "| attribute | race: amber, coral, indigo, jade, pearl |" in text
    assert "effective rank" in text
    warned = replace(steerer, diagnostics={SITE: {**steerer.diagnostics[SITE], "warnings": ["Mind the gap."]}})
    assert "**Warning.** Mind the gap." in (warned.save_pretrained(tmp_path) / "README.md").read_text()


def test_the_card_says_what_is_appended_to_prompts(steerer, tmp_path):
    acts = planted(identities=2)[0]
    prompt = ggss.fit("prompt", acts, attribute="race")
    text = (prompt.save_pretrained(tmp_path / "prompt") / "README.md").read_text()
    assert f"| appended to every prompt | `{json.dumps(prompt.prompt_suffix)}` |" in text
    assert "base your answer only on task-relevant visual evidence" in text
    assert '"What does this person earn?" + steerer.prompt_suffix' in text
    assert "nothing that the model sees of a person is removed" in text
    own = replace(prompt, prompt_suffix="yes | no?")  # in a table
    assert (
        '| appended to every prompt | `"yes \\| no?"` |' in (own.save_pretrained(tmp_path) / "README.md").read_text()
    )
    plain = (steerer.save_pretrained(tmp_path) / "README.md").read_text()
    assert "appended" not in plain
    assert "prompt_suffix" not in plain
    assert "It removes what counterfactual images showed" in plain


def damage(folder, what):
    config, tensors = folder / "config.json", folder / "steerer.safetensors"
    if what == "cut":
        tensors.write_bytes(tensors.read_bytes()[:-9])
    elif what == "flipped":
        data = bytearray(tensors.read_bytes())
        data[-3] ^= 1
        tensors.write_bytes(data)
    elif what == "no config":
        config.unlink()
    elif what == "not json":
        config.write_text(config.read_text()[:50])
    elif what == "a model":
        config.write_text('{"model_type": "llava"}')
    else:
        stored = json.loads(config.read_text())
        stored |= {"version": {"format": 99}, "kind": {"sites": {SITE: {"operator": "warp", "width": 64}}}}[what]
        config.write_text(json.dumps(artefact.signed(stored)))


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("cut", "cut short"),
        ("flipped", "not the file that config.json describes"),
        ("no config", "no readable config.json"),
        ("not json", "is not JSON"),
        ("a model", "does not describe a ggss steerer"),
        ("version", "artefact format 99"),
        ("kind", "unknown operator 'warp'"),
    ],
)
def test_a_damaged_artefact_is_refused(steerer, tmp_path, what, message):
    steerer.save_pretrained(tmp_path / "s")
    damage(tmp_path / "s", what)
    with pytest.raises(InputError, match=message):
        ggss.Steerer.from_pretrained(tmp_path / "s")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"basis": torch.ones(64, 4)}, "orthonormal"),
        ({"basis": torch.eye(64)}, "nothing would be left"),
        ({"basis": torch.ones(4)}, r"must be \[D, k\] with D = 64, seen \[4\]"),
        ({"basis": torch.ones(64, 0)}, "basis must be"),
        ({"basis": [[1.0]]}, "must be a tensor, seen a list"),
        ({"basis": torch.eye(64, 2).to_sparse()}, "dense"),
        ({"mu": torch.ones(32)}, "with D = 32"),
        ({"mu": torch.ones(64)}, "mu has length 8"),
        ({"mu": torch.ones(64, dtype=torch.int64)}, "torch.float32, seen torch.int64"),
        ({"mu": torch.full((64,), float("nan"))}, "not finite"),
        ({"gate_std": float("inf")}, "finite"),
        ({"gate_std": -1}, "gate_std should be greater than or equal to 0, seen -1"),
        ({"gate_std": None}, "gate_std should be a valid number"),
        ({"gate_median": 4.0}, "gate_median should be less than or equal to 3.14"),
        ({"kappa": -5}, "kappa should be greater than 0, seen -5"),
        ({"kappa": "5"}, "kappa should be a valid number, seen a str"),
        ({"kappa": True}, "kappa should be a valid number"),
        ({"kappa": 10**400}, "kappa"),
        ({"floor": -100}, "floor should be greater than or equal to 0, seen -100"),
        ({"floor": 1.5}, "floor should be less than or equal to 1"),
    ],
)
def test_numbers_are_checked_where_an_operator_is_made(steerer, change, message):
    with pytest.raises(InputError, match=message):
        replace(steerer.operators[SITE], **change)


def test_a_whole_number_is_the_same_steerer_as_its_float(steerer):
    def hashed(kappa):
        return replace(steerer, operators={SITE: replace(steerer.operators[SITE], kappa=kappa)}).content_hash

    assert hashed(4) == hashed(4.0) != hashed(5)


def test_a_folder_that_is_not_there_is_looked_for_on_the_hub(monkeypatch, tmp_path, steerer):
    steerer.save_pretrained(tmp_path / "s")
    asked = []

    def download(name, revision, allow_patterns):
        asked.append((name, revision))
        return str(tmp_path / "s")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert ggss.Steerer.from_pretrained("town/race-steerer", revision="v1").attribute == "race"
    assert asked == [("town/race-steerer", "v1")]


def test_no_such_artefact(monkeypatch):
    def offline(*args, **kwargs):
        raise OSError("no network")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    with pytest.raises(InputError, match="no steerer at 'town/none'"):
        ggss.Steerer.from_pretrained("town/none")


def test_push_uploads_what_save_writes(monkeypatch, steerer):
    seen = {}

    class Api:
        def __init__(self, token=None):
            pass

        def create_repo(self, repo_id, private, exist_ok):
            return f"hub/{repo_id}"

        def upload_folder(self, repo_id, folder_path, commit_message):
            seen["steerer"] = artefact.load(folder_path)

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    assert steerer.push_to_hub("town/race") == "hub/town/race"
    assert seen["steerer"].values == steerer.values


def test_the_papers_checkpoint(steerer, rows, tmp_path):
    write_pt(steerer, tmp_path / "race.pt")
    loaded = read_pt(tmp_path / "race.pt")
    for name, tensor in steerer.operators[SITE].tensors().items():
        assert torch.equal(loaded.operators[SITE].tensors()[name], tensor)
    assert loaded.operators[SITE].scalars() == steerer.operators[SITE].scalars()
    assert_same(loaded.steer(rows), steerer.steer(rows))
    assert (loaded.attribute, loaded.values) == ("race", steerer.values)
    assert torch.equal(loaded.statistics[SITE]["magnitudes"], steerer.statistics[SITE]["magnitudes"])
    torch.save({"V_bias": torch.eye(4)[:, :2], "mu": torch.ones(4)}, tmp_path / "half.pt")
    with pytest.raises(InputError, match="lacks k, b_median, b_std"):
        read_pt(tmp_path / "half.pt")
    torch.save({"code": print}, tmp_path / "code.pt")
    with pytest.raises(InputError, match="without running code"):
        read_pt(tmp_path / "code.pt")
