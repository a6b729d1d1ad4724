"""How the fit of PACE grows with images, tokens and width: its section of docs/performance.md, with a figure.

    python -m experiments.bench.pace_size [--full]

Tokens are made up picture by picture, added to the statistics as `collect(summarise=True)` does while it encodes
pictures, and thrown away. Each size is a process of its own, on two threads. Making up tokens is not counted. CPU
time is that of all threads; peak memory is that of the process, with Python and torch.
`--full` measures the size of FOCUS on a 7B too: 480 pictures of 2048 tokens of 4096 dimensions.

The subspace is compared with that of a fit whose covariance is of all tokens, by principal cosines of the movements.
"""

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.bench.__main__ import PACE_SIZE, PAGE, with_section
from ggss.activations import SITE, Activations, Places, Rows
from ggss.activations import statistics as token_statistics
from ggss.activations.statistics import TokenStatistics, common_grid
from ggss.methods.diagnostics import principal_cosines

ROOT = Path(__file__).parents[2]
FIGURE = ROOT / "docs" / "pace-size.svg"
VALUES, DIRECTIONS = 5, 4
BASE = (100, 1024, 1024)
GROWTH = {
    "images": [(50, 1024, 1024), BASE, (200, 1024, 1024), (400, 1024, 1024)],
    "tokens": [(100, 256, 1024), (100, 512, 1024), BASE, (100, 2048, 1024)],
    "width": [(100, 1024, 256), (100, 1024, 512), BASE, (100, 1024, 2048)],
}
FULL = (480, 2048, 4096)
GOAL_SECONDS, GOAL_BYTES = 360, 3 * 2**30  # three minutes of two cores
COMPARED = (100, 1024, 512)  # where all tokens can be used, too


class World:
    """Tokens that vary along random directions of falling size; a value moves a part of each picture."""

    def __init__(self, images: int, tokens: int, width: int) -> None:
        self.generator = torch.Generator().manual_seed(0)
        self.images, self.tokens, self.width = images, tokens, width
        self.scales = (1 + torch.arange(width)).float() ** -0.25
        self.rotation = torch.randperm(width, generator=self.generator)
        signs = torch.where(torch.rand(width, generator=self.generator) < 0.5, -1.0, 1.0)
        self.mean = 2 * signs * self.scales
        self.shifts = 0.5 * torch.randn(2, VALUES, width, generator=self.generator) * self.scales
        self.person = torch.zeros(0)

    def picture(self, image: int) -> Tensor:
        """The tokens [T, D] of an image in bfloat16. The versions of a person follow each other."""
        if image % VALUES == 0:
            self.person = torch.randn(self.tokens, self.width, generator=self.generator) * self.scales
        rows = self.mean + self.person
        third = self.tokens // 3
        own = 0.3 * torch.randn(1, self.width, generator=self.generator) * self.scales
        rows[:third] += self.shifts[0, image % VALUES] + own
        rows[third : 2 * third] += self.shifts[1, image % VALUES] + own
        return rows[:, self.rotation].bfloat16()


def measured(images: int, tokens: int, width: int, save: str = "", sample: int = 0) -> dict[str, Any]:
    """CPU seconds of gathering and of the fit, and peak memory. save: a file for the movement V.

    sample: of how many tokens the covariance is; 0: the library's number.
    """
    import ggss

    token_statistics.SAMPLE = sample or token_statistics.SAMPLE

    torch.set_num_threads(2)
    started = peak()
    world = World(images, tokens, width)
    lines = 2 ** int(math.log2(tokens) / 2)  # as near to a square as powers of two are
    grid = torch.cartesian_prod(torch.tensor([0]), torch.arange(lines), torch.arange(tokens // lines))
    place = Places.of(torch.ones(tokens, 1), grid=grid)
    cells = common_grid([place], images, width)
    assert cells is not None
    statistics = TokenStatistics(images, width, cells.count, cells.why, keep=True)
    part, pooled, seconds, elapsed = cells.parts(place), torch.empty(images, width), 0.0, 0.0
    for image in range(images):
        rows = world.picture(image)
        begin, clock = time.process_time(), time.perf_counter()
        pooled[image] = rows.float().mean(0)
        statistics.add(image, rows, part, place.visible)
        seconds += time.process_time() - begin
        elapsed += time.perf_counter() - clock
    begin, clock = time.process_time(), time.perf_counter()
    statistics.finish()
    seconds, elapsed = seconds + time.process_time() - begin, elapsed + time.perf_counter() - clock
    attributes = [{"race": str(image % VALUES)} for image in range(images)]
    contexts = [image // VALUES for image in range(images)]
    acts = Activations.from_rows({SITE: Rows(pooled, statistics=statistics)}, attributes, contexts)
    begin, clock = time.process_time(), time.perf_counter()
    steerer = ggss.fit("pace", acts, attribute="race")
    fitted, elapsed = time.process_time() - begin, elapsed + time.perf_counter() - clock
    found = steerer.diagnostics[SITE]
    if save:
        torch.save(steerer.operators[SITE].tensors()["movement"], save)
    return {
        "size": [images, tokens, width],
        "gathered": seconds,
        "fitted": fitted,
        "elapsed": elapsed,
        "peak": peak(),
        "started": started,
        "k": found["k"],
        "parts": found["parts"],
        "sampled": statistics.sampled,
    }


def peak() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def in_a_process(*arguments: object) -> dict[str, Any]:
    """`measured` in a process of its own, because the peak of memory is that of a process."""
    call = f"import json; from experiments.bench.pace_size import measured; print(json.dumps(measured{arguments!r}))"
    variables = os.environ | {"OMP_WAIT_POLICY": "passive"}  # threads that wait for each other take no CPU time
    done = subprocess.run(
        [sys.executable, "-c", call], capture_output=True, text=True, check=True, cwd=ROOT, env=variables
    )
    return json.loads(done.stdout.splitlines()[-1])


def cosines() -> tuple[float, float]:
    """The smallest principal cosine with the fit on all tokens, and the share of tokens that were sampled."""
    with tempfile.TemporaryDirectory() as folder:
        files = [str(Path(folder) / name) for name in ("all.pt", "some.pt")]
        in_a_process(*COMPARED, files[0], COMPARED[0] * COMPARED[1])
        some = in_a_process(*COMPARED, files[1], 32 * COMPARED[2])
        bases = [torch.linalg.qr(torch.load(file).double())[0] for file in files]
    return float(principal_cosines(*bases).min()), some["sampled"]


def section(rows: list[dict[str, Any]], cosine: float, sampled: float) -> str:
    lines = [
        "## The fit of PACE as it grows",
        "",
        "Written by `python -m experiments.bench.pace_size`; do not edit. Two threads; CPU time of all of them.",
        "",
        "| images x tokens x width | parts | tokens in the covariance | gathering | fit | peak memory | goal |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        size, total = tuple(row["size"]), row["gathered"] + row["fitted"]
        met = "met" if total <= GOAL_SECONDS and row["peak"] <= GOAL_BYTES else "**not met**"
        goal = f"at most {GOAL_SECONDS} s and 3 GiB: {met}" if size == FULL else ""
        cells = [" x ".join(map(str, size)), row["parts"], f"{row['sampled']:.0%}"]
        cells += [f"{row['gathered']:.1f} s", f"{row['fitted']:.1f} s", f"{row['peak'] / 2**30:.2f} GiB", goal]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(
        [
            *lines,
            "",
            f"The covariance of {sampled:.0%} of the tokens instead of all: the smallest principal cosine of the two "
            f"subspaces is {cosine:.3f} (at {' x '.join(map(str, COMPARED))}).",
            "",
            f"![CPU time by images, tokens and width]({FIGURE.name})",
        ]
    )


def draw(by_axis: dict[str, list[dict[str, Any]]]) -> None:
    from matplotlib.figure import Figure

    figure = Figure((9, 3), layout="constrained")
    panels = figure.subplots(1, len(by_axis), sharey=True)
    for number, (axes, (name, rows)) in enumerate(zip(panels, by_axis.items(), strict=True)):
        sizes = [row["size"][number] for row in rows]
        axes.plot(sizes, [row["gathered"] + row["fitted"] for row in rows], "o-")
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.set(xlabel=name, ylabel="CPU seconds" if number == 0 else "")
    panels[0].set_ylim(bottom=0)
    figure.savefig(FIGURE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="FOCUS on a 7B, too")
    full = parser.parse_args().full
    sizes = dict.fromkeys([size for along in GROWTH.values() for size in along] + [FULL] * full)
    rows = {size: in_a_process(*size) for size in sizes}
    draw({name: [rows[size] for size in along] for name, along in GROWTH.items()})
    text = section(list(rows.values()), *cosines())
    PAGE.write_text(with_section(PAGE.read_text(encoding="utf-8"), PACE_SIZE, text), encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
