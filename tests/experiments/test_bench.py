"""What `make bench` measures: processes of their own start and say what was asked, and every method can be fitted."""

import pytest
import torch

from experiments.bench import methods, steer
from experiments.bench.timing import in_own_process
from ggss.methods.pace_kernel import KernelContrast


def test_steering_needs_at_most_one_copy_of_the_tokens():
    seen = in_own_process(steer.report_memory)
    assert seen["tokens"] == 2880 * 4096 * 4
    assert 0.9 < seen["extra"] / seen["tokens"] <= 1.1, "a new tensor for the result, and little more"


# Not sae: no feature of so few dimensions separates the values.
@pytest.mark.parametrize("name", [name for name in methods.MEASURED if name != "sae"])
def test_a_method_can_be_fitted_to_what_is_measured(tmp_path, monkeypatch, name):
    for constant, small in {"WIDTH": 128, "IMAGES": 100, "FEW_TOKENS": 9, "FEW_IMAGES": 60}.items():
        monkeypatch.setattr(methods, constant, small)
    seconds, steerer = methods.timed_fit(name, methods.activations(tmp_path))
    assert seconds >= 0
    assert steerer.method == name


def test_the_kernel_is_measured_as_large_as_it_can_be(monkeypatch):
    monkeypatch.setattr(methods, "WIDTH", 128)
    operator = methods.kernel_steerer().operators[methods.SITE]
    rows = torch.randn(5, 128)
    steered = torch.empty_like(rows)
    operator(rows, torch.ones(5, 1), None, steered)
    assert isinstance(operator, KernelContrast)
    assert not torch.equal(steered, rows)
