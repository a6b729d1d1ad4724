"""The memory that a plan needs, as `ggss study plan` shows it."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ggss.study.memory import Footprint


def show_memory(found: "Sequence[Footprint]", unknown: Mapping[str, str]) -> None:
    from rich.table import Table

    from ggss.terminal import Terminal

    console = Terminal()
    table = Table("memory", "weights", "longest", "KV cache", "features", "free", "fits", box=None)
    for one in found:
        table.add_row(
            one.model,
            gigabytes(one.weights),
            f"{one.tokens:,}",
            gigabytes(one.cache),
            gigabytes(one.features),
            gigabytes(one.free),
            "-" if one.fits is None else f"{one.fits:,}",
        )
    console.print(table)
    if found:
        console.print(
            f"weights in {' and '.join(dict.fromkeys(one.dtype for one in found))}; longest prompt and answer in "
            f"tokens; KV cache of {found[0].batch} of them; features of all pictures; free on "
            f"{' and '.join(dict.fromkeys(one.device for one in found))}; how many of the longest prompts fit in it"
        )
    for model, reason in unknown.items():
        console.print(f"{model}: its memory is not known: {reason}")
    for one in found:
        if one.fits is not None and one.fits < one.batch:
            console.print(
                f"{one.model}: about {one.fits} of the longest prompts fit at a time, and the plan's batch is "
                f"{one.batch}: a batch that does not fit will be halved"
                if one.fits
                else f"{one.model}: it does not fit in the {gigabytes(one.free)} that are free on {one.device}"
            )
        for task in one.too_long:
            console.print(
                f"{one.model}: {task.prompts:,} of the {task.of:,} prompts of {task.task} are longer than its "
                f"context of {task.context:,} tokens (up to {task.tokens:,}): its answers to them mean little"
            )


def gigabytes(count: int | None) -> str:
    """A number of bytes for people."""
    if count is None:
        return "-"
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
