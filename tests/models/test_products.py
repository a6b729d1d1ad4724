"""Products in float32 for a bfloat16 model: more exact, put back afterwards, and only where they are needed."""

import copy

import pytest
import torch
from torch import nn

from ggss.models import load_vlm, placement
from ggss.models.placement import MANY, ConvertedLinear, float32_products, use_float32_products
from ggss.steering.doctor import examine


@pytest.fixture
def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.LayerNorm(32), nn.Linear(32, 8, bias=False)).bfloat16()


def test_many_rows_are_multiplied_in_float32_and_few_as_they_are(layers):
    rows = torch.randn(2, MANY, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    first = layers[0]
    exact = (rows.float() @ first.weight.float().T + first.bias.float()).bfloat16()
    few = first(rows[0, :2])
    with float32_products(layers, needed=True):
        assert torch.equal(first(rows), exact)
        assert torch.equal(first(rows[0, :2]), few)
        assert layers(rows).dtype is torch.bfloat16


def test_the_model_is_as_before_even_after_an_error(layers):
    before = [(type(module), dict(vars(module))) for module in layers]
    with pytest.raises(RuntimeError, match="stop"), float32_products(layers, needed=True):
        assert [type(module) for module in layers] == [ConvertedLinear, nn.LayerNorm, ConvertedLinear]
        raise RuntimeError("stop")
    assert [(type(module), dict(vars(module))) for module in layers] == before


@pytest.mark.parametrize(
    ("dtype", "instructions", "changed"),
    [(torch.bfloat16, False, True), (torch.bfloat16, True, False), (torch.float32, False, False)],
)
def test_only_bfloat16_without_instructions_needs_it(layers, monkeypatch, dtype, instructions, changed):
    monkeypatch.setattr(placement, "_instructions", lambda: instructions)
    with float32_products(layers.to(dtype)):
        assert (type(layers[0]) is ConvertedLinear) == changed


def test_the_doctor_finds_the_same_with_them(tiny, monkeypatch):
    monkeypatch.setattr(placement, "_instructions", lambda: False)
    vlm = tiny("qwen3-vl")
    vlm.model.bfloat16()
    report = examine(vlm)
    assert report.healthy, report.checks
    assert report.leaks["all sites"] <= 0.01 * report.moved < 0.1 * report.leaks["projection-mlp2"]
    assert not any("forward" in vars(one) or type(one) is ConvertedLinear for one in vlm.model.modules())


def test_a_matrix_is_converted_in_parts_to_the_same_product(monkeypatch):
    torch.manual_seed(0)
    rows = torch.randn(2, MANY, 24).bfloat16()
    for linear in (nn.Linear(24, 37).bfloat16(), nn.Linear(24, 37, bias=False).bfloat16()):
        bias = 0 if linear.bias is None else linear.bias.double()
        exact = rows.double() @ linear.weight.double().T + bias
        for part in (1, 24 * 5, 24 * 37, 2**20):  # of a row each, of five with a rest, of all
            monkeypatch.setattr(placement, "PART", part)
            with float32_products(linear, needed=True):
                found = linear(rows)
            assert found.shape == exact.shape
            assert found.is_contiguous()
            torch.testing.assert_close(found.double(), exact, rtol=2**-8, atol=1e-6)  # bfloat16 has 8 bits


@pytest.mark.parametrize("instructions", [False, True])
def test_a_model_is_loaded_with_them_where_they_are_needed(model_dir, vlm, pictures, monkeypatch, instructions):
    monkeypatch.setattr(placement, "_instructions", lambda: instructions)
    half = load_vlm(model_dir, dtype="bfloat16")
    assert any(type(one) is ConvertedLinear for one in half.model.modules()) != instructions
    assert not any(type(one) is ConvertedLinear for one in load_vlm(model_dir, dtype="float32").model.modules())
    asked = ["which colour ?"], [[pictures[0]]]
    torch.testing.assert_close(half.logits(*asked), vlm.logits(*asked), rtol=0.1, atol=0.05)
    assert ("vision weights", half.identity.parts["vision weights"]) in half.visual_identity.parts.items()


def test_a_converted_layer_is_copied_saved_and_moved_to_another_dtype_as_before(layers, tmp_path):
    rows = torch.randn(MANY, 64, generator=torch.Generator().manual_seed(2))
    wide = copy.deepcopy(layers).float()
    assert use_float32_products(layers, needed=True) == [layers[0], layers[2]]
    torch.save(layers, tmp_path / "layers.pt")
    again = torch.load(tmp_path / "layers.pt", weights_only=False)
    for own in (copy.deepcopy(layers), again):
        assert torch.equal(own(rows.bfloat16()), layers(rows.bfloat16()))
    assert list(layers.state_dict()) == list(wide.state_dict())
    assert torch.equal(layers.float()(rows), wide(rows))
    assert use_float32_products(layers, needed=True) == []  # they are already


def test_gradients_pass(layers):
    rows = torch.randn(MANY, 64, generator=torch.Generator().manual_seed(3)).bfloat16().requires_grad_()
    layers(rows).sum().backward()
    expected, rows.grad = rows.grad, None
    with float32_products(layers, needed=True):
        layers(rows).sum().backward()
    torch.testing.assert_close(rows.grad, expected, rtol=0.05, atol=0.02)


def test_a_layer_with_a_forward_of_its_own_is_left_alone(layers):
    layers[0].forward = layers[2].forward
    assert use_float32_products(layers, needed=True) == [layers[2]]
