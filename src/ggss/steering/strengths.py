"""Strengths: what an alpha may be, and the strength of each row."""

import torch
from torch import Tensor

from ggss import ranges
from ggss.errors import InputError

Alpha = float | Tensor


def checked_alpha(alpha: Alpha, allow_amplify: bool) -> None:
    """InputError if alpha is NaN or very large, or if it is negative and `allow_amplify` is not set."""
    values = alpha.flatten().tolist() if isinstance(alpha, Tensor) else [float(alpha)]
    for value in values:
        ranges.ALPHA.check("alpha", value, "the paper uses 0.25 to 1.5")
    if min(values, default=0.0) < 0 and not allow_amplify:
        raise InputError(
            f"alpha {min(values)} would amplify the bias: if that is what you study, `ggss ask` has --allow-amplify, "
            "and Python allow_amplify=True"
        )


def checked_recommendation(alpha: float) -> float:
    """A strength that a steerer may recommend; InputError if it is not above 0, or very large."""
    if not 0 < alpha <= ranges.ALPHA.most:
        raise InputError(
            f"a recommended alpha must be a finite number above 0, at most {ranges.ALPHA.most:g}, seen {alpha}"
        )
    return float(alpha)


def row_strengths(alpha: Alpha, rows: Tensor, images: Tensor | None, allow_amplify: bool) -> Tensor:
    """The strength of each of the rows [N, D], as [N, 1] float32 on their device.

    alpha: a number, or one for each image; then images [N] says which image each row belongs to.
    """
    checked_alpha(alpha, allow_amplify)
    if rows.ndim != 2:
        raise InputError(f"rows must be [N, D], seen shape {tuple(rows.shape)}")
    if images is not None and images.shape != rows.shape[:1]:
        raise InputError(f"images must name one image per row, seen {tuple(images.shape)} for {rows.shape[0]} rows")
    if not isinstance(alpha, Tensor) or alpha.ndim == 0:
        return torch.full((rows.shape[0], 1), float(alpha), device=rows.device)
    if images is None:
        raise InputError("one alpha per image needs `images`, which says which image each row is of")
    if images.numel() and int(images.max()) >= len(alpha):
        raise InputError(f"{len(alpha)} alphas were given for {int(images.max()) + 1} images")
    return alpha.to(rows.device, torch.float32)[images.to(rows.device)].unsqueeze(1)
