"""The drawings of docs/method.md: `python -m experiments.tools.drawings`. ggss computes points and arcs.

docs/sphere.png   discovery and steering on a sphere of three dimensions, of a made-up model
docs/gate.png     the gate, and what it makes of a strength
"""

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from torch import Tensor

from ggss import sphere
from ggss.methods.spherical import gate

matplotlib.use("Agg")
from matplotlib import pyplot as plt

DOCS = Path(__file__).parents[2] / "docs"
INK, SOFT, GRID = "#2b2640", "#8a86a0", "#d9d6e6"
BEFORE, AFTER, BIAS = "#c2452d", "#2f7d4f", "#6a51a3"
VALUES = ("#d99a2b", "#d9695f", "#5a63b8", "#3c9a7a")
NORTH = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
ALONG = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)  # the direction that the attribute moves pictures along
ACROSS = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
MEDIAN, STD, FLOOR = 0.3, 0.1, 0.3


def main() -> None:
    for name, draw in {"sphere": draw_sphere, "gate": draw_gate}.items():
        figure = draw()
        figure.savefig(DOCS / f"{name}.png", dpi=100, metadata={"Software": None})
        plt.close(figure)
        print(f"docs/{name}.png was drawn")


def draw_sphere() -> Any:
    figure, axes = plt.subplots(1, 2, figsize=(11, 5.4), facecolor="white")
    told = (
        "Dots: versions of three people. Arrows: their shifts from each\n"
        "person's centre (x). V: the direction that they share.",
        "The tangent vector t loses its part p along V. The token turns by\n"
        "the share β = α g of the arc to the target; its length stays.",
    )
    for axis, title, draw, words in zip(
        axes, ("1. Discovery", "2. Steering"), (_discovery, _steering), told, strict=True
    ):
        _globe(axis)
        draw(axis)
        axis.set_title(title, color=INK, fontsize=15)
        axis.text(0.5, -0.02, words, ha="center", va="top", color=SOFT, fontsize=11, transform=axis.transAxes)
    figure.subplots_adjust(left=0.01, right=0.99, top=0.93, bottom=0.12, wspace=0.02)
    return figure


def _discovery(axis: Any) -> None:
    """Three people in four versions: around each centre they differ along one direction."""
    rng = torch.Generator().manual_seed(3)
    for across, along in ((-0.62, -0.2), (0.0, 0.15), (0.62, -0.1)):
        wobble = 0.04 * torch.randn(4, 2, generator=rng, dtype=torch.float64)
        places = zip((-0.45, -0.16, 0.16, 0.45), wobble, strict=True)
        points = torch.stack([_at(along + step + off[0], across + off[1]) for step, off in places])
        centre = sphere.frechet_mean(points)
        for point, shift, colour in zip(points, sphere.log(centre, points), VALUES, strict=True):
            _arrow(axis, centre, centre + shift, colour, 1.8)
            axis.plot(*_seen(point), "o", color=colour, markersize=8)
        axis.plot(*_seen(centre), "x", color=INK, markersize=8, markeredgewidth=2)
    _arrow(axis, 1.3 * NORTH - 0.7 * ALONG, 1.3 * NORTH + 0.7 * ALONG, BIAS, 2.6)
    _label(axis, 1.3 * NORTH + 0.76 * ALONG, "V", BIAS, 16)


def _steering(axis: Any) -> None:
    """One token: its tangent vector at mu, the target, and the arc to it."""
    token, share = _at(0.95, -0.5), 0.7
    tangent = sphere.log(NORTH, token)
    protected = (tangent @ ALONG) * ALONG
    target = sphere.exp(NORTH, tangent - protected)
    steered = sphere.slerp(token, target, share)
    for until, style in (
        (1.0, {"color": SOFT, "linestyle": ":", "linewidth": 2}),
        (share, {"color": AFTER, "linewidth": 4}),
    ):
        arc = sphere.slerp(token, target, torch.linspace(0, until, 80, dtype=torch.float64))
        axis.plot(*_seen(arc), **style)
    corners = torch.tensor([[-0.3, -0.75], [1.1, -0.75], [1.1, 0.3], [-0.3, 0.3], [-0.3, -0.75]]).double()
    plane = torch.stack([NORTH + x * ALONG + y * ACROSS for x, y in corners])
    axis.fill(*_seen(plane), facecolor=BIAS, alpha=0.06, edgecolor=BIAS, linewidth=0.8)
    _arrow(axis, NORTH, NORTH + tangent, INK, 1.8)
    _arrow(axis, NORTH, NORTH + tangent - protected, SOFT, 1.8)
    _arrow(axis, NORTH + tangent, NORTH + tangent - protected, BIAS, 2.6)
    for point, colour in ((NORTH, INK), (token, BEFORE), (target, SOFT), (steered, AFTER)):
        axis.plot(*_seen(point), "o", color=colour, markersize=9)
    _label(axis, NORTH, "μ", INK, 16, (-18, 2))
    _label(axis, NORTH + tangent / 2, "t", INK, 14, (4, 6))
    _label(axis, NORTH + tangent - protected / 2, "p, along V", BIAS, 12, (-34, 8))
    _label(axis, NORTH + 0.35 * ALONG + 0.3 * ACROSS, "tangent plane at μ", BIAS, 10, (-20, 4))
    _label(axis, token, "token", BEFORE, 13, (12, -6))
    _label(axis, target, "target", SOFT, 13, (-54, -6))
    _label(axis, steered, "steered", AFTER, 13, (-44, -22))


def draw_gate() -> Any:
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), facecolor="white")
    size = torch.linspace(0, 0.7, 300, dtype=torch.float64)
    for kappa, style in ((1.0, ":"), (5.0, "-"), (20.0, "--")):
        own = gate(size, MEDIAN, STD, kappa, FLOOR)
        left.plot(
            size, own, style, color=BEFORE, linewidth=2, label=f"κ = {kappa:g}{' (default)' if kappa == 5 else ''}"
        )
    left.axvline(MEDIAN, color=SOFT, linewidth=1)
    left.axvspan(MEDIAN - STD, MEDIAN + STD, color=GRID, alpha=0.5)
    left.annotate(
        "median of the discovery\npictures, ± one deviation",
        (MEDIAN + STD, 0.06),
        color=SOFT,
        xytext=(6, 0),
        textcoords="offset points",
        fontsize=10,
    )
    left.axhline(FLOOR, color=SOFT, linewidth=1, linestyle=":")
    left.annotate("floor", (0.66, FLOOR + 0.02), color=SOFT, fontsize=10, ha="right")
    left.set(xlabel="size of the token's protected part, |Vᵀ t|", ylabel="gate g", ylim=(0, 1.05), xlim=(0, 0.7))
    left.set_title("The gate decides for each token", color=INK)
    own = gate(size, MEDIAN, STD, 5.0, FLOOR)
    for alpha in (0.25, 0.5, 0.75, 1.0, 1.5):
        right.plot(size, alpha * own, color=AFTER, alpha=0.35 + 0.4 * alpha, linewidth=2)
        right.annotate(
            f"α = {alpha:g}",
            (0.7, alpha * float(own[-1])),
            xytext=(4, -4),
            textcoords="offset points",
            color=INK,
            fontsize=10,
            annotation_clip=False,
        )
    right.axhline(1, color=SOFT, linewidth=1, linestyle=":")
    right.annotate("1: at the target; more goes past it", (0.02, 1.02), color=SOFT, fontsize=10)
    right.set(
        xlabel="size of the token's protected part, |Vᵀ t|",
        ylabel="share of the arc, β = α g",
        ylim=(0, 1.6),
        xlim=(0, 0.7),
    )
    right.set_title("The strength scales all of them", color=INK)
    left.legend(loc="upper left", frameon=False)
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.subplots_adjust(right=0.93)
    return figure


def _at(x: float | Tensor, y: float | Tensor) -> Tensor:
    """The point of the sphere above these coordinates of the tangent plane at the north pole."""
    return sphere.exp(NORTH, torch.as_tensor(x) * ALONG + torch.as_tensor(y) * ACROSS)


# The sphere as it is seen from the front, above: no perspective.
TILT = np.deg2rad(50)
RIGHT, UP = np.array([0.97, 0.24, 0.0]), np.array([-0.24 * np.sin(TILT), 0.97 * np.sin(TILT), np.cos(TILT)])


def _seen(points: Tensor) -> tuple[Any, Any]:
    """Where points of space are on the page."""
    own = points.numpy()
    return own @ RIGHT, own @ UP


def _globe(axis: Any) -> None:
    axis.add_patch(plt.Circle((0, 0), 1, facecolor="#f6f4fb", edgecolor=GRID, linewidth=1.2))  # pyright: ignore[reportPrivateImportUsage]
    turn = torch.linspace(0, 2 * np.pi, 200, dtype=torch.float64)
    towards = np.cross(RIGHT, UP)
    for height in torch.linspace(0.15, 1.35, 7, dtype=torch.float64):
        ring = torch.stack([_at(height * torch.cos(a), height * torch.sin(a)) for a in turn])
        _behind(axis, ring, towards)
    for a in torch.linspace(0, np.pi, 9, dtype=torch.float64)[:-1]:
        line = torch.stack([_at(h * torch.cos(a), h * torch.sin(a)) for h in torch.linspace(-1.6, 1.6, 160).double()])
        _behind(axis, line, towards)
    axis.set(xlim=(-1.06, 1.28), ylim=(-0.45, 1.2))
    axis.set_aspect("equal")
    axis.set_axis_off()


def _behind(axis: Any, line: Tensor, towards: np.ndarray) -> None:
    """A line on the sphere, without what is on its far side."""
    x, y = _seen(line)
    hidden = line.numpy() @ towards < 0
    axis.plot(np.where(hidden, np.nan, x), np.where(hidden, np.nan, y), color=GRID, linewidth=0.6)


def _arrow(axis: Any, start: Tensor, end: Tensor, colour: str, width: float) -> None:
    style = {
        "arrowstyle": "-|>",
        "color": colour,
        "linewidth": width,
        "shrinkA": 0,
        "shrinkB": 0,
        "mutation_scale": 14,
    }
    axis.annotate("", _seen(end), _seen(start), arrowprops=style)


def _label(axis: Any, point: Tensor, text: str, colour: str, size: int = 12, off: tuple[int, int] = (0, 0)) -> None:
    axis.annotate(text, _seen(point), color=colour, fontsize=size, xytext=off, textcoords="offset points")


if __name__ == "__main__":
    main()
