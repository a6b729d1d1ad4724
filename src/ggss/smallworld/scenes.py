"""Scenes without people: one to four coloured shapes in the four cells of a wall. They carry capability questions."""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from math import acos, cos, pi, sin

import numpy as np
from PIL import Image

from ggss.data.pictures import Context
from ggss.errors import InputError
from ggss.smallworld.people import WALLS
from ggss.smallworld.portraits import (
    PAINT,
    SIZE,
    WALL,
    Brush,
    Colour,
    Point,
    canvas,
    painted_digest,
    shade,
    shrink,
    star,
)

SHAPES = ("circle", "heart", "moon", "triangle", "square", "star")
TIPS: dict[str, int] = {shape: tips for tips, shape in enumerate(SHAPES)}  # how many sharp tips: none to five
COLOURS = ("blue", "green", "purple", "red", "white", "yellow")
MIXES = {
    ("blue", "red"): "purple",
    ("blue", "yellow"): "green",
    ("red", "white"): "pink",
    ("red", "yellow"): "orange",
}
SIZES = ("big", "small")
CELLS = ("top left", "top right", "bottom left", "bottom right")

SCENE_SPLITS = ("training", "evaluation")

_CENTRES = ((16.0, 16.0), (48.0, 16.0), (16.0, 48.0), (48.0, 48.0))  # of the cells
_RADIUS = {"big": 12.0, "small": 7.0}
_HELD_OUT = 5  # one layout in five is not used in training


@dataclass(frozen=True)
class Shape:
    shape: str
    colour: str
    size: str


Layout = tuple[Shape | None, Shape | None, Shape | None, Shape | None]


@dataclass(frozen=True)
class Scene:
    """Shapes on a wall, cells in the order of `CELLS`; `seed` moves them a little and sets the grain."""

    cells: Layout
    wall: str
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.cells) != len(CELLS) or not any(self.cells):
            raise InputError(f"a scene has {len(CELLS)} cells of which one or more hold a shape, seen {self.cells}")

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return tuple(cell for cell in self.cells if cell is not None)

    @property
    def split(self) -> str:
        """'training' or 'evaluation', decided by the layout alone: no layout is in both."""
        key = repr([cell and (cell.shape, cell.colour, cell.size) for cell in self.cells])
        return "evaluation" if sha256(key.encode()).digest()[0] % _HELD_OUT == 0 else "training"

    @property
    def name(self) -> str:
        """Such as `pink wall, top left big red star, number 7`."""
        shapes = [f"{p} {c.size} {c.colour} {c.shape}" for p, c in zip(CELLS, self.cells, strict=True) if c]
        return ", ".join([f"{self.wall} wall", *shapes, f"number {self.seed}"])

    @property
    def digest(self) -> str:
        return painted_digest(repr(self))

    @property
    def attributes(self) -> dict[str, str]:
        """None: nobody is shown."""
        return {}

    @property
    def context(self) -> Context:
        return ()

    def image(self) -> Image.Image:
        """64 x 64 RGB."""
        rng = np.random.default_rng([self.seed, 2])
        fine = canvas(WALL[self.wall])
        brush = Brush(fine)
        for (x, y), cell in zip(_CENTRES, self.cells, strict=True):
            dx, dy, scale = rng.uniform((-2, -2, 0.92), (2, 2, 1.08))
            if cell is not None:
                radius = _RADIUS[cell.size] * scale
                tone = PAINT[cell.colour]
                _FORMS[cell.shape](brush, x + dx, y + dy, radius + 0.9, shade(tone, -0.45))
                _FORMS[cell.shape](brush, x + dx, y + dy, radius, tone)
        light = 1 + rng.uniform(-0.06, 0.06)
        grain = rng.normal(0, 2.0, (SIZE, SIZE, 1))
        return Image.fromarray((shrink(fine) * light + grain + 0.5).clip(0, 255).astype(np.uint8))

    def labels(self) -> dict[str, str | float]:
        """Everything that can be seen, by name; an empty cell is 'none'."""
        labels: dict[str, str | float] = {"wall": self.wall, "count": str(len(self.shapes))}
        for place, cell in zip(CELLS, self.cells, strict=True):
            for part in ("shape", "colour", "size"):
                labels[f"{place} {part}"] = getattr(cell, part) if cell else "none"
        return labels


def draw_scene(rng: np.random.Generator, split: str = "training", plan: str | None = None) -> Scene:
    """A random scene of the split. plan: one of `PLANS`; None: a random one."""
    if split not in SCENE_SPLITS:
        raise InputError(f"scenes have no split {split!r}; choose one of {', '.join(SCENE_SPLITS)}")
    names = tuple(PLANS)
    while True:
        layout = PLANS[plan or names[int(rng.integers(len(names)))]](rng)
        scene = Scene(layout, _pick(rng, WALLS), int(rng.integers(2**31)))
        if scene.split == split:
            return scene


def _pick(rng: np.random.Generator, values: tuple[str, ...]) -> str:
    return values[int(rng.integers(len(values)))]


def _pick_several(rng: np.random.Generator, values: tuple[str, ...], count: int) -> list[str]:
    return [values[k] for k in rng.permutation(len(values))[:count]]


def _arrange(rng: np.random.Generator, shapes: list[Shape]) -> Layout:
    cells: list[Shape | None] = [*shapes, *[None] * (4 - len(shapes))]
    a, b, c, d = (cells[k] for k in rng.permutation(4))
    return a, b, c, d


def _any(rng: np.random.Generator) -> Layout:
    count = int(rng.integers(1, 5))
    return _arrange(rng, [Shape(_pick(rng, SHAPES), _pick(rng, COLOURS), _pick(rng, SIZES)) for _ in range(count)])


def _distinct(rng: np.random.Generator) -> Layout:
    """All shapes and colours differ and only one shape is big, so that 'the big shape' has one meaning."""
    count = int(rng.integers(2, 5))
    sizes = ["big", *["small"] * (count - 1)]
    forms, colours = _pick_several(rng, SHAPES, count), _pick_several(rng, COLOURS, count)
    return _arrange(rng, [Shape(*look) for look in zip(forms, colours, sizes, strict=True)])


def _odd(rng: np.random.Generator) -> Layout:
    """Three of four shapes have the same colour, and one another."""
    common, odd = _pick_several(rng, COLOURS, 2)
    return _arrange(rng, [Shape(_pick(rng, SHAPES), c, _pick(rng, SIZES)) for c in (common, common, common, odd)])


def _pair(rng: np.random.Generator) -> Layout:
    """Two shapes that share colour, shape, both or nothing, each a quarter of the time."""
    shapes, colours = _pick_several(rng, SHAPES, 2), _pick_several(rng, COLOURS, 2)
    same_shape, same_colour = rng.random(2) < 0.5
    first = Shape(shapes[0], colours[0], _pick(rng, SIZES))
    return _arrange(rng, [first, Shape(shapes[not same_shape], colours[not same_colour], _pick(rng, SIZES))])


def _rows(rng: np.random.Generator) -> Layout:
    """Two equal rows with one cell left empty."""
    left, right = (Shape(shape, _pick(rng, COLOURS), _pick(rng, SIZES)) for shape in _pick_several(rng, SHAPES, 2))
    cells: list[Shape | None] = [left, right, left, right]
    cells[int(rng.integers(4))] = None
    a, b, c, d = cells
    return a, b, c, d


def _mix(rng: np.random.Generator) -> Layout:
    """Two shapes whose colours have a name when they are mixed."""
    colours = list(MIXES)[int(rng.integers(len(MIXES)))]
    return _arrange(rng, [Shape(_pick(rng, SHAPES), colour, _pick(rng, SIZES)) for colour in colours])


PLANS: dict[str, Callable[[np.random.Generator], Layout]] = {
    "any": _any,
    "distinct": _distinct,
    "odd": _odd,
    "pair": _pair,
    "rows": _rows,
    "mix": _mix,
}


def _circle(brush: Brush, x: float, y: float, r: float, fill: Colour) -> None:
    brush.ellipse(x, y, r * 0.92, r * 0.92, fill)


def _heart(brush: Brush, x: float, y: float, r: float, fill: Colour) -> None:
    edge: list[Point] = []
    for t in (2 * pi * k / 40 for k in range(40)):
        height = 1.5 + 13 * cos(t) - 5 * cos(2 * t) - 2 * cos(3 * t) - cos(4 * t)
        edge.append((x + r * sin(t) ** 3, y - r * height / 16))
    brush.polygon(edge, fill)


def _moon(brush: Brush, x: float, y: float, r: float, fill: Colour) -> None:
    """A disc without a smaller disc on its right: two arcs that meet in the tips."""
    hollow, shift = 0.81 * r, 0.62 * r
    tip_x = (r * r - hollow * hollow + shift * shift) / (2 * shift)
    tip, inner = acos(tip_x / r), acos((tip_x - shift) / hollow)
    outer_arc = [tip + 2 * (pi - tip) * k / 24 for k in range(25)]
    inner_arc = [2 * pi - inner - 2 * (pi - inner) * k / 24 for k in range(25)]
    edge = [(x + r * cos(t), y + r * sin(t)) for t in outer_arc]
    brush.polygon([*edge, *((x + shift + hollow * cos(t), y + hollow * sin(t)) for t in inner_arc)], fill)


def _triangle(brush: Brush, x: float, y: float, r: float, fill: Colour) -> None:
    brush.polygon([(x, y - r), (x - r * 0.95, y + r * 0.75), (x + r * 0.95, y + r * 0.75)], fill)


def _square(brush: Brush, x: float, y: float, r: float, fill: Colour) -> None:
    brush.rect(x - r * 0.82, y - r * 0.82, x + r * 0.82, y + r * 0.82, fill)


def _star(brush: Brush, x: float, y: float, r: float, fill: Colour) -> None:
    brush.polygon(star(x, y + r * 0.06, r * 1.08, r * 0.46), fill)


_FORMS: dict[str, Callable[[Brush, float, float, float, Colour], None]] = {
    "circle": _circle,
    "heart": _heart,
    "moon": _moon,
    "triangle": _triangle,
    "square": _square,
    "star": _star,
}
