"""`ggss probe`: measure a model's bias and capability, and compare two runs."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ggss.cli.arguments import DeviceMap, Dtype, Json, Strength, embedded, load, one_thread, strength_said
from ggss.errors import InputError

if TYPE_CHECKING:
    from ggss.analysis import Measured, Run
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
    force: Annotated[bool, typer.Option(help="Steer a model the steerer was not made for.")] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A file for one JSON line per item.")] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="A.jsonl B.jsonl", help="Compare two such files, unsteered first; no MODEL needed."),
    ] = None,
    recommend: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="With --compare: write the second file's alpha into its steerer's folder."),
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="The longest answer; by default 1 in the small world, 8 for mcq, else 2048."),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Questions asked together; 64 in the small world, else 8.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the resamples.")] = 0,
    dtype: Dtype = None,
    device_map: DeviceMap = None,
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
    """
    if compare is not None:
        if model is not None:
            raise InputError(f"--compare reads two files and asks no model: leave out {model!r}")
        _compare(*compare, seed, as_json, recommend)
        return
    if recommend is not None:
        raise InputError("--recommend stores the strength of a comparison: give --compare A.jsonl B.jsonl too")
    if model is None:
        raise InputError("a model is needed, such as small-world/qwen3-vl, or --compare A.jsonl B.jsonl")
    if out is not None and out.is_dir():
        raise InputError(f"{str(out)!r} is a folder: name a file, such as {str(out / 'run.jsonl')!r}")
    steerer = _steerer(steer, alpha)
    small = embedded(model)
    if small:
        one_thread()
    chosen = _suites(suite or _own_suite(model), images, tasks)

    from ggss.analysis.asking import ask
    from ggss.analysis.records import write
    from ggss.cli.probe_tables import run_data, show_run
    from ggss.probes.steered_model import SteeredModel

    asked = SteeredModel.of(load(model, dtype, device_map))
    if steerer is not None:
        asked = asked.steered(steerer, alpha, force)
    size = batch_size or (64 if small else 8)
    runs = [ask(asked, own, task, max_new_tokens, size, seed) for task, own in chosen.items()]
    if out is not None:
        write(runs, out, asked.suffix)
    measured = _measured(runs, seed)
    if as_json:
        metrics = [row for one in measured for row in run_data(one)]
        print(json.dumps({"model": model, "steerer": steer, "alpha": asked.alpha, "metrics": metrics}, indent=2))
    else:
        show_run(model if steerer is None else f"{model}, {steerer.method} at alpha {asked.alpha:g}", measured)
        if steerer is not None and alpha is None:
            print(strength_said(steerer))


def _compare(before: Path, after: Path, seed: int, as_json: bool, recommend: Path | None) -> None:
    from rich.console import Console

    from ggss.analysis import Statistics, compare_all, records
    from ggss.analysis.compared_tasks import ComparedTasks
    from ggss.cli.probe_tables import comparison_data, show_comparison

    runs = records.load(before), records.load(after)
    with Console(stderr=True).status("resampling"):
        found = ComparedTasks.of(compare_all(*runs, Statistics(seed=seed)))
    alpha = None if recommend is None else _recommended(recommend, runs[1])
    if as_json:
        print(json.dumps(comparison_data(found) | ({} if alpha is None else {"recommended_alpha": alpha}), indent=2))
        return
    show_comparison(found)
    if alpha is not None:
        print(f"alpha {alpha:g} is now what {recommend} recommends")


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
    if name is None:
        if alpha is not None:
            raise InputError(f"--alpha {alpha:g} is the strength of a steerer: give --steer, or leave out --alpha")
        return None
    from ggss.steering.steerer import Steerer, checked_alpha

    steerer = Steerer.from_pretrained(name)
    checked_alpha(steerer.strength(alpha), allow_amplify=False)
    return steerer


def _measured(runs: "list[Run]", seed: int) -> "list[Measured]":
    from rich.console import Console

    from ggss.analysis import Statistics

    with Console(stderr=True).status("resampling"):
        found = [run.measured(Statistics(seed=seed)) for run in runs]
        for one in found:
            for name in one.names:
                one.interval(name)
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
    if unknown or not asked:
        seen = ", ".join(unknown) or f"nothing, as in --tasks {tasks!r}"
        raise InputError(f"suite {name!r} cannot ask {seen}: choose from {', '.join(there)}")
    chosen = {task: suites.benchmark(task) if task in benchmarks else own for task in asked}
    for task, suite in chosen.items():
        suite.items(task)
    return chosen
