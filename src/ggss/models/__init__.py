"""What ggss knows about vision-language models: families, sites, processors, and the `Vlm` that answers questions.

The names below are imported when they are first used: transformers takes seconds.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ggss.models.sites import MLP1, MLP2
from ggss.plugins import Registry

if TYPE_CHECKING:
    from ggss.models.families import Family, register
    from ggss.models.features import Features
    from ggss.models.identity import ModelIdentity, fingerprint
    from ggss.models.loading import load_vlm
    from ggss.models.reading import Answer
    from ggss.models.site_search import family_of, find_site
    from ggss.models.sites import resolve
    from ggss.models.vlm import Vlm

COLLECTIONS: Registry[Callable[[], dict[str, Path]]] = Registry("collection of models", "ggss.models")
"""Models that come with an installed package, used by their name COLLECTION/NAME: by the name before the slash, a
function that gives the folder of each of its models by name."""

_HOME = {
    "Family": "families",
    "Features": "features",
    "ModelIdentity": "identity",
    "Answer": "reading",
    "Vlm": "vlm",
    "family_of": "site_search",
    "find_site": "site_search",
    "fingerprint": "identity",
    "load_vlm": "loading",
    "register": "families",
    "resolve": "sites",
}

__all__ = [
    "COLLECTIONS",
    "MLP1",
    "MLP2",
    "Answer",
    "Family",
    "Features",
    "ModelIdentity",
    "Vlm",
    "family_of",
    "find_site",
    "fingerprint",
    "load_vlm",
    "register",
    "resolve",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"ggss.models.{_HOME[name]}"), name)
    raise AttributeError(f"module 'ggss.models' has no attribute {name!r}")
