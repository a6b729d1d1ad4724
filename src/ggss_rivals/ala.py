"""`ala`: adaptive logit adjustment (ICLR 2026), a baseline outside activations. The model's answers are corrected.

    p(v | x)          the probability that picture x shows value v: logistic regression on the mean row of the image
    assoc[q, j, v, o] by how much log p(o), the answer o to question q, is larger where its picture j shows v
    log p'(o) = log p(o) - alpha sum_j sum_v p(v | x_j) assoc[q, j, v, o] + constant          the p'(o) sum to 1

assoc is what the answers to a question about discovery pictures have in common with the values shown, by least
squares over its items i, with v_ij the value that picture j of item i shows:

    log p_i(o) = base[q, o] + sum_j assoc[q, j, v_ij, o] + error          sum_v assoc[q, j, v, o] = 0

For a question about one picture it is the mean of log p(o) where v is shown, minus the mean over values. A question
about two pictures (2AFC) has an association for each place. With two pictures some values may meet more often than
others; least squares does not count one picture's effect as the other's, which means would do.

**What the paper does.** Captions and answers in free text. At each step of generation a classifier of the image and a
classifier of the text say which attribute each shows. Gradients say how much each word matters to the text's
classifier; logits of words that matter are moved along them, in proportion to how far the text is from a target: the
image's attribute (alignment), or none (neutralisation). Nothing inside the model is changed.

**What is from the paper, and what is a reading.** The abstract and public summaries could be read, the equations not.
From the paper: external classifiers, logits that are moved after the model has computed them, the neutral target, a
strength. A reading: a question has few options of one token each, so how much an option says about the attribute can
be counted in answers, and assoc takes the place of both the text's classifier and the importance of words. No
gradient is needed. The target is neutral: what an answer shares with the value shown is taken out. Alignment is left
out, since an answer about someone's salary should not agree with a race.

**Done otherwise here.** The classifier of images is not a network of its own: it reads the model's mean rows, as the
methods beside this one do. Free text is left out.

**Mind** that it knows questions, not an attribute. A question is recognised by its prompt, its options and the
number of its pictures. Whatever was never asked while fitting is not adjusted, and counted (`Adjusted.unseen`); so
capability is untouched unless its very questions were fitted. An answer that is not one of its options is left alone,
too (`Adjusted.unread`). It is no steering method, so it is not in the registry: there is no operator that could be
attached, saved or exported. `experiments/tools/rivals_live.py` measures it beside the others.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ggss.activations import Activations
from ggss.errors import InputError
from ggss.methods.subspace import classes, logistic_regression, span

if TYPE_CHECKING:
    from ggss.models.reading import Answer
    from ggss.probes.base import Item

LABEL = "ala"
REFERENCE = "Adaptive Logit Adjustment for Debiasing Multimodal Language Models, ICLR 2026, openreview u02Tgg4UYg"
LEAST = 1e-6  # a smaller probability is zero in a stored answer, and has no logarithm

Question = tuple[str, tuple[str, ...], int]
"""What was asked: the prompt, its options, and the number of pictures."""


class Adjusted(NamedTuple):
    """Adjusted answers. unseen, unread: how many are left as they were, by question or because they are no option."""

    answers: "list[Answer]"
    unseen: int
    unread: int


@dataclass(frozen=True)
class LogitAdjustment:
    """What is known of the answers to some questions, and a classifier of pictures.

    values: A values of the attribute. weights [A, D] and intercepts [A] of the classifier. associations: by question,
    [places, A, options]. All in float64. accuracy: of the classifier on the pictures it was fitted on.
    """

    attribute: str
    values: tuple[Hashable, ...]
    weights: Tensor = field(repr=False)
    intercepts: Tensor = field(repr=False)
    associations: Mapping[Question, Tensor] = field(repr=False)
    accuracy: float

    @staticmethod
    def fit(
        activations: Activations, attribute: str, items: "Sequence[Item]", answers: "Sequence[Answer]", c: float = 1.0
    ) -> "LogitAdjustment":
        """Fit the classifier to activations, and the associations to the unsteered answers to some items.

        c: inverse strength of the classifier's L2 penalty.
        InputError if an item has no options, no pictures or no value of the attribute, or if some values of it are
        never shown.
        """
        if not items:
            raise InputError("ala learns from the answers to questions, and there are none: give it items")
        if len(items) != len(answers):
            raise InputError(f"there are {len(items)} items, but {len(answers)} answers: give one for each")
        known, pooled = classes(activations, attribute), activations.pooled.double()
        data = span(pooled)
        classifier = logistic_regression(data.coordinates, known.labels, c)
        weights = classifier.weights @ data.directions.T
        intercepts = classifier.intercepts - weights @ data.mean
        if len(known.values) == 2:  # scikit-learn has one row for both: the log odds of the second
            weights, intercepts = (torch.cat([torch.zeros_like(part), part]) for part in (weights, intercepts))
        numbers: dict[Question, list[int]] = {}
        for number, item in enumerate(items):
            _check(item, answers[number], attribute, known.values)
            numbers.setdefault(question_of(item), []).append(number)
        associations = {
            question: _association(
                question, [items[i] for i in of_question], [answers[i] for i in of_question], attribute, known.values
            )
            for question, of_question in numbers.items()
        }
        return LogitAdjustment(attribute, known.values, weights, intercepts, associations, classifier.accuracy)

    def probabilities(self, rows: Tensor) -> Tensor:
        """p(v | x) [n, A] in float64 of pictures with these mean rows [n, D]."""
        return (rows.double() @ self.weights.T + self.intercepts).softmax(1)

    def knows(self, item: "Item") -> bool:
        """Whether the item's question was asked while fitting."""
        return question_of(item) in self.associations

    def adjusted(
        self, items: "Sequence[Item]", answers: "Sequence[Answer]", rows: Sequence[Tensor], alpha: float = 1.0
    ) -> Adjusted:
        """The answers to items, adjusted. rows: of each item the mean rows [places, D] of its pictures.

        An adjusted answer's text is its likeliest option. At alpha 0 all answers are as they were.
        """
        adjusted, unseen, unread = [], 0, 0
        for item, answer, pooled in zip(items, answers, rows, strict=True):
            if not self.knows(item):
                unseen += 1
            elif answer.text.strip() not in item.options:
                unread += 1
            elif alpha:
                answer = self._adjusted(item, answer, pooled, alpha)
            adjusted.append(answer)
        return Adjusted(adjusted, unseen, unread)

    def _adjusted(self, item: "Item", answer: "Answer", pooled: Tensor, alpha: float) -> "Answer":
        association = self.associations[question_of(item)]
        bias = torch.einsum("jv,jvo->o", self.probabilities(pooled), association)
        logs = torch.tensor(answer.probabilities, dtype=torch.float64).log()
        probabilities = (logs - alpha * bias).softmax(0)
        option = list(item.options)[int(probabilities.argmax())]
        text = answer.text if answer.text.strip() == option else option
        return answer._replace(text=text, probabilities=tuple(probabilities.tolist()))


def question_of(item: "Item") -> Question:
    """What an item asks, whoever its pictures show."""
    return item.prompt, tuple(item.options), len(item.images)


def _check(item: "Item", answer: "Answer", attribute: str, values: Sequence[Hashable]) -> None:
    if not item.options or not item.images:
        missing = "pictures" if item.options else "options"
        raise InputError(f"{item.key!r} has no {missing}: ala adjusts options of questions about pictures")
    if len(answer.probabilities) != len(item.options):
        raise InputError(
            f"{item.key!r} has {len(item.options)} options, and its answer {len(answer.probabilities)} probabilities"
        )
    shown = [attributes.get(attribute) for attributes in item.attributes]
    if unknown := [value for value in shown if value not in values]:
        raise InputError(
            f"{item.key!r} shows {attribute} {unknown[0]!r}; the values that the classifier knows are "
            f"{', '.join(map(str, values))}"
        )


def _association(
    question: Question,
    items: "Sequence[Item]",
    answers: "Sequence[Answer]",
    attribute: str,
    values: Sequence[Hashable],
) -> Tensor:
    """assoc of one question [places, values, options]."""
    prompt, _, places = question
    shown = torch.tensor([[values.index(shows[attribute]) for shows in item.attributes] for item in items])
    indicators = torch.nn.functional.one_hot(shown, len(values)).double()
    if missing := [values[v] for counts in indicators.sum(0) for v in (counts == 0).nonzero().flatten().tolist()]:
        raise InputError(
            f"no picture of the {len(items)} items that ask {prompt!r} shows {attribute} {missing[0]!r}"
            f"{' at one of the places' if places > 1 else ''}: ask about all values"
        )
    design = torch.cat([torch.ones(len(items), 1, dtype=torch.float64), indicators.flatten(1)], 1)
    logs = torch.tensor([answer.probabilities for answer in answers], dtype=torch.float64).clamp(min=LEAST).log()
    coefficients = (torch.linalg.pinv(design) @ logs)[1:].unflatten(0, (places, len(values)))
    return coefficients - coefficients.mean(1, keepdim=True)
