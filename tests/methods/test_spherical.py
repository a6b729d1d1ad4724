"""The token update: equal to the printed equations on easy and hard tokens, and safe on any."""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.linalg import hadamard

import transcription
from ggss import InputError
from ggss.methods import operator, spherical
from ggss.methods.operator import project
from ggss.methods.spherical import (
    ByImage,
    Geodesic,
    Removal,
    Tangent,
    check_frame,
    magnitudes,
    mean_row,
    move,
    move_literally,
    precise,
    rows_by_image,
)
from rounding import assert_same


def make(width: int, k: int, seed: int = 0, tangent: float = 1.0, **gate: float) -> Geodesic:
    """A random frame; `tangent` 0 puts mu deep inside the span of V."""
    generator = torch.Generator().manual_seed(seed)
    mu = torch.nn.functional.normalize(torch.randn(width, generator=generator), dim=0)
    seeds = torch.randn(width, k, generator=generator)
    seeds = seeds + (1 - tangent) * 10 * mu[:, None] * torch.randn(k, generator=generator)
    basis = torch.linalg.qr(seeds.double())[0].float()
    return Geodesic(mu, basis, **({"gate_median": 0.2, "gate_std": 0.1} | gate))


def tokens(frame: Geodesic, count: int = 64, seed: int = 1, spread: float = 0.5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    width = frame.width
    noise = torch.randn(count, width, generator=generator) / width**0.5
    scale = 10 ** (torch.rand(count, 1, generator=generator) * 4 - 2)
    return scale * (
        frame.mu + spread * noise + spread * torch.randn(count, 1, generator=generator) * frame.basis[:, 0]
    )


def steer(frame: Geodesic, rows: torch.Tensor, alpha: float = 1.0) -> operator.Steered:
    return operator.apply(frame, rows, torch.full((len(rows), 1), alpha))


def expected(frame: Geodesic, rows: torch.Tensor, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    # The artefact's float32 numbers, made exactly unit and orthonormal as the equations assume them to be.
    mu = frame.mu.double().numpy()
    mu = mu / np.linalg.norm(mu)
    left, _, right = np.linalg.svd(frame.basis.double().numpy(), full_matrices=False)
    each = [
        transcription.steer(
            h, mu, left @ right, frame.gate_median, frame.gate_std, alpha, kappa=frame.kappa, floor=frame.floor
        )
        for h in rows.double().numpy()
    ]
    return np.array([h for h, _ in each]), np.array([g for _, g in each])


def assert_equal_to_the_paper(frame: Geodesic, rows: torch.Tensor, alpha: float, tolerance: float = 2e-6) -> None:
    steered = steer(frame, rows, alpha)
    reference, gate = expected(frame, rows, alpha)
    norms = rows.double().norm(dim=1, keepdim=True)
    assert ((steered.rows - torch.from_numpy(reference)).double() / norms).norm(dim=1).max() < tolerance
    assert ((steered.rows.double().norm(dim=1, keepdim=True) - norms) / norms).abs().max() < 1e-6
    if len(gate):
        assert np.abs(steered.gate.numpy() - gate).max() < 1e-4


@pytest.mark.parametrize("alpha", [0.25, 1.0, 1.5])
@pytest.mark.parametrize(("width", "k"), [(64, 4), (64, 1), (8, 7), (512, 4)])
@pytest.mark.parametrize("tangent", [1.0, 0.5, 0.0])
def test_equals_the_papers_equations(alpha, width, k, tangent):
    frame = make(width, k, tangent=tangent)
    assert_equal_to_the_paper(frame, tokens(frame), alpha)


@pytest.mark.parametrize("alpha", [0.5, 1.5])
def test_hard_tokens(alpha):
    frame = make(48, 3, tangent=0.7)
    mu, basis = frame.mu, frame.basis
    side = torch.nn.functional.normalize(torch.randn(48, generator=torch.Generator().manual_seed(3)), dim=0)
    rows = {
        "at mu": mu,
        "very close to mu": mu + 1e-5 * side,
        "close to mu": mu + 1e-3 * side,
        "inside the subspace": basis[:, 0],
        "against the subspace": -basis.sum(1),
        "mostly inside": basis[:, 1] + 1e-3 * mu,
        "a right angle": side - (side @ mu) * mu,
        "far from mu": -mu + 0.3 * side,
        "near the antipode": -mu + 0.05 * side,
        "very near the antipode": -mu + 1e-3 * side,
    }
    for name, row in rows.items():
        tolerance = 2e-4 if name == "very near the antipode" else 3e-6  # its direction has three digits in float32
        try:
            assert_equal_to_the_paper(frame, row[None], alpha, tolerance)
        except AssertionError as error:
            raise AssertionError(name) from error


def test_a_token_opposite_mu_and_a_zero_token_pass_unchanged():
    frame = make(16, 2)
    rows = torch.stack([-frame.mu, torch.zeros(16), -3 * frame.mu])
    assert torch.equal(steer(frame, rows).rows, rows)


@pytest.mark.parametrize("size", [1e-30, 1e-18, 1e-6, 1e6, 1e18, 1e30])
def test_the_update_does_not_depend_on_a_tokens_size(size):
    frame = make(32, 3)
    rows = tokens(frame)
    rows = rows / rows.norm(dim=1, keepdim=True)
    scaled, plain = steer(frame, rows * size), steer(frame, rows)
    torch.testing.assert_close(scaled.rows / size, plain.rows, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(scaled.gate, plain.gate, rtol=1e-4, atol=1e-4)
    assert 0.31 < float(plain.gate.mean()) < 0.99


def test_gate_floor_and_ceiling():
    frame = make(32, 2, gate_median=0.5, gate_std=0.01)
    quiet = frame.mu - frame.basis @ (frame.basis.T @ frame.mu)
    rows = torch.stack([quiet, quiet + 5 * frame.basis[:, 0]])
    gate = steer(frame, rows).gate
    assert gate[0] == pytest.approx(0.3, abs=1e-3)
    assert gate[1] == pytest.approx(1.0, abs=1e-3)


def test_a_zero_std_gate_is_a_step_and_not_nan():
    frame = make(32, 2, gate_std=0.0)
    rows = tokens(frame)
    steered = steer(frame, rows)
    magnitude = magnitudes(rows, project(rows, torch.cat([frame.mu[None], frame.basis.T]))[0], frame.mu, frame.basis)
    step = torch.where(magnitude[:, 0] > frame.gate_median, 1.0, frame.floor)
    torch.testing.assert_close(steered.gate, step.float())
    assert steered.gate.unique().numel() == 2
    assert torch.isfinite(steered.rows).all()


def test_full_strength_without_gate_removes_the_subspace_of_a_tangent_frame():
    frame = make(64, 4, floor=1.0)
    mu = frame.mu - frame.basis @ (frame.basis.T @ frame.mu)
    frame = Geodesic(mu / mu.norm(), frame.basis, 0.2, 0.1, floor=1.0)
    rows = tokens(frame)
    before = (rows @ frame.basis).norm(dim=1) / rows.norm(dim=1)
    after = (steer(frame, rows).rows @ frame.basis).norm(dim=1) / rows.norm(dim=1)
    assert before.mean() > 0.2
    assert after.max() < 1e-6


def test_blocks_and_half_precision(monkeypatch):
    frame = make(64, 4)
    rows = tokens(frame, 300)
    whole = steer(frame, rows)
    monkeypatch.setattr(operator, "BLOCK_ROWS", 37)
    pieces = steer(frame, rows)
    torch.testing.assert_close(pieces.rows, whole.rows, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(pieces.gate, whole.gate, rtol=1e-5, atol=1e-5)
    for dtype in (torch.bfloat16, torch.float16):
        low = rows.to(dtype)
        kept = low.clone()
        steered = steer(frame, low).rows
        assert steered.dtype == dtype
        assert torch.equal(low, kept), "the input was written to"
        torch.testing.assert_close(steered, steer(frame, low.float()).rows.to(dtype))


def test_in_place_equals_out_of_place():
    frame = make(64, 4)
    rows = torch.cat([tokens(frame, 40), -frame.mu[None], torch.zeros(1, 64)])
    apart = steer(frame, rows).rows
    operator.apply(frame, rows, torch.ones(len(rows), 1), out=rows)
    assert torch.equal(rows[40:], apart[40:])  # these two are left alone
    norms = apart[:40].norm(dim=1, keepdim=True)
    assert_same(rows[:40] / norms, apart[:40] / norms)


def test_rows_that_are_not_finite_or_of_another_width_are_refused():
    frame = make(16, 2)
    rows = tokens(frame, 5)
    rows[3, 2] = float("nan")
    with pytest.raises(InputError, match="1 of 5 tokens are not finite"):
        steer(frame, rows)
    with pytest.raises(InputError, match="width 16, these have 12"):
        steer(frame, torch.ones(2, 12))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_magnitudes_are_those_of_the_printed_equations(dtype):
    """Also of tokens near the antipode of mu, of any size, and of zero ones."""
    frame = make(48, 3, tangent=0.7)
    mu = frame.mu.double().numpy()
    mu, basis = mu / np.linalg.norm(mu), frame.basis.double().numpy()
    side = torch.nn.functional.normalize(torch.randn(48, generator=torch.Generator().manual_seed(3)), dim=0)
    hard = [-frame.mu + 0.3 * side, -frame.mu + 0.05 * side, 1e-20 * side, 1e20 * side, 0 * side]
    rows = torch.cat([tokens(frame, 9), torch.stack(hard)]).to(dtype)
    products = project(rows, torch.cat([frame.mu[None], frame.basis.T]))[0]
    found = magnitudes(rows, products, frame.mu, frame.basis)
    directions = [h / np.linalg.norm(h) if h.any() else mu for h in rows.double().numpy()]
    expected = [np.linalg.norm(basis.T @ transcription.log(mu, h, 0)) for h in directions]
    assert found.shape == (14, 1)
    np.testing.assert_allclose(found[:, 0], expected, atol=2e-6)
    rows[3, 5] = float("nan")
    with pytest.raises(InputError, match="1 of 14"):
        magnitudes(rows, project(rows, torch.cat([frame.mu[None], frame.basis.T]))[0], frame.mu, frame.basis)


def exact(length: float = 1.0) -> Geodesic:
    """A frame that float32 holds exactly, with numbers of +-1/4 only; mu may be a little long."""
    axes = torch.from_numpy(hadamard(16)).float() / 4
    return Geodesic(length * axes[0], axes[1:4].T.contiguous(), 1.5, 1.0)


@pytest.mark.parametrize("beyond", [1e-3, 1e-4])
@pytest.mark.parametrize("length", [1.0, 1 + 5e-5])
def test_near_the_antipode_the_printed_equations_are_kept_to_all_digits(beyond, length):
    """Direction, gate and magnitude, among ordinary tokens. The control: float32 has not enough digits there."""
    side = torch.nn.functional.normalize(torch.randn(9, 16, generator=torch.Generator().manual_seed(1)), dim=1)
    mu, basis = exact().mu, exact().basis
    rows = torch.cat([mu + 0.3 * side, 5 * (beyond * side - mu)])
    frame = exact(length)
    steered = steer(frame, rows, 0.8)
    reference, gate = expected(exact(), rows, 0.8)
    norms = rows.double().norm(dim=1, keepdim=True)
    assert ((steered.rows.double() - torch.from_numpy(reference)) / norms).norm(dim=1).max() < 5e-7
    np.testing.assert_allclose(steered.gate, gate, atol=1e-6)
    assert gate.max() - gate.min() > 0.1
    tangents = [transcription.log(mu.double().numpy(), h, 0) for h in (rows.double() / norms).numpy()]
    found = magnitudes(rows, project(rows, torch.cat([frame.mu[None], frame.basis.T]))[0], frame.mu, frame.basis)
    np.testing.assert_allclose(found[9:, 0], np.linalg.norm(tangents[9:] @ basis.numpy(), axis=1), atol=1e-6)
    in_float32 = transcription.log(mu.numpy(), (rows / norms.float())[-1].numpy(), 0)
    assert np.abs(in_float32 - tangents[-1]).max() > 1e-5


@pytest.mark.parametrize("chord", [False, True])
def test_both_paths_in_float64_and_in_closed_form(chord):
    """The arc and the authors' chord, near the antipode and elsewhere, for a share that float32 does not hold."""
    frame = make(16, 3)
    side = torch.nn.functional.normalize(torch.randn(9, 16, generator=torch.Generator().manual_seed(1)), dim=1)
    rows = torch.cat([3 * (frame.mu + frame.basis[:, 0]) + side, 1e-2 * side - frame.mu]).double()
    mu, basis = frame.mu.double(), frame.basis.double()
    path = transcription.chord if chord else transcription.slerp
    given = (mu / mu.norm()).numpy(), basis.numpy(), 0.2, 0.1, 0.37
    expected = np.array([transcription.steer(h, *given, floor=1.0, path=path)[0] for h in rows.numpy()])

    def removal(b, alpha):
        return Removal(b, 0.37, None, chord)

    alpha = torch.ones(len(rows), 1)
    steered, gate = move_literally(rows, alpha, frame.mu, frame.basis, removal)
    assert gate is None
    np.testing.assert_allclose(steered, expected, rtol=0, atol=1e-9)
    single = rows.float()
    assert move(single, alpha, frame.mu, frame.basis, removal, single) is None
    np.testing.assert_allclose(single, expected, atol=3e-6)
    other = transcription.slerp if chord else transcription.chord
    unlike = np.array([transcription.steer(h, *given, floor=1.0, path=other)[0] for h in rows.numpy()])
    assert np.abs(unlike - expected).max() > 1e-4


def test_a_target_that_is_nearly_opposite_is_reached_by_hand(monkeypatch):
    """Tokens at an angle theta from mu inside V, and 1.65 theta removed: half of the way ends at 0.175 theta.

    The control: in closed form the direction of so long a way has not enough digits.
    """
    frame = exact()
    theta = torch.linspace(1.88, 1.9, 7, dtype=torch.float64)[:, None]
    mu, inside = frame.mu.double(), frame.basis.double() @ torch.tensor([0.36, 0.48, 0.8], dtype=torch.float64)
    rows = (torch.cos(theta) * mu + torch.sin(theta) * inside).float()

    def error():
        out = torch.empty_like(rows)
        move(rows, torch.ones(7, 1), frame.mu, frame.basis, lambda b, alpha: Removal(1.65 * b, 0.5), out)
        by_hand = torch.cos(0.175 * theta) * mu + torch.sin(0.175 * theta) * inside
        return float((out.double() - by_hand).norm(dim=1).max())

    assert error() < 1e-6
    monkeypatch.setattr(spherical, "SAFE_COSINE", -1.0)
    assert error() > 5e-6


def test_tokens_along_mu_and_tokens_without_anything_to_remove_stay_as_they_are():
    """Their cosines round to a little more than one."""
    for seed in range(20):
        frame = make(24, 3, seed=seed, floor=1.0)
        mu = frame.mu - frame.basis @ (frame.basis.T @ frame.mu)
        frame = Geodesic(mu / mu.norm(), frame.basis, 0.2, 0.1, floor=1.0)
        clean = torch.randn(40, 24, generator=torch.Generator().manual_seed(seed))
        clean = clean - clean @ frame.basis @ frame.basis.T
        sizes = torch.linspace(0.1, 30, 40)[:, None]
        rows = torch.cat([sizes * frame.mu, sizes * clean])
        torch.testing.assert_close(steer(frame, rows).rows, rows, rtol=1e-5, atol=1e-5 * 30)


def test_scalars_are_float64_except_on_a_gpu_without_it():
    def on(device):
        return precise(SimpleNamespace(device=SimpleNamespace(type=device)))

    assert (on("cpu"), on("cuda"), on("mps")) == (torch.float64, torch.float64, torch.float32)


def test_frames_that_are_no_frames_are_refused():
    mu, basis = exact().mu, exact().basis
    for bad, why in [
        ((1.0005 * mu, basis), "mu has length 1.0005"),
        ((0.9995 * mu, basis), "mu has length 0.9995"),
        ((mu, 1.0005 * basis), "not orthonormal"),
        ((mu, basis[:, [0, 0]]), "not orthonormal"),
        ((mu, torch.eye(16)), "16 directions in 16 dimensions"),
    ]:
        with pytest.raises(InputError, match=why):
            check_frame(*bad)
    check_frame(mu, torch.eye(16)[:, :15])
    check_frame((1 + 9e-5) * mu, (1 + 4e-5) * basis)


def test_without_a_gate_none_is_returned_and_with_one_it_is():
    assert steer(make(16, 2, floor=1.0), tokens(make(16, 2))).gate is None
    assert steer(make(16, 2, floor=0.9), tokens(make(16, 2))).gate is not None


@pytest.mark.parametrize("floor", [1.0, 0.3])
@pytest.mark.parametrize("alpha", [0.4, 1.0])
def test_hard_projection_is_its_printed_equation(floor, alpha):
    """t - alpha g V M V^T t for a map M that is no identity, and a gate g or none."""
    frame = make(32, 3)
    oblique = torch.randn(3, 3, generator=torch.Generator().manual_seed(5))
    operator_with_map = Tangent(frame.mu, frame.basis, 0.2, 0.1, kappa=4.0, floor=floor, map=oblique)
    rows = tokens(frame, 20)
    steered = operator.apply(operator_with_map, rows, torch.full((20, 1), alpha))
    mu, basis, m = (x.double().numpy() for x in (frame.mu, frame.basis, oblique))
    gates = []
    for h, found in zip(rows.double().numpy(), steered.rows, strict=True):
        t = transcription.log(mu, h / np.linalg.norm(h), 0)
        magnitude = np.linalg.norm(basis.T @ t)
        gates.append(floor + (1 - floor) / (1 + np.exp(-4 * (magnitude - 0.2) / 0.1)))
        moved = transcription.exp(mu, t - alpha * gates[-1] * basis @ m @ basis.T @ t)
        expected = np.linalg.norm(h) * transcription.normalize(moved)
        np.testing.assert_allclose(found, expected, atol=1e-5 * np.linalg.norm(h))
    if floor == 1:
        assert steered.gate is None
    else:
        np.testing.assert_allclose(steered.gate, gates, atol=1e-4)
        assert max(gates) - min(gates) > 0.3


def test_the_orthogonal_projection_takes_any_frame_and_keeps_its_gate():
    frame = make(16, 3)
    wide = frame.basis.double().T.contiguous().T
    projection = Tangent.orthogonal(frame.mu.double(), wide)
    assert projection.map.equal(torch.eye(3))
    assert (projection.mu.dtype, projection.basis.dtype) == (torch.float32, torch.float32)
    assert projection.mu.equal(frame.mu)
    assert projection.basis.equal(frame.basis)
    assert projection.basis.is_contiguous()
    assert (projection.gate_median, projection.gate_std, projection.floor) == (0, 0, 1)
    gated = Tangent.orthogonal(frame.mu, frame.basis, gate_median=0.5, gate_std=0.25, kappa=2.0, floor=0.1)
    assert (gated.gate_median, gated.gate_std, gated.kappa, gated.floor) == (0.5, 0.25, 2.0, 0.1)


@dataclass(frozen=True)
class TowardsMean(ByImage):
    """Moves each row by alpha towards the mean row of its image."""

    kind = "towards-mean"
    width = 4

    def steer_image(self, rows, pooled, alpha, out):
        assert pooled.dtype == torch.float64
        assert alpha.shape == (len(rows), 1)
        torch.lerp(rows, pooled.to(rows).expand_as(rows), alpha, out=out)


IMAGES = torch.tensor([7, 7, 7, 2, 2, 5])
ORDER = torch.tensor([3, 0, 5, 1, 4, 2])  # no image stands together


def image_rows():
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.linspace(0.1, 0.6, 6)[:, None]


def towards_mean(rows, alpha, images):
    """Row by row, in numpy."""
    rows, alpha = rows.double().numpy(), alpha.double().numpy()
    means = np.stack([rows[images == image].mean(0) for image in images])
    return rows + alpha * (means - rows)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("order", [torch.arange(6), ORDER])
def test_each_image_is_steered_by_the_mean_of_its_rows_wherever_they_stand(order, in_place):
    rows, alpha = (own[order] for own in image_rows())
    expected = towards_mean(rows, alpha, IMAGES[order].numpy())
    out = rows if in_place else torch.full_like(rows, torch.nan)
    assert TowardsMean()(rows, alpha, IMAGES[order], out) is None
    np.testing.assert_allclose(out, expected, atol=1e-6)


@pytest.mark.parametrize(("together", "images"), [(True, IMAGES), (True, None), (False, None)])
def test_rows_without_images_and_those_of_one_prompt_have_one_mean(together, images):
    rows, alpha = image_rows()
    steered = operator.apply(TowardsMean(together=together), rows, alpha, images).rows
    np.testing.assert_allclose(steered, towards_mean(rows, alpha, np.zeros(6)), atol=1e-6)


def test_a_row_that_is_not_finite_is_refused_with_the_number_of_all_rows():
    rows, alpha = image_rows()
    rows[4, 1] = torch.inf
    for order in (torch.arange(6), ORDER):
        with pytest.raises(InputError, match="1 of 6 tokens are not finite"):
            TowardsMean()(rows[order], alpha, IMAGES[order], torch.empty_like(rows))


def test_parts_of_a_batch():
    assert list(rows_by_image(None, 4)) == [slice(0, 4)]
    assert list(rows_by_image(None, 0)) == []
    assert list(rows_by_image(torch.tensor([3, 3, 0, 5]), 4)) == [slice(0, 2), slice(2, 3), slice(3, 4)]
    assert [p.tolist() for p in rows_by_image(torch.tensor([1, 0, 1]), 3)] == [[1], [0, 2]]


@pytest.mark.parametrize("count", [1, 64, 65, 1000])
def test_the_mean_row_of_many_rows_is_right_in_both_dtypes(count):
    """Also far from zero, where a sum of all rows in float32 would lose digits."""
    rows = 1000 + torch.rand(count, 3, generator=torch.Generator().manual_seed(0))
    for dtype, tolerance in ((torch.float64, 2e-7), (torch.float32, 1e-6)):
        found = mean_row(rows, dtype)
        assert found.dtype == dtype
        np.testing.assert_allclose(found, rows.double().numpy().mean(0), rtol=tolerance)
