"""The angle between the subspaces of two steerers, against scipy; what has no subspace is refused."""

import pytest
import torch
from scipy.linalg import subspace_angles

from ggss.errors import InputError
from ggss.methods.spherical import Geodesic
from ggss.steering.fitting import subspace_cosine
from ggss.steering.steerer import Steerer


def steerer(*frames, method="ggss"):
    operators = {
        f"site-{number}": Geodesic(frame[:, 0].contiguous(), frame[:, 1:].contiguous(), 0.0, 1.0)
        for number, frame in enumerate(frames)
    }
    return Steerer(method=method, attribute="race", values=("a", "b"), operators=operators)


def frame(seed):
    return torch.linalg.qr(torch.randn(12, 4, generator=torch.Generator().manual_seed(seed)))[0]


def test_it_is_the_cosine_of_the_largest_angle_at_any_site():
    one, other = frame(0), frame(1)
    angles = subspace_angles(one[:, 1:].numpy(), other[:, 1:].numpy())
    expected = float(torch.cos(torch.tensor(float(angles.max()))))
    assert expected < 0.9
    assert subspace_cosine(steerer(one), steerer(other)) == pytest.approx(expected, abs=1e-5)
    assert subspace_cosine(steerer(frame(2), one), steerer(frame(2), other)) == pytest.approx(expected, abs=1e-5)


def test_equal_subspaces_in_other_bases_agree():
    one = frame(0)
    turned = one.clone()
    turned[:, 1:] = one[:, 1:] @ torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(5)))[0]
    assert subspace_cosine(steerer(one), steerer(turned)) == pytest.approx(1, abs=1e-6)


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(InputError, match="the steerers act at"):
        subspace_cosine(steerer(frame(0)), steerer(frame(0), frame(1)))
    bare = Steerer(method="none", attribute="race", values=("a", "b"), operators={"site-0": object()})
    with pytest.raises(InputError, match="'none' has no subspace"):
        subspace_cosine(bare, bare)
