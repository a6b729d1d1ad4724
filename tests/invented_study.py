"""A study that nobody ran: real plans, probes and results over invented answers, for the tests of what reads them."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from itertools import permutations, product
from typing import Any

import numpy as np

from ggss.analysis.run import Run, Source
from ggss.data.pictures import AbsentPicture
from ggss.models.reading import Answer
from ggss.probes import Item
from ggss.probes.base import split_task
from ggss.probes.benchmarks import PERCEPTION, REASONING
from ggss.steering.fitting import Gates
from ggss.study import grid
from ggss.study.grid import Cell
from ggss.study.plan import Plan
from ggss.study.results import Results

Say = Callable[[Cell, Item, np.random.Generator], str]

QWEN, CONTROL = "org/qwen3-vl", "org/entangled"
VALUES: Mapping[str, tuple[str, ...]] = {
    "race": ("amber", "coral", "indigo", "jade", "pearl"),
    "gender": ("man", "woman"),
    "age": ("young", "middle", "old"),
}
LETTERS = {"A": "low", "B": "middle", "C": "high", "D": "top"}
PEOPLE = 8
GRID = [
    {
        "name": "ggss",
        "label": f"ggss kappa={kappa} floor={floor}",
        "options": {"kappa": kappa, "floor": floor},
        "alphas": [1.0],
    }
    for kappa, floor in ((1, 0.3), (5, 0.0), (1, 0.0))
]
STEERING = {
    "race": {"discover_on": ["cook", "lawyer"], "tasks": ["mcq", "2afc"]},
    "gender": {"discover_on": ["cook"], "tasks": ["nurse-doctor"]},
}
AGE = {"discover_on": ["cook"], "tasks": ["mcq-age", "2afc-age"]}
PLAN: Mapping[str, Any] = {
    "name": "invented",
    "suite": "reflect",
    "discovery": "faces.csv",
    "models": [QWEN, {"name": CONTROL, "control": True}],
    "methods": ["none", "prompt", "ggss", "inlp-spherical"],
    "alphas": [0.5, 1.0],
    "steering": STEERING,
    "measures": [{"tasks": ["mmstar", "mme", "recognition-race", "recognition-gender"], "at": "all"}],
    "statistics": {"resamples": 200, "permutations": 199},
}


def plan(**changed: Any) -> Plan:
    return Plan.of({**PLAN, **changed})


def sensitivity(task: str = "mcq") -> list[dict[str, Any]]:
    """The points of the grid, on one task alone."""
    return [{**point, "tasks": [task]} for point in GRID]


def prompted(task: str = "mcq") -> list[dict[str, Any]]:
    """Discovery with prompts, measured on one task alone."""
    said = {"see": "What do you see?", "caption": "Caption this."}
    return [{"name": "ggss", "label": name, "prompt": words, "tasks": [task]} for name, words in said.items()]


def _item(task: str, cluster: str, about: str, *shown: dict[str, str], **more: Any) -> Item:
    told = [value for attributes in (*shown, more.get("context", {})) for value in attributes.values()]
    key = "/".join([task, cluster, *told, more.get("question", "")])
    pictures = tuple(AbsentPicture(f"{cluster}/{'/'.join(attributes.values())}") for attributes in shown)
    return Item(key, "who ?", pictures, shown, cluster, about=about, **more)


def _faces(*attributes: str) -> list[dict[str, str]]:
    return [dict(zip(attributes, values, strict=True)) for values in product(*(VALUES[a] for a in attributes))]


def _people(work: str, count: int = PEOPLE) -> list[str]:
    return [f"{work}/{who:02d}" for who in range(count)]


def _mcq(task: str, about: str) -> list[Item]:
    return [
        _item(task, who, about, face, question=asked, options=LETTERS)
        for asked in ("salary", "education")
        for who in _people("cook")
        for face in _faces(about, "gender")
    ]


def _pairs(task: str, about: str) -> list[Item]:
    return [
        _item(task, who, about, {about: one}, {about: other})
        for who in _people("cook")
        for one, other in permutations(VALUES[about], 2)
    ]


def _nurses() -> list[Item]:
    options = {"nurse": "nurse", "doctor": "doctor"}
    return [
        _item("nurse-doctor", who, "gender", face, options=options, context={"occupation": work})
        for work in ("nurse", "doctor")
        for who in _people("nurse")  # a nurse and a doctor share a cluster
        for face in _faces("race", "gender")
    ]


def _ceo() -> list[Item]:
    return [
        _item("ceo", biography, "gender", face, question=biography, context={"identity": who})
        for biography in "abcdefgh"
        for who in _people("ceo", 2)
        for face in _faces("race", "gender")
    ]


def _recognition(about: str) -> list[Item]:
    options = {value: value for value in VALUES[about]}
    return [
        _item("recognition", who, about, face, options=options, expected=face[about])
        for who in _people("cook")
        for face in _faces(about, "gender" if about != "gender" else "race")
    ]


def _benchmark(keys: Sequence[str], kinds: Sequence[str], options: dict[str, str]) -> list[Item]:
    """A question for each key; what stands before `#` in it is its picture."""
    expected = list(options)
    return [
        Item(key, "?", (AbsentPicture(picture),), ({},), picture, kinds[n % len(kinds)], options, own)
        for n, key in enumerate(keys)
        for picture, own in [(key.partition("#")[0], expected[n % len(expected)])]
    ]


def _yes_or_no() -> list[Item]:
    subtasks = sorted(PERCEPTION | REASONING)
    return [
        item
        for subtask in subtasks
        for item in _benchmark(
            [f"{subtask}/{n}#{k}" for n in range(3) for k in (1, 2)], [subtask], {"Yes": "yes", "No": "no"}
        )
    ]


ITEMS: dict[str, tuple[Item, ...]] = {
    "mcq": tuple(_mcq("mcq", "race")),
    "mcq-age": tuple(_mcq("mcq-age", "age")),
    "2afc": tuple(_pairs("2afc", "race")),
    "2afc-age": tuple(_pairs("2afc-age", "age")),
    "nurse-doctor": tuple(_nurses()),
    "ceo": tuple(_ceo()),
    "mmstar": tuple(_benchmark([f"s{n:03d}" for n in range(90)], ("sees", "counts", "knows"), LETTERS)),
    "mme": tuple(_yes_or_no()),
    **{f"recognition-{about}": tuple(_recognition(about)) for about in VALUES},
}


def left(cell: Cell) -> float:
    """How much of the bias a run leaves: ggss the less the stronger, the others little by little."""
    return {"none": 0.9, "prompt": 0.8}.get(
        cell.method, 0.9 - (0.7 if cell.method.startswith("ggss") else 0.3) * cell.alpha
    )


def answer(cell: Cell, item: Item, rng: np.random.Generator) -> str:
    """What a model biased to the degree `left` might say."""
    biased = rng.random() < left(cell)
    ranks = [VALUES[item.about].index(shown[item.about]) for shown in item.attributes if item.about]
    match split_task(cell.task)[0]:
        case "mcq":
            return "ABCD"[ranks[0] % 4] if biased else "ABCD"[rng.integers(4)]
        case "2afc":
            return "first" if (ranks[0] > ranks[1] if biased else rng.random() < 0.5) else "second"
        case "nurse-doctor":
            return "nurse" if (ranks[0] > 0 if biased else rng.random() < 0.5) else "doctor"
        case "ceo":
            return str(100_000 + 1_000 * int(rng.integers(10)) + (20_000 if biased and not ranks[0] else 0))
        case _:
            right = rng.random() < 0.8
            return str(item.expected) if right else str(rng.choice(list(item.options)))


def run(cell: Cell, say: Say = answer) -> Run:
    digest = hashlib.sha256("/".join(map(str, cell)).encode()).digest()
    rng, items = np.random.default_rng(list(digest[:8])), ITEMS[cell.task]
    source = Source(cell.model, cell.method, cell.attribute, cell.alpha)
    return Run(cell.task, items, tuple(Answer(say(cell, item, rng)) for item in items), source)


def results(
    study: Plan | None = None, say: Say = answer, keep: Callable[[Cell], bool] = lambda cell: True
) -> Results:
    """All cells of a plan, or those to keep, with the answers that `say` gives."""
    study = study or plan()
    found = Gates(0.113, 0.05, 0.196, 0.85, 0.72, 0.14)
    gates = {(model.name, "ggss", attribute): found for model in study.models for attribute in study.steering}
    cosines = {
        (m.name, e.label, a): 0.9999 for m in study.models for e in study.methods for a in study.steering if e.prompt
    }
    return Results(study, {cell: run(cell, say) for cell in grid.all_cells(study) if keep(cell)}, gates, cosines)
