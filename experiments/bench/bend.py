"""Does the memory of `bend-token` grow with its references? Peak memory of the whole job over few and over many.

The images, and the block of them that fitting holds, are smaller than LLaVA-NeXT's by the same factor. The
references lie in files of their own, as collected tokens do; each count runs in a process of its own.
"""

import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.bench.timing import in_own_process, peak_memory, row
from ggss import Activations, Steerer, fit
from ggss.activations import SITE, LazyTensors, Rows, cache, pool
from ggss.activations.cache import CacheEntry
from ggss_rivals import bend_token

TOKENS, WIDTH, FEW, MANY = 512, 512, 50, 200
FULL_TOKENS, FULL_WIDTH, FULL_COUNT = 2880, 4096, 400
LIMIT = 2e9


def run() -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    shifts = torch.randn(5, WIDTH, generator=generator)
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "tokens"
        stored((shifts[i % 5] + torch.randn(TOKENS, WIDTH, generator=generator) for i in range(MANY)), folder)
        few, many = _measure(folder, FEW), _measure(folder, MANY)
    grown, references = many["peak"] - few["peak"], (MANY - FEW) * TOKENS * WIDTH * 4
    whole, libraries = FULL_COUNT * FULL_TOKENS * FULL_WIDTH * 4, many["before"]
    held = libraries + max(fitting(), steering())
    note = (
        f"`bend-token` keeps its references on disk: with {MANY} of {TOKENS} x {WIDTH} instead of {FEW} its peak "
        f"memory grew by {grown / 1e6:.0f} MB, the references by {references / 1e6:.0f} MB. By the arithmetic in "
        f"`experiments/bench/bend.py`, {FULL_COUNT} references of {FULL_TOKENS} x {FULL_WIDTH}, "
        f"{whole / 1e9:.0f} GB on disk, "
        f"take {held / 1e9:.1f} GB: {libraries / 1e9:.1f} GB of libraries, and {fitting() / 1e9:.1f} GB while "
        f"fitting or {steering() / 1e9:.1f} GB while steering."
    )
    return [
        row(
            f"peak memory of bend-token-spherical, {MANY} references against {FEW}",
            f"{grown / 1e6:.1f} MB more",
            f"holding them, {references / 1e6:.0f} MB",
            max(grown, 0) / references,
            "does not grow with references",
            grown < 0.1 * references,
        )
        | {"note": note},
        row(
            f"memory of bend-token, {FULL_COUNT} references of {FULL_TOKENS} x {FULL_WIDTH}, by arithmetic",
            f"{held / 1e9:.2f} GB",
            f"holding them, {whole / 1e9:.0f} GB",
            held / whole,
            f"under {LIMIT / 1e9:.0f} GB",
            held < LIMIT,
        ),
    ]


def steering() -> int:
    """Bytes held while an image is steered: its rows, the result, the correction and mu; two references and a
    float32 copy; the corrections that are kept."""
    return (4 + 3 + bend_token.CACHED) * FULL_TOKENS * FULL_WIDTH * 4


def fitting() -> int:
    """Bytes held while the references are compared: the block, two of them, four copies of the Gram matrix."""
    return 4 * bend_token.BLOCK + 2 * FULL_TOKENS * FULL_WIDTH * 4 + 4 * 8 * FULL_COUNT**2


def _measure(folder: Path, count: int) -> dict[str, int]:
    # Full-size images are too large for the heap: what is freed goes back to the system. So it is for these, then.
    return in_own_process(report, str(folder), count, MALLOC_MMAP_THRESHOLD_=str(2**17))


def report(folder: str, count: int) -> None:
    """Fit, save, load and steer with the first `count` of the images in a folder."""
    torch.set_num_threads(1)
    bend_token.BLOCK //= FULL_TOKENS * FULL_WIDTH // (TOKENS * WIDTH)
    before = peak_memory()
    tokens = LazyTensors([entry(Path(folder), i) for i in range(count)], _tokens)
    pooled = torch.stack([one.mean(0) for one in tokens])
    attributes = [{"race": "abcde"[i % 5]} for i in range(count)]
    activations = Activations.from_rows({SITE: Rows(pooled, tokens)}, attributes, [i // 5 for i in range(count)])
    steerer = Path(folder) / f"steerer-{count}"
    fit("bend-token-spherical", activations, attribute="race").save_pretrained(steerer)
    Steerer.from_pretrained(steerer).steer(tokens[0] + 1)
    print(json.dumps({"before": before, "peak": peak_memory()}))


def _tokens(entry: CacheEntry) -> Tensor:
    return entry.need(cache.TOKENS)


def entry(folder: Path, number: int) -> CacheEntry:
    """Where an image's tokens are."""
    return CacheEntry(folder, f"image {number}")


def stored(images: Iterable[Tensor], folder: Path) -> Rows:
    """Tokens [T, D] of images, each an entry of a cache, and their means."""
    pooled, entries = [], []
    for tokens in images:
        entries.append(entry(folder, len(entries)))
        entries[-1].write({cache.TOKENS: tokens})
        pooled.append(pool(tokens))
    return Rows(torch.stack(pooled), LazyTensors(entries, _tokens))
