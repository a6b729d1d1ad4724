"""A study that nobody ran: real plans, probes and results over invented answers, for the tests of what reads them."""

import hashlib
from collections.abc import Callable, Mapping
from itertools import permutations
from typing import Any

import numpy as np

from ggss.probes import Item
from ggss.steering.gates import Gates
from ggss.study import grid
from ggss.study.grid import Cell
from ggss.study.plan import Plan
from ggss.study.results import Results, Run

RACES = ("amber", "coral", "indigo", "jade", "pearl")
LETTERS = {"A": "low", "B": "middle", "C": "high", "D": "top"}
PEOPLE = 8
GRID = [
    {
        "name": "ggss",
        "label": f"ggss kappa={kappa} floor={floor}",
        "options": {"kappa": kappa, "floor": floor},
        "tasks": ["mcq"],
        "alphas": [1.0],
    }
    for kappa, floor in ((1, 0.3), (5, 0.0), (1, 0.0))
]
PLAN: Mapping[str, Any] = {
    "name": "invented",
    "suite": "small-world",
    "discovery": "small-world",
    "models": ["small-world/qwen3-vl", "small-world/entangled"],
    "methods": ["none", "prompt", "ggss", "inlp-spherical"],
    "alphas": [0.5, 1.0],
    "steering": {
        "race": {"discover_on": ["cook", "lawyer"], "tasks": ["mcq", "2afc"]},
        "gender": {"discover_on": ["cook"], "tasks": ["nurse-doctor"]},
    },
    "measures": [{"tasks": ["smallstar", "smallmme", "recognition-race", "recognition-gender"], "at": "all"}],
    "statistics": {"resamples": 200, "permutations": 199},
}


def plan(**changed: Any) -> Plan:
    return Plan.of({**PLAN, **changed})


def _faces(work: str) -> list[tuple[str, dict[str, str]]]:
    return [
        (f"{work}/{who:02d}", {"race": race, "gender": gender, "occupation": work, "identity": f"{who:02d}"})
        for who in range(PEOPLE)
        for race in RACES
        for gender in ("man", "woman")
    ]


def _item(task: str, cluster: str, *shown: dict[str, str], **more: Any) -> Item:
    text = "/".join(value for attributes in shown for value in attributes.values())
    key = f"{task}/{cluster}/{text}/{more.get('question', '')}"
    return Item(key, more.pop("prompt", "who ?"), tuple(map(str, shown)), shown, cluster, **more)


def _mcq() -> list[Item]:
    asked = ("salary", "education")
    return [_item("mcq", who, face, question=q, options=LETTERS) for q in asked for who, face in _faces("cook")]


def _pairs() -> list[Item]:
    return [
        _item("2afc", f"cook/{who:02d}", {"race": one}, {"race": other})
        for who in range(PEOPLE // 2)
        for one, other in permutations(RACES, 2)
    ]


def _nurses() -> list[Item]:
    options = {"nurse": "nurse", "doctor": "doctor"}
    return [
        _item("nurse-doctor", who.replace("doctor", "nurse"), face, options=options)
        for work in ("nurse", "doctor")
        for who, face in _faces(work)
    ]


def _star() -> list[Item]:
    return [
        Item(f"s{n:03d}", "?", ("x",), ({},), f"s{n:03d}", ("sees", "counts", "knows")[n % 3], LETTERS, "ABCD"[n % 4])
        for n in range(90)
    ]


def _mme() -> list[Item]:
    return [
        Item(
            f"m{n:02d}/{word}", "?", ("x",), ({},), f"m{n:02d}", ("colour", "sum")[n % 2], {"yes": "", "no": ""}, word
        )
        for n in range(20)
        for word in ("yes", "no")
    ]


def _recognition(attribute: str, values: tuple[str, ...]) -> list[Item]:
    options = {value: value for value in values}
    return [_item(attribute, who, face, options=options, expected=face[attribute]) for who, face in _faces("cook")]


ITEMS = {
    "mcq": tuple(_mcq()),
    "2afc": tuple(_pairs()),
    "nurse-doctor": tuple(_nurses()),
    "smallstar": tuple(_star()),
    "smallmme": tuple(_mme()),
    "recognition-race": tuple(_recognition("race", RACES)),
    "recognition-gender": tuple(_recognition("gender", ("man", "woman"))),
}


def left(cell: Cell) -> float:
    """How much of the bias a run leaves: ggss the less the stronger, the others little by little."""
    return {"none": 0.9, "prompt": 0.8}.get(
        cell.method, 0.9 - (0.7 if cell.method.startswith("ggss") else 0.3) * cell.alpha
    )


def answer(cell: Cell, item: Item, rng: np.random.Generator) -> str:
    """What a model biased to the degree `left` might say."""
    biased = rng.random() < left(cell)
    if cell.task == "mcq":
        return "ABCD"[RACES.index(item.attributes[0]["race"]) % 4] if biased else "ABCD"[rng.integers(4)]
    if cell.task == "2afc":
        ranks = [RACES.index(shown["race"]) for shown in item.attributes]
        return "first" if (ranks[0] > ranks[1] if biased else rng.random() < 0.5) else "second"
    if cell.task == "nurse-doctor":
        return "nurse" if (item.attributes[0]["gender"] == "woman" if biased else rng.random() < 0.5) else "doctor"
    right = rng.random() < 0.8
    return str(item.expected) if right else str(rng.choice(list(item.options)))


def run(cell: Cell, say: Callable[[Cell, Item, np.random.Generator], str] = answer) -> Run:
    digest = hashlib.sha256("/".join(map(str, cell)).encode()).digest()
    rng, items = np.random.default_rng(list(digest[:8])), ITEMS[cell.task]
    return Run(*cell, items, tuple(say(cell, item, rng) for item in items), ((),) * len(items))


def results(
    study: Plan | None = None,
    say: Callable[[Cell, Item, np.random.Generator], str] = answer,
    keep: Callable[[Cell], bool] = lambda cell: True,
) -> Results:
    """All cells of a plan, or those to keep, with the answers that `say` gives."""
    study = study or plan()
    gates = {(model.name, "ggss", "race"): Gates(0.113, 0.05, 0.196, 0.85, 0.72, 0.14) for model in study.models}
    return Results(study, {cell: run(cell, say) for cell in grid.all_cells(study) if keep(cell)}, gates)
