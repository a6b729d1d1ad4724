"""What discovery found, for a report: the steerer, and its gate over each picture.

A study's store has the warnings of discovery and a summary of the gate, no steerers. `fitted_again` fits them as the
study did, from the same plan, seed and pictures; it needs the models.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ggss.data.picture import Picture
from ggss.errors import problems
from ggss.models.sites import MLP2 as SITE

if TYPE_CHECKING:
    from ggss.models.feature_cache import FeatureCache
    from ggss.models.features import Features
    from ggss.models.vlm import Vlm
    from ggss.steering.steerer import Steerer
    from ggss.study.plan import Plan


@dataclass(frozen=True)
class Discovered:
    """A steerer of an attribute. maps: by picture digest, the gate [rows, columns]; gate: of all those tokens."""

    attribute: str
    steerer: "Steerer"
    maps: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)

    @property
    def gate(self) -> np.ndarray:
        return np.concatenate([one.ravel() for one in self.maps.values()]) if self.maps else np.empty(0)


def discovered(attribute: str, steerer: "Steerer", cache: "FeatureCache", pictures: Iterable[Picture]) -> Discovered:
    """With the gate over each of some pictures, if the method has a gate and the model's tokens lie on a grid."""
    unique = list({picture.digest: picture for picture in pictures}.values())
    maps: dict[str, np.ndarray] = {}
    if cache.from_features and SITE in steerer.operators:
        for batch in cache.batches(unique):
            for picture, features in zip(batch, cache.features(batch), strict=True):
                if (found := gate_map(steerer, cache.vlm, features)) is not None:
                    maps[picture.digest] = found
    return Discovered(attribute, steerer, maps)


def fitted_again(
    plan: "Plan", model: str, label: str, identity: Mapping[str, str], pictures: Mapping[str, Sequence[Picture]]
) -> list[Discovered]:
    """A method's steerers on a model, by attribute of `pictures`, over which their gates are looked at.

    InputError if the model is not the one that the study asked, whose identity is given.
    """
    from ggss.study.recommendation import COMPARED
    from ggss.study.worker import Worker

    worker = Worker(plan)
    now = worker.open(model).parts
    changed = [part for part in COMPARED if identity and now.get(part, "") != identity.get(part, "")]
    if changed:
        raise problems(f"{model} is not the model that the study asked", [f"another {part}" for part in changed])
    found = []
    for attribute, shown in pictures.items():
        steerer, cache = worker.steerer(model, label, attribute)
        found.append(discovered(attribute, steerer, cache, shown))
    return found


def gate_map(steerer: "Steerer", vlm: "Vlm", features: "Features") -> np.ndarray | None:
    """The gate of each token where it lies in the picture [rows, columns]; None without a gate or a grid."""
    gate = steerer.gate(features.rows[SITE], site=SITE)
    if gate is None:
        return None
    values = gate.detach().float().cpu().numpy().ravel()
    shape = token_grid(vlm, features, len(values))
    return None if shape is None else values[: shape[0] * shape[1]].reshape(shape)


def token_grid(vlm: "Vlm", features: "Features", tokens: int) -> tuple[int, int] | None:
    """Rows and columns of a picture's tokens; of tiles, those of the overview, which come first. None if unknown."""
    inputs, vision = features.inputs, getattr(vlm.model.config, "vision_config", None)
    if "image_grid_thw" in inputs:
        frames, height, width = (int(n) for n in inputs["image_grid_thw"].flatten()[-3:])
        merge = round((frames * height * width / tokens) ** 0.5)
        shape = (height // merge, width // merge)
        return shape if frames == 1 and shape[0] * shape[1] == tokens else None
    patch = getattr(vision, "patch_size", 0)
    if not isinstance(patch, int) or not patch:
        return None
    side = getattr(vision, "image_size", 0) // patch
    if vlm.family.name == "Pixtral" and "image_sizes" in inputs:
        height, width = (int(n) // patch for n in inputs["image_sizes"].flatten()[-2:])
        return (height, width) if height * width == tokens else None
    return (side, side) if side and tokens % side**2 == 0 else None
