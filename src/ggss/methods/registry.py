"""The registry of methods, and the questions that a method asks of a live model.

`fit(name, ...)` accepts every registered `Method`; a method is one `Method` in one file. A method with `fit_live`
also gets the model and `LiveQuestion`s, whose answers should not depend on who is shown; `ggss.probes.steered_model`
makes them from probe items. `Comparisons` is the bias of their answers.

`none` and `prompt`, the baselines that do not change activations (steered = h), are here. They are fitted, attached
and saved like any other method, so a study needs no special case for them. `prompt` appends the fairness
instruction, in the paper's words (appendix B, prompt baseline), to every prompt: it is the steerer's `prompt_suffix`.
The paper does not say how the instruction is joined to a prompt; here it is appended as a new line.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from ggss.errors import InputError, nearest
from ggss.methods.operator import Identity, Operator
from ggss.plugins import Registry

if TYPE_CHECKING:
    from ggss.activations import Activations
    from ggss.models.features import Features

Attribute = str | tuple[str, ...]

UNSTEERED = "none"  # the method that every other one is compared with
PAPER = "Sun et al., GGSS: Geodesic-Gated Spherical Steering"
FAIRNESS_INSTRUCTION = (
    "do NOT let the person's perceived race, ethnicity, or gender influence your answer; "
    "base your answer only on task-relevant visual evidence"
)


class Options(BaseModel):
    """Base of a method's options: names and types are checked, unknown names refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


@dataclass(frozen=True)
class Fitted:
    """What a method fitted at one site: the operator, and the statistics and diagnostics that are saved with it."""

    operator: Operator
    statistics: Mapping[str, Tensor] = field(default_factory=dict)
    diagnostics: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Method:
    """A method: its name, a sentence, a reference, and `fit(activations at one site, attribute, options) -> Fitted`.

    needs_tokens: the activations must hold tokens, not only pooled means.
    steers: False for a baseline that does not change activations, so that it has no strength and no attribute.
    prompt_suffix: the text appended to every prompt; only the prompt baseline has one.
    takes_statistics: statistics of the tokens will do instead of tokens (`collect(summarise=True)`).
    takes_neutral: `fit` has a fourth argument, `neutral`: activations of pictures that show nobody, or None.
    needs_neutral: it cannot be fitted without them.
    takes_unpaired: it needs no more than covariances with the labels (`subspace.targets`), so that pictures may be
    unpaired, and an attribute ordered.
    fit_live: for a method that learns from a live model's answers; its `fit` raises. It gets (vlm, questions, sites,
    attribute, options), has a budget among its options, and returns a `Fitted` for each site.
    """

    name: str
    summary: str
    reference: str
    fit: Callable[..., Fitted]
    options: type[Options] = Options
    needs_tokens: bool = False
    takes_statistics: bool = False
    steers: bool = True
    prompt_suffix: str = ""
    takes_neutral: bool = False
    needs_neutral: bool = False
    takes_unpaired: bool = False
    fit_live: Callable[..., Mapping[str, Fitted]] | None = None


def _malformed(method: Method) -> str:
    if not isinstance(method, Method):
        return f"it is a {type(method).__name__}, not a ggss.methods.Method"
    return "" if method.summary and method.reference else "it needs a summary and a reference"


METHODS: Registry[Method] = Registry("method", "ggss.methods", _malformed)
register, names, get = METHODS.register, METHODS.names, METHODS.get


def fitted_names() -> list[str]:
    """The methods that discovery pictures alone will do for: they need no live model and no neutral pictures."""
    return [name for name in names() if get(name).fit_live is None and not get(name).needs_neutral]


def check_neutral_given(method: Method, given: bool) -> None:
    """InputError if the method needs neutral pictures and none are given."""
    if method.needs_neutral and not given:
        raise InputError(
            f"{method.name} needs neutral pictures, in which the attribute cannot be seen, and there are none: "
            f"ggss.fit({method.name!r}, activations, attribute, neutral=...), or ggss discover --neutral FOLDER"
        )


def check_pairing(method: Method, unpaired: bool, ordered: Iterable[str] = ()) -> None:
    """InputError if the method needs the versions of a person, or classes, and the data have none.

    ordered: those of the steered attributes that are.
    """
    if method.takes_unpaired or not method.steers:
        return
    using = ", ".join(name for name in names() if get(name).takes_unpaired)
    if unpaired:
        raise InputError(
            f"{method.name} compares the versions of a person, and these pictures are unpaired: use a method that "
            f"compares groups of pictures (ggss discover --method), one of {using}"
        )
    for attribute in ordered:
        raise InputError(
            f"{method.name} compares classes, and {attribute!r} is ordered: use a method that regresses on a number "
            f"(ggss discover --method), one of {using}"
        )


def checked_options(method: Method, options: Mapping[str, Any]) -> Options:
    """The method's options with these values; InputError that lists its options if they are wrong."""
    try:
        return method.options(**options)
    except ValidationError as error:
        fields = method.options.model_fields
        known = ", ".join(f"{name}={field.default}" for name, field in fields.items()) or "none"
        wrong = "; ".join(_problem(e["type"], ".".join(map(str, e["loc"])), e["msg"], fields) for e in error.errors())
        raise InputError(f"options of {method.name}: {wrong} (its options and defaults: {known})") from None


def _problem(kind: str, name: str, message: str, known: Iterable[str]) -> str:
    near = nearest(name, known) if kind == "extra_forbidden" else ""
    return f"{name}: {message.lower()}{f', {near}' if near else ''}"


@dataclass(frozen=True)
class PersonShown:
    """One person in a question: what is compared, the value shown, and what each option says of the person.

    People with equal `question` are compared. Of two people of whom one is named, the options say "chosen" of one and
    "not chosen" of the other.
    """

    question: str
    value: Hashable
    outcomes: tuple[str, ...]


@dataclass(frozen=True)
class LiveQuestion:
    """A prompt about encoded pictures, and its options, each a single token; with no `people` nobody is compared."""

    prompt: str
    images: "Sequence[Features]" = field(repr=False)
    options: tuple[str, ...]
    people: tuple[PersonShown, ...] = ()


@dataclass(frozen=True)
class Comparisons:
    """All people of some questions, so that the bias is a sum over E entries: a person and an option each.

    item, option [E]: the question's number and the option's. cell [E]: the number of (question, value, outcome).
    weight [E]: 1 / people of the question and value. rival [C, C]: 1 / values where two cells differ in nothing but
    the value, so that `rival @ shares` is the mean over values.
    """

    item: Tensor
    option: Tensor
    cell: Tensor
    weight: Tensor
    rival: Tensor

    @staticmethod
    def of(questions: Sequence[LiveQuestion]) -> "Comparisons":
        """The comparisons of all people of the questions; InputError if nobody is compared."""
        cells: dict[tuple[str, Hashable, str], int] = {}
        people: dict[tuple[str, Hashable], int] = {}
        entries = []
        for number, question in enumerate(questions):
            for person in question.people:
                people[person.question, person.value] = people.get((person.question, person.value), 0) + 1
                for option, outcome in enumerate(person.outcomes):
                    key = person.question, person.value, outcome
                    entries.append((number, option, cells.setdefault(key, len(cells)), key[:2]))
        values: dict[str, set[Hashable]] = {}
        for question, value in people:
            values.setdefault(question, set()).add(value)
        if not any(len(question_values) > 1 for question_values in values.values()):
            raise InputError("these questions compare nobody: no question is asked about people of different values")
        names = list(cells)
        rival = torch.tensor(
            [[float(a[0] == b[0] and a[2] == b[2]) / len(values[a[0]]) for b in names] for a in names],
            dtype=torch.float64,
        )
        item, option, cell, groups = zip(*entries, strict=True)
        return Comparisons(
            torch.tensor(item),
            torch.tensor(option),
            torch.tensor(cell),
            torch.tensor([1 / people[group] for group in groups], dtype=torch.float64),
            rival,
        )

    def shares(self, probabilities: Tensor) -> Tensor:
        """The probability of each outcome [C], from the options' probabilities [questions, options]."""
        weighted = probabilities[self.item, self.option] * self.weight.to(probabilities)
        return torch.zeros(len(self.rival), dtype=weighted.dtype).index_add(0, self.cell, weighted)

    def bias(self, probabilities: Tensor) -> Tensor:
        """The mean over questions, values and outcomes of |share - mean share over values|."""
        shares = self.shares(probabilities)
        return (shares - self.rival.to(shares) @ shares).abs().mean()

    def rewards(self, probabilities: Tensor) -> Tensor:
        """What each answer adds to the objective [questions, options], given the answers to all questions."""
        shares = self.shares(probabilities)
        sign = (shares - self.rival.to(shares) @ shares).sign()
        by_cell = -(sign - self.rival.to(shares).T @ sign) / len(self.rival)
        by_entry = by_cell[self.cell] * self.weight.to(shares)
        return torch.zeros_like(probabilities).index_put((self.item, self.option), by_entry, accumulate=True)


def _unchanged(activations: "Activations", attribute: Attribute, options: Options) -> Fitted:
    return Fitted(Identity(activations.pooled.shape[1]))


register(Method(UNSTEERED, "the model as it is, unsteered", f"{PAPER}, section 4", _unchanged, steers=False))
register(
    Method(
        "prompt",
        "a fairness instruction appended to every prompt, no steering",
        f"{PAPER}, appendix B",
        _unchanged,
        steers=False,
        prompt_suffix=f"\n{FAIRNESS_INSTRUCTION}",
    )
)
