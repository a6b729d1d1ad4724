"""Entry point: the embedded models, `small-world/NAME` wherever a model is named. Loads no library."""

from ggss import smallworld
from ggss.models.collections import COLLECTIONS

COLLECTIONS.add(smallworld.NAME, smallworld.folders)
