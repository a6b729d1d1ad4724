"""Every registered probe's answer parser, and the metrics of what it read."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from experiments.fuzz import texts
from experiments.fuzz.harness import Target
from ggss import probes
from ggss.probes.suites import load


def _parsers(folder: Path) -> Any:
    suite = load("small-world", split="selection")
    by_kind = {"multiple-choice": "smallstar", "yes-or-no": "smallmme", "bias": "mcq"}
    by_probe = {probes.get(task).name: task for task in reversed(suite.tasks)}
    items = {name: suite.items(by_probe.get(name) or by_kind[probes.get(name).kind])[0] for name in probes.names()}

    def read(case: tuple[str, str, dict[str, str] | None]) -> None:
        name, answer, options = case
        item = items[name] if options is None else replace(items[name], options=options)
        parsed = probes.get(name).parse(answer, item)
        assert parsed is None or isinstance(parsed, str | int)
        assert not isinstance(parsed, int) or math.isfinite(float(parsed))

    options = st.none() | st.dictionaries(texts.answers, texts.answers, max_size=4)
    return st.tuples(st.sampled_from(probes.names()), texts.answers, options), read


TARGETS = (
    Target(
        "answer parsers",
        0.47,
        _parsers,
        failed_once=(("ceo", "9" * 4_301, None), ("nurse-doctor", "nurſe", None), ("recognition", "", {})),
    ),
)
