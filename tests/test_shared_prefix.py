"""Questions about the same pictures, read after one pass over them: the same answers as one by one."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import pytest
import torch
import transformers as hf
from PIL import Image
from tools import tiny_vlms
from tools.tiny_recipes import RECIPES

from conftest import noise
from ggss.errors import InputError
from ggss.models import Features, Vlm, shared_reading
from ggss.models.families import known_family
from ggss.models.reading import Reading, Tokenised
from ggss.models.shared_prefix import Continuations, SharedPrefix, can_share, common_length
from ggss.models.shared_reading import plainly_greedy, shared_length, together
from rounding import assert_same

# PaliGemma's own processor makes numpy arrays of tensors.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

KINDS = tuple(kind for kind in RECIPES if known_family(hf.AutoConfig.for_model(kind)))
# Images or prompts are read in both directions; layers keep a window or one state instead of all tokens.
APART = {"gemma3", "paligemma", "qwen3_5", "qwen3_5_moe", "aya_vision"}
QUESTIONS = ["is this person a nurse ?", "yes or no ?", "the picture is red or blue ?", "is this a doctor : yes or no ?"]
OPTIONS = [("yes", "no"), ("yes", "no", "red"), ("red", "blue"), ()]
LONGER = [("yes , a nurse", "no"), ("a red doctor", "no , blue"), ("yes", "no"), ()]
build = cache(tiny_vlms.build)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sharing pays for the shortest prompt."""
    monkeypatch.setattr(shared_reading, "LEAST_SAVED", 1)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The shared tokens of each pass over a prefix."""
    seen: list[int] = []
    begin = SharedPrefix.__init__

    def noted(self: SharedPrefix, model: Any, inputs: Any) -> None:
        begin(self, model, inputs)
        seen.append(self.length)

    monkeypatch.setattr(SharedPrefix, "__init__", noted)
    return seen


def read_both(
    vlm: Vlm,
    images: Sequence[Sequence[Features]],
    options: Sequence[Sequence[str]],
    max_new_tokens: int = 1,
    questions: Sequence[str] = QUESTIONS,
) -> tuple[list[Reading], list[Reading]]:
    """With sharing and without."""
    shared = vlm.read(questions, images, options, max_new_tokens)
    vlm.share_prefix = False
    try:
        return shared, vlm.read(questions, images, options, max_new_tokens)
    finally:
        vlm.share_prefix = True


def assert_same_readings(found: Sequence[Reading], expected: Sequence[Reading]) -> None:
    assert [one.answer for one in found] == [one.answer for one in expected]
    for one, other in zip(found, expected, strict=True):
        assert_same(torch.tensor(one.probabilities), torch.tensor(other.probabilities))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("options", "longest"), [(OPTIONS, 1), (OPTIONS, 5), (LONGER, 5)])
def test_every_family_reads_the_same_or_does_not_share(
    kind: str, options: list[tuple[str, ...]], longest: int, always: None, passes: list[int]
) -> None:
    vlm = build(kind)
    kept = vlm.encode([noise(1, 64, 190), noise(2)])
    # Two questions about each of two pictures, and in turn: groups need not be neighbours.
    images = [[kept[0]], [kept[1]], [kept[0]], [kept[1]]]
    shared, alone = read_both(vlm, images, options, longest)
    assert_same_readings(shared, alone)
    assert len(passes) == (0 if kind in APART else 2)
