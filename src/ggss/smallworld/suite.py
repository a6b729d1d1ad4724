"""The small world's suite: its questions as items of the probes, in the tiny models' vocabulary.

Wording, options and people are those of `bias_wording`, `bias_questions`, `smallstar` and `smallmme`.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ggss.data.counterfactuals import Counterfactuals
from ggss.errors import InputError
from ggss.probes.base import Item, get
from ggss.probes.suites import Suite
from ggss.probes.wording import suite_about, worded_suite
from ggss.smallworld import NAME
from ggss.smallworld.bias_questions import portraits
from ggss.smallworld.bias_wording import WORDINGS
from ggss.smallworld.people import OCCUPATIONS, SPLITS

ATTRIBUTES = ("race", "gender")
# The capability questions are about evaluation identities and held-out layouts, whatever the split.
BENCHMARKS = ("smallstar", "smallmme")
ASKED_SPLITS = tuple(split for split in SPLITS if split != "training")
NEW_TOKENS = 1  # every answer is one word


def small_world(split: str = "evaluation", images: str | Path | Counterfactuals | None = None) -> Suite:
    """The suite about the people of a split.

    images: a manifest, a registered picture set or a counterfactual set to ask about instead of those people; every
    attribute that it varies has its tasks.
    """
    if split not in ASKED_SPLITS:
        raise InputError(f"split {split!r} cannot be asked about; choose one of {', '.join(ASKED_SPLITS)}")
    if images is not None:
        about_people = suite_about(NAME, WORDINGS, images, NEW_TOKENS)
    else:
        about_people = worded_suite(
            NAME,
            WORDINGS,
            lambda probe, about: portraits(probe, split),
            ATTRIBUTES,
            OCCUPATIONS,
            NEW_TOKENS,
        )

    def items(task: str) -> Sequence[Item]:
        return get(task).items() if task in BENCHMARKS else about_people.make(task)

    tasks, default = (*about_people.tasks, *BENCHMARKS), (*about_people.default, BENCHMARKS[0])
    return replace(about_people, tasks=tasks, default=default, make=items)
