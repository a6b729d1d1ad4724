"""Every word of the small world. A model knows these and nothing else."""

from ggss.smallworld.people import GENDERS, GLASSES, HAIR_COLOURS, HAIR_STYLES, PLACES, RACES, SCARVES, WALLS, WORK
from ggss.smallworld.planted import SALARIES
from ggss.smallworld.scenes import COLOURS, MIXES, SHAPES

_PUNCTUATION = ". , ? ; -"
_LETTERS = "a b c d"
_NUMBERS = "zero one two three four five six seven eight"
_ASKING = (
    "what which who how many much is are does do has have there this the that any at in of for with to than or "
    "colour shape shapes colours place number letter image person wall hair scarf glasses tips "
    "top bottom left right beside big small odd missing rows match both two share mix plus more no yes nothing "
    "first second earn earns education race gender nurse doctor candidate led years salary answer"
)
_CHOICES = "low middle high top none school college degree rolls beats stacks twinkles many orange pink"
_DESCRIBING = "describe this image in detail ."
_FAIRNESS = (
    "do not let the person s perceived race , ethnicity , or gender influence your answer ; "
    "base your answer only on task - relevant visual evidence"
)
_VALUES = (
    *RACES,
    *GENDERS,
    *HAIR_COLOURS,
    *HAIR_STYLES,
    *GLASSES,
    *SCARVES,
    *WALLS,
    *PLACES.values(),
    *WORK.values(),
    *SHAPES,
    *COLOURS,
    *MIXES.values(),
    *(str(salary) for salary in SALARIES),
)

WORDS: tuple[str, ...] = tuple(
    dict.fromkeys(
        [
            *" ".join([_PUNCTUATION, _LETTERS, _NUMBERS, _ASKING, _CHOICES, _DESCRIBING, _FAIRNESS]).split(),
            *_VALUES,
        ]
    )
)


def unknown_words(text: str) -> list[str]:
    """The words of a text that are not in the vocabulary."""
    return [word for word in text.split() if word not in _KNOWN]


_KNOWN = frozenset(WORDS)
