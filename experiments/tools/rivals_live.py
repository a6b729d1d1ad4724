"""The rows of docs/rivals.md that no plan can fit: `dso` learns from a live model's answers.

`python -m experiments.tools.rivals_live FOLDER` learns and asks for every model of the study in a folder, and keeps
steerers and answers there. It can be stopped and run again.
"""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ggss.analysis import Run, ask
from ggss.files import write_whole
from ggss.models import load_vlm
from ggss.models.features import FeatureCache
from ggss.models.reading import Answer
from ggss.probes import suites
from ggss.probes.steered_model import SteeredModel, live_questions
from ggss.steering.artefact import holds_steerer
from ggss.steering.fitting import fit_live
from ggss.steering.steerer import Steerer
from ggss.study.plan import DiscoverySet, Plan
from ggss.study.results import Results

QUESTIONS = 100  # of each bias task
LIVE = ("dso",)


@dataclass
class LiveRows:
    """Steerers of the models of a plan, for its first steered attribute; they are kept in a folder."""

    plan: Plan
    folder: Path
    _model: tuple[str, SteeredModel] | None = field(default=None, repr=False)

    def runs(self, model: str, label: str) -> dict[str, Run]:
        """The plan's tasks under one of LIVE, at alpha 1. Answers are kept, too."""
        steered = self._opened(model).steered(self._steerer(model, label), 1.0)
        suite = suites.load(self.plan.suite.name, **self.plan.suite.options)
        found = {}
        for task in self.plan.tasks:
            file = self._place(model, label) / f"{task}.json"
            known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
            answered = {key: Answer(text, tuple(shares)) for key, (text, shares) in known.items()}
            run = found[task] = ask(steered, suite, task, limit=self.plan.limit, answered=answered)
            answers = {item.key: answer for item, answer in zip(run.items, run.answers, strict=True)}
            write_whole(file, json.dumps(answers).encode())
        return found

    def finished(self, model: str, label: str) -> bool:
        """Whether all answers are there."""
        return all((self._place(model, label) / f"{task}.json").exists() for task in self.plan.tasks)

    def learned(self, model: str, label: str) -> str:
        """What came of the questions that it learned from."""
        found = next(iter(self._steerer(model, label).diagnostics.values()))
        return (
            f"`{label}` on its own {found['questions']} questions: bias {found['bias_before']:.3f} -> "
            f"{found['bias_after']:.3f}, KL from the unsteered answers {found['kl']:.2f}."
        )

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
        cache, attribute = self._opened(model).cache, next(iter(self.plan.steering))
        faces = DiscoverySet(self.plan).of(attribute)
        suite = suites.load(self.plan.suite.name, images=faces)
        tasks = self.plan.steering[attribute].tasks
        asked = [item for task in tasks for item in suites.subset(suite.items(task), QUESTIONS)]
        return fit_live(label, cache.vlm, live_questions(cache, asked), attribute, sites="all")


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    live = LiveRows(Results.load(folder).plan, folder)
    for model in live.plan.models:
        for label in LIVE:
            live.runs(model.name, label)
            print(f"{model.name}: {live.learned(model.name, label)}")
