"""A model that changes in memory: steerers attached and detached in any order, with edits of all kinds between.

Whatever the order, what a cache gives must be what the model computes at that moment.
"""

import random
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from torch import nn

from experiments.fuzz.harness import Target
from experiments.fuzz.tensors import painted_faces
from experiments.training.architectures import build
from ggss.activations import SITE
from ggss.activations.collect import collect
from ggss.data.counterfactuals import Counterfactuals
from ggss.errors import InputError
from ggss.methods.spherical import Geodesic
from ggss.models import Vlm
from ggss.models.features import FeatureCache
from ggss.models.sites import MLP1
from ggss.steering.attach import NeverFired
from ggss.steering.steerer import Steerer

STEPS = (
    *("attach first", "attach second", "detach oldest", "detach newest", "hook", "unhook", "negate", "scale"),
    *("epsilon", "mean", "template", "module", "features", "features", "features", "collect", "collect", "answer"),
)
QUESTION = "which race is this person ?"


def _doubled(module: nn.Module, args: Any, rows: torch.Tensor) -> torch.Tensor:
    return rows * 2


class _EditedModel:
    """A tiny model, its caches, and what is attached to it now."""

    def __init__(self, folder: Path, faces: Counterfactuals) -> None:
        torch.manual_seed(0)
        words = f"{QUESTION} red a b".split()
        self.vlm = Vlm(*build("llava-vicuna", words, 0, width=32, layers=1), name="tiny")
        self.faces, self.folder = faces, folder
        self.features = FeatureCache(self.vlm)
        self.attached: list[AbstractContextManager[Any]] = []
        self.hooks: list[Any] = []
        self.steerers = {site: self._steerer(site) for site in (MLP1, SITE)}

    def _steerer(self, site: str) -> Steerer:
        width = self.vlm.model.get_submodule(self.vlm.sites(site)[site]).out_features
        frame = torch.linalg.qr(torch.randn(width, 3))[0]
        operator = Geodesic(frame[:, 0].contiguous(), frame[:, 1:].contiguous(), 0.1, 0.1)
        return Steerer("ggss", "race", ("a", "b"), {site: operator})

    @property
    def site(self) -> nn.Linear:
        module = self.vlm.model.get_submodule(self.vlm.sites()[SITE])
        assert isinstance(module, nn.Linear)
        return module

    def do(self, step: str) -> None:
        model = self.vlm.model
        if step.startswith("attach"):
            self._attach(MLP1 if step.endswith("first") else SITE)
        elif step.startswith("detach"):
            if self.attached:
                self._detach(self.attached.pop(0 if step.endswith("oldest") else -1))
        elif step == "hook":
            tower = model.base_model.vision_tower
            self.hooks.append(tower.register_forward_pre_hook(lambda _, args: tuple(args)))
            self.hooks.append(self.site.register_forward_hook(_doubled))
        elif step == "unhook":
            while self.hooks:
                self.hooks.pop().remove()
        elif step == "negate":
            self.site.weight.data.mul_(-1)
        elif step == "scale":
            next(model.base_model.vision_tower.parameters()).data.mul_(1.5)
        elif step == "epsilon":
            norm = next(m for m in model.base_model.vision_tower.modules() if isinstance(m, nn.LayerNorm))
            norm.eps = norm.eps * 2
        elif step == "mean":
            processor = self.vlm.processor.image_processor
            processor.image_mean = [own + 0.1 for own in processor.image_mean]
        elif step == "template":
            self.vlm.processor.chat_template += " red"
        elif step == "module":
            old = self.site
            new = nn.Linear(old.in_features, old.out_features)
            model.base_model.multi_modal_projector.linear_2 = new.eval()
        else:
            getattr(self, f"_{step}")()

    def _attach(self, site: str) -> None:
        attachment = self.steerers[site].attach(self.vlm, 1.0, force=True)
        attachment.__enter__()
        self.attached.append(attachment)

    def _detach(self, attachment: AbstractContextManager[Any]) -> None:
        """What was replaced meanwhile, and what never fired, is told."""
        try:
            attachment.__exit__(None, None, None)
        except NeverFired:
            pass
        except InputError as error:
            assert "was replaced" in str(error)  # noqa: PT017 (another sentence would be wrong)

    def _features(self) -> None:
        pictures = self.faces.pictures[:2]
        kept = self.features.features(pictures)
        for one, other in zip(kept, self.vlm.encode([p.image() for p in pictures]), strict=True):
            torch.testing.assert_close(one.rows[SITE], other.rows[SITE], rtol=1e-3, atol=1e-4)

    def _collect(self) -> None:
        fresh = self.folder / f"fresh-{random.random()}"
        try:
            acts = collect(self.vlm, self.faces, cache=self.folder / "kept", show=False)
        except InputError:
            assert self.attached or self.hooks, "refused although nothing acts on the model"
            return
        assert not self.hooks
        assert not self.attached
        expected = collect(self.vlm, self.faces, cache=fresh, show=False)
        torch.testing.assert_close(acts.pooled, expected.pooled, rtol=1e-3, atol=1e-4)

    def _answer(self) -> None:
        image = self.faces.pictures[0].image()
        before = self.vlm.logits([QUESTION], [[image]])
        another = Vlm(self.vlm.model, self.vlm.processor).logits([QUESTION], [[image]])
        torch.testing.assert_close(before, another, rtol=1e-3, atol=1e-4)

    def end(self) -> None:
        while self.attached:
            self._detach(self.attached.pop())
        self.do("unhook")
        assert not any(module._forward_hooks for module in self.vlm.model.base_model.multi_modal_projector.modules())


def _orders(folder: Path) -> Any:
    faces = painted_faces(folder)

    def read(steps: list[str]) -> None:
        model = _EditedModel(folder, faces)
        try:
            for step in (*steps, "features", "collect", "answer"):
                model.do(step)
        finally:
            model.end()
        model.do("collect")

    return st.lists(st.sampled_from(STEPS), min_size=1, max_size=12), read


TARGETS = (Target("models in memory", 0.005, _orders),)
