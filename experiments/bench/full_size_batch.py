"""One batch of a probe on a large model: how long it takes, and how much of that is steering (see `full_size`)."""

import json
import sys
import time
from pathlib import Path

import torch

from ggss.data.counterfactuals import Counterfactuals
from ggss.models import MLP2, load_vlm
from ggss.models.features import steered
from ggss.steering.steerer import Steerer

TIMES = 5


def main(model: str, steerer_folder: str, manifest: str, count: str) -> None:
    asked = int(count)
    vlm = load_vlm(model, dtype="bfloat16")
    steerer = Steerer.from_pretrained(steerer_folder)
    images = [picture.image() for picture in Counterfactuals.load(Path(manifest)).pictures[:asked]]
    start = time.process_time()
    features = vlm.encode(images)
    encoding = time.process_time() - start
    questions, options = ["the person in this picture ? A B C D"] * asked, [list("ABCD")] * asked
    unsteered = vlm.logits(questions, [[one] for one in features])
    untouched = vlm.logits(questions, [[one] for one in steered(features, steerer, 0.0)])
    apart = float((unsteered - untouched).abs().max())
    moved = steered(features, steerer, 1.0)  # the first call of anything is slow
    start = time.process_time()
    for _ in range(TIMES):
        moved = steered(features, steerer, 1.0)
    steering = (time.process_time() - start) / TIMES
    start = time.process_time()
    vlm.read(questions, [[one] for one in moved], options, 1, asked)
    seconds = time.process_time() - start + steering
    print(
        json.dumps(
            {
                "questions": asked,
                "tokens": len(features[0].rows[MLP2]),
                "parameters": sum(parameter.numel() for parameter in vlm.model.parameters()),
                "encoding": encoding,
                "steering": steering,
                "seconds": seconds,
                "identical": "that are bit-identical" if apart == 0 else f"that differ by {apart:.1e}",
                "threads": torch.get_num_threads(),
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
