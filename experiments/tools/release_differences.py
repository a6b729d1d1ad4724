"""Measure what each setting of the authors' released code is worth, one at a time and all together.

`make fidelity` prints the table and writes release_differences.json beside this file, and docs/fidelity.md from it.

On planted tokens: how far the steered tokens of a question about two pictures are apart, as a share of their movement
at alpha 1; the cosine of the largest angle between the two subspaces; how far the default is from a float64
transcription of the paper's text (tests/paper_transcription.py), and how far the option is from one of the authors'
code (tests/release_transcription.py).

On the small world: the published metrics of a model at alpha 1, by default and with the option, and how many answers
differ. Its pictures have one size, 64 pixels, so `max_side` halves them, as 512 halves 1024. Its 2AFC question does
not name the pictures; for the layout they are named in it, which the models have not seen in training.

Some directions of the released INLP and BendVLM are rounding errors, and machines round differently. There a metric
is given as the smallest and the largest of five fits, to tokens that differ by about a millionth.

On mock files of the true layout: how many questions there are. With image processors that are set as the published
ones: how many rows of a picture of 1024 pixels are steered.
"""

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import yaml

import ggss
from experiments.tools import mock_paper
from experiments.training.architectures import build
from ggss.activations import Activations, Rows
from ggss.activations.collect import SEED, kept_tokens
from ggss.analysis.asking import ask
from ggss.analysis.run import Run
from ggss.data.counterfactuals import Counterfactuals
from ggss.data.pictures import PICTURE
from ggss.methods import bend
from ggss.methods.registry import UNSTEERED
from ggss.models import Vlm
from ggss.models.features import FeatureCache
from ggss.models.sites import MLP2
from ggss.probes import suites
from ggss.probes.base import Item
from ggss.probes.steered_model import SteeredModel
from ggss.probes.suites import sample_pairs
from ggss.probes.wording import PromptShape, released
from ggss.steering.fitting import subspace_cosine
from ggss.steering.steerer import Steerer
from tests import invented_release, paper_transcription, release_transcription

ROOT = Path(__file__).resolve().parents[2]
MEASURED = Path(__file__).with_suffix(".json")
VALUES = "abcde"
TASKS = ("mcq", "2afc", "nurse-doctor")
ATTRIBUTES = {"mcq": "race", "2afc": "race", "nurse-doctor": "gender", "smallstar": "race"}
DISCOVERED_ON = {"race": ("cook", "doctor", "lawyer", "nurse", "teacher"), "gender": ("cook", "lawyer", "teacher")}
PEOPLE = 60  # about so many items of each task
FITS = 5  # where rounding decides
MILLIONTH = 1e-6
LINE = "answer with one letter ."  # words that the small world's models know


@dataclass(frozen=True)
class Effect:
    """tokens, cosine, paper, release: as said above; None where there is none.

    metrics: by task, by default and with the option; by default, smallest and largest where rounding decides.
    changed: answers that differ, of how many. counts: by name, by default and with the option.
    """

    tokens: float | None = None
    cosine: float | None = None
    paper: float | None = None
    release: float | None = None
    metrics: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    changed: tuple[int, int] | None = None
    counts: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def planted_table(contexts: int = 24, values: int = 5, positions: int = 6, width: int = 96, seed: int = 0) -> Any:
    """A table [U, A, T, D] of float32 numbers with a person, a place in the picture and a value in each token."""
    draw = np.random.default_rng(seed)
    axes = np.linalg.qr(np.random.default_rng(1).normal(size=(width, width)))[0]
    value = np.random.default_rng(2).normal(size=(values, 4)) @ axes[:, :4].T * 0.8
    person = draw.normal(size=(contexts, 1, 1, 20)) @ axes[:, 5:25].T * 0.5
    place = draw.normal(size=(1, 1, positions, 10)) @ axes[:, 50:60].T * 0.6
    noise = 0.4 * draw.normal(size=(contexts, values, positions, width))
    return (3 * axes[:, 40] + person + place + value[None, :, None] + noise).astype(np.float32).astype(float)


def planted_activations(table: Any) -> Activations:
    labels = release_transcription.labels(table)
    return Activations(
        [torch.tensor(image).float() for image in release_transcription.flat(table)],
        [{"value": VALUES[label]} for label in labels],
        [context for context in range(len(table)) for _ in range(table.shape[1])],
    )


TABLE = planted_table()
UNEQUAL = TABLE * np.exp(0.5 * np.random.default_rng(3).normal(size=TABLE.shape[:-1]))[..., None]  # norms of tokens
PAIR = planted_table(seed=5)[3, [1, 3]].reshape(-1, TABLE.shape[-1])  # the tokens of a question about two pictures
OWNERS = torch.tensor([0] * 6 + [1] * 6)


def released_options() -> dict[str, dict[str, Any]]:
    """By method, its options in the plan `release`."""
    methods = yaml.safe_load((ROOT / "studies" / "release.yaml").read_text(encoding="utf-8"))["methods"]
    return {one["name"]: one.get("options", {}) for one in methods if isinstance(one, dict) and "label" not in one}


def switches() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each option of the plan `release` alone, then all of a method together."""
    for method, options in released_options().items():
        for name, value in options.items():
            yield method, {name: value}
        if len(options) > 1:
            yield method, options


def label(method: str, options: Mapping[str, Any]) -> str:
    return f"{method}: {' '.join(f'{name}={value}' for name, value in options.items())}"


def by_rounding(name: str) -> bool:
    """Whether rounding errors decide some directions under a switch of this name."""
    return "components=" in name or "projector=" in name or name.endswith("seed")


# On planted tokens


def fitted(method: str, options: Mapping[str, Any], table: Any = TABLE) -> Steerer:
    return ggss.fit(method, planted_activations(table), attribute="value", **options)


def steered(steerer: Steerer, alpha: float = 1.0) -> Any:
    return steerer.steer(torch.tensor(PAIR).float(), OWNERS, alpha).double().numpy()


def share(one: Any, other: Any) -> float:
    """How far steered tokens are apart, as a share of the movement of the second."""
    return float(np.linalg.norm(one - other) / np.linalg.norm(other - PAIR))


def between(default: Steerer, changed: Steerer, alpha: float = 1.0) -> Effect:
    """How far apart two steerers of a method are, and their subspaces if they project on one."""
    bases = [steerer.operators[MLP2].tensors().get("basis") for steerer in (default, changed)]
    by_image = default.method.startswith(("meandiff", "bend"))
    cosine = None if by_image or None in bases else subspace_cosine(default, changed)
    return Effect(share(steered(default, alpha), steered(changed, alpha)), cosine)


def on_tokens(method: str, options: Mapping[str, Any]) -> Effect:
    default, changed = fitted(method, {}), fitted(method, options)
    effect = between(default, changed)
    if options != released_options()[method]:
        return effect
    text = paper_transcription.METHODS.get(method)
    paper = None if text is None else share(steered(default), text(TABLE)(PAIR, 1.0))
    return replace(
        effect, paper=paper, release=share(steered(changed), release_transcription.METHODS[method](TABLE)(PAIR, 1.0))
    )


def norms_below_full_strength(alpha: float = 0.5) -> Effect:
    """At alpha 1 both forms have the norm of the mean token."""
    return between(fitted("bend-spherical", {}), fitted("bend-spherical", {"norms": "release"}), alpha)


def unequal_norms() -> Effect:
    """A reference point of pooled rows weighs tokens by their norms, one of unit tokens does not."""
    default, changed = (fitted("svd-token-spherical", options, UNEQUAL) for options in ({}, {"form": "release"}))
    return between(default, changed)


def other_tokens(method: str) -> Effect:
    """Fitted to other 2,048 of the 2,880 tokens that LLaVA-NeXT has of a picture: those of another permutation."""
    table = planted_table(contexts=4, positions=2880)
    first, second = (fitted(method, {}, table[:, :, kept_tokens(2880, seed=seed)]) for seed in (SEED, SEED + 1))
    return between(first, second)


def rounding_of_bend(method: str) -> Effect:
    """Two seeds of the randomised SVD, which differ in the directions that are rounding errors alone."""
    options, kept = released_options()[method], bend.SEED
    first = steered(fitted(method, options))
    try:
        bend.SEED = kept + 1
        return Effect(share(steered(fitted(method, options)), first))
    finally:
        bend.SEED = kept


def bfloat16_means() -> Effect:
    """GGSS fitted to pooled rows that are rounded to bfloat16."""
    acts = planted_activations(TABLE)
    rounded = [tokens.mean(0, keepdim=True).bfloat16().float() for tokens in acts.tokens]
    changed = ggss.fit("ggss", Activations(rounded, acts.attributes, acts.contexts), attribute="value")
    return between(fitted("ggss", {}), changed)


def inlp_of_tokens(method: str) -> Effect:
    """INLP fitted to single tokens instead of pooled rows, to as many as the release draws or to all."""
    acts = planted_activations(TABLE)
    alone = Activations(
        [row[None] for tokens in acts.tokens for row in tokens],
        [attributes for tokens, attributes in zip(acts.tokens, acts.attributes, strict=True) for _ in tokens],
        [
            (context, i)
            for tokens, context in zip(acts.tokens, acts.contexts, strict=True)
            for i in range(len(tokens))
        ],
    )
    changed = ggss.fit(method, alone, attribute="value")
    return between(fitted(method, {}), changed)


ON_TOKENS: dict[str, Callable[[], Effect]] = (
    {label(method, options): partial(on_tokens, method, options) for method, options in switches()}
    | {f"{method}: seed": partial(rounding_of_bend, method) for method in ("bend-euclidean", "bend-spherical")}
    | {f"{method}: tokens": partial(inlp_of_tokens, method) for method in ("inlp-euclidean", "inlp-spherical")}
    | {
        f"{method}: other tokens": partial(other_tokens, method)
        for method in ("svd-token-spherical", "inlp-euclidean")
    }
    | {
        "bend-spherical: norms=release, alpha 0.5": norms_below_full_strength,
        "svd-token-spherical: form=release, unequal norms": unequal_norms,
        "ggss: pooling=release": bfloat16_means,
    }
)


# On the small world


@dataclass(frozen=True)
class Setting:
    """How a model is fitted and asked. prompt: what a question becomes. fit: of those where rounding decides, 0: the
    tokens as they are."""

    method: str = "ggss"
    options: tuple[tuple[str, Any], ...] = ()
    pooling: Any = "kept"
    pairs: float = 1.0
    batch_size: int = 16
    parser: Any = "careful"
    max_side: int | None = None
    prompt: Callable[[str], str] = str
    tasks: tuple[str, ...] = TASKS
    fit: int = 0


def named_pictures(prompt: str) -> str:
    return f"the first {PICTURE} the second {PICTURE} {prompt}"


def pictures_first(prompt: str) -> str:
    return PromptShape(layout="pictures-first")(named_pictures(prompt))


def system_turn(prompt: str) -> str:
    return PromptShape(system=LINE)(prompt)


def line_more(prompt: str) -> str:
    return f"{prompt}\n{LINE}"


def _answered() -> Iterator[tuple[str, str, Setting, Setting]]:
    """Name, model, default and option of each switch."""
    for method, options in switches():
        default = Setting(method)
        yield label(method, options), "qwen3-vl", default, replace(default, options=tuple(options.items()))
    alone = {"pooling": "release", "pairs": 0.5, "batch_size": 1, "parser": "release"}
    for name, value in alone.items():
        yield label("ggss", {name: value}), "qwen3-vl", Setting(), replace(Setting(), **{name: value})
    yield "ggss: all", "qwen3-vl", Setting(), replace(Setting(), **alone)
    for method in (UNSTEERED, "ggss"):
        default, kind = Setting(method), "unsteered" if method == UNSTEERED else method
        for model in ("pixtral", "llava-vicuna", "qwen3-vl"):
            yield f"{model}, {kind}: max_side", model, default, replace(default, max_side=32)
        yield f"qwen3-vl, {kind}: system", "qwen3-vl", default, replace(default, prompt=system_turn)
        pair = replace(default, prompt=named_pictures, tasks=("2afc",))
        for model in ("pixtral", "llava-vicuna"):
            yield f"{model}, {kind}: layout", model, pair, replace(pair, prompt=pictures_first)
        star = replace(default, tasks=("smallstar",))
        yield f"qwen3-vl, {kind}: suffix", "qwen3-vl", star, replace(star, prompt=line_more)


ANSWERED = {name: (model, default, option) for name, model, default, option in _answered()}


class SmallWorld:
    """A model of the small world, and its answers under a setting. What was asked is kept."""

    def __init__(self, model: str) -> None:
        self.cache = FeatureCache(ggss.load_vlm(f"small-world/{model}"))
        self.suite = suites.load("small-world", split="evaluation")
        self.faces = Counterfactuals.load("small-world")
        self.runs = cache(self._runs)
        self._fitted_to = cache(self._activations)

    def _runs(self, setting: Setting) -> dict[str, Run]:
        return {task: self._run(task, setting) for task in setting.tasks}

    def _run(self, task: str, setting: Setting) -> Run:
        model = SteeredModel(self.cache)
        if setting.method != UNSTEERED:
            attribute = ATTRIBUTES[task]
            acts = self._fitted_to(attribute, setting.pooling, setting.max_side, setting.fit)
            steerer = ggss.fit(setting.method, acts, attribute=attribute, **dict(setting.options))
            model = model.steered(steerer, 1.0)
        items: Sequence[Item] = self.suite.items(task)
        if task == "2afc" and setting.pairs < 1:
            items = sample_pairs(items, setting.pairs)
        asked = [replace(item, prompt=setting.prompt(item.prompt)) for item in items]
        suite = suites.Suite(self.suite.name, (task,), lambda _: asked).shrunk(setting.max_side)
        return ask(model, suite, task, 1, setting.batch_size, PEOPLE, show=False).read_by(setting.parser)

    def _activations(self, attribute: str, pooling: Any, max_side: int | None, fit: int) -> Activations:
        faces = self.faces.shrunk(max_side).chosen(include={"occupation": DISCOVERED_ON[attribute]})
        vlm = self.cache.vlm
        acts = ggss.collect(vlm, faces, keep_tokens=True, features=self.cache, pooling=pooling, show=False)
        if not fit:
            return acts
        draw = torch.Generator().manual_seed(fit)

        def moved(rows: torch.Tensor) -> torch.Tensor:
            return rows * (1 + MILLIONTH * torch.randn(rows.shape, generator=draw))

        rows = Rows(moved(acts.pooled), [moved(tokens) for tokens in acts.tokens])
        return Activations.from_rows({MLP2: rows}, acts.attributes, acts.contexts, acts.source)


class SmallWorlds:
    """Models by name, each loaded once."""

    def __init__(self) -> None:
        self.model = cache(SmallWorld)

    def effect(self, name: str, fits: int = FITS) -> Effect:
        """On answers. fits: how many, where rounding decides."""
        model, default, option = ANSWERED[name]
        world: SmallWorld = self.model(model)
        before = world.runs(default)
        if by_rounding(name):
            after = [world.runs(replace(option, fit=fit)) for fit in range(fits)]
            metrics = {task: [float(runs[task].metric) for runs in after] for task in before}
            return Effect(metrics={task: (float(before[task].metric), min(m), max(m)) for task, m in metrics.items()})
        runs = world.runs(option)
        metrics = {task: (float(before[task].metric), float(runs[task].metric)) for task in before}
        return Effect(metrics=metrics, changed=_changed(before, runs))


def _changed(before: Mapping[str, Run], after: Mapping[str, Run]) -> tuple[int, int]:
    """How many answers to the questions of both are read differently, and how many questions these are."""
    pairs = []
    for task, run in after.items():
        known = {item.key: read for item, read in zip(before[task].items, before[task].parsed.parsed, strict=True)}
        pairs += [(known[item.key], read) for item, read in zip(run.items, run.parsed.parsed, strict=True)]
    return sum(one != other for one, other in pairs), len(pairs)


# Of mock files and processors


class Questions:
    """How many questions a suite about a mock of FOCUS has."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        mock_paper.focus(folder, mock_paper.FOCUS.fixed["identity"], side=16)
        wording = released(invented_release.write(folder / "clone"))
        (folder / "wording.yaml").write_text(yaml.safe_dump(wording, sort_keys=False))

    def effect(self, pairs: float | None, wording: bool) -> Effect:
        counts = zip(TASKS, self._counts(), self._counts(pairs, wording), strict=True)
        return Effect(counts={task: (before, after) for task, before, after in counts})

    def _counts(self, pairs: float | None = None, wording: bool = False) -> list[int]:
        more: dict[str, Any] = {"pairs": pairs} if pairs else {}
        file = str(self.folder / "wording.yaml") if wording else None
        suite = suites.load("reflect", images=str(self.folder / "reflect.csv"), wording=file, **more)
        return [len(suite.items(task)) for task in TASKS]


def question_counts() -> dict[str, Effect]:
    with TemporaryDirectory() as folder:
        questions = Questions(Path(folder))
        return {
            "questions: wording": questions.effect(None, True),
            "questions: pairs=0.5": questions.effect(0.5, False),
            "questions: all": questions.effect(0.5, True),
        }


# As in the processors' files of the four models: pixels of a tile or of the longest side, and of a token.
PUBLISHED = {
    "pixtral": {"image_size": 1024, "patch_size": 16},
    "llava-vicuna": {"image_size": 336, "patch_size": 14},
    "qwen3-vl": {"image_size": 4096, "patch_size": 32},
}
TILES = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]


def published(name: str) -> Vlm:
    """A tiny model with an image processor that is set as that of the released one."""
    model, processor = build(name, ["word"], **PUBLISHED[name], width=16, layers=1, heads=1, deepstack=(0,))
    if name.startswith("llava"):
        model.config.image_grid_pinpoints = processor.image_processor.image_grid_pinpoints = TILES
    return Vlm(model, processor)


def picture_rows(name: str, side: int) -> int:
    """The rows of a square picture of so many pixels that are steered."""
    vlm = published(name)
    inputs = vlm.processor.image_processor([mock_paper.noise(0, side)], return_tensors="pt")
    return sum(vlm.family.rows_per_image(vlm.model, inputs))


def picture_counts() -> dict[str, Effect]:
    counts = {name: (picture_rows(name, 1024), picture_rows(name, 512)) for name in PUBLISHED}
    return {"rows of 1024 pixels: max_side": Effect(counts=counts)}


def measure(show: Callable[[str], None] = lambda name: None) -> dict[str, Effect]:
    """By name, the effect of each switch."""
    worlds, effects = SmallWorlds(), dict[str, Effect]()
    for name in dict.fromkeys([*ON_TOKENS, *ANSWERED]):
        effect = ON_TOKENS[name]() if name in ON_TOKENS else Effect()
        if name in ANSWERED:
            answers = worlds.effect(name)
            effect = replace(effect, metrics=answers.metrics, changed=answers.changed)
        effects[name] = effect
        show(name)
    return effects | question_counts() | picture_counts()


def rounded(effect: Effect) -> dict[str, Any]:
    """With three digits, which is what other machines repeat where no rounding error decides. None: undefined."""
    numbers = {name: getattr(effect, name) for name in ("tokens", "cosine", "paper", "release")}
    found: dict[str, Any] = {name: float(f"{value:.3g}") for name, value in numbers.items() if value is not None}
    if effect.metrics:
        found["metrics"] = {
            task: [None if math.isnan(value) else round(value, 5) for value in values]
            for task, values in effect.metrics.items()
        }
    if effect.changed:
        found["changed"] = list(effect.changed)
    if effect.counts:
        found["counts"] = {name: list(pair) for name, pair in effect.counts.items()}
    return found


def line(name: str, effect: Mapping[str, Any]) -> str:
    cells = [f"{effect[key]:9.2g}" if key in effect else " " * 9 for key in ("tokens", "cosine", "paper", "release")]
    for task, values in effect.get("metrics", {}).items():
        cells.append(f"{task} {' '.join('-' if value is None else f'{value:.4f}' for value in values)}")
    cells += [f"{name} {' '.join(map(str, pair))}" for name, pair in effect.get("counts", {}).items()]
    if "changed" in effect:
        cells.append("{} of {} answers differ".format(*effect["changed"]))
    return f"{name:66} {'  '.join(cells)}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    effects = {name: rounded(effect) for name, effect in measure(lambda name: print(name, file=sys.stderr)).items()}
    print(f"{'':66} {'tokens':>9}  {'cosine':>9}  {'paper':>9}  {'release':>9}")
    for name, effect in effects.items():
        print(line(name, effect))
    MEASURED.write_text(json.dumps(effects, indent=1) + "\n", encoding="utf-8")
