"""What ggss knows about vision-language models: families, sites, processors, and the `Vlm` that answers questions.

The names below are imported when they are first used: transformers takes seconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ggss.models.sites import MLP1, MLP2

if TYPE_CHECKING:
    from ggss.models.families import Family, register
    from ggss.models.features import Features
    from ggss.models.identity import ModelIdentity, fingerprint
    from ggss.models.loading import load_vlm
    from ggss.models.projector import resolve
    from ggss.models.reading import Reading
    from ggss.models.site_search import family_of, find_site
    from ggss.models.vlm import Vlm

_HOME = {
    "Family": "families",
    "Features": "features",
    "ModelIdentity": "identity",
    "Reading": "reading",
    "Vlm": "vlm",
    "family_of": "site_search",
    "find_site": "site_search",
    "fingerprint": "identity",
    "load_vlm": "loading",
    "register": "families",
    "resolve": "projector",
}

__all__ = [
    "MLP1",
    "MLP2",
    "Family",
    "Features",
    "ModelIdentity",
    "Reading",
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
