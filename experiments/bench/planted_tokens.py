"""Tokens whose attribute, content and overlap of the two are planted: what a method removes, and at what price.

    token t of a picture of identity u with value v, in part p:
    h = base + place_p + attribute_p,v + content_p,c(u) + person_u + noise,  times a length

- parts: each part of a picture has a plane of its own for the attribute; tokens are dealt to the parts in turn.
- overlap: the share of the content's energy that lies in its part's plane of the attribute.
- identities: how many there are at discovery. Probes are always fitted and asked on 40 other identities.
- mislabelled: the share of contexts at discovery in which two values are exchanged.
- confound: at discovery each value also brings something that it never brings again, this long (the attribute: 1).
- spread: the deviation of the logarithm of the tokens' lengths.
- strength: the length of the attribute; 0 is the negative control.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ggss.activations import Activations
from ggss.methods.diagnostics import folds, probe_accuracy
from ggss.steering.fitting import fit

WIDTH, TOKENS, NOISE = 48, 8, 0.5
VALUES, CONTENTS, JUDGED = 3, 4, 40
ATTRIBUTE = "group"


@dataclass(frozen=True)
class World:
    overlap: float = 0.0
    identities: int = 40
    parts: int = 4
    mislabelled: float = 0.0
    confound: float = 0.0
    spread: float = 0.2
    strength: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Pictures:
    """Tokens [N, T, D] of N pictures, their values, contents and identities [N]."""

    tokens: Tensor
    values: Tensor
    contents: Tensor
    people: Tensor


@dataclass(frozen=True)
class Judgement:
    """Shares of right answers of probes on the judged identities, and how far tokens moved.

    Probes of the attribute learn from steered tokens; that of the content learned before and is not told.
    """

    pooled: float
    all_tokens: float
    content: float
    displacement: float


@dataclass(frozen=True)
class Directions:
    """The directions of a world: attribute [P, V, D], content [P, C, D], confound [V, D], people [12, D]."""

    world: World
    base: Tensor
    places: Tensor
    attribute: Tensor
    content: Tensor
    confound: Tensor
    people: Tensor

    @staticmethod
    def draw(world: World) -> "Directions":
        generator = torch.Generator().manual_seed(world.seed)
        axes = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.float64))[0].T
        base, confound, people = axes[0], axes[1:4], axes[4:16]
        rest = axes[16:]
        planes, contents = [], []
        for _ in range(world.parts):
            own = torch.linalg.qr(rest.T @ torch.randn(len(rest), 2 + CONTENTS, generator=generator).double())[0].T
            plane, free = own[:2], own[2:]
            angles = 2 * torch.pi * (torch.arange(VALUES) / VALUES + torch.rand(1, generator=generator))
            planes.append(torch.stack([angles.cos(), angles.sin()], 1).double() @ plane)
            turns = 2 * torch.pi * (torch.arange(CONTENTS) / CONTENTS + torch.rand(1, generator=generator))
            inside = torch.stack([turns.cos(), turns.sin()], 1).double() @ plane
            contents.append(world.overlap**0.5 * inside + (1 - world.overlap) ** 0.5 * free)
        places = torch.randn(world.parts, len(rest), generator=generator).double() @ rest * 0.3
        return Directions(world, 3 * base, places, torch.stack(planes), torch.stack(contents), confound, people)

    def pictures(self, identities: int, seed: int, discovery: bool) -> Pictures:
        """Every identity with every value."""
        generator = torch.Generator().manual_seed(seed)
        world = self.world
        part = torch.arange(TOKENS) % world.parts
        people = torch.arange(identities).repeat_interleave(VALUES)
        values = torch.arange(VALUES).repeat(identities)
        contents = (torch.arange(identities) % CONTENTS)[people]
        person = 0.5 * torch.randn(identities, len(self.people), generator=generator).double() @ self.people
        tokens = self.base + self.places[part] + person[people][:, None]
        tokens = tokens + world.strength * self.attribute[part][:, values].transpose(0, 1)
        tokens = tokens + self.content[part][:, contents].transpose(0, 1)
        if discovery:
            tokens = tokens + world.confound * self.confound[values][:, None]
        tokens = tokens + NOISE * torch.randn(tokens.shape, generator=generator)
        lengths = (world.spread * torch.randn(*tokens.shape[:2], 1, generator=generator)).exp()
        return Pictures((lengths * tokens).float(), values, contents, people)


def activations(pictures: Pictures, mislabelled: float = 0.0) -> Activations:
    """The pictures as discovery sees them; in a share of the contexts two values have changed places."""
    swapped = pictures.people < round(mislabelled * (int(pictures.people.max()) + 1))
    said = torch.where(swapped & (pictures.values < 2), 1 - pictures.values, pictures.values)
    return Activations(list(pictures.tokens), [{ATTRIBUTE: f"v{v}"} for v in said.tolist()], pictures.people.tolist())


def judged(pictures: Pictures, steered: Tensor) -> Judgement:
    """Probes of the judged pictures, given their tokens [N, T, D] after steering."""
    fold = folds(pictures.people.tolist())
    moved = torch.linalg.vector_norm(steered - pictures.tokens, dim=-1)
    return Judgement(
        pooled=probe_accuracy(steered.mean(1), pictures.values, fold),
        all_tokens=probe_accuracy(steered.flatten(1), pictures.values, fold),
        content=probe_accuracy(pictures.tokens.flatten(1), pictures.contents, fold, steered.flatten(1)),
        displacement=float((moved / torch.linalg.vector_norm(pictures.tokens, dim=-1)).mean()),
    )


def outcome(world: World, method: str, alpha: float = 1.0) -> Judgement:
    """A method fitted on a world's discovery pictures and judged on other identities of it."""
    planted = Directions.draw(world)
    found = planted.pictures(world.identities, 2 * world.seed + 1, discovery=True)
    others = planted.pictures(JUDGED, 2 * world.seed + 2, discovery=False)
    steerer = fit(method, activations(found, world.mislabelled), attribute=ATTRIBUTE)
    images = torch.arange(len(others.tokens)).repeat_interleave(TOKENS)
    return judged(others, steerer.steer(others.tokens.flatten(0, 1), images, alpha).reshape(others.tokens.shape))
