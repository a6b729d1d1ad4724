"""A part that gets the same inputs again does not compute, and nobody could tell it from one that does."""

import pytest
import torch
from torch import nn

from counting import counted
from ggss.models import MLP2, resolve
from ggss.steering.doctor import remembered

PROMPT = "what colour is the hat ?"


class Tower(nn.Module):
    """Two blocks with a site behind them, and a head that gets what the site gives out."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.GELU())])
        self.site = nn.Linear(8, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            rows = block(rows)
        return self.head(self.site(rows))


@pytest.fixture
def tower() -> Tower:
    torch.manual_seed(0)
    return Tower()


@torch.no_grad()
def test_the_same_inputs_are_computed_once_and_others_anew(tower):
    rows = torch.randn(3, 8)
    expected, other = tower(rows), tower(rows + 1)
    with counted(*tower.blocks, tower.site, tower.head) as counts, remembered(tower, [tower.site]):
        assert torch.equal(tower(rows), expected)
        assert torch.equal(tower(rows), expected)
        assert counts == [1, 1, 2, 1]  # a site computes each time
        assert torch.equal(tower(rows + 1), other)
        assert torch.equal(tower(rows.clone()), expected)
        assert counts == [2, 2, 4, 2]


@torch.no_grad()
def test_inputs_that_differ_in_the_last_digit_only_are_others(tower):
    rows = torch.ones(3, 8)
    near = rows.clone()
    near[2, 7] = torch.nextafter(torch.tensor(1.0), torch.tensor(2.0))
    with counted(tower.blocks[0]) as counts, remembered(tower, [tower.site]):
        for own in (rows, near, rows.double().float(), rows[:2]):
            tower(own)
    assert counts == [3]


@torch.no_grad()
def test_a_hook_on_the_site_acts_each_time_and_what_follows_is_computed(tower):
    rows = torch.randn(3, 8)
    with counted(tower.blocks[0], tower.head) as counts, remembered(tower, [tower.site]):
        before = tower(rows)
        hook = tower.site.register_forward_hook(lambda _, __, output: output + 1)
        moved = tower(rows)
        hook.remove()
        assert torch.equal(tower(rows), before)
    assert not torch.equal(moved, before)
    assert counts == [1, 2]


@torch.no_grad()
def test_a_part_with_a_hook_in_it_computes_each_time(tower):
    rows, seen = torch.randn(3, 8), []
    hook = tower.blocks[1][1].register_forward_hook(lambda *_: seen.append(1))
    with counted(*tower.blocks) as counts, remembered(tower, [tower.site]):
        tower(rows)
        tower(rows)
    hook.remove()
    assert counts == [1, 2]
    assert len(seen) == 2


@torch.no_grad()
def test_what_is_kept_is_not_changed_by_those_who_got_it(tower):
    rows = torch.randn(3, 8)
    expected = tower(rows)
    with remembered(tower, [tower.site]):
        tower(rows).zero_()
        tower(rows).zero_()
        assert torch.equal(tower(rows), expected)
        rows.zero_()  # nor is what it was called with
        assert not torch.equal(tower(rows), expected)


def test_the_model_is_as_before_even_after_an_error(tower):
    own = tower.head.forward = lambda rows: rows  # somebody else's, which is kept
    before = [dict(vars(module)) for module in tower.modules()]
    with pytest.raises(RuntimeError, match="stop"), remembered(tower, [tower.site]):
        assert "forward" in vars(tower.blocks[0])
        assert "forward" not in vars(tower.site)
        assert tower.head.forward is not own
        raise RuntimeError("stop")
    assert [dict(vars(module)) for module in tower.modules()] == before


@torch.no_grad()
def test_what_cannot_be_compared_is_computed(tower):
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.calls = nn.Parameter(torch.ones(1)), 0

        def forward(self, value: object) -> object:
            self.calls += 1
            return value

    whole, thing = nn.Sequential(odd := Odd(), tower), {1, 2}
    with remembered(whole, [tower.site]):
        assert odd(thing) is thing
        assert odd(thing) is thing
        assert odd.calls == 2
        odd(3)
        assert odd(3) == 3
        assert odd.calls == 3


def test_a_model_answers_as_ever_and_computes_one_answer_of_two(vlm, pictures):
    asked = [PROMPT, PROMPT], [[pictures[0]], [pictures[1]]]
    text = vlm.model.get_decoder()
    expected, short = vlm.answer(*asked, max_new_tokens=4), vlm.answer(*asked, max_new_tokens=1)
    with counted(text) as counts, remembered(vlm.model, [resolve(vlm.model, vlm.sites()[MLP2])]) as calls:
        assert vlm.answer(*asked, max_new_tokens=1) == short
        assert vlm.answer(*asked, max_new_tokens=1) == short
        assert counts == [1]
        with calls.going_on():  # the second token needs the cache of the first
            assert vlm.answer(*asked, max_new_tokens=4) == expected
        assert counts[0] > 2


def test_what_is_computed_while_going_on_is_kept_for_later(qwen, pictures):
    text = qwen.model.get_decoder()
    with counted(text) as counts, remembered(qwen.model, [resolve(qwen.model, qwen.sites()[MLP2])]) as calls:
        with calls.going_on():
            qwen.answer([PROMPT], [[pictures[0]]], max_new_tokens=2)
        longer = counts[0]
        qwen.answer([PROMPT], [[pictures[0]]], max_new_tokens=1)
        assert counts == [longer]
        qwen.answer([PROMPT], [[pictures[1]]], max_new_tokens=1)
        assert counts == [longer + 1]
