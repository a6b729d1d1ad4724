"""`python -m experiments.fuzz [--cases N] [--seed S] [target ...]` tries them; exit code 1 on a failure."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")  # some virtual machines announce an AMX they refuse

import argparse
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

import torch

from experiments.fuzz import answers, memory, options, runs, studies, tables, tensors
from experiments.fuzz.harness import SEED, Outcome, Target, run

SHOWN = 1_000  # characters of a failing case
TARGETS: tuple[Target, ...] = tuple(
    target for module in (answers, tables, studies, runs, tensors, memory, options) for target in module.TARGETS
)


def main(given: list[str]) -> int:
    parser = argparse.ArgumentParser("fuzz", description="Feed every reader of ggss with what it does not expect.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="all by default")
    parser.add_argument("--cases", type=int, default=100_000, help="in all targets together")
    parser.add_argument("--seed", type=int, default=SEED)
    chosen = parser.parse_args(given)
    unknown = set(chosen.targets) - {target.name for target in TARGETS}
    if unknown:
        parser.error(f"no target {unknown.pop()!r}; there are {', '.join(target.name for target in TARGETS)}")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # a warning is not an error
    outcomes = []
    print(f"{'target':24} {'cases':>8} {'accepted':>9} {'refused':>9} {'seconds':>8}", flush=True)
    for target in TARGETS:
        if not chosen.targets or target.name in chosen.targets:
            with tempfile.TemporaryDirectory() as folder:
                outcomes.append(run(target, max(round(target.share * chosen.cases), 1), Path(folder), chosen.seed))
            _show(outcomes[-1])
    failed = [one.name for one in outcomes if one.failures]
    verdict = f"failures in {', '.join(failed)}" if failed else "only documented errors came out"
    print(f"{sum(one.cases for one in outcomes):,} cases; {verdict}")
    return 1 if failed else 0


def _show(one: Outcome) -> None:
    failed = "  FAILED" if one.failures else ""
    print(f"{one.name:24} {one.cases:8} {one.accepted:9} {one.refused:9} {one.seconds:8.1f}{failed}", flush=True)
    for failure in one.failures:
        frames = [frame for frame in traceback.extract_tb(failure.__traceback__) if "/ggss/" in frame.filename]
        for frame in frames[-3:]:
            print(f"    {frame.filename}:{frame.lineno} {frame.line}")
        print(f"    {type(failure).__name__}: {failure}"[:500])
        case = next((note for note in getattr(failure, "__notes__", ()) if note.startswith("case: ")), "")
        print(f"    {case[:SHOWN]}\n", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
