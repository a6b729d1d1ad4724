"""The pictures that a plan's methods are fitted on, by attribute: those of its discovery occupations."""

from functools import cache

from ggss import methods
from ggss.data.counterfactuals import Counterfactuals
from ggss.data.picture import Picture
from ggss.study.plan import Plan

COLUMN = "occupation"


class DiscoverySet:
    """A plan's counterfactual set."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        # Kept from the start if any method needs them, so that no picture is encoded twice.
        self.tokens = any(methods.get(method.name).needs_tokens for method in plan.methods)

    def check(self) -> None:
        """Refuse occupations that the set does not have, and an incomplete set, before a model is loaded."""
        for attribute in self.plan.steering:
            self.of(attribute).validate(attribute, decode=False)

    def pictures(self) -> list[Picture]:
        """Every discovery picture, once."""
        found = (picture for attribute in self.plan.steering for picture in self.of(attribute))
        return list({picture.digest: picture for picture in found}.values())

    def of(self, attribute: str) -> Counterfactuals:
        """The discovery pictures of an attribute."""
        return _loaded(self.plan.discovery, tuple(self.plan.steering[attribute].discover_on))


@cache
def _loaded(source: str, occupations: tuple[str, ...]) -> Counterfactuals:
    return Counterfactuals.load(source, include={COLUMN: occupations})
