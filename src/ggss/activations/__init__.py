"""What a frozen model makes of a counterfactual set. `collection.collect` makes it from pictures."""

from ggss.activations.activations import SITE, Activations, Groups, Rows, pool

__all__ = ["SITE", "Activations", "Groups", "Rows", "pool"]
