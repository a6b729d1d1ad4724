"""What each method costs: steering against a memcpy of the same rows, and fitting 400 images of width 4096.

One thread, float32. Steered are rows of 2880 x 4096, the tokens of one LLaVA-NeXT image. A method that reads all
tokens of all images when it fits, or when it steers as `bend-token` does, is measured on 100 images of 64 tokens,
read from disk, and its lines say so. Fits run once, so their times are those of the processor, which do not depend on
what else the machine does. Not measured: PACE's ablations, which do the same work as PACE, and `auto`, which fits
several of the others on parts of the pictures.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import ggss
from experiments.bench.bend import stored
from experiments.bench.timing import alternate, row
from ggss.activations import SITE, Rows
from ggss.methods import registry
from ggss.methods.pace_kernel import CENTRES, READ, WRITTEN, KernelContrast
from ggss_rivals.bend_token import BendToken

WIDTH, TOKENS, IMAGES = 4096, 2880, 400
FEW_TOKENS, FEW_IMAGES = 64, 100  # where all tokens of all images are read
VALUES = ("amber", "coral", "indigo", "jade", "pearl")
MOST = 30
ABLATIONS = [name for name in registry.names() if name.startswith("pace-") and name != "pace-kernel"]
MEASURED = [name for name in registry.fitted_names() if name not in (*ABLATIONS, "auto")]


def run() -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    steering: list[dict[str, Any]] = []
    fitting: list[tuple[str, float, bool]] = []
    reference = 0.0
    with tempfile.TemporaryDirectory() as folder:
        pooled, with_tokens = activations(), activations(Path(folder) / "tokens")
        for name in MEASURED:
            needs_tokens = registry.get(name).needs_tokens
            seconds, steerer = timed_fit(name, with_tokens if needs_tokens else pooled)
            reference = seconds if name == "ggss" else reference
            steering.append(steer_row(name, kernel_steerer() if name == "pace-kernel" else steerer))
            fitting.append((name, seconds, needs_tokens))
    return [*steering, *(fit_row(*fitted, reference) for fitted in fitting)]


def activations(folder: Path | None = None) -> ggss.Activations:
    """Images of five values whose pooled rows differ by person and value; with tokens around them in a folder."""
    generator = torch.Generator().manual_seed(0)
    shifts = torch.randn(len(VALUES), WIDTH, generator=generator) * 0.3
    images = IMAGES if folder is None else FEW_IMAGES
    people = torch.randn(images // len(VALUES), WIDTH, generator=generator)
    base = 5 * torch.randn(WIDTH, generator=generator)
    means = (base + people[:, None] + shifts).reshape(-1, WIDTH)
    means = means + 0.05 * torch.randn(means.shape, generator=generator)
    if folder is None:
        rows = Rows(means)
    else:
        rows = stored((mean + torch.randn(FEW_TOKENS, WIDTH, generator=generator) for mean in means), folder)
    jobs = ("cook", "nurse")  # a column to keep, for methods that keep one
    attributes = [{"race": value, "occupation": jobs[n % 2]} for n in range(len(people)) for value in VALUES]
    return ggss.Activations.from_rows({SITE: rows}, attributes, [i // len(VALUES) for i in range(images)])


def timed_fit(name: str, source: ggss.Activations) -> tuple[float, ggss.Steerer]:
    start = time.process_time()
    steerer = ggss.fit(name, source, attribute="race")
    return time.process_time() - start, steerer


def kernel_steerer() -> ggss.Steerer:
    """`pace-kernel` of the largest size, with random numbers: fitted to tokens that tell nothing it is PACE."""
    generator = torch.Generator().manual_seed(0)

    def frame(count: int) -> torch.Tensor:
        return torch.linalg.qr(torch.randn(WIDTH, count, generator=generator))[0].contiguous()

    detection = frame(len(VALUES) - 1)
    centres, weights = (torch.randn(CENTRES, count, generator=generator) for count in (READ, WRITTEN))
    operator = KernelContrast(
        torch.zeros(WIDTH), detection, detection, frame(READ), centres, weights, frame(WRITTEN), bandwidth=READ**0.5
    )
    return ggss.Steerer("pace-kernel", "race", (), {SITE: operator})


def steer_row(name: str, steerer: ggss.Steerer) -> dict[str, Any]:
    operator = steerer.operators[SITE]
    reads = isinstance(operator, BendToken)
    rows = torch.randn(FEW_TOKENS if reads else TOKENS, WIDTH, generator=torch.Generator().manual_seed(1)) + 1
    place = torch.empty_like(rows)

    def steer() -> None:
        operator.__dict__.pop("_cache", None)  # as if the image had not been seen before
        steerer.steer(rows, out=place)

    cost, memcpy = alternate(steer, lambda: place.copy_(rows), rounds=3 if reads else 7)
    per_token, copied = (f"{1e6 * seconds / len(rows):.2f} us" for seconds in (cost, memcpy))
    what = f"steer a token with {name}"
    if reads:
        what += f", {FEW_IMAGES} references of {FEW_TOKENS} tokens (grows with their number)"
        return row(
            what, per_token, f"memcpy, {copied}", cost / memcpy, "none: every reference is read twice an image"
        )
    return row(what, per_token, f"memcpy, {copied}", cost / memcpy, f"at most {MOST} memcpy", cost / memcpy <= MOST)


def fit_row(name: str, seconds: float, needs_tokens: bool, reference: float) -> dict[str, Any]:
    images = f"{FEW_IMAGES} images of {FEW_TOKENS} tokens" if needs_tokens else f"{IMAGES} images"
    what = f"fit {name}, {images}"
    return row(what, f"{seconds:.2f} s", f"fit ggss, {reference:.2f} s", seconds / reference, "")
