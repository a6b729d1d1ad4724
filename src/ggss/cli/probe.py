"""`ggss probe`: measure a model's bias and capability, and compare two runs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ggss import ranges
from ggss.cli.arguments import (
    AnyModel,
    Attention,
    DeviceMap,
    Dtype,
    Json,
    Seed,
    Strength,
    TrustRemoteCode,
    batch,
    embedded,
    load,
    no_strength,
    one_thread,
    say,
    strength_said,
)
from ggss.errors import InputError, no_such
from ggss.progress import note, track

if TYPE_CHECKING:
    from ggss.analysis import Measured, Run
    from ggss.analysis.run_file import Asked
    from ggss.probes.suites import Suite
    from ggss.steering.steerer import Steerer


def probe(
    model: Annotated[
        str | None, typer.Argument(help="A folder, a hub id, or small-world/NAME.", show_default=False)
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(help='Comma separated, or "all"; the suite\'s own choice by default.', show_default=False),
    ] = None,
    suite: Annotated[
        str | None,
        typer.Option(help="A suite's name; reflect, about your own --images, unless the model has one of its own."),
    ] = None,
    images: Annotated[
        str | None,
        typer.Option(help="Pictures: a manifest with path, occupation, identity and attributes; or a pattern."),
    ] = None,
    steer: Annotated[str | None, typer.Option(help="A steerer's folder or hub id.")] = None,
    alpha: Strength = None,
    any_model: AnyModel = False,
    limit: Annotated[
        int | None,
        typer.Option(help="About this many items of each task: whole people, evenly chosen.", **ranges.ITEMS.bounds),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A file for one JSON line per item.")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a file of something else, or of another run; ask anew.")
    ] = False,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="A.jsonl B.jsonl", help="Compare two such files, unsteered first; no MODEL needed."),
    ] = None,
    unlike: Annotated[
        bool, typer.Option("--unlike", help="With --compare: also files of different models, questions or versions.")
    ] = False,
    recommend: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="With --compare: write the second file's alpha into its steerer's folder."),
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            help="The longest answer; by default 1 in the small world, 8 for mcq and 2afc, 16 for nurse-doctor, else "
            "2048.",
            **ranges.TOKENS.bounds,
        ),
    ] = None,
    batch_size: Annotated[
        str | None,
        typer.Option(
            metavar="INTEGER|auto",
            help="Questions asked together, or auto: as many as there is memory for, up to 64. "
            "64 in the small world by default, else 8.",
        ),
    ] = None,
    seed: Seed = 0,
    dtype: Dtype = None,
    device_map: DeviceMap = None,
    trust_remote_code: TrustRemoteCode = False,
    attention: Attention = None,
    as_json: Json = False,
) -> None:
    """Measure bias and capability, with 95 % intervals over the people shown.

    One call is one run. Run a model unsteered, then steered, and compare the two files:

      ggss probe small-world/qwen3-vl -o before.jsonl

      ggss probe small-world/qwen3-vl --steer race-steerer --alpha 1 -o after.jsonl

      ggss probe --compare before.jsonl after.jsonl

    On your own model and pictures:

      ggss probe org/model --images faces/manifest.csv --tasks mcq,2afc,recognition-race

    A task is a probe of `ggss probes`, or a probe and an attribute of your pictures, such as mcq-age. The benchmarks
    mmstar and mme are read from the folder that GGSS_DATA names.

    With -o each batch is on disk before the next is asked, in FILE.part until all are. Stop it at any time: the same
    command goes on where it stopped, and asks nothing again that is answered in the file. Answers of another model,
    steerer, strength or wording are never mixed in: the command is refused, or begins anew with --force.

    Example: ggss probe small-world/qwen3-vl --steer race-steerer -o after.jsonl
    """
    if compare is not None:
        if model is not None:
            raise InputError(f"--compare reads two files and asks no model: leave out {model!r}")
        _compare(*compare, seed, as_json, recommend, unlike)
        return
    if recommend is not None or unlike:
        told = "--recommend stores the strength" if recommend is not None else "--unlike allows more"
        raise InputError(f"{told} of a comparison: give --compare A.jsonl B.jsonl too")
    if model is None:
        raise InputError("a model is needed, such as small-world/qwen3-vl, or --compare A.jsonl B.jsonl")
    if out is not None:
        from ggss.analysis.run_file import check_place

        check_place(out, force)
    steerer = _steerer(steer, alpha)
    small = embedded(model)
    size = batch(batch_size) or (64 if small else 8)
    if small:
        one_thread()
    chosen = _suites(suite or _own_suite(model), images, tasks)
    items = {task: own.items(task, limit) for task, own in chosen.items()}

    from ggss.analysis.asking import ask, source
    from ggss.analysis.run_file import Asked
    from ggss.cli.probe_tables import run_data, show_run
    from ggss.models.feature_cache import FeatureCache
    from ggss.probes.steered_model import SteeredModel

    # The pictures are encoded in the same batches whatever was asked before.
    pictures = (picture for own in items.values() for item in own for picture in item.images)
    vlm = load(model, dtype, device_map, trust_remote_code, attention)
    asked = SteeredModel(FeatureCache(vlm, together=pictures))
    if steerer is not None:
        asked = asked.steered(steerer, alpha, any_model)
    longest = {task: max_new_tokens or own.max_new_tokens(task) for task, own in chosen.items()}
    wanted = {task: Asked(items[task], source(asked, own, task, longest[task])) for task, own in chosen.items()}

    if batch_size == ranges.AUTO:
        from ggss.models.prompt_length import PromptLengths
        from ggss.study.memory import prompt_tokens

        lengths = PromptLengths(vlm.processor)
        vlm.limit_batch(max(max(prompt_tokens(items[task], longest[task], lengths)) for task in chosen))

    def one(task: str, **known: Any) -> "Run":
        return ask(asked, chosen[task], task, longest[task], size, limit, **known)

    runs = [one(task) for task in chosen] if out is None else _into(out, wanted, one, asked.suffix, force)
    measured = _measured(runs, seed)
    if as_json:
        metrics = [row for one in measured for row in run_data(one)]
        print(json.dumps({"model": model, "steerer": steer, "alpha": asked.alpha, "metrics": metrics}, indent=2))
    else:
        show_run(model if steerer is None else f"{model}, {steerer.method} at alpha {asked.alpha:g}", measured)
        if steerer is not None and alpha is None:
            say(strength_said(steerer))


def _into(out: Path, wanted: "dict[str, Asked]", ask: "Callable[..., Run]", suffix: str, force: bool) -> "list[Run]":
    """Ask all tasks, and have every batch on disk before the next one is asked."""
    from ggss.analysis.run_file import growing

    total = sum(len(own.items) for own in wanted.values())
    with growing(out, wanted, suffix, force) as file:
        if file.count:
            more = "nothing is asked again" if file.count == total else "the others are asked now"
            note(f"{file.count} of {total} answers are there already: {more}")
        try:
            runs = [
                ask(task, answered=file.answered(task), keep=lambda answers, task=task: file.keep(task, answers))
                for task in wanted
            ]
        except KeyboardInterrupt as stopped:
            stopped.add_note(f"{file.count} of {total} answers are kept, and the same command goes on from there")
            raise
        file.finish(runs)
    return runs


def _compare(before: Path, after: Path, seed: int, as_json: bool, recommend: Path | None, unlike: bool) -> None:
    from ggss.analysis import Statistics, compare_all, records
    from ggss.analysis.compared_tasks import ComparedTasks
    from ggss.analysis.pairing import check_one_run, differences
    from ggss.cli.probe_tables import comparison_data, show_comparison
    from ggss.terminal import Terminal

    runs = records.load(before), records.load(after)
    for file, own in zip((before, after), runs, strict=True):
        check_one_run(own, str(file))
    with Terminal(stderr=True).status("resampling"):
        found = ComparedTasks.of(compare_all(*runs, Statistics(seed=seed), unlike))
    alpha = None if recommend is None else _recommended(recommend, runs[1])
    differ = differences(*runs)
    if as_json:
        told = comparison_data(found) | {"unlike": differ}
        print(json.dumps(told | ({} if alpha is None else {"recommended_alpha": alpha}), indent=2))
        return
    show_comparison(found, differ)
    if alpha is not None:
        say(f"alpha {alpha:g} is now what {recommend} recommends")


def _recommended(folder: Path, runs: "dict[str, Run]") -> float:
    """Write the strength of a steered run into the artefact that it was steered by, and no other; returns it."""
    from ggss.steering import artefact
    from ggss.steering.steerer import Steerer

    used = {(run.source.steerer, run.source.alpha) for run in runs.values()}
    if len(used) != 1 or not next(iter(used))[0]:
        raise InputError("the second file has no single steering whose strength could be recommended")
    content, alpha = next(iter(used))
    if Steerer.from_pretrained(folder).content_hash != content:
        raise InputError(f"{str(folder)!r} is not the steerer of the second file: its content differs")
    artefact.recommend(folder, alpha)
    return alpha


def _steerer(name: str | None, alpha: float | None) -> "Steerer | None":
    no_strength(alpha, name)
    if name is None:
        return None
    from ggss.steering.steerer import Steerer, checked_alpha

    steerer = Steerer.from_pretrained(name)
    checked_alpha(steerer.strength(alpha), allow_amplify=False)
    return steerer


def _measured(runs: "list[Run]", seed: int) -> "list[Measured]":
    from ggss.analysis import Statistics

    found = [run.measured(Statistics(seed=seed)) for run in runs]
    todo = [(one, name) for one in found for name in one.names]
    for measured, name in track(todo, "resampling"):
        measured.interval(name)
    return found


def _own_suite(model: str) -> str:
    """The suite of the package that a model comes with, if it has one; reflect for all other models."""
    from ggss.probes import suites

    collection = model.partition("/")[0]
    return collection if embedded(model) and collection in suites.SUITES else "reflect"


def _suites(name: str, images: str | None, tasks: str | None) -> "dict[str, Suite]":
    """Task -> the suite that asks it; everything is made and checked here, before a model is loaded."""
    from ggss import probes
    from ggss.probes import suites

    if name == "reflect" and images is None:
        raise InputError("suite 'reflect' asks about your own pictures: give --images, a manifest of them")
    own = suites.load(name, **({"images": images} if images is not None else {}))
    benchmarks = [task for task in probes.names() if probes.get(task).from_file]
    there = (*own.tasks, *benchmarks)
    named = own.default if tasks is None else own.tasks if tasks == "all" else (t.strip() for t in tasks.split(","))
    asked = list(dict.fromkeys(filter(None, named)))
    unknown = [task for task in asked if task not in there]
    if unknown:
        raise no_such(f"suite {name!r} cannot ask {', '.join(unknown)}", unknown[0], there)
    if not asked:
        raise InputError(f"--tasks {tasks!r} names no task: choose from {', '.join(there)}")
    chosen = {task: suites.benchmark(task) if task in benchmarks else own for task in asked}
    for task, suite in chosen.items():
        suite.items(task)
    return chosen
