"""From activations, or a live model's answers, to a steerer; and measurements of a fitted steerer.

`fit` and `fit_live` take the name of a method; `tune` is the method `auto`. `measure_gates` says how far the gate
opens on single tokens: the paper calibrates it on one pooled row per picture and then uses it on tokens, whose
magnitudes are different. `subspace_cosine` says how far the subspaces of two steerers agree.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ggss.activations import SITE, Activations
from ggss.data.counterfactuals import asked_of_numbers
from ggss.errors import InputError
from ggss.methods import operator, registry
from ggss.methods.diagnostics import matching, principal_cosines, probe_tokens
from ggss.methods.registry import (
    Attribute,
    Fitted,
    LiveQuestion,
    Method,
    check_neutral_given,
    check_pairing,
    checked_options,
    get,
)
from ggss.methods.subspace import targets
from ggss.steering.attach import LEARNED_FROM
from ggss.steering.steerer import MATCHING, Steerer

if TYPE_CHECKING:
    from ggss.models import Vlm

AUTO = "auto"
OPEN, SHUT = 0.9, 0.4  # a gate above OPEN counts as open, one below SHUT as shut
DIGITS = 6  # of the numbers that are stored with a study's results


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
        activations: of a counterfactual set, or of unpaired pictures, from `collect`.
        attribute: a column of the activations' attributes, or a tuple of several for their intersections.
        neutral: activations of pictures that show nobody, at the same sites, for a method that uses them (`pace`) or
            needs them (`biopro`).
        **options: of the method; the defaults are the paper's.

    Returns:
        A steerer with one operator for each site.

    Raises:
        InputError: for an unknown method, option or attribute (with the nearest name), a counterfactual table that is
            not complete, unpaired pictures or an ordered attribute for a method that cannot take them, and a method
            that needs tokens or neutral pictures where there are none.

    Examples:
        >>> fitted = ggss.fit("ggss", acts, attribute="race", kappa=10)
        >>> fitted.method, fitted.values
        ('ggss', ('amber', 'coral', 'indigo', 'jade', 'pearl'))
    """
    method = get(name)
    checked = checked_options(method, options)
    check_neutral_given(method, neutral is not None)
    if isinstance(attribute, list):
        attribute = tuple(attribute)
    columns = (attribute,) if isinstance(attribute, str) else attribute
    ordered = [column for column in columns if column in activations.ordered]
    check_pairing(method, activations.unpaired, ordered)
    for column in columns:
        if column not in ordered and (asked := asked_of_numbers(column, [*map(str, activations.values(column))])):
            raise InputError(asked)
    values = activations.values(attribute) if activations.unpaired else activations.groups(attribute).values
    if method.needs_tokens:
        _check_tokens(method, activations)
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
        operators={site: result.operator for site, result in fitted.items()},
        source=_source(activations, neutral)
        | ({"ordered": ordered} if ordered else {})
        | ({MATCHING: _matching(activations, attribute)} if activations.unpaired and method.steers else {}),
        statistics={site: dict(result.statistics) for site, result in fitted.items()},
        diagnostics={
            site: {
                **result.diagnostics,
                **(_token_diagnostics(result, activations.at(site), attribute) if method.steers else {}),
            }
            for site, result in fitted.items()
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
        **options: of the method.

    Returns:
        A steerer with one operator for each site.

    Raises:
        InputError: if the method is fitted to activations, or cannot learn from these questions.

    Examples:
        >>> from ggss.probes.steered_model import live_questions
        >>> questions = live_questions(model.cache, suite.items("mcq", limit=10))
        >>> fitted = ggss.fit_live("dso", vlm, questions, "race", passes=1)
        >>> fitted.method, fitted.source["questions"] == len(questions)
        ('dso', True)
    """
    method = get(name)
    if method.fit_live is None:
        raise InputError(f"{name} is fitted to activations: ggss.fit({name!r}, activations, attribute)")
    checked = checked_options(method, options)
    if not questions:
        raise InputError(f"{name} learns from questions, and there are none")
    site_names = list(vlm.sites(sites))
    fitted = method.fit_live(vlm, questions, site_names, attribute, checked)
    values = dict.fromkeys(person.value for question in questions for person in question.people)
    return Steerer(
        method=name,
        options=checked.model_dump(),
        attribute=attribute,
        values=tuple(sorted(values, key=str)),
        operators={site: result.operator for site, result in fitted.items()},
        source={
            **vlm.describe(text=True),  # wherever it acts, it has learned from answers
            LEARNED_FROM: len(questions),
        },
        statistics={site: dict(result.statistics) for site, result in fitted.items()},
        diagnostics={site: dict(result.diagnostics) for site, result in fitted.items()},
    )


def _check_neutral(method: Method, activations: Activations, neutral: Activations) -> None:
    if not method.takes_neutral:
        using = [name for name in registry.names() if get(name).takes_neutral]
        raise InputError(f"{method.name} does not use neutral pictures; those that do are {', '.join(using)}")
    fingerprint, neutral_fingerprint = activations.source.get("fingerprint"), neutral.source.get("fingerprint")
    if fingerprint and neutral_fingerprint and fingerprint != neutral_fingerprint:
        raise InputError("the neutral pictures' activations are of another model: collect them with the same one")
    for site in activations.sites:
        width, neutral_width = activations.at(site).pooled.shape[1], neutral.at(site).pooled.shape[1]
        if width != neutral_width:
            raise InputError(
                f"neutral tokens at {site} are {neutral_width} wide, those of the discovery pictures {width}"
            )
    if method.needs_tokens:
        _check_tokens(method, neutral)


def _check_tokens(method: Method, activations: Activations) -> None:
    """InputError unless there are tokens at all sites, or statistics of them if that will do."""
    for site in activations.sites:
        at_site = activations.at(site)
        if not method.takes_statistics or at_site.statistics is None:
            _ = at_site.tokens  # raises when there are none


def _source(activations: Activations, neutral: Activations | None) -> dict[str, Any]:
    """Where the activations come from, with what is known of the neutral pictures."""
    if neutral is None:
        return dict(activations.source)
    return {
        **activations.source,
        "neutral_images": len(neutral),
        "neutral_hash": neutral.source.get("data_hash"),
    }


def _matching(activations: Activations, attribute: Attribute) -> dict[str, Any]:
    """By attribute, how unpaired pictures were compared."""
    names = (attribute,) if isinstance(attribute, str) else attribute
    return {name: asdict(matching(activations, name, targets(activations, name), attribute)) for name in names}


def _token_diagnostics(fitted: Fitted, activations: Activations, attribute: Attribute) -> dict[str, Any]:
    """The probe of a site's tokens, for its diagnostics; empty if there are no tokens.

    Empty for unpaired pictures, too: there a probe also reads what the attribute goes with.
    """
    kept = activations.statistics and activations.statistics.kept
    if activations.unpaired or not (activations.has_tokens or kept):
        return {}
    site_operator = fitted.operator
    tokens = activations.tokens if activations.has_tokens else kept or []

    def steer(rows: Tensor) -> Tensor:
        images = torch.zeros(len(rows), dtype=torch.long, device=rows.device)
        return operator.apply(site_operator, rows, torch.ones(len(rows), 1), images).rows

    with torch.no_grad():
        probe = probe_tokens(
            activations.complete_tokens if site_operator.needs_images else tokens,
            activations.labels(attribute),
            activations.contexts,
            steer,
            needs_all_tokens=site_operator.needs_images,
        )
    return {} if probe is None else {"all_tokens": asdict(probe)}


@dataclass(frozen=True)
class Gates:
    """How far a gate opens on tokens.

    median, std: the statistics that the gate is calibrated with. tokens: the median magnitude |V^T t| of all tokens.
    mean: their mean gate. open, shut: the shares of tokens whose gate is above OPEN and below SHUT.
    """

    median: float
    std: float
    tokens: float
    mean: float
    open: float
    shut: float


def measure_gates(steerer: Steerer, activations: Activations) -> Gates | None:
    """The gate on all tokens at the paper's site; None without a spherical gate or without tokens."""
    from ggss.methods.spherical import Gated
    from ggss.methods.subspace import protected_magnitude, representatives

    gated = steerer.operators.get(SITE)
    if not isinstance(gated, Gated) or gated.floor == 1 or SITE not in activations.sites:
        return None
    if not (at_site := activations.at(SITE)).has_tokens:
        return None
    mu, basis = gated.mu.double(), gated.basis.double()
    magnitudes = torch.cat([protected_magnitude(representatives(rows), mu, basis) for rows in at_site.tokens])
    gates = gated.gate(magnitudes)
    numbers = (
        gated.gate_median,
        gated.gate_std,
        float(np.median(magnitudes)),
        float(gates.mean()),
        float((gates > OPEN).double().mean()),
        float((gates < SHUT).double().mean()),
    )
    return Gates(*(round(number, DIGITS) for number in numbers))


def subspace_cosine(steerer: Steerer, other: Steerer) -> float:
    """The cosine of the largest principal angle between the bases of two steerers, over all sites; 1 if equal."""
    if steerer.operators.keys() != other.operators.keys():
        raise InputError(
            f"the steerers act at {sorted(steerer.operators)} and {sorted(other.operators)}: no comparison"
        )
    cosines = []
    for site, site_operator in steerer.operators.items():
        basis, other_basis = (getattr(op, "basis", None) for op in (site_operator, other.operators[site]))
        if basis is None or other_basis is None:
            raise InputError(
                f"{steerer.method!r} has no subspace that could be compared: use a method that has one, such as ggss"
            )
        cosines.append(float(principal_cosines(basis.double(), other_basis.double()).min()))
    return min(cosines)


def tune(activations: Activations, attribute: Attribute, *, neutral: Activations | None = None) -> Steerer:
    """The steerer that hides an attribute at the smallest movement of tokens, chosen without asking the model.

    Args:
        activations: with tokens, at all sites that may be steered.
        attribute: the attribute to hide.
        neutral: the tokens of pictures that show nobody, at the same sites; optional.

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
