"""From activations to a steerer, by the name of a method."""

from typing import Any

from ggss.activations import Activations
from ggss.methods.registry import Attribute, checked_options, get
from ggss.steering.steerer import Steerer


def fit(name: str, activations: Activations, attribute: Attribute, **options: Any) -> Steerer:
    """Fit a method to activations, at every site they hold, and return its steerer.

    attribute: a column of the activations' attributes, or a tuple of several for their intersections.
    options: the method's own; the defaults are the paper's.
    """
    method = get(name)
    checked = checked_options(method, options)
    if isinstance(attribute, list):
        attribute = tuple(attribute)
    values = activations.groups(attribute).values
    if method.needs_tokens:
        _ = activations.tokens  # raises when there are none
    fitted = {site: method.fit(activations.at(site), attribute, checked) for site in activations.sites}
    return Steerer(
        method=name,
        options=checked.model_dump(),
        attribute=attribute,
        values=values,
        operators={site: found.operator for site, found in fitted.items()},
        source=dict(activations.source),
        statistics={site: dict(found.statistics) for site, found in fitted.items()},
        diagnostics={site: dict(found.diagnostics) for site, found in fitted.items()},
        prompt_suffix=method.prompt_suffix,
    )
