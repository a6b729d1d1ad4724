"""What the tests inside lmms-eval share: a small-world model, a steerer, and questions. Nothing needs a network."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

from pathlib import Path

import pytest
import torch

import ggss
from ggss.activations import Activations
from ggss.data.counterfactuals import Counterfactuals
from ggss.data.manifests import write_manifest
from ggss.models import Vlm
from ggss.smallworld.bias_questions import ask_salary
from ggss.smallworld.painter import variants
from ggss.smallworld.people import people
from ggss.smallworld.questions import Question
from ggss.smallworld.suite import smallstar
from ggss.steering.steerer import Steerer

torch.set_num_threads(1)
MODEL = "small-world/entangled"  # here steering shows in capability answers too


@pytest.fixture(scope="session")
def vlm() -> Vlm:
    return ggss.load_vlm(MODEL)


@pytest.fixture(scope="session")
def activations(vlm: Vlm, tmp_path_factory: pytest.TempPathFactory) -> Activations:
    """Of a few of the world's people."""
    folder = tmp_path_factory.mktemp("faces")
    rows = []
    for person in list(people("discovery", 2))[:4]:
        for portrait in variants(person):
            name = f"{person.occupation}-{person.identity}-{portrait.race}-{portrait.gender}.png"
            portrait.image().save(folder / name)
            rows.append(
                {
                    "path": name,
                    "occupation": person.occupation,
                    "identity": person.identity,
                    "race": portrait.race,
                    "gender": portrait.gender,
                }
            )
    write_manifest(rows, folder / "manifest.csv")
    faces = Counterfactuals.load(folder / "manifest.csv")
    return ggss.collect(vlm, faces, cache=folder / "cache")


@pytest.fixture(scope="session")
def steerer(activations: Activations) -> Steerer:
    return ggss.fit("ggss", activations, attribute="race")


@pytest.fixture(scope="session")
def steerer_folder(steerer: Steerer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return steerer.save_pretrained(tmp_path_factory.mktemp("steerer"))


@pytest.fixture(scope="session")
def questions() -> list[Question]:
    """One of each of SmallStar's dimensions, and what ten faces earn, which steering is to change."""
    person = next(people("evaluation", 1))
    return [*smallstar()[::250], *(ask_salary(portrait) for portrait in variants(person))]
