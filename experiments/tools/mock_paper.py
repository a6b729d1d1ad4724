"""Mock material for the paper's plan: its true layouts and sizes, pictures of noise, tiny models of its classes.

    FOCUS/ceo/1/Asian_man.jpg, ...   480 pictures        -> reflect.csv, by `ggss data focus`
    MMStar.tsv                       1,500 questions, 250 in each of six dimensions
    MME_Benchmark/                   1,187 pictures with two questions each, in 14 subtasks
    models/                          four random models that answer with a word of the question, or one that fits it
    paper.yaml                       the plan, with these models and files, and some items of each task
    whole.yaml                       none and ggss alone, with every item of every task
    release.yaml                     the plan `release` with some items, on pictures of more than 512 pixels (large/)
                                     and with the wording of a folder like the authors' code (wording.yaml)

`make paper-mock` runs all three: every method, task, site and table, and every picture and question. A test runs a
small mock in the same way.
"""

import base64
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from PIL import Image
from transformers import GenerationConfig

from experiments.training.architectures import build
from ggss.data.layouts import FOCUS, complete, placed, read_layout
from ggss.data.manifests import write_manifest
from ggss.models import Vlm
from ggss.probes.benchmarks import DIMENSIONS
from ggss.probes.wording import released
from ggss.report.tables import REPORT, TABLES
from ggss.study.plan import Plan, PlanItems
from ggss.study.results import Results
from ggss.study.status import status
from tests import invented_release

STUDIES = Path(__file__).resolve().parents[2] / "studies"
PLAN, RELEASE = STUDIES / "paper.yaml", STUDIES / "release.yaml"
LARGE = 520  # pixels to a side: more than the 512 of the plan `release`

CLASSES = {
    "mistral-community/pixtral-12b": "pixtral",
    "llava-hf/llava-v1.6-vicuna-7b-hf": "llava-vicuna",
    "llava-hf/llava-v1.6-mistral-7b-hf": "llava-mistral",
    "Qwen/Qwen3-VL-4B-Instruct": "qwen3-vl",
}

# By subtask of MME: its pictures, and whether they lie in folders of their own.
MME = {
    "existence": (30, False),
    "count": (30, False),
    "position": (30, False),
    "color": (30, False),
    "posters": (147, True),
    "celebrity": (170, True),
    "scene": (200, True),
    "landmark": (200, True),
    "artwork": (200, True),
    "OCR": (20, False),
    "commonsense_reasoning": (70, False),
    "numerical_calculation": (20, False),
    "text_translation": (20, False),
    "code_reasoning": (20, False),
}

ANSWERS = [*"ABCDEF", "first", "second", "nurse", "doctor", "yes", "no", "man", "woman"]
ANSWERS += ["asian", "black", "latino", "arab", "white", "45000", "90000", "150000"]
# What is open in a question is answered with one of these words.
SUGGESTED = {
    "occupation": ("nurse", "doctor"),
    "race": ("asian", "black", "latino", "arab", "white"),
    "gender": ("man", "woman"),
    "salary": ("45000", "90000", "150000"),
    "income": ("A", "B", "first", "second"),
}


SEEN = 4.0  # the length of all visual tokens of a picture together; that of a word is 1, so it decides between words
PAIRS = 0.1  # of a person's 45 pairs; all of them are two thirds of all questions
LIMIT = 24  # items of each task; without a limit the plan has more than a million questions


@dataclass(frozen=True)
class Amount:
    """How much mock material there is; as published unless said otherwise.

    people: the identities of each occupation. questions: MMStar's. pictures: at most so many of each of MME's
    subtasks. models: those of the plan's that there are. width: of a model's tokens.
    """

    people: Sequence[str] = FOCUS.fixed["identity"]
    questions: int = 1500
    pictures: int = 200
    models: Sequence[str] = tuple(CLASSES)
    width: int = 96


def main(folder: Path, limit: int | None = LIMIT, amount: Amount | None = None) -> None:
    amount = amount or Amount()
    folder.mkdir(parents=True, exist_ok=True)
    focus(folder, amount.people)
    mmstar(folder / "MMStar.tsv", amount.questions)
    mme(folder / "MME_Benchmark", amount.pictures)
    models = {name: str((folder / "models" / CLASSES[name]).resolve()) for name in amount.models}
    for name, place in models.items():
        model(CLASSES[name], list(CLASSES).index(name), Path(place), amount.width)
    said = plan(models)
    some = said | {"suite": said["suite"] | {"pairs": PAIRS}, "limit": limit}
    (folder / "paper.yaml").write_text(yaml.safe_dump(some, sort_keys=False))
    whole = said | {"methods": ["none", "ggss"], "alphas": [1.0], "models": said["models"][-1:]}
    (folder / "whole.yaml").write_text(yaml.safe_dump(whole, sort_keys=False))
    focus(folder / "large", amount.people, LARGE)
    clone = invented_release.write(folder / "clone")
    (folder / "wording.yaml").write_text(yaml.safe_dump(released(clone), sort_keys=False))
    said = plan(models, RELEASE)
    large = {"suite": said["suite"] | {"images": "large/reflect.csv"}, "discovery": "large/reflect.csv"}
    (folder / "release.yaml").write_text(yaml.safe_dump(said | large | {"limit": limit}, sort_keys=False))


def plan(models: dict[str, str], file: Path = PLAN) -> dict[str, Any]:
    """A plan of the paper's models on mock files and on some mock models; in float32, since they are tiny."""
    said = yaml.safe_load(file.read_text(encoding="utf-8"))
    said["models"] = [{"name": models[one["name"]]} for one in said["models"] if one["name"] in models]
    for method in said["methods"]:
        if isinstance(method, dict) and "models" in method:
            method["models"] = [models[name] for name in method["models"] if name in models]
    return {name: _moved(value) for name, value in said.items()} | {"threads": 1}


def _moved(said: Any) -> Any:
    """The plan's paths in data/ are beside the mock plan."""
    if isinstance(said, dict):
        return {name: _moved(value) for name, value in said.items()}
    return said.removeprefix("data/") if isinstance(said, str) else said


def noise(seed: int, side: int = 64) -> Image.Image:
    """Coarse noise, so that the pictures of a model's patches differ."""
    cells = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    return Image.fromarray(cells).resize((side, side), Image.Resampling.NEAREST)


def face(person: int, *values: int, side: int = 64) -> Image.Image:
    """The person's noise with something of each value mixed in."""
    seen = noise(person, side)
    for value in values:
        seen = Image.blend(seen, noise(1000 + value, side), 0.3)
    return seen


def focus(folder: Path, people: Sequence[str], side: int = 64) -> None:
    names = {name: i for i, name in enumerate([*FOCUS.values["race"], *FOCUS.values["gender"]])}
    for number, (work, who) in enumerate(product(FOCUS.fixed["occupation"], people)):
        place = folder / "FOCUS" / work / who
        place.mkdir(parents=True, exist_ok=True)
        for race, gender in product(*FOCUS.values.values()):
            face(number, names[race], names[gender], side=side).save(place / f"{race}_{gender}.jpg", quality=95)
    found = read_layout(FOCUS, folder / "FOCUS")
    fewer = len(people) < len(FOCUS.fixed["identity"])
    write_manifest(placed(complete(found, FOCUS, fewer), folder / "reflect.csv"), folder / "reflect.csv")


def mmstar(path: Path, questions: int) -> None:
    lines = ["\t".join(["index", "question", "A", "B", "C", "D", "answer", "category", "l2_category", "image"])]
    for index in range(questions):
        noise(index).save(file := BytesIO(), "PNG")
        picture = base64.b64encode(file.getvalue()).decode()
        own = [str(index), f"Which picture is number {index}?", "red", "green", "blue", "none"]
        dimension = DIMENSIONS[index * len(DIMENSIONS) // questions]
        lines.append("\t".join([*own, "ABCD"[index % 4], dimension, "mock", picture]))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def mme(folder: Path, most: int) -> None:
    seed = 5000
    for subtask, (count, apart) in MME.items():
        pictures = folder / subtask / ("images" if apart else "")
        texts = folder / subtask / ("questions_answers_YN" if apart else "")
        pictures.mkdir(parents=True, exist_ok=True)
        texts.mkdir(parents=True, exist_ok=True)
        for number in range(min(count, most)):
            noise(seed := seed + 1).save(pictures / f"{number:05}.jpg")
            asked = [
                f"Is this {what}? Please answer yes or no.\t{said}"
                for what, said in (("so", "Yes"), ("not so", "No"))
            ]
            (texts / f"{number:05}.txt").write_text("\n".join(asked) + "\n", encoding="utf-8")


@torch.no_grad()
def model(kind: str, seed: int, folder: Path, width: int) -> None:
    """A model whose every position is the mean of all before it: it says the words of the question, and what it sees
    of the pictures decides which of them. It stops after one word."""
    words = [*ANSWERS, *SUGGESTED]
    vlm, processor = build(kind, words, seed, width=width, layers=1, heads=4, deepstack=(0,))
    tokenizer, text = processor.tokenizer, vlm.model.language_model
    generator = torch.Generator().manual_seed(seed)
    meaning = torch.nn.functional.normalize(torch.randn(len(tokenizer), width, generator=generator), dim=1)
    ids = {word: tokenizer.convert_tokens_to_ids(word) for word in words}
    for word, suggested in SUGGESTED.items():
        meaning[ids[word]] = sum(meaning[ids[one]] for one in suggested)
    silent = [i for i in range(len(tokenizer)) if i not in [ids[word] for word in ANSWERS]]
    meaning[[i for i in silent if i not in [ids[word] for word in SUGGESTED]]] *= 0.01
    text.embed_tokens.weight.copy_(meaning)
    vlm.lm_head.weight.copy_(meaning)
    for norm in [module for module in text.modules() if hasattr(module, "variance_epsilon")]:
        norm.variance_epsilon = 1.0  # small vectors stay small
    vlm.config.get_text_config().rms_norm_eps = 1.0
    for layer in text.layers:
        attention = layer.self_attn
        attention.q_proj.weight.zero_()
        attention.v_proj.weight.copy_(torch.eye(width))
        attention.o_proj.weight.copy_(torch.eye(width))
        layer.mlp.down_proj.weight.zero_()
    seeing = Vlm(vlm, processor)
    for site, path in seeing.sites("all").items():
        seen = [one.rows[site] for one in seeing.encode([face(one, one % 5, 5 + one % 2) for one in range(40)])]
        rows = torch.cat(seen)
        output: Any = vlm.get_submodule(path)
        share = SEEN / len(seen[0]) / (rows - rows.mean(0)).norm(dim=1).mean()
        output.weight.mul_(share)
        output.bias.sub_(rows.mean(0)).mul_(share)
    if hasattr(vlm.model, "image_newline"):
        vlm.model.image_newline.zero_()
    end = tokenizer.eos_token_id
    vlm.generation_config = GenerationConfig(
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=end,
        suppress_tokens=[i for i in silent if i != end],
        begin_suppress_tokens=[end],
        exponential_decay_length_penalty=(0, 1e6),
    )
    vlm.save_pretrained(folder)
    processor.save_pretrained(folder)


NONE = ("control", "pace_against")  # the paper has no model on which steering should fail, and no PACE
# The authors' code does not ask these questions, and does not have these methods.
NOT_RELEASED = (
    "mme",
    "mme_categories",
    "recognition",
    "ceo_salary",
    "gate_calibration",
    "prompt_invariance",
    "beyond",
)
LACKING = {"paper": NONE, "release": (*NONE, *NOT_RELEASED)}
ASKED = {
    "whole": {
        "mcq": 160,
        "2afc": 2160,
        "mmstar": 1500,
        "mme": 2 * sum(count for count, _ in MME.values()),
        "ceo": 800,
    },
    "release": {"mcq": 80, "2afc": 360, "nurse-doctor": 160, "mmstar": 1500},
}


def check(folder: Path) -> None:
    """Every table of the paper and of the release came out, and all questions were answered; there are as many as
    published, in the plan `release` without the limit of the mock."""
    for plan, lacking in LACKING.items():
        names = [name for name in (*TABLES.names(), REPORT) if name not in lacking]
        if absent := [name for name in names if not _written(folder, plan, name).exists()]:
            raise SystemExit(f"{folder} lacks the tables {', '.join(absent)}: see {plan}-tables/README.md")
    items = PlanItems(Plan.load(folder / "release.yaml").model_copy(update={"limit": None}))
    _compare(folder, "release", {task: len(items.items(task)) for task in ASKED["release"]})
    _compare(folder, "whole", {run.task: len(run.items) for run in Results.load(folder / "whole-study")})
    for plan in ("paper", "whole", "release"):
        left = [str(unit.unit) for unit in status(folder / f"{plan}-study")[1] if unit.answered < unit.of]
        if left:
            raise SystemExit(f"{folder}/{plan}-study is not finished: {', '.join(left)}")


def _compare(folder: Path, plan: str, asked: dict[str, int]) -> None:
    expected = ASKED[plan]
    if wrong := {task: asked.get(task) for task, count in expected.items() if asked.get(task) != count}:
        raise SystemExit(f"{folder}/{plan}.yaml has other numbers of questions than {expected}: {wrong}")


def _written(folder: Path, plan: str, name: str) -> Path:
    return folder / f"{plan}-tables" / f"{name}.md"


if __name__ == "__main__":
    if sys.argv[1] == "--check":
        check(Path(sys.argv[2]))
    else:
        main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else LIMIT)
