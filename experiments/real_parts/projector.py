"""Training of the projector, the only part that is learned here.

In two steps. **Words**: each row of a picture is moved towards the embeddings of words that people wrote about it.
The text model is not needed, only its table of embeddings, so this is quick.

    s(picture, w) = scale * logmeanexp over rows z of cos(z - m, e_w - m) / T + b_w        m: the mean embedding
    loss          = binary cross-entropy of s over the frequent words of the captions

**Answers**: the frozen text model answers two-option questions and writes a caption, and its error is followed back
into the projector. All questions about a photograph share its rows in one pass: each attends to the picture and to
itself, with the positions that it has alone.

In both, a penalty keeps the root mean square of each row near that of word embeddings. Without it the rows grow
along few directions. Neither gender nor race is asked about; captions have the words that people wrote.
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

from experiments.real_parts.photographs import Photograph, things

TEMPERATURE = 0.1
PENALTY = 1.0
QUESTION = "Does the picture show a {} or a {}?"
CAPTION = "What does the picture show?"
BEFORE, AFTER = "<|im_start|>user\n", "\n"  # of a picture, in the chat template


@dataclass(frozen=True)
class Settings:
    """How long and how fast; the seed decides the first weights and the order."""

    seed: int = 0
    word_steps: int = 800
    word_batch: int = 32
    word_rows: int = 25  # of each photograph in a step, drawn at random
    answer_steps: int = 120
    answer_batch: int = 6
    questions: int = 8  # about a photograph in one pass, beside its caption


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
    shown = torch.tensor([[word in photograph.words for word in words] for photograph in photographs]).float()
    bias = nn.Parameter(torch.logit(shown.mean(0).clamp(0.005, 0.995)))
    scale = nn.Parameter(torch.tensor(1.0))
    optimiser = torch.optim.AdamW([*projector.parameters(), bias, scale], lr=1e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, total_steps=settings.word_steps)
    losses = []
    for _ in range(settings.word_steps):
        batch = torch.randint(len(rows), (settings.word_batch,), generator=generator)
        drawn = torch.randperm(rows.shape[1], generator=generator)[: settings.word_rows]
        projected = projector(rows[batch][:, drawn].float())
        cosines = functional.normalize(projected - middle, dim=-1) @ directions.T
        score = TEMPERATURE * torch.logsumexp(cosines / TEMPERATURE, dim=1) - TEMPERATURE * math.log(len(drawn))
        logits = 10 * scale.exp() * score + bias
        loss = functional.binary_cross_entropy_with_logits(logits, shown[batch])
        optimiser.zero_grad()
        (loss + PENALTY * rms_penalty(projected, target)).backward()
        optimiser.step()
        schedule.step()
        losses.append(loss.item())
    return losses


def question_block(tokenizer: Any, question: str, answer: str) -> tuple[list[int], int]:
    """The tokens of a question and its answer after the picture, and how many of them are the answer's."""
    asked = tokenizer(f"{question}<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False)["input_ids"]
    answered = tokenizer(f"{answer}<|im_end|>", add_special_tokens=False)["input_ids"]
    return asked + answered, len(answered)


def training_blocks(
    photograph: Photograph, options: list[str], tokenizer: Any, questions: int, order: random.Random
) -> list[tuple[list[int], int]]:
    """Some two-option questions about things that are shown, and a caption."""
    present = [word for word in options if word in photograph.words]
    absent = [word for word in options if word not in photograph.words]
    blocks = []
    for word in order.sample(present, min(questions, len(present))):
        pair = [word, order.choice(absent)]
        order.shuffle(pair)
        blocks.append(question_block(tokenizer, QUESTION.format(*pair), word))
    caption = order.choice(photograph.captions).rstrip(". ")
    return [*blocks, question_block(tokenizer, CAPTION, f"{caption}.")]


@dataclass(frozen=True)
class Packed:
    """A photograph's questions in one sequence: tokens, positions, a mask of what sees what, and the answers."""

    ids: Tensor  # [L] of the blocks
    positions: Tensor  # [prefix + L]
    visible: Tensor  # [prefix + L, prefix + L]
    weights: Tensor  # [L]: of each token's prediction; those of an answer sum to 1, all others are 0


def pack(prefix: int, blocks: list[tuple[list[int], int]]) -> Packed:
    """Blocks after a prefix of so many tokens: each sees the prefix and its own past, from the same position on."""
    lengths = [len(tokens) for tokens, _ in blocks]
    block_of = torch.cat(
        [torch.zeros(prefix, dtype=torch.long)] + [torch.full((n,), 1 + i) for i, n in enumerate(lengths)]
    )
    positions = torch.cat([torch.arange(prefix)] + [prefix + torch.arange(n) for n in lengths])
    causal = torch.ones(len(block_of), len(block_of)).tril().bool()
    visible = causal & ((block_of[:, None] == block_of[None]) | (block_of[None] == 0))
    weights = torch.cat(
        [(torch.arange(len(tokens)) >= len(tokens) - scored) / max(1, scored) for tokens, scored in blocks]
    )
    ids = torch.tensor([token for tokens, _ in blocks for token in tokens])
    return Packed(ids, positions, visible, weights)


def text_states(model: Any, tokenizer: Any, projected: Tensor, packed: list[Packed]) -> list[Tensor]:
    """The text model's last states [L, D] over each photograph's questions, after its projected rows [B, T, D]."""
    embed = model.get_input_embeddings()
    before = tokenizer(BEFORE, add_special_tokens=False, return_tensors="pt")["input_ids"][0]
    after = tokenizer(AFTER, add_special_tokens=False, return_tensors="pt")["input_ids"][0]
    longest = max(len(item.positions) for item in packed)
    inputs, positions, visible = [], [], []
    for rows, item in zip(projected, packed, strict=True):
        empty = longest - len(item.positions)
        padding = torch.zeros(empty, projected.shape[-1], dtype=model.dtype)
        inputs.append(torch.cat([embed(before), rows.to(model.dtype), embed(after), embed(item.ids), padding]))
        positions.append(functional.pad(item.positions, (0, empty)))
        mask = torch.eye(longest, dtype=torch.bool)
        mask[: len(item.positions), : len(item.positions)] = item.visible
        visible.append(mask)
    additive = torch.zeros(len(packed), 1, longest, longest, dtype=model.dtype)
    additive.masked_fill_(~torch.stack(visible)[:, None], torch.finfo(model.dtype).min)
    hidden = model.model.language_model(
        inputs_embeds=torch.stack(inputs),
        attention_mask=additive,
        position_ids=torch.stack(positions),
        use_cache=False,
    ).last_hidden_state
    start = len(before) + projected.shape[1] + len(after)
    # With the state before the first question, which predicts its first token.
    return [states[start - 1 : start + len(item.ids)] for states, item in zip(hidden, packed, strict=True)]


def prefix_length(tokenizer: Any, rows: int) -> int:
    """Tokens before a question about a picture with so many rows."""
    return rows + sum(len(tokenizer(part, add_special_tokens=False)["input_ids"]) for part in (BEFORE, AFTER))


def answer_loss(model: Any, tokenizer: Any, projected: Tensor, packed: list[Packed]) -> Tensor:
    """The text model's error, mean over the answers about photographs with these projected rows [B, T, D]."""
    predicted, expected, weights = [], [], []
    for states, item in zip(text_states(model, tokenizer, projected, packed), packed, strict=True):
        where = item.weights.nonzero().flatten()
        predicted.append(states[where])
        expected.append(item.ids[where])
        weights.append(item.weights[where])
    logits = model.lm_head(torch.cat(predicted)).float()
    errors = functional.cross_entropy(logits, torch.cat(expected), reduction="none")
    weight = torch.cat(weights)
    return (errors * weight).sum() / weight.sum()


@torch.inference_mode()
def option_probabilities(
    model: Any, tokenizer: Any, rows: Tensor, questions: Sequence[tuple[str, Sequence[str]]]
) -> Tensor:
    """[B, questions, options]: of each question's options, which are single tokens, given pictures' rows [B, T, D].

    The same as asking each question alone, in one pass over each picture.
    """
    blocks = [(question_block(tokenizer, text, "")[0][:-1], 0) for text, _ in questions]  # without the answer's end
    options = torch.tensor(
        [[tokenizer(word, add_special_tokens=False)["input_ids"][0] for word in words] for _, words in questions]
    )
    packed = [pack(prefix_length(tokenizer, rows.shape[1]), blocks)] * len(rows)
    last = torch.tensor([len(tokens) for tokens, _ in blocks]).cumsum(0)
    states = torch.stack(text_states(model, tokenizer, rows, packed))[:, last]
    logits = model.lm_head(states).float()
    return logits.gather(-1, options.expand(len(rows), -1, -1)).softmax(-1)


def learn_answers(
    model: Any, tokenizer: Any, rows: Tensor, photographs: list[Photograph], options: list[str], settings: Settings
) -> list[float]:
    """The second step, through the frozen text model; returns the losses."""
    order = random.Random(settings.seed)
    projector = model.model.multi_modal_projector.float()
    table = model.get_input_embeddings().weight.detach().float()
    target = root_mean_square(table)
    for weight in model.parameters():
        weight.requires_grad_(False)
    for weight in projector.parameters():
        weight.requires_grad_(True)
    optimiser = torch.optim.AdamW(projector.parameters(), lr=1e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, total_steps=settings.answer_steps)
    usable = [i for i, photograph in enumerate(photographs) if sum(word in photograph.words for word in options) > 0]
    prefix = prefix_length(tokenizer, rows.shape[1])
    losses: list[float] = []
    waiting: list[int] = []
    for _ in range(settings.answer_steps):
        if len(waiting) < settings.answer_batch:
            waiting = order.sample(usable, len(usable))
        batch, waiting = waiting[: settings.answer_batch], waiting[settings.answer_batch :]
        projected = projector(rows[batch].float())
        packed = [
            pack(
                prefix,
                training_blocks(photographs[i], options, tokenizer, settings.questions, order),
            )
            for i in batch
        ]
        loss = answer_loss(model, tokenizer, projected, packed)
        optimiser.zero_grad()
        (loss + PENALTY * rms_penalty(projected, target)).backward()
        nn.utils.clip_grad_norm_(projector.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        losses.append(loss.item())
    return losses


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
    options = [
        word for word in things(photographs) if len(tokenizer(word, add_special_tokens=False)["input_ids"]) == 1
    ]
    answers = learn_answers(model, tokenizer, rows, photographs, options, settings)
    with torch.inference_mode():
        sample = projector(rows[:100].float()).flatten(0, 1)
    return {
        "settings": asdict(settings),
        "photographs": len(photographs),
        "options": options,
        "word_loss": [words[0], sum(words[-20:]) / len(words[-20:])],
        "answer_loss": [sum(answers[:5]) / len(answers[:5]), sum(answers[-10:]) / len(answers[-10:])],
        "effective_rank": effective_rank(sample),
        "rms": root_mean_square(sample),
        "rms_of_words": root_mean_square(table),
    }
