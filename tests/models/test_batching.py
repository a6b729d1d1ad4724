"""A batch that does not fit is halved: once said, nothing lost, the same answers."""

import gc
import weakref

import pytest
import torch

from ggss.errors import InputError, out_of_memory
from ggss.models.reading import Batches
from ggss.models.vlm import encoded

OUT = (torch.OutOfMemoryError("CUDA out of memory"), MemoryError(), RuntimeError("DefaultCPUAllocator: not enough"))


def fits(most, error=OUT[0]):
    """Work that needs more memory than there is for more than `most` items; and the sizes it was called with."""
    sizes = []

    def work(items):
        sizes.append(len(items))
        if len(items) > most:
            raise error
        return [item * item for item in items]

    return work, sizes


@pytest.mark.parametrize("error", OUT)
def test_a_batch_is_halved_until_it_fits(error, caplog):
    work, sizes = fits(3, error)
    run = Batches("questions")
    assert run(range(20), 16, work) == [n * n for n in range(20)]
    assert sizes == [16, 8, 4, *[2] * 10]
    assert caplog.text.count("16 questions at a time do not fit in memory") == 1
    sizes.clear()
    assert run(range(4), 16, work) == [0, 1, 4, 9]
    assert sizes == [2, 2]  # it is not tried again, nor said again
    assert len(caplog.records) == 1


def test_other_errors_are_raised():
    def work(items):
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes"):
        Batches("questions")(range(4), 2, work)
    assert not out_of_memory(ValueError("out of memory"))


def test_one_that_does_not_fit_alone_is_an_input_error():
    work, sizes = fits(0)
    with pytest.raises(InputError, match="not enough memory for one of the questions alone"):
        Batches("questions")(range(4), 4, work)
    assert sizes == [4, 2, 1]


def test_the_tensors_of_a_failed_batch_are_freed_before_the_next():
    alive = []

    def work(items):
        gc.disable()  # only what `Batches` collects itself
        try:
            assert all(seen() is None for seen in alive)
            large = torch.zeros(8)
            alive.append(weakref.ref(large))
            if len(items) > 1:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return list(items)
        finally:
            gc.enable()

    assert Batches("questions")(range(4), 4, work) == [0, 1, 2, 3]


@pytest.fixture
def small(vlm, monkeypatch):
    """The model on a device that has room for two prompts, and for one image."""

    def prompts(model, args, given):
        if len(given["input_ids"]) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")

    def images(model, processor, family, batch, sites):
        if len(batch) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return encoded(model, processor, family, batch, sites)

    hook = vlm.model.register_forward_pre_hook(prompts, with_kwargs=True)
    monkeypatch.setattr("ggss.models.vlm.encoded", images)
    yield vlm
    hook.remove()
    vlm._asking, vlm._encoding = Batches("questions"), Batches("images")


@pytest.mark.parametrize("options", [["red", "blue"], ["the red hat", "blue"], []])
@pytest.mark.parametrize("tokens", [1, 3])
def test_a_model_answers_the_same_in_less_memory(request, vlm, pictures, options, tokens, caplog):
    questions = [f"what colour is the {thing} ?" for thing in ("hat", "person", "picture", "nurse", "doctor")]
    shown = [[pictures[i % 4]] for i in range(5)]
    given = [options] * 5
    before = vlm.read(questions, shown, given, tokens, batch_size=4)
    small = request.getfixturevalue("small")
    after = small.read(questions, shown, given, tokens, batch_size=4)
    assert [one.text for one in after] == [one.text for one in before]
    for one, other in zip(after, before, strict=True):
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-5)
    assert len([line for line in caplog.records if "questions" in line.message]) == 1
    assert len([line for line in caplog.records if "images" in line.message]) == 1
    if options:
        assert small.score(questions, shown, given, batch_size=5) == [
            pytest.approx(own, abs=1e-4) for own in vlm.score(questions, shown, given, batch_size=1)
        ]
