"""The two passes over the tokens: equal to the plain float64 products for every dtype, size and number of strips."""

import pytest
import torch

from ggss.methods import operator
from ggss.methods.operator import project, recombine


@pytest.fixture(params=["one strip", "many strips"])
def strips(request, monkeypatch):
    if request.param == "many strips":
        monkeypatch.setattr(operator, "STRIP_BYTES", 4 * 48 * 11)  # 8 rows of 48 numbers for one thread


def tensors(count, directions, dtype):
    generator = torch.Generator().manual_seed(count)
    rows = torch.randn(count, 48, generator=generator).to(dtype)
    scale, weights = torch.randn(count, 1, generator=generator), torch.randn(count, directions, generator=generator)
    return rows, torch.randn(directions, 48, generator=generator), scale, weights


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize(("count", "directions"), [(0, 3), (1, 1), (7, 5), (8, 5), (61, 5), (61, 10), (61, 11)])
@pytest.mark.usefixtures("strips")
def test_equal_to_the_plain_products(count, directions, dtype):
    rows, w, scale, weights = tensors(count, directions, dtype)
    kept = rows.clone()
    products, norms = project(rows, w)
    assert products.dtype == norms.dtype == torch.float32
    torch.testing.assert_close(products.double(), rows.double() @ w.double().T, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(norms.double(), rows.double().norm(dim=1, keepdim=True), rtol=1e-6, atol=0)
    out = torch.empty_like(rows)
    recombine(rows, scale, weights, w, out)
    expected = scale.double() * rows.double() + weights.double() @ w.double()
    coarse = {torch.bfloat16: 1e-2, torch.float16: 1e-3}.get(dtype, 1e-5)
    torch.testing.assert_close(out.double(), expected, rtol=coarse, atol=coarse)
    assert torch.equal(rows, kept)
    recombine(rows, scale, weights, w, rows)
    torch.testing.assert_close(rows, out)


@pytest.mark.usefixtures("strips")
def test_a_scale_of_one_and_no_weights_is_the_identity():
    rows, w, scale, weights = tensors(61, 5, torch.float32)
    out = torch.empty_like(rows)
    recombine(rows, torch.ones_like(scale), torch.zeros_like(weights), w, out)
    assert torch.equal(out, rows)


@pytest.mark.usefixtures("strips")
def test_rows_that_are_columns_of_a_larger_tensor():
    rows, w, scale, weights = tensors(61, 5, torch.float32)
    place = torch.zeros(61, 100)
    place[:, 20:68] = rows
    view = place[:, 20:68]
    torch.testing.assert_close(project(view, w)[0], project(rows, w)[0])
    recombine(view, scale, weights, w, view)
    torch.testing.assert_close(view.clone(), scale * rows + weights @ w)
    assert not place[:, :20].any()
    assert not place[:, 68:].any()
