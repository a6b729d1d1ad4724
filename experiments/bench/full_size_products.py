"""A product as the text model of `full_size` has them, in several ways: milliseconds of CPU time."""

import json
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ggss.models.placement import float32_products

ROWS, INPUTS, OUTPUTS, TIMES = 170, 2560, 9728, 5


@torch.inference_mode()
def main() -> None:
    torch.set_num_threads(1)
    rows, layer = torch.randn(ROWS, INPUTS).bfloat16(), nn.Linear(INPUTS, OUTPUTS, bias=False).bfloat16()
    wide_rows, wide = rows.float(), layer.weight.float()
    found = {
        "bfloat16": took(lambda: layer(rows)),
        "whole": took(lambda: nn.functional.linear(rows.float(), layer.weight.float()).bfloat16()),
        "float32": took(lambda: nn.functional.linear(wide_rows, wide)),
    }
    with float32_products(layer, needed=True):
        found["parts"] = took(lambda: layer(rows))
    print(json.dumps(found | {"rows": ROWS, "inputs": INPUTS, "outputs": OUTPUTS}))


def took(product: Callable[[], Tensor]) -> float:
    product()  # the first call of anything is slow
    start = time.process_time()
    for _ in range(TIMES):
        product()
    return 1000 * (time.process_time() - start) / TIMES


if __name__ == "__main__":
    main()
