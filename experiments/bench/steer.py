"""`Steerer.steer` against the eager port and against a memcpy of the same tensor, on one thread; and its memory."""

import json
from typing import Any

import torch

from experiments.bench import port
from experiments.bench.timing import alternate, in_own_process, milliseconds, peak_memory, row
from ggss.methods.spherical import Geodesic
from ggss.steering.steerer import Steerer

SHAPES = ((2880, 4096), (4096, 5120), (1024, 2560))


def tokens(count: int, width: int, dtype: torch.dtype) -> tuple[Steerer, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    frame = torch.linalg.qr(torch.randn(width, 5, generator=generator))[0]
    operator = Geodesic(frame[:, 0].contiguous(), frame[:, 1:].contiguous(), gate_median=0.1, gate_std=0.05)
    rows = torch.randn(count, width, generator=generator).add_(50 * frame[:, 0]).to(dtype)
    return Steerer("ggss", "race", (), {"projection-mlp2": operator}), rows


def run() -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    table = []
    for count, width in SHAPES:
        for dtype in (torch.float32, torch.bfloat16):
            steerer, rows = tokens(count, width, dtype)
            operator = steerer.operators["projection-mlp2"]
            assert isinstance(operator, Geodesic)
            numbers = (operator.mu, operator.basis, operator.gate_median, operator.gate_std)
            place, own = torch.empty_like(rows), rows.clone()
            ours, eager, memcpy, fresh, clone, in_place = alternate(
                lambda s=steerer, r=rows, p=place: s.steer(r, out=p),
                lambda r=rows, n=numbers: port.steer(r, *n, alpha=1.0),
                lambda r=rows, p=place: p.copy_(r),
                lambda s=steerer, r=rows: s.steer(r),
                lambda r=rows: r.clone(),
                lambda s=steerer, r=own: s.steer(r, out=r),
            )
            main = (count, width) == (2880, 4096)
            main_float32 = main and dtype == torch.float32
            name = f"steer {count} x {width} {str(dtype).removeprefix('torch.')}"
            faster, copies = eager / ours, ours / memcpy
            table += [
                row(
                    f"{name}, into a given tensor",
                    milliseconds(ours),
                    f"eager port of the equations, {milliseconds(eager)}",
                    faster,
                    "at least 20 times faster" if main_float32 else "",
                    faster >= 20 if main_float32 else None,
                ),
                row(
                    f"{name}, into a given tensor",
                    milliseconds(ours),
                    f"memcpy, {milliseconds(memcpy)}",
                    copies,
                    "at most 5 memcpy" if main else "",
                    copies <= 5 if main else None,
                ),
                row(
                    f"{name}, in place, as an attached steerer does",
                    milliseconds(in_place),
                    f"memcpy, {milliseconds(memcpy)}",
                    in_place / memcpy,
                    "",
                ),
                row(f"{name}, new tensor", milliseconds(fresh), f"clone, {milliseconds(clone)}", fresh / clone, ""),
            ]
    return [*table, memory()]


def memory() -> dict[str, Any]:
    """Peak extra memory of one call in a process of its own, in copies of the tokens."""
    seen = in_own_process(report_memory)
    copies = seen["extra"] / seen["tokens"]
    peer = f"the tokens, {seen['tokens'] / 2**20:.0f} MiB"
    # A tenth of a copy is allowed for the block of rows in flight and the allocator.
    return row(
        "peak extra memory of steer 2880 x 4096 float32, new tensor",
        f"{seen['extra'] / 2**20:.0f} MiB",
        peer,
        copies,
        "at most one copy",
        copies <= 1.1,
    )


def report_memory() -> None:
    torch.set_num_threads(1)
    steerer, rows = tokens(2880, 4096, torch.float32)
    steerer.steer(rows[:8])
    before = peak_memory()
    steerer.steer(rows)
    print(json.dumps({"extra": peak_memory() - before, "tokens": rows.nbytes}))
