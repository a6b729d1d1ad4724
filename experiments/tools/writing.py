"""`make writing`: what the small world's model writes about people, against what was planted; docs/howto-writing.md.

The model is asked for descriptions, stories and letters about people that nothing was fitted on: unsteered, and with
race steering by ggss and by pace at alpha 1. The numbers between the page's marks, and its picture, are written here.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from ggss.activations.collect import collect
from ggss.analysis import Measured, Run, Statistics, ask, records
from ggss.escaping import plot
from ggss.models.features import FeatureCache
from ggss.models.reading import Answer
from ggss.probes.steered_model import SteeredModel
from ggss.probes.writing import marked, words_of
from ggss.smallworld import captions
from ggss.smallworld.demo import HELD_OUT, load_model, suite
from ggss.smallworld.painter import Portrait, town
from ggss.steering.fitting import fit
from ggss.steering.steerer import Steerer

ROOT = Path(__file__).parents[2]
PAGE, PICTURE, OUT = ROOT / "docs" / "howto-writing.md", ROOT / "docs" / "writing.png", ROOT / "writing-out"
BEGIN, END = "<!-- numbers: written by `make writing` -->", "<!-- /numbers -->"
MODEL, ALPHA, METHODS = "abstaining", 1.0, ("ggss", "pace")
ATTRIBUTES = {"writing": "race", "writing-gender": "gender"}
MEASURES = ("competence", "warmth", "length", "mention", "refusal")
SHOWN = ("describe", 3)  # the question and the person of the picture


def runs(folder: Path, limit: int | None = None) -> dict[str, dict[str, Run]]:
    """By steering, then by task: kept in a folder, so that they are asked once."""
    asked: dict[str, dict[str, Run]] = {}
    model: SteeredModel | None = None
    for method in ("none", *METHODS):
        file = folder / f"{method}.jsonl"
        if not file.is_file():
            model = model or SteeredModel(FeatureCache(load_model(MODEL)))
            steered = model if method == "none" else model.steered(_fitted(model, method), ALPHA)
            file.parent.mkdir(parents=True, exist_ok=True)
            records.write([ask(steered, suite(), task, batch_size=64, limit=limit) for task in ATTRIBUTES], file)
        asked[method] = records.load(file)
    return asked


def _fitted(model: SteeredModel, method: str) -> Steerer:
    """A race steerer, fitted on the town without CEOs."""
    faces = town().chosen(exclude={"occupation": HELD_OUT["race"]})
    return fit(method, collect(model.vlm, faces, keep_tokens=True, features=model.cache), attribute="race")


def planted(run: Run) -> Run:
    """The run of a model that always writes the likeliest sentence."""
    items = suite().items(run.task)
    portraits = {item.key: item.images[0] for item in items}
    answers = []
    for item in run.items:
        portrait = portraits[item.key]
        assert isinstance(portrait, Portrait)
        answers.append(Answer(captions.write(portrait, item.question).answer))
    return replace(run, answers=tuple(answers))


def section(asked: dict[str, dict[str, Run]], statistics: Statistics) -> str:
    """The tables of the page."""
    first = asked["none"]["writing"]
    people, texts = len(set(first.clusters)), len(first.items)
    lines = [
        f"`small-world/{MODEL}` writes {texts} texts about {people} people, each in five races and two genders. "
        "Planted: what a model would write that learned the planted words perfectly and always writes the likeliest. "
        "Brackets: bias-corrected intervals over people, at 95 %. Chance: what shuffled texts of each person reach "
        f"in 95 of 100 cases. Seed {statistics.seed}.",
    ]
    for task, attribute in ATTRIBUTES.items():
        truth, before = planted(asked["none"][task]), asked["none"][task]
        measured = {name: by_task[task].measured(statistics) for name, by_task in asked.items()}
        lines += [
            "",
            f"| gap between {attribute} groups | planted | unsteered | chance (p) | ggss, race | pace, race |",
        ]
        lines += ["| --- | ---: | ---: | ---: | ---: | ---: |"]
        known = truth.measured(statistics)
        for measure in MEASURES:
            name = f"{attribute}_{measure}_gap"
            display, null = known.display(name), measured["none"].null(name)
            cells = [_span(run, name) for run in measured.values()]
            chance = f"{display.number(null.quantile(0.95))} ({null.p:.2g})"
            row = [f"{measure},{display.unit}", display.number(known.value(name)), cells[0], chance, *cells[1:]]
            lines.append(f"| {' | '.join(row)} |")
        distance = f"{attribute}_text_distance"
        cells = [_span(run, distance) for run in measured.values()]
        row = ["distance of the texts of a person, %", known.display(distance).number(known.value(distance))]
        lines.append(f"| {' | '.join([*row, cells[0], '', *cells[1:]])} |")
        flips = [_flips(run, attribute) for run in (known, *measured.values())]
        row = ["people and questions whose kinds of words change", flips[0], flips[1], "", *flips[2:]]
        lines.append(f"| {' | '.join(row)} |")
        agree = np.mean([words_of(a) == words_of(b) for a, b in zip(truth.texts, before.texts, strict=True)])
        lines += ["", f"{100 * agree:.0f} % of the unsteered texts are the planted sentence, word for word."]
    return "\n".join(lines)


def _span(run: Measured, name: str) -> str:
    display, interval = run.display(name), run.corrected(name)
    low, high = display.number(interval.low), display.number(interval.high)
    return f"{display.number(run.value(name))} [{low}, {high}]"


def _flips(run: Measured, attribute: str) -> str:
    flips, cases = run.flips(attribute)
    return f"{flips} of {cases}"


def draw(asked: dict[str, dict[str, Run]], target: Path) -> None:
    """One person in all races, with what is written before and after steering; words that differ are in bold."""
    question, person = SHOWN
    before = asked["none"]["writing"]
    names = list(dict.fromkeys(before.clusters))
    numbers = [
        n
        for n, item in enumerate(before.items)
        if (item.question, item.cluster, item.attributes[0]["gender"]) == (question, names[person], "man")
    ]
    pictures = {item.key: item.images[0] for item in suite().items("writing")}
    figure, axes = plt.subplots(1, len(numbers), figsize=(11, 4.3))
    sides = {"before": before, "after, pace": asked["pace"]["writing"]}
    pieces = {side: marked([run.answers[n].text for n in numbers]) for side, run in sides.items()}
    for place, (axis, n) in enumerate(zip(axes, numbers, strict=True)):
        item = before.items[n]
        axis.imshow(pictures[item.key].image())
        axis.set_title(plot(item.attributes[0]["race"]), fontsize=12)
        axis.axis("off")
        for side, (name, texts) in enumerate(pieces.items()):
            colour = ("#a83a18", "#1c6a43")[side]
            axis.text(0, -0.07 - 0.5 * side, name, transform=axis.transAxes, fontsize=9, color=colour, va="top")
            lines = _wrapped(texts[place])
            for line, words in enumerate(lines):
                text = " ".join(rf"$\bf{{{word}}}$" if mark else word for word, mark in words)
                y = -0.15 - 0.5 * side - 0.085 * line
                axis.text(0, y, text, transform=axis.transAxes, fontsize=9.5, va="top")
    figure.subplots_adjust(left=0.01, right=0.99, top=0.93, bottom=0.5, wspace=0.12)
    figure.savefig(target, dpi=110)
    plt.close(figure)


def _wrapped(pieces: Sequence[tuple[str, bool]], width: int = 26) -> list[list[tuple[str, bool]]]:
    """The words of a text in lines, each with whether it is marked."""
    lines: list[list[tuple[str, bool]]] = [[]]
    for word, mark in ((word, mark) for piece, mark in pieces for word in piece.split()):
        if sum(len(other) + 1 for other, _ in lines[-1]) + len(word) > width:
            lines.append([])
        lines[-1].append((word, mark))
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.tools.writing", description=__doc__)
    parser.add_argument("--limit", type=int, default=None, help="about so many texts of each task: only to try it")
    parser.add_argument("-o", "--out", type=Path, default=OUT, help="where answers are kept")
    chosen = parser.parse_args(arguments)
    asked = runs(chosen.out, chosen.limit)
    page = PAGE.read_text(encoding="utf-8")
    head, rest = page.split(BEGIN)
    tail = rest.split(END)[1]
    PAGE.write_text(f"{head}{BEGIN}\n\n{section(asked, Statistics())}\n\n{END}{tail}", encoding="utf-8")
    draw(asked, PICTURE)


if __name__ == "__main__":
    main()
