"""The table of activations: pooling, grouping, and every way it can be wrong."""

import pickle

import pytest
import torch

from ggss import Activations, InputError
from ggss.activations import LazyTensors


def acts(labels="abab", contexts=(0, 0, 1, 1), width=6, **extra):
    tokens = [torch.full((3, width), float(i + 1)) for i in range(len(labels))]
    return Activations(tokens, [{"race": label, **extra} for label in labels], list(contexts))


def test_pooled_is_the_mean_token():
    tokens = [torch.randn(7, 5, dtype=torch.bfloat16), torch.randn(4, 5, dtype=torch.bfloat16)]
    made = Activations(tokens, [{"race": "a"}, {"race": "b"}], [0, 0])
    assert made.pooled.dtype == torch.float32
    torch.testing.assert_close(made.pooled, torch.stack([t.float().mean(0) for t in tokens]), atol=1e-6, rtol=1e-6)


def test_groups_hold_the_other_attributes_fixed():
    rows = [{"race": r, "gender": g} for g in "mw" for r in "ba"]
    made = Activations([torch.ones(1, 3) * i for i in range(1, 5)], rows, ["u"] * 4)
    groups = made.groups("race")
    assert groups.values == ("a", "b")
    assert groups.index.tolist() == [[1, 0], [3, 2]]
    assert groups.of(made.pooled).shape == (2, 2, 3)
    assert made.groups(("race", "gender")).index.tolist() == [[1, 3, 0, 2]]


def test_all_holes_are_listed():
    with pytest.raises(InputError) as error:
        acts("abacab", (0, 0, 1, 1, 2, 2)).groups("race")
    assert "context 0 has 2 of 3 values of 'race': missing c" in str(error.value)
    assert "context 1 has 2 of 3 values of 'race': missing b" in str(error.value)
    with pytest.raises(InputError, match="images 0 and 1 are both 'a'"):
        acts("aabb", (0, 0, 0, 1)).groups("race")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: acts("aaaa").groups("race"), "has one value, 'a'"),
        (lambda: acts().groups("age"), "no attribute 'age'"),
        (lambda: acts().groups(("race", "race")), "race, race are crossed, so each may be named once"),
        (lambda: Activations([], [], []), "empty"),
        (lambda: Activations([torch.ones(3)], [{}], [0]), "not \\[T, D\\]"),
        (lambda: Activations([torch.ones(0, 3)], [{}], [0]), "image 0 has no tokens"),
        (lambda: Activations([torch.ones(1, 3), torch.ones(1, 4)], [{}, {}], [0, 1]), "the same width"),
        (lambda: Activations([torch.ones(1, 3)], [{}, {}], [0]), "one entry per image"),
        (lambda: Activations([torch.full((1, 3), float("nan"))], [{}], [0]), "not finite for 1 of 1"),
        (lambda: acts().at("elsewhere"), "no activations at site 'elsewhere'"),
    ],
)
def test_bad_input_is_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_lazy_tensors_are_made_one_at_a_time_when_they_are_indexed():
    made = []

    def make(number):
        made.append(number)
        return torch.full((2, 3), float(number))

    lazy = LazyTensors(range(5), make)
    part = lazy[1:4][::-1]
    assert (len(lazy), len(part), made) == (5, 3, []), "a slice makes no tensor"
    assert [float(tensor[0, 0]) for tensor in part] == [3, 2, 1]
    assert float(lazy[-1][0, 0]) == 4
    assert made == [3, 2, 1, 4], "nothing is kept or made before it is needed"
    for beyond in (5, -6):
        with pytest.raises(IndexError):
            lazy[beyond]


def test_chosen_images_of_chosen_images_read_the_right_tokens():
    tokens = [torch.full((1, 4), float(number)) for number in range(6)]
    acts = Activations(tokens, [{"race": str(number)} for number in range(6)], list(range(6)))
    chosen = acts.of([4, 2, 0]).of([2, 0])
    assert [float(own[0, 0]) for own in chosen.tokens] == [0, 4]
    assert [own.tolist() for own in pickle.loads(pickle.dumps(chosen)).tokens] == [[[0.0] * 4], [[4.0] * 4]]
