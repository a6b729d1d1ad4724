"""Equal up to rounding: what may be asked of a number that is computed twice.

The last digits of a matrix product depend on the processor's instructions, on the number of threads, on what else is
in the batch, and on where its tensors lie in memory: weights that are mapped from a file may be aligned to 8 bytes
only, those made in memory are aligned to 64. So two loads of one model differ in the last digit on some machines.
Bit-equality is for a tensor that was stored, copied or left alone, and for the same tensors on the same code path.
"""

import torch
from torch import Tensor

# Of numbers about as large as one. Rounding alone moves those of the tiny models here by 1e-7; another picture,
# another order of pictures or another strength moves them by 1e-2 and more.
ABSOLUTE, RELATIVE = 2e-6, 1e-5
# What the likeliest word must lead by before two answers may be compared as words.
LEAD = 20 * ABSOLUTE


def assert_same(found: Tensor, expected: Tensor) -> None:
    """Equal up to rounding."""
    torch.testing.assert_close(found, expected, rtol=RELATIVE, atol=ABSOLUTE)


def lead(logits: Tensor) -> float:
    """By how much the likeliest word leads the next one, in the closest of all rows."""
    best = logits.float().topk(2, dim=-1).values
    return float((best[..., 0] - best[..., 1]).min())
