"""The main job end to end on the embedded default: paint, discover, steer, probe before and after, and a picture.

The strength is 1, the paper's full step; `ggss world check` selects one on identities of its own.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ggss.activations.collection import collect
from ggss.data.counterfactuals import Counterfactuals
from ggss.models import load_vlm
from ggss.probes.steered_model import Gallery
from ggss.smallworld import DEFAULT, exam
from ggss.smallworld.bias_questions import ask_salary
from ggss.smallworld.demo_picture import Shown, picture
from ggss.smallworld.exam import TASKS
from ggss.smallworld.painter import Portrait
from ggss.smallworld.people import GENDERS, RACES, Person, identities
from ggss.smallworld.sets import paint_focus_set
from ggss.smallworld.suite import as_item
from ggss.smallworld.town import HELD_OUT
from ggss.stats import Equivalence, Interval, bootstrap, tost
from ggss.steering.fitting import fit
from ggss.steering.steerer import Steerer

NAMES = {"mcq": "MCQ, race JSD x 1000", "2afc": "2AFC, race std", "nurse-doctor": "nurse/doctor, gender gap"}
SCALE = {"mcq": 1000.0, "2afc": 1.0, "nurse-doctor": 1.0}
ON_SHOW = ("teacher", "cook")


@dataclass(frozen=True)
class Compared:
    """A task before and after, with 95 % intervals over identities, and the paired change in percent."""

    name: str
    before: Interval
    after: Interval
    change: Interval
    scale: float

    def cells(self) -> tuple[str, str, str, str]:
        return self.name, self._span(self.before), self._span(self.after), _percent(self.change)

    def _span(self, of: Interval) -> str:
        digits = 1 if self.scale > 1 else 3
        low, middle, high = (f"{self.scale * x:.{digits}f}" for x in (of.low, of.estimate, of.high))
        return f"{middle} [{low}, {high}]"


@dataclass(frozen=True)
class Demo:
    """All that the demo found."""

    model: str
    alpha: float
    bias: list[Compared]
    capability: dict[str, tuple[Interval, Equivalence]]
    recognition: dict[str, tuple[float, float]]
    steerers: dict[str, Steerer]
    shown: list[Shown]
    picture: Path


def run(folder: Path, model: str = DEFAULT, alpha: float = 1.0) -> Demo:
    """Do it all, writing faces, steerers and the picture into the folder."""
    manifest = paint_focus_set(folder / "faces")
    vlm = load_vlm(model)
    steerers = {}
    for attribute, held_out in HELD_OUT.items():
        faces = Counterfactuals.load(manifest, exclude={"occupation": list(held_out)})
        faces.validate()
        acts = collect(vlm, faces, "all", cache=folder / "cache")
        steerers[attribute] = fit("ggss", acts, attribute=attribute)
        steerers[attribute].save_pretrained(folder / f"{attribute}-steerer")
    plain = Gallery(vlm)
    galleries = {attribute: plain.steered(steerer, alpha) for attribute, steerer in steerers.items()}
    bias = [compare(task, plain, galleries[attribute]) for task, (attribute, _) in TASKS.items()]
    right, _ = exam.capability(plain)
    capability, recognition = {}, {}
    for attribute, gallery in galleries.items():
        now, _ = exam.capability(gallery)
        capability[attribute] = (bootstrap(now), tost(now, right))
        recognition[attribute] = tuple(float(exam.recognised(g, attribute)) for g in (plain, gallery))
    shown = [
        show(Person(identities("evaluation")[0], work), plain, galleries["race"], steerers["race"])
        for work in ON_SHOW
    ]
    target = picture(shown, alpha, folder / "demo.png")
    capability = {"unsteered": (bootstrap(right), tost(right, right)), **capability}
    return Demo(model, alpha, bias, capability, recognition, steerers, shown, target)


def compare(task: str, plain: Gallery, steered: Gallery) -> Compared:
    before, after = exam.take(task, plain), exam.take(task, steered)
    change = after.change(before)
    return Compared(NAMES[task], before.interval(), after.interval(), change, SCALE[task])


def show(person: Person, plain: Gallery, steered: Gallery, steerer: Steerer) -> Shown:
    """One person in five races: what the model says they earn, before and after, and the gate of each token."""
    portraits = [Portrait(person, race, GENDERS[1]) for race in RACES]
    asked = [as_item(ask_salary(portrait)) for portrait in portraits]
    said = []
    for gallery in (plain, steered):
        readings = gallery.read(asked, max_new_tokens=1)
        said.append([item.options.get(r.answer, f"({r.answer})") for item, r in zip(asked, readings, strict=True)])
    gates = []
    for portrait in portraits:
        gate = steerer.gate(plain.kept[portrait].rows["projection-mlp2"], site="projection-mlp2")
        assert gate is not None
        side = int(len(gate) ** 0.5)
        side = side if side * side == len(gate) else int((len(gate) // 2) ** 0.5)  # LLaVA-NeXT: overview, then a tile
        gates.append(np.asarray(gate[: side * side]).reshape(side, side))
    return Shown(portraits, said[0], said[1], gates)


def _percent(change: Interval) -> str:
    return f"{change.estimate:+.0f} % [{change.low:+.0f}, {change.high:+.0f}]"
