"""Steerers: fitted, attached to a model, stored, shared, examined."""
