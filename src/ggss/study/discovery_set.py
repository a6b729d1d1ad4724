"""The pictures that a plan's methods are fitted on, by attribute: those of its discovery occupations."""

from functools import cache

from ggss import methods
from ggss.data import validation
from ggss.data.counterfactuals import Counterfactuals
from ggss.data.picture import Picture, labels
from ggss.errors import InputError, no_such
from ggss.study.plan import Plan

COLUMN = "occupation"


class DiscoverySet:
    """A plan's counterfactual set."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        # Kept from the start if any method needs them, so that no picture is encoded twice.
        self.tokens = any(methods.get(method.name).needs_tokens for method in plan.methods)

    def problems(self) -> list[str]:
        """Attributes and occupations that the set does not have, and pictures that are missing or incomplete."""
        try:
            whole = _whole(self.plan.discovery)
        except InputError as error:
            return [f"discovery: {error}"]
        there = sorted({labels(picture).get(COLUMN, "") for picture in whole})
        if there == [""]:
            return [f"discovery: {self.plan.discovery!r} has no column {COLUMN!r}: add it"]
        found = []
        for attribute, steering in self.plan.steering.items():
            unknown = [name for name in steering.discover_on if name not in there]
            missing = f"no discovery picture has that {COLUMN}"
            found += [
                str(no_such(f"steering: {attribute} is discovered on {name!r}, and {missing}", name, there))
                for name in unknown
            ]
            if attribute not in whole.attributes:
                missing = f"steering: no attribute {attribute!r} varies in the discovery pictures"
                found.append(str(no_such(missing, attribute, whole.attributes)))
            elif not unknown:
                lines = validation.problems_of(self.of(attribute), (attribute,), decode=False)
                found += [f"discovery: {line}" for line in lines]
        return list(dict.fromkeys(found))

    def pictures(self) -> list[Picture]:
        """Every discovery picture, once."""
        found = (picture for attribute in self.plan.steering for picture in self.of(attribute))
        return list({picture.digest: picture for picture in found}.values())

    def of(self, attribute: str) -> Counterfactuals:
        """The discovery pictures of an attribute."""
        return _loaded(self.plan.discovery, tuple(self.plan.steering[attribute].discover_on))


@cache
def _whole(source: str) -> Counterfactuals:
    return Counterfactuals.load(source)


@cache
def _loaded(source: str, occupations: tuple[str, ...]) -> Counterfactuals:
    return _whole(source).chosen(include={COLUMN: occupations})
