"""What each method costs: steering against a memcpy of the same rows, and fitting 400 images of width 4096.

One thread, float32 rows of 2880 x 4096: the tokens of one LLaVA-NeXT image. Methods that read all tokens of all
images when they fit, and the references of `bend`, would need 19 GB of data: they are measured on a part of it, and
the line says on what part and how the cost grows. Fits run once, so their times are those of the processor, which do
not depend on what else the machine does.
"""

import time
from typing import Any

import torch

import ggss
from bench.timing import alternate, row
from ggss.activations import SITE, Rows
from ggss.methods import registry, svd
from ggss.methods.bend import Bend

WIDTH, TOKENS, IMAGES = 4096, 2880, 400
PART_IMAGES, PART_TOKENS = 50, 64
VALUES = ("amber", "coral", "indigo", "jade", "pearl")
MOST = 30


def run() -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    pooled, part = activations(IMAGES), activations(PART_IMAGES, PART_TOKENS)
    steering, fitting, reference = [], [], 0.0
    for name in registry.names():
        needs_tokens = registry.get(name).needs_tokens
        seconds, steerer = timed_fit(name, part if needs_tokens else pooled)
        reference = seconds if name == "ggss" else reference
        steering.append(steer_row(name, steerer))
        fitting.append((name, seconds, needs_tokens))
    return [*steering, *(fit_row(*fitted, reference) for fitted in fitting)]


def activations(images: int, tokens: int = 0) -> ggss.Activations:
    """Images of five values whose pooled rows differ by person and value; with tokens around them if asked for."""
    generator = torch.Generator().manual_seed(0)
    shifts = torch.randn(len(VALUES), WIDTH, generator=generator) * 0.3
    people = torch.randn(images // len(VALUES), WIDTH, generator=generator)
    base = 5 * torch.randn(WIDTH, generator=generator)
    pooled = (base + people[:, None] + shifts).reshape(-1, WIDTH)
    pooled = pooled + 0.05 * torch.randn(pooled.shape, generator=generator)
    attributes = [{"race": value} for _ in people for value in VALUES]
    contexts = [i // len(VALUES) for i in range(images)]
    if tokens:
        rows = [mean + torch.randn(tokens, WIDTH, generator=generator) for mean in pooled]
        return ggss.Activations(rows, attributes, contexts)
    return ggss.Activations.from_rows({SITE: Rows(pooled)}, attributes, contexts)


def timed_fit(name: str, source: ggss.Activations) -> tuple[float, ggss.Steerer]:
    start = time.process_time()
    steerer = ggss.fit(name, source, attribute="race")
    return time.process_time() - start, steerer


def steer_row(name: str, steerer: ggss.Steerer) -> dict[str, Any]:
    operator = steerer.operators[SITE]
    reads = isinstance(operator, Bend)
    rows = torch.randn(PART_TOKENS if reads else TOKENS, WIDTH, generator=torch.Generator().manual_seed(1)) + 1
    place = torch.empty_like(rows)

    def steer() -> None:
        operator.__dict__.pop("_kept", None)  # as if the image had not been seen before
        steerer.steer(rows, out=place)

    cost, memcpy = alternate(steer, lambda: place.copy_(rows), rounds=3 if reads else 7)
    per_token, copied = (f"{1e6 * seconds / len(rows):.2f} us" for seconds in (cost, memcpy))
    what = f"steer a token with {name}"
    if reads:
        what += f", {PART_IMAGES} references (grows with them)"
        return row(
            what, per_token, f"memcpy, {copied}", cost / memcpy, "none: every reference is read twice an image"
        )
    return row(what, per_token, f"memcpy, {copied}", cost / memcpy, f"at most {MOST} memcpy", cost / memcpy <= MOST)


def fit_row(name: str, seconds: float, needs_tokens: bool, reference: float) -> dict[str, Any]:
    what = f"fit {name}, {IMAGES} images"
    if name.startswith("svd-token"):
        # Shifts and their Gram matrix grow with the tokens; the eigenvectors are found once.
        solving = eigenvectors()
        seconds = max(seconds - solving, 0) * (IMAGES * 2048) / (PART_IMAGES * PART_TOKENS) + solving
        what += f" of 2048 tokens (from {PART_IMAGES} of {PART_TOKENS})"
    elif needs_tokens:
        what = f"fit {name}, {PART_IMAGES} images of {PART_TOKENS} tokens"
    return row(what, f"{seconds:.2f} s", f"fit ggss, {reference:.2f} s", seconds / reference, "")


def eigenvectors() -> float:
    """Seconds to find the eigenvectors of a Gram matrix of this width."""
    pooled = activations(IMAGES).pooled.double()
    gram = pooled.T @ pooled
    start = time.process_time()
    svd.top_eigenvectors(gram, len(VALUES) - 1)
    return time.process_time() - start
