"""An image after the vision tower and projector: everything the text model will ever see of it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from ggss.errors import InputError
from ggss.models.families import MLP1, MLP2


@dataclass(frozen=True)
class Features:
    """One image as `Vlm.encode` keeps it; `Vlm.answer` and `Vlm.score` take it wherever they take an image."""

    rows: dict[str, Tensor]
    """Site name -> that site's rows [T, D] for this image, in the model's dtype."""
    inputs: dict[str, Tensor]
    """This image's row of what the text model needs beside the rows: its size or grid."""
    placeholder: str
    """What stands for the image in the prompt's text."""

    def steered(self, steerer: Any, alpha: float = 1.0) -> "Features":
        """The features with the rows of each of the steerer's sites steered; the original is left as it is."""
        sites: Sequence[str] = list(steerer.operators)
        if missing := [site for site in sites if site not in self.rows]:
            raise InputError(
                f"the steerer acts on {missing[0]!r} and these features have {', '.join(self.rows)}: "
                f"encode the images with sites={sites!r}"
            )
        if MLP1 in sites and MLP2 in sites:
            raise InputError(f"{MLP1!r} and {MLP2!r} cannot both be steered in encoded features: attach the steerer")
        # What is computed from steered rows is out of date.
        kept = {site: rows for site, rows in self.rows.items() if not (site == MLP2 and MLP1 in sites)}
        return replace(self, rows=kept | {s: steerer.steer(self.rows[s], alpha=alpha, site=s) for s in sites})
