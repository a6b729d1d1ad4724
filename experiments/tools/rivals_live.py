"""The rows of docs/rivals.md that no plan can fit.

`dso` and `ala` learn from a live model's answers to the same questions about discovery pictures; `ala` changes
answers and no activations, so it has no steerer. `biopro` needs neutral pictures: scenes without people, those of
docs/pace.md.

`python -m experiments.tools.rivals_live FOLDER` learns and asks for every model of the study in a folder, and keeps
steerers and answers there. It can be stopped and run again.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.tools.pace import NEUTRAL, scenes
from ggss.activations import SITE
from ggss.activations.collect import collect
from ggss.analysis import Run, ask
from ggss.data.counterfactuals import Counterfactuals
from ggss.data.pictures import Picture
from ggss.files import write_whole
from ggss.models import load_vlm
from ggss.models.features import FeatureCache
from ggss.models.reading import Answer
from ggss.probes import Item, suites
from ggss.probes.steered_model import SteeredModel, live_questions
from ggss.steering.artefact import holds_steerer
from ggss.steering.fitting import fit, fit_live
from ggss.steering.steerer import Steerer
from ggss.study.plan import DiscoverySet, Plan
from ggss.study.results import Results
from ggss_rivals import ala
from ggss_rivals.ala import LogitAdjustment

QUESTIONS = 100  # of each bias task
SCENES_SEED = 7  # of the neutral pictures, as in docs/pace.md
BIOPRO = "biopro"
LIVE = ("dso", ala.LABEL, BIOPRO)
FACTS = "learned.json"  # what came of an adjustment


@dataclass
class LiveRows:
    """What no plan can fit, for its models and its first steered attribute; steerers and answers are in a folder."""

    plan: Plan
    folder: Path
    _model: tuple[str, SteeredModel] | None = field(default=None, repr=False)

    def runs(self, model: str, label: str) -> dict[str, Run]:
        """The plan's tasks under one of LIVE, at alpha 1. Answers are kept, too."""
        asked = self._opened(model)
        if label != ala.LABEL:
            asked = asked.steered(self._steerer(model, label), 1.0)
        adjustment = self._adjustment(model) if label == ala.LABEL and not self.finished(model, label) else None
        runs = {}
        for task in self.plan.tasks:
            file = self._place(model, label) / f"{task}.json"
            known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
            answered = {key: Answer(text, tuple(shares)) for key, (text, shares) in known.items()}
            run = ask(asked, self._suite(), task, limit=self.plan.limit, answered=answered)
            if adjustment is not None and not known:
                rows = self._pooled(model, run.items)
                run = replace(run, answers=tuple(adjustment.adjusted(run.items, run.answers, rows).answers))
            answers = {item.key: answer for item, answer in zip(run.items, run.answers, strict=True)}
            write_whole(file, json.dumps(answers).encode())
            if label == ala.LABEL:
                run = replace(run, source=replace(run.source, method=label, attribute=self._attribute, alpha=1.0))
            runs[task] = run
        return runs

    def finished(self, model: str, label: str) -> bool:
        """Whether all answers are there."""
        return all((self._place(model, label) / f"{task}.json").exists() for task in self.plan.tasks)

    def learned(self, model: str, label: str) -> str:
        """What came of the questions or pictures that it learned from, in a sentence."""
        if label == ala.LABEL:
            facts = json.loads((self._place(model, label) / FACTS).read_text(encoding="utf-8"))
            unseen = ", ".join(f"{task} {count} of {total}" for task, (count, total) in facts["unseen"].items())
            return (
                f"`{label}` learned from {facts['questions']} questions; its classifier names the {self._attribute} "
                f"in {facts['accuracy']:.0%} of the pictures of {next(iter(self.plan.tasks))}. Answers that it left "
                f"alone because it never saw the question: {unseen}."
            )
        sites = self._steerer(model, label).diagnostics
        if label == BIOPRO:
            shares = ", ".join(f"{site} {facts['discovery_neutral']:.0%}" for site, facts in sites.items())
            return f"`{label}` counts as neutral, and projects, this share of the discovery pictures: {shares}."
        facts = next(iter(sites.values()))
        return (
            f"`{label}` on its own {facts['questions']} questions: bias {facts['bias_before']:.3f} -> "
            f"{facts['bias_after']:.3f}, KL from the unsteered answers {facts['kl']:.2f}."
        )

    @property
    def _attribute(self) -> str:
        return next(iter(self.plan.steering))

    def _suite(self, images: Counterfactuals | None = None) -> suites.Suite:
        """The plan's suite, or the same questions about other pictures."""
        options = self.plan.suite.options if images is None else {"images": images}
        return suites.load(self.plan.suite.name, **options)

    def _opened(self, model: str) -> SteeredModel:
        if self._model is None or self._model[0] != model:
            self._model = model, SteeredModel(FeatureCache(load_vlm(model)))
        return self._model[1]

    def _place(self, model: str, label: str) -> Path:
        return self.folder / "live" / f"{model.replace('/', '-')}-{label}"

    def _steerer(self, model: str, label: str) -> Steerer:
        place = self._place(model, label)
        if not holds_steerer(place):
            self._fitted(model, label).save_pretrained(place)
        return Steerer.from_pretrained(place)

    def _fitted(self, model: str, label: str) -> Steerer:
        torch.manual_seed(self.plan.seed)
        cache = self._opened(model).cache
        if label == BIOPRO:
            acts, neutral = (
                collect(cache.vlm, pictures, "all", features=cache)
                for pictures in (self._faces(), scenes(NEUTRAL, "training", SCENES_SEED))
            )
            return fit(label, acts, self._attribute, neutral=neutral)
        return fit_live(label, cache.vlm, live_questions(cache, self._questions()), self._attribute, sites="all")

    def _faces(self) -> Counterfactuals:
        """The discovery pictures."""
        return DiscoverySet(self.plan).of(self._attribute)

    def _questions(self) -> list[Item]:
        """Those that are learned from."""
        suite, tasks = self._suite(self._faces()), self.plan.steering[self._attribute].tasks
        return [item for task in tasks for item in suites.subset(suite.items(task), QUESTIONS)]

    def _adjustment(self, model: str) -> LogitAdjustment:
        """Fitted, and what came of it kept in a file."""
        opened, questions = self._opened(model), self._questions()
        acts = collect(opened.vlm, self._faces(), SITE, features=opened.cache)
        longest = max(self._suite().max_new_tokens(task) for task in self.plan.steering[self._attribute].tasks)
        answers = opened.read(questions, longest)
        adjustment = LogitAdjustment.fit(acts, self._attribute, questions, answers)
        items = {task: self._suite().items(task, self.plan.limit) for task in self.plan.tasks}
        facts: dict[str, Any] = {
            "questions": len(questions),
            "accuracy": self._accuracy(model, adjustment, next(iter(items.values()))),
            "unseen": {
                task: (sum(not adjustment.knows(item) for item in of_task), len(of_task))
                for task, of_task in items.items()
            },
        }
        write_whole(self._place(model, ala.LABEL) / FACTS, json.dumps(facts).encode())
        return adjustment

    def _accuracy(self, model: str, adjustment: LogitAdjustment, items: Sequence[Item]) -> float:
        """The share of the items' pictures of which the classifier names the value."""
        named = [
            adjustment.values[int(chances.argmax())] == attributes[self._attribute]
            for item, rows in zip(items, self._pooled(model, items), strict=True)
            for chances, attributes in zip(adjustment.probabilities(rows), item.attributes, strict=True)
        ]
        return sum(named) / len(named)

    def _pooled(self, model: str, items: Sequence[Item]) -> list[Tensor]:
        """Of each item the mean rows [places, D] of its pictures."""
        cache = self._opened(model).cache
        means: dict[str, Tensor] = {}

        def mean(picture: Picture) -> Tensor:
            if picture.digest not in means:
                means[picture.digest] = cache.features([picture])[0].rows[SITE].float().mean(0)
            return means[picture.digest]

        return [torch.stack([mean(picture) for picture in item.images]) for item in items]


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    live = LiveRows(Results.load(folder).plan, folder)
    for model in live.plan.models:
        for label in LIVE:
            live.runs(model.name, label)
            print(f"{model.name}: {live.learned(model.name, label)}")
