"""Questions about the same pictures, read after one pass over them: the same readings as without."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor

import ggss.models.reading
from conftest import noise
from experiments.tools import tiny_vlms
from experiments.tools.tiny_recipes import RECIPES
from ggss.errors import InputError
from ggss.models import Features, Vlm, prefix
from ggss.models.families import known_family
from ggss.models.prefix import (
    LEAST_SAVED,
    Continuations,
    SharedPrefix,
    can_share,
    common_length,
    plainly_greedy,
    shared_length,
    together,
)
from ggss.models.prompts import Tokenised
from ggss.models.reading import Answer, require_numbers
from ggss.probes.base import Item
from ggss.probes.steered_model import SteeredModel
from noise_pictures import NoisePicture
from rounding import LEAD, assert_same, lead
from test_layer_sites import steerer_at

# PaliGemma's own processor makes numpy arrays of tensors.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

KINDS = tuple(kind for kind in RECIPES if known_family(hf.AutoConfig.for_model(kind)))
# Images or prompts are read in both directions; layers keep a window or one state instead of all tokens.
APART = {"gemma3", "paligemma", "qwen3_5", "qwen3_5_moe", "aya_vision"}
QUESTIONS = [
    "is this person a nurse ?",
    "yes or no ?",
    "the picture is red or blue ?",
    "is this a doctor : yes or no",
]
OPTIONS = [("yes", "no"), ("yes", "no", "red"), ("red", "blue"), ()]
LONGER = [("yes , a nurse", "no"), ("a red doctor", "no , blue"), ("yes", "no"), ()]
CLEAR = LEAD / 4
build = cache(tiny_vlms.build)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sharing pays for the shortest prompt."""
    monkeypatch.setattr(prefix, "LEAST_SAVED", 1)


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


@pytest.fixture(autouse=True)
def no_ties(monkeypatch: pytest.MonkeyPatch) -> None:
    """No word of an answer is chosen by the last digits alone, so that words may be compared."""

    def checked(logits: Tensor, name: str) -> Tensor:
        assert logits.ndim == 1 or logits.isnan().any() or lead(logits) > CLEAR
        return require_numbers(logits, name)

    monkeypatch.setattr(ggss.models.reading, "require_numbers", checked)


def read_both(
    vlm: Vlm,
    images: Sequence[Sequence[Features]],
    options: Sequence[Sequence[str]] = OPTIONS,
    max_new_tokens: int = 1,
    questions: Sequence[str] = QUESTIONS,
) -> tuple[list[Answer], list[Answer]]:
    """With sharing and without."""
    shared = vlm.read(questions, images, options, max_new_tokens)
    vlm.share_prefix = False
    try:
        return shared, vlm.read(questions, images, options, max_new_tokens)
    finally:
        vlm.share_prefix = True


def assert_same_readings(found: Sequence[Answer], expected: Sequence[Answer]) -> None:
    assert [one.text for one in found] == [one.text for one in expected]
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


@pytest.mark.parametrize("longest", [1, 4])
def test_several_pictures_in_a_prompt(vlm: Vlm, longest: int, always: None, passes: list[int]) -> None:
    first, second = vlm.encode([noise(0), noise(2, 48, 96)])
    shared, alone = read_both(vlm, [[first, second]] * 4, OPTIONS, longest)
    assert_same_readings(shared, alone)
    # The control: the pictures in another order are other prompts, and others answers.
    shared, _ = read_both(vlm, [[first, second]] * 2 + [[second, first]] * 2, OPTIONS, longest)
    assert len(passes) == 3
    with pytest.raises(AssertionError):
        assert_same_readings(shared, alone)


def test_deepstack_and_positions_in_rows_and_columns(qwen: Vlm, always: None, passes: list[int]) -> None:
    kept = qwen.encode([noise(3, 96, 64)])
    assert_same_readings(*read_both(qwen, [kept] * 4, LONGER, 4))
    assert len(passes) == 1
    # The positions after the prefix are those that the model counts in a whole prompt.
    prompt = qwen._inputs.tokenised([(QUESTIONS[2], kept, OPTIONS[2])])[0].ids
    whole = qwen._inputs.of_tokens([prompt], [kept])
    expected = qwen.model.base_model.get_rope_index(
        whole["input_ids"], whole["mm_token_type_ids"], whole["image_grid_thw"]
    )[0]
    with torch.inference_mode():
        prefix = SharedPrefix(qwen.model, qwen._inputs.of_tokens([prompt[: passes[0]]], [kept]))
    after = torch.arange(len(prompt) - prefix.length)
    assert torch.equal(prefix.positions(after), expected[..., prefix.length :])


def test_short_prompts_are_not_shared_and_long_ones_are(
    vlm: Vlm, tiny: Callable[..., Vlm], passes: list[int]
) -> None:
    read_both(vlm, [vlm.encode([noise(0)])] * 4)
    assert passes == []
    larger = tiny(vlm.name, image_size=320)
    assert_same_readings(*read_both(larger, [larger.encode([noise(0, 320, 320)])] * 4, LONGER, 3))
    assert len(passes) == 1
    assert 3 * passes[0] >= LEAST_SAVED


def test_images_themselves_and_an_image_after_other_words_are_not_shared(
    qwen: Vlm, always: None, passes: list[int]
) -> None:
    image = noise(0)
    read_both(qwen, [[image]] * 4)  # type: ignore[list-item]
    kept = qwen.encode([image])
    asked = ["the nurse <picture> yes or no ?", "the doctor <picture> yes or no ?"]
    assert_same_readings(*read_both(qwen, [kept] * 2, OPTIONS[:2], 1, asked))
    assert passes == []
    asked = ["the doctor <picture> yes or no ?", "the doctor <picture> red or blue ?"]
    assert_same_readings(*read_both(qwen, [kept] * 2, OPTIONS[:2], 1, asked))
    assert len(passes) == 1


def test_the_same_question_twice_and_questions_without_pictures(qwen: Vlm, always: None, passes: list[int]) -> None:
    kept = qwen.encode([noise(0)])
    asked = [QUESTIONS[0], QUESTIONS[0], QUESTIONS[1], QUESTIONS[1]]
    shared, alone = read_both(qwen, [kept, kept, [], []], OPTIONS, 3, asked)
    assert_same_readings(shared, alone)
    assert shared[0].text == shared[1].text
    assert len(passes) == 1


@pytest.mark.parametrize("most", [2, 1, 0])
def test_memory_that_runs_out_halves_the_questions(
    most: int, tiny: Callable[..., Vlm], always: None, passes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same readings, whatever fits; a question alone is read as if nothing were shared."""
    vlm, extend = tiny("qwen3-vl", image_size=128), Continuations.extend
    kept = vlm.encode([noise(0, 128, 128)])

    def limited(self: Continuations, tokens: Any, last: Any) -> Any:
        if len(tokens) > most:
            raise torch.OutOfMemoryError("out of memory")
        return extend(self, tokens, last)

    monkeypatch.setattr(Continuations, "extend", limited)
    assert_same_readings(*read_both(vlm, [kept] * 4))
    assert len(passes) == {2: 3, 1: 2, 0: 2}[most]  # of 4 questions, of 2, and where they fit of 2 again


def test_a_model_with_room_for_one_question_does_not_share(qwen: Vlm, always: None, passes: list[int]) -> None:
    qwen._asking.most = 1
    try:
        read_both(qwen, [qwen.encode([noise(0)])] * 4)
    finally:
        qwen._asking.most = None
    assert passes == []


@pytest.mark.parametrize("site", ["lm-layer0", "lm-layer1", "projection-mlp2"])
def test_a_steered_model_shares_what_is_steered(vlm: Vlm, site: str, always: None, passes: list[int]) -> None:
    """Inside the text model the rows of image tokens are steered, and these are in the shared pass."""
    pictures = [NoisePicture(number, 64, {"race": "a"}) for number in range(2)]
    items = [
        Item(f"{picture.seed}/{k}", QUESTIONS[k], (picture,), ({},), "", "", {o: o for o in OPTIONS[k]})
        for picture in pictures
        for k in range(3)
    ]
    model = SteeredModel.of(vlm)
    plain = model.read(items, 1, show=False)
    steered = model.steered(steerer_at(vlm, site), 1.0)
    shared = steered.read(items, 1, show=False)
    assert len(passes) == 4
    vlm.share_prefix = False
    try:
        assert_same_readings(shared, steered.read(items, 1, show=False))
    finally:
        vlm.share_prefix = True
    with pytest.raises(AssertionError):  # the control
        assert_same_readings(shared, plain)


def test_a_hook_inside_the_text_model_counts_the_shared_tokens_once(
    qwen: Vlm, always: None, passes: list[int]
) -> None:
    image = noise(0)
    kept = qwen.encode([image])
    with steerer_at(qwen, "lm-layer1").attach(qwen) as run:
        qwen.read(QUESTIONS, [kept] * 4, OPTIONS, 4)
    assert (run.calls, run.tokens) == (1, len(kept[0].rows["projection-mlp2"]))


def test_texts_after_a_prefix_do_not_see_each_other(vlm: Vlm) -> None:
    kept = vlm.encode([noise(0)])
    one, other, third = (prompt.ids for prompt in vlm._inputs.tokenised([(q, kept, ()) for q in QUESTIONS[:3]]))
    shared = common_length([one, other, third])
    with torch.inference_mode():
        prefix = SharedPrefix(vlm.model, vlm._inputs.of_tokens([one[:shared]], [kept]))
        beside = Continuations(prefix).extend({0: one[shared:], 7: other[shared:]}, {0: 2, 7: 1})
        among = Continuations(prefix).extend({3: third[shared:], 0: one[shared:]}, {3: 1, 0: 2})
        in_steps = Continuations(prefix)
        in_steps.extend({0: one[shared : shared + 1], 7: other[shared:]}, {0: 1, 7: 1})
        later = in_steps.extend({0: one[shared + 1 :]}, {0: 2})
    assert_same(among[0], beside[0])
    assert_same(later[0], beside[0])
    assert (beside[7][-1] - beside[0][-1]).abs().max() > LEAD  # the control: they are not the same text
    assert_same(beside[0][-1:], vlm.logits(QUESTIONS[:1], [kept]))


def test_an_answer_ends_at_an_end_token(tiny: Callable[..., Vlm], always: None, passes: list[int]) -> None:
    vlm = tiny("pixtral")
    kept = vlm.encode([noise(0)])
    free, _ = read_both(vlm, [kept] * 4, OPTIONS, 4)
    spoken = [vlm.processor.tokenizer(one.text, add_special_tokens=False)["input_ids"] for one in free]
    vlm.model.generation_config.eos_token_id = [vlm.processor.tokenizer.eos_token_id, spoken[0][1]]
    shared, alone = read_both(vlm, [kept] * 4, OPTIONS, 4)
    assert_same_readings(shared, alone)
    assert len(shared[0].text) < len(free[0].text)
    assert len(passes) == 2


def test_settings_that_change_what_is_likeliest_are_left_to_generate(
    tiny: Callable[..., Vlm], always: None, passes: list[int]
) -> None:
    vlm = tiny("llava-vicuna")
    kept, settings = vlm.encode([noise(0)]), vlm.model.generation_config
    for name, neutral, other in (
        ("repetition_penalty", 1.0, 1.5),
        ("suppress_tokens", None, [5]),
        ("min_new_tokens", None, 3),
        ("cache_implementation", None, "static"),
    ):
        setattr(settings, name, neutral)
        assert plainly_greedy(settings), name
        setattr(settings, name, other)
        assert not plainly_greedy(settings), name
        setattr(settings, name, neutral)
    settings.repetition_penalty = 1.5
    for longest in (1, 4):
        shared, alone = read_both(vlm, [kept] * 4, OPTIONS, longest)
        assert_same_readings(shared, alone)
        assert [one.text for one in shared] == vlm.answer(QUESTIONS, [kept] * 4, longest)
    assert passes == []
    settings.repetition_penalty = 1.0
    read_both(vlm, [kept] * 4)  # the control
    assert len(passes) == 1


def test_a_window_or_another_attention_is_not_shared(
    tiny: Callable[..., Vlm], always: None, passes: list[int]
) -> None:
    vlm = tiny("llava-mistral")
    text = vlm.model.config.get_text_config()
    assert can_share(vlm.model)
    for implementation in ("flash_attention_2", "flex_attention"):
        before, text._attn_implementation_internal = text._attn_implementation, implementation
        assert not can_share(vlm.model)
        text._attn_implementation_internal = before
    text.sliding_window = 8
    assert not can_share(vlm.model)
    assert_same_readings(*read_both(vlm, [vlm.encode([noise(0)])] * 4))
    assert passes == []


def test_logits_that_are_no_numbers_are_refused(tiny: Callable[..., Vlm], always: None) -> None:
    vlm = tiny("qwen3-vl")
    kept = vlm.encode([noise(0)])
    with torch.no_grad():
        vlm.model.lm_head.weight.fill_(float("nan"))
    with pytest.raises(InputError, match="no numbers"):
        vlm.read(QUESTIONS, [kept] * 4, OPTIONS, 1)


def test_what_is_shared() -> None:
    """Something of each prompt is left to be read, an image that comes later is not shared, and it must pay."""
    image, many = 9, [1, *[9] * LEAST_SAVED]

    def prompt(*ids: int, tail: int = 5) -> Tokenised:
        return Tokenised([*many, *ids], [*many, *ids], [[tail]])

    assert shared_length([prompt(2, 3, 4), prompt(2, 3, 5)], image) == len(many) + 2
    assert shared_length([prompt(2, 3), prompt(2, 3)], image) == len(many) + 1
    assert shared_length([prompt(2), prompt(2, 3)], image) == len(many)
    assert shared_length([prompt(2, 9), prompt(3, 9)], image) == 0
    assert shared_length([prompt(2, 3)], image) == 0
    # An option that is one token with the end of the prompt: what is left begins before it.
    merged = Tokenised([*many, 2, 3], [*many, 2], [[7], [8]])
    assert shared_length([merged, prompt(2, 3, 4)], image) == len(many)
    few = [Tokenised([1, 9, 9, k], [1, 9, 9, k], [[5]]) for k in (2, 3)]
    assert shared_length(few, image) == 0
    assert common_length([[1, 2, 3], [1, 2], [1, 2, 4]]) == 2
    assert common_length([[1], [2, 1]]) == 0
    assert together(["a", None, "b", "a", None]) == [[0, 3]]
