"""The names of sites that every family may have.

`projection-mlp1` and `projection-mlp2` are the outputs of the vision-to-language projector's two Linears. Inside the
vision tower and the text model there is one for each block and layer, counted from 0: `vision-block3`, `lm-layer2`.
"""

MLP1, MLP2 = "projection-mlp1", "projection-mlp2"
VISION_BLOCK, LM_LAYER = "vision-block", "lm-layer"


def number_of(site: str, kind: str) -> int | None:
    """3 for `vision-block3` if that is the kind; None for another site."""
    rest = site.removeprefix(kind)
    return int(rest) if rest != site and rest.isascii() and rest.isdecimal() and str(int(rest)) == rest else None


def in_text(site: str) -> bool:
    """Whether a site is inside the text model: only the rows of image tokens are steered there."""
    return number_of(site, LM_LAYER) is not None


def in_tower(site: str) -> bool:
    """Whether a site is inside the vision tower: encoded features were computed from it, and do not have it."""
    return number_of(site, VISION_BLOCK) is not None
