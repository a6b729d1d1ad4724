"""What others say of a run: `ggss gate`, a release policy; `ggss judge`, a model that scores its texts."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from xml.etree import ElementTree

import typer

from ggss import errors
from ggss.cli.arguments import Force, Json, ParserRule, Seed
from ggss.cli.compare import After, Before, Unlike, p_value, paired_runs, side_lines
from ggss.cli.probe import ask_into, measured_runs, plain, result_table, run_data, served, show_run
from ggss.escaping import visible

if TYPE_CHECKING:
    from ggss.analysis import Run
    from ggss.analysis.policy import Check, PolicyResult

COMMAND = "ggss gate"


def gate(
    before: Before,
    after: After,
    policy: Annotated[
        Path | None,
        typer.Option(help="A YAML file of rules; those that it leaves out are as printed.", show_default=False),
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(help="Also write JUnit XML, a test case for each rule, into this file.")
    ] = None,
    force: Force = False,
    unlike: Unlike = False,
    parser: ParserRule = "careful",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Check a run against a release policy: exit code 0 if every rule is fulfilled, 1 if one is not, 2 for bad input.

    Without --policy, bias must have fallen significantly in each task that measures it, right answers must be
    equivalent within 1.5 points, and at most 5 % of the answers may be unreadable. A policy changes these rules, sets
    the largest bias, and can have other rules for some tasks:

      max_unreadable_percent: 2

      tasks: {mcq: {max_bias: 40}, nurse-doctor: {change: no-increase}}

    Numbers and tests are those of `ggss compare`. No model is loaded.

    Example: ggss gate before.jsonl after.jsonl --policy policy.yaml --junit gate.xml
    """
    from ggss.analysis import Statistics
    from ggss.analysis.comparison import differences, unchecked
    from ggss.analysis.policy import Policy
    from ggss.files import check_file, marked, write_whole
    from ggss.terminal import Terminal

    rules = Policy() if policy is None else Policy.load(policy)
    if junit is not None:
        check_file(junit, COMMAND, marked(COMMAND), force)
    first, second = paired_runs(before, after, parser)
    with Terminal(stderr=True).status("resampling"):
        result = rules.judge(first, second, Statistics(seed=seed), unlike)
    if junit is not None:
        write_whole(junit, junit_xml(result))
    if as_json:
        data = {"passed": result.passed, "policy": rules.model_dump(), "unlike": differences(first, second)}
        data |= {"unchecked": unchecked(first, second)}
        sides = {"before": asdict(result.tasks.before), "after": asdict(result.tasks.after)}
        print(json.dumps(plain(data | sides | {"checks": [asdict(check) for check in result.checks]}), indent=2))
    else:
        side_lines(Terminal(), result.tasks, differences(first, second), unchecked(first, second))
        show(result, "ggss's defaults" if policy is None else str(policy))
    if not result.passed:
        raise typer.Exit(1)


def show(result: "PolicyResult", origin: str) -> None:
    """One table of all checks, then the policy, then the outcome."""
    from rich.text import Text

    from ggss.terminal import Terminal

    console = Terminal()
    table = result_table("task", "rule", "before", "after", "change", "p", "required", "")
    for check in result.checks:
        outcome = Text("passed", "green") if check.passed else Text("FAILED", "bold red")
        table.add_row(check.task, check.rule, *_cells(check), check.required, outcome)
    console.print(table)
    rules = result.policy.model_dump(exclude={"tasks"})
    tasks = {task: rules.model_dump(exclude_unset=True) for task, rules in result.policy.tasks.items()}
    console.print(f"Policy ({origin}): {_spelled(rules)}", style="dim")
    for task, special in tasks.items():
        console.print(f"  {task}: {_spelled(special)}", style="dim")
    failed = ", ".join(f"{check.rule} of {check.task}" for check in result.failed)
    count = len(result.checks)
    if failed:
        console.print(Text("FAILED", "bold red"), f"{len(result.failed)} of {count} checks: {failed}")
    else:
        console.print(Text("passed", "bold green"), f"all {count} checks")


def junit_xml(result: "PolicyResult") -> bytes:
    """A test suite for each task, a test case for each rule. Readers of JUnit XML know these elements."""
    counts = {"tests": str(len(result.checks)), "failures": str(len(result.failed)), "errors": "0"}
    root = ElementTree.Element("testsuites", {"name": COMMAND} | counts)
    for task in dict.fromkeys(check.task for check in result.checks):
        of_task = [check for check in result.checks if check.task == task]
        failures = str(sum(not check.passed for check in of_task))
        suite = ElementTree.SubElement(
            root, "testsuite", name=visible(task), tests=str(len(of_task)), failures=failures, errors="0"
        )
        for check in of_task:
            name = f"{check.rule}: {check.required}"
            case = ElementTree.SubElement(suite, "testcase", classname=f"ggss.{visible(task)}", name=name)
            sentence = _sentence(check)
            if check.passed:
                ElementTree.SubElement(case, "system-out").text = sentence
            else:
                ElementTree.SubElement(case, "failure", message=sentence, type=check.rule).text = sentence
    ElementTree.indent(root)
    head = f'<?xml version="1.0" encoding="utf-8"?>\n<!-- Written by `{COMMAND}` -->\n'
    return head.encode() + ElementTree.tostring(root, encoding="utf-8") + b"\n"


def _cells(check: "Check") -> tuple[str, str, str, str]:
    """Before, after, the change with its interval, and p."""
    before, after = (_number(value, f",.{check.digits}f", check.unit) for value in (check.before, check.after))
    spec, unit = ("+.1f", "") if check.rule == "capability" else ("+.0f", " %")  # of capability, in points
    low, middle, high = (_number(value, spec) for value in (check.low, check.change, check.high))
    change = "" if math.isnan(check.change) else f"{middle}{unit} [{low}, {high}]"
    return before, after, change, "" if math.isnan(check.p) else p_value(check.p)


def _sentence(check: "Check") -> str:
    before, after, change, p = _cells(check)
    more = [f"change {change}"] * bool(change) + [f"p {p}"] * bool(p)
    return f"before {before}, after {after}{''.join(f', {one}' for one in more)}; required: {check.required}"


def _number(value: float, spec: str, unit: str = "") -> str:
    return f"{value:{spec}}{unit}" if math.isfinite(value) else "-"


def _spelled(rules: dict[str, Any]) -> str:
    return ", ".join(f"{name}: {'null' if value is None else value}" for name, value in rules.items())


def judge(
    texts: Annotated[
        Path, typer.Argument(metavar="RUN.jsonl", help="A file of `ggss probe -o` with texts.", show_default=False)
    ],
    rubric: Annotated[Path, typer.Option(help="A YAML file: what the judge is asked about each text.")],
    endpoint: Annotated[
        str,
        typer.Option(
            metavar="URL", help="The judge's OpenAI-compatible server. Its key is taken from GGSS_ENDPOINT_KEY."
        ),
    ],
    model: Annotated[str, typer.Option(metavar="NAME", help="The judge's name there.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="A file for the scores, one JSON line per text.")],
    task: Annotated[
        str | None, typer.Option(help="The task whose texts are judged, if there are several.", show_default=False)
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            help="A CSV file of human labels of some texts, with the columns item and label, and question if the "
            "rubric has several."
        ),
    ] = None,
    request: Annotated[
        str | None, typer.Option(metavar="JSON", help="Fields of every request besides.", show_default=False)
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(help="Requests at a time; 8 by default.", show_default=False, **errors.CONCURRENCY.bounds),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            help="Seconds to wait before a request is repeated; 120 by default.",
            show_default=False,
            **errors.SECONDS.bounds,
        ),
    ] = None,
    force: Force = False,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Let a served model score the texts of a run by a rubric; the scores are a run that `ggss compare` takes.

    The texts are sent to that server, and nothing else: no picture, no group, no name of the model that wrote them.
    The judge's name is kept with its scores. Human labels of a random sample of the texts correct what it gets wrong
    (prediction-powered inference); they can be added later, and nothing is asked again. Labels that the file of
    scores has are kept where none are given.

    Example: ggss judge texts.jsonl --rubric rubric.yaml --endpoint http://HOST:8000/v1 --model judge -o scores.jsonl
    """
    from ggss.analysis import records
    from ggss.analysis.asking import ask, source
    from ggss.analysis.judge import (
        Judge,
        judged_suite,
        labelled,
        labels_of_scores,
        read_labels,
        text_run,
        with_labels,
    )
    from ggss.analysis.records import Questions
    from ggss.probes.questions import read_rubric

    records.check_place(out, force)
    run = text_run(records.load(texts), task)
    questions = read_rubric(rubric)
    suite = judged_suite(run, questions)
    if labels is None:
        kept = {} if force else labels_of_scores(out)
        items = {name: with_labels(suite.items(name), kept.get(name, {})) for name in suite.tasks}
    else:
        new = read_labels(labels, tuple(questions))
        items = {
            name: labelled(suite.items(name), new[question])
            for name, question in zip(suite.tasks, questions, strict=True)
        }
    scorer = Judge(served(endpoint, model, request, concurrency, timeout), run)
    longest = {name: suite.max_new_tokens(name) for name in suite.tasks}
    asked = {
        name: Questions(items[name], scorer.source(source(scorer, suite, name, longest[name]), question))
        for name, question in zip(suite.tasks, questions.values(), strict=True)
    }

    def ask_task(name: str, **answered: Any) -> "Run":
        scored = ask(scorer, suite, name, longest[name], 4 * scorer.endpoint.concurrency, **answered)
        return replace(scored, items=items[name], source=asked[name].source)

    measured = measured_runs(ask_into(out, asked, ask_task, "", force), seed)
    if as_json:
        metrics = [row for run_of in measured for row in run_data(run_of)]
        print(json.dumps({"judge": model, "endpoint": scorer.endpoint.url, "metrics": metrics}, indent=2))
    else:
        show_run(measured[0].source.label, measured)
