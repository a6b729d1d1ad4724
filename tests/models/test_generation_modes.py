"""Every way of generating: the steerer fires once for a picture, before its first word, at every kind of site."""

import threading

import pytest
import torch
from transformers import TextIteratorStreamer, pipeline

from conftest import noise
from ggss.steering.attach import NeverFired
from test_layer_sites import QUESTION, steerer_at

MODES = {
    "beams": {"num_beams": 3},
    "sampling": {"do_sample": True, "num_return_sequences": 2},
    "static cache": {"cache_implementation": "static"},
    "prompt lookup": {"prompt_lookup_num_tokens": 2},
    "assistant": {},
}
SITES = ("vision-block0", "projection-mlp2", "lm-layer0")
SETTINGS = {"max_new_tokens": 4, "min_new_tokens": 4, "pad_token_id": 0}


def prompt(vlm, count):
    return vlm._inputs.of_questions([QUESTION] * count, [[noise(i)] for i in range(count)])


def rows_at(vlm, site, count):
    """How many rows the pictures have at a site."""
    pictures = [noise(i) for i in range(count)]
    if site == "projection-mlp2":
        return sum(len(one.rows[site]) for one in vlm.encode(pictures))
    return sum(len(one[site]) for one in vlm.layer_rows(pictures, [site], QUESTION))


@pytest.mark.parametrize("mode", MODES)
def test_it_fires_once_for_each_picture(vlm, tiny, mode):
    options = dict(MODES[mode])
    count = 1 if mode in ("prompt lookup", "assistant") else 2  # transformers allows one prompt there
    if mode == "assistant":
        options["assistant_model"] = tiny(vlm.name, seed=1, layers=1).model
        # The assistant's number of words is in its own generation settings, which may not be mixed with ours.
        options["assistant_model"].generation_config.num_assistant_tokens = 2
    copies = options.get("num_beams", options.get("num_return_sequences", 1))
    for site in SITES:
        with steerer_at(vlm, site).attach(vlm) as run:
            torch.manual_seed(0)
            vlm.model.generate(**prompt(vlm, count), **SETTINGS, **options)
        # Images are encoded once for all copies of a prompt; the text model reads each copy.
        assert (run.calls, run.tokens) == (1, rows_at(vlm, site, count) * (copies if site == "lm-layer0" else 1))


def test_without_a_cache_the_text_model_reads_the_picture_for_every_word_and_each_time_it_is_steered(vlm):
    for site, calls in (("projection-mlp2", 1), ("lm-layer0", 4)):
        with steerer_at(vlm, site).attach(vlm) as run:
            found = vlm.model.generate(**prompt(vlm, 1), **SETTINGS, use_cache=False)
            assert found.tolist() == vlm.model.generate(**prompt(vlm, 1), **SETTINGS).tolist()
        assert run.calls == calls + 1


def test_streamed_from_another_thread(vlm):
    streamer = TextIteratorStreamer(vlm.processor.tokenizer, skip_prompt=True, timeout=60)
    steerer = steerer_at(vlm, "lm-layer0")

    def streamed():
        worker = threading.Thread(
            target=vlm.model.generate, kwargs=prompt(vlm, 1) | SETTINGS | {"streamer": streamer}
        )
        worker.start()
        said = "".join(streamer)
        worker.join()
        return said

    with steerer.attach(vlm) as run:
        assert streamed()
    assert run.calls == 1
    with pytest.raises(NeverFired), steerer.attach(vlm, only_this_thread=True):
        streamed()


@pytest.mark.parametrize("site", SITES)
def test_inside_a_pipeline(vlm, site):
    pipe = pipeline("image-text-to-text", model=vlm.model, processor=vlm.processor)
    asked = [{"type": "image", "image": noise(0)}, {"type": "text", "text": QUESTION}]
    with steerer_at(vlm, site).attach(vlm) as run:
        pipe(text=[{"role": "user", "content": asked}], max_new_tokens=2)
    assert (run.calls, run.tokens) == (1, rows_at(vlm, site, 1))


def test_a_prefill_in_chunks_that_never_shows_the_picture_is_noticed(tiny):
    """transformers drops encoded pictures when it cuts the prompt: the text model is not shown any."""
    vlm = tiny("pixtral")
    with pytest.raises(NeverFired), steerer_at(vlm, "lm-layer0").attach(vlm):
        vlm.model.generate(**prompt(vlm, 1), **SETTINGS, prefill_chunk_size=8)
