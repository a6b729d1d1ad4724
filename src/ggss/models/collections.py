"""Models that come with an installed package. They can be used by their name, `COLLECTION/NAME`."""

from collections.abc import Callable
from pathlib import Path

from ggss.plugins import Registry

COLLECTIONS: Registry[Callable[[], dict[str, Path]]] = Registry("collection of models", "ggss.models")
"""By the name before the slash, a function that gives the folder of each of its models by name."""
