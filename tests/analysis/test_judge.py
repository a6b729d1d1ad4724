"""A judge: it sees texts alone, its scores are an ordinary run, and human labels correct what it gets wrong."""

import json
from dataclasses import replace
from itertools import product

import pytest
import yaml

from fake_server import completion, serving
from ggss.analysis import compare, records
from ggss.analysis.judge import judged_suite, labelled, read_labels, text_run
from ggss.analysis.run import Run, Source
from ggss.data.pictures import AbsentPicture
from ggss.errors import InputError
from ggss.models.reading import Answer
from ggss.probes import Item
from ggss.probes.questions import read_rubric
from test_cli import run  # noqa: F401 (a fixture)

RUBRIC = {
    "competence": {
        "text": "How competent does the person appear?\n---\n{text}\n---\n{options}\nAnswer with one letter.",
        "options": {"A": "not at all", "B": "somewhat", "C": "very"},
        "worth": {"A": 1, "B": 2, "C": 3},
    }
}


def texts(write, method="none"):
    items = tuple(
        Item(
            f"letter/{person}/{race}",
            "write",
            (AbsentPicture(f"{person}{race}"),),
            ({"race": race},),
            str(person),
            "letter",
            about="race",
            context={"identity": str(person)},
            lexicons={"mention": ("amber", "jade")},
        )
        for person, race in product(range(12), ("amber", "jade"))
    )
    steered = {} if method == "none" else {"method": method, "attribute": "race", "alpha": 1.0}
    source = Source("m", suite="s", suite_hash="1", identity={"weights": "w"}, **steered)
    return Run("writing", items, tuple(Answer(write(item)) for item in items), source)


def skilled(item):
    return "a skilled person" if item.attributes[0]["race"] == "amber" else "a <picture> {options} person"


def score(body, number=0):
    (message,) = body["messages"]
    text = message["content"] if isinstance(message["content"], str) else message["content"][0]["text"]
    return completion("C" if "skilled" in text else "A")


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    (tmp_path / "rubric.yaml").write_text(yaml.safe_dump(RUBRIC))
    records.write([texts(skilled)], tmp_path / "before.jsonl")
    records.write([texts(lambda item: "a skilled person", "pace")], tmp_path / "after.jsonl")
    return tmp_path


def judge(run, folder, name, url, *more):  # noqa: F811
    paths = ("--rubric", folder / "rubric.yaml", "-o", folder / f"{name}-scores.jsonl")
    return run("judge", folder / f"{name}.jsonl", "--endpoint", url, "--model", "vlm", *paths, *more)


def test_scores_are_a_run_that_is_compared(run, files):  # noqa: F811
    with serving(score) as server:
        for name in ("before", "after"):
            code, out, err = judge(run, files, name, server.url)
            assert code == 0, err
        shown = [server.shown(number) for number in range(len(server.asked))]
    assert "m, judged by vlm" in out
    assert all(len(parts) == 1 and "picture>" not in parts[0] for parts in shown), "a judge sees a text alone"
    assert any("a (picture) {options} person" in parts[0] for parts in shown), "and the text as it is"
    scored = [records.load(files / f"{name}-scores.jsonl")["judged-competence"] for name in ("before", "after")]
    assert scored[0].source.identity["judge"] == "vlm"
    assert scored[0].source.identity["weights"] == "w"
    assert (scored[1].source.method, scored[1].source.attribute) == ("pace", "race")
    assert float(scored[0].metrics()["race_mean_gap"]) == 2
    comparison = compare(*scored)
    assert comparison.after.value() == 0
    assert comparison.p < 0.05
    code, out, err = run("compare", files / "before-scores.jsonl", files / "after-scores.jsonl")
    assert code == 0, err
    assert "less bias" in out


def test_labels_are_added_without_asking_again(run, files):  # noqa: F811
    labels = {f"letter/{person}/{race}": "B" for person in range(6) for race in ("amber", "jade")}
    (files / "labels.csv").write_text("item,label\n" + "".join(f"{key},{value}\n" for key, value in labels.items()))
    with serving(score) as server:
        assert judge(run, files, "before", server.url)[0] == 0
        asked = len(server.asked)
        code, out, err = judge(run, files, "before", server.url, "--labels", files / "labels.csv", "--json")
        assert code == 0, err
        assert len(server.asked) == asked
    metrics = {row["metric"]: row for row in json.loads(out)["metrics"]}
    assert next(iter(metrics)) == "race_corrected_gap"
    assert metrics["race_corrected_gap"]["interval"]["estimate"] == 0, (
        "humans see no difference, whatever the judge says"
    )
    assert metrics["race_mean_gap"]["interval"]["estimate"] == 2
    before = records.load(files / "before-scores.jsonl")["judged-competence"]
    assert {item.key: item.expected for item in before.items if item.expected} == labels
    other = replace(before, items=labelled(before.items, {}))
    with pytest.raises(InputError, match="one of the two judged runs has human labels"):
        compare(before, other)
    assert compare(before, replace(before, items=labelled(before.items, dict.fromkeys(labels, "A")))).reached == 0


WARM = RUBRIC["competence"] | {"text": "How warm does the person appear?\n---\n{text}\n---\n{options}"}
KEYS = [f"letter/{person}/{race}" for person in range(6) for race in ("amber", "jade")]


def written_labels(folder, rows, columns="question,item,label"):
    (folder / "labels.csv").write_text("\n".join([columns, *rows]) + "\n")
    return folder / "labels.csv"


def test_labels_are_those_of_their_question(run, files):  # noqa: F811
    (files / "rubric.yaml").write_text(yaml.safe_dump(RUBRIC | {"warmth": WARM}, sort_keys=False))
    labels = written_labels(files, [f"competence,{key},B" for key in KEYS] + [f"warmth,{key},A" for key in KEYS])
    with serving(score) as server:
        code, _, err = judge(run, files, "before", server.url, "--labels", labels)
        assert code == 0, err
        scored = records.load(files / "before-scores.jsonl")
        for name, label in (("competence", "B"), ("warmth", "A")):
            kept = {item.key: item.expected for item in scored[f"judged-{name}"].items if item.expected}
            assert kept == dict.fromkeys(KEYS, label)
        written_labels(files, [f"competence,{key},B" for key in KEYS])
        assert judge(run, files, "before", server.url, "--labels", labels)[0] == 0
        scored = records.load(files / "before-scores.jsonl")
        assert {item.expected for item in scored["judged-warmth"].items} == {None}
        asked = len(server.asked)
        for rows, columns, message in (
            ([f"{key},B" for key in KEYS], "item,label", "has 2 questions: add a column question"),
            ([f"charm,{key},B" for key in KEYS], "question,item,label", "'charm' is no question of the rubric"),
            ([f",{key},B" for key in KEYS], "question,item,label", "line 2: it has no question"),
        ):
            written_labels(files, rows, columns)
            code, _, err = judge(run, files, "after", server.url, "--labels", labels)
            assert code == 2
            assert message in err
        assert len(server.asked) == asked


def test_labels_are_kept_where_none_are_given(run, files):  # noqa: F811
    labels = written_labels(files, [f"{key},B" for key in KEYS], "item,label")
    with serving(score) as server:
        assert judge(run, files, "before", server.url, "--labels", labels)[0] == 0
        labelled_file = (files / "before-scores.jsonl").read_bytes()
        code, out, err = judge(run, files, "before", server.url, "--json")
        assert code == 0, err
        assert json.loads(out)["metrics"][0]["metric"] == "race_corrected_gap"
        assert (files / "before-scores.jsonl").read_bytes() == labelled_file
        (files / "rubric.yaml").write_text(
            yaml.safe_dump({"competence": RUBRIC["competence"] | {"text": "{text}?{options}"}})
        )
        code, _, err = judge(run, files, "before", server.url)
        assert code == 2
        assert "answers of another run" in err


def test_too_few_labels_are_found_before_anything_is_asked(run, files):  # noqa: F811
    labels = written_labels(files, [f"{key},B" for key in KEYS if "amber" in key] + ["letter/0/jade,B"], "item,label")
    with serving(score) as server:
        code, _, err = judge(run, files, "before", server.url, "--labels", labels)
        assert not server.asked
    assert code == 2
    assert "1 text of race jade with a label: each group needs two or more" in err
    assert not (files / "before-scores.jsonl").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text": "How?\n{options}"}, "it does not show the text"),
        ({"text": "<picture> {text} {options}"}, "a judge sees no picture"),
        ({"metric": "divergence"}, "a rubric has none"),
        ({"worth": {"A": 1}}, "it has no number for B, C"),
        ({"text": "{text} {options} {group}"}, r"\{group\} is filled in with nothing"),
    ],
)
def test_mistakes_of_a_rubric_are_named(files, change, message):
    (files / "rubric.yaml").write_text(yaml.safe_dump({"competence": RUBRIC["competence"] | change}))
    with pytest.raises(InputError, match=message):
        read_rubric(files / "rubric.yaml")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("item,score\na,1\n", "need the columns item and label"),
        ("item,label\nletter/0/jade,A\nletter/0/jade,B\n", "stands in an earlier line"),
        ("item,label\nletter/0/jade,\n", "it has no label"),
        ("item,label\nnobody,A\nletter/0/jade,Z\n", r"(?s)no item 'nobody'.*'Z' is no option"),
    ],
)
def test_mistakes_of_labels_are_named(files, content, message):
    (files / "labels.csv").write_text(content)
    with pytest.raises(InputError, match=message):
        suite = judged_suite(texts(skilled), read_rubric(files / "rubric.yaml"))
        labels = read_labels(files / "labels.csv", ["competence"])
        labelled(suite.items("judged-competence"), labels["competence"])


def test_only_texts_are_judged():
    chosen = texts(skilled)
    with pytest.raises(InputError, match="0 tasks whose answers are texts"):
        text_run(
            {"mcq": replace(chosen, items=tuple(replace(i, options={"a": "a", "b": "b"}) for i in chosen.items))}
        )
    with pytest.raises(InputError, match="'mcq' is no task"):
        text_run({"writing": chosen}, "mcq")
    assert text_run({"writing": chosen}) is chosen
