"""Exported models: the fold is the live steerer, only the named tensors change, what cannot be folded is refused."""

import hashlib
import json
import sys
from dataclasses import replace
from functools import cache

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

import ggss
from experiments.tools import deploy
from fresh_python import python
from ggss import InputError
from ggss.methods.operator import Affine, explained, nearest_map
from ggss.methods.projection import Euclidean, Oblique
from ggss.steering import export as exporting
from ggss.steering.export import AFFINE_METHODS, ProofFailed
from ggss.steering.exported_files import RECORD
from ggss.steering.steerer import Steerer
from planted import planted
from test_invariants import TABLE, fit

SITE = "projection-mlp2"
AFFINE = {*AFFINE_METHODS, "auto", "none", "prompt", "directional-ablation", "rlace", "sfid"}
AFFINE |= {"splince", "splince-pace", "leopard"}
AFFINE |= {"pace-kernel"}  # fitted to so few people it is pace; test_pace_kernel.py has the other case
QUESTION = "which person is a nurse ?"


@cache
def operator(method):
    return fit(method, planted(identities=8)[0]).operators[SITE]


def images_of(count=40):
    """Images of six tokens; some are far from what a gate was calibrated on."""
    tokens = torch.stack(list(planted(identities=4, seed=3)[0].tokens)[:count])
    return tokens * torch.linspace(0.5, 1.5, count)[torch.randperm(count), None, None]


def steered(own, images, alpha):
    out = torch.empty_like(images)
    for rows, place in zip(images, out, strict=True):
        own(rows, torch.full((len(rows), 1), alpha), torch.zeros(len(rows), dtype=torch.long), place)
    return out


@pytest.mark.parametrize("method", TABLE)
@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.5])
def test_an_operator_says_itself_whether_it_is_affine(method, alpha):
    own, images = operator(method), images_of()
    found = own.affine(alpha)
    assert (found is not None) == (method in AFFINE)
    done, half = steered(own, images, alpha), (images[:20] + images[20:]) / 2
    off = (steered(own, half, alpha) - (done[:20] + done[20:]) / 2).abs().max()  # 0 for any affine map
    if found is None:
        assert off > 1e-4
    else:
        assert off < 1e-5
        torch.testing.assert_close(found(images.double()).float(), done, rtol=1e-5, atol=1e-5)


def test_an_operator_with_a_gate_that_is_always_open_is_affine():
    gated, images = operator("gated-euclidean"), images_of()
    own = replace(gated, floor=1.0)
    assert gated.affine(1.0) is None
    torch.testing.assert_close(own.affine(0.7)(images.double()).float(), steered(own, images, 0.7))
    assert replace(own, renorm=True).affine(1.0) is None


def oblique(width, seed, k=3, size=1.0):
    generator = torch.Generator().manual_seed(seed)
    movement = torch.randn(width, k, generator=generator)
    other = movement + torch.randn(width, k, generator=generator)
    detection = other @ torch.linalg.inv(movement.T @ other)
    mu = size * torch.randn(width, generator=generator)
    return Oblique(mu, detection.contiguous(), movement)


def scaling(width, seed):
    generator = torch.Generator().manual_seed(seed)
    return Affine.by_dimension(torch.rand(width, generator=generator), torch.randn(width, generator=generator))


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 2), (2, 1)])
def test_maps_compose_and_fold_as_one_after_the_other(order):
    maps = [oblique(16, 1).affine(0.8), Euclidean(torch.ones(16), torch.eye(16)[:, :2]).affine(1.0), scaling(16, 5)]
    first, second = (maps[i] for i in order)
    linear = nn.Linear(8, 16).double()
    inputs = torch.randn(5, 8, dtype=torch.float64)
    expected = second(first(linear(inputs)))
    both = first.then(second)
    torch.testing.assert_close(both(linear(inputs)), expected)
    weight, bias = both.fold(linear.weight, linear.bias)
    torch.testing.assert_close(inputs @ weight.T + bias, expected)
    left, right = both.low_rank()
    rows = linear(inputs)
    torch.testing.assert_close(rows + rows @ right @ left.T + both.offset, expected)


def test_order_matters():
    """Or the test of composition could not fail."""
    first, second = oblique(16, 1).affine(1.0), oblique(16, 2).affine(1.0)
    rows = torch.randn(5, 16, dtype=torch.float64)
    assert not torch.allclose(first.then(second)(rows), second.then(first)(rows), rtol=1e-2)


def steerer_for(vlm, seed=1, make=oblique, sites="all", **fields):
    """A steerer with random directions at the sites of a model."""
    widths = {site: ggss.models.resolve(vlm.model, path).out_features for site, path in vlm.sites(sites).items()}
    operators = {site: make(width, seed + 10 * i) for i, (site, width) in enumerate(widths.items())}
    known = {"method": "pace", "attribute": "race", "values": ("a", "b"), "source": vlm.describe()}
    return Steerer(operators=operators, **known | fields)


def tensors(folder):
    return {name: own for file in sorted(folder.glob("*.safetensors")) for name, own in load_file(file).items()}


def test_an_exported_checkpoint_answers_as_the_live_steerer(vlm, model_dir, pictures, tmp_path):
    steerer = steerer_for(vlm)
    made = ggss.export(model_dir, {"race": steerer}, 0.9, tmp_path / "out")
    plain = ggss.load_vlm(made.folder)
    asked = [QUESTION] * 2, [[pictures[0]], [pictures[1]]]
    unsteered = vlm.logits(*asked)
    with steerer.attach(vlm, 0.9):
        expected = vlm.logits(*asked)
    found = plain.logits(*asked)
    assert (found - expected).abs().max() < 1e-3 * (expected - unsteered).abs().max()
    assert {name for name, own in made.record["proof"]["compared"].items() if own["units"] < 4} >= {SITE, "logits"}
    assert made.record["proof"]["compared"]["logits"]["effect"] > 1e-3


def test_only_the_named_tensors_change(vlm, model_dir, tmp_path):
    made = ggss.export(model_dir, {"race": steerer_for(vlm)}, None, tmp_path / "out")
    before, after = tensors(model_dir), tensors(made.folder)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert before.keys() == after.keys()
    assert changed == made.record["tensors"].keys()
    assert len(changed) == 2 * len(vlm.sites("all"))
    for name, told in made.record["tensors"].items():
        for own, which in ((before, "before"), (after, "after")):
            assert told[f"sha256_{which}"] == hashlib.sha256(own[name].numpy().tobytes()).hexdigest()
        assert after[name].dtype == before[name].dtype
    for file in model_dir.iterdir():
        if file.name not in ("config.json", "model.safetensors", "README.md"):
            assert (made.folder / file.name).read_bytes() == file.read_bytes(), file.name
    assert json.loads((made.folder / RECORD).read_text()) == json.loads(json.dumps(made.record))


@pytest.fixture
def saved(qwen, tmp_path):
    """Saves the Qwen3-VL with two deepstack mergers: `saved(dtype, max_shard_size=...)`."""

    def save(dtype=None, **how):
        folder = tmp_path / "model"
        before = qwen.model.dtype
        qwen.model.to(dtype or before).save_pretrained(folder, **how)
        qwen.processor.save_pretrained(folder)
        qwen.model.to(before)
        return folder

    return save


def test_shards_and_their_index_stay_as_they_are(qwen, saved, tmp_path):
    folder = saved(max_shard_size="100KB")
    steerer = steerer_for(qwen)
    made = ggss.export(folder, {"race": steerer}, 1.0, tmp_path / "out")
    index = "model.safetensors.index.json"
    assert (made.folder / index).read_bytes() == (folder / index).read_bytes()
    where = json.loads((folder / index).read_text())["weight_map"]
    assert len({where[name] for name in made.record["tensors"]}) > 1, (
        "the sites are in several shards, or this shows little"
    )
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as one, safe_open(made.folder / file.name, "pt") as other:
            assert one.keys() == other.keys()
            assert one.metadata() == other.metadata()
        touched = file.name in {own["file"] for own in made.record["tensors"].values()}
        assert (file.read_bytes() != (made.folder / file.name).read_bytes()) == touched


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_numbers_keep_the_dtype_they_are_stored_in(qwen, saved, tmp_path, dtype):
    folder = saved(dtype)
    steerer = replace(steerer_for(qwen), source=ggss.load_vlm(folder).describe())
    made = ggss.export(folder, {"race": steerer}, 1.0, tmp_path / "out")
    assert {own.dtype for own in tensors(made.folder).values()} == {dtype}
    assert made.record["proof"]["stored_in"] == str(dtype).removeprefix("torch.")
    assert all(own["units"] < 2 for own in made.record["proof"]["compared"].values())


def test_steerers_act_in_the_order_in_which_they_are_named(tiny, tmp_path, pictures):
    vlm = tiny("pixtral")
    vlm.model.save_pretrained(tmp_path / "model")
    vlm.processor.save_pretrained(tmp_path / "model")
    race, gender = steerer_for(vlm, 1), steerer_for(vlm, 2, attribute="gender")
    made = ggss.export(
        tmp_path / "model", {"race": race, "gender": gender}, {"race": 1.0, "gender": 0.5}, tmp_path / "out"
    )
    assert [(one["name"], one["alpha"]) for one in made.record["steerers"]] == [("race", 1.0), ("gender", 0.5)]
    found = ggss.load_vlm(made.folder).encode([pictures[0]])[0].rows[SITE]
    with race.attach(vlm, 1.0), gender.attach(vlm, 0.5):
        expected = vlm.encode([pictures[0]])[0].rows[SITE]
    with gender.attach(vlm, 0.5), race.attach(vlm, 1.0):
        other_order = vlm.encode([pictures[0]])[0].rows[SITE]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert (other_order - expected).abs().max() > 1e-2


PLAIN = """
import sys, torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor
folder, picture, question, out = sys.argv[1:]
model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
processor = AutoProcessor.from_pretrained(folder)
chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]}]
prompt = processor.apply_chat_template(chat, add_generation_prompt=True)
inputs = processor(images=Image.open(picture), text=prompt, return_tensors="pt")
with torch.no_grad():
    logits = model(**inputs).logits[0, -1]
assert not [name for name in sys.modules if name.split(".")[0] == "ggss"]
torch.save(logits, out)
"""


def test_a_process_without_ggss_has_the_steered_model(tiny, pictures, tmp_path):
    vlm = tiny("llava-vicuna")
    vlm.model.save_pretrained(tmp_path / "model")
    vlm.processor.save_pretrained(tmp_path / "model")
    steerer = steerer_for(vlm)
    made = ggss.export(tmp_path / "model", {"race": steerer}, 1.0, tmp_path / "out")
    pictures[0].save(tmp_path / "picture.png")
    words = [str(made.folder), str(tmp_path / "picture.png"), QUESTION, str(tmp_path / "logits.pt")]
    done = python(PLAIN, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = torch.load(tmp_path / "logits.pt")
    unsteered = vlm.logits([QUESTION], [[pictures[0]]])[0]
    with steerer.attach(vlm, 1.0):
        expected = vlm.logits([QUESTION], [[pictures[0]]])[0]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert (found - unsteered).abs().max() > 1e-3


def test_a_wrong_fold_is_not_called_done(tiny, tmp_path, monkeypatch):
    vlm = tiny("pixtral")
    folder = tmp_path / "model"
    vlm.model.save_pretrained(folder)
    vlm.processor.save_pretrained(folder)
    fold = Affine.fold
    wrong = {
        "a sign": lambda own, weight, bias: fold(replace(own, offset=-own.offset), weight, bias),
        "not at all": lambda own, weight, bias: (weight.double(), bias.double()),
        "a transposed pair": lambda own, weight, bias: fold(
            replace(own, left=own.right, right=own.left), weight, bias
        ),
    }
    for made in wrong.values():
        monkeypatch.setattr(Affine, "fold", made)
        with pytest.raises(ProofFailed, match=r"times what rounding to .*float32 makes"):
            ggss.export(folder, {"race": steerer_for(vlm)}, 1.0, tmp_path / "out")
        assert [own.name for own in tmp_path.iterdir()] == ["model"], "nothing is left"


@pytest.fixture(scope="module")
def pixtral(tmp_path_factory):
    """A tiny Pixtral and its folder. It is shared: leave it as it was."""
    from conftest import WORDS
    from experiments.training.architectures import build

    folder = tmp_path_factory.mktemp("pixtral") / "model"
    vlm = ggss.Vlm(*build("pixtral", WORDS, 0, width=64, layers=2), name="pixtral")
    vlm.model.save_pretrained(folder)
    vlm.processor.save_pretrained(folder)
    return vlm, folder


def refused(made, message, tmp_path):
    with pytest.raises(InputError, match=message) as caught:
        made()
    assert not isinstance(caught.value, ProofFailed)
    assert not (tmp_path / "out").exists()


def test_what_weights_cannot_do_is_refused(pixtral, tmp_path):
    vlm, folder = pixtral
    out = tmp_path / "out"
    steerer = steerer_for(vlm)
    refused(lambda: ggss.export(folder, {}, 1.0, out), "no steerer was given", tmp_path)
    refused(lambda: ggss.export(folder, {"race": steerer}, 0.0, out), "one strength above 0", tmp_path)
    refused(lambda: ggss.export(folder, {"race": steerer}, -1.0, out), "would amplify", tmp_path)
    refused(lambda: ggss.export(folder, {"race": steerer}, {"rase": 1.0}, out), "did you mean 'race'", tmp_path)
    gated = replace(steerer, method="pace-gated", operators={SITE: replace(oblique(64, 1), floor=0.3, gate_std=1.0)})
    message = r"race: what pace-gated does at projection-mlp2 depends on the token .* nearest .* pace; others"
    refused(lambda: ggss.export(folder, {"race": gated}, 1.0, out), message, tmp_path)
    suffix = replace(steerer, method="prompt", prompt_suffix="be fair")
    refused(lambda: ggss.export(folder, {"race": suffix}, 1.0, out), "appends text to every prompt", tmp_path)
    other = replace(steerer, source=steerer.source | {"fingerprint": "0" * 64})
    refused(lambda: ggss.export(folder, {"race": other}, 1.0, out), "does not fit this model", tmp_path)
    nothing = replace(steerer, operators={SITE: operator("none").__class__(64)})
    refused(lambda: ggss.export(folder, {"race": nothing}, 1.0, out), "change nothing", tmp_path)
    refused(lambda: ggss.export(folder, {"race": steerer}, 1.0, out, form="onnx"), "no form 'onnx'", tmp_path)
    refused(lambda: ggss.export(folder, {"race": steerer}, 1.0, out, form="mmproj"), "--mmproj FILE", tmp_path)
    refused(lambda: ggss.export(folder, {"race": steerer}, 1.0, out, mmproj="x.gguf"), "--mmproj FILE", tmp_path)


def test_an_existing_folder_is_never_written_to(pixtral, tmp_path):
    vlm, folder = pixtral
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError, match="is there already"):
        ggss.export(folder, {"race": steerer_for(vlm)}, 1.0, tmp_path / "out")
    with pytest.raises(InputError, match="is there already"):
        ggss.export(folder, {"race": steerer_for(vlm)}, 1.0, folder)
    assert list((tmp_path / "out").iterdir()) == []


def changed_model(tiny, change, name="pixtral"):
    vlm = tiny(name)
    change(vlm.model.base_model.multi_modal_projector)
    return vlm


class Doubled(nn.Linear):
    """Not a plain Linear: what it gives out is no product with its weight alone."""

    def forward(self, input):
        return 2 * super().forward(input)


def no_linear(projector):
    projector.linear_2.__class__ = Doubled


def no_bias(projector):
    projector.linear_2.bias = None


def tied(projector):
    projector.linear_1.weight = projector.linear_2.weight


def small_numbers(projector):
    projector.linear_2.to(torch.float8_e4m3fn)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (no_linear, "is a Doubled, no plain Linear"),
        (no_bias, "has no bias, and this steering has an offset"),
        (tied, "is tied to model.multi_modal_projector.linear_1.weight"),
        (small_numbers, "quantised: export the model before quantisation"),
    ],
)
def test_sites_that_cannot_hold_it_are_refused(tiny, change, message, monkeypatch):
    vlm = changed_model(tiny, change)
    part = exporting.chosen({"race": steerer_for(tiny("pixtral"))}, 1.0)[0]
    monkeypatch.setattr(Steerer, "check", lambda own, model: vlm.sites())
    with pytest.raises(InputError, match=message):
        exporting.folded_linears(vlm, [part])


def test_a_site_without_bias_takes_steering_without_offset(tiny, tmp_path, pictures):
    vlm = changed_model(tiny, no_bias)
    vlm.model.config.multimodal_projector_bias = False
    vlm.model.base_model.multi_modal_projector.linear_1.bias = None
    folder = tmp_path / "model"
    vlm.model.save_pretrained(folder)
    vlm.processor.save_pretrained(folder)
    around_origin = steerer_for(vlm, make=lambda width, seed: oblique(width, seed, size=0.0))
    made = ggss.export(folder, {"race": around_origin}, 1.0, tmp_path / "out")
    assert len(made.record["tensors"]) == 1
    with around_origin.attach(vlm, 1.0):
        expected = vlm.encode([pictures[0]])[0].rows[SITE]
    found = ggss.load_vlm(made.folder).encode([pictures[0]])[0].rows[SITE]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    # Nor does an adapter then need a bias, which vLLM would refuse.
    adapter = ggss.export(folder, {"race": around_origin}, 1.0, tmp_path / "adapter", form="lora")
    assert json.loads((adapter.folder / "adapter_config.json").read_text())["lora_bias"] is False
    assert {name.split(".")[-2] for name in tensors(adapter.folder)} == {"lora_A", "lora_B"}
    assert adapter.record["notes"] == []


def test_the_files_of_a_hub_model_are_those_of_its_local_snapshot(monkeypatch, tmp_path):
    asked = []

    def snapshot(name, revision, local_files_only):
        asked.append((name, revision, local_files_only))
        if revision == "gone":
            raise FileNotFoundError("no snapshot")
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    assert exporting.source_folder("org/model", "0123abc") == tmp_path
    assert asked == [("org/model", "0123abc", True)]
    with pytest.raises(InputError, match=r"are not in the local cache .*: load the model first"):
        exporting.source_folder("org/model", "gone")


def test_a_quantised_model_is_refused(tiny):
    vlm = tiny("pixtral")
    vlm.model.config.quantization_config = {"quant_method": "bitsandbytes"}
    part = exporting.chosen({"race": steerer_for(tiny("pixtral"))}, 1.0)[0]
    with pytest.raises(InputError, match="is quantised"):
        exporting.folded_linears(vlm, [part])


def test_a_site_inside_the_text_model_is_refused(pixtral):
    vlm, _ = pixtral
    layer = replace(steerer_for(vlm), operators={"lm-layer0": oblique(64, 1)}, source=vlm.describe(text=True))
    with pytest.raises(InputError, match="no plain Linear"):
        exporting.folded_linears(vlm, exporting.chosen({"race": layer}, 1.0))


def test_weights_that_are_not_those_in_memory_are_refused(pixtral, tmp_path):
    _, folder = pixtral
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    loaded = ggss.load_vlm(copy)
    steerer = replace(steerer_for(loaded), source={})
    with torch.no_grad():
        loaded.model.base_model.multi_modal_projector.linear_2.weight.mul_(1.01)
    refused(
        lambda: ggss.export(loaded, {"race": steerer}, 1.0, tmp_path / "out"),
        "is not what the model has in",
        tmp_path,
    )


def test_weights_of_other_formats_are_not_copied(pixtral, tmp_path):
    vlm, folder = pixtral
    copy = tmp_path / "copy"
    (copy / "original").mkdir(parents=True)
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    others = ["consolidated.safetensors", "pytorch_model.bin", "original/params.pth", "pytorch_model.bin.index.json"]
    for name in others:
        (copy / name).write_bytes(b"unsteered")
    (copy / "original" / "notes.txt").write_text("kept")
    (copy / "README.md").write_text("---\nlicense: apache-2.0\n---\n# base\n")
    made = ggss.export(copy, {"race": steerer_for(vlm)}, 1.0, tmp_path / "out")
    assert sorted(made.record["left_out"]) == sorted(others)
    assert not [name for name in others if (made.folder / name).exists()]
    assert (made.folder / "original" / "notes.txt").read_text() == "kept"
    card = (made.folder / "README.md").read_text()
    assert 'license: "apache-2.0"' in card
    assert "consolidated.safetensors" in card
    assert (made.folder / "README.base.md").read_text().endswith("# base\n")


def test_numbers_too_large_for_the_dtype_are_refused(qwen, saved, tmp_path):
    folder = saved(torch.float16)
    steerer = steerer_for(qwen, make=lambda width, seed: oblique(width, seed, size=1e6))
    steerer = replace(steerer, source=ggss.load_vlm(folder).describe())
    refused(
        lambda: ggss.export(folder, {"race": steerer}, 1.0, tmp_path / "out"), "too large for torch.float16", tmp_path
    )


def test_the_same_steerer_is_not_attached_to_what_it_is_in(pixtral, tmp_path):
    vlm, folder = pixtral
    steerer, other = steerer_for(vlm), steerer_for(vlm, 7)
    made = ggss.export(folder, {"race": steerer}, 1.0, tmp_path / "out")
    plain = ggss.load_vlm(made.folder)
    for force in (False, True):
        with pytest.raises(InputError, match="would steer twice"), steerer.attach(plain, 1.0, force=force):
            pass
    with pytest.raises(InputError, match="would steer twice"):
        ggss.export(made.folder, {"race": steerer}, 1.0, tmp_path / "again")
    with pytest.raises(InputError, match="does not fit this model"), other.attach(plain, 1.0):
        pass
    with other.attach(plain, 1.0, force=True):
        plain.encode(list(exporting.two_pictures(plain)))


def test_an_export_of_an_export_names_both(pixtral, tmp_path):
    vlm, folder = pixtral
    ggss.export(folder, {"race": steerer_for(vlm)}, 1.0, tmp_path / "once")
    again = ggss.load_vlm(tmp_path / "once")
    ggss.export(tmp_path / "once", {"gender": steerer_for(again, 5, attribute="gender")}, 0.5, tmp_path / "twice")
    noted = json.loads((tmp_path / "twice" / "config.json").read_text())["ggss_export"]
    assert [(one["attribute"], one["alpha"]) for one in noted] == [("race", 1.0), ("gender", 0.5)]


def test_a_lora_is_the_live_steerer(qwen, saved, tmp_path, pictures):
    from peft import PeftModel

    folder = saved()
    steerer = steerer_for(qwen)
    made = ggss.export(folder, {"race": steerer}, 0.8, tmp_path / "out", form="lora")
    assert {file.name for file in made.folder.iterdir()} == {
        *("README.md", "adapter_config.json", "adapter_model.safetensors", RECORD)
    }
    base = ggss.load_vlm(folder)
    tuned = PeftModel.from_pretrained(base.model, str(made.folder))
    asked = [QUESTION], [[pictures[0]]]
    unsteered = qwen.logits(*asked)
    with steerer.attach(qwen, 0.8):
        expected = qwen.logits(*asked)
    assert (expected - unsteered).abs().max() > 1e-3
    torch.testing.assert_close(ggss.Vlm(tuned, base.processor).logits(*asked), expected, rtol=1e-4, atol=1e-4)
    merged = ggss.Vlm(tuned.merge_and_unload(), base.processor)
    torch.testing.assert_close(merged.logits(*asked), expected, rtol=1e-4, atol=1e-4)


def test_a_lora_as_large_as_the_weights_is_refused(pixtral, tmp_path):
    vlm, folder = pixtral
    wide = steerer_for(vlm, make=lambda width, seed: oblique(width, seed, k=width - 1))
    thin = ggss.export(folder, {"race": steerer_for(vlm)}, 1.0, tmp_path / "thin", form="lora")
    assert json.loads((thin.folder / "adapter_config.json").read_text())["r"] == 3
    both = {"race": wide, "gender": steerer_for(vlm, 4)}
    refused(
        lambda: ggss.export(folder, both, 1.0, tmp_path / "out", form="lora"), "as large as the weights", tmp_path
    )


def test_the_nearest_map_of_an_affine_operator_is_the_operator():
    own, tokens = oblique(64, 1), list(planted(identities=8)[0].tokens)
    nearest = nearest_map(own, tokens, 0.7)
    assert explained(own, nearest, tokens, 0.7) > 0.9999


def test_an_approximation_is_exported_as_one(tmp_path):
    faces = ggss.Counterfactuals.load("small-world", include={"occupation": "cook"})
    vlm = ggss.load_vlm("small-world/pixtral")
    acts = ggss.collect(vlm, faces, keep_tokens=True, cache=tmp_path / "cache")
    steerer = ggss.fit("ggss", acts, attribute="race")
    with pytest.raises(InputError, match="--approximate IMAGES"):
        ggss.export(vlm, {"race": steerer}, 1.0, tmp_path / "out")
    made = ggss.export(vlm, {"race": steerer}, 1.0, tmp_path / "out", approximate=acts)
    told = made.record["steerers"][0]
    assert told["steerer"] == steerer.content_hash
    near = told["approximation"][SITE]
    assert 0.9 < near["people"] < 0.9999
    assert near["without_people"] < near["people"]
    assert told["approximation"][SITE]["held_out"] == len(acts) // 4
    card = (made.folder / "README.md").read_text()
    assert "**An approximation.**" in card
    assert "`ggss probe`" in card
    with pytest.raises(InputError, match="would steer twice"), steerer.attach(ggss.load_vlm(made.folder), 1.0):
        pass


def test_an_exported_model_is_recognised(pixtral, tmp_path, caplog):
    from ggss.steering.doctor import examine

    vlm, folder = pixtral
    made = ggss.export(folder, {"race": steerer_for(vlm)}, 0.75, tmp_path / "out")
    caplog.clear()
    plain = ggss.load_vlm(made.folder)
    assert [record.getMessage() for record in caplog.records] == [
        f"{made.folder} has steering in its weights (race by pace at alpha 0.75): always on, for pictures only"
    ]
    assert "(race by pace at alpha 0.75)" in examine(plain).advice[0]
    assert plain.identity.parts["steering in the weights"] == "race by pace at alpha 0.75"
    assert "steering in the weights" not in vlm.identity.parts
    caplog.clear()
    ggss.load_vlm(folder)
    assert not caplog.records


def test_the_command_writes_and_says_what_it_proved(pixtral, tmp_path, monkeypatch, capsys):
    from ggss import cli

    vlm, folder = pixtral
    steerer_for(vlm).save_pretrained(tmp_path / "race")

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["ggss", "export", str(folder), *map(str, words)])
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        return (code, *capsys.readouterr())

    race = f"race={tmp_path / 'race'}"
    code, out, _ = run("--steer", race, "--alpha", "race=0.5", "-o", tmp_path / "out")
    assert code == 0
    assert "units of float32's rounding (at most 4)" in out
    assert "bias and capability were not measured: ggss probe" in out
    assert json.loads((tmp_path / "out" / RECORD).read_text())["steerers"][0]["alpha"] == 0.5
    code, out, _ = run("--steer", race, "--as", "lora", "-o", tmp_path / "adapter", "--json")
    assert json.loads(out)["form"] == "lora"
    for words, message in (
        (("--steer", race, "-o", tmp_path / "out"), "is there already"),
        (("--steer", race, "-o", tmp_path / "new", "--as", "lora-x"), "did you mean 'lora'"),
        (("--steer", race, "-o", tmp_path / "new", "--alpha", "race=much"), "is not a number"),
        (("--steer", race, "-o", tmp_path / "new", "--alpha", "gender=1"), "for no steerer of --steer"),
        (("--steer", race, "-o", tmp_path / "new", "--neutral", tmp_path), "give --approximate"),
        (("--steer", race, "-o", tmp_path / "new", "--as", "mmproj"), "--mmproj FILE"),
    ):
        code, _, err = run(*words)
        assert code == 2
        assert message in err


def test_an_exported_model_is_probed_as_any_other_and_has_the_hooks_numbers(tmp_path):
    from ggss.probes import suites
    from ggss.probes.steered_model import SteeredModel

    faces = ggss.Counterfactuals.load(
        "small-world", include={"occupation": "cook", "identity": ["00", "01", "02", "03"]}
    )
    vlm = ggss.load_vlm("small-world/llava-vicuna")
    acts = ggss.collect(vlm, faces, keep_tokens=True, cache=tmp_path / "cache")
    steerer = ggss.fit("pace", acts, attribute="race")
    made = ggss.export(vlm, {"race": steerer}, 1.0, tmp_path / "out")
    suite = suites.load("small-world")
    models = {
        "unsteered": SteeredModel.of(vlm),
        "hook": SteeredModel.of(vlm).steered(steerer, 1.0),
        "export": SteeredModel.of(ggss.load_vlm(made.folder)),
    }
    runs = {
        name: {
            task: ggss.analysis.ask(model, suite, task, limit=20) for task in ("mcq", "recognition-race", "smallstar")
        }
        for name, model in models.items()
    }
    numbers = deploy.measured(runs)
    assert numbers["same"] == numbers["answers"] >= 60
    for cells in numbers["tasks"].values():
        assert cells["hook"] == cells["export"]
    assert any(cells["unsteered"] != cells["export"] for cells in numbers["tasks"].values())
    for task, run in runs["export"].items():
        for answer, expected in zip(run.answers, runs["hook"][task].answers, strict=True):
            assert answer.probabilities == pytest.approx(expected.probabilities, abs=2e-3)
    assert deploy.measured(runs | {"export": runs["unsteered"]})["same"] < numbers["answers"], "the control"
