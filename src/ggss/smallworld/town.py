"""Discovery in the small world: the painted town as counterfactual activations, a steerer, and a random control."""

from dataclasses import replace

import torch

from ggss import sphere
from ggss.activations import SITE, Activations, Rows, pool
from ggss.methods.geodesic import Geodesic
from ggss.methods.subspace import protected_magnitude, representatives
from ggss.probes.steered_model import Gallery
from ggss.smallworld.sets import focus_set
from ggss.steering.fitting import fit
from ggss.steering.steerer import Steerer

# The paper's protocol: the occupations a task is scored on are held out of discovery.
HELD_OUT = {"race": ("ceo",), "gender": ("ceo", "doctor", "nurse")}


def activations(gallery: Gallery, attribute: str, sites: str = SITE) -> Activations:
    """The discovery identities of the occupations that are not held out for the attribute."""
    portraits = [p for p in focus_set().values() if p.person.occupation not in HELD_OUT[attribute]]
    gallery.hang(portraits)
    seen = gallery.see(portraits)
    pooled = {site: torch.stack([pool(own.rows[site]) for own in seen]) for site in gallery.vlm.sites(sites)}
    return Activations.from_rows(
        {site: Rows(rows) for site, rows in pooled.items()},
        [{"race": portrait.race, "gender": portrait.gender} for portrait in portraits],
        [(portrait.person.occupation, portrait.person.identity) for portrait in portraits],
        gallery.vlm.describe() | {"images": len(portraits), "data_hash": "small-world focus set, seed 0"},
    )


def discover(gallery: Gallery, attribute: str, sites: str = SITE, method: str = "ggss") -> Steerer:
    """A steerer for an attribute, fitted on the town."""
    return fit(method, activations(gallery, attribute, sites), attribute=attribute)


def random_control(steerer: Steerer, gallery: Gallery, seed: int = 0) -> Steerer:
    """The same update with as many random directions, its gate calibrated on them: it should reduce nothing."""
    generator = torch.Generator().manual_seed(seed)
    sites = "all" if len(steerer.operators) > 1 else SITE
    acts = activations(gallery, str(steerer.attribute), sites)
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
