"""Small-world models in vLLM, and the same in transformers beside them. A vLLM takes a minute to come up, so it is
shared by the tests of a file."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # so that vLLM's processes find `features_worker`

import pytest

import ggss
from ggss.cli.arguments import one_thread
from ggss.models import prompts
from ggss.models.reading import Answer
from ggss.vllm_plugin import engine
from ggss.vllm_plugin.engine import EnginePrompt, EngineReader, EngineSetup, EngineThread, ReadPrompt

engine.EXTENSION = "features_worker.FeaturesWorker"
QUESTIONS = ["which race is this person ?", "which gender is this person ?", "how much does this person earn ?"]
OPTIONS = ["amber", "coral", "ivory", "jade", "pearl"]


@dataclass
class Pair:
    """A model in both engines, with steerers of two attributes."""

    vlm: Any
    pictures: list[Any]
    steerers: dict[str, ggss.Steerer]
    folders: dict[str, Path]
    engine: EngineThread

    def contents(self, strengths: Mapping[str, float]) -> dict[str, float]:
        return {self.steerers[name].content_hash: alpha for name, alpha in strengths.items()}

    def ask(
        self, question: str, pictures: Sequence[Any], strengths: Mapping[str, float], longest: int = 4
    ) -> list[Answer]:
        """vLLM's readings of one question about each of the pictures."""
        reader = EngineReader(self.engine.host, self.vlm.processor, self.vlm.name)
        images, options = [[own.image()] for own in pictures], [OPTIONS] * len(pictures)
        asked = reader.read([question] * len(pictures), images, options, self.contents(strengths), longest)
        return self.engine.call(asked)

    def reference(
        self, question: str, pictures: Sequence[Any], strengths: Mapping[str, float], longest: int = 4
    ) -> list[Answer]:
        """The same from transformers."""
        features = self.vlm.encode([own.image() for own in pictures])
        for name, alpha in strengths.items():
            features = [own.steered(self.steerers[name], alpha) for own in features]
        count = len(pictures)
        return self.vlm.read([question] * count, [[own] for own in features], [OPTIONS] * count, longest)

    def check_readings(self, pictures: Sequence[Any], strengths: Mapping[str, float]) -> None:
        """vLLM's answers and probabilities are those of transformers."""
        for question in QUESTIONS:
            own, right = self.ask(question, pictures, strengths), self.reference(question, pictures, strengths)
            assert [one.text for one in own] == [one.text for one in right]
            for one, other in zip(own, right, strict=True):
                assert one.probabilities == pytest.approx(other.probabilities, abs=2e-4)

    def prompt(self, image: Any, strengths: Mapping[str, float], question: str = QUESTIONS[0]) -> EnginePrompt:
        """A question about one image."""
        text = prompts.chat(self.vlm.processor, question, 1)
        (ids,) = prompts.tokens(self.vlm.processor, [text], [prompts.image_mark(self.vlm.processor)])
        return EnginePrompt(ids, [image], self.contents(strengths))

    async def written(self, prompt: EnginePrompt, longest: int = 1) -> tuple[ReadPrompt, list[int]]:
        """The prompt as vLLM has read it, and the tokens of its answer."""
        from vllm import SamplingParams

        ready = await self.engine.host.read(prompt)
        params = SamplingParams(temperature=0, max_tokens=longest)
        outputs = [own async for own in self.engine.host.write(ready, params)]
        return ready, list(outputs[-1].outputs[0].token_ids)


def steerers(name: str, folder: Path, sites: str = "projection-mlp2") -> tuple[Any, Any, dict[str, Path]]:
    """A model in transformers, its pictures, and the folders of its steerers."""
    one_thread()
    vlm = ggss.load_vlm(f"small-world/{name}", dtype="float32")
    faces = ggss.Counterfactuals.load(
        "small-world", include={"occupation": "cook", "identity": ["00", "01", "02", "03"]}
    )
    acts = ggss.collect(vlm, faces, sites, cache=folder / "cache", show=False)
    fitted = {name: ggss.fit("ggss", acts, attribute=name) for name in ("race", "gender")}
    return vlm, faces, {name: Path(own.save_pretrained(folder / name)) for name, own in fitted.items()}


def pair(name: str, folder: Path, sites: str = "projection-mlp2", ways: int = 1) -> Pair:
    vlm, faces, folders = steerers(name, folder, sites)
    engine = EngineThread(EngineSetup(f"small-world/{name}", "float32", context=512, ways=ways))
    for own in folders.values():
        engine.call(engine.host.load(str(own)))
    loaded = {name: ggss.Steerer.from_pretrained(own) for name, own in folders.items()}
    return Pair(vlm, list(faces.pictures), loaded, folders, engine)


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    made = pair("llava-vicuna", tmp_path_factory.mktemp("llava"))
    yield made
    made.engine.close()
