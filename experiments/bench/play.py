"""A step of the playground's slider in the small world: from the strength to the HTML of a row of five pictures.

The page's own time (a local request, drawing) is not in it.
"""

import sys
import tempfile
from itertools import cycle
from pathlib import Path
from textwrap import fill
from typing import Any

import ggss
from experiments.bench.timing import alternate, milliseconds, row
from ggss.cli.arguments import one_thread
from ggss.play import Playground, row_questions
from ggss.probes import suites

GOAL = 0.3  # seconds
PAGE = Path(__file__).parents[2] / "docs" / "howto-play.md"
BEGIN, END = "<!-- step: written by `python -m experiments.bench.play` -->", "<!-- /step -->"


def run() -> list[dict[str, Any]]:
    step, again = measured()
    peer = f"the same with the pictures encoded again, {milliseconds(again)}"
    name, goal = "a step of the playground's slider, five pictures, small world", f"under {1000 * GOAL:.0f} ms"
    return [row(name, milliseconds(step), peer, step / again, goal, step < GOAL)]


def measured() -> tuple[float, float]:
    """Seconds of a step from kept features, and with a playground that sees the pictures for the first time."""
    one_thread()
    faces = ggss.Counterfactuals.load("small-world", include={"occupation": "cook", "identity": ["00", "01", "02"]})
    vlm = ggss.load_vlm("small-world/qwen3-vl")
    with tempfile.TemporaryDirectory() as cache:
        acts = ggss.collect(vlm, faces, "all", cache=cache)
    steerers = {"race": ggss.fit("ggss", acts, attribute="race")}
    question = row_questions(suites.load("small-world"))[0]
    strengths = cycle(0.05 * n for n in range(1, 31))  # each step another one

    def move(playground: Playground) -> None:
        items, task, longest = question.rows[0], question.task, question.max_new_tokens
        for answered in playground.ask(items, ["race"], next(strengths), task, longest):
            playground.html(answered)

    kept = Playground(vlm, steerers)
    step, again = alternate(lambda: move(kept), lambda: move(Playground(vlm, steerers)))
    return step, again


def main() -> int:
    """Write the measured line into the page."""
    step, again = measured()
    line = (
        f"A step takes {1000 * step:.0f} ms in the small world, from the strength to the answers about all five "
        f"pictures, without the page's own time (goal: under {1000 * GOAL:.0f} ms); with the pictures encoded again "
        f"it takes {1000 * again:.0f} ms. `python -m experiments.bench.play` measures it."
    )
    text = PAGE.read_text(encoding="utf-8")
    head, tail = text.partition(BEGIN)[0], text.partition(END)[2]
    PAGE.write_text(f"{head}{BEGIN}\n{fill(line, 118)}\n{END}{tail}", encoding="utf-8")
    print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
