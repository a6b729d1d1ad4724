"""The steered model inside lmms-eval: answers, probabilities, the cache, and what is refused."""

import json
import shutil
from pathlib import Path

import lmms_eval.tasks.mmstar.utils as mmstar_utils
import pytest
from datasets import Dataset, Features, Image, Value
from lmms_eval.api.instance import Instance
from lmms_eval.evaluator import simple_evaluate
from lmms_eval.models import get_model
from lmms_eval.tasks import TaskManager

import ggss
from conftest import MODEL
from ggss import smallworld
from ggss.errors import InputError
from ggss.evaluation import LmmsModel, cache_identity

STRONG = 8.0  # beyond all reason, so that answers change

TASK = """
dataset_path: parquet
dataset_kwargs:
  data_files:
    val: {data}
  cache_dir: {cache}
task: mmstar_small
doc_to_visual: !function utils.mmstar_doc_to_visual
doc_to_text: !function utils.mmstar_doc_to_text
process_results: !function utils.mmstar_process_results
include: _default_template_yaml
generation_kwargs:
  max_new_tokens: 4
  do_sample: false
lmms_eval_specific_kwargs:
  default:
    pre_prompt: ""
    post_prompt: ""
"""

SCORING = """
from lmms_eval.tasks.mmstar.utils import mmstar_aggregate_results, mmstar_doc_to_text, mmstar_doc_to_visual
from lmms_eval.tasks.mmstar.utils import mmstar_process_results as as_shipped


def mmstar_process_results(doc, results):
    return as_shipped(doc, [results[0].upper()])  # the small world writes its letters small
"""


@pytest.fixture(scope="session")
def tasks(questions, tmp_path_factory):
    """MMStar's own task, pointed at a few rows of the small world in MMStar's layout."""
    folder = tmp_path_factory.mktemp("tasks")
    rows = [
        {
            "index": i,
            "question": question.text,
            "image": question.images[0].image(),
            "answer": question.answer.upper(),
            "category": question.dimension or "instance reasoning",
            "l2_category": question.template or question.kind,
        }
        for i, question in enumerate(questions)
    ]
    text = Value("string")
    kinds = {"index": Value("int64"), "question": text, "image": Image(), "answer": text, "category": text}
    Dataset.from_list(rows, features=Features(kinds | {"l2_category": text})).to_parquet(folder / "mmstar.parquet")
    shutil.copy(Path(mmstar_utils.__file__).with_name("_default_template_yaml"), folder)
    (folder / "utils.py").write_text(SCORING)
    (folder / "small.yaml").write_text(TASK.format(data=folder / "mmstar.parquet", cache=folder / "cache"))
    return TaskManager(include_path=str(folder), include_defaults=False, model_name="ggss")


def identity(model, steerer=None):
    return cache_identity(ggss.load_vlm(model), steerer and ggss.Steerer.from_pretrained(steerer))


def evaluate(tasks, batch_size=4, cache=None, **arguments):
    told = {"pretrained": MODEL, **arguments}
    told |= {"identity": identity(told["pretrained"], told.get("steerer"))}
    given = ",".join(f"{name}={value}" for name, value in told.items())
    return simple_evaluate(
        "ggss", given, tasks=["mmstar_small"], task_manager=tasks, batch_size=batch_size, use_cache=cache
    )


def answers(results):
    samples = sorted(results["samples"]["mmstar_small"], key=lambda sample: sample["doc_id"])
    return [sample["filtered_resps"][0] for sample in samples]


def reference(vlm, questions, steerer=None, alpha=0.0):
    """The same answers by another way: features encoded first, then steered, then asked one by one."""
    said = []
    for question in questions:
        (features,) = vlm.encode([question.images[0].image()])
        shown = features.steered(steerer, alpha) if steerer else features
        said += vlm.answer([question.text], [[shown]], max_new_tokens=4)
    return said


def test_lmms_eval_finds_the_model_by_its_entry_point():
    assert get_model("ggss") is LmmsModel


@pytest.mark.parametrize("alpha", [None, 1.0, STRONG])
def test_mmstars_task_gets_the_steered_answers(tasks, vlm, questions, steerer, steerer_folder, alpha):
    steering = {} if alpha is None else {"steerer": steerer_folder, "alpha": alpha}
    results = evaluate(tasks, **steering)
    expected = reference(vlm, questions, steerer if steering else None, alpha or 0)
    assert answers(results) == expected
    by_template: dict[str, list[bool]] = {}
    for said, question in zip(expected, questions, strict=True):
        by_template.setdefault(question.template or question.kind, []).append(said == question.answer)
    average = sum(sum(hits) / len(hits) for hits in by_template.values()) / len(by_template)
    assert results["results"]["mmstar_small"]["average,none"] == pytest.approx(average)


def test_strong_steering_changes_answers_and_batches_do_not(tasks, steerer_folder):
    plain, steered = evaluate(tasks), evaluate(tasks, steerer=steerer_folder, alpha=STRONG)
    assert answers(plain) != answers(steered)
    assert answers(plain) == answers(evaluate(tasks, batch_size=1))
    assert answers(plain) == answers(evaluate(tasks, steerer=steerer_folder, alpha=0))


def test_the_cache_does_not_confuse_strengths(tasks, steerer_folder, tmp_path):
    def run(alpha):
        return answers(evaluate(tasks, cache=str(tmp_path), steerer=steerer_folder, alpha=alpha))

    weak, strong = run(0.0), run(STRONG)
    assert weak != strong
    assert (run(0.0), run(STRONG)) == (weak, strong)


def test_the_cache_does_not_confuse_models(tasks, tmp_path):
    """One folder, one setting edited: the harness sees the same name, and other arguments."""
    copy = shutil.copytree(smallworld.CHECKPOINTS / MODEL.partition("/")[2], tmp_path / "model")
    before = answers(evaluate(tasks, cache=str(tmp_path / "cache"), pretrained=copy))
    known = identity(copy)
    config = json.loads((copy / "config.json").read_text())
    config["text_config"]["rms_norm_eps"] = 10.0
    (copy / "config.json").write_text(json.dumps(config))
    after = answers(evaluate(tasks, cache=str(tmp_path / "cache"), pretrained=copy))
    assert after == answers(evaluate(tasks, pretrained=copy))
    assert after != before
    for given in ({"identity": known}, {}):
        with pytest.raises(InputError, match=f"needs identity={identity(copy)} among its arguments"):
            LmmsModel(str(copy), **given)


def request(kind, *arguments):
    return Instance(kind, arguments, 0, {"task": "some", "doc_id": 0, "repeats": 1})


def model_with(*documents, **arguments):
    model = LmmsModel(MODEL, identity=identity(MODEL, arguments.get("steerer")), **arguments)
    model.task_dict["some"] = {"val": documents}
    return model


def shown(question):
    return [question.images[0].image()]


@pytest.mark.parametrize("batch_size", [1, 8])
def test_probabilities_of_continuations(vlm, questions, steerer, steerer_folder, batch_size):
    asked = questions[-3:]
    model = model_with(*asked, steerer=str(steerer_folder), alpha=1.0, batch_size=batch_size)
    endings = [" a", " b", " c", " a b"]
    requests = [
        request("loglikelihood", question.text, ending, shown, i, "some", "val")
        for i, question in enumerate(asked)
        for ending in endings
    ]
    scores = iter(model.loglikelihood(requests))
    for question in asked:
        (features,) = vlm.encode(shown(question))
        seen = [[features.steered(steerer, 1.0)]]
        (expected,) = vlm.score([question.text], seen, [["a", "b", "c", "a b"]])
        (plain,) = vlm.score([question.text], [[features]], [["a", "b", "c", "a b"]])
        one, two = (vlm.answer([question.text], seen, max_new_tokens=n)[0] for n in (1, 2))
        own = [next(scores) for _ in endings]
        assert [logp for logp, _ in own] == pytest.approx(expected, abs=1e-4)
        assert [logp for logp, _ in own] != pytest.approx(plain, abs=1e-4)
        assert [greedy for _, greedy in own] == [one == "a", one == "b", one == "c", two == "a b"]


def test_a_continuation_may_come_from_the_document(questions):
    model = model_with(questions[0])
    by_name = request("loglikelihood", questions[0].text, lambda question: question.answer, shown, 0, "some", "val")
    by_text = request("loglikelihood", questions[0].text, questions[0].answer, shown, 0, "some", "val")
    assert model.loglikelihood([by_name]) == model.loglikelihood([by_text])


def test_answers_end_where_the_task_says(questions):
    model = model_with(questions[0])
    options = {"until": None, "max_new_tokens": 1}
    asked = [questions[0].text, options, shown, 0, "some", "val"]
    (whole,) = model.generate_until([request("generate_until", *asked)])
    assert whole
    asked[1] = {"until": [whole[-1]], "max_new_tokens": 1}
    assert model.generate_until([request("generate_until", *asked)]) == [whole[:-1].split(whole[-1])[0]]


def test_the_fairness_instruction_is_appended(questions, activations, tmp_path, monkeypatch):
    prompted = ggss.fit("prompt", activations, attribute="race")
    model = model_with(questions[0], steerer=str(prompted.save_pretrained(tmp_path)), alpha=1.0)
    heard: list[str] = []
    answer = model.vlm.answer
    monkeypatch.setattr(model.vlm, "answer", lambda asked, *a, **k: heard.extend(asked) or answer(asked, *a, **k))
    model.generate_until([request("generate_until", "what ?", {"max_new_tokens": 1}, shown, 0, "some", "val")])
    assert heard == ["what ?" + prompted.prompt_suffix]
    assert prompted.prompt_suffix


def test_text_alone_is_answered_as_ever(steerer_folder):
    plain, steered = model_with(None), model_with(None, steerer=str(steerer_folder), alpha=1.0)
    asked = request("generate_until", "what colour is this ?", {"max_new_tokens": 2}, None, 0, "some", "val")
    assert plain.generate_until([asked]) == steered.generate_until([asked]) != [""]


@pytest.mark.parametrize(
    ("arguments", "seen"),
    [
        ({"pretrained": ""}, "needs pretrained="),
        ({"steerer": "here"}, "go together, seen steerer=here and alpha=None"),
        ({"alpha": 1.0}, "go together, seen steerer=None and alpha=1.0"),
        ({"steerer": "{steerer}", "alpha": "much"}, "alpha must be a number, seen 'much'"),
        ({"steerer": "{steerer}", "alpha": -1.0}, "would amplify the bias"),
        ({"steerer": "{steerer}", "alpha": 1.0, "pretrained": "small-world/qwen3-vl"}, "does not fit this model"),
        ({"steerer": "/nowhere/at/all", "alpha": 1.0}, "no steerer at"),
        ({"strength": 1.0}, "has no argument strength"),
        ({"batch_size": "auto"}, "batch size of at least 1, seen 'auto'"),
        ({"batch_size": 0}, "batch size of at least 1, seen 0"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments, seen, steerer_folder):
    given = {k: v.format(steerer=steerer_folder) if isinstance(v, str) else v for k, v in arguments.items()}
    with pytest.raises(InputError, match=seen):
        LmmsModel(**{"pretrained": MODEL} | given)


def test_several_processes_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(InputError, match=r"one process, seen 4.*device_map=auto"):
        LmmsModel(MODEL)


@pytest.mark.parametrize(
    ("options", "shown", "seen"),
    [
        ({"temperature": 0.7}, [], "wants temperature=0.7.*greedily"),
        ({"do_sample": True, "num_beams": 3}, [], "wants do_sample=True, num_beams=3"),
        ({}, ["film.mp4"], "task 'some' shows a str"),
    ],
)
def test_requests_that_do_not_fit_are_refused(options, shown, seen):
    with pytest.raises(InputError, match=seen):
        model_with(None).generate_until([request("generate_until", "?", options, lambda _: shown, 0, "some", "val")])


def test_other_kinds_of_request_are_refused():
    model = model_with(None)
    with pytest.raises(InputError, match="not multi-round"):
        model.generate_until_multi_round([])
    with pytest.raises(InputError, match=r"does not know \(2 parts\)"):
        model.loglikelihood([request("loglikelihood", "", "a")])
    with pytest.raises(InputError, match="probability of an empty answer"):
        model.loglikelihood([request("loglikelihood", "?", " ", None, 0, "some", "val")])
