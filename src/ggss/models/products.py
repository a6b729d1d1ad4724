"""Products of a bfloat16 model on a processor that has no instructions for them.

Such a processor multiplies bfloat16 matrices several times more slowly than float32 ones. The weights of the whole
model in float32 may not fit in memory, but one layer's do: they are converted for each product, which is still faster
where many rows share them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

MANY = 16  # rows from which on the conversion pays


@contextmanager
def float32_products(model: nn.Module, needed: bool | None = None) -> Iterator[None]:
    """Compute the products of linear layers in float32 and round them, while inside.

    needed: False does nothing; unless given, whether the model is in bfloat16 on a processor without instructions.
    """
    if not (_needed(model) if needed is None else needed):
        yield
        return
    changed = [module for module in model.modules() if type(module) is nn.Linear and "forward" not in vars(module)]
    for module in changed:
        module.forward = _product(module)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        for module in changed:
            del module.forward


def _needed(model: nn.Module) -> bool:
    one = next(model.parameters(), None)
    return one is not None and one.dtype is torch.bfloat16 and one.device.type == "cpu" and not _instructions()


def _instructions() -> bool:
    """Whether this processor multiplies bfloat16 matrices by itself."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _product(linear: nn.Linear) -> Callable[[Tensor], Tensor]:
    def forward(input: Tensor) -> Tensor:
        if input.numel() < MANY * linear.in_features:
            return functional.linear(input, linear.weight, linear.bias)
        bias = None if linear.bias is None else linear.bias.float()
        return functional.linear(input.float(), linear.weight.float(), bias).to(input.dtype)

    return forward
