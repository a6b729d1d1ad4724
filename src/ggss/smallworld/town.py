"""The painted town as counterfactual sets: people with every race and gender, and a set that varies hair too.

Both are registered as picture sets and can be named wherever a manifest can: `small-world`, `small-world-hair`.
"""

from ggss import ranges
from ggss.data.counterfactuals import Counterfactuals
from ggss.smallworld.painter import variants
from ggss.smallworld.people import people

IDENTITIES = 8
HAIR_IDENTITIES = 2
HAIR_OCCUPATIONS = ("ceo", "cook", "doctor", "nurse", "teacher")
HAIR_VALUES = ("black", "red", "yellow")


def town(seed: int = 0) -> Counterfactuals:
    """480 portraits of the discovery identities: 6 occupations x 8 identities x 5 races x 2 genders."""
    ranges.SEED.check("the seed of a town", seed)
    crowd = people("discovery", IDENTITIES, seed=seed)
    return Counterfactuals(tuple(portrait for person in crowd for portrait in variants(person)))


def hair_town() -> Counterfactuals:
    """300 portraits with a third attribute: 5 occupations x 2 identities x 5 races x 2 genders x 3 hair colours."""
    crowd = people("discovery", HAIR_IDENTITIES, HAIR_OCCUPATIONS)
    return Counterfactuals(tuple(portrait for person in crowd for portrait in variants(person, HAIR_VALUES)))
