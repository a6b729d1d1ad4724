"""Running a study: right answers, each asked once, the same whoever asks and whatever dies on the way."""

import json
import os
import random
import shutil
import signal
import sqlite3
import sys
from collections import Counter
from contextlib import closing
from hashlib import sha256
from importlib.util import find_spec

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import ggss
from conftest import exported
from fresh_python import FORKED
from ggss import smallworld
from ggss.activations import SITE, Activations
from ggss.analysis import average_change, compare
from ggss.cli import app
from ggss.data import pictures
from ggss.data.manifests import write_manifest
from ggss.data.pictures import labels
from ggss.errors import InputError
from ggss.models import ModelIdentity, Vlm
from ggss.report.material import of_study
from ggss.smallworld.painter import town, variants
from ggss.smallworld.people import people
from ggss.study import executors, grid, runner
from ggss.study.executors import WorkerDied
from ggss.study.grid import Unit
from ggss.study.plan import Plan, PlanItems
from ggss.study.results import Results, StoredRuns, export, opened
from ggss.study.runner import Scheduler, merged, run
from ggss.study.status import status
from ggss.study.store import DATABASE, StoreError, writing
from ggss.study.worker import Worker
from ggss.version import ggss_code
from test_identity import edit
from test_suites import faces

MODEL = "small-world/qwen3-vl"
TINY = {
    "name": "tiny",
    "suite": {"name": "small-world", "split": "evaluation"},
    "discovery": "small-world",
    "models": [MODEL],
    "methods": ["none", "ggss", {"name": "svd-token-euclidean", "alphas": [1.0]}],
    "alphas": [0.5, 1.0],
    "steering": {
        "race": {"discover_on": ["cook"], "tasks": ["mcq"]},
        "gender": {"discover_on": ["cook"], "tasks": ["nurse-doctor"]},
    },
    "measures": [{"tasks": ["smallstar"]}],
    "limit": 20,
    "batch_size": 8,
    "threads": 1,
}
PLAN = Plan.of(TINY)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A finished study; leave it as it is."""
    folder = tmp_path_factory.mktemp("study")
    run(PLAN, folder)
    return folder


def test_every_cell_is_whole_and_nothing_is_asked_twice(study, tmp_path):
    results = Results.load(study)
    swept = {cell for unit in grid.units(PLAN) for cell in grid.sweep(PLAN, unit)}
    sources = [(r.source, r.task) for r in results]
    assert swept <= {(s.model, s.method, s.attribute, s.alpha, task) for s, task in sources}
    assert {s.alpha for s, task in sources if task == "smallstar" and s.method == "svd-token-euclidean"} == {1.0}
    assert sum(task == "smallstar" and s.method == "ggss" for s, task in sources) == 2  # one alpha, two attributes
    assert {(s.suite, len(s.suite_hash), len(s.steerer)) for s, _ in sources} == {("small-world", 64, 64)}
    parts = ggss.load_vlm(MODEL).identity.parts
    assert all(s.identity == parts for s, _ in sources)
    assert set(results.gates) == {(MODEL, "ggss", "race"), (MODEL, "ggss", "gender")}
    shutil.copytree(study, tmp_path / "copy")
    again = run(PLAN, tmp_path / "copy")
    assert again.asked == 0
    assert again.reused == sum(len(r.items) for r in results)
    assert Results.load(tmp_path / "copy").hash == results.hash


def test_answers_are_those_of_a_live_steered_model(study):
    """The reference shares no code with the runner: pictures re-encoded, a hook on the live model."""
    vlm = ggss.load_vlm(MODEL)
    portraits = [p for p in town() if p.person.occupation == "cook"]
    acts = Activations(
        [features.rows[SITE] for features in vlm.encode([p.image() for p in portraits], sites=SITE)],
        [{"race": p.race, "gender": p.gender} for p in portraits],
        [(p.person.occupation, p.person.identity) for p in portraits],
    )
    steerer = ggss.fit("ggss", acts, attribute="race")
    found = Results.load(study).run(MODEL, "ggss", "mcq", alpha=1.0)
    prompts, pictures = [i.prompt for i in found.items], [[p.image() for p in i.images] for i in found.items]
    with steerer.attach(vlm, alpha=1.0):
        assert vlm.answer(prompts, pictures, max_new_tokens=1) == list(found.texts)
        scores = vlm.score(prompts, pictures, [list(item.options) for item in found.items])
    expected = torch.tensor(scores).softmax(1)
    torch.testing.assert_close(torch.tensor(found.probabilities), expected, rtol=0, atol=1e-4)
    unsteered = Results.load(study).run(MODEL, "none", "mcq")
    assert unsteered.probabilities != found.probabilities


def test_results_compare_every_cell_with_the_unsteered_model(study):
    results = Results.load(study)
    before, after = results.run(MODEL, "none", "mcq"), results.run(MODEL, "ggss", "mcq", alpha=1.0)
    expected, found = compare(before, after), results.comparison(MODEL, "ggss", "mcq", alpha=1.0)
    assert found.change() == expected.change()
    assert (found.p, found.after.value()) == (expected.p, expected.after.value())
    assert found is results.comparison(MODEL, "ggss", "mcq", alpha=1.0)
    assert [results.strengths(label) for label in results.methods] == [(), (0.5, 1.0), (1.0,)]
    sweep = results.sweep(MODEL, "ggss")
    assert {alpha: list(tasks) for alpha, tasks in sweep.items()} == {a: ["mcq", "nurse-doctor"] for a in (0.5, 1.0)}
    averages = {alpha: average_change(list(tasks.values())).estimate for alpha, tasks in sweep.items()}
    assert results.best_alpha(MODEL, "ggss") == min(averages, key=averages.get)
    assert results.best_alpha(MODEL, "none") is None
    right = results.comparison(MODEL, "none", "smallstar").accuracy()
    assert (right.gained, right.lost) == (0, 0)
    people = {item.cluster for task in ("mcq", "nurse-doctor") for item in results.run(MODEL, "none", task).items}
    assert results.everyone(MODEL) == people
    assert len(results.held_out(MODEL, "ggss")) == 2
    assert results.comparison(MODEL, "ggss", "ceo", alpha=1.0) is None


def test_a_discovery_prompt_is_measured(study, tmp_path):
    """Five prompts cannot change what leaves the projector; a plan that adds one asks only its own questions."""
    shutil.copytree(study, tmp_path / "copy")
    entry = {"name": "ggss", "label": "see", "prompt": "what is there in this image ?", "tasks": ["mcq"]}
    done = run(Plan.of({**TINY, "methods": [*TINY["methods"], entry]}), tmp_path / "copy")
    results = Results.load(tmp_path / "copy")
    items = len(results.run(MODEL, "see", "mcq", 1.0).items)
    assert done.asked == 2 * items  # two strengths
    assert set(results.cosines) == {(MODEL, "see", "race")}
    assert results.cosines[MODEL, "see", "race"] == pytest.approx(1, abs=1e-5)
    for alpha in (0.5, 1.0):
        plain, prompted = (results.run(MODEL, label, "mcq", alpha) for label in ("ggss", "see"))
        for one, other in zip(plain.probabilities, prompted.probabilities, strict=True):
            assert one == pytest.approx(other, abs=1e-3)  # the last digits of two passes differ


def test_a_changed_plan_asks_only_what_is_new(study, tmp_path):
    shutil.copytree(study, tmp_path / "copy")
    asked = len(Results.load(study).run(MODEL, "none", "mcq").items)
    more = Plan.of(
        TINY | {"alphas": [0.5, 0.75, 1.0], "measures": [], "steering": {"race": TINY["steering"]["race"]}}
    )
    assert run(more, tmp_path / "copy").asked == asked
    sharp = {"name": "ggss", "options": {"kappa": 10}}
    other = Plan.of(TINY | {"methods": ["none", sharp], "alphas": [1.0], "measures": [], "steering": more.steering})
    before = Results.load(study).run(MODEL, "ggss", "mcq", alpha=1.0)
    assert run(other, tmp_path / "copy").asked == asked
    after = Results.load(tmp_path / "copy").run(MODEL, "ggss", "mcq", alpha=1.0)
    assert after.probabilities != before.probabilities
    assert run(PLAN, tmp_path / "copy").asked == 0
    assert exported(tmp_path / "copy") == exported(study)


def test_results_of_another_recipe_are_not_shown(study):
    _, runs = opened(study)
    other = Plan.of(TINY | {"methods": ["none", {"name": "ggss", "options": {"kappa": 10}}]})
    hidden = Results(other, type(runs)(other, runs.store, runs.plan_items))
    assert hidden.run(MODEL, "none", "mcq") is not None
    assert hidden.run(MODEL, "ggss", "mcq", alpha=1.0) is None


@pytest.fixture
def counted(monkeypatch):
    """How often the bytes of each picture are decoded, and how often each image is encoded by each model."""
    decodings, encodings = Counter(), Counter()
    decode, encode = pictures.decoded, Vlm.encode

    def counting_decode(data, name):
        decodings[sha256(data).hexdigest()] += 1
        return decode(data, name)

    def counting_encode(self, images, *args, **kwargs):
        encodings.update((self.name, image.tobytes()) for image in images)
        return encode(self, images, *args, **kwargs)

    monkeypatch.setattr(pictures, "decoded", counting_decode)
    monkeypatch.setattr(Vlm, "encode", counting_encode)
    return decodings, encodings


def portraits_on_disk(folder, occupations=("nurse", "doctor")):
    """A small painted set and its manifest: two people of each occupation, all ten variants of each."""
    rows = []
    for portrait in (p for person in people("discovery", 2, occupations) for p in variants(person)):
        path = f"{portrait.name.replace('/', '-')}.png"
        portrait.image().save(folder / path)
        rows.append({"path": path} | labels(portrait))
    write_manifest(rows, folder / "manifest.csv")
    return folder / "manifest.csv"


def test_a_study_over_image_files_decodes_and_encodes_each_once_per_model(tmp_path, counted, monkeypatch):
    """Although discovery and the tasks share pictures, and methods need pooled means, tokens and several sites."""
    decodings, encodings = counted
    monkeypatch.setenv("GGSS_CACHE", str(tmp_path / "cache"))
    manifest = portraits_on_disk(tmp_path)
    files = {sha256(file.read_bytes()).hexdigest() for file in tmp_path.glob("*.png")}
    models = [MODEL, "small-world/pixtral"]
    everywhere = {"name": "ggss", "label": "everywhere", "sites": "all", "models": [MODEL]}
    pieces = {
        "suite": {"name": "small-world", "images": str(manifest)},
        "discovery": str(manifest),
        "models": models,
        "methods": ["none", "prompt", "ggss", "svd-token-euclidean", everywhere],
        "alphas": [1.0],
        "steering": {
            "race": {"discover_on": ["nurse"], "tasks": ["mcq"]},
            "gender": {"discover_on": ["nurse", "doctor"], "tasks": ["nurse-doctor"]},
        },
        "overlap": "warn",
        "measures": [{"tasks": ["recognition-race"]}],
        "limit": None,
        "batch_size": 64,
    }
    plan = Plan.of(TINY | pieces)
    done = run(plan, tmp_path / "study")
    assert done.reused == 0
    assert len(files) == 40
    assert decodings == Counter(dict.fromkeys(files, len(models)))
    assert set(encodings.values()) == {1}
    assert Counter(model for model, _ in encodings) == Counter(dict.fromkeys(models, len(files)))
    assert not (tmp_path / "cache").exists(), "nothing is kept twice"
    assert run(plan, tmp_path / "study").asked == 0
    assert set(decodings.values()) == {len(models)}, "what is answered is not looked at again"
    assert set(encodings.values()) == {1}


def test_a_study_of_photographs_in_plain_english(tmp_path, counted, tiny):
    """The reflect suite about files on disk, asked of a model in a folder; its random weights answer nonsense."""
    decodings, encodings = counted
    vlm = tiny("llava-vicuna")
    for part in (vlm.model, vlm.processor):
        part.save_pretrained(tmp_path / "model")
    rows = faces(tmp_path, ("nurse", "doctor"))
    write_manifest(rows, tmp_path / "faces.csv")
    plan = {
        "suite": {"name": "reflect", "images": "faces.csv"},
        "discovery": "faces.csv",
        "models": [str(tmp_path / "model")],
        "methods": ["none", "ggss"],
        "steering": {
            "race": {"discover_on": ["nurse"], "tasks": ["mcq"]},
            "gender": {"discover_on": ["nurse", "doctor"], "tasks": ["mcq-gender"]},
        },
        "overlap": "warn",
        "measures": [],
    }
    (tmp_path / "plan.yaml").write_text(json.dumps(TINY | plan))
    run(Plan.load(tmp_path / "plan.yaml"), tmp_path / "study")
    assert set(decodings.values()) == set(encodings.values()) == {1}
    assert len(decodings) == len(encodings) == len(rows)
    results = Results.load(tmp_path / "study")
    assert {(r.source.attribute, r.about) for r in results if r.source.alpha} == {
        ("race", "race"),
        ("gender", "gender"),
    }
    assert {len(r.items) for r in results} == {24}


def test_another_model_in_the_same_folder_is_asked_again(tmp_path):
    """Whatever was edited in it; and what it said before is not compared with what it says now."""
    copy = tmp_path / "model"
    shutil.copytree(smallworld.CHECKPOINTS / "qwen3-vl", copy)
    pieces = {"models": [str(copy)], "measures": [], "limit": 4, "alphas": [1.0]}
    pieces |= {"steering": {"race": TINY["steering"]["race"]}}
    both, unsteered = (Plan.of(TINY | pieces | {"methods": names}) for names in (["none", "ggss"], ["none"]))
    asked = run(both, tmp_path / "study").asked
    again = run(both, tmp_path / "study")
    assert (again.asked, again.reused, again.changed) == (0, asked, ())

    def weights():
        found = load_file(copy / "model.safetensors")
        name = next(name for name in found if "language_model.layers.0.mlp" in name)
        save_file(found | {name: found[name] + 0.01}, copy / "model.safetensors", {"format": "pt"})

    edits = {
        "text weights": weights,
        "text modules, text config": lambda: edit(copy / "config.json", "text_config", "rms_norm_eps", 0.1),
        "tokenizer": lambda: edit(copy / "tokenizer_config.json", "pad_token", "<unk>"),
    }
    for part, change in edits.items():
        change()
        again = run(unsteered, tmp_path / "study")
        assert (again.asked, again.reused) == (asked / 2, 0)
        assert again.changed == (f"{copy} has changed since it was last run, and is asked again; changed: {part}",)
    _, runs = opened(tmp_path / "study")
    results = Results(both, type(runs)(both, runs.store, runs.plan_items))
    assert results.run(str(copy), "none", "mcq") is not None
    assert results.comparison(str(copy), "ggss", "mcq", alpha=1.0) is None, "only its unsteered answers are new"
    assert run(both, tmp_path / "study").asked == asked / 2
    assert Results.load(tmp_path / "study").comparison(str(copy), "ggss", "mcq", alpha=1.0) is not None


SMALL = Plan.of(TINY | {"methods": ["none", "ggss"], "alphas": [1.0], "measures": [], "limit": 8})


def changed_code(*names):
    """ggss's code as if some of it had been edited."""
    return lambda: {name: "edited" if name in names else digest for name, digest in ggss_code().items()}


def test_answers_of_other_code_of_ggss_are_asked_again(tmp_path, monkeypatch):
    said = []
    first = run(SMALL, tmp_path / "study", say=said.append)
    assert not [text for text in said if "code" in text]
    with monkeypatch.context() as patch:
        patch.setattr(grid, "ggss_code", changed_code("ggss (steering)"))
        kept = run(SMALL, tmp_path / "study", say=said.append, keep_answers=True)
        assert (kept.asked, kept.reused) == (0, first.asked)
        assert not [text for text in said if "code" in text]
        again = run(SMALL, tmp_path / "study", say=said.append)
    assert (again.asked, again.reused) == (first.asked / 2, first.asked / 2)  # the unsteered ones are the same
    (sentence,) = [text for text in said if "code" in text]
    assert sentence.startswith("the code of ggss (steering) has changed since this study was last run: ")
    with monkeypatch.context() as patch:
        patch.setattr(grid, "ggss_code", changed_code("ggss (answering)"))
        patch.setattr(runner.Driver, "fitted", lambda *_: (_ for _ in ()).throw(StoreError("stopped")))
        with pytest.raises(StoreError, match="stopped"):
            run(SMALL, tmp_path / "study")
        assert {unit.answered for unit in status(tmp_path / "study")[1]} == {0}, "answers of two codes never meet"


def test_a_study_from_before_code_was_recorded_is_read_and_can_go_on(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(grid, "code_digests", lambda plan: {})
        first = run(SMALL, tmp_path / "study")
    with closing(sqlite3.connect(tmp_path / "study" / DATABASE)) as store, store:
        store.execute("DELETE FROM about WHERE name = 'code'")
    assert sum(unit.answered for unit in status(tmp_path / "study")[1]) == first.asked
    said = []
    kept = run(SMALL, tmp_path / "study", say=said.append, keep_answers=True)
    assert (kept.asked, kept.reused, said) == (0, first.asked, [])
    again = run(SMALL, tmp_path / "study", say=said.append)
    assert (again.asked, again.reused) == (first.asked, 0)
    assert said[0].startswith("this study was begun by a version of ggss that did not record its code: ")
    assert run(SMALL, tmp_path / "study").asked == 0


def test_a_model_that_changes_while_a_study_runs_is_noticed(tmp_path):
    cell = next(iter(grid.sweep(PLAN, Unit(MODEL, "none"))))
    with pytest.raises(InputError, match=f"{MODEL} has changed while the study was running"):
        Worker(PLAN).read(cell, [0], "the identity of another")
    with writing(tmp_path) as store:
        driver = runner.Driver(PLAN, store, PlanItems(PLAN))
        found = [
            ModelIdentity({"dtype": "float32"}),
            ModelIdentity({"dtype": "float32"}),
            ModelIdentity({"dtype": "bfloat16"}),
        ]

        def call(*_):
            return found.pop(0)

        assert driver.identity(MODEL, call) == driver.identity(MODEL, call)
        with pytest.raises(InputError, match=r"differs between workers, or has changed.*: dtype \(float32 before"):
            driver.identity(MODEL, call)


def test_a_damaged_answer_stops_every_command(study, tmp_path):
    shutil.copytree(study, tmp_path / "copy")
    (tmp_path / "plan.yaml").write_text(json.dumps(TINY))
    with closing(sqlite3.connect(tmp_path / "copy" / DATABASE)) as database, database:
        place = database.execute("SELECT run, item FROM answers LIMIT 1").fetchone()
        database.execute("UPDATE answers SET answer = answer || ' ' WHERE run = ? AND item = ?", place)
    folder, out = str(tmp_path / "copy"), str(tmp_path / "out.jsonl")
    for command in (
        ["status", folder],
        ["tables", folder, "-o", str(tmp_path / "tables")],
        ["export", folder, "-o", out],
        ["run", str(tmp_path / "plan.yaml"), "-o", folder],
    ):
        done = CliRunner().invoke(app, ["study", *command])
        assert isinstance(done.exception, StoreError), command
        assert f"the answer to {place[1]!r} is not as it was written" in str(done.exception)
    assert not (tmp_path / "out.jsonl").exists()
    statement = str(done.exception).split("'")[-2]
    with closing(sqlite3.connect(tmp_path / "copy" / DATABASE)) as database, database:
        database.execute(statement)
    run(PLAN, tmp_path / "copy")
    assert exported(tmp_path / "copy") == exported(study)


@pytest.mark.slow
def test_processes_give_the_same_rows_even_if_one_is_killed(study, tmp_path, monkeypatch):
    calls, whole = [], executors.Child.call

    def killed_at_the_fifth(self, name, *args):
        calls.append(name)
        if len(calls) == 5:
            os.kill(self.process.pid, signal.SIGKILL)
        return whole(self, name, *args)

    monkeypatch.setattr(executors.Child, "call", killed_at_the_fifth)
    run(PLAN, tmp_path, "processes", workers=2)
    assert calls[4] in ("fit", "read")
    assert exported(tmp_path) == exported(study)


def life(plan, folder, statement):
    """A study whose process kills itself at a given SQL statement, wherever that is in a transaction."""
    from ggss.study import store

    torch.set_num_threads(1)
    connect, seen = store.connect, []

    def mortal(*args):
        connection = connect(*args)
        connection.set_trace_callback(count)
        return connection

    def count(_):
        seen.append(1)
        if len(seen) == statement:
            os.kill(os.getpid(), signal.SIGKILL)

    store.connect = mortal
    run(Plan.model_validate_json(plan), folder, show=False)


@pytest.mark.slow
def test_killed_at_any_statement_a_study_ends_as_if_nothing_had_happened(study, tmp_path):
    rng, kills = random.Random(0), []
    for statement in [rng.randrange(1, 30), *(rng.randrange(30, 200) for _ in range(4)), 0]:
        process = FORKED.Process(target=life, args=(PLAN.model_dump_json(), tmp_path, statement))
        process.start()
        process.join()
        kills.append(process.exitcode == -signal.SIGKILL)
    assert kills == [True] * 5 + [False]
    assert process.exitcode == 0
    assert exported(tmp_path) == exported(study)


def test_what_cannot_be_run_is_named_and_the_rest_is_done(tmp_path):
    lost = {"name": "svd-token-euclidean", "label": "lost", "options": {"k": 1000}}
    plan = Plan.of(TINY | {"methods": ["none", lost, "ggss"], "measures": [], "alphas": [1.0]})
    with pytest.raises(
        InputError, match=r"the rest is done.*: 1 problem\n  - lost on small-world/qwen3-vl: k = 1000 directions"
    ):
        run(plan, tmp_path)
    assert Results.load(tmp_path).run(MODEL, "ggss", "mcq", alpha=1.0) is not None
    assert Results.load(tmp_path).run(MODEL, "lost", "mcq", alpha=1.0) is None
    found = {one.unit.method: one for one in status(tmp_path)[1]}
    assert found["lost"].failure.startswith("k = 1000 directions")
    assert found["ggss"].failure == found["none"].failure == ""
    told = of_study(tmp_path)
    (line,) = told.missing
    assert "the rest could not be run: k = 1000 directions" in line.words
    assert told.ended
    mended = Plan.of(plan.model_dump(mode="json") | {"methods": ["none", lost | {"options": {"k": 2}}, "ggss"]})
    with writing(tmp_path) as store:
        assert StoredRuns(plan, store, PlanItems(plan)).failure(Unit(MODEL, "lost"))
        assert not StoredRuns(mended, store, PlanItems(mended)).failure(Unit(MODEL, "lost"))  # not tried so yet
    run(mended, tmp_path)
    assert not any(one.failure for one in status(tmp_path)[1])
    assert of_study(tmp_path).missing == ()


def test_a_model_that_cannot_be_loaded_does_not_hold_up_the_others(tmp_path):
    plan = Plan.of(
        TINY | {"models": ["nobody/nothing", MODEL], "methods": ["none", "ggss"], "measures": [], "alphas": [1.0]}
    )
    with pytest.raises(InputError, match=r"1 problem\n  - none on nobody/nothing: "):
        run(plan, tmp_path)
    assert Results.load(tmp_path).run(MODEL, "ggss", "mcq", alpha=1.0) is not None


@pytest.mark.parametrize(
    ("pieces", "sentence"),
    [
        ({"suite": {"name": "small-world", "split": "evening"}}, "evening"),
        ({"steering": {"race": {"discover_on": ["baker"], "tasks": ["mcq"]}}}, "discovered on 'baker'"),
        ({"suite": "small-town"}, "small-town"),
    ],
)
def test_a_plan_that_does_not_fit_its_material_is_refused_before_anything_is_made(tmp_path, pieces, sentence):
    with pytest.raises(InputError, match=sentence):
        run(Plan.of(TINY | pieces), tmp_path / "study")
    assert not (tmp_path / "study").exists()


def test_workers_that_always_die_are_given_up():
    class Mortal:
        started = 0

        def start(self, slot):
            self.started += 1
            return self

        def call(self, name):
            raise WorkerDied

        def close(self):
            pass

    pool = Mortal()
    with pytest.raises(InputError, match="workers died one after the other"):
        runner.calls(pool, 0)("open")
    assert pool.started == runner.LIVES


def test_the_scheduler_keeps_workers_on_their_model_and_behind_its_baseline():
    scheduler = Scheduler([Unit(model, method) for model in "ab" for method in ("none", "x", "y")])
    first, second = scheduler.take(""), scheduler.take("")
    assert {first, second} == {Unit("a", "none"), Unit("b", "none")}
    scheduler.done(first)
    assert scheduler.take("a") == Unit("a", "x")
    scheduler.done(second)
    assert scheduler.take("b") == Unit("b", "x")
    assert scheduler.take("b") == Unit("b", "y")
    assert scheduler.take("b") == Unit("a", "y")


@pytest.mark.parametrize(("how", "workers"), [("cloud", None), ("in-process", 2), ("processes", 0)])
def test_a_refused_run_leaves_the_stored_plan(study, tmp_path, how, workers):
    shutil.copytree(study, tmp_path / "copy")
    other = Plan.of(TINY | {"name": "other"})
    with pytest.raises(InputError):
        run(other, tmp_path / "copy", how, workers)
    assert opened(tmp_path / "copy")[0].name == "tiny"
    with pytest.raises(InputError):
        run(other, tmp_path / "new", how, workers)
    assert not (tmp_path / "new").exists()


def test_merged_streams_stop_at_the_first_error():
    stopped = []

    def broken():
        yield 1
        raise InputError("no")

    with pytest.raises(InputError, match="no"):
        list(merged([broken(), iter([2, 3])], lambda: stopped.append(True)))
    assert stopped == [True]


def test_the_command_line_runs_looks_and_exports(study, tmp_path):
    cli = CliRunner()
    shutil.copytree(study, tmp_path / "copy")
    (tmp_path / "plan.yaml").write_text(json.dumps(TINY))  # JSON is YAML
    done = cli.invoke(app, ["study", "run", str(tmp_path / "plan.yaml"), "-o", str(tmp_path / "copy")])
    assert done.output.startswith("0 questions asked")
    seen = json.loads(cli.invoke(app, ["study", "status", str(study), "--json"]).output)
    assert seen["answered"] == seen["of"] == sum(unit["of"] for unit in seen["units"])
    assert {unit["alpha"] for unit in seen["units"] if unit["method"] == "ggss"} <= {0.5, 1.0}
    assert "100%" in cli.invoke(app, ["study", "status", str(study)]).output
    for _ in range(2):  # the command knows its own file, and replaces it
        assert cli.invoke(app, ["study", "export", str(study), "-o", str(tmp_path / "all.jsonl")]).exit_code == 0
    rows = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert len(rows) == seen["answered"]
    assert len({(r["model_identity"], r["steering"], r["alpha"], r["suite"], r["item"]) for r in rows}) == len(rows)
    planned = json.loads(cli.invoke(app, ["study", "plan", str(tmp_path / "plan.yaml"), "--json"]).stdout)
    assert planned["models"][0]["questions"] == seen["of"]
    assert planned["models"][0]["seconds"] > 0


def test_an_unfinished_study_says_how_far_it_is(study, tmp_path):
    shutil.copytree(study, tmp_path / "copy")
    lost = {"name": "svd-token-euclidean", "label": "lost", "options": {"k": 1000}}
    more = Plan.of(TINY | {"methods": [*TINY["methods"], lost]})
    with pytest.raises(InputError):
        run(more, tmp_path / "copy")
    seen = json.loads(CliRunner().invoke(app, ["study", "status", str(tmp_path / "copy"), "--json"]).output)
    assert {u["method"]: u["answered"] == u["of"] for u in seen["units"]}["lost"] is False
    assert [u["answered"] for u in seen["units"] if u["method"] == "lost"] == [0]


def test_exports_of_unknown_formats_are_refused(study, tmp_path):
    with pytest.raises(InputError, match=r"\.jsonl or \.parquet"):
        export(study, tmp_path / "answers.xlsx")


def test_parquet_has_the_same_rows_or_names_its_extra(study, tmp_path):
    if not find_spec("pyarrow"):
        with pytest.raises(InputError, match=r"pip install 'ggss\[parquet\]'"):
            export(study, tmp_path / "answers.parquet")
        return
    from pyarrow import parquet

    export(study, tmp_path / "answers.parquet")
    rows = [json.loads(line) for line in exported(study).splitlines()]
    assert parquet.read_table(tmp_path / "answers.parquet").to_pylist() == rows


@pytest.mark.parametrize(
    ("how", "workers", "sentence"),
    [
        ("cloud", None, "no executor 'cloud': there are in-process, processes, ray, vllm, ray-vllm"),
        ("proceses", None, "did you mean 'processes'"),
        ("vllm", 2, "vllm is one worker, not 2"),
        ("processes", 0, "the number of workers must be from 1"),
        ("in-process", 2, "one worker, not 2"),
    ],
)
def test_executors_that_cannot_be(how, workers, sentence):
    with pytest.raises(InputError, match=sentence):
        executors.executor(how, PLAN, workers)


def test_without_ray_its_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install 'ggss\[ray\]'"):
        executors.executor("ray", PLAN)
