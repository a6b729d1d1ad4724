"""What else could be removed, judged on held-out people of the discovery set: no model is asked.

Steerings are fitted on one half of the identities and judged on the other, both ways:

    parts left      |c'| / |c| of the mean contrasts of parts, after and before: what `pace` removes
    people left     the same of each person's own contrasts, h - mean over the values of h, token by token
    moved           mean of |h' - h| / |h|, over tokens of portraits and of scenes that no fit has seen
    read            the share of portraits whose value a linear probe of all tokens names, fitted after steering on
                    other people; "known": on other portraits, among them the same people as another gender

Beside registered methods there are two that are not, each an answer to "why not remove more?":

    own contrasts           as `pace`, with B made of each person's own contrasts instead of the means of parts
    second pass             `pace`, then the same again on steered tokens with each person's own contrasts
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from experiments.tools.pace import OUT, Asked
from ggss.activations import SITE, Activations
from ggss.methods.auto import halves
from ggss.methods.diagnostics import folds, probe_accuracy
from ggss.methods.operator import Operator, apply
from ggss.methods.pace import mixed
from ggss.steering.fitting import fit

Steer = Callable[[Tensor], Tensor]
SHARE, SHRINKAGE = 0.5, 0.001  # of neutral pictures in the covariance, and what `pace` chooses with them


def table(acts: Activations) -> Tensor:
    """Tokens [groups, values, positions, D]."""
    return torch.stack(list(acts.tokens)).double()[acts.groups("race").index]


def rows_of(acts: Activations) -> Tensor:
    return torch.cat([tokens.double() for tokens in acts.tokens])


def by(operator: Operator) -> Steer:
    def steer(tokens: Tensor) -> Tensor:
        rows = tokens.reshape(-1, tokens.shape[-1]).float()
        images = torch.zeros(len(rows), dtype=torch.long)
        return apply(operator, rows, torch.ones(len(rows), 1), images).rows.double().reshape(tokens.shape)

    return steer


def registered(name: str, neutral: bool = False, **options: Any) -> Callable[[Activations, Activations], Steer]:
    def fitted(acts: Activations, scenes: Activations) -> Steer:
        beside = scenes if neutral else None
        return by(fit(name, acts, "race", neutral=beside, **options).operators[SITE])

    return fitted


def own_contrasts(tokens: Tensor) -> Tensor:
    return (tokens - tokens.mean(1, keepdim=True)).reshape(-1, tokens.shape[-1])


def removed(tokens: Tensor, scenes: Tensor, k: int) -> Steer:
    """The oblique removal of k directions of each person's own contrasts."""
    rows = tokens.reshape(-1, tokens.shape[-1])
    mu = rows.mean(0)
    moments = [(own - mu).T @ (own - mu) / len(own) for own in (rows, scenes)]
    covariance = mixed(moments[0], moments[1], SHARE, SHRINKAGE)
    factor = torch.linalg.cholesky(covariance)
    whitened = torch.linalg.solve_triangular(factor, own_contrasts(tokens).T, upper=False)
    vectors = torch.linalg.eigh(whitened @ whitened.T)[1].flip(1)[:, :k]
    detection = torch.linalg.solve_triangular(factor.T, vectors, upper=True)
    movement = covariance @ detection
    return lambda h: h - ((h - mu) @ detection) @ movement.T


def own(k: int) -> Callable[[Activations, Activations], Steer]:
    return lambda acts, scenes: removed(table(acts), rows_of(scenes), k)


def second_pass(acts: Activations, scenes: Activations) -> Steer:
    first = registered("pace", neutral=True)(acts, scenes)
    second = removed(first(table(acts)), first(rows_of(scenes)), 12)
    return lambda h: second(first(h))


VARIANTS: dict[str, Callable[[Activations, Activations], Steer]] = {
    "ggss": registered("ggss"),
    "svd-pooled-euclidean": registered("svd-pooled-euclidean"),
    "pace-norm, neutral pictures": registered("pace-norm", neutral=True),
    "pace, neutral pictures": registered("pace", neutral=True),
    "pace, k = 24, neutral pictures": registered("pace", neutral=True, k=24),
    "own contrasts, k = 12": own(12),
    "own contrasts, k = 48": own(48),
    "second pass": second_pass,
    "pace-kernel, neutral pictures": registered("pace-kernel", neutral=True),
}
HEAD = ("parts left", "people left", "moved", "scenes moved", "read", "read, known")


def judged(steer: Steer, held_out: Activations, scenes: Tensor) -> list[float]:
    before = table(held_out)
    after = steer(before)
    sizes = []
    for tokens in (after, before):
        means = tokens.mean(0)
        sizes.append((float((means - means.mean(0)).norm()), float(own_contrasts(tokens).norm())))
    moved = [((steer(h) - h).norm(dim=-1) / h.norm(dim=-1)).mean() for h in (before, scenes)]
    groups, values = before.shape[:2]
    labels, flat = torch.arange(values).repeat(groups), after.reshape(groups * values, -1)
    of_race = held_out.groups("race")
    people = [held_out.contexts[image] for image in of_race.index.flatten().tolist()]
    versions = [context for context in of_race.contexts for _ in range(values)]
    read = [probe_accuracy(flat, labels, folds(who)) for who in (people, versions)]
    return [sizes[0][0] / sizes[1][0], sizes[0][1] / sizes[1][1], *map(float, moved), *read]


def measure(model: str) -> Mapping[str, list[float]]:
    """Each variant's numbers, the mean over both halves; kept in `pace-out`."""
    path = OUT / f"limits-{model}.json"
    if not path.exists():
        asked = Asked(model)
        first, second = halves(asked.acts.at(SITE))
        scenes, seen = asked.neutral.at(SITE), rows_of(asked.seen["neutral moved"])
        found = {}
        for name, variant in VARIANTS.items():
            both = [judged(variant(train, scenes), test, seen) for train, test in ((first, second), (second, first))]
            found[name] = torch.tensor(both).mean(0).tolist()
            print(model, name, found[name], flush=True)
        OUT.mkdir(exist_ok=True)
        path.write_text(json.dumps(found))
    return json.loads(path.read_text())
