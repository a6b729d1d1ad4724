"""The recipes of the tiny models: steps, learning rates, how much of what is shown and asked."""

from dataclasses import dataclass

from experiments.training.architectures import NAMES
from ggss.errors import SHARE, no_such
from ggss.smallworld.bias_questions import HABITS

MODELS = (*NAMES, "entangled", *HABITS)
STAGES = ("seeing", "reading", "describing", "answering", "comparing")


@dataclass(frozen=True)
class Recipe:
    """Everything that training depends on beside the pictures and the seed."""

    seeing: int = 1200  # steps
    reading: int = 200
    describing: int = 400
    answering: int = 1600
    comparing: int = 500
    rate: float = 2e-3  # peaks of the learning rates: AdamW's
    matrix_rate: float = 0.01  # and Muon's
    sight_matrix_rate: float = 0.02  # Muon's in seeing; 0: AdamW alone
    comparing_rate: float = 0.01  # Muon's in comparing
    seen_people: int = 4  # of a step; each is six pictures
    seen_scenes: int = 40
    whole_shapes: bool = True  # shapes are too large for one token of 16 x 16 pixels
    penalty: float = 3.0  # weight of the penalties beside the heads
    gentle: int = 500  # steps until it is reached, so that an attribute of the wrong sign can still change it
    letters: int = 4  # sheets of letter questions beside every step of describing and answering
    letter_share: float = 0.25  # of their loss
    described: float = 0.15  # how often answering describes a scene again
    described_people: int = 6  # of a step of describing, each in two races
    described_scenes: int = 24
    people: int = 3  # of a step of answering
    scenes: int = 12
    pairs: int = 3
    pair_share: float = 0.15  # of the loss on questions
    biased: int = 3  # questions of a portrait whose answers are planted
    tokens: int = 130  # of the questions about one picture
    begin: str = (
        ""  # the model whose weights it begins with, so that there is nothing left to see; none: random weights
    )
    separation: float = 1.0  # of race and gender from everything else; less only on the dial (dial.py)
    unshown_share: float = 0.0  # of the loss on questions that no picture answers, and
    written_share: float = 0.0  # on sentences about people; only of models with a habit (habits.py)

    @property
    def sees_first(self) -> bool:
        """Whether tower and projector are frozen while the text model learns."""
        return bool(self.seeing or self.begin)

    @staticmethod
    def on_dial(separation: float) -> "Recipe":
        """The recipe of a model on the dial of entanglement."""
        SHARE.check("the separation", separation)
        return Recipe(
            seeing=0,
            reading=0,
            describing=0,
            answering=150,
            comparing=0,
            letters=2,
            begin="llava-vicuna",
            separation=separation,
        )

    @staticmethod
    def of(name: str) -> "Recipe":
        if name not in MODELS:
            raise no_such(f"there is no small-world model {name!r} to train", name, MODELS)
        if name in HABITS:
            return Recipe(
                seeing=0,
                reading=0,
                describing=0,
                answering=500,
                comparing=0,
                letters=2,
                people=5,
                scenes=6,
                begin="llava-vicuna",
                unshown_share=0.25,
                written_share=0.35,
            )
        if name == "entangled":
            return Recipe(seeing=0, comparing=0)
        if name == "qwen3-vl":
            return Recipe(
                # Its tokens are merged from patches of 8 x 8: it sees sooner, but a step takes longer.
                seeing=1000,
                seen_people=5,
                seen_scenes=20,
                whole_shapes=False,
                gentle=0,
                sight_matrix_rate=0,
                # At the rate of the others it would mix up gender and race.
                comparing=400,
                comparing_rate=0.005,
            )
        return Recipe()
