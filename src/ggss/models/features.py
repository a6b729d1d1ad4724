"""An image after the vision tower and projector: everything the text model will ever see of it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ggss.errors import InputError
from ggss.models.attachments import Attachment
from ggss.models.sites import MLP1, MLP2, in_text, in_tower


@dataclass(frozen=True)
class Features:
    """One image as `Vlm.encode` keeps it; `Vlm.answer` and `Vlm.score` take it wherever they take an image."""

    rows: dict[str, Tensor]
    """Site name -> that site's rows [T, D] for this image, in the model's dtype."""
    inputs: dict[str, Tensor]
    """What else the text model needs for this image: its size or grid."""
    placeholder: str
    """The text that represents the image in the prompt."""
    under: frozenset[Attachment] = frozenset()
    """The steerers that were attached before the text model when the image was encoded, and have changed the rows."""

    def steered(self, steerer: Any, alpha: float = 1.0) -> "Features":
        """The features with the rows of each of the steerer's sites steered; the original is not changed."""
        return steered([self], steerer, alpha)[0]


@dataclass(frozen=True)
class GatedFeatures:
    """Steered features, and of each site that was steered the gate [T], None for a method without a gate."""

    features: Features
    gates: dict[str, Tensor | None]


def steered(features: Sequence[Features], steerer: Any, alpha: float = 1.0) -> list[Features]:
    """Many images steered together, which is much faster than one after the other. The originals are not changed."""
    return [one.features for one in steered_with_gates(features, steerer, alpha)]


def steered_with_gates(
    features: Sequence[Features], steerer: Any, alpha: float | Tensor, allow_amplify: bool = False
) -> list[GatedFeatures]:
    """The same with the gates. alpha: a number, or one for each image."""
    sites: Sequence[str] = list(steerer.operators)
    for one in features:
        if inner := [site for site in sites if in_text(site) or in_tower(site)]:
            raise InputError(
                f"the steerer acts on {inner[0]!r}, and encoded features are what the projector gives out: attach "
                "the steerer to the model and pass the images"
            )
        if missing := [site for site in sites if site not in one.rows]:
            raise InputError(
                f"the steerer acts on {missing[0]!r} and these features have {', '.join(one.rows)}: "
                f"encode the images with sites={sites!r}"
            )
    if MLP1 in sites and MLP2 in sites:
        raise InputError(f"{MLP1!r} and {MLP2!r} cannot both be steered in encoded features: attach the steerer")
    changed: list[dict[str, Tensor]] = [{} for _ in features]
    gates: list[dict[str, Tensor | None]] = [{} for _ in features]
    if len(features) == 1 and isinstance(alpha, Tensor):
        alpha = float(alpha)
    for site in sites:
        counts = [len(one.rows[site]) for one in features]
        rows = torch.cat([one.rows[site] for one in features])
        owners = _owners(counts, rows.device)
        done = steerer.apply(rows, **owners, alpha=alpha, site=site, allow_amplify=allow_amplify)
        for own, part in zip(changed, done.rows.split(counts), strict=True):
            own[site] = part
        own_gates = [None] * len(counts) if done.gate is None else done.gate.split(counts)
        for own, part in zip(gates, own_gates, strict=True):
            own[site] = part
    # Rows that were computed from rows before steering are out of date.
    stale = {MLP2} if MLP1 in sites else set()
    return [
        GatedFeatures(
            replace(one, rows={site: rows for site, rows in one.rows.items() if site not in stale} | own), gate
        )
        for one, own, gate in zip(features, changed, gates, strict=True)
    ]


def _owners(counts: Sequence[int], device: torch.device) -> dict[str, Tensor]:
    """The image of each row; not needed, and empty, for a single image."""
    if len(counts) == 1:
        return {}
    return {"images": torch.arange(len(counts)).repeat_interleave(torch.tensor(counts)).to(device)}
