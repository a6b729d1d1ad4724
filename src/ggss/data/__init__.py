"""Pictures, tables of them, and counterfactual sets."""
