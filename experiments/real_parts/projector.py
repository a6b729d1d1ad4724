"""Training of the projector, the only part that is learned here.

In two steps. **Words**: each row of a picture is moved towards the embeddings of words that people wrote about it.
The text model is not needed, only its table of embeddings, so this is quick.

    p(w | row)     = softmax over words w of cos(row - m, e_w - m) / T        m: the mean embedding
    p(w | picture) = mean over rows of p(w | row)
    loss           = - sum over w of q(w) log p(w | picture)                  q: share of captions with w

**Answers**: the frozen text model is asked *What does the picture show?*, and its error is followed back into the
projector. The right answers are all things that the captions name, and also *man* or *woman*; the error is the
cross-entropy between them and the text model's probabilities of such words. A small part of the error is the
probability of all others.

The question is an open one. If it names two options, this text model chooses the right one in about half of the
cases, even with the captions themselves in the place of the picture.

In both steps, a penalty keeps the root mean square of each row near that of word embeddings. Without it the rows grow
along few directions. Nothing but the words of captions is learned; race is in none of the answers.
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

from experiments.real_parts.photographs import Photograph, caption_words, things

TEMPERATURE = 0.04
PENALTY = 1.0
ELSEWHERE = 0.1  # the weight of probability that is on no thing
QUESTION = "What does the picture show?"
BEFORE, AFTER = "<|im_start|>user\n", "\n"  # of a picture, in the chat template


@dataclass(frozen=True)
class Settings:
    """How long and how fast; the seed decides the first weights and the order."""

    seed: int = 0
    word_steps: int = 1200
    word_batch: int = 32
    word_rows: int = 40  # of each photograph in a step, drawn at random
    word_rate: float = 2e-3
    answer_steps: int = 100
    answer_batch: int = 12
    answer_rate: float = 4e-4


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


def learn_words(
    projector: nn.Module,
    rows: Tensor,
    photographs: list[Photograph],
    tokenizer: Any,
    table: Tensor,
    settings: Settings,
) -> list[float]:
    """The first step; returns the losses."""
    generator = torch.Generator().manual_seed(settings.seed)
    words = vocabulary(photographs)
    target = root_mean_square(table)
    middle = table.mean(0)
    directions = functional.normalize(word_embeddings(words, tokenizer, table) - middle, dim=-1)
    wanted = wanted_words(photographs, words)
    optimiser = torch.optim.AdamW(projector.parameters(), lr=settings.word_rate, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, settings.word_rate, total_steps=settings.word_steps)
    losses = []
    for _ in range(settings.word_steps):
        batch = torch.randint(len(rows), (settings.word_batch,), generator=generator)
        drawn = torch.randperm(rows.shape[1], generator=generator)[: settings.word_rows]
        projected = projector(rows[batch][:, drawn].float())
        cosines = functional.normalize(projected - middle, dim=-1) @ directions.T
        of_row = functional.log_softmax(cosines / TEMPERATURE, dim=-1)
        of_picture = torch.logsumexp(of_row, dim=1) - math.log(len(drawn))
        loss = -(wanted[batch] * of_picture).sum(1).mean()
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


def learn_answers(
    model: Any, tokenizer: Any, rows: Tensor, photographs: list[Photograph], options: list[str], settings: Settings
) -> list[float]:
    """The second step, through the frozen text model; returns the losses."""
    order = random.Random(settings.seed)
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
    begins = first_tokens(options, tokenizer)
    shown = torch.tensor([[word in photograph.words for word in options] for photograph in photographs]).float()
    usable = shown.any(1).nonzero().flatten().tolist()
    losses: list[float] = []
    waiting: list[int] = []
    for _ in range(settings.answer_steps):
        if len(waiting) < settings.answer_batch:
            waiting = order.sample(usable, len(usable))
        batch, waiting = waiting[: settings.answer_batch], waiting[settings.answer_batch :]
        projected = projector(rows[batch].float())
        loss = answer_loss(answer_logits(model, tokenizer, projected, [QUESTION])[:, 0], begins, shown[batch])
        optimiser.zero_grad()
        (loss + PENALTY * rms_penalty(projected, target)).backward()
        nn.utils.clip_grad_norm_(projector.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        losses.append(loss.item())
    return losses


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
    model: Any, processor: Any, rows: Tensor, photographs: list[Photograph], settings: Settings
) -> dict[str, Any]:
    """Train the projector of a model in place, and say how it went."""
    tokenizer = processor.tokenizer
    projector = model.model.multi_modal_projector
    projector.float()
    table = model.get_input_embeddings().weight.detach().float()
    generator = torch.Generator().manual_seed(settings.seed)
    initialise(projector, rows[:: max(1, len(rows) // 200)], root_mean_square(table), generator)
    words = learn_words(projector, rows, photographs, tokenizer, table, settings)
    options = options_of(photographs, tokenizer)
    answers = learn_answers(model, tokenizer, rows, photographs, options, settings)
    with torch.inference_mode():
        sample = projector(rows[:100].float()).flatten(0, 1)
    return {
        "settings": asdict(settings),
        "photographs": len(photographs),
        "options": options,
        "word_loss": [words[0], sum(words[-50:]) / len(words[-50:])],
        "answer_loss": [sum(answers[:10]) / len(answers[:10]), sum(answers[-20:]) / len(answers[-20:])],
        "effective_rank": effective_rank(sample),
        "rms": root_mean_square(sample),
        "rms_of_words": root_mean_square(table),
    }
