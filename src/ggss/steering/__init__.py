"""Steerers: fit, attach to a model, save, share; and examine a model."""
