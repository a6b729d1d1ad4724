"""Discovery in the small world: activations of the painted town, a steerer fitted on them, and a random control."""

from dataclasses import replace
from pathlib import Path

import torch

from ggss import sphere
from ggss.activations import SITE, Activations
from ggss.activations.collection import collect
from ggss.methods.geodesic import Geodesic
from ggss.methods.subspace import protected_magnitude, representatives
from ggss.models import Vlm, load_vlm
from ggss.models.feature_cache import FeatureCache
from ggss.smallworld import NAME, own_name
from ggss.smallworld.town import town
from ggss.steering.fitting import fit
from ggss.steering.steerer import Steerer

# The paper's protocol: the occupations that a task is measured on are held out of discovery.
HELD_OUT = {"race": ("ceo",), "gender": ("ceo", "doctor", "nurse")}


def load_model(name: str) -> Vlm:
    """An embedded model, `pixtral` or `small-world/pixtral`; or a folder that holds another of the same world."""
    return load_vlm(name if Path(name).is_dir() else f"{NAME}/{own_name(name)}")


def activations(cache: FeatureCache, attribute: str, sites: str = SITE) -> Activations:
    """Activations of the town without the occupations that are held out for the attribute."""
    faces = town().chosen(exclude={"occupation": HELD_OUT[attribute]})
    return collect(cache.vlm, faces, sites, features=cache)


def discover(cache: FeatureCache, attribute: str, sites: str = SITE, method: str = "ggss") -> Steerer:
    """A steerer for an attribute, fitted on the town."""
    return fit(method, activations(cache, attribute, sites), attribute=attribute)


def random_control(steerer: Steerer, cache: FeatureCache, seed: int = 0) -> Steerer:
    """The same update with as many random directions, and a gate calibrated on them: it should reduce nothing."""
    generator = torch.Generator().manual_seed(seed)
    sites = "all" if len(steerer.operators) > 1 else SITE
    acts = activations(cache, str(steerer.attribute), sites)
    operators = {}
    for site, operator in steerer.operators.items():
        assert isinstance(operator, Geodesic)
        points = representatives(acts.at(site).pooled)
        basis = torch.linalg.qr(torch.randn(*operator.basis.shape, generator=generator, dtype=torch.float64))[0]
        magnitudes = protected_magnitude(points, sphere.frechet_mean(points), basis)
        operators[site] = replace(
            operator,
            basis=basis.float(),
            gate_median=float(magnitudes.quantile(0.5)),
            gate_std=float(magnitudes.std(correction=0)),
        )
    return replace(steerer, operators=operators)
