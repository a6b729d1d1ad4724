"""`tune`: the method `auto` by another name, for those who look for a verb."""

from ggss.activations import Activations
from ggss.methods.registry import Attribute
from ggss.steering.fitting import fit
from ggss.steering.steerer import Steerer

AUTO = "auto"


def tune(activations: Activations, attribute: Attribute, *, neutral: Activations | None = None) -> Steerer:
    """The steerer that hides an attribute at the smallest movement of tokens, chosen without asking the model.

    Args:
        activations: with tokens, at all sites that may be steered.
        attribute: the attribute to hide.
        neutral: tokens of pictures that show nobody, at the same sites; optional.

    Returns:
        A steerer of the method `auto`, fitted on all contexts. Alpha 1 is its recommended strength; its notes say
        what was compared at each site, and why this was chosen.

    Raises:
        InputError: with fewer than four contexts, or if no candidate can be fitted.

    Examples:
        >>> from ggss.steering.tuning import Candidate
        >>> own = ggss.tune(acts, "race", candidates=[Candidate("ggss"), Candidate("ggss", alpha=0.5)])
        >>> own.method, own.recommended_alpha
        ('ggss', 1.0)
    """
    return fit(AUTO, activations, attribute, neutral=neutral).recommending(1.0)
