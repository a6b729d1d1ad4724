"""The sphere against pymanopt, its invariants over many seeds, and its hard corners."""

import math

import numpy as np
import pymanopt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pymanopt.manifolds import Sphere
from pymanopt.optimizers import ConjugateGradient

from ggss import sphere

SEEDS = st.integers(0, 2**32 - 1)
DTYPES = st.sampled_from([torch.float32, torch.float64])
TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-13}


def points(seed: int, *shape: int, dtype=torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return torch.nn.functional.normalize(x, dim=-1).to(dtype)  # exact: Normalize's epsilon would show in float64


def test_log_exp_distance_equal_pymanopt():
    manifold = Sphere(17)
    for seed in range(20):
        p, q = points(seed, 2, 17)
        t = manifold.log(p.numpy(), q.numpy())
        np.testing.assert_allclose(sphere.log(p, q), t, atol=1e-12)
        np.testing.assert_allclose(sphere.exp(p, torch.from_numpy(t)), manifold.exp(p.numpy(), t), atol=1e-12)
        assert sphere.distance(p, q).item() == pytest.approx(manifold.dist(p.numpy(), q.numpy()), abs=1e-12)


def test_frechet_mean_is_the_riemannian_optimum_found_by_pymanopt():
    for seed in range(5):
        centre = points(seed, 9)
        cloud = sphere.normalize(centre + 0.3 * points(seed + 100, 12, 9))
        data = cloud.numpy()
        manifold = Sphere(9)

        @pymanopt.function.numpy(manifold)
        def cost(z, data=data):
            return float((np.arccos(np.clip(data @ z, -1, 1)) ** 2).sum() / 2)

        @pymanopt.function.numpy(manifold)
        def gradient(z, data=data, manifold=manifold):
            return -sum(manifold.log(z, y) for y in data)

        problem = pymanopt.Problem(manifold, cost, riemannian_gradient=gradient)
        optimizer = ConjugateGradient(verbosity=0, min_gradient_norm=1e-10, max_iterations=200)
        optimum = optimizer.run(problem, initial_point=data[0]).point
        np.testing.assert_allclose(sphere.frechet_mean(cloud), optimum, atol=1e-7)
        # The control: the normalized Euclidean mean, from which the iteration starts, is not it.
        assert sphere.distance(sphere.normalize(cloud.mean(0)), sphere.frechet_mean(cloud)) > 1e-4


def test_frechet_mean_is_batched_over_groups():
    groups = points(3, 6, 5, 11)
    groups = sphere.normalize(groups + 2 * points(4, 6, 1, 11))
    together = sphere.frechet_mean(groups)
    alone = torch.stack([sphere.frechet_mean(group) for group in groups])
    torch.testing.assert_close(together, alone, atol=1e-12, rtol=0)


def test_frechet_mean_of_one_point_and_of_points_that_cancel():
    p = points(0, 8)
    torch.testing.assert_close(sphere.frechet_mean(p[None]), p)
    assert torch.isfinite(sphere.frechet_mean(torch.stack([p, -p]))).all()


@settings(deadline=None, max_examples=60)
@given(seed=SEEDS, dtype=DTYPES, beta=st.floats(-1, 2))
def test_invariants(seed, dtype, beta):
    p, q = points(seed, 2, 13, dtype=dtype)
    tolerance = TOLERANCE[dtype]
    tangent = sphere.log(p, q)
    assert (p * tangent).sum().abs() < tolerance
    assert (tangent.norm() - sphere.distance(p, q)).abs() < 4 * tolerance
    assert (sphere.exp(p, tangent) - q).norm() < 4 * tolerance
    assert (sphere.distance(p, q) - sphere.distance(q, p)).abs() < tolerance
    on_arc = sphere.slerp(p, q, beta)
    assert (on_arc.norm() - 1).abs() < 4 * tolerance
    angle = sphere.distance(p, q).double()
    travelled = (beta * angle).abs()
    expected = torch.minimum(travelled, 2 * math.pi - travelled)
    assert (sphere.distance(p, on_arc) - expected).abs() < max(10 * tolerance, 2 * sphere.EPS_GEO)


@settings(deadline=None, max_examples=60)
@given(seed=SEEDS, beta=st.floats(-0.5, 1.5))
def test_slerp_is_the_papers_two_sine_formula(seed, beta):
    p, q = points(seed, 2, 7)
    theta = torch.arccos((p * q).sum())
    formula = torch.sin((1 - beta) * theta) / torch.sin(theta) * p + torch.sin(beta * theta) / torch.sin(theta) * q
    torch.testing.assert_close(sphere.slerp(p, q, beta), formula, atol=2 * sphere.EPS_GEO, rtol=0)


@pytest.mark.parametrize("angle", [1e-7, 1e-5, 1e-3, 1.0, math.pi - 1e-3, math.pi - 1e-5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_small_and_near_antipodal_angles_are_accurate(angle, dtype):
    e = torch.eye(5, dtype=torch.float64)
    p = e[0].to(dtype)
    q = (math.cos(angle) * e[0] + math.sin(angle) * e[1]).to(dtype)
    resolution = 1e-6 if dtype is torch.float32 else 1e-9
    assert sphere.distance(p, q).item() == pytest.approx(angle, rel=resolution)
    assert sphere.log(p, q)[1].item() == pytest.approx(angle, rel=max(resolution, 1e-5))
    # The control: the clamped arccos of the paper cannot see an angle of 1e-5.
    clamped = torch.arccos((p * q).sum().clamp(-1 + 1e-7, 1 - 1e-7)).item()
    if angle < 1e-4:
        assert abs(clamped - angle) > 0.5 * angle


def test_epsilon_conventions():
    p = points(1, 6)
    assert torch.equal(sphere.log(p, p), torch.zeros(6, dtype=p.dtype))
    assert torch.equal(sphere.exp(p, torch.zeros(6, dtype=p.dtype)), p)
    assert torch.equal(sphere.exp(p, torch.full((6,), 1e-9, dtype=p.dtype)), p)
    assert torch.equal(sphere.slerp(p, p, 0.7), p)
    assert torch.equal(sphere.slerp(p, -p, 0.7), p)
    assert torch.equal(sphere.normalize(torch.zeros(6)), torch.zeros(6))
    tiny = torch.tensor([1e-10, 0.0], dtype=torch.float64)
    torch.testing.assert_close(sphere.normalize(tiny), torch.tensor([0.5, 0.0], dtype=torch.float64))


def test_there_is_no_direction_to_the_antipode():
    """Rounding leaves a little of one, which must not become a tangent vector of length pi."""
    p = points(0, 20, 9)
    assert torch.equal(sphere.log(p, -p), torch.zeros_like(p))


def test_the_shortest_step_is_taken():
    p, step = torch.eye(3, dtype=torch.float64)[:2]
    assert sphere.exp(p, sphere.EPS_GEO * step)[1] == sphere.EPS_GEO
    assert torch.equal(sphere.exp(p, 0.999 * sphere.EPS_GEO * step), p)


@settings(deadline=None, max_examples=200)
@given(
    data=st.lists(
        st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=3, max_size=3),
        min_size=2,
        max_size=2,
    ),
    dtype=DTYPES,
    beta=st.floats(-3, 3),
)
def test_no_nan_for_any_finite_input(data, dtype, beta):
    x, y = torch.tensor(data, dtype=dtype)
    p, q = sphere.normalize(x), sphere.normalize(y)
    results = [p, sphere.log(p, q), sphere.exp(p, y), sphere.slerp(p, q, beta), sphere.distance(p, q)]
    results.append(sphere.frechet_mean(torch.stack([p, q])))
    assert all(torch.isfinite(result).all() for result in results)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lengths_of_every_size_in_one_batch(dtype):
    sizes = [0.0, 1e-30, 1e-5, 1.0, 1e12, 1e30]
    direction = points(2, 7)
    rows = torch.stack([(size * direction).to(dtype) for size in sizes])
    seen = rows.double().numpy()
    expected = np.array([math.hypot(*row) for row in seen])
    np.testing.assert_allclose(sphere.norm(rows).squeeze(1).double(), expected, rtol=1e-6)
    np.testing.assert_allclose(
        sphere.normalize(rows).double(), seen / (expected + sphere.EPS)[:, None], rtol=1e-6, atol=1e-37
    )


@pytest.mark.parametrize("angle", [1e-3, 1e-4, 1e-5])
def test_log_loses_no_digits_between_close_points(angle):
    """Against float64 on the same float32 points. The control: the projection of q itself instead of the chord."""
    p, side = points(5, 2, 40)
    side = torch.nn.functional.normalize(side - (side @ p) * p, dim=0)
    p, q = p.float(), (math.cos(angle) * p + math.sin(angle) * side).float()
    exact = sphere.log(p.double(), q.double())
    assert (sphere.log(p, q) - exact).norm() < 1e-6 * angle
    across = q - (p @ q) * p
    assert (across * (sphere.distance(p, q) / across.norm()) - exact).norm() > 1e-5 * angle


def test_frechet_mean_starts_from_the_normalized_mean_and_stops_at_its_tolerance():
    cloud = points(3, 6, 9)
    cloud = sphere.normalize(cloud + cloud[0])
    start = sphere.normalize(cloud.mean(0))
    assert torch.equal(sphere.frechet_mean(cloud, iterations=0), start)
    once = sphere.frechet_mean(cloud, iterations=1)
    assert not torch.equal(once, start)
    assert torch.equal(sphere.frechet_mean(cloud, tolerance=10.0), start)
