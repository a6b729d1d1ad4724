"""Numbers out of range are refused by the functions themselves, not by the command line alone."""

import math

import numpy as np
import pytest
import torch

from experiments.training.trainer import train
from ggss import errors
from ggss.activations.collect import collect
from ggss.analysis.run import Statistics
from ggss.errors import InputError
from ggss.probes.steered_model import batches
from ggss.probes.suites import subset
from ggss.smallworld.painter import town
from ggss.stats import bootstrap, signflip
from ggss.steering.steerer import checked_alpha
from ggss.study.executors import executor

SEEDS = (-1, 2**32, 2**63, 10**30)


def refused(call, what):
    with pytest.raises(InputError, match=rf"{what}.* must be from .* to .*, seen"):
        call()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1.5, -0.1])
def test_a_range_ends_where_it_says(value):
    refused(lambda: errors.SHARE.check("a share", value), "a share")
    errors.SHARE.check("a share", 0.0)
    errors.SHARE.check("a share", 1.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_seeds(seed, tiny, tmp_path):
    numbers = np.arange(4.0)
    refused(lambda: Statistics(seed=seed), "seed")
    refused(lambda: bootstrap(numbers, seed=seed), "seed")
    refused(lambda: signflip(numbers, numbers + 1, seed=seed), "seed")
    refused(lambda: town(seed), "seed")
    refused(lambda: train("pixtral", tmp_path / "m", seed=seed), "seed")
    refused(lambda: collect(tiny("pixtral"), None, seed=seed), "seed")
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("size", [0, -1, 10**9])
def test_batch_sizes(size, tiny, pictures):
    vlm = tiny("pixtral")
    refused(lambda: collect(vlm, None, batch_size=size), "batch size")
    refused(lambda: batches([], size), "batch size")
    refused(lambda: vlm.encode(pictures[:1], batch_size=size), "batch size")
    refused(lambda: vlm.answer(["a ?"], [pictures[:1]], batch_size=size), "batch size")


@pytest.mark.parametrize("count", [0, -1, 10**9])
def test_other_counts(count, tiny, pictures, tmp_path):
    vlm = tiny("pixtral")
    refused(lambda: vlm.answer(["a ?"], [pictures[:1]], max_new_tokens=count), "longest answer")
    refused(lambda: vlm.read(["a ?"], [pictures[:1]], [[]], max_new_tokens=count), "longest answer")
    refused(lambda: train("pixtral", tmp_path, threads=count), "threads")
    refused(lambda: executor("processes", None, count), "workers")  # pyright: ignore[reportArgumentType]
    refused(lambda: subset([], count - 1), "items") if count <= 0 else None


@pytest.mark.parametrize("alpha", [1e308, math.nan, math.inf, -1e9, torch.tensor([1.0, 1e30])])
def test_strengths(alpha):
    refused(lambda: checked_alpha(alpha, allow_amplify=True), "alpha")
