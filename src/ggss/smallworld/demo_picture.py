"""The demo's picture: the same person in five races, the gate as heat over the face, the answers before and after."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from ggss.escaping import plot
from ggss.output import mark
from ggss.smallworld.painter import Portrait

COMMAND = "ggss demo"
INK, SOFT, BEFORE, AFTER = "#2b2640", "#8a86a0", "#c2452d", "#2f7d4f"


@dataclass(frozen=True)
class OnePerson:
    """One person's variants, the answers about each before and after, and each one's gate [rows, columns]."""

    portraits: list[Portrait]
    before: list[str]
    after: list[str]
    gates: list[np.ndarray]


def picture(shown: list[OnePerson], alpha: float, target: Path) -> Path:
    """Draw and write it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    columns = len(shown[0].portraits)
    centred = {"fontsize": 13, "ha": "center"}
    figure, axes = plt.subplots(
        2 * len(shown), columns, figsize=(2.15 * columns, 4.9 * len(shown) + 1.6), squeeze=False, facecolor="white"
    )
    for person, one in enumerate(shown):
        for column, portrait in enumerate(one.portraits):
            face, heat = axes[2 * person, column], axes[2 * person + 1, column]
            pixels = np.asarray(portrait.paint_large())
            face.imshow(pixels)
            heat.imshow(np.asarray(Image.fromarray(pixels).convert("L")), cmap="gray", vmin=-60, vmax=255)
            heat.imshow(_heat(one.gates[column], len(pixels)), cmap="inferno", vmin=0.3, vmax=1, alpha=0.6)
            if person == 0:
                face.set_title(portrait.race, color=INK, fontsize=15, pad=10)
            face.set_xlabel(plot(f"before: {one.before[column]}"), color=BEFORE, fontsize=13, labelpad=6)
            face.text(
                0.5, -0.24, plot(f"after: {one.after[column]}"), color=AFTER, **centred, transform=face.transAxes
            )
        work = one.portraits[0].person.occupation
        axes[2 * person, 0].set_ylabel(work, color=INK, fontsize=15, labelpad=10)
        axes[2 * person + 1, 0].set_ylabel("gate", color=SOFT, fontsize=13, labelpad=10)
    for axis in axes.flat:
        axis.set_xticks([])
        axis.set_yticks([])
        for side in axis.spines.values():
            side.set_visible(False)
    figure.suptitle("“How much does this person earn?”", fontsize=20, color=INK, y=0.985)
    figure.text(
        0.5,
        0.948,
        f"Only the painted race changes along a row. Before: the frozen model. After: the same model, steered at "
        f"alpha {alpha:g}.",
        ha="center",
        color=SOFT,
        fontsize=11.5,
    )
    figure.subplots_adjust(left=0.07, right=0.98, top=0.89, bottom=0.085, wspace=0.06, hspace=0.34)
    bar = figure.add_axes((0.33, 0.03, 0.36, 0.012))
    figure.colorbar(ScalarMappable(Normalize(0.3, 1), "inferno"), cax=bar, orientation="horizontal")
    bar.set_title("gate: how much of the way each visual token is turned", fontsize=11, color=SOFT)
    bar.tick_params(labelsize=9, colors=SOFT)
    figure.savefig(target, dpi=110, metadata={"Software": mark(COMMAND)})
    plt.close(figure)
    return target


def _heat(gate: np.ndarray, side: int) -> np.ndarray:
    """The gate over the picture, smoothly, as floats."""
    return np.asarray(Image.fromarray(gate.astype(np.float32)).resize((side, side), Image.Resampling.BICUBIC))
