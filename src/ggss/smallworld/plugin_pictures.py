"""Entry point: the painted town, and the one that varies hair, by name wherever a manifest can be given."""

from ggss.data.counterfactuals import PICTURE_SETS
from ggss.smallworld import NAME
from ggss.smallworld.town import hair_town, town

PICTURE_SETS.add(NAME, town)
PICTURE_SETS.add(f"{NAME}-hair", hair_town)
