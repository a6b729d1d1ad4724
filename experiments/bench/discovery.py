"""Does discovery's memory grow with the tokens of each image? Peak memory over few and over many images."""

import json
import tempfile
from pathlib import Path
from typing import Any

from experiments.bench.timing import in_own_process, peak_memory, row

SIDE, FEW, MANY = 512, 64, 192


def run() -> list[dict[str, Any]]:
    seen = {count: in_own_process(report, count) for count in (FEW, MANY)}
    grown = seen[MANY]["peak"] - seen[FEW]["peak"]
    tokens = (MANY - FEW) * seen[MANY]["tokens_per_image"]
    share = max(grown, 0) / tokens
    return [
        row(
            f"peak memory of discovery, {MANY} images against {FEW}",
            f"{grown / 2**20:.1f} MiB more",
            f"keeping their tokens, {tokens / 2**20:.0f} MiB",
            share,
            "does not grow with tokens x images",
            share < 0.1,
        )
    ]


def report(images: int) -> None:
    """Collect over noise images with a tiny random Pixtral: 1024 tokens of width 256 an image."""
    import numpy as np
    import torch
    from PIL import Image

    from experiments.training.architectures import build
    from ggss import Counterfactuals, collect
    from ggss.data.pictures import FilePicture
    from ggss.models import Vlm

    torch.set_num_threads(1)
    vlm = Vlm(*build("pixtral", ["a"], width=256, layers=1, image_size=SIDE), name="pixtral")
    with tempfile.TemporaryDirectory() as folder:
        pictures = []
        for i in range(images):
            path = Path(folder) / f"{i}.png"
            pixels = np.random.default_rng(i).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(path, compress_level=0)
            pictures.append(FilePicture(path, {"race": "ab"[i % 2]}, (("identity", str(i // 2)),)))
        collect(vlm, Counterfactuals(tuple(pictures)), cache=Path(folder) / "cache", batch_size=2)
        rows = vlm.encode([pictures[0].image()])[0].rows["projection-mlp2"]
    print(json.dumps({"peak": peak_memory(), "tokens_per_image": rows.nbytes}))
