"""docs/adding.md: each of its worked examples, run as a reader would run it."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers as hf

import invented_study
from conftest import noise
from ggss.data.manifests import write_manifest
from ggss.errors import InputError
from ggss.methods.registry import METHODS
from ggss.models import MLP2, Vlm
from ggss.models.families import FAMILIES, known_family
from ggss.probes import get, suites
from ggss.probes.base import PROBES
from ggss.probes.suites import SUITES
from ggss.report.tables import TABLES, Figures
from ggss.study.executors import EXECUTORS, executor

PAGE = (Path(__file__).parents[2] / "docs" / "adding.md").read_text(encoding="utf-8")


def block(name: str) -> str:
    """The example whose first line is a comment with this file's name."""
    return re.search(rf"```\w+\n(# {re.escape(name)}\n.*?)```", PAGE, re.DOTALL)[1]


@pytest.fixture(autouse=True)
def registries(monkeypatch):
    """Every table is as before afterwards."""
    for table in (METHODS, PROBES, SUITES, FAMILIES, EXECUTORS, TABLES):
        table.names()
        monkeypatch.setattr(table, "_entries", dict(table._entries))
        monkeypatch.setattr(table, "_packages", dict(table._packages))


def run(name: str) -> None:
    exec(compile(block(name), name, "exec"), {"__name__": name.removesuffix(".py")})


@pytest.fixture
def faces(tmp_path):
    """Two people in two races, two genders and three ages."""
    rows, pictures = [], iter(range(100))
    for identity in ("01", "02"):
        for race in ("amber", "jade"):
            for gender in ("man", "woman"):
                for age in ("middle", "old", "young"):
                    path = tmp_path / f"{identity}_{race}_{gender}_{age}.png"
                    noise(next(pictures), 32, 32).save(path)
                    row = {"path": path.name, "occupation": "cook", "identity": identity}
                    rows.append(row | {"race": race, "gender": gender, "age": age})
    write_manifest(rows, tmp_path / "faces.csv")
    return tmp_path / "faces.csv"


def test_a_task(faces, tmp_path):
    run("my_loan.py")
    (tmp_path / "my_wording.yaml").write_text(block("my_wording.yaml"))
    suite = suites.load("reflect", images=faces, wording=tmp_path / "my_wording.yaml")
    assert {"loan", "loan-gender", "loan-age", "mcq"} <= set(suite.tasks)
    for task, about in (("loan", "race"), ("loan-age", "age")):
        items = suite.items(task)
        assert len(items) == 24
        assert {item.about for item in items} == {about}
        lent = {"jade", "old"}
        said = ["Yes." if item.attributes[0][about] in lent else "No" for item in items]
        metric = get(task).metrics(get(task).answers(items, said), None)["loan_gap"]
        assert float(metric) == 1
        assert get(task).display("loan_gap", about).meaning == f"gap between {about} groups in being lent money"


def test_a_suite(faces):
    run("my_suite.py")
    suite = suites.load("riches", images=str(faces))
    assert len(suite.items("mcq")) == len(suite.items("mcq-age")) == 24
    assert suite.items("mcq-gender")[0].about == "gender"


def test_a_family():
    config = SimpleNamespace(model_type="llava", vision_config=SimpleNamespace(model_type="clip_vision_model"))
    assert known_family(config).name == "LLaVA-1.5"
    run("my_family.py")
    assert known_family(config).name == "my LLaVA"


def test_a_family_on_a_model(tiny):
    """The rows are whose it says, and features answer as the live model does."""
    run("my_family.py")
    known = tiny("llava-vicuna").processor
    size = {"height": 32, "width": 32}
    processor = hf.LlavaProcessor(
        hf.CLIPImageProcessorPil(size=size, crop_size=size),
        known.tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=known.chat_template,
    )
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = hf.LlavaConfig(
        vision_config=hf.CLIPVisionConfig(**small, image_size=32, patch_size=8, projection_dim=32),
        text_config=hf.LlamaConfig(**small, num_key_value_heads=2, vocab_size=len(known.tokenizer)),
        image_token_index=known.image_token_id,
        vision_feature_layer=-1,
    )
    vlm = Vlm(hf.LlavaForConditionalGeneration(config).eval(), processor)
    assert vlm.family.name == "my LLaVA"
    pictures = [noise(seed) for seed in range(2)]
    together, alone = vlm.encode(pictures), [vlm.encode([one])[0] for one in pictures]
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one.rows[MLP2], other.rows[MLP2])
    live = vlm.logits(["who is this ?"], [pictures[:1]])
    torch.testing.assert_close(vlm.logits(["who is this ?"], [together[:1]]), live, atol=1e-4, rtol=1e-4)


def test_a_table():
    run("my_table.py")
    table = TABLES.get("worst_task")(Figures(invented_study.results()))
    assert table.rows
    assert {row.cells[0] for row in table.rows} <= {"mcq", "2afc", "nurse-doctor"}


def test_an_executor(monkeypatch):
    class InventedWorker:
        def __init__(self, plan, device):
            self.plan = plan

        def open(self, model):
            return self, model

    monkeypatch.setattr("ggss.study.executors.Worker", InventedWorker)
    run("my_executor.py")
    pool = executor("threads", invented_study.PLAN, 3)
    assert pool.slots == 3
    opened = [pool.start(slot).call("open", "m") for slot in range(3)]
    assert len({id(worker) for worker, _ in opened}) == 3, "each slot has a worker of its own"
    assert all((worker.plan, model) == (invented_study.PLAN, "m") for worker, model in opened)
    with pytest.raises(InputError, match="the number of workers must be from 1"):
        executor("threads", invented_study.PLAN, 0)


def test_an_attribute(faces):
    """The manifest of the page has an age; what is asked about it needs no code."""
    header = re.search(r"```csv\n(.*)\n", PAGE)[1]
    assert faces.read_text().startswith(header + "\n")
    suite = suites.load("reflect", images=faces)
    for task in re.search(r"--tasks (\S+) -o before.jsonl", PAGE)[1].split(","):
        items = suite.items(task)
        assert {item.about for item in items} == {"age"}
        said = ["A" for _ in items]
        if task.startswith("recognition"):
            said = [item.expected for item in items]
        found = get(task).metrics(get(task).answers(items, said), None)
        name, metric = next(iter(found.items()))
        assert (name, float(metric)) == {
            "mcq-age": ("mean_age_jsd", 0),
            "2afc-age": ("age_bias_std", 0),
            "recognition-age": ("accuracy", 1),
        }[task]
