"""A release policy: each rule passes and fails by the comparison's numbers, and nothing passes without evidence."""

from dataclasses import replace

import pytest

from ggss.analysis import Statistics, compare
from ggss.analysis.policy import Policy
from ggss.analysis.selection import ComparedTasks
from ggss.errors import InputError
from test_comparison import SOURCE, STEERED, answering, runs

TASKS = ("mcq", "nurse-doctor", "smallstar")
WIDE = {"capability_margin_points": 5.0}  # 144 questions cannot show less


@pytest.fixture(scope="module")
def before():
    return runs(0.9, tasks=TASKS)


@pytest.fixture(scope="module")
def after(before):
    """Bias is gone, and every right answer is kept."""
    fair = runs(0.0, seed=1, tasks=TASKS, source=STEERED)
    return fair | {"smallstar": replace(before["smallstar"], source=STEERED)}


def results(verdict):
    return {(check.task, check.rule): check.passed for check in verdict.checks}


def test_a_run_that_is_less_biased_and_as_capable_passes(before, after):
    verdict = Policy(**WIDE).judge(before, after)
    assert verdict.passed
    assert verdict.failed == ()
    assert list(results(verdict)) == [
        ("mcq", "change"),
        ("mcq", "unreadable"),
        ("nurse-doctor", "change"),
        ("nurse-doctor", "unreadable"),
        ("smallstar", "capability"),
        ("smallstar", "unreadable"),
    ]


def test_a_run_that_changes_nothing_fails(before):
    """The control: the same answers again."""
    same = {task: replace(run, source=STEERED) for task, run in before.items()}
    verdict = Policy(**WIDE).judge(before, same)
    assert [(check.task, check.rule) for check in verdict.failed] == [("mcq", "change"), ("nurse-doctor", "change")]
    assert Policy(change="no-increase", **WIDE).judge(before, same).passed


def test_a_rise_fails_either_rule_of_the_change(before, after):
    back = {task: replace(run, source=SOURCE) for task, run in after.items()}
    worse = {task: replace(run, source=STEERED) for task, run in before.items()}
    for change in ("decrease", "no-increase"):
        failed = Policy(change=change, **WIDE).judge(back, worse).failed
        assert {check.rule for check in failed} == {"change"}, change
        assert all(check.p <= 0.05 and abs(check.after) > abs(check.before) for check in failed), change
    assert Policy(change="any", **WIDE).judge(back, worse).passed


def test_the_numbers_are_those_of_the_comparison(before, after):
    verdict = Policy(max_bias=1.0, **WIDE).judge(before, after)
    wide = {task: compare(run, after[task], Statistics(margin=0.05)) for task, run in before.items()}
    expected = ComparedTasks.of(list(wide.values()))
    by_rule = {(check.task, check.rule): check for check in verdict.checks}
    mcq = by_rule["mcq", "change"]
    assert (mcq.change, mcq.low, mcq.high) == tuple(
        getattr(wide["mcq"].change(), name) for name in ("estimate", "low", "high")
    )
    assert mcq.p == expected.bias_holm[0] > wide["mcq"].p, "corrected for all tests of bias"
    bias = by_rule["mcq", "bias"]
    printed = [1000 * one.value() for one in (wide["mcq"].before, wide["mcq"].after)]
    assert [bias.before, bias.after] == printed, "in the unit that `ggss compare` prints"
    assert bias.unit == wide["mcq"].before.display().unit
    right = by_rule["smallstar", "capability"]
    kept = wide["smallstar"].accuracy()
    assert (right.p, right.before) == (kept.same.p, 100 * kept.before.estimate)
    assert kept.same.margin == 0.05


def test_the_largest_bias_is_in_the_unit_that_is_printed_and_may_be_reached_exactly(before, after):
    reached = compare(before["mcq"], after["mcq"]).reached
    scale = before["mcq"].measured().display().scale
    for limit, passes in ((scale * reached, True), (0.99 * scale * reached, False)):
        verdict = Policy(tasks={"mcq": {"max_bias": limit}}).judge(before, after)
        assert results(verdict)["mcq", "bias"] is passes
        assert ("nurse-doctor", "bias") not in results(verdict), "a rule of one task is not of another"


def test_a_gap_counts_without_its_sign():
    """A salary gap may be negative: turned round and smaller it has fallen, and -93,056 $ is not below any limit."""
    before, after = runs(0.9, tasks=("ceo",)), runs(-0.1, seed=1, tasks=("ceo",), source=STEERED)
    policy = Policy(tasks={"ceo": {"max_bias": 40_000}})
    (bias, change) = policy.judge(before, after).checks[:2]
    assert (bias.passed, change.passed) == (True, True)
    assert bias.before < 0 < bias.after < 40_000
    turned = {task: replace(run, source=SOURCE) for task, run in after.items()}
    biased = {task: replace(run, source=STEERED) for task, run in before.items()}
    (bias, change) = policy.judge(turned, biased).checks[:2]
    assert (bias.passed, change.passed) == (False, False)
    (change, _) = Policy(change="no-increase").judge(turned, biased).checks
    assert not change.passed


def test_capability_must_be_shown_within_the_margin(before, after):
    assert results(Policy().judge(before, after))["smallstar", "capability"] is False, "too few questions for 1.5"
    worse = answering(after["smallstar"], lambda number, answer: "b" if number < 20 else answer)
    lost = Policy(**WIDE).judge(before, after | {"smallstar": worse})
    assert results(lost)["smallstar", "capability"] is False
    unchecked = Policy(tasks={"smallstar": {"capability_margin_points": None}}).judge(before, after)
    assert ("smallstar", "capability") not in results(unchecked)
    assert unchecked.passed


@pytest.mark.parametrize("side", ["before", "after"])
def test_unreadable_answers_fail_on_either_side(before, after, side):
    sides = {"before": before, "after": after}
    task = sides[side]["mcq"]
    few = answering(task, lambda number, answer: "..." if number < 9 else answer)
    sides[side] = sides[side] | {"mcq": few}
    percent = 100 * 9 / len(task.items)
    for limit, passes in ((percent, True), (percent - 0.1, False)):
        verdict = Policy(max_unreadable_percent=limit, **WIDE).judge(**sides)
        assert results(verdict)["mcq", "unreadable"] is passes
        assert results(verdict)["smallstar", "unreadable"]


@pytest.mark.parametrize("change", ["decrease", "no-increase"])
def test_what_nobody_can_read_never_passes(before, after, change):
    mute = answering(after["nurse-doctor"], lambda number, answer: "...")
    policy = Policy(change=change, max_bias=1e6, max_unreadable_percent=None, **WIDE)
    verdict = policy.judge(before, after | {"nurse-doctor": mute})
    assert [(one.task, one.rule) for one in verdict.failed] == [("nurse-doctor", "bias"), ("nurse-doctor", "change")]


def test_a_policy_of_other_runs_is_refused(before, after):
    refused = {
        "rules for 'mcqq', which the runs did not ask: did you mean 'mcq'": {"mcqq": {}},
        r"tasks\.mcq\.capability_margin_points: mcq compares groups": {"mcq": {"capability_margin_points": 1.0}},
        r"tasks\.smallstar\.max_bias: smallstar has right answers": {"smallstar": {"max_bias": 0.1}},
    }
    for message, tasks in refused.items():
        with pytest.raises(InputError, match=message):
            Policy(tasks=tasks).judge(before, after)
    nothing = Policy(change="any", capability_margin_points=None, max_unreadable_percent=None)
    with pytest.raises(InputError, match="checks nothing of these runs"):
        nothing.judge(before, after)
    with pytest.raises(InputError, match="give the unsteered one first"):
        Policy().judge(after, before)


def test_a_policy_is_read_from_yaml(tmp_path):
    file = tmp_path / "policy.yaml"
    file.write_text("max_unreadable_percent: 2\ntasks:\n  mcq: {max_bias: 0.05, change: no-increase}\n  ceo: {}\n")
    policy = Policy.load(file)
    assert policy.of("ceo") == policy.of("other")
    assert policy.of("mcq").max_bias == 0.05
    assert policy.of("mcq").max_unreadable_percent == 2, "what a task does not say is as for all"
    assert (policy.of("ceo").change, policy.of("mcq").change) == ("decrease", "no-increase")
    file.write_text("{}")
    assert Policy.load(file) == Policy()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds nothing, not a mapping"),
        ("- max_bias", "holds list, not a mapping"),
        ("max_bais: 1", "max_bais: there is no such rule: did you mean 'max_bias'"),
        ("tasks: {mcq: {chnage: any}}", r"tasks\.mcq\.chnage: there is no such rule: did you mean 'change'"),
        ("tasks: {mcq: {tasks: {}}}", r"tasks\.mcq\.tasks: there is no such rule"),
        ("max_bias: yes", "max_bias: .*, seen 'yes'"),
        ("max_bias: true", "max_bias: .*, seen True"),
        ("max_bias: .nan", "max_bias: "),
        ("max_bias: -1", "max_bias: .*greater than or equal to 0, seen -1"),
        ("change: increase", "change: .*'decrease', 'no-increase' or 'any', seen 'increase'"),
        ("significance: 5", "significance: .*less than 1, seen 5"),
        ("capability_margin_points: 0", "capability_margin_points: .*greater than 0"),
        ("max_unreadable_percent: 101", "max_unreadable_percent: .*100"),
        ("tasks: [mcq]", "tasks: .*dictionary"),
        ("max_bias: -1\nsignificance: 5", "2 problems"),
        ("max_bias: 1\nmax_bias: 2", "is there twice"),
    ],
)
def test_a_wrong_policy_gets_a_sentence(tmp_path, text, message):
    file = tmp_path / "policy.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=message) as refused:
        Policy.load(file)
    assert str(file) in str(refused.value)
