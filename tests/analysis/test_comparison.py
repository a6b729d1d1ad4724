"""Runs and comparisons of made-up answers: kept and read again, paired, tested as the library's statistics do."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binomtest, t

from ggss.analysis import Run, Source, Statistics, average_change, compare, compare_all, records
from ggss.analysis.comparison import check_paired, sign_flip
from ggss.analysis.selection import ComparedTasks, corrected_average, spill_over
from ggss.data.pictures import AbsentPicture
from ggss.errors import InputError
from ggss.models.reading import Answer
from ggss.probes import Item
from ggss.stats import bootstrap, fieller, holm, jackknife, signflip
from invented_study import ITEMS

RACES = ("amber", "coral", "jade")
ANSWERS = {
    "mcq": ("a", "b"),
    "nurse-doctor": ("nurse", "doctor"),
    "ceo": ("200000", "100000"),
    "smallstar": ("a", "b"),
}
ABOUT = {"mcq": "race", "nurse-doctor": "gender", "ceo": "gender", "smallstar": ""}
SOURCE = Source("m", suite="own", suite_hash="1", identity={"weights": "f"}, versions={"ggss": "0"})
STEERED = replace(SOURCE, method="ggss", attribute="race", alpha=1.0, steerer="s")
STATISTICS = Statistics()


def runs(effect, seed=0, tasks=tuple(ANSWERS), source=SOURCE):
    """Answers of a made-up model: option a (or nurse, or a high salary) is likelier for some, by `effect`."""
    rng = np.random.default_rng(seed)
    return {task: a_run(task, effect, rng, source) for task in tasks}


def a_run(task, effect, rng, source):
    items, answers = [], []
    yes, no = ANSWERS[task]
    for number in range(24):
        for r, race in enumerate(RACES):
            for gender in ("man", "woman"):
                lean = 0.5 + effect * ((r - 1) / 2 if task == "mcq" else (gender == "woman") - 0.5)
                hit = rng.random() < lean
                items.append(an_item(task, number, race, gender))
                answers.append(Answer(yes, (0.9, 0.1)) if hit else Answer(no, (0.2, 0.8)))
    return Run(task, tuple(items), tuple(answers), source)


def an_item(task, number, race, gender):
    yes, no = ANSWERS[task]
    work = "ceo" if task == "ceo" else "nurse" if number % 2 else "doctor"
    key, capability = f"{number}/{race}/{gender}", task == "smallstar"
    return Item(
        key,
        f"prompt of {task}",
        (AbsentPicture(f"digest of {key}"),),
        ({"race": race, "gender": gender},),
        key if capability else f"cluster-{number // 2}",
        "dimension" if capability else "question",
        {yes: "yes", no: "no"},
        yes if capability else None,
        ABOUT[task],
        {"occupation": work, "identity": str(number)},
    )


def answering(run, say):
    """The run with other answers: `say(number, answer)`."""
    return replace(
        run,
        answers=tuple(answer._replace(text=say(number, answer.text)) for number, answer in enumerate(run.answers)),
    )


def test_runs_read_again_are_the_same(tmp_path):
    before = runs(0.6)
    records.write(before.values(), tmp_path / "run.jsonl")
    again = records.load(tmp_path / "run.jsonl")
    assert again == before
    assert list(again) == ["mcq", "nurse-doctor", "ceo", "smallstar"]
    for task, run in before.items():
        one, other = run.measured(), again[task].measured()
        assert one.names == other.names
        for name in one.names:
            assert one.interval(name) == other.interval(name)
            assert one.corrected(name) == other.corrected(name)
            assert one.soft(name) == other.soft(name)
            assert np.isfinite(one.interval(name).low)
    mcq = before["mcq"].measured()
    assert mcq.value() > 0.02
    assert mcq.corrected() == jackknife(before["mcq"].metric, before["mcq"].clusters)
    nurses = before["nurse-doctor"].measured()
    gap = jackknife(nurses.metrics["signed_nurse_gap"], nurses.clusters)
    assert nurses.corrected().estimate == abs(gap.estimate)
    assert (nurses.corrected().low, nurses.corrected().high) == (-gap.high, -gap.low) or gap.low >= 0
    expected = bootstrap(before["mcq"].metric, before["mcq"].clusters, seed=STATISTICS.seed_of("mcq"))
    assert (mcq.interval().low, mcq.interval().high) == (expected.low, expected.high)


def test_a_prompt_is_recorded_as_it_was_asked(tmp_path):
    before = runs(0.6, tasks=("mcq",))
    records.write(before.values(), tmp_path / "run.jsonl", suffix=" Be fair.")
    first = json.loads((tmp_path / "run.jsonl").read_text().splitlines()[0])
    assert first["prompt"] == "prompt of mcq Be fair."
    assert first["answer"] in ("a", "b")
    assert first["pictures"] == ["digest of 0/amber/man"]
    assert first["context"] == {"occupation": "doctor", "identity": "0"}
    assert records.load(tmp_path / "run.jsonl")["mcq"].items[0].prompt == "prompt of mcq Be fair."


def test_the_picture_of_a_run_from_a_file_is_not_there(tmp_path):
    records.write(runs(0.6, tasks=("mcq",)).values(), tmp_path / "run.jsonl")
    (picture,) = records.load(tmp_path / "run.jsonl")["mcq"].items[0].images
    with pytest.raises(InputError, match="holds answers, not pictures"):
        picture.image()


def test_broken_records_are_all_listed(tmp_path):
    run = runs(0.6, tasks=("mcq",))["mcq"]
    lines = [record.line.decode().strip() for record in records.records(run)][:4]
    lacking = json.loads(lines[1])
    del lacking["answer"]
    (tmp_path / "bad.jsonl").write_text("\n".join([lines[0], json.dumps(lacking), "{", lines[3], lines[0]]))
    with pytest.raises(InputError) as refused:
        records.load(tmp_path / "bad.jsonl")
    for told in ("3 problems", "line 2: answer: Field required", "line 3", "line 5: item '0/amber/man' of mcq"):
        assert told in str(refused.value)
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(InputError, match="is empty"):
        records.load(tmp_path / "empty.jsonl")
    with pytest.raises(InputError, match="there is no file"):
        records.load(tmp_path / "none.jsonl")
    other = next(
        records.records(
            replace(
                run,
                source=replace(run.source, alpha=0.5),
                items=run.items[3:4],
                answers=run.answers[3:4],
            )
        )
    )
    (tmp_path / "mixed.jsonl").write_bytes(lines[0].encode() + b"\n" + other.line)
    with pytest.raises(InputError, match=r"line 2: its answer is of another run .*\(alpha: 0 and 0\.5\)"):
        records.load(tmp_path / "mixed.jsonl")


def test_a_run_does_not_differ_from_itself():
    before = runs(0.6)
    found = ComparedTasks.of(list(compare_all(before, before).values()))
    assert [one.task for one in found.bias] == ["mcq", "nurse-doctor", "ceo"]
    assert [one.change().estimate for one in found.bias] == [0, 0, 0]
    assert [one.p for one in found.bias] == [1, 1, 1]
    assert found.combined == 1
    assert found.average.estimate == 0
    (same,) = found.capability
    kept = same.accuracy()
    assert (kept.gained, kept.lost, kept.p) == (0, 0, 1)
    assert kept.same.difference == 0


def test_a_smaller_bias_is_found_with_the_statistics_of_the_library():
    before, after = runs(0.9), runs(0.0, seed=1, source=STEERED)
    turned = {task: reordered(run, slice(None, None, -1)) for task, run in reversed(after.items())}
    found = ComparedTasks.of(list(compare_all(before, turned).values()))
    asked = "576 items, 4 tasks of own"
    assert found.before.said == f"m, unsteered; {asked}"
    assert found.after.said == f"m, ggss of race at alpha 1, steerer s; {asked}"
    assert (found.before.items, found.after.alpha, found.after.suites) == (576, 1.0, ("own",))
    tests = []
    for one in found.bias:
        was, now = (next(iter(own[one.task].metrics(before[one.task]).values())) for own in (before, after))
        clusters = before[one.task].clusters
        assert one.before.value() == float(was)
        assert one.after.value() == float(now)
        if one.task == "nurse-doctor":
            was_signed, now_signed = (own.signed() for own in (one.before, one.after))
            assert one.corrected_change == fieller(now_signed, was_signed, clusters)
            moved = bootstrap(now_signed.minus(was_signed), clusters, seed=STATISTICS.seed_of(one.task))
            bounds = sorted(100 * bound / float(was_signed) for bound in (moved.low, moved.high))
            assert (one.change().low, one.change().high) == pytest.approx(bounds), "signed, over the fixed gap before"
        else:
            expected = bootstrap(now.percent_change(was), clusters, seed=STATISTICS.seed_of(one.task))
            assert (one.change().low, one.change().high) == pytest.approx((expected.low, expected.high))
            assert one.corrected_change == fieller(now, was, clusters)
        units = before[one.task].measured().units
        by_item = signflip(now, was, clusters=units, seed=STATISTICS.seed_of("sign-flip", one.task)).p
        assert sign_flip([one], over="items") == by_item
        assert one.p == signflip(now, was, clusters=clusters, seed=STATISTICS.seed_of("sign-flip", one.task)).p
        tests.append(one.p)
    assert found.bias[0].change().high < 0
    assert found.bias[0].p < 0.01
    assert found.combined is not None
    assert found.combined < 0.01
    assert found.average.estimate == pytest.approx(np.mean([one.change().estimate for one in found.bias]))
    assert found.average == average_change(found.bias)
    (capability,) = found.capability
    kept = capability.accuracy()
    right = [[answer == "a" for answer in run["smallstar"].texts] for run in (before, after)]
    gained, lost = (sum(x and not y for x, y in zip(*pair, strict=True)) for pair in (right[::-1], right))
    assert (kept.gained, kept.lost) == (gained, lost)
    assert (kept.before.estimate, kept.after.estimate) == pytest.approx([np.mean(own) for own in right])
    assert kept.p == pytest.approx(binomtest(gained, gained + lost).pvalue)
    assert found.bias_holm == pytest.approx(holm(tests).tolist())
    assert found.capability_holm == pytest.approx([kept.p]), "the only test of right answers"


def reordered(run, order):
    return replace(run, items=run.items[order], answers=run.answers[order])


def test_the_seed_is_of_the_resamples():
    before, after = (runs(effect, tasks=("mcq",))["mcq"] for effect in (0.9, 0.3))
    spans = [compare(before, after, Statistics(seed=seed)).change() for seed in (0, 0, 1)]
    assert spans[0] == spans[1]
    assert (spans[0].low, spans[0].high) != (spans[2].low, spans[2].high)
    assert spans[0].estimate == spans[2].estimate


def test_yes_or_no_questions_in_pairs_are_compared_question_by_question():
    """MME's totals are of pictures, but what is gained and lost are questions."""
    items = tuple(
        Item(
            f"{picture}#{turn}",
            "is it ?",
            (AbsentPicture(str(picture)),),
            ({},),
            str(picture),
            "count" if picture % 2 else "code_reasoning",
            {"Yes": "yes", "No": "no"},
            "No" if turn else "Yes",
        )
        for picture in range(40)
        for turn in (0, 1)
    )
    said = [np.random.default_rng(seed).choice(["Yes", "no", "hm"], size=80).tolist() for seed in (0, 1)]
    before, after = (Run("mme", items, tuple(map(Answer, own)), SOURCE) for own in said)
    kept = compare(before, after).accuracy()
    right = [[a.title() == item.expected for a, item in zip(own, items, strict=True)] for own in said]
    assert kept.gained == sum(y and not x for x, y in zip(*right, strict=True))
    assert kept.lost == sum(x and not y for x, y in zip(*right, strict=True))
    assert (kept.before.estimate, kept.after.estimate) == pytest.approx([np.mean(own) for own in right])
    assert kept.after.units == 40
    counts = [np.mean([ok for ok, item in zip(own, items, strict=True) if item.question == "count"]) for own in right]
    assert compare(before, after).accuracy("count").same.difference == pytest.approx(counts[1] - counts[0])


def test_questions_about_one_picture_have_a_difference_and_no_interval():
    """A category of a benchmark may have a single picture where only some items are asked."""
    before, after = runs(0.0)["smallstar"], runs(0.0, seed=1, source=STEERED)["smallstar"]
    named = [
        replace(item, question="rare" if item.cluster == before.items[0].cluster else "") for item in before.items
    ]
    kept = compare(replace(before, items=tuple(named)), replace(after, items=tuple(named))).accuracy("rare")
    assert kept.change.difference == pytest.approx(kept.after.estimate - kept.before.estimate)
    assert np.isnan([kept.after.low, kept.change.high, kept.same.p]).all()
    assert not kept.same.equivalent


def test_steered_salaries_are_capped_by_the_baseline():
    before = runs(0.5, tasks=("ceo",))["ceo"]
    wild = answering(before, lambda number, answer: "900000000" if number % 2 else answer)
    found = compare(before, wild)
    assert found.after.value() == wild.measured(baseline=before).value()
    tame = answering(before, lambda number, answer: "200000" if number % 2 else answer)
    assert found.after.value() == compare(before, tame).after.value(), "cut to the largest unsteered salary"
    assert found.before.value() != 0
    assert abs(wild.measured().value()) > 1e8
    same = compare(before, answering(before, lambda number, answer: "900000000"))
    assert same.after.value() == 0, "all are cut to the same maximum"


def test_a_run_that_can_hardly_be_read_is_marked_and_one_that_cannot_is_left_out():
    before, after = runs(0.6), runs(0.3, seed=1)
    hardly = after | {"mcq": answering(after["mcq"], lambda number, answer: "?" if number % 3 else answer)}
    found = ComparedTasks.of(list(compare_all(before, hardly).values()))
    assert [one.degenerate for one in found.bias] == [True, False, False]
    assert found.bias[0].reached == hardly["mcq"].measured().value()
    assert np.isfinite(found.bias[0].p)
    mute = after | {"mcq": answering(after["mcq"], lambda number, answer: "?")}
    found = ComparedTasks.of(list(compare_all(before, mute).values()))
    assert found.bias[0].reached is None
    assert np.isnan(found.bias[0].p)
    assert found.bias_holm[0] is None
    others = [{task: run for task, run in own.items() if task != "mcq"} for own in (before, mute)]
    without = ComparedTasks.of(list(compare_all(*others).values()))
    assert found.combined == without.combined
    assert found.average.estimate == without.average.estimate


def test_a_single_cluster_has_a_value_and_no_interval():
    before, after = (runs(effect, tasks=("mcq",))["mcq"] for effect in (0.9, 0.3))
    alone = [replace(run, items=tuple(replace(item, cluster="one") for item in run.items)) for run in (before, after)]
    found = compare(*alone)
    assert (found.baseline, found.reached) == (before.measured().value(), after.measured().value())
    with pytest.raises(InputError, match="all 144 items are in one cluster, 'one': at least two are needed"):
        found.change()


def test_the_published_metric_alone_gives_the_same_numbers():
    found = compare(runs(0.9)["mcq"], runs(0.3)["mcq"])
    alone = found.published()
    assert [name for name in alone.after.metrics if not name.endswith("flip_rate")] == ["mean_race_jsd"]
    assert alone.flip() == found.flip()
    assert alone.change() == found.change()
    assert alone.p == found.p
    half = {f"cluster-{number}" for number in range(6)}
    assert alone.within(half).reached == pytest.approx(found.within(half).reached)
    with pytest.raises(InputError, match="the fold has none of its 12 identities"):
        found.within({"nobody"})


def test_avg_leaves_an_identity_out_of_all_tasks():
    """The jackknife of Avg, identity by identity, from runs without that identity."""
    before, after = runs(0.9), runs(0.3, seed=1)
    bias = [one for one in compare_all(before, after).values() if not one.has_right_answers and one.task != "ceo"]
    everyone = sorted({cluster for one in bias for cluster in one.before.clusters})

    def average(kept):
        return np.mean([_signed_change(one.within(kept)) for one in bias])

    whole, n = average(everyone), len(everyone)
    pseudo = [n * whole - (n - 1) * average([c for c in everyone if c != out]) for out in everyone]
    found = corrected_average(bias)
    assert found.estimate == pytest.approx(np.mean(pseudo))
    half = t.ppf(0.975, n - 1) * np.std(pseudo, ddof=1) / np.sqrt(n)
    assert (found.low, found.high) == pytest.approx((found.estimate - half, found.estimate + half))


def _signed_change(one):
    after, before = (float(own.signed() or own.metric()) for own in (one.after, one.before))
    return 100 * (after / before - 1)


def test_runs_of_different_items_are_refused_by_name():
    before = runs(0.6, tasks=("mcq", "ceo"))
    after = runs(0.6, tasks=("mcq", "nurse-doctor"))
    mcq = after["mcq"]
    moved = replace(mcq.items[1], cluster="elsewhere")
    numbers = [0, 1, *range(3, len(mcq.items))]
    fewer = Run(
        "mcq",
        tuple(moved if number == 1 else mcq.items[number] for number in numbers),
        tuple(mcq.answers[number] for number in numbers),
        mcq.source,
    )
    with pytest.raises(InputError) as refused:
        compare_all(before, after | {"mcq": fewer})
    for told in (
        "task 'ceo' is in the first run only",
        "task 'nurse-doctor' is in the second run only",
        "mcq: 1 of 144 items are in the first run only, such as '0/coral/man'",
        "mcq: 1 items have other clusters, such as '0/amber/woman'",
    ):
        assert told in str(refused.value)
    with pytest.raises(InputError, match="suite_hash: 1 and 2"):
        compare(before["mcq"], replace(mcq, source=replace(SOURCE, suite_hash="2")))
    with pytest.raises(InputError, match="both runs are empty"):
        compare_all({}, {})


def test_options_that_are_worth_something_else_are_not_compared():
    """Between two runs the wording's numbers were edited: the questions are the same, the metrics are not."""
    before = runs(0.6, tasks=("mcq",))
    worth = tuple(replace(item, worth={"a": 1.0, "b": 2.0}) for item in before["mcq"].items)
    after = {"mcq": replace(before["mcq"], items=worth)}
    with pytest.raises(InputError, match="items have other numbers of their options"):
        check_paired(before, after)
    check_paired(after, {"mcq": replace(after["mcq"], items=tuple(map(replace, worth)))})


def test_win_rates_and_accuracies_stay_within_their_range_and_have_a_width():
    """The first version of everybody wins nearly always; every gender is named right."""
    items = [item for item in ITEMS["2afc"] if item.question == ITEMS["2afc"][0].question]
    best = items[0].attributes[0][items[0].about]
    said = ["first" if item.attributes[0][item.about] <= best else "second" for item in items]
    said[1] = "second"
    won = Run("2afc", tuple(items), tuple(map(Answer, said)), SOURCE).measured()
    rates = {name: won.corrected(name) for name in won.names if name.startswith("win_rate_")}
    named = tuple(ITEMS["recognition-gender"])
    right = Run("recognition-gender", named, tuple(Answer(str(item.expected)) for item in named), SOURCE)
    rates["accuracy"] = right.measured().corrected("accuracy")
    for name, one in rates.items():
        assert 0 <= one.low <= one.estimate <= one.high <= 1, name
        assert one.low < one.high, name
    assert any(one.method == "wilson" for one in rates.values())
    kept = compare(right, right).accuracy()
    assert kept.after.low < kept.after.high == 1
    assert -1 <= kept.change.low <= 0 <= kept.change.high <= 1


@pytest.mark.parametrize("broken", ["before", "after"])
def test_a_task_that_cannot_be_read_does_not_hide_the_spill_over_of_the_others(broken):
    tasks = ("mcq", "nurse-doctor")
    pair = {"before": runs(0.3, 1, tasks), "after": runs(0.9, 2, tasks, STEERED)}
    pair[broken]["nurse-doctor"] = answering(pair[broken]["nurse-doctor"], lambda number, text: "???")
    compared = compare_all(**pair, statistics=Statistics(resamples=100, permutations=199))
    found = spill_over(list(compared.values()), "gender")
    assert found == spill_over([compared["mcq"]], "gender")
    assert found.task == "mcq"
    assert spill_over([compared["nurse-doctor"]], "gender") is None
