"""From activations, or a live model's answers, to a steerer, by the name of a method.

How far the gate of a steerer opens on the tokens of the discovery pictures.

The paper calibrates the gate on one pooled row per picture and then uses it on single tokens, whose magnitudes are
different. These numbers show what the gate does there.

How far the subspaces of two steerers agree.

`tune`: the method `auto` by another name, for those who look for a verb.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ggss.activations import SITE, Activations
from ggss.errors import InputError
from ggss.methods import operator
from ggss.methods.diagnostics import principal_cosines, probe_tokens
from ggss.methods.registry import Attribute, Fitted, LiveQuestion, Method, checked_options, get, names
from ggss.steering.compatibility import LEARNED_FROM
from ggss.steering.steerer import Steerer

if TYPE_CHECKING:
    from ggss.activations import Activations
    from ggss.models import Vlm
    from ggss.steering.steerer import Steerer


def fit(
    name: str,
    activations: Activations,
    attribute: Attribute,
    *,
    neutral: Activations | None = None,
    **options: Any,
) -> Steerer:
    """Fit a method to activations, at every site they hold, and return its steerer.

    Where the activations hold tokens, the diagnostics also say what a probe reads from them before and after steering
    at alpha 1, and how far they move.

    Args:
        name: a method, see `ggss.methods.names()`.
        activations: of a counterfactual set, from `collect`.
        attribute: a column of the activations' attributes, or a tuple of several for their intersections.
        neutral: the tokens of pictures that show nobody, at the same sites, for a method that uses them (`pace`).
        **options: the method's own; the defaults are the paper's.

    Returns:
        A steerer with one operator for each site.

    Raises:
        InputError: for an unknown method, option or attribute (with the nearest name), a counterfactual table that is
            not complete, and a method that needs tokens where there are none.

    Examples:
        >>> own = ggss.fit("ggss", acts, attribute="race", kappa=10)
        >>> own.method, own.values
        ('ggss', ('amber', 'coral', 'indigo', 'jade', 'pearl'))
    """
    method = get(name)
    checked = checked_options(method, options)
    if isinstance(attribute, list):
        attribute = tuple(attribute)
    values = activations.groups(attribute).values
    if method.needs_tokens:
        _ = activations.tokens  # raises when there are none
    if neutral is None:
        fitted = {site: method.fit(activations.at(site), attribute, checked) for site in activations.sites}
    else:
        _check_neutral(method, activations, neutral)
        fitted = {
            site: method.fit(activations.at(site), attribute, checked, neutral=neutral.at(site))
            for site in activations.sites
        }
    return Steerer(
        method=name,
        options=checked.model_dump(),
        attribute=attribute,
        values=values,
        operators={site: found.operator for site, found in fitted.items()},
        source=_source(activations, neutral),
        statistics={site: dict(found.statistics) for site, found in fitted.items()},
        diagnostics={
            site: {
                **found.diagnostics,
                **(_in_tokens(found, activations.at(site), attribute) if method.steers else {}),
            }
            for site, found in fitted.items()
        },
        prompt_suffix=method.prompt_suffix,
    )


def fit_live(
    name: str,
    vlm: "Vlm",
    questions: Sequence[LiveQuestion],
    attribute: Attribute,
    *,
    sites: str | Sequence[str] = SITE,
    **options: Any,
) -> Steerer:
    """Fit a method that learns from the answers of a live model, and return its steerer.

    Args:
        name: a method that has a `fit_live`, such as `dso`.
        vlm: the model, which is not changed.
        questions: whose answers should not depend on the attribute; `ggss.probes.steered_model` makes them of items.
        attribute: what the questions compare.
        sites: where to steer: a name, several, or "all".
        **options: the method's own.

    Returns:
        A steerer with one operator for each site.

    Raises:
        InputError: if the method is fitted to activations, or cannot learn from these questions.

    Examples:
        >>> from ggss.probes.steered_model import live_questions
        >>> questions = live_questions(model.cache, suite.items("mcq", limit=10))
        >>> own = ggss.fit_live("dso", vlm, questions, "race", passes=1)
        >>> own.method, own.source["questions"] == len(questions)
        ('dso', True)
    """
    method = get(name)
    if method.fit_live is None:
        raise InputError(f"{name} is fitted to activations: ggss.fit({name!r}, activations, attribute)")
    checked = checked_options(method, options)
    if not questions:
        raise InputError(f"{name} learns from questions, and there are none")
    names = list(vlm.sites(sites))
    fitted = method.fit_live(vlm, questions, names, attribute, checked)
    values = dict.fromkeys(person.value for question in questions for person in question.people)
    return Steerer(
        method=name,
        options=checked.model_dump(),
        attribute=attribute,
        values=tuple(sorted(values, key=str)),
        operators={site: found.operator for site, found in fitted.items()},
        source={
            **vlm.describe(text=True),  # wherever it acts, it has learned from answers
            LEARNED_FROM: len(questions),
        },
        statistics={site: dict(found.statistics) for site, found in fitted.items()},
        diagnostics={site: dict(found.diagnostics) for site, found in fitted.items()},
    )


def _check_neutral(method: Method, activations: Activations, neutral: Activations) -> None:
    if not method.takes_neutral:
        using = [name for name in names() if get(name).takes_neutral]
        raise InputError(f"{method.name} does not use neutral pictures; those that do are {', '.join(using)}")
    made, seen = activations.source.get("fingerprint"), neutral.source.get("fingerprint")
    if made and seen and made != seen:
        raise InputError("the neutral pictures' activations are of another model: collect them with the same one")
    for site in activations.sites:
        width, other = activations.at(site).pooled.shape[1], neutral.at(site).pooled.shape[1]
        if width != other:
            raise InputError(f"neutral tokens at {site} are {other} wide, those of the discovery pictures {width}")
        _ = neutral.at(site).tokens  # raises when there are none


def _source(activations: Activations, neutral: Activations | None) -> dict[str, Any]:
    """Where the activations come from, with what is known of the neutral pictures."""
    if neutral is None:
        return dict(activations.source)
    return {
        **activations.source,
        "neutral_images": len(neutral),
        "neutral_hash": neutral.source.get("data_hash"),
    }


def _in_tokens(found: Fitted, activations: Activations, attribute: Attribute) -> dict[str, Any]:
    """What the diagnostics of a site gain where its tokens are known."""
    tokens = activations.sites[next(iter(activations.sites))].tokens
    if tokens is None:
        return {}
    chosen = found.operator

    def steer(rows: Tensor) -> Tensor:
        images = torch.zeros(len(rows), dtype=torch.long, device=rows.device)
        return operator.apply(chosen, rows, torch.ones(len(rows), 1), images).rows

    with torch.no_grad():
        read = probe_tokens(
            tokens, activations.labels(attribute), activations.contexts, steer, needs_all_tokens=chosen.needs_images
        )
    return {} if read is None else {"all_tokens": asdict(read)}


OPEN, SHUT = 0.9, 0.4  # a gate above OPEN counts as open, one below SHUT as shut
DIGITS = 6  # the numbers are stored with a study's results


@dataclass(frozen=True)
class Gates:
    """median, std: the magnitudes that the gate is calibrated with.

    Over all tokens: tokens, their median magnitude |V^T t|; mean, the mean gate; open and shut, the shares of tokens
    whose gate is above OPEN and below SHUT.
    """

    median: float
    std: float
    tokens: float
    mean: float
    open: float
    shut: float


def measure(steerer: "Steerer", activations: "Activations") -> Gates | None:
    """The gate at the paper's site; None if the method has no gate on the sphere, or if no tokens were kept."""
    from ggss.methods.spherical import Gated
    from ggss.methods.subspace import protected_magnitude, representatives

    operator = steerer.operators.get(SITE)
    tokens = activations.sites[SITE].tokens if SITE in activations.sites else None
    if not isinstance(operator, Gated) or operator.floor == 1 or tokens is None:
        return None
    mu, basis = operator.mu.double(), operator.basis.double()
    found = [protected_magnitude(representatives(rows[rows.any(1)]), mu, basis) for rows in tokens]
    magnitudes = torch.cat(found)
    gates = operator.gate(magnitudes)
    numbers = (
        operator.gate_median,
        operator.gate_std,
        float(np.median(magnitudes)),
        float(gates.mean()),
        float((gates > OPEN).double().mean()),
        float((gates < SHUT).double().mean()),
    )
    return Gates(*(round(number, DIGITS) for number in numbers))


def subspace_cosine(one: "Steerer", other: "Steerer") -> float:
    """The cosine of the largest principal angle between the bases of two steerers, over all sites; 1 if equal."""
    if one.operators.keys() != other.operators.keys():
        raise InputError(f"the steerers act at {sorted(one.operators)} and {sorted(other.operators)}: no comparison")
    found = []
    for site, chosen in one.operators.items():
        mine, theirs = (getattr(each, "basis", None) for each in (chosen, other.operators[site]))
        if mine is None or theirs is None:
            raise InputError(
                f"{one.method!r} has no subspace that could be compared: use a method that has one, as ggss"
            )
        found.append(float(principal_cosines(mine.double(), theirs.double()).min()))
    return min(found)


AUTO = "auto"


def tune(activations: Activations, attribute: Attribute, *, neutral: Activations | None = None) -> Steerer:
    """The steerer that hides an attribute at the smallest movement of tokens, chosen without asking the model.

    Args:
        activations: with tokens, at all sites that may be steered.
        attribute: the attribute to hide.
        neutral: tokens of pictures that show nobody, at the same sites; optional.

    Returns:
        A steerer of the method `auto`, fitted on all contexts. Alpha 1 is its recommended strength; its notes say
        what was compared at each site, and why this was chosen.

    Raises:
        InputError: with fewer than four contexts, or if no candidate can be fitted.

    Examples:
        >>> own = ggss.tune(acts, "race")
        >>> own.method, own.recommended_alpha
        ('auto', 1.0)
    """
    return fit(AUTO, activations, attribute, neutral=neutral).recommending(1.0)
