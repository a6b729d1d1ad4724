"""What methods are fitted on: the painted town of the small world, or a counterfactual set on disk."""

from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from ggss import methods
from ggss.activations import Activations, Rows, pool
from ggss.activations.collection import collect
from ggss.data.counterfactuals import Counterfactuals
from ggss.errors import problems
from ggss.study.plan import SMALL_WORLD, Plan

if TYPE_CHECKING:
    from ggss.probes.steered_model import Gallery

COLUMN = "occupation"


class Discovery:
    """The discovery pictures of a plan, by attribute: those of the occupations it discovers on."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.painted = plan.discovery == SMALL_WORLD
        # Kept from the first if any method needs them: nothing is encoded a second time for their sake.
        self.tokens = any(methods.get(method.name).needs_tokens for method in plan.methods)

    def check(self) -> None:
        """Refuse occupations that the set does not have, and a set that is not whole, before a model is loaded."""
        if self.painted:
            known = sorted({portrait.person.occupation for portrait in _town().values()})
            found = [
                f"{attribute} discovers on {name!r}, which is none of {', '.join(known)}"
                for attribute, steering in self.plan.steering.items()
                for name in steering.discover_on
                if name not in known
            ]
            if found:
                raise problems("discovery in the small world", found)
        else:
            for attribute in self.plan.steering:
                self._faces(attribute).validate(attribute)

    @property
    def data(self) -> str:
        """A hash of the pictures and their labels."""
        from ggss.study import identity

        if self.painted:
            return identity.of([[path, repr(portrait)] for path, portrait in _town().items()])
        return identity.of({attribute: self._faces(attribute).content_hash for attribute in self.plan.steering})

    def pictures(self, attribute: str | None = None) -> list[Any]:
        """The painted portraits, of one attribute or all; none where the set is on disk, with a cache of its own."""
        if not self.painted:
            return []
        wanted = self.plan.steering[attribute].discover_on if attribute else None
        return [portrait for portrait in _town().values() if wanted is None or portrait.person.occupation in wanted]

    def activations(self, gallery: "Gallery", attribute: str, sites: str) -> Activations:
        """What the model makes of an attribute's discovery pictures; the painted ones must hang already."""
        if not self.painted:
            return collect(gallery.vlm, self._faces(attribute), sites, keep_tokens=self.tokens, seed=self.plan.seed)
        portraits = self.pictures(attribute)
        rows = {}
        for site in gallery.vlm.sites(sites):
            of_each = [gallery.kept[portrait].rows[site].float() for portrait in portraits]
            rows[site] = Rows(torch.stack([pool(one) for one in of_each]), of_each if self.tokens else None)
        return Activations.from_rows(
            rows,
            [{"race": portrait.race, "gender": portrait.gender} for portrait in portraits],
            [(portrait.person.occupation, portrait.person.identity) for portrait in portraits],
            gallery.vlm.describe() | {"images": len(portraits), "data_hash": self.data},
        )

    def _faces(self, attribute: str) -> Counterfactuals:
        return _faces(self.plan.discovery, tuple(self.plan.steering), self.plan.steering[attribute].discover_on)


@cache
def _town() -> dict[str, Any]:
    from ggss.smallworld.sets import focus_set

    return focus_set()


@cache
def _faces(manifest: str, attributes: tuple[str, ...], occupations: tuple[str, ...]) -> Counterfactuals:
    return Counterfactuals.load(manifest, attributes=attributes, include={COLUMN: occupations})
