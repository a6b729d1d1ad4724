"""A frozen model's activations on a counterfactual set. `collection.collect` computes them from pictures."""

from ggss.activations.activations import SITE, Activations, Groups, Rows, pool

__all__ = ["SITE", "Activations", "Groups", "Rows", "pool"]
