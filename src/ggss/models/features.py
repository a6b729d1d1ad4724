"""An image after the vision tower and projector: everything the text model will ever see of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
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


Shown = Image.Image | Features
"""What a question can be asked about: an image, or the encoded features of one."""


@dataclass(frozen=True)
class SteeredTogether:
    """Images that were steered together: their features, and for each site that was steered what was done there."""

    features: list[Features]
    counts: dict[str, list[int]]
    """Site -> the rows of each image."""
    gates: dict[str, Tensor | None]
    """Site -> the gates of all rows, image after image; None for a method without a gate."""


def steered(features: Sequence[Features], steerer: Any, alpha: float = 1.0) -> list[Features]:
    """Many images steered together, which is much faster than one after the other. The originals are not changed."""
    return steered_with_gates(features, steerer, alpha).features


def steered_with_gates(
    features: Sequence[Features],
    steerer: Any,
    alpha: float | Sequence[float],
    allow_amplify: bool = False,
    copied: bool = False,
) -> SteeredTogether:
    """The same with the gates. alpha: a number, or one for each image.

    copied: an image does not keep the rows of all that were steered with it in memory.
    """
    sites: Sequence[str] = list(steerer.operators)
    _check_sites(features, sites)
    if not isinstance(alpha, int | float) and len(set(alpha)) == 1:
        alpha = alpha[0]  # one number for all rows takes less work than one for each
    changed: dict[str, Sequence[Tensor]] = {}
    counts: dict[str, list[int]] = {}
    gates: dict[str, Tensor | None] = {}
    for site in sites if features else ():
        parts = [one.rows[site] for one in features]
        counts[site] = [part.shape[0] for part in parts]
        rows = torch.cat(parts)
        apart = not isinstance(alpha, int | float)
        owners = _owners(counts[site], rows.device) if apart or steerer.operators[site].needs_images else None
        strength = torch.tensor(alpha) if apart else alpha
        done = steerer.apply(rows, owners, strength, site=site, allow_amplify=allow_amplify)
        own = done.rows.split(counts[site])
        changed[site], gates[site] = [part.clone() for part in own] if copied else own, done.gate
    # Rows that were computed from rows before steering are out of date.
    stale = {MLP2} if MLP1 in sites else set()
    kept = [
        Features(
            {site: rows for site, rows in one.rows.items() if site not in stale}
            | {site: parts[number] for site, parts in changed.items()},
            one.inputs,
            one.placeholder,
            one.under,
        )
        for number, one in enumerate(features)
    ]
    return SteeredTogether(kept, counts, gates)


def _check_sites(features: Sequence[Features], sites: Sequence[str]) -> None:
    """InputError unless the features can be steered at these sites."""
    if features and (inner := [site for site in sites if in_text(site) or in_tower(site)]):
        raise InputError(
            f"the steerer acts on {inner[0]!r}, and encoded features are what the projector gives out: attach "
            "the steerer to the model and pass the images"
        )
    for one in features:
        if missing := [site for site in sites if site not in one.rows]:
            raise InputError(
                f"the steerer acts on {missing[0]!r} and these features have {', '.join(one.rows)}: "
                f"encode the images with sites={sites!r}"
            )
    if MLP1 in sites and MLP2 in sites:
        raise InputError(f"{MLP1!r} and {MLP2!r} cannot both be steered in encoded features: attach the steerer")


def _owners(counts: Sequence[int], device: torch.device) -> Tensor | None:
    """The image of each row; not needed for a single image."""
    if len(counts) == 1:
        return None
    return torch.arange(len(counts)).repeat_interleave(torch.tensor(counts)).to(device)
