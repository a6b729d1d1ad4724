"""`python -m experiments.real_parts.tower DATA`: what the frozen tower tells of gender and race.

Before any projector: it can pass on only what the tower's rows hold. A linear probe reads each attribute from the
mean and the largest value of every feature over a picture's rows, in scenes that it was not fitted on. Some sizes of
pictures are tried: the larger, the more rows. Writes results/real-parts/tower.json, and the page anew; takes
minutes.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from experiments.real_parts import page, parts, record
from experiments.real_parts.__main__ import base_model, load
from experiments.real_parts.evaluation import ATTRIBUTES
from experiments.real_parts.scenes import Picture, read_pictures
from ggss.stats import jackknife, mean

SIDES = (parts.SIDE, 224, 336)
FOLDS, PENALTY = 10, 1e-2  # of the probe; the penalty is scikit-learn's C


def probed(rows: Tensor, pictures: Sequence[Picture]) -> dict[str, list[float]]:
    """By attribute: the share of pictures [N, T, D] that a probe of other scenes reads, with its interval."""
    features = torch.cat([rows.mean(1), rows.amax(1)], 1).numpy()
    scenes = np.array([picture.scene.name for picture in pictures])
    found = {}
    for attribute in ATTRIBUTES:
        labels = np.array([getattr(picture, attribute) for picture in pictures])
        probe = make_pipeline(StandardScaler(), LogisticRegression(C=PENALTY, max_iter=3000))
        read = np.asarray(cross_val_predict(probe, features, labels, groups=scenes, cv=GroupKFold(FOLDS)))
        share = jackknife(mean(np.equal(read, labels), bounds=(0.0, 1.0)), scenes)
        found[attribute] = [round(number, record.DIGITS) for number in (share.estimate, share.low, share.high)]
    return found


def measure(base: Path, pictures: Sequence[Picture], sides: Sequence[int] = SIDES) -> dict[str, Any]:
    """By the side of pictures in pixels, what a probe of the tower's rows reads."""
    model, processor = load(base, torch.float32)
    found = {}
    for side in sides:
        processor.image_processor.size = {"height": side, "width": side}
        rows = parts.tower_rows(model, processor, [picture.path for picture in pictures]).float()
        found[str(side)] = {"rows": rows.shape[1], **probed(rows, pictures)}
    return found


def main() -> None:
    data = Path(sys.argv[1])
    record.write_tower(measure(base_model(data, data / "made"), read_pictures(data / "pairs")))
    page.write()


if __name__ == "__main__":
    main()
