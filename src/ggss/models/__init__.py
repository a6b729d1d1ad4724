"""What ggss knows of vision-language models: families, sites, processors, and the `Vlm` that answers questions."""

from ggss.models.discovery import family_of, find_site
from ggss.models.families import MLP1, MLP2, Family, register
from ggss.models.features import Features
from ggss.models.loading import load_vlm
from ggss.models.projector import fingerprint, resolve
from ggss.models.reading import Reading
from ggss.models.vlm import Vlm

__all__ = [
    "MLP1",
    "MLP2",
    "Family",
    "Features",
    "Reading",
    "Vlm",
    "family_of",
    "find_site",
    "fingerprint",
    "load_vlm",
    "register",
    "resolve",
]
