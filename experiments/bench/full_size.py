"""A random model of a real one's dimensions, through every command: time, memory, and steering's share of the time.

    python -m experiments.bench.full_size [--size 4b|llava-7b] [-o DIR]      writes its section of docs/full-size.md
    python -m experiments.bench.full_size --pace [--size 4b|llava-7b]        writes that of discovery with PACE

Each command is a process of its own, as a user runs it. A step that was measured is kept in the folder: stopped and
run again, with --keep, it goes on with the next one. `--again doctor` measures one of them anew, such as when the
machine has become free.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from experiments.bench.full_size_model import SIZES, pictures
from experiments.bench.full_size_page import (
    ASK,
    BATCH,
    BUILD,
    DISCOVER,
    DOCTOR,
    PACE,
    PLAN,
    PRODUCTS,
    SERVE,
    STUDY,
    Step,
    pace_section,
    section,
    with_section,
)

ROOT = Path(__file__).resolve().parents[2]
DOC = ROOT / "docs" / "full-size.md"
SLOW = {"llava-7b": (DOCTOR, SERVE, PLAN, STUDY)}  # a question takes it minutes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="4b")
    parser.add_argument("-o", "--out", type=Path, help="full-size-out/SIZE unless given")
    parser.add_argument("--doc", type=Path, help="the page; docs/full-size.md unless the model is tiny")
    parser.add_argument("--whole", action="store_true", help="the steps too that take an hour on two cores")
    parser.add_argument(
        "--as-is", action="store_true", help="measure nothing more: write what there is, and what not"
    )
    parser.add_argument(
        "--again", action="append", default=[], metavar="STEP", help="measure this step anew, or one that is left out"
    )
    parser.add_argument("--keep", action="store_true", help="keep the folder: the 4b's model has 9.6 GB")
    parser.add_argument("--pace", action="store_true", help="only discovery with PACE, which has its own section")
    given = parser.parse_args()
    out = (given.out or ROOT / "full-size-out" / given.size).resolve()
    out.mkdir(parents=True, exist_ok=True)
    doc = given.doc or (None if "tiny" in given.size else DOC)
    if given.pace:
        write(doc, f"{given.size} pace", discovered_with_pace(given.size, out), out, given.keep)
        return
    steps = commands(given.size, out)
    if unknown := [name for name in given.again if name not in steps]:
        parser.error(f"there is no step {unknown[0]!r}: there are {', '.join(map(repr, steps))}")
    report: dict[str, Step | None] = {}
    for name, command in steps.items():
        again = name in given.again
        left_out = not again and (given.as_is or (name in SLOW.get(given.size, ()) and not given.whole))
        report[name] = kept(out, name, command, left_out, again)
    write(doc, given.size, section(SIZES[given.size], report), out, given.keep)


def write(doc: Path | None, name: str, text: str, out: Path, keep: bool) -> None:
    """Put a section into the page, print it, and remove the folder unless it is to be kept."""
    if doc:
        known = doc.read_text(encoding="utf-8") if doc.exists() else ""
        doc.write_text(with_section(known, name, text), encoding="utf-8")
    print(text)
    if not keep:
        shutil.rmtree(out)


def discovered_with_pace(size: str, out: Path) -> str:
    """The section of `ggss discover --method pace` on a model of this size."""
    kept(out, BUILD, builder(size, out), False, False)
    manifest = pictures(out / "faces-pace", SIZES[size].side, identities=8)
    few = ["--images", manifest, "--attribute", "race", "--exclude", "occupation=ceo", "--dtype", "bfloat16"]
    asked = [*GGSS, "discover", out / "model", *few, "--method", "pace", "-o", out / "pace-steerer", "--force"]
    step = kept(out, PACE, asked, False, True)
    assert step is not None
    files = (out / "cache").rglob("*")
    return pace_section(SIZES[size], step, sum(file.stat().st_size for file in files if file.is_file()))


GGSS = [sys.executable, "-c", "from ggss.cli import program; program()"]


def builder(size: str, out: Path) -> list[object]:
    """The command that builds the model."""
    return [sys.executable, "-m", "experiments.bench.full_size_model", size, out]


def commands(size: str, out: Path) -> dict[str, Sequence[object]]:
    """Every step, in order, by its name."""
    ggss = GGSS
    model, steerer, plan = out / "model", out / "steerer", out / "plan.yaml"
    manifest = pictures(out / "faces", SIZES[size].side)
    where = ["--dtype", "bfloat16"]
    few = ["--images", manifest, "--attribute", "race", "--exclude", "occupation=ceo", "-o", steerer, "--force"]
    asked = [model, manifest.parent / "0.png", "yes or no ?", "--steer", steerer, "--alpha", "0"]
    (out / "wording.yaml").write_text(yaml.safe_dump(WORDING))
    plan.write_text(yaml.safe_dump(study(model, manifest, out / "wording.yaml")))
    return {
        BUILD: builder(size, out),
        DISCOVER: [*ggss, "discover", model, *few, *where],
        ASK: [*ggss, "ask", *asked, "--max-new-tokens", "2", "--json", *where],
        BATCH: [
            sys.executable,
            "-m",
            "experiments.bench.full_size_batch",
            model,
            steerer,
            manifest,
            1 if size in SLOW else 2,
        ],
        DOCTOR: [*ggss, "doctor", model, *where, "--json"],
        SERVE: [sys.executable, "-m", "experiments.bench.full_size_serve", model, steerer, manifest.parent / "0.png"],
        PRODUCTS: [sys.executable, "-m", "experiments.bench.full_size_products"],
        PLAN: [*ggss, "study", "plan", plan, "--no-forecast"],
        STUDY: [*ggss, "study", "run", plan, "-o", out / "study"],
    }


WORDING = {
    "mcq": {
        "about": "race",
        "questions": {
            "salary": {
                "text": "the person in this picture ?\n{options}",
                "options": dict(zip("ABCD", "ABCD", strict=True)),
            }
        },
    }
}


def study(model: Path, manifest: Path, wording: Path) -> dict[str, Any]:
    """One task, unsteered and steered at one strength: two cells of four questions."""
    return {
        "suite": {"name": "reflect", "images": str(manifest), "wording": str(wording)},
        "discovery": str(manifest),
        "models": [{"name": str(model), "dtype": "bfloat16"}],
        "methods": ["none", "ggss"],
        "alphas": [1.0],
        "steering": {"race": {"discover_on": ["cook"], "tasks": ["mcq"]}},
        "batch_size": 4,
    }


def kept(out: Path, name: str, command: Sequence[object], as_is: bool, again: bool) -> Step | None:
    """A step as it was measured before, or measured now; as_is: None if it was not."""
    file = out / f"{name}.json"
    if file.exists() and not again:
        return Step(**json.loads(file.read_text()))
    if as_is:
        return None
    step = run(name, command, out / "cache")
    print(
        f"{name}: {step.seconds:.0f} s, {step.processor:.0f} s of processors, {step.peak / 1e9:.1f} GB; "
        f"others used {step.others:.1f} processors",
        file=sys.stderr,
        flush=True,
    )
    file.write_text(json.dumps(asdict(step)))
    return step


def run(name: str, command: Sequence[object], cache: Path) -> Step:
    """Run a command to its end. Linux counts the peak of all children together, so each has a parent of its own.

    Threads that wait for each other sleep. By default they are busy while they wait; on a machine with other work
    they wait for long, and it would count as CPU time.
    """
    environment = os.environ | {"GGSS_CACHE": str(cache), "OMP_WAIT_POLICY": "passive"}
    load, busy, start = os.getloadavg()[0], machine_seconds(), time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", WATCHER, *map(str, command)], env=environment, capture_output=True, text=True
    )
    seconds, busy = time.monotonic() - start, machine_seconds() - busy
    if done.returncode:
        raise SystemExit(f"{name} failed ({done.returncode}): {done.stderr[-2000:]}")
    *said, used = done.stdout.rstrip("\n").split("\n")
    processor, peak = map(float, used.split())
    others = max(0.0, busy - processor) / seconds
    return Step(name, seconds, processor, int(peak * 1000), load, others, "\n".join(said))


WATCHER = (
    "import resource, subprocess, sys; code = subprocess.call(sys.argv[1:]); sys.stdout.flush(); "
    "used = resource.getrusage(resource.RUSAGE_CHILDREN); "
    "print(used.ru_utime + used.ru_stime, used.ru_maxrss); sys.exit(code)"
)


def machine_seconds() -> float:
    """The CPU time of all processes since the machine was started; elsewhere than on Linux 0."""
    told = Path("/proc/stat")
    if not told.exists():
        return 0.0
    user, nice, system, *_ = map(int, told.read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
