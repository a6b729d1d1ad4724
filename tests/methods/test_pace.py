"""PACE against a transcription in float64, its choices, its negative control, its ablations, neutral pictures."""

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import scipy.linalg
import scipy.stats
import torch

import ggss
from ggss.activations import Places, Rows, statistics
from ggss.activations.statistics import common_grid, find_parts, gather
from ggss.methods.operator import Identity
from ggss.methods.pace import (
    Contrasts,
    PaceOptions,
    WhitenedContrasts,
    chosen_shrinkage,
    contrasts_of,
    directions,
    largest_eigenvectors,
    mixed,
    neutral_moments,
    part_weights,
    union,
    within_parts,
)
from ggss.methods.projection import Oblique
from ggss.methods.subspace import targets
from planted import GENDERS, RACES

SITE = "projection-mlp2"
COUNT, WIDTH = 8, 40
ABLATIONS = [name for name in ggss.methods.names() if name.startswith("pace-")]


@cache
def pictures(identities=10, seed=0, signal=1.0, width=WIDTH):
    """Race shows along other directions at even than at odd positions; people and positions vary in all others."""
    generator = torch.Generator().manual_seed(seed)
    axes = torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64))[0].float()
    corners = torch.linalg.svd(torch.eye(5) - 0.2)[0][:, :4]
    race = torch.stack([corners @ axes[:, :4].T, corners @ axes[:, 4:8].T])
    position = 2 * torch.randn(COUNT, 12, generator=generator) @ axes[:, 10:22].T
    tokens, attributes, contexts = [], [], []
    for identity in range(identities):
        person = torch.randn(COUNT, width - 10, generator=generator) @ axes[:, 10:].T
        for g, gender in enumerate(GENDERS):
            for r, value in enumerate(RACES):
                shown = race[torch.arange(COUNT) % 2, r] * signal + (g - 0.5) * axes[:, 8]
                noise = 0.1 * torch.randn(COUNT, width, generator=generator)
                tokens.append(4 * axes[:, 9] + position + person + shown + noise)
                attributes.append({"race": value, "gender": gender})
                contexts.append(("cook", identity))
    return ggss.Activations(tokens, attributes, contexts), axes


def scenes(count=12, seed=3):
    """Pictures that show nobody: they vary in every direction."""
    generator = torch.Generator().manual_seed(seed)
    tokens = [4 * pictures()[1][:, 9] + torch.randn(COUNT, WIDTH, generator=generator) for _ in range(count)]
    return ggss.Activations(tokens, [{}] * count, range(count))


def transcribed(acts, k, shrinkage, neutral=None):
    """The formulas of PACE.md word by word, with the symmetric roots of S, in numpy; parts are positions."""
    x = torch.stack(list(acts.tokens)).double().numpy()
    labels = np.array(acts.labels("race"))
    mu = x.mean((0, 1))
    spread = sum(np.outer(h - mu, h - mu) for image in x for h in image) / (x.shape[0] * x.shape[1])
    if neutral is not None:
        y = torch.cat(list(neutral.tokens)).double().numpy() - mu
        spread = 0.5 * spread + 0.5 * y.T @ y / len(y)
    s = (1 - shrinkage) * spread + shrinkage * np.trace(spread) / len(mu) * np.eye(len(mu))
    between = np.zeros_like(s)
    for p in range(x.shape[1]):
        centre = np.mean([x[labels == v, p].mean(0) for v in RACES], axis=0)
        for v in RACES:
            c = x[labels == v, p].mean(0) - centre
            between += (labels == v).sum() * np.outer(c, c)
    root = scipy.linalg.sqrtm(s).real
    inverse = np.linalg.inv(root)
    values, vectors = np.linalg.eigh(inverse @ between @ inverse)
    u = vectors[:, ::-1][:, :k]
    return mu, root @ u @ u.T @ inverse, values[::-1]


def moved_literally(rows, mu, matrix, alpha, restored):
    h = rows.double().numpy()
    target = h - alpha * (h - mu) @ matrix.T
    if not restored:
        return target
    return target * np.linalg.norm(h, axis=1, keepdims=True) / np.linalg.norm(target, axis=1, keepdims=True)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.5])
@pytest.mark.parametrize("with_neutral", [False, True])
@pytest.mark.parametrize("name", ["pace", "pace-norm"])
def test_it_is_the_transcription(alpha, with_neutral, name):
    acts, _ = pictures()
    neutral = scenes() if with_neutral else None
    steerer = ggss.fit(name, acts, attribute="race", k=6, shrinkage=0.03, weights="tokens", neutral=neutral)
    mu, matrix, values = transcribed(acts, 6, 0.03, neutral)
    operator = steerer.operators[SITE]
    made = operator.movement.double() @ operator.detection.double().T
    np.testing.assert_allclose(made.numpy(), matrix, atol=2e-5)
    kept = steerer.statistics[SITE]["eigenvalues_race"][:6]
    np.testing.assert_allclose(kept.numpy(), values[:6], rtol=1e-4)
    rows = torch.cat(list(acts.tokens[:4]))
    expected = moved_literally(rows, mu, matrix, alpha, name == "pace-norm")
    np.testing.assert_allclose(steerer.steer(rows, alpha=alpha).numpy(), expected, rtol=1e-4, atol=1e-4)


def test_it_finds_every_direction_of_every_part_and_no_other():
    acts, axes = pictures()
    steerer = ggss.fit("pace", acts, attribute="race")
    found = steerer.diagnostics[SITE]
    assert found["k"] == 8  # four directions at even positions, four others at odd ones
    assert found["parts"] == COUNT
    assert steerer.warnings == []
    movement = torch.linalg.qr(steerer.operators[SITE].movement)[0]
    assert torch.linalg.svdvals(movement.T @ axes[:, :8]).min() > 0.9
    assert ggss.fit("pace", acts, attribute="gender").diagnostics[SITE]["k"] == 1


def contrast_left(steerer, acts):
    """What the values still do to the positions after steering, relative to before."""
    index = acts.groups("race").index
    before = torch.stack(list(acts.tokens))
    after = torch.stack([steerer.steer(tokens) for tokens in acts.tokens])
    sizes = []
    for tokens in (after, before):
        means = tokens[index].mean(0)
        sizes.append(float((means - means.mean(0)).norm()))
    return sizes[0] / sizes[1]


def test_other_people_show_no_race_in_any_part_afterwards():
    acts, others = pictures()[0], pictures(identities=6, seed=0)[0]
    ours, pooled = (ggss.fit(name, acts, attribute="race") for name in ("pace", "ggss"))
    assert contrast_left(ours, others) < 0.25
    assert contrast_left(pooled, others) > 0.5  # the control: half of the directions are not in the mean's span


@pytest.mark.parametrize("seed", range(4))
def test_random_labels_move_nothing(seed):
    acts, _ = pictures()
    generator = torch.Generator().manual_seed(seed)
    tokens, index = list(acts.tokens), acts.groups("race").index
    for group in index:
        for place, image in zip(group.tolist(), group[torch.randperm(5, generator=generator)].tolist(), strict=True):
            tokens[place] = acts.tokens[image]
    steerer = ggss.fit("pace", ggss.Activations(tokens, acts.attributes, acts.contexts), attribute="race")
    assert isinstance(steerer.operators[SITE], Identity)
    assert steerer.diagnostics[SITE]["k"] == 0
    assert "Nothing is removed for 'race'" in steerer.warnings[0]
    assert torch.equal(steerer.steer(tokens[0]), tokens[0])


def contrasts_and_people(acts, statistics, name="race"):
    people = torch.tensor([context[1] for context in acts.contexts])
    return contrasts_of(statistics, targets(acts, name), acts.groups(name).numbers, people, paired=True)


def test_the_moments_and_contrasts_are_those_of_all_tokens_at_once():
    acts, _ = pictures()
    groups = acts.groups("race")
    x = torch.stack(list(acts.tokens)).double()
    mu = x.mean((0, 1))
    table = x[groups.index].transpose(1, 2)  # [U, T, A, D]
    for wanted in ("positions", 3):
        gathered = gather(acts, wanted, groups)
        torch.testing.assert_close(gathered.mu, mu, rtol=0, atol=1e-6)
        parts = find_parts(acts, groups, wanted, acts.pooled.double().mean(0), 1)
        part = torch.stack([parts.of(0, block) for block in table])
        assert gathered.parts == parts.count == (COUNT if wanted == "positions" else 3)
        means = torch.stack([table[part == p].mean(0) for p in range(parts.count)])
        counts = torch.stack([(part == p).sum() for p in range(parts.count)])
        expected = (means - means.mean(1, keepdim=True)) * counts.sqrt()[:, None, None]
        contrasts = contrasts_and_people(acts, gathered)
        torch.testing.assert_close(contrasts.observed, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(contrasts.bundles.sum(0).double(), expected, rtol=1e-4, atol=1e-4)
        assert contrasts.null.shape == (16, *contrasts.observed.shape)
        assert contrasts.null.square().sum((1, 2, 3)).max() < 0.1 * contrasts.observed.square().sum()
        assert gathered.moments.counts.tolist() == [x[:, ::2].numel() / WIDTH] * 2
        for fold in (0, 1):
            rows = (table - mu)[:, fold::2].reshape(-1, WIDTH)
            torch.testing.assert_close(gathered.moments.fold(fold), rows.T @ rows / len(rows), rtol=1e-4, atol=1e-4)
        rest = (table - means.mean(1)[part][:, :, None]).reshape(-1, WIDTH)
        torch.testing.assert_close(within_parts(gathered).mean, rest.T @ rest / len(rest), rtol=1e-4, atol=1e-4)


def test_a_part_that_is_there_twice_counts_half_each_time():
    generator = torch.Generator().manual_seed(0)
    null = torch.randn(16, 5, 2, 200, generator=generator, dtype=torch.float64)
    weights = part_weights(torch.cat([null, null[:, :1]], 1))
    torch.testing.assert_close(weights[0], weights[5])
    torch.testing.assert_close(weights[0] * 2, weights[1], rtol=0.05, atol=0)
    torch.testing.assert_close(weights.mean(), torch.tensor(1.0, dtype=torch.float64))


def test_clusters_of_content_do_what_positions_do():
    acts, others = pictures()[0], pictures(identities=6, seed=0)[0]
    steerer = ggss.fit("pace", acts, attribute="race", parts=8)
    assert "8 clusters of content: as asked" in steerer.diagnostics[SITE]["notes"][0]
    assert contrast_left(steerer, others) < 0.4
    pooled = ggss.fit("pace-pooled", acts, attribute="race")
    assert contrast_left(pooled, others) > 0.5


def test_parts_are_positions_only_where_all_images_share_them():
    acts, _ = pictures()
    short = [tokens[: COUNT - 2 * (c[1] % 2)] for tokens, c in zip(acts.tokens, acts.contexts, strict=True)]
    uneven = ggss.Activations(short, acts.attributes, acts.contexts)
    found = ggss.fit("pace", uneven, attribute="race").diagnostics[SITE]
    assert (
        "16 clusters of content: these have 6 to 8 tokens, and their rows and columns are not known"
        in found["notes"][0]
    )
    with pytest.raises(ggss.InputError, match="parts='positions' needs images of one number of tokens"):
        ggss.fit("pace", uneven, attribute="race", parts="positions")
    with pytest.raises(ggss.InputError, match="500 parts were asked for"):
        ggss.fit("pace", pictures(identities=3)[0], attribute="race", parts=500)
    apart = [tokens[: COUNT - (i % 2)] for i, tokens in enumerate(acts.tokens)]
    with pytest.raises(ggss.InputError, match="need equal token counts"):
        ggss.fit("pace", ggss.Activations(apart, acts.attributes, acts.contexts), attribute="race")
    groups, mu = acts.groups("race"), acts.pooled.double().mean(0)
    large = find_parts(acts, groups, "auto", mu, 2**20)
    assert large.count == 16
    assert "GiB" in large.why


def test_shrinkage_is_that_of_the_largest_likelihood():
    acts, _ = pictures()
    mu = acts.pooled.double().mean(0)
    moments = gather(acts, "auto", acts.groups("race")).moments
    chosen, told = chosen_shrinkage(moments, None, PaceOptions())
    assert told == "half of the positions predict the others"
    folds = [torch.cat([t[f::2] for t in acts.tokens]).double() - mu for f in (0, 1)]

    def lost(s):
        total = 0.0
        for made, seen in (folds, folds[::-1]):
            moment = (made.T @ made / len(made)).numpy()
            s_matrix = (1 - s) * moment + s * np.trace(moment) / WIDTH * np.eye(WIDTH)
            normal = scipy.stats.multivariate_normal(np.zeros(WIDTH), s_matrix)
            total -= normal.logpdf(seen.numpy()).mean()
        return total

    grid = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
    assert chosen == min(grid, key=lost)
    assert chosen_shrinkage(moments, None, PaceOptions(shrinkage=0.2)) == (0.2, "as asked")
    neutral = neutral_moments(scenes(), mu)
    assert "neutral pictures" in chosen_shrinkage(moments, neutral, PaceOptions())[1]
    torch.testing.assert_close(
        mixed(moments.mean, neutral.mean, 0.25, 0.0), 0.75 * moments.mean + 0.25 * neutral.mean
    )


def test_neutral_pictures_are_moved_less_when_they_were_known():
    acts, _ = pictures()
    wide = ggss.Activations([5 * t for t in scenes().tokens], [{}] * 12, range(12))
    known = ggss.fit("pace", acts, attribute="race", neutral=wide, shrinkage=0.001)
    unknown = ggss.fit("pace", acts, attribute="race", shrinkage=0.001)
    rows = torch.cat(list(wide.tokens))
    moved = [float((s.steer(rows) - rows).norm(dim=1).mean()) for s in (known, unknown)]
    assert moved[0] < 0.85 * moved[1]
    assert known.source["neutral_images"] == 12
    found = known.diagnostics[SITE]
    relative = ((known.steer(rows) - rows).norm(dim=1) / rows.norm(dim=1)).mean()
    assert found["neutral_displacement"] == pytest.approx(float(relative), rel=1e-4)
    assert contrast_left(known, acts) < 0.4


def test_neutral_pictures_that_cannot_be_used_are_refused():
    acts, _ = pictures()
    with pytest.raises(ggss.InputError, match="ggss does not use neutral pictures; those that do are pace"):
        ggss.fit("ggss", acts, attribute="race", neutral=scenes())
    narrow = ggss.Activations([t[:, :7] for t in scenes().tokens], [{}] * 12, range(12))
    with pytest.raises(ggss.InputError, match="neutral tokens at projection-mlp2 are 7 wide"):
        ggss.fit("pace", acts, attribute="race", neutral=narrow)
    pooled = ggss.Activations.from_rows({SITE: Rows(scenes().pooled)}, [{}] * 12, range(12))
    with pytest.raises(ggss.InputError, match="pooled means only"):
        ggss.fit("pace", acts, attribute="race", neutral=pooled)
    made, other = (
        ggss.Activations.from_rows(own.sites, own.attributes, own.contexts, {"fingerprint": name})
        for own, name in ((acts, "one"), (scenes(), "another"))
    )
    with pytest.raises(ggss.InputError, match="of another model"):
        ggss.fit("pace", made, attribute="race", neutral=other)


def test_several_attributes_are_removed_together():
    acts, _ = pictures()
    both = ggss.fit("pace", acts, attribute=("race", "gender"))
    assert both.diagnostics[SITE]["k"] == 9
    operator = both.operators[SITE]
    for name in ("race", "gender"):
        alone = ggss.fit("pace", acts, attribute=name).operators[SITE]
        left = alone.movement.double() - operator.movement.double() @ (
            operator.detection.double().T @ alone.movement.double()
        )
        assert left.norm() < 1e-3 * alone.movement.norm()


def test_a_union_leaves_out_what_is_there_already():
    covariance = torch.diag(torch.tensor([1.0, 4.0, 9.0, 16.0], dtype=torch.float64))
    first = torch.tensor([[1.0, 0, 0, 0], [0, 0.5, 0, 0]], dtype=torch.float64).T
    second = torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.5, 0.25, 0, 0]], dtype=torch.float64).T
    whole = union([first, second], covariance)
    assert whole.shape == (4, 3)
    torch.testing.assert_close(whole.T @ covariance @ whole, torch.eye(3, dtype=torch.float64))


def test_more_directions_than_there_are_are_refused():
    acts, _ = pictures()
    with pytest.raises(ggss.InputError, match="k = 40 directions were asked for"):
        ggss.fit("pace", acts, attribute="race", k=40)
    with pytest.raises(ggss.InputError, match="k = 5 directions were asked for"):
        ggss.fit("pace-pooled", acts, attribute="race", k=5)


def test_many_columns_and_few_give_the_same_directions():
    """The Lanczos path of wide models finds what the SVD of small ones finds."""
    generator = torch.Generator().manual_seed(0)
    width = 300
    own = torch.randn(60, 5, width, generator=generator, dtype=torch.float64)
    own[:, :, :3] *= torch.tensor([30.0, 20.0, 12.0])
    null = torch.randn(16, 60, 5, width, generator=generator)
    contrasts = Contrasts(own, null, own[None], torch.zeros(1))
    found = directions(WhitenedContrasts.of(contrasts, torch.eye(width, dtype=torch.float64), "tokens"), 3)
    values, vectors = torch.linalg.eigh(own.reshape(-1, width).T @ own.reshape(-1, width))
    torch.testing.assert_close(found.eigenvalues[:3], values.flip(0)[:3])
    torch.testing.assert_close((vectors.flip(1)[:, :3].T @ found.detection).abs(), torch.eye(3, dtype=torch.float64))


@pytest.mark.parametrize("name", ["pace", *ABLATIONS])
def test_norms_identity_and_artefacts(name, tmp_path):
    acts, _ = pictures()
    steerer = ggss.fit(name, acts, attribute="race")
    rows = torch.cat(list(acts.tokens[:6]))
    assert torch.equal(steerer.steer(rows, alpha=0.0), rows)
    norms = [steerer.steer(rows, alpha=alpha).norm(dim=1) / rows.norm(dim=1) for alpha in (0.3, 1.0, 1.5)]
    kept = all(torch.allclose(ratio, torch.ones(len(rows)), rtol=0, atol=1e-5) for ratio in norms)
    assert kept == (name in ("pace-norm", "pace-slerp"))
    loaded = ggss.Steerer.from_pretrained(steerer.save_pretrained(tmp_path))
    assert loaded.content_hash == steerer.content_hash
    assert "Parts are" in (tmp_path / "README.md").read_text()


def test_nothing_is_left_along_detection_unless_the_norm_is_restored():
    rows = torch.randn(50, 12, generator=torch.Generator().manual_seed(2))
    left = {}
    for restored in (False, True):
        operator, out = oblique(restored=restored), torch.empty_like(rows)
        operator(rows, torch.ones(50, 1), None, out)
        z = (out.double() - operator.mu.double()) @ operator.detection.double()
        left[restored] = float(z.abs().max())
    assert left[False] < 1e-4 < 0.1 < left[True]


def test_an_operator_that_is_no_projection_is_refused():
    made = ggss.fit("pace", pictures()[0], attribute="race").operators[SITE]
    with pytest.raises(ggss.InputError, match="do not make a projection"):
        replace(made, movement=2 * made.movement)
    with pytest.raises(ggss.InputError, match="nothing would be left"):
        Oblique(torch.zeros(2), torch.eye(2), torch.eye(2))


def oblique(arc=False, floor=1.0, width=12, restored=True):
    generator = torch.Generator().manual_seed(1)
    detection = torch.randn(width, 3, generator=generator, dtype=torch.float64)
    movement = torch.randn(width, 3, generator=generator, dtype=torch.float64)
    movement = movement @ torch.linalg.inv(detection.T @ movement)
    mu = torch.randn(width, generator=generator)
    return Oblique(
        mu,
        detection.float(),
        movement.float(),
        gate_median=1.0,
        gate_std=0.5,
        floor=floor,
        arc=arc,
        restored=restored,
    )


@pytest.mark.parametrize("floor", [1.0, 0.3])
@pytest.mark.parametrize("alpha", [0.4, 1.0, 1.5])
def test_the_arc_is_slerp_to_the_target_and_the_line_is_not(alpha, floor):
    line, arc = oblique(floor=floor), oblique(arc=True, floor=floor)
    rows = torch.randn(50, 12, generator=torch.Generator().manual_seed(2))
    out = torch.empty_like(rows)
    gate = arc(rows, torch.full((50, 1), alpha), None, out)
    h, mu = rows.double(), line.mu.double()
    z = (h - mu) @ line.detection.double()
    g = (
        torch.ones(50, dtype=torch.float64)
        if floor == 1
        else 0.3 + 0.7 * torch.sigmoid(5 * (z.norm(dim=1) - 1) / 0.5)
    )
    target = h - z @ line.movement.double().T
    norms = h.norm(dim=1, keepdim=True)
    expected = norms * ggss.sphere.slerp(h / norms, ggss.sphere.normalize(target), alpha * g)
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-4)
    assert (gate is None) == (floor == 1)
    straight = torch.empty_like(rows)
    line(rows, torch.full((50, 1), alpha), None, straight)
    expected = h - (alpha * g)[:, None] * (h - target)
    expected = expected * norms / expected.norm(dim=1, keepdim=True)
    torch.testing.assert_close(straight.double(), expected, rtol=1e-4, atol=1e-4)
    if alpha == 1 and floor == 1:
        torch.testing.assert_close(straight, out, rtol=1e-4, atol=1e-4)
    else:
        assert (straight - out).norm() > 0.01


@pytest.mark.parametrize("arc", [False, True])
def test_tokens_at_the_edge(arc):
    """A zero token stays as it is; very small and nearly removed ones keep their norm and take their direction."""
    operator = oblique(arc)
    inside = operator.mu * 0 + (operator.movement @ torch.tensor([3.0, 1.0, 2.0]))
    operator = replace(operator, mu=torch.zeros(12))
    almost = inside + 1e-3 * torch.randn(12, generator=torch.Generator().manual_seed(4))
    tiny = torch.randn(12, generator=torch.Generator().manual_seed(5)) * 1e-18
    rows = torch.stack([torch.zeros(12), inside, almost, tiny])
    out = torch.empty_like(rows)
    operator(rows, torch.ones(4, 1), None, out)
    assert torch.equal(out[0], rows[0])
    torch.testing.assert_close(out[1].norm(), rows[1].norm(), rtol=1e-3, atol=0)
    torch.testing.assert_close(out[2:].double().norm(dim=1), rows[2:].double().norm(dim=1), rtol=1e-4, atol=0)
    left = almost.double() - operator.movement.double() @ (operator.detection.double().T @ almost.double())
    torch.testing.assert_close(out[2].double() / out[2].norm(), left / left.norm(), rtol=5e-2, atol=5e-2)


def test_a_zero_token_stays_zero_without_the_norm_too():
    operator = oblique(restored=False)
    rows = torch.stack([torch.zeros(12), torch.ones(12)])
    out = torch.empty_like(rows)
    operator(rows, torch.ones(2, 1), None, out)
    assert torch.equal(out[0], rows[0])
    assert (out[1] - rows[1]).norm() > 0.1


def test_every_site_has_its_own():
    first, second = pictures()[0], pictures(seed=4, width=48)[0]
    sites = {SITE: Rows(first.pooled, first.tokens), "deepstack-0": Rows(second.pooled, second.tokens)}
    both = ggss.fit("pace", ggss.Activations.from_rows(sites, first.attributes, first.contexts), attribute="race")
    alone = ggss.fit("pace", second, attribute="race")
    assert torch.equal(both.operators["deepstack-0"].detection, alone.operators[SITE].detection)
    assert both.operators[SITE].width == WIDTH


# Rows that do not count, pictures of several sizes, few people, wrong labels.


def moved(steerer, rows):
    return float(((steerer.steer(rows) - rows).norm(dim=1) / rows.norm(dim=1)).mean())


@pytest.mark.parametrize("name", ["pace", "svd-token-euclidean", "ggss-token-gate"])
@pytest.mark.parametrize("zeros", [14, 100])
def test_zero_rows_change_neither_directions_nor_movement(name, zeros):
    """Some at the end of every picture, and one more in the middle of a single picture."""
    acts, _ = pictures()
    padded = [torch.cat([tokens[:3], torch.zeros(zeros, WIDTH), tokens[3:]]) for tokens in acts.tokens]
    plain, masked = (
        ggss.Activations(tokens, acts.attributes, acts.contexts) for tokens in (list(acts.tokens), padded)
    )
    # What pooled rows say of a picture is the paper's, and not changed: a mean over all rows.
    masked = ggss.Activations.from_rows(
        {SITE: replace(masked.sites[SITE], pooled=plain.pooled)}, acts.attributes, acts.contexts
    )
    first, second = (ggss.fit(name, a, attribute="race") for a in (plain, masked))
    rows = torch.cat(list(acts.tokens[:20]))
    torch.testing.assert_close(second.steer(rows), first.steer(rows), rtol=1e-4, atol=1e-4)
    assert moved(first, rows) > 0.01
    assert second.diagnostics[SITE]["all_tokens"] == pytest.approx(first.diagnostics[SITE]["all_tokens"], rel=1e-3)


def test_a_row_that_is_zero_in_one_version_is_left_out_in_all_and_tokens_stay_aligned():
    acts, _ = pictures()
    tokens = [rows.clone() for rows in acts.tokens]
    tokens[0][2] = 0
    other = ggss.Activations(tokens, acts.attributes, acts.contexts)
    same_person = [i for i, context in enumerate(acts.contexts) if context == acts.contexts[0]]
    assert {len(other.tokens[i]) for i in same_person} == {COUNT - 1}
    assert {len(rows) for i, rows in enumerate(other.tokens) if i not in same_person} == {COUNT}
    assert len(other.complete_tokens[0]) == COUNT
    assert torch.equal(other.tokens[3], torch.cat([tokens[3][:2], tokens[3][3:]]))
    first, second = (ggss.fit("pace", a, attribute="race") for a in (acts, other))
    assert second.diagnostics[SITE]["parts"] == COUNT
    angles = torch.linalg.svdvals(
        torch.linalg.qr(first.operators[SITE].movement)[0].T @ torch.linalg.qr(second.operators[SITE].movement)[0]
    )
    assert angles.min() > 0.99
    chosen = other.of(same_person)
    assert {len(rows) for rows in chosen.tokens} == {COUNT - 1}
    with pytest.raises(ggss.InputError, match="every token is zero in at least one image"):
        ggss.Activations(
            [
                torch.eye(2),
                torch.eye(2).roll(1, 0) * 0 + torch.tensor([[0.0, 0], [1, 1]]),
                torch.tensor([[1.0, 1], [0, 0]]),
            ],
            [{"race": r} for r in "abc"],
            ["x"] * 3,
        )


def squares(acts, sides):
    """The pictures with their 8 tokens as 2 x 4, or each of them repeated: 4 x 4. sides: of each identity."""
    tokens, places = [], []
    for rows, context in zip(acts.tokens, acts.contexts, strict=True):
        lines = sides[context[1] % len(sides)]
        grid = torch.cartesian_prod(torch.tensor([0]), torch.arange(lines), torch.arange(4))
        rows = rows.unflatten(0, (2, 4)).repeat_interleave(lines // 2, 0).flatten(0, 1)
        tokens.append(rows)
        places.append(Places.of(rows, grid=grid))
    pooled = torch.stack([rows.mean(0) for rows in tokens])
    return ggss.Activations.from_rows({SITE: Rows(pooled, tokens, places)}, acts.attributes, acts.contexts)


def test_pictures_of_several_sizes_are_resampled_to_a_common_grid():
    acts, _ = pictures()
    alike, unlike = squares(acts, (2,)), squares(acts, (2, 4))
    one, several = (ggss.fit("pace", a, attribute="race") for a in (alike, unlike))
    assert "the 8 positions of a picture, a grid of 2 x 4" in one.diagnostics[SITE]["notes"][0]
    assert (
        "a grid of 2 x 4, to which pictures of several sizes are resampled" in several.diagnostics[SITE]["notes"][0]
    )
    rows = torch.cat(list(acts.tokens[:20]))
    assert several.diagnostics[SITE]["k"] == one.diagnostics[SITE]["k"] == 8
    assert moved(several, rows) == pytest.approx(moved(one, rows), rel=0.05)
    clusters = ggss.Activations(list(unlike.tokens), acts.attributes, acts.contexts)  # the control: without a grid
    assert "clusters of content" in ggss.fit("pace", clusters, attribute="race").diagnostics[SITE]["notes"][0]


@cache
def faces(seed=0, people=25, face=1.0, coat=0.5, repeated=0, swapped=0.0):
    """A gender shows at the face, token 0, and along another direction at the coat, tokens 1 to 3.

    repeated: how many more times the face's token is there. swapped: of the people, how many have wrong labels.
    """
    generator = torch.Generator().manual_seed(seed)
    width, count = 48, 12
    axes = torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64))[0].float()
    position = 2 * torch.randn(count, 12, generator=generator) @ axes[:, 10:22].T
    tokens, attributes = [], []
    for number in range(people):
        person = torch.randn(count, width - 10, generator=generator) @ axes[:, 10:].T
        wrong = number < swapped * people
        for value in (0, 1):
            rows = 4 * axes[:, 9] + position + person + 0.15 * torch.randn(count, width, generator=generator)
            rows[0] += 0.75 * torch.randn(width, generator=generator) + (2 * value - 1) * face * axes[:, 0]
            rows[1:4] += 0.5 * torch.randn(3, width, generator=generator) + (2 * value - 1) * coat * axes[:, 1]
            tokens.append(torch.cat([rows, rows[:1].expand(repeated, -1)]))
            attributes.append({"gender": "mw"[value ^ wrong]})
    return ggss.Activations(tokens, attributes, [i // 2 for i in range(2 * people)]), axes


@pytest.mark.parametrize("repeated", [1, 3])
def test_a_face_that_is_there_twice_does_not_hide_the_coat(repeated):
    for seed in range(6):
        once, twice = (faces(seed, repeated=times)[0] for times in (0, repeated))
        fits = [ggss.fit("pace", acts, attribute="gender") for acts in (once, twice)]
        assert [fit.diagnostics[SITE]["k"] for fit in fits] == [2, 2]
        rows = torch.cat(list(once.tokens))
        assert moved(fits[1], rows) > 0.9 * moved(fits[0], rows)
    by_tokens = ggss.fit("pace", twice, attribute="gender", weights="tokens")  # the control
    assert by_tokens.diagnostics[SITE]["k"] < 2 or repeated == 1


def test_what_means_nothing_is_not_taken_for_a_direction():
    counts = [
        ggss.fit("pace", faces(seed, face=0.0, coat=0.0)[0], attribute="gender").diagnostics[SITE]["k"]
        for seed in range(20)
    ]
    assert sum(count > 0 for count in counts) <= 1


def test_the_uncertainty_of_k_is_said():
    steerer = ggss.fit("pace", faces()[0], attribute="gender")
    notes = " ".join(steerer.diagnostics[SITE]["notes"])
    assert re.search("halves of the people have [01] to [12] directions above that threshold", notes)
    assert "of 16 halvings" in notes


def test_wrong_labels_are_noticed_and_right_ones_are_not():
    doubtful = [
        [
            any("may be wrong" in text for text in ggss.fit("pace", acts, attribute="gender").warnings)
            for acts in (faces(seed, swapped=share)[0] for seed in range(10))
        ]
        for share in (0.3, 0.0)
    ]
    assert sum(doubtful[0]) >= 9
    assert sum(doubtful[1]) == 0


@pytest.mark.parametrize(("wrong", "noticed"), [(0, False), (6, True)])
def test_wrong_labels_of_five_values_are_noticed_too(wrong, noticed):
    acts, _ = pictures()
    labels = [dict(row) for row in acts.attributes]
    for images in acts.groups("race").index[:wrong].tolist():
        for image, other in zip(images, [*images[1:], images[0]], strict=True):
            labels[image]["race"] = acts.attributes[other]["race"]
    steerer = ggss.fit("pace", ggss.Activations(list(acts.tokens), labels, acts.contexts), attribute="race")
    assert any("may be wrong" in text for text in steerer.warnings) == noticed


def test_what_is_left_in_other_people_is_foretold():
    """The contrasts that are left in people who were not fitted, without their noise, are about as large as said."""
    others = faces(7, people=400)[0]
    index, x = others.groups("gender").index, torch.stack(list(others.tokens))
    for people in (16, 64):
        # The same world with other people: they are the first of as many, and the judged ones are the last.
        world = faces(7, people=400)[0]
        fitted = world.of(list(range(2 * people)))
        steerer = ggss.fit("pace", fitted, attribute="gender")
        said = steerer.diagnostics[SITE]["left_in_others"]["gender"]
        tested = index[people:]
        after = steerer.steer(x[tested].flatten(0, 2)).unflatten(0, (*tested.shape, x.shape[1]))
        sizes = [((t[:, 1] - t[:, 0]).mean(0) ** 2).sum() for t in (after, x[tested])]
        assert said[str(people)] == pytest.approx(float((sizes[0] / sizes[1]) ** 0.5), abs=0.12)
        assert said[str(people)] <= said[str(people // 2)]


def test_both_attributes_at_once_leave_less_than_one_after_the_other():
    """Race and gender overlap: what is removed second moves what was removed first, if it does not know of it."""
    acts, _ = pictures()
    tokens = [
        rows + 0.7 * (row["gender"] == GENDERS[0]) * (acts.tokens[0] - acts.tokens[1])
        for rows, row in zip(acts.tokens, acts.attributes, strict=True)
    ]
    mixed_up = ggss.Activations(tokens, acts.attributes, acts.contexts)
    both = ggss.fit("pace", mixed_up, attribute=("race", "gender"))
    race, gender = (ggss.fit("pace", mixed_up, attribute=name) for name in ("race", "gender"))
    in_sequence = [gender.steer(race.steer(rows)) for rows in tokens]
    at_once = [both.steer(rows) for rows in tokens]
    left = {
        how: sum(
            float((means - means.mean(0)).norm() / (unsteered - unsteered.mean(0)).norm())
            for name in ("race", "gender")
            for index in [mixed_up.groups(name).index]
            for means, unsteered in [(torch.stack(steered)[index].mean(0), torch.stack(tokens)[index].mean(0))]
        )
        for how, steered in (("sequence", in_sequence), ("at once", at_once))
    }
    assert left["at once"] < 0.9 * left["sequence"]


def test_a_grid_of_one_line_has_no_more_cells_than_it_may(monkeypatch):
    line = torch.cartesian_prod(torch.tensor([0]), torch.arange(1), torch.arange(2048))
    place = Places.of(torch.ones(2048, 1), grid=line)
    assert common_grid([place], 10, 8).count <= statistics.MOST_PARTS
    monkeypatch.setattr(statistics, "MOST_BYTES", 4 * 10 * 8 * 7)
    cells = common_grid([place], 10, 8)
    assert cells.panes == {0: (1, 7)}
    assert cells.parts(place).bincount(minlength=7).min() > 0


@pytest.mark.parametrize("blank", ["portrait", "neutral"])
def test_a_picture_of_zero_rows_has_no_displacement_and_spoils_none(blank, tmp_path):
    acts, neutral = pictures()[0], scenes()
    zero = [torch.zeros(COUNT, WIDTH)]
    if blank == "neutral":
        neutral = ggss.Activations([*zero, *list(neutral.tokens)[1:]], [{}] * len(neutral), neutral.contexts)
    else:
        acts = ggss.Activations([*zero, *list(acts.tokens)[1:]], acts.attributes, acts.contexts)
    steerer = ggss.fit("pace", acts, attribute="race", neutral=neutral)
    found = steerer.diagnostics[SITE]
    assert 0 < found["displacement"] < 1
    assert 0 < found["neutral_displacement"] < 1
    steerer.save_pretrained(tmp_path / "steerer")


def test_moments_around_parts_are_refused_where_tokens_were_drawn(monkeypatch):
    monkeypatch.setattr(statistics, "SAMPLE", 400)
    with pytest.raises(ggss.InputError, match=r"moments around parts need all tokens, and .* were taken"):
        ggss.fit("pace-within-parts", pictures()[0], attribute="race")


def test_tokens_that_overflow_when_squared_are_a_sentence():
    acts = pictures()[0]
    huge = ggss.Activations([1e20 * tokens for tokens in acts.tokens], acts.attributes, acts.contexts)
    with pytest.raises(ggss.InputError, match=r"tokens of size .*e\+2\d overflow float32 when squared"):
        ggss.fit("pace", huge, attribute="race")


def two_valued(parts=150, width=320, identities=8):
    """Two values with opposite contrasts, exactly: all tokens are small whole numbers. Contrasts are fewer than D."""
    generator = torch.Generator().manual_seed(0)
    effect = torch.randint(-4, 5, (parts, width), generator=generator).float()
    tokens, attributes, contexts = [], [], []
    for identity in range(identities):
        person = torch.randint(-2, 3, (parts, width), generator=generator).float()
        for sign, gender in zip((1, -1), GENDERS, strict=True):
            tokens.append(person + sign * effect)
            attributes.append({"gender": gender})
            contexts.append(identity)
    return tokens, attributes, contexts


def test_two_values_whose_contrasts_are_opposite():
    """The sum of all contrasts is zero, and so is the image of whatever is the same for both values."""
    steerer = ggss.fit("pace", ggss.Activations(*two_valued()), attribute="gender")
    assert isinstance(steerer.operators[SITE], Oblique)
    contrasts = torch.randn(150, 320, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    both = torch.stack([contrasts, -contrasts], 1)
    values, vectors = largest_eigenvectors(both, 5)
    expected = torch.linalg.eigvalsh(2 * contrasts.T @ contrasts).flip(0)[:5]
    torch.testing.assert_close(values, expected)
    torch.testing.assert_close(vectors.T @ vectors, torch.eye(5, dtype=torch.float64))


def test_versions_that_are_one_picture_have_no_directions():
    tokens, attributes, contexts = two_valued()
    copies = [tokens[image - image % 2] for image in range(len(tokens))]
    steerer = ggss.fit("pace", ggss.Activations(copies, attributes, contexts), attribute="gender")
    assert isinstance(steerer.operators[SITE], Identity)
    assert "Nothing is removed for 'gender'" in steerer.diagnostics[SITE]["warnings"][0]
