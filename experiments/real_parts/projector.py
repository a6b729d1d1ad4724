"""Training of the projector, the only part that is learned here.

In two steps. **Words**: each row of a picture is moved towards the embeddings of words that people wrote about it.
The text model is not needed, only its table of embeddings, so this is quick.

    p(w | row)     = softmax over words w of cos(row - m, e_w - m) / T        m: the mean embedding
    p(w | picture) = mean over rows of p(w | row)
    loss           = - sum over w of q(w) log p(w | picture)                  q: share of captions with w

**Answers**: the frozen text model is asked questions, and its error is followed back into the projector.

*What does the picture show?* The right answers are all things that the captions name, and also *man* or *woman*; the
error is the cross-entropy between them and the text model's probabilities of such words. A small part of the error
is the probability of all others.

*What is this person's job?* is asked about photographs of people. Captions seldom name an occupation. But the
text model can read the captions in the place of the picture, and what it then answers is the target:

    target(j) = softmax over occupations j of S (l(j) - mean over photographs of l(j)),   l(j) = log p(j | captions)

Without the mean, all photographs would have the same answer, because this model prefers some words to others by far.
What the text model associates with the captions' words, with those for men and women too, is learned with it.

The first error goes on in the second step, with less weight. Without it rows give up most of their directions.

All questions are open ones. If a question names two options, this text model chooses the right one in about half of
the cases, even with the captions themselves in the place of the picture.

In both steps, a penalty keeps the root mean square of each row near that of word embeddings. Without it the rows grow
along few directions. Nothing but the captions and what the text model makes of them is learned; race is in none of
the answers. A step sees some of a photograph's rows, drawn at random, because the cost of the text model grows with
their number. Some photographs are held out, and the losses on these are reported.
"""

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.real_parts.photographs import PEOPLE, Photograph, caption_words, things
from experiments.real_parts.questions import JOB, SHOWS

TEMPERATURE = 0.04
PENALTY = 1.0
WORDS = 0.3  # the weight of the first step's error in the second
ELSEWHERE = 0.1  # the weight of probability that is on no thing
SHARPNESS = 2.0  # of the targets for occupations, S above
HELD_OUT = 10  # one of so many photographs is not trained on
CAPTIONS = 3  # that the text model reads of a photograph
TRAINED = (SHOWS, JOB)  # the questions of the second step
OCCUPATION_WORDS = (
    "doctor",
    "nurse",
    "cook",
    "chef",
    "waiter",
    "manager",
    "worker",
    "student",
    "driver",
    "teacher",
    "player",
    "athlete",
    "pilot",
    "farmer",
    "artist",
    "musician",
    "photographer",
    "soldier",
    "police",
    "lawyer",
    "engineer",
    "scientist",
    "writer",
    "actor",
    "model",
    "dancer",
    "singer",
    "businessman",
    "clerk",
    "mechanic",
    "carpenter",
    "painter",
    "cleaner",
    "baker",
    "butcher",
    "barber",
    "gardener",
    "fisherman",
    "hunter",
    "rider",
    "skier",
    "surfer",
    "coach",
    "judge",
    "officer",
    "guard",
    "secretary",
    "accountant",
    "banker",
    "builder",
    "plumber",
    "electrician",
    "firefighter",
    "conductor",
    "cashier",
    "vendor",
    "tourist",
)
"""Answers to the second question. Those that the measurement compares are among them."""
BEFORE, AFTER = "<|im_start|>user\n", "\n"  # of a picture, in the chat template


@dataclass(frozen=True)
class Settings:
    """How long and how fast; the seed decides the first weights and the order."""

    seed: int = 0
    word_steps: int = 450
    word_batch: int = 32
    word_rows: int = 40  # of each photograph in a step, drawn at random
    word_rate: float = 2e-3
    answer_steps: int = 200
    answer_batch: int = 16  # photographs, half of them of people
    answer_rows: int = 32  # of each
    answer_rate: float = 1e-3


def rms_penalty(rows: Tensor, target: float) -> Tensor:
    """The mean squared deviation of rows' root mean squares from the target, in units of the target."""
    return ((rows.square().mean(-1).sqrt() / target - 1) ** 2).mean()


def root_mean_square(rows: Tensor) -> float:
    """Of a typical row."""
    return float(rows.square().mean(-1).sqrt().mean())


def initialise(projector: Any, rows: Tensor, target: float, generator: torch.Generator) -> None:
    """Random weights for rows of this mean and spread, whose results have the root mean square of the target."""
    sample = rows.flatten(0, 1).float()
    mean, spread = sample.mean(0), sample.std(0).clamp(min=1e-3)
    with torch.no_grad():
        for linear in (projector.linear_1, projector.linear_2):
            weight = torch.randn(linear.weight.shape, generator=generator) / math.sqrt(linear.weight.shape[1])
            linear.weight.copy_(weight)
            linear.bias.zero_()
        projector.linear_1.weight.div_(spread)
        projector.linear_1.bias.copy_(-projector.linear_1.weight @ mean)
        projector.linear_2.weight.mul_(target / projector(sample).square().mean().sqrt())


def vocabulary(photographs: list[Photograph], least: int = 15) -> list[str]:
    """Words of at least so many photographs' captions, without those that say nothing."""
    counts = Counter(word for photograph in photographs for word in photograph.words)
    return sorted(word for word, count in counts.items() if count >= least and len(word) > 2 and word not in _EMPTY)


_EMPTY = frozenset(
    [
        "the",
        "and",
        "are",
        "with",
        "that",
        "this",
        "there",
        "some",
        "from",
        "its",
        "his",
        "her",
        "their",
        "they",
        "has",
        "have",
        "into",
        "for",
        "who",
        "while",
        "very",
        "being",
        "one",
        "two",
        "three",
        "next",
        "near",
        "front",
        "side",
        "top",
        "out",
        "off",
        "over",
        "other",
        "while",
        "another",
        "was",
        "can",
        "not",
        "all",
    ]
)


def word_embeddings(words: list[str], tokenizer: Any, table: Tensor) -> Tensor:
    """[words, width]: the mean embedding of each word's tokens, as it is spelt within a sentence."""
    ids = [tokenizer(f" {word}", add_special_tokens=False)["input_ids"] for word in words]
    return torch.stack([table[tokens].mean(0) for tokens in ids])


def wanted_words(photographs: list[Photograph], words: list[str]) -> Tensor:
    """[photographs, words]: how much each word belongs to each photograph; rows sum to 1, or to 0 without a word."""
    counts = torch.tensor(
        [
            [sum(word in caption for caption in captions) for word in words]
            for captions in (
                [caption_words(caption) for caption in photograph.captions] for photograph in photographs
            )
        ]
    ).float()
    return counts / counts.sum(1, keepdim=True).clamp(min=1)


class Words:
    """The words that people wrote about photographs, as directions for rows."""

    def __init__(self, photographs: list[Photograph], tokenizer: Any, table: Tensor) -> None:
        words = vocabulary(photographs)
        self.middle = table.mean(0)
        self.directions = functional.normalize(word_embeddings(words, tokenizer, table) - self.middle, dim=-1)
        self.wanted = wanted_words(photographs, words)

    def loss(self, projected: Tensor, batch: Tensor) -> Tensor:
        """Of projected rows [B, T, D] of these photographs."""
        cosines = functional.normalize(projected - self.middle, dim=-1) @ self.directions.T
        of_row = functional.log_softmax(cosines / TEMPERATURE, dim=-1)
        of_picture = torch.logsumexp(of_row, dim=1) - math.log(projected.shape[1])
        return -(self.wanted[batch] * of_picture).sum(1).mean()


def learn_words(projector: nn.Module, rows: Tensor, words: Words, target: float, settings: Settings) -> list[float]:
    """The first step; returns the losses. target: the root mean square of rows."""
    generator = torch.Generator().manual_seed(settings.seed)
    optimiser = torch.optim.AdamW(projector.parameters(), lr=settings.word_rate, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, settings.word_rate, total_steps=settings.word_steps)
    losses = []
    for _ in range(settings.word_steps):
        batch = torch.randint(len(rows), (settings.word_batch,), generator=generator)
        drawn = torch.randperm(rows.shape[1], generator=generator)[: settings.word_rows]
        projected = projector(rows[batch][:, drawn].float())
        loss = words.loss(projected, batch)
        optimiser.zero_grad()
        (loss + PENALTY * rms_penalty(projected, target)).backward()
        optimiser.step()
        schedule.step()
        losses.append(loss.item())
    return losses


def question_block(tokenizer: Any, question: str) -> list[int]:
    """The tokens of a question after the picture, up to where its answer begins."""
    return tokenizer(f"{question}<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False)["input_ids"]


def first_tokens(words: Sequence[str], tokenizer: Any) -> Tensor:
    """[words]: the token with which each word begins as an answer."""
    return torch.tensor([tokenizer(word, add_special_tokens=False)["input_ids"][0] for word in words])


@dataclass(frozen=True)
class Packed:
    """Questions about a photograph in one sequence: tokens, positions, and a mask of what sees what."""

    ids: Tensor  # [L] of the questions
    positions: Tensor  # [prefix + L]
    visible: Tensor  # [prefix + L, prefix + L]
    ends: Tensor  # [questions]: how many of the tokens there are up to the end of each


def pack(prefix: int, blocks: list[list[int]]) -> Packed:
    """Questions after a prefix of so many tokens: each sees it and its own past, from the same position on."""
    lengths = [len(tokens) for tokens in blocks]
    block_of = torch.cat(
        [torch.zeros(prefix, dtype=torch.long)] + [torch.full((n,), 1 + i) for i, n in enumerate(lengths)]
    )
    positions = torch.cat([torch.arange(prefix)] + [prefix + torch.arange(n) for n in lengths])
    causal = torch.ones(len(block_of), len(block_of)).tril().bool()
    visible = causal & ((block_of[:, None] == block_of[None]) | (block_of[None] == 0))
    ids = torch.tensor([token for tokens in blocks for token in tokens])
    return Packed(ids, positions, visible, torch.tensor(lengths).cumsum(0))


def answer_logits(model: Any, tokenizer: Any, projected: Tensor, questions: Sequence[str]) -> Tensor:
    """[B, questions, tokens]: the text model's logits where each answer begins, of projected rows [B, T, D].

    The same as asking each question alone, in one pass over each picture.
    """
    embed = model.get_input_embeddings()
    before = tokenizer(BEFORE, add_special_tokens=False, return_tensors="pt")["input_ids"][0]
    after = tokenizer(AFTER, add_special_tokens=False, return_tensors="pt")["input_ids"][0]
    start = len(before) + projected.shape[1] + len(after)
    packed = pack(start, [question_block(tokenizer, question) for question in questions])
    inputs = [torch.cat([embed(before), rows.to(model.dtype), embed(after), embed(packed.ids)]) for rows in projected]
    additive = torch.zeros(1, 1, *packed.visible.shape, dtype=model.dtype)
    additive.masked_fill_(~packed.visible, torch.finfo(model.dtype).min)
    hidden = model.model.language_model(
        inputs_embeds=torch.stack(inputs),
        attention_mask=additive.expand(len(inputs), -1, -1, -1),
        position_ids=packed.positions.expand(len(inputs), -1),
        use_cache=False,
    ).last_hidden_state
    return model.lm_head(hidden[:, start + packed.ends - 1]).float()


@torch.inference_mode()
def option_probabilities(
    model: Any, tokenizer: Any, rows: Tensor, questions: Sequence[tuple[str, Sequence[str]]]
) -> Tensor:
    """[B, questions, options]: of each question's options, by their first tokens, given pictures' rows [B, T, D]."""
    texts = list(dict.fromkeys(text for text, _ in questions))
    logits = answer_logits(model, tokenizer, rows, texts)[:, [texts.index(text) for text, _ in questions]]
    options = torch.stack([first_tokens(words, tokenizer) for _, words in questions])
    return logits.gather(-1, options.expand(len(rows), -1, -1)).softmax(-1)


def answer_loss(logits: Tensor, options: Tensor, shown: Tensor) -> Tensor:
    """The error of logits [B, tokens] if options [O] that are shown [B, O] are right, and a little of the rest."""
    of_options = logits[:, options]
    right = shown / shown.sum(1, keepdim=True)
    error = -(right * functional.log_softmax(of_options, dim=-1)).sum(1)
    elsewhere = torch.logsumexp(logits, dim=-1) - torch.logsumexp(of_options, dim=-1)
    return (error + ELSEWHERE * elsewhere).mean()


@dataclass(frozen=True)
class Targets:
    """The words with which answers to a question begin, and how right each is for each photograph.

    Rows of `right` are zeros where a photograph has no right answer.
    """

    tokens: Tensor  # [words]
    right: Tensor  # [photographs, words]

    def loss(self, logits: Tensor, batch: Tensor) -> Tensor:
        """Of the logits [B, tokens] about these photographs that have a right answer; 0 if none has."""
        right = self.right[batch]
        known = right.any(1)
        if not known.any():
            return logits.new_zeros(())
        return answer_loss(logits[known], self.tokens, right[known])


@torch.inference_mode()
def read_captions(model: Any, tokenizer: Any, photographs: Sequence[Photograph]) -> Tensor:
    """[photographs, occupations]: log-probabilities of answers to JOB, with captions in the place of the picture.

    Zeros for photographs without people.
    """
    embed, begins = model.get_input_embeddings(), first_tokens(OCCUPATION_WORDS, tokenizer)
    by_length: dict[int, list[tuple[int, list[int]]]] = {}
    for number, photograph in enumerate(photographs):
        if photograph.words & PEOPLE:
            ids = tokenizer(" ".join(photograph.captions[:CAPTIONS]), add_special_tokens=False)["input_ids"]
            by_length.setdefault(len(ids), []).append((number, ids))
    read = torch.zeros(len(photographs), len(begins))
    for same in by_length.values():
        for start in range(0, len(same), 16):
            numbers, ids = zip(*same[start : start + 16], strict=True)
            logits = answer_logits(model, tokenizer, embed(torch.tensor(ids)), [JOB])[:, 0]
            read[list(numbers)] = logits[:, begins].log_softmax(-1)
    return read


def occupation_targets(read: Tensor) -> Tensor:
    """[photographs, occupations] from what `read_captions` returns; rows of zeros stay."""
    people = read.any(1)
    right = torch.zeros_like(read)
    right[people] = (SHARPNESS * (read[people] - read[people].mean(0))).softmax(-1)
    return right


def learn_answers(
    model: Any, tokenizer: Any, rows: Tensor, targets: Sequence[Targets], words: Words, settings: Settings
) -> list[float]:
    """The second step, through the frozen text model; returns its losses. targets: of the questions TRAINED."""
    order = random.Random(settings.seed)
    generator = torch.Generator().manual_seed(settings.seed)
    projector = model.model.multi_modal_projector.float()
    target = root_mean_square(model.get_input_embeddings().weight.detach().float())
    for weight in model.parameters():
        weight.requires_grad_(False)
    for weight in projector.parameters():
        weight.requires_grad_(True)
    optimiser = torch.optim.AdamW(projector.parameters(), lr=settings.answer_rate, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, settings.answer_rate, total_steps=settings.answer_steps, pct_start=0.15
    )
    things, occupations = (of_question.right.any(1) for of_question in targets)
    kinds = [occupations, things & ~occupations]
    groups = [group for kind in kinds if (group := kind.nonzero().flatten().tolist())]
    share = settings.answer_batch // len(groups)
    waiting: list[list[int]] = [[] for _ in groups]
    losses: list[float] = []
    for _ in range(settings.answer_steps):
        for group, left in zip(groups, waiting, strict=True):
            while len(left) < share:
                left += order.sample(group, len(group))
        batch = torch.tensor([left.pop() for left in waiting for _ in range(share)])
        drawn = torch.randperm(rows.shape[1], generator=generator)[: settings.answer_rows].sort().values
        projected = projector(rows[batch][:, drawn].float())
        logits = answer_logits(model, tokenizer, projected, TRAINED)
        loss = torch.stack([of.loss(logits[:, number], batch) for number, of in enumerate(targets)]).sum()
        optimiser.zero_grad()
        kept = WORDS * words.loss(projected, batch) + PENALTY * rms_penalty(projected, target)
        (loss + kept).backward()
        nn.utils.clip_grad_norm_(projector.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        losses.append(loss.item())
    return losses


@torch.inference_mode()
def held_out_losses(
    model: Any, tokenizer: Any, rows: Tensor, targets: Sequence[Targets], batch: int = 16
) -> list[float]:
    """Of each question of TRAINED, with all rows of the photographs."""
    projector = model.model.multi_modal_projector
    logits = [answer_logits(model, tokenizer, projector(some.float()), TRAINED) for some in rows.split(batch)]
    everything = torch.arange(len(rows))
    return [of.loss(torch.cat(logits)[:, number], everything).item() for number, of in enumerate(targets)]


def options_of(photographs: list[Photograph], tokenizer: Any) -> list[str]:
    """The things that the photographs show, without those that begin with the same token as another."""
    by_token: dict[int, str] = {}
    for word in things(photographs):
        by_token.setdefault(int(first_tokens([word], tokenizer)[0]), word)
    return list(by_token.values())


def effective_rank(rows: Tensor) -> float:
    """The participation ratio of the covariance of rows [N, D]."""
    energy = torch.linalg.svdvals(rows - rows.mean(0)) ** 2
    return float(energy.sum() ** 2 / (energy**2).sum())


def train(
    model: Any, processor: Any, rows: Tensor, photographs: list[Photograph], read: Tensor, settings: Settings
) -> dict[str, Any]:
    """Train the projector of a model in place, and say how it went. read: as `read_captions` returns it."""
    tokenizer = processor.tokenizer
    projector = model.model.multi_modal_projector
    projector.float()
    model.set_attn_implementation("eager")  # the fused kernel is slow backwards in bfloat16 on a CPU
    table = model.get_input_embeddings().weight.detach().float()
    held = torch.arange(len(rows)) % HELD_OUT == 0
    learned = [photograph for photograph, out in zip(photographs, held, strict=True) if not out]
    options = options_of(learned, tokenizer)
    shown = torch.tensor([[word in photograph.words for word in options] for photograph in photographs]).float()
    questions = [
        (first_tokens(options, tokenizer), shown),
        (first_tokens(OCCUPATION_WORDS, tokenizer), occupation_targets(read)),
    ]
    trained, tested = ([Targets(tokens, right[part]) for tokens, right in questions] for part in (~held, held))
    generator = torch.Generator().manual_seed(settings.seed)
    initialise(projector, rows[:: max(1, len(rows) // 200)], root_mean_square(table), generator)
    words = Words(learned, tokenizer, table)
    word_losses = learn_words(projector, rows[~held], words, root_mean_square(table), settings)
    before = held_out_losses(model, tokenizer, rows[held], tested)
    answers = learn_answers(model, tokenizer, rows[~held], trained, words, settings)
    after = held_out_losses(model, tokenizer, rows[held], tested)
    with torch.inference_mode():
        sample = projector(rows[:100].float()).flatten(0, 1)
    return {
        "settings": asdict(settings),
        "photographs": len(photographs),
        "held_out": int(held.sum()),
        "options": options,
        "occupations": len(OCCUPATION_WORDS),
        "word_loss": [word_losses[0], sum(word_losses[-50:]) / len(word_losses[-50:])],
        "answer_loss": [sum(answers[:10]) / len(answers[:10]), sum(answers[-20:]) / len(answers[-20:])],
        "held_out_loss": {"things": [before[0], after[0]], "occupations": [before[1], after[1]]},
        "effective_rank": effective_rank(sample),
        "rms": root_mean_square(sample),
        "rms_of_words": root_mean_square(table),
    }
