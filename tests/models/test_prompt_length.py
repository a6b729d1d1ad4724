"""The length of a prompt is known from the sizes of its images alone."""

import pytest
from PIL import Image

from ggss.models.prompts import PromptLengths
from ggss.models.vlm import load_description

SIZES = [(64, 64), (96, 48), (32, 80), (17, 200), (640, 480)]


@pytest.mark.parametrize("known", [True, False])
def test_lengths_are_those_of_the_tokens(model_dir, vlm, known):
    _, processor = load_description(str(model_dir))
    lengths = PromptLengths(processor)
    if not known:  # a processor that does not tell how many tokens an image has
        lengths.processor = Silent(processor)
    asked = [("what colour is the hat ?", [size]) for size in SIZES]
    asked += [("who earns more ?", SIZES[:2]), ("yes or no ?", [])]
    expected = []
    for question, sizes in asked:
        inputs = vlm._inputs.of_questions([question], [[Image.new("RGB", size) for size in sizes]])
        expected.append(inputs["input_ids"].shape[1])
    assert lengths(asked) == expected
    assert lengths([]) == []


class Silent:
    def __init__(self, processor):
        self._processor = processor

    def __getattr__(self, name):
        if name == "_get_num_multimodal_tokens":
            raise AttributeError(name)
        return getattr(self._processor, name)

    def __call__(self, **given):
        return self._processor(**given)
