"""Products of a bfloat16 model on a processor that has no instructions for them.

Such a processor multiplies bfloat16 matrices several times more slowly than float32 ones. The weights of the whole
model in float32 may not fit in memory, so they are converted for each product, which is faster where many rows share
them. A matrix is converted in parts: the memory of a small part is used again for the next one. For a whole matrix
the system would give new memory each time, and that may take longer than the product.

The products are rounded to bfloat16 as before. Only the order of their sums differs, as between any two processors.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

MANY = 16  # rows from which on the conversion pays
PART = 2**20  # weights that are converted at a time


class ConvertedLinear(nn.Linear):
    """A linear layer in bfloat16 that multiplies many rows in float32."""

    def forward(self, input: Tensor) -> Tensor:
        here = self.weight.dtype is torch.bfloat16 and self.weight.device.type == "cpu"
        if not here or input.numel() < MANY * self.in_features:
            return super().forward(input)
        wide, many = input.float(), max(1, PART // self.in_features)
        starts = range(0, self.out_features, many)
        parts = [self._part(wide, slice(start, start + many)).to(input.dtype) for start in starts]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    def _part(self, input: Tensor, outputs: slice) -> Tensor:
        """Some columns of the product, in float32."""
        bias = None if self.bias is None else self.bias[outputs].float()
        return functional.linear(input, self.weight[outputs].float(), bias)


def use_float32_products(model: nn.Module, needed: bool | None = None) -> list[nn.Linear]:
    """From now on compute the products of linear layers in float32, and round them. The layers that were changed.

    needed: False does nothing; unless given, whether the model is in bfloat16 on a processor without instructions.
    """
    if not (_needed(model) if needed is None else needed):
        return []
    # A layer whose forward was replaced, such as by accelerate, does not use that of its class.
    changed = [module for module in model.modules() if type(module) is nn.Linear and "forward" not in vars(module)]
    for module in changed:
        module.__class__ = ConvertedLinear  # so it can be copied and saved as before
    return changed


@contextmanager
def float32_products(model: nn.Module, needed: bool | None = None) -> Iterator[None]:
    """The same while inside."""
    changed = use_float32_products(model, needed)
    try:
        yield
    finally:
        for module in changed:
            module.__class__ = nn.Linear


def _needed(model: nn.Module) -> bool:
    one = next(model.parameters(), None)
    return one is not None and one.dtype is torch.bfloat16 and one.device.type == "cpu" and not _instructions()


def _instructions() -> bool:
    """Whether this processor multiplies bfloat16 matrices by itself."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
