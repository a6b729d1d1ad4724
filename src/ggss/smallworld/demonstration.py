"""The main job end to end on the embedded default: paint, discover, steer, probe before and after, and a picture.

The strength is 1, the paper's full step; `ggss world check` selects one on other identities.
"""

from dataclasses import dataclass
from pathlib import Path

from ggss.activations.collection import collect
from ggss.analysis import Comparison, Run, Statistics, ask, compare
from ggss.analysis.right_answers import Kept
from ggss.data.counterfactuals import Counterfactuals
from ggss.models.feature_cache import FeatureCache
from ggss.output import check_file, check_folder, marked
from ggss.probes import get
from ggss.probes.steered_model import SteeredModel
from ggss.report.page_discovery import discovered, gate_map
from ggss.report.page_material import of_pairs
from ggss.report.reported import Material
from ggss.smallworld import DEFAULT
from ggss.smallworld.bias_questions import ask_salary
from ggss.smallworld.demo_picture import COMMAND, OnePerson, picture
from ggss.smallworld.discovery import HELD_OUT, load_model
from ggss.smallworld.painter import Portrait
from ggss.smallworld.people import GENDERS, RACES, Person, identities
from ggss.smallworld.questions import as_item
from ggss.smallworld.sets import check_paintable, paint_focus_set
from ggss.smallworld.sweeps import suite, unsteered
from ggss.stats import Interval
from ggss.steering.artefact import holds_steerer
from ggss.steering.fitting import fit
from ggss.steering.steerer import Steerer

ON_SHOW = ("teacher", "cook")
DESCRIPTION = (
    "The town, its people and its bias are painted and planted: this page shows that the machinery works and is "
    "measured correctly. It is no evidence about any model trained on photographs."
)
FACES, PICTURE, PAGE = "faces", "demo.png", "report.html"


@dataclass(frozen=True)
class BiasRow:
    """A bias task before and after, and the paired change in percent.

    Intervals are of values freed of small-sample bias (jackknife, Fieller; 95 %, over identities): those of the
    percentile bootstrap often miss the truth (docs/validity.md).
    """

    comparison: Comparison

    @property
    def name(self) -> str:
        probe, about = get(self.comparison.task), self.comparison.before.about
        return f"{probe.title}, {about}{self.comparison.before.display().unit}"

    @property
    def meaning(self) -> str:
        return self.comparison.before.display().meaning

    @property
    def scale(self) -> float:
        """The factor that the numbers are shown with."""
        return self.comparison.before.display().scale

    @property
    def before(self) -> Interval:
        return self.comparison.before.corrected()

    @property
    def after(self) -> Interval:
        return self.comparison.after.corrected()

    @property
    def change(self) -> Interval | None:
        """None if there was no bias before."""
        return self.comparison.corrected_change

    @property
    def published(self) -> tuple[float, float]:
        """The values before and after, as the metric is published."""
        return self.comparison.before.value(), self.comparison.after.value()

    def cells(self) -> tuple[str, ...]:
        shown, change = self.comparison.before.display(), self.comparison.change()
        percent = f"{change.estimate:+.0f} %" if change else "-"
        return self.name, *map(shown.number, self.published), percent, _percent(self.change)


@dataclass(frozen=True)
class Demo:
    """All that the demo found. By steered attribute: SmallStar, and that attribute's recognition before and after."""

    model: str
    alpha: float
    bias: list[BiasRow]
    capability: dict[str, Kept]
    recognition: dict[str, tuple[float, float]]
    steerers: dict[str, Steerer]
    shown: list[OnePerson]
    picture: Path
    material: Material

    @property
    def unsteered(self) -> Interval:
        """SmallStar before steering."""
        return next(iter(self.capability.values())).before


def check_place(folder: Path, force: bool = False) -> None:
    """Refuse a folder where something that the demo did not write would be replaced, unless forced."""
    check_folder(folder, COMMAND, lambda _: True)
    check_paintable(folder / FACES)
    for attribute in HELD_OUT:
        check_folder(_steerer_folder(folder, attribute), COMMAND, holds_steerer, force)
    for name in (PICTURE, PAGE):
        check_file(folder / name, COMMAND, marked(COMMAND), force)


def run(folder: Path, model: str = DEFAULT, alpha: float = 1.0) -> Demo:
    """Do it all, writing faces, steerers and the picture into the folder."""
    plain = SteeredModel(FeatureCache(load_model(model)))
    manifest = paint_focus_set(folder / FACES)
    steerers = {attribute: _discovered(plain.cache, manifest, attribute) for attribute in HELD_OUT}
    for attribute, steerer in steerers.items():
        steerer.save_pretrained(_steerer_folder(folder, attribute))
    models = {attribute: plain.steered(steerer, alpha) for attribute, steerer in steerers.items()}
    before = unsteered(plain) | {
        task: ask(plain, suite(), task) for task in ("smallstar", *map(_recognition, models))
    }
    pairs: list[tuple[str, Run, Run, Comparison]] = []
    for task, run in before.items():
        for attribute in [run.about] if run.about else models:
            after = ask(models[attribute], suite(), task)
            pairs.append((attribute, run, after, compare(run, after)))
    bias = [BiasRow(found) for _, run, _, found in pairs if run.probe.kind == "bias"]
    capability = {attribute: found.kept() for attribute, _, _, found in pairs if found.task == "smallstar"}
    recognition = {
        attribute: (found.before.value(), found.after.value())
        for attribute, _, _, found in pairs
        if found.task == _recognition(attribute)
    }
    shown = [
        one_person(Person(identities("evaluation")[0], work), plain, models["race"], steerers["race"])
        for work in ON_SHOW
    ]
    target = picture(shown, alpha, folder / PICTURE)
    pictures = [picture for _, run, _, _ in pairs if run.about for item in run.items for picture in item.images]
    found = [discovered(attribute, steerer, plain.cache, pictures) for attribute, steerer in steerers.items()]
    material = of_pairs(pairs, Statistics(), "ggss demo", found, DESCRIPTION)
    return Demo(plain.vlm.name, alpha, bias, capability, recognition, steerers, shown, target, material)


def _recognition(attribute: str) -> str:
    return f"recognition-{attribute}"


def _steerer_folder(folder: Path, attribute: str) -> Path:
    return folder / f"{attribute}-steerer"


def _discovered(cache: FeatureCache, manifest: Path, attribute: str) -> Steerer:
    """Fitted on the painted files, as on a user's own, without the occupations that are held out."""
    faces = Counterfactuals.load(manifest, exclude={"occupation": HELD_OUT[attribute]})
    faces.validate()
    return fit("ggss", collect(cache.vlm, faces, "all", features=cache), attribute=attribute)


def one_person(person: Person, plain: SteeredModel, steered: SteeredModel, steerer: Steerer) -> OnePerson:
    """A person in five races: what the model says they earn, before and after, and the gate of each token."""
    portraits = [Portrait(person, race, GENDERS[1]) for race in RACES]
    asked = [as_item(ask_salary(portrait)) for portrait in portraits]
    said = []
    for model in (plain, steered):
        readings = model.read(asked, max_new_tokens=1)
        said.append([item.options.get(r.answer, f"({r.answer})") for item, r in zip(asked, readings, strict=True)])
    gates = []
    for features in plain.cache.features(portraits):
        gate = gate_map(steerer, plain.vlm, features)
        assert gate is not None
        gates.append(gate)
    return OnePerson(portraits, said[0], said[1], gates)


def _percent(change: Interval | None) -> str:
    return f"{change.estimate:+.0f} % [{change.low:+.0f}, {change.high:+.0f}]" if change else "-"
