"""What no method can work with is refused by each of them in a sentence, never passed over."""

import pytest
import torch

import ggss
from ggss.methods import registry
from planted import planted

FITTED = registry.fitted_names()
LEARNING = [name for name in FITTED if name not in ("none", "prompt")]
CLASSIFIERS = [name for name in LEARNING if name.startswith(("inlp", "meandiff", "leace"))]


def acts(tokens, labels):
    count = len(set(labels))
    return ggss.Activations(tokens, [{"race": r} for r in labels], [i // count for i in range(len(labels))])


@pytest.mark.parametrize("name", FITTED)
def test_one_value_unknown_attribute_and_nan(name):
    rows = [torch.randn(2, 8, generator=torch.Generator().manual_seed(i)) for i in range(4)]
    with pytest.raises(ggss.InputError, match="has one value, 'a'"):
        ggss.fit(name, ggss.Activations(rows, [{"race": "a"}] * 4, range(4)), attribute="race")
    with pytest.raises(ggss.InputError, match="no attribute 'age'"):
        ggss.fit(name, acts(rows, "abab"), attribute="age")
    with pytest.raises(ggss.InputError, match="not finite for 1 of 4 images"):
        ggss.fit(name, acts([*rows[:3], torch.full((2, 8), float("nan"))], "abab"), attribute="race")
    with pytest.raises(ggss.InputError, match="extra inputs are not permitted"):
        ggss.fit(name, acts(rows, "abab"), attribute="race", strength=2)


@pytest.mark.parametrize("name", LEARNING)
def test_constant_features(name):
    same = acts([torch.ones(2, 8)] * 24, "ab" * 12)
    with pytest.raises(ggss.InputError, match="equal"):
        ggss.fit(name, same, attribute="race")


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_class_of_one(name):
    rows = [torch.randn(2, 8, generator=torch.Generator().manual_seed(i)) for i in range(2)]
    with pytest.raises(ggss.InputError, match="value 'a' of 'race' has one image"):
        ggss.fit(name, acts(rows, "ab"), attribute="race")


@pytest.mark.parametrize("name", ["leace-spherical", "leace-gated"])
def test_a_covariance_of_too_small_a_rank(name):
    line = torch.randn(8, generator=torch.Generator().manual_seed(0))
    rows = [(torch.eye(8)[0] + (0.1 + 0.01 * i) * line)[None] for i in range(12)]  # along one great circle
    with pytest.raises(ggss.InputError, match="vary in 1 directions, 3 values need 2"):
        ggss.fit(name, acts(rows, "abc" * 4), attribute="race")


@pytest.mark.parametrize("name", ["inlp-euclidean", "inlp-spherical", "leace-spherical", "leace-gated"])
def test_nothing_to_remove(name):
    """Every value has the very same images: no classifier does better than chance."""
    rows = [torch.randn(1, 8, generator=torch.Generator().manual_seed(i // 2)) for i in range(12)]
    with pytest.raises(ggss.InputError, match=r"nothing to (remove|erase)"):
        ggss.fit(name, acts(rows, "ab" * 6), attribute="race")


@pytest.mark.parametrize("name", [name for name in LEARNING if name.startswith("meandiff")])
def test_no_shift_to_subtract(name):
    """Every value has the very same images: a classifier may guess, but there is nothing to take from an image."""
    rows = [torch.randn(1, 8, generator=torch.Generator().manual_seed(i // 3)) for i in range(18)]
    with pytest.raises(ggss.InputError, match="equal: there is no shift to subtract"):
        ggss.fit(name, acts(rows, "abc" * 6), attribute="race")
    assert ggss.fit(name, acts([*rows[:17], rows[0]], "abc" * 6), attribute="race").values == ("a", "b", "c")


@pytest.mark.parametrize("name", ["inlp-euclidean", "meandiff-lr-euclidean"])
def test_a_regression_that_does_not_converge(name):
    """Beyond this size rounding stops the solver far from the optimum; it must be told, and not by a warning."""
    ordinary, _ = planted(identities=6, noise=1.5)
    large = [t * 1e12 for t in ordinary.tokens]
    assert ggss.fit(name, ordinary, attribute="race").values
    with pytest.raises(ggss.InputError, match=r"did not converge on activations of size 5\.\de\+12; rescale"):
        ggss.fit(name, ggss.Activations(large, ordinary.attributes, ordinary.contexts), attribute="race")


@pytest.mark.parametrize(
    ("name", "options", "dimensions"),
    [("inlp-euclidean", {}, 6), ("inlp-spherical", {}, 6), ("inlp-spherical", {"trained_on": "tangent"}, 5)],
)
def test_inlp_in_too_few_dimensions(name, options, dimensions):
    """A tangent space has one dimension less; to project all of them out leaves one and the same image."""
    small, _ = planted(identities=8)
    narrow = [t[:, :6] for t in small.tokens]
    with pytest.raises(ggss.InputError, match=f"used up all {dimensions} dimensions in which these 80 images differ"):
        ggss.fit(name, ggss.Activations(narrow, small.attributes, small.contexts), attribute="race", **options)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("inlp-euclidean", {"iterations": 0}, "iterations: input should be greater than or equal to 1"),
        ("inlp-euclidean", {"c": 0}, "c: input should be greater than 0"),
        ("meandiff-svm-euclidean", {"c": -1}, "c: input should be greater than 0"),
        ("bend-spherical", {"neighbours": 0}, "neighbours: input should be greater than or equal to 1"),
        ("inlp-euclidean", {"trained_on": "unit"}, "trained_on: extra inputs are not permitted"),
        ("inlp-spherical", {"trained_on": "pooled"}, "trained_on: input should be 'unit' or 'tangent'"),
        ("meandiff-lr-euclidean", {"trained_on": "unit"}, "trained_on: extra inputs are not permitted"),
        ("meandiff-lr-spherical", {"trained_on": "tangent"}, "trained_on: input should be 'unit' or 'pooled'"),
        ("leace-spherical", {"covariance": "token"}, "covariance: input should be 'pooled' or 'tangent'"),
        ("ggss-no-slerp", {"path": "arc"}, "path: input should be 'projection' or 'chord'"),
        ("svd-token-euclidean", {"k": 0}, "k: input should be greater than or equal to 1"),
        ("ggss-no-gate", {"floor": 0.5}, "floor: extra inputs are not permitted"),
        ("ggss-auto", {"kappa": 5}, "kappa: extra inputs are not permitted"),
        ("none", {"k": 1}, "its options and defaults: none"),
    ],
)
def test_options_are_checked(name, options, message):
    with pytest.raises(ggss.InputError, match=message):
        ggss.fit(name, planted(identities=2)[0], attribute="race", **options)
