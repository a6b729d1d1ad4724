"""Products of a bfloat16 model on a processor that has no instructions for them.

Such a processor multiplies bfloat16 matrices several times more slowly than float32 ones. The weights of the whole
model in float32 may not fit in memory, so they are converted for each product, which is faster where many rows share
them. A matrix is converted in parts: the memory of a small part is used again for the next one. For a whole matrix
the system would give new memory each time, and that may take longer than the product.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

MANY = 16  # rows from which on the conversion pays
PART = 2**20  # weights that are converted at a time


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
        wide, many = input.float(), max(1, PART // linear.in_features)
        starts = range(0, linear.out_features, many)
        parts = [_part(linear, wide, slice(start, start + many)).to(input.dtype) for start in starts]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    return forward


def _part(linear: nn.Linear, input: Tensor, outputs: slice) -> Tensor:
    """Some columns of the product, in float32."""
    bias = None if linear.bias is None else linear.bias[outputs].float()
    return functional.linear(input, linear.weight[outputs].float(), bias)
