"""`make study-kill`: does a study survive? Twenty kill -9 at random moments of the smoke study, resumed each time.

Whenever a study gets to its end between kills, its answers and its tables must equal those of a run that nobody
disturbed, byte for byte, and a new one is begun until all kills have been dealt. Exit code 1 if anything was lost,
doubled or changed.
"""

import argparse
import multiprocessing.context
import random
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from ggss.report.tables import write
from ggss.study.plan import Plan
from ggss.study.results import Results, export
from ggss.study.store import reading

PLAN = Path(__file__).parents[2] / "studies" / "smoke.yaml"
# Imported once and then forked: a life takes a second to begin, not ten.
MODULES = ("worker", "runner")
LONGEST = 0.4  # of an undisturbed run: the longest life


def live(plan: str, folder: str) -> None:
    """One life of a study."""
    from ggss.study.runner import run

    run(Plan.model_validate_json(plan), folder, show=False)


def lived(
    context: multiprocessing.context.ForkServerContext, plan: Plan, folder: Path, seconds: float | None
) -> bool:
    """Run a study for so long at most; was it finished?"""
    process = context.Process(target=live, args=(plan.model_dump_json(), str(folder)))
    process.start()
    process.join(seconds)
    finished = process.exitcode is not None
    process.kill()
    process.join()
    if finished and process.exitcode:
        raise SystemExit(f"the study failed with exit code {process.exitcode}")
    return finished


def found(folder: Path) -> dict[str, bytes]:
    """All answers and all tables, by the name of their file."""
    export(folder, folder / "found" / "answers.jsonl")
    write(Results.load(folder), folder / "found", show=False)
    return {file.name: file.read_bytes() for file in sorted((folder / "found").iterdir())}


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--kills", type=int, default=20)
    arguments.add_argument("--seed", type=int, default=0)
    given = arguments.parse_args()
    console, rng, plan = Console(), random.Random(given.seed), Plan.load(PLAN)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([f"ggss.study.{name}" for name in MODULES])
    with tempfile.TemporaryDirectory() as place:
        lived(context, plan, Path(place) / "nothing", 0)  # the first process waits for the modules to be imported
        start = time.monotonic()
        lived(context, plan, Path(place) / "undisturbed", None)
        whole, expected = time.monotonic() - start, found(Path(place) / "undisturbed")
        count = len(expected["answers.jsonl"].splitlines())
        console.print(f"undisturbed: {count:,} answers in {whole:.0f} s, {len(expected) - 1} files of tables")
        kills = studies = 0
        while kills < given.kills:
            folder = Path(place) / f"study-{studies}"
            while not lived(context, plan, folder, rng.uniform(0, LONGEST * whole) if kills < given.kills else None):
                kills += 1
                count = reading(folder).count() if (folder / "study.sqlite").exists() else 0
                console.print(f"kill {kills}: {count:,} answers so far")
            studies += 1
            mine = found(folder)
            if changed := [name for name in expected | mine if mine.get(name) != expected.get(name)]:
                console.print(f"[red]study {studies} differs from the undisturbed one in {', '.join(changed)}[/red]")
                return 1
    console.print(f"{kills} kills, {studies} studies: all ended with the same answers and tables, byte for byte")
    return 0


if __name__ == "__main__":
    sys.exit(main())
