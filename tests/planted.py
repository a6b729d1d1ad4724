"""Synthetic activations with planted attributes, on which it is known what a method should find."""

import torch

from ggss import Activations

RACES = ("amber", "coral", "indigo", "jade", "pearl")
GENDERS = ("man", "woman")


def planted(identities=12, width=64, count=6, noise=0.05, seed=0):
    """Activations where race lies in axes 0-3, gender in 4 and identity in 5-24; returns also the axes."""
    generator = torch.Generator().manual_seed(seed)
    axes = torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64))[0].float()
    base = 3 * axes[:, 40]
    corners = torch.linalg.svd(torch.eye(5) - 0.2)[0][:, :4]  # a regular simplex: every race equally far from all
    race = corners @ axes[:, :4].T
    tokens, attributes, contexts = [], [], []
    for identity in range(identities):
        person = torch.randn(20, generator=generator) @ axes[:, 5:25].T * 0.5
        for g, gender in enumerate(GENDERS):
            for r in range(5):
                centre = base + person + race[r] + (g - 0.5) * axes[:, 4]
                tokens.append(centre + noise * torch.randn(count, width, generator=generator))
                attributes.append({"race": RACES[r], "gender": gender})
                contexts.append(("nurse" if identity % 2 else "cook", identity))
    return Activations(tokens, attributes, contexts), axes


def nobody(count=40, hint=0.1, noise=0.05, seed=1):
    """Neutral pictures in the space of `planted()`: anyone's other traits, and a small part in the axes of race."""
    axes = planted(identities=1)[1]
    generator = torch.Generator().manual_seed(seed)
    tokens = []
    for _ in range(count):
        other = torch.randn(20, generator=generator) @ axes[:, 5:25].T * 0.5
        trace = hint * torch.randn(4, generator=generator) @ axes[:, :4].T
        tokens.append(3 * axes[:, 40] + other + trace + noise * torch.randn(6, len(axes), generator=generator))
    return Activations(tokens, [{}] * count, range(count))
