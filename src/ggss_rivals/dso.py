"""`dso`: direct steering optimisation (Monteiro Paes et al. 2025). Steering is learned against the measured bias.

    h' = h + alpha (a * h + b)                          a, b [D] of each site; * by dimension
    minimise  Bias + l1 (|a|_1 + |b|_1)                 at alpha = 1, subject to KL(steered answers | unsteered) <= kl

    Bias = mean over questions, values and outcomes of |p(outcome | value) - mean over values of p(outcome | value)|
    r(y) = -1 if a person's value gets the answer y more often than others do, +1 if less often, minus its mean
    gradient of Bias = - gradient of E[r(y)], y drawn from the steered model's answers, r held fixed

**What the paper does.** a and b follow every LayerNorm of the language model, on all tokens. The model answers
ambiguous questions about two people (who is the doctor?), and each answer gets a reward: -1 if it agrees with the
stereotype that the model follows more often for that occupation, +1 if not. Maximising the expected reward is
minimising the mean absolute difference by occupation (their theorem 1). It is learned by reinforcement (PPO or
REINFORCE) from 600 answers, with an L1 penalty and a bound on the KL divergence from the model as it is, which bounds
what can be lost elsewhere (theorem 2). The strength (omega there) is chosen when the model is used.

**Done otherwise here.** The sites are this library's, so only image tokens are steered: at the projector, or at
layers of the text model if such sites are named. A question has few one-token options, so the expectation over
answers is computed, not sampled: the gradient is that of REINFORCE without its noise, through the frozen model. Any
number of values: the stereotype is the sign of each value's difference from the mean over values, and the mean of
these signs over values is subtracted from the reward, which makes theorem 1 exact for more than two. The L1 step is
proximal, so that dimensions become exactly zero. The KL bound has a multiplier that rises after a pass that exceeds
it and falls after one that does not. How often each value gets an answer is known from the last pass over the
questions.

**Mind** that it learns answers to these questions, not an attribute: how other questions are answered is not part of
the objective. It needs the model: `ggss.fit_live("dso", vlm, questions, attribute)`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from ggss.activations import Activations
from ggss.errors import InputError
from ggss.methods.operator import Affine, Array, Operator, register_kind, require_finite
from ggss.methods.registry import Attribute, Comparisons, Fitted, LiveQuestion, Method, Options, register
from ggss.models.sites import in_text, in_tower
from ggss.terminal import track

if TYPE_CHECKING:
    from ggss.models import Features, Vlm


BATCH = 64  # questions in one pass through the model
PATIENCE = 2.0  # how fast the multiplier of the KL bound rises and falls


class DsoOptions(Options):
    passes: int = Field(16, ge=1, description="passes over the questions: the budget")
    rate: float = Field(0.05, gt=0, description="size of a step")
    l1: float = Field(1e-4, ge=0, description="penalty on the sum of absolute values")
    kl: float = Field(0.2, gt=0, description="mean KL divergence of answers from the unsteered model's, at most")
    seed: int = Field(42, ge=0, description="seed of the order of questions")


@register_kind
@dataclass(frozen=True)
class ScaleAndShift(Operator):
    """scale and shift [D]: h + alpha (scale * h + shift)."""

    scale: Annotated[Tensor, Array("D")]
    shift: Annotated[Tensor, Array("D")]

    kind: ClassVar[str] = "scale-and-shift"

    @property
    def width(self) -> int:
        return len(self.scale)

    def __call__(self, rows: Tensor, alpha: Tensor, images: Tensor | None, out: Tensor) -> None:
        require_finite(rows, len(rows))
        torch.add(rows, alpha * (rows * self.scale.to(rows.device) + self.shift.to(rows.device)), out=out)

    def affine(self, alpha: float) -> Affine:
        return Affine.by_dimension(1 + alpha * self.scale.double(), alpha * self.shift.double())


Weights = dict[str, Tensor]
"""Site -> [2, D]: scale and shift."""


@dataclass(frozen=True)
class LiveModel:
    """A frozen model that answers from features, with a scale and shift at each of some sites."""

    vlm: "Vlm"
    questions: Sequence[LiveQuestion]
    paths: Mapping[str, str]

    def logits(self, numbers: Sequence[int], weights: Weights) -> tuple[Tensor, Tensor, Tensor]:
        """The next token's logits [n, vocabulary] for some questions, and their options' tokens [n, options].

        The third result is a mask [n, options] of the options that each question has.
        """
        with self._steering(weights) as steered:
            questions = [
                (question.prompt, [steered(features) for features in question.images], question.options)
                for question in (self.questions[i] for i in numbers)
            ]
            logits, tokens = self.vlm.option_logits(questions)
        width = max(map(len, tokens))
        padded = torch.tensor([options + [0] * (width - len(options)) for options in tokens], device=logits.device)
        exists = torch.tensor([[k < len(options) for k in range(width)] for options in tokens], device=logits.device)
        return logits, padded, exists

    def probabilities(self, numbers: Sequence[int], weights: Weights, options: int) -> tuple[Tensor, Tensor]:
        """The options' probabilities [n, options], which sum to 1, and log probabilities [n, vocabulary] of all."""
        logits, tokens, exists = self.logits(numbers, weights)
        probabilities = logits.gather(1, tokens).masked_fill(~exists, -torch.inf).softmax(1)
        padding = probabilities.new_zeros(len(probabilities), options - probabilities.shape[1])
        return torch.cat([probabilities, padding], 1).cpu(), logits.log_softmax(1).cpu()

    @contextmanager
    def _steering(self, weights: Weights) -> "Iterator[Callable[[Features], Features]]":
        """Steer text layers inside the block; yield a function that steers the rows of features."""

        def scale_and_shift(rows: Tensor, weight: Tensor) -> Tensor:
            float_rows = rows.float()
            return (float_rows + weight[0] * float_rows + weight[1]).to(rows.dtype)

        def steered(features: "Features") -> "Features":
            sites = [site for site in features.rows if site in weights]
            rows = {site: scale_and_shift(features.rows[site], weights[site]) for site in sites}
            return replace(features, rows=features.rows | rows)

        text_sites = [site for site in weights if in_text(site)]
        image = getattr(self.vlm.model.config, "image_token_id", None)
        ids: list[Tensor] = []

        def watch(module: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
            ids[:] = [kwargs["input_ids"]]

        def hook_for(site: str) -> Callable[..., Any]:
            def hook(module: Any, args: Any, output: Any) -> Any:
                hidden = output[0] if isinstance(output, tuple) else output
                mask = (ids[0] == image)[..., None]
                steered_hidden = torch.where(mask, scale_and_shift(hidden, weights[site]), hidden)
                return (steered_hidden, *output[1:]) if isinstance(output, tuple) else steered_hidden

            return hook

        from ggss.models import resolve  # this imports transformers, which takes seconds

        with ExitStack() as hooks:
            if text_sites:
                hooks.callback(self.vlm.model.register_forward_pre_hook(watch, with_kwargs=True).remove)
            for site in text_sites:
                module = resolve(self.vlm.model, self.paths[site])
                hooks.callback(module.register_forward_hook(hook_for(site)).remove)
            yield steered


def fit_live(
    vlm: "Vlm", questions: Sequence[LiveQuestion], sites: Sequence[str], attribute: Attribute, options: DsoOptions
) -> dict[str, Fitted]:
    """Learn scale and shift of all sites together. The images of the questions must be features."""
    live = _live(vlm, questions, sites)
    compared = Comparisons.of(questions)
    option_count = max(len(question.options) for question in questions)
    weights = {site: torch.zeros(2, _width(live, site), requires_grad=True) for site in sites}
    adam = torch.optim.Adam(list(weights.values()), lr=options.rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, options.passes)
    generator = torch.Generator().manual_seed(options.seed)

    @torch.no_grad()
    def all_answers() -> tuple[Tensor, Tensor]:
        """The options' probabilities and all log probabilities, for all questions."""
        batches = _batches(list(range(len(questions))))
        results = [live.probabilities(batch, weights, option_count) for batch in batches]
        return torch.cat([probabilities for probabilities, _ in results]), torch.cat([logs for _, logs in results])

    answers, before = all_answers()
    history, multiplier = [(float(compared.bias(answers)), 0.0)], 0.0
    for _ in track(range(options.passes), f"{vlm.name}: steering learned from {len(questions)} questions"):
        mean_kl = 0.0
        for batch in _batches(torch.randperm(len(questions), generator=generator).tolist()):
            rewards = compared.rewards(answers)[batch]
            probabilities, logs = live.probabilities(batch, weights, option_count)
            share, kl = len(batch) / len(questions), divergence(logs, before[batch])
            loss = -(probabilities * rewards).sum() / share + multiplier * kl
            adam.zero_grad()
            loss.backward(inputs=list(weights.values()))
            adam.step()
            _penalise(adam, options.l1)
            answers[batch] = probabilities.detach()
            mean_kl += share * float(kl.detach())
        schedule.step()
        multiplier = max(0.0, multiplier + PATIENCE * (mean_kl - options.kl))
        history.append((float(compared.bias(answers)), mean_kl))
    answers, after = all_answers()
    history.append((float(compared.bias(answers)), float(divergence(after, before))))
    warnings = []
    if history[-1][1] > 1.1 * options.kl:
        warnings.append(
            f"The bound on the KL divergence, {options.kl:g}, was exceeded: {history[-1][1]:.2f}. Use more passes."
        )
    return {
        site: Fitted(
            ScaleAndShift(weight[0].contiguous(), weight[1].contiguous()),
            {"bias": torch.tensor([bias for bias, _ in history]), "kl": torch.tensor([kl for _, kl in history])},
            {
                "questions": len(questions),
                "bias_before": history[0][0],
                "bias_after": history[-1][0],
                "kl": history[-1][1],
                "dimensions_used": float((weight != 0).any(0).double().mean()),
                "warnings": warnings,
            },
        )
        for site, weight in ((site, weight.detach()) for site, weight in weights.items())
    }


def divergence(after: Tensor, before: Tensor) -> Tensor:
    """Mean over questions of KL(after | before), from log probabilities [n, vocabulary]."""
    return (after.exp() * (after - before)).sum(1).mean()


@torch.no_grad()
def _penalise(adam: torch.optim.Adam, l1: float) -> None:
    """The proximal step of the L1 penalty, in the units in which Adam has just stepped."""
    for group in adam.param_groups:
        for parameter in group["params"]:
            state = adam.state[parameter]
            spread = (state["exp_avg_sq"] / (1 - group["betas"][1] ** state["step"])).sqrt() + group["eps"]
            parameter.copy_(shrunk(parameter, group["lr"] * l1 / spread))


def shrunk(values: Tensor, by: Tensor) -> Tensor:
    """Soft thresholding: values moved towards zero by `by`, and zero where they were closer to it."""
    return values.sign() * (values.abs() - by).clamp(min=0)


def _batches(numbers: Sequence[int]) -> list[Sequence[int]]:
    return [numbers[start : start + BATCH] for start in range(0, len(numbers), BATCH)]


def _live(vlm: "Vlm", questions: Sequence[LiveQuestion], sites: Sequence[str]) -> LiveModel:
    """The model, and the questions with copies of their features: tensors made in inference mode have no gradient."""
    if tower_sites := [site for site in sites if in_tower(site)]:
        raise InputError(
            f"dso learns behind the vision tower, not at {tower_sites[0]!r}: name the projector or lm-layers"
        )
    from ggss.models import Features  # this imports transformers, which takes seconds

    for features in (features for question in questions for features in question.images):
        if not isinstance(features, Features):
            raise InputError(
                "dso learns from encoded pictures: give the questions features, which vlm.encode returns"
            )
        if missing := [site for site in sites if site not in features.rows and not in_text(site)]:
            raise InputError(f"the features have no rows of {missing[0]!r}: encode the pictures with sites={sites!r}")
    copies: dict[int, Features] = {}

    def copied(features: "Features") -> "Features":
        if id(features) not in copies:
            rows, inputs = (
                {name: tensor.clone() for name, tensor in tensors.items()}
                for tensors in (features.rows, features.inputs)
            )
            copies[id(features)] = replace(features, rows=rows, inputs=inputs)
        return copies[id(features)]

    copied_questions = [replace(question, images=tuple(map(copied, question.images))) for question in questions]
    return LiveModel(vlm, copied_questions, vlm.sites(list(sites)))


def _width(live: LiveModel, site: str) -> int:
    if in_text(site):
        return live.vlm.model.config.get_text_config().hidden_size
    return next(features.rows[site].shape[1] for question in live.questions for features in question.images)


def fit(activations: Activations, attribute: Attribute, options: DsoOptions) -> Fitted:
    raise InputError(
        "dso is learned from a live model's answers, not from activations: ggss.fit_live('dso', vlm, questions, "
        "attribute); a plan or `ggss discover` cannot fit it"
    )


register(
    Method(
        name="dso",
        summary="a scale and a shift of every dimension, learned against the answers of the live model",
        reference="Monteiro Paes et al. 2025, DSO: Direct Steering Optimization for Bias Mitigation, "
        "arXiv 2512.15926",
        fit=fit,
        options=DsoOptions,
        fit_live=fit_live,
    )
)
