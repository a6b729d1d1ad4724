"""`ggss probe`: measure a model's bias and capability, and compare two runs."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ggss.cli.arguments import Alpha, DeviceMap, Dtype, Json, load, one_thread
from ggss.errors import InputError

if TYPE_CHECKING:
    from ggss.analysis.records import Record, Used
    from ggss.analysis.summary import Row
    from ggss.probes.suites import Suite
    from ggss.steering.steerer import Steerer

SMALL_WORLD = "small-world"
PUBLISHED = ("mcq", "2afc", "nurse-doctor")
BENCHMARKS = ("mmstar", "mme")  # found in GGSS_DATA


def probe(
    model: Annotated[
        str | None, typer.Argument(help="A folder, a hub id, or small-world/NAME.", show_default=False)
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(help='Comma separated, or "all"; mcq, 2afc and nurse-doctor by default.', show_default=False),
    ] = None,
    suite: Annotated[
        str | None,
        typer.Option(help="small-world (default for small-world/NAME) or reflect, which needs --images."),
    ] = None,
    images: Annotated[
        str | None,
        typer.Option(help="Your pictures: a manifest with path, occupation, identity, race, gender; or a pattern."),
    ] = None,
    steer: Annotated[str | None, typer.Option(help="A steerer's folder or hub id.")] = None,
    alpha: Alpha = 1.0,
    force: Annotated[bool, typer.Option(help="Steer a model the steerer was not made for.")] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A file for one JSON line per item.")] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="A.jsonl B.jsonl", help="Compare two such files, unsteered first; no MODEL needed."),
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="The longest answer; by default 1 in the small world, 8 for mcq, else 2048."),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Questions asked together; 64 in the small world, else 8.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the resamples.")] = 0,
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

    The tasks mmstar and mme read their benchmark files from the folder that GGSS_DATA names.
    """
    if compare is not None:
        if model is not None:
            raise InputError(f"--compare reads two files and asks no model: leave out {model!r}")
        _compare(*compare, seed, as_json)
        return
    if model is None:
        raise InputError("a model is needed, such as small-world/qwen3-vl, or --compare A.jsonl B.jsonl")
    if out is not None and out.is_dir():
        raise InputError(f"{str(out)!r} is a folder: name a file, such as {str(out / 'run.jsonl')!r}")
    steerer = _steerer(steer, alpha)
    small = model.startswith(f"{SMALL_WORLD}/")
    if small:
        one_thread()
    chosen = _suites(suite or (SMALL_WORLD if small else "reflect"), images, tasks)

    from ggss.analysis.asking import ask
    from ggss.analysis.records import write
    from ggss.cli.probe_tables import data, show_run
    from ggss.probes.steered_model import Gallery

    gallery, used = Gallery(load(model, dtype, device_map)), None
    if steerer is not None:
        gallery, used = gallery.steered(steerer, alpha, force), _used(steerer)
    asked = ask(gallery, chosen, used, max_new_tokens, batch_size or (64 if small else 8), seed)
    rows = _summary(asked, seed)
    if out is not None:
        write(asked, out)
    if as_json:
        told = {"model": model, "steerer": steer, "alpha": gallery.alpha, "metrics": [data(row) for row in rows]}
        print(json.dumps(told, indent=2))
    else:
        show_run(model if steerer is None else f"{model}, {steerer.method} at alpha {alpha:g}", rows)


def _compare(before: Path, after: Path, seed: int, as_json: bool) -> None:
    from rich.console import Console

    from ggss.analysis import records
    from ggss.analysis.comparison import compare
    from ggss.cli.probe_tables import data, show_comparison

    runs = records.load(before), records.load(after)
    with Console(stderr=True).status("resampling"):
        found = compare(*runs, seed)
    if as_json:
        print(json.dumps(data(found), indent=2))
    else:
        show_comparison(found)


def _steerer(name: str | None, alpha: float) -> "Steerer | None":
    if name is None:
        return None
    from ggss.steering.steerer import Steerer, checked_alpha

    checked_alpha(alpha, allow_amplify=False)
    return Steerer.from_pretrained(name)


def _used(steerer: "Steerer") -> "Used":
    from ggss.analysis.records import Used

    return Used(hash=steerer.content_hash, method=steerer.method)


def _summary(asked: "list[Record]", seed: int) -> "list[Row]":
    from rich.console import Console

    from ggss.analysis.records import by_task, scored
    from ggss.analysis.summary import summarise

    with Console(stderr=True).status("resampling"):
        return [
            row
            for task, own in by_task(asked).items()
            for row in summarise(task, scored(task, own), [record.cluster for record in own], seed)
        ]


def _suites(name: str, images: str | None, tasks: str | None) -> "dict[str, Suite]":
    """Task -> the suite that asks it; everything is made and checked here, before a model is loaded."""
    from ggss import probes
    from ggss.probes import suites

    if name == SMALL_WORLD and images is not None:
        raise InputError("the small-world suite paints its own pictures: leave out --images, or use --suite reflect")
    if name == "reflect" and images is None:
        raise InputError("suite 'reflect' asks about your own pictures: give --images, a manifest of them")
    own = suites.load(name, **({"images": images} if images is not None else {}))
    there = (*own.tasks, *BENCHMARKS)
    if tasks is None:
        asked = [task for task in PUBLISHED if task in own.tasks]
    else:
        named = own.tasks if tasks == "all" else (task.strip() for task in tasks.split(","))
        asked = list(dict.fromkeys(filter(None, named)))
    unknown = [task for task in asked if task not in there]
    if unknown or not asked:
        seen = ", ".join(unknown) or f"nothing, as in --tasks {tasks!r}"
        raise InputError(f"suite {name!r} cannot ask {seen}: choose from {', '.join(there)}")
    chosen = {}
    for task in asked:
        from_file = suites.Suite(task, (task,), lambda benchmark: probes.get(benchmark).items())
        chosen[task] = from_file if task in BENCHMARKS else own
        chosen[task].items(task)
    return chosen
