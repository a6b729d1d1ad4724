"""Data that is nearly right: a tree of JSON with some nodes exchanged, bytes with some of them changed."""

import copy
import math
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from experiments.fuzz.texts import answers, words

_NUMBERS = (0, 1, -1, 2**31, 2**63, -(2**63), 2**64, 0.0, -0.0, 0.5, -5, 1e-308, 1e308, -1e308, math.inf, math.nan)

numbers = st.sampled_from(_NUMBERS) | st.integers() | st.floats()
leaves = st.none() | st.booleans() | numbers | words | answers
values = st.recursive(
    leaves, lambda own: st.lists(own, max_size=3) | st.dictionaries(words, own, max_size=3), max_leaves=6
)
"""Any JSON value."""


def nested(depth: int) -> Any:
    """Lists in lists."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def changed(tree: Any, most: int = 3) -> SearchStrategy[Any]:
    """The tree with up to `most` of its nodes replaced, removed, repeated or renamed; now and then as it is."""
    return st.lists(
        st.tuples(st.randoms(use_true_random=False), st.sampled_from("rrrrdnks"), values), max_size=most
    ).map(lambda changes: _apply(copy.deepcopy(tree), changes))


def _apply(tree: Any, changes: list[tuple[Any, str, Any]]) -> Any:
    for choice, how, value in changes:
        places = list(_places(tree))
        if not places:
            return value
        parent, key = choice.choice(places)
        if how == "d":
            del parent[key]
        elif how == "k" and isinstance(parent, dict):
            parent[str(value)[:40]] = parent.pop(key)
        elif how == "s":  # what belongs elsewhere
            other, own = choice.choice(places)
            parent[key] = copy.deepcopy(other[own])
        elif how == "n":
            parent[key] = nested(choice.choice([2, 50]))
        else:
            parent[key] = value
    return tree


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """(parent, key) of every node but the root."""
    own = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    found = []
    for key, child in own:
        found.append((tree, key))
        found += _places(child)
    return found


def damaged(data: bytes, most: int = 4) -> SearchStrategy[bytes]:
    """The bytes with up to `most` of them changed, cut short, or with others put in."""
    edit = st.tuples(st.sampled_from("xxici"), st.integers(0, max(len(data) - 1, 0)), st.binary(max_size=8))

    def edited(changes: list[tuple[str, int, bytes]]) -> bytes:
        changed = bytearray(data)
        for how, place, new in changes:
            if how == "c":
                del changed[place:]
            elif how == "i":
                changed[place:place] = new
            else:
                changed[place : place + len(new)] = new
        return bytes(changed)

    return st.lists(edit, max_size=most).map(edited)
