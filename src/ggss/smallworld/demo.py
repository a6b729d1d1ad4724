"""`ggss demo`: the main job end to end on an embedded model: paint, discover, steer, probe before and after, draw.

The strength is 1, the paper's full step; `ggss world check` selects one on other identities (`selected_alpha`). Each
bias task is asked of the model that is steered for the attribute the task is about. The picture shows the same person
in five races, the gate as heat over the face, and the answers before and after.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from ggss import sphere
from ggss.activations import SITE, Activations
from ggss.activations.collect import collect
from ggss.analysis import Comparison, Run, Statistics, ask, best_alpha, compare
from ggss.analysis.selection import ComparedTasks
from ggss.data.counterfactuals import Counterfactuals
from ggss.errors import InputError
from ggss.escaping import plot
from ggss.files import check_file, check_folder, mark, marked
from ggss.methods.spherical import Geodesic
from ggss.methods.subspace import protected_magnitude, representatives
from ggss.models import Vlm, load_vlm
from ggss.models.features import FeatureCache
from ggss.probes import get
from ggss.probes.steered_model import SteeredModel
from ggss.probes.suites import Suite
from ggss.report.material import Material, discovered, gate_map, of_pairs
from ggss.smallworld import DEFAULT, NAME, short_name
from ggss.smallworld.bias_questions import ask_salary
from ggss.smallworld.painter import Portrait, check_paintable, paint_focus_set, town
from ggss.smallworld.people import GENDERS, RACES, Person, identities
from ggss.smallworld.questions import as_item
from ggss.smallworld.suite import small_world
from ggss.steering.artefact import holds_steerer
from ggss.steering.fitting import fit
from ggss.steering.steerer import Steerer
from ggss.version import hardware

COMMAND = "ggss demo"
FACES, PICTURE, PAGE = "faces", "demo.png", "report.html"
PICTURED = ("teacher", "cook")  # occupations of the people in the picture
INK, SOFT, BEFORE, AFTER = "#2b2640", "#8a86a0", "#c2452d", "#2f7d4f"
ALPHAS = (0.25, 0.5, 0.75, 1.0, 1.5)

# The paper's protocol: the occupations that a task is measured on are held out of discovery.
HELD_OUT = {"race": ("ceo",), "gender": ("ceo", "doctor", "nurse")}


@dataclass(frozen=True)
class PersonAnswers:
    """The variants of a person, and for each the answers before and after and the gate [rows, columns]."""

    portraits: list[Portrait]
    before: list[str]
    after: list[str]
    gates: list[np.ndarray]


@dataclass(frozen=True)
class Demo:
    """The demo's results. tasks: every task under the steering of each attribute that it is asked under."""

    model: str
    alpha: float
    tasks: ComparedTasks
    steerers: dict[str, Steerer]
    people: list[PersonAnswers]
    picture: Path
    material: Material


def check_place(folder: Path, force: bool = False) -> None:
    """Raise InputError if the demo would replace something in the folder that it did not write, unless forced."""
    check_folder(folder, COMMAND, lambda _: True)
    check_paintable(folder / FACES)
    for attribute in HELD_OUT:
        check_folder(_steerer_folder(folder, attribute), COMMAND, holds_steerer, force)
    for name in (PICTURE, PAGE):
        check_file(folder / name, COMMAND, marked(COMMAND), force)


def run(folder: Path, model: str = DEFAULT, alpha: float = 1.0) -> Demo:
    """Run the demo; faces, steerers and the picture are written into the folder."""
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
    tasks = ComparedTasks.of([comparison for *_, comparison in pairs])
    people = [
        person_answers(Person(identities("evaluation")[0], work), plain, models["race"], steerers["race"])
        for work in PICTURED
    ]
    target = write_picture(people, alpha, folder / PICTURE)
    pictures = [picture for _, run, _, _ in pairs if run.about for item in run.items for picture in item.images]
    discoveries = [discovered(attribute, steerer, plain.cache, pictures) for attribute, steerer in steerers.items()]
    material = replace(
        of_pairs(pairs, Statistics(), COMMAND, discoveries),
        commands=(f"{COMMAND} --model {short_name(model)} --alpha {alpha:g}",),
        machine=hardware(),
    )
    return Demo(plain.vlm.name, alpha, tasks, steerers, people, target, material)


def load_model(name: str) -> Vlm:
    """An embedded model, `pixtral` or `small-world/pixtral`; or a folder with another model of the small world."""
    return load_vlm(name if Path(name).is_dir() else f"{NAME}/{short_name(name)}")


def activations(features: FeatureCache, attribute: str, sites: str = SITE) -> Activations:
    """Activations of the town without the occupations that are held out for the attribute."""
    faces = town().chosen(exclude={"occupation": HELD_OUT[attribute]})
    return collect(features.vlm, faces, sites, features=features)


def discover(cache: FeatureCache, attribute: str, sites: str = SITE, method: str = "ggss") -> Steerer:
    """A steerer for an attribute, fitted on the town."""
    return fit(method, activations(cache, attribute, sites), attribute=attribute)


def random_control(steerer: Steerer, cache: FeatureCache, seed: int = 0) -> Steerer:
    """The same update with as many random directions, and a gate calibrated on them: it should reduce nothing."""
    generator = torch.Generator().manual_seed(seed)
    sites = "all" if len(steerer.operators) > 1 else SITE
    acts = activations(cache, str(steerer.attribute), sites)
    operators = {}
    for site, operator in steerer.operators.items():
        assert isinstance(operator, Geodesic)
        points = representatives(acts.at(site).pooled)
        basis = torch.linalg.qr(torch.randn(*operator.basis.shape, generator=generator, dtype=torch.float64))[0]
        magnitudes = protected_magnitude(points, sphere.frechet_mean(points), basis)
        operators[site] = replace(
            operator,
            basis=basis.float(),
            gate_median=float(magnitudes.quantile(0.5)),
            gate_std=float(magnitudes.std(correction=0)),
        )
    return replace(steerer, operators=operators)


@cache
def suite(split: str = "evaluation") -> Suite:
    return small_world(split)


def unsteered(model: SteeredModel, split: str = "evaluation") -> dict[str, Run]:
    """Unsteered runs of the bias tasks on the identities of a split, by task."""
    tasks = [task for task in suite(split).default if get(task).kind == "bias"]
    return {task: ask(model, suite(split), task) for task in tasks}


def bias_changes(
    before: Mapping[str, Run], steered: Mapping[str, SteeredModel], split: str = "evaluation"
) -> dict[str, Comparison]:
    """The bias tasks under steering, compared with their unsteered runs. steered: the model by steered attribute."""
    return {task: compare(run, ask(steered[run.about], suite(split), task)) for task, run in before.items()}


def selected_alpha(model: SteeredModel, steerers: Mapping[str, Steerer]) -> float:
    """The best-avg-alpha on the selection identities. steerers: by attribute."""
    before = unsteered(model, "selection")
    sweep = {
        alpha: bias_changes(before, {a: model.steered(s, alpha) for a, s in steerers.items()}, "selection")
        for alpha in ALPHAS
    }
    alpha = best_alpha(sweep)
    if alpha is None:
        raise InputError(f"{model.vlm.name} shows no bias that a strength could be selected by: check its answers")
    return alpha


def _recognition(attribute: str) -> str:
    return f"recognition-{attribute}"


def _steerer_folder(folder: Path, attribute: str) -> Path:
    return folder / f"{attribute}-steerer"


def _discovered(cache: FeatureCache, manifest: Path, attribute: str) -> Steerer:
    """A steerer fitted on the painted files, as on a user's, without the occupations that are held out."""
    faces = Counterfactuals.load(manifest, exclude={"occupation": HELD_OUT[attribute]})
    faces.validate()
    return fit("ggss", collect(cache.vlm, faces, "all", features=cache), attribute=attribute)


def person_answers(person: Person, plain: SteeredModel, steered: SteeredModel, steerer: Steerer) -> PersonAnswers:
    """A person in five races: what the model says they earn, before and after, and the gate of each token."""
    portraits = [Portrait(person, race, GENDERS[1]) for race in RACES]
    items = [as_item(ask_salary(portrait)) for portrait in portraits]
    answers = []
    for model in (plain, steered):
        readings = model.read(items, max_new_tokens=1)
        answers.append([item.options.get(a.text, f"({a.text})") for item, a in zip(items, readings, strict=True)])
    gates = []
    for features in plain.cache.features(portraits):
        gate = gate_map(steerer, plain.vlm, features)
        assert gate is not None
        gates.append(gate)
    return PersonAnswers(portraits, answers[0], answers[1], gates)


def write_picture(people: list[PersonAnswers], alpha: float, target: Path) -> Path:
    """Draw the demo's picture, a row of faces and a row of gates for each person, and write it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    columns = len(people[0].portraits)
    centred = {"fontsize": 13, "ha": "center"}
    figure, axes = plt.subplots(
        2 * len(people), columns, figsize=(2.15 * columns, 4.9 * len(people) + 1.6), squeeze=False, facecolor="white"
    )
    for number, person in enumerate(people):
        for column, portrait in enumerate(person.portraits):
            face, heat = axes[2 * number, column], axes[2 * number + 1, column]
            pixels = np.asarray(portrait.paint_large())
            face.imshow(pixels)
            heat.imshow(np.asarray(Image.fromarray(pixels).convert("L")), cmap="gray", vmin=-60, vmax=255)
            heat.imshow(_heat(person.gates[column], len(pixels)), cmap="inferno", vmin=0.3, vmax=1, alpha=0.6)
            if number == 0:
                face.set_title(portrait.race, color=INK, fontsize=15, pad=10)
            face.set_xlabel(plot(f"before: {person.before[column]}"), color=BEFORE, fontsize=13, labelpad=6)
            face.text(
                0.5, -0.24, plot(f"after: {person.after[column]}"), color=AFTER, **centred, transform=face.transAxes
            )
        occupation = person.portraits[0].person.occupation
        axes[2 * number, 0].set_ylabel(occupation, color=INK, fontsize=15, labelpad=10)
        axes[2 * number + 1, 0].set_ylabel("gate", color=SOFT, fontsize=13, labelpad=10)
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
    """The gate, interpolated to the size of the picture."""
    return np.asarray(Image.fromarray(gate.astype(np.float32)).resize((side, side), Image.Resampling.BICUBIC))
