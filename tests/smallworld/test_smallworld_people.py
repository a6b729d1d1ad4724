"""The people and the splits that keep them apart."""

import numpy as np
import pytest

from ggss.errors import InputError
from ggss.smallworld.painter import Portrait
from ggss.smallworld.people import OCCUPATIONS, SPLITS, Person, people


def test_splits_share_no_identity() -> None:
    numbers = [number for split in SPLITS.values() for number in (split[0], split[-1])]
    assert numbers == sorted(numbers)
    for name, split in SPLITS.items():
        for other, range_ in SPLITS.items():
            assert name == other or split[-1] < range_[0] or range_[-1] < split[0]


def test_eight_people_cover_badge_and_cue() -> None:
    for occupation in OCCUPATIONS:
        wealth = [Person(k, occupation).traits.wealth for k in SPLITS["discovery"]]
        assert min(wealth) < -0.6
        assert max(wealth) > 0.6
        assert abs(np.mean(wealth)) < 0.25
    for occupation, sign in (("nurse", 1), ("doctor", -1)):
        cue = [sign * Person(k, occupation).traits.cue for k in SPLITS["discovery"]]
        assert min(cue) < 0
        assert max(cue) > 0.7
    assert Person(0, "cook").traits.cue == 0


def test_people_refuses_what_it_does_not_have() -> None:
    with pytest.raises(InputError, match="split 'test' is unknown"):
        people("test", 1)
    with pytest.raises(InputError, match="has 8 identities"):
        people("discovery", 9)
    with pytest.raises(InputError, match="occupation 'pilot'"):
        Person(0, "pilot")
    with pytest.raises(InputError, match="identity -1"):
        Person(-1, "cook")
    with pytest.raises(InputError, match="race 'green'"):
        Portrait(Person(0, "cook"), "green", "man")
    with pytest.raises(InputError, match="gender 'x'"):
        Portrait(Person(0, "cook"), "jade", "x")
    with pytest.raises(InputError, match="hair colour 'green'"):
        Portrait(Person(0, "cook"), "jade", "man", "green")
