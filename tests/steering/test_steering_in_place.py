"""Where an attached steerer writes into the module's output: the same result, and nobody else's tensor is changed."""

import pytest
import torch
from torch import nn

from ggss.methods import operator
from ggss.methods.spherical import Geodesic
from ggss.models import resolve
from ggss.steering import attach
from ggss.steering.attach import attached, may_overwrite
from ggss.steering.steerer import Steerer
from rounding import assert_same

WIDTH = 32
QUESTION = "what colour is the hat ?"


@pytest.fixture
def frame():
    vectors = torch.linalg.qr(torch.randn(WIDTH, 4, generator=torch.Generator().manual_seed(0)))[0]
    return Geodesic(vectors[:, 0].contiguous(), vectors[:, 1:].contiguous(), 0.1, 0.1)


@pytest.fixture
def x():
    return torch.randn(5, 3, WIDTH, generator=torch.Generator().manual_seed(1))


class Spy:
    """Steers with an operator; remembers the rows as they came, and whether they were to be overwritten."""

    def __init__(self, frame):
        self.frame, self.came, self.in_place = frame, [], []

    def __call__(self, site, rows, images, out):
        self.came.append(rows.detach().clone())
        self.in_place.append(out is not None)
        assert out is None or out.data_ptr() == rows.data_ptr()
        return operator.apply(self.frame, rows, torch.ones(len(rows), 1), images, out)

    def expected(self, shape):
        rows = self.came[-1]
        return operator.apply(self.frame, rows, torch.ones(len(rows), 1)).rows.reshape(shape)


def steered(module, x, spy):
    with attached(module, {"site": ""}, spy, by_image=False) as run:
        result = module(x)
    assert run.calls == 1
    return result


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_linear_layer_is_overwritten_and_the_result_is_the_same(frame, x, mode, dtype):
    module, spy = nn.Linear(WIDTH, WIDTH).to(dtype), Spy(frame)
    kept, weight = x.clone(), module.weight.detach().clone()
    with mode():
        result = steered(module, x.to(dtype), spy)
        again = module(x.to(dtype))
    assert spy.in_place == [True]
    assert (result.shape, result.dtype) == (x.shape, dtype)
    torch.testing.assert_close(result, spy.expected(x.shape))  # computed in another place, so equal to rounding
    assert not torch.allclose(result, again)
    assert torch.equal(x, kept)
    assert torch.equal(module.weight, weight)


def test_the_negative_control_changes_the_input(frame, x, monkeypatch):
    """Were an identity overwritten, its input would change: what the tests below would notice."""
    monkeypatch.setattr(attach, "may_overwrite", lambda module, output: True)
    kept = x.clone()
    with torch.inference_mode():
        steered(nn.Identity(), x, Spy(frame))
    assert not torch.equal(x, kept)


class Returns(nn.Module):
    """Returns the same parameter, buffer or attribute at every call."""

    def __init__(self, kept):
        super().__init__()
        self.kept = kept

    def forward(self, x):
        return self.kept


class CachedLinear(nn.Linear):
    def forward(self, x):
        self.kept = super().forward(x)
        return self.kept


def replaced_forward():
    module = nn.Linear(WIDTH, WIDTH)
    module.forward = lambda x: x
    return module


@pytest.mark.parametrize(
    "module",
    [
        nn.Identity(),
        nn.Dropout().eval(),
        nn.Sequential(nn.Identity()),
        Returns(nn.Parameter(torch.randn(6, WIDTH))),
        Returns(torch.randn(6, WIDTH)),
        CachedLinear(WIDTH, WIDTH),
        replaced_forward(),
    ],
    ids=["identity", "dropout", "sequential", "parameter", "buffer", "cached", "forward"],
)
def test_what_a_module_returns_of_others_is_left_as_it_is(frame, x, module):
    spy, kept = Spy(frame), x.clone()
    with torch.inference_mode():
        before = module(x).clone()
        result = steered(module, x, spy)
        assert spy.in_place == [False]
        assert_same(result, spy.expected(before.shape))
        assert not torch.allclose(result, before)
        assert torch.equal(x, kept)
        assert torch.equal(getattr(module, "kept", before), before)


@pytest.mark.parametrize("first", [True, False])
def test_what_another_hook_has_captured_is_left_as_it_is(frame, x, first):
    module, spy, captured = nn.Linear(WIDTH, WIDTH), Spy(frame), []

    def capture(module, args, output):
        captured.append((output, output.clone()))

    with torch.inference_mode():
        if first:
            hook = module.register_forward_hook(capture)
        with attached(module, {"site": ""}, spy, by_image=False):
            if not first:
                hook = module.register_forward_hook(capture)
            result = module(x)
        hook.remove()
    assert spy.in_place == [False]
    assert torch.equal(*captured[0])
    assert torch.equal(captured[0][0], result) is not first


def test_a_hook_on_all_modules_counts_as_another(frame, x):
    module, spy, captured = nn.Linear(WIDTH, WIDTH), Spy(frame), []
    hook = nn.modules.module.register_module_forward_hook(lambda m, a, output: captured.append(output))
    try:
        with torch.inference_mode():
            steered(module, x, spy)
    finally:
        hook.remove()
    assert spy.in_place == [False]
    assert torch.equal(captured[0].reshape(-1, WIDTH), spy.came[0])


def test_two_steerers_on_one_module(frame, x):
    module, one, two = nn.Linear(WIDTH, WIDTH), Spy(frame), Spy(frame)
    with torch.inference_mode(), attached(module, {"site": ""}, one, by_image=False):
        result = steered(module, x, two)
    assert one.in_place == two.in_place == [False]
    assert_same(two.came[0], one.expected(two.came[0].shape))
    assert_same(result, two.expected(x.shape))


def test_with_gradients_nothing_is_overwritten(frame, x):
    module = nn.Linear(WIDTH, WIDTH)
    for given in (x, x.clone().requires_grad_()):
        spy = Spy(frame)
        steered(module, given, spy)
        assert spy.in_place == [False]


def test_the_other_conditions():
    module, output = nn.Linear(WIDTH, WIDTH), torch.randn(4, WIDTH)
    with torch.inference_mode():
        inference = torch.randn(4, WIDTH)
    with torch.no_grad():
        assert not may_overwrite(module, output), "no hook of ours"
        hook = module.register_forward_hook(lambda *_: None)
        assert may_overwrite(module, output)
        assert not may_overwrite(module, output.T)
        assert not may_overwrite(module, (output,))
        assert not may_overwrite(module, output.long())
        assert not may_overwrite(module, nn.Parameter(output))
        assert not may_overwrite(module, inference)
        assert not may_overwrite(nn.utils.parametrizations.orthogonal(nn.Linear(8, 8)), output)
    assert not may_overwrite(module, output), "gradients are enabled"
    hook.remove()


def test_a_live_model_is_overwritten_and_answers_the_same(vlm, pictures, monkeypatch):
    site, path = next(iter(vlm.sites().items()))
    module = resolve(vlm.model, path)
    vectors = torch.linalg.qr(torch.randn(module.out_features, 4, generator=torch.Generator().manual_seed(0)))[0]
    frame = Geodesic(vectors[:, 0].contiguous(), vectors[:, 1:].contiguous(), 0.1, 0.1)
    steerer = Steerer("ggss", "race", (), {site: frame})
    in_place, apply = [], operator.apply
    monkeypatch.setattr(operator, "apply", lambda *a: in_place.append(a[4] is not None) or apply(*a))
    state = {name: tensor.clone() for name, tensor in vlm.model.state_dict().items()}
    with steerer.attach(vlm):
        overwritten = vlm.logits([QUESTION], [pictures[:1]])
        hook = module.register_forward_hook(lambda *_: None)
        allocated = vlm.logits([QUESTION], [pictures[:1]])
        hook.remove()
    assert in_place == [True, False]
    torch.testing.assert_close(overwritten, allocated, rtol=0, atol=2e-6)
    assert all(torch.equal(tensor, state[name]) for name, tensor in vlm.model.state_dict().items())
