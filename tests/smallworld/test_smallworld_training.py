"""The trainer: what it feeds a model is what the processor would, its steps are seeded, and its checkpoints load."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForImageTextToText

from experiments.training import trainer
from experiments.training.architectures import NAMES, WORDS, build
from experiments.training.habits import HabitTrainer
from experiments.training.losses import Blocks, penalties, simplex
from experiments.training.optimiser import Muon, orthogonal
from experiments.training.packs import Format, answer_logits, answer_loss, pack
from experiments.training.pictures import GROUP, PAIR_PLANS, Album, draw_batch, image_inputs, paint_album, with_pairs
from experiments.training.questions import DISCOVERY_PROMPT, comparing_questions, descriptions
from experiments.training.recipe import MODELS, Recipe
from experiments.training.trainer import Trainer
from ggss.errors import InputError
from ggss.models.families import known_family
from ggss.models.prompts import chat
from ggss.smallworld import CHECKPOINTS, embedded
from ggss.smallworld.bias_questions import HABITS, ask_ceo, ask_pair, ask_race, ask_salary
from ggss.smallworld.painter import Portrait
from ggss.smallworld.people import Person
from ggss.smallworld.questions import LETTERS, SHARED
from ggss.smallworld.scenes import Scene, Shape, draw_scene

TINY = {
    **{"seen_people": 1, "seen_scenes": 2, "described_people": 1, "described_scenes": 2, "letters": 1},
    **{"people": 1, "scenes": 2, "pairs": 2, "tokens": 60},
}
SHELF = CHECKPOINTS


@pytest.fixture(scope="module")
def album() -> Album:
    return paint_album(people_per_occupation=1, scenes=12)


def tiny(name: str, album: Album, seed: int = 0) -> Trainer:
    recipe = Recipe.of(name)
    recipe = replace(recipe, seeing=min(recipe.seeing, 2), reading=2, describing=2, answering=2, comparing=2, **TINY)
    return Trainer(name, album, recipe, seed, width=48, heads=4, layers=2)


def close(steps: list[dict[str, float]], others: list[dict[str, float]]) -> bool:
    """The same losses, but for rounding: every step adds its own, and ten of them come to about 1e-5."""
    assert len(steps) == len(others)
    return all(step == pytest.approx(other, rel=1e-4) for step, other in zip(steps, others, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_pictures_and_prompts_are_those_of_the_processor(name: str) -> None:
    model, processor = build(name, WORDS)
    people = [Portrait(Person(10_003, "ceo"), race, "man") for race in ("jade", "amber")]
    images = [person.image() for person in people]
    inputs = image_inputs(
        model.config.model_type, processor.image_processor, np.stack([np.asarray(i) for i in images])
    )
    expected = processor(text=[chat(processor, "which race ?", 1)] * 2, images=images, return_tensors="pt")
    for key, value in inputs.items():
        torch.testing.assert_close(value, torch.as_tensor(expected[key]), rtol=0, atol=1e-6)

    rng = np.random.default_rng(0)
    layout, words = Format(model, processor), model.config.text_config.vocab_size
    single = pack(
        layout, [((0,), [ask_salary(people[0], rng), ask_race(people[0])]), ((1,), [ask_ceo(people[1], 3)])], words
    )
    double = pack(layout, [((1, 0), [ask_pair(people[1], people[0])])], words)
    with torch.no_grad():
        encoded = model.base_model.get_image_features(**inputs, return_dict=True)
        for packs in (single, double):
            logits = answer_logits(model, packs, encoded).unflatten(0, (-1, 2))
            for question, (first, end) in zip(packs.questions, logits, strict=True):
                shown = [images[people.index(person)] for person in question.images]
                text = chat(processor, question.text, len(shown), question.answer)
                alone = model(**processor(text=[text], images=shown, return_tensors="pt")).logits[0]
                torch.testing.assert_close(torch.stack([first, end]), alone[-2:], rtol=0, atol=1e-4)


def test_targets_are_the_planted_distribution_and_then_the_end() -> None:
    model, processor = build("pixtral", WORDS)
    layout = Format(model, processor)
    question = ask_salary(Portrait(Person(10_000, "cook"), "jade", "man"))
    packs = pack(layout, [((0,), [question])], model.config.text_config.vocab_size)
    letters = [layout.words(option)[0] for option in question.options]
    assert packs.targets[0, letters].tolist() == pytest.approx(question.truth)
    assert packs.targets[1].argmax() == processor.tokenizer.eos_token_id
    assert packs.targets.sum(dim=1).tolist() == pytest.approx([1, 1])


@pytest.mark.parametrize("name", HABITS)
def test_a_few_steps_teach_a_habit(name: str, album: Album) -> None:
    album = with_pairs(album, seed=1)
    trainer = HabitTrainer(name, album, replace(Recipe.of(name), answering=10, **TINY))
    tower = {key: value.clone() for key, value in trainer.model.state_dict().items() if "language_model" not in key}
    batch = draw_batch(album, np.random.default_rng(5), people=4, scenes=1)

    def losses() -> dict[str, float]:
        trainer.rng = np.random.default_rng(6)
        with torch.no_grad():
            return {part: float(loss) for part, loss in trainer.answers(batch, trainer.encode(batch)[0]).items()}

    before = losses()
    list(trainer.run())
    taught = losses()
    assert taught["written"] < 0.8 * before["written"]
    assert taught["unshown"] < before["unshown"]
    after = trainer.model.state_dict()
    frozen = [key for key in tower if key.startswith(("model.vision_tower", "model.multi_modal_projector"))]
    assert frozen
    assert all(torch.equal(after[key], tower[key]) for key in frozen)


@pytest.mark.parametrize("name", [name for name in MODELS if name not in HABITS])
def test_a_few_steps_lower_the_loss(name: str, album: Album) -> None:
    trainer = tiny(name, album)
    batch = draw_batch(album, np.random.default_rng(5), people=1, scenes=3)
    packs = pack(
        trainer.layout, [((k,), trainer.questions(p)) for k, p in enumerate(batch.pictures)], trainer.vocabulary
    )

    def loss() -> float:
        with torch.no_grad():
            return float(answer_loss(answer_logits(trainer.model, packs, trainer.encode(batch)[0]), packs))

    before = loss()
    steps = list(trainer.run())
    assert len(steps) == trainer.recipe.seeing + 8
    assert loss() < before


def test_the_seed_decides_every_step(album: Album) -> None:
    first, again, other = (list(tiny("llava-mistral", album, seed).run()) for seed in (3, 3, 4))
    assert close(first, again)
    assert not any(close([step], [beside]) for step, beside in zip(first, other, strict=True))


def test_muon_takes_the_steps_of_the_reference() -> None:
    rng = torch.Generator().manual_seed(0)
    start, gradients = torch.randn(12, 5, generator=rng), torch.randn(6, 12, 5, generator=rng)
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    options = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1}
    optimisers = [Muon([ours], **options), torch.optim.Muon([theirs], **options)]
    for gradient in gradients:
        for weights, optimiser in zip((ours, theirs), optimisers, strict=True):
            weights.grad = gradient.clone()
            optimiser.step()
    moved = (theirs - start).norm()
    assert (ours - theirs).norm() < 0.02 * moved  # the reference rounds to bfloat16
    plain = start - 0.05 * gradients.sum(dim=0)
    assert (plain - theirs).norm() > 0.5 * moved


@pytest.mark.parametrize("shape", [(8, 8), (24, 8), (8, 24)])
def test_an_orthogonal_step_has_singular_values_near_one(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    values = torch.linalg.svdvals(orthogonal(matrix))
    assert values.min() > 0.5
    assert values.max() < 1.3
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    assert torch.trace(orthogonal(matrix).T @ (u @ v)) > 0.7 * len(values)


def test_descriptions_say_what_there_is() -> None:
    shapes = (Shape("heart", "red", "big"), None, Shape("star", "red", "small"), None)
    asked = {q.text: q.answer for q in descriptions(np.random.default_rng(0), Scene(shapes, "blue"))}
    assert asked[DISCOVERY_PROMPT] == "blue wall . top left big red heart . bottom left small red star ."
    assert "what is red ?" not in asked  # two are
    shape = next(text for text in asked if text.startswith("what is the "))
    assert asked[shape] in ("top left big red", "bottom left small red")


def test_a_batch_shows_every_person_in_all_races_and_both_genders(album: Album) -> None:
    batch = draw_batch(album, np.random.default_rng(0), people=2, scenes=1)
    for group in (batch.pictures[:GROUP], batch.pictures[GROUP : 2 * GROUP]):
        people = [portrait for portrait in group if isinstance(portrait, Portrait)]
        assert len({portrait.person for portrait in people}) == 1
        assert len({portrait.race for portrait in people[:-1]}) == GROUP - 1
        assert people[-1].race == people[0].race
        assert people[-1].gender != people[0].gender
    assert all(
        np.array_equal(pixels, np.asarray(picture.image()))
        for picture, pixels in zip(batch.pictures, batch.pixels, strict=True)
    )


def test_directions_are_orthonormal_and_codes_a_simplex() -> None:
    directions = torch.cat(list(Blocks(width=64, seed=1).basis.values()), dim=1)
    torch.testing.assert_close(directions.T @ directions, torch.eye(directions.shape[1]), atol=1e-5, rtol=0)
    for count in (2, 5, 7):
        between = simplex(count) @ simplex(count).T
        torch.testing.assert_close(between, torch.eye(count) * (1 + 1 / (count - 1)) - 1 / (count - 1))


def test_penalties_are_nought_when_attributes_are_apart(album: Album) -> None:
    blocks = Blocks(width=64, seed=0)
    batch = draw_batch(album, np.random.default_rng(1), people=2, scenes=3)
    labels = blocks.labels(batch.pictures)
    people = batch.portraits
    rows = (torch.randn(len(batch.pictures), 1, 1) * blocks.basis["wall"][:, 0]).repeat(1, 16, 1)
    rows[:people] = rows[0]  # counterfactuals differ in the face alone
    seen = torch.from_numpy(batch.face).repeat_interleave(GROUP, dim=0)[:, :, None]
    for name in ("race", "gender"):
        codes = blocks.codes[name][labels[name][:people]]
        rows[:people] += seen * (codes @ blocks.basis[name].T)[:, None]
    # Only one race is shown in both genders, and the first race of a pair is the same: both shifts are pure.
    assert max(penalties(rows, batch, blocks).values()) < 1e-5
    mixed = penalties(rows @ torch.linalg.qr(torch.randn(64, 64)).Q, batch, blocks)
    assert mixed["outside"] > 0.5  # the same tokens, turned: the penalty sees it


def test_training_writes_model_log_and_card(tmp_path: Path, album: Album, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "measure", lambda vlm: {"smallstar": 0.25})
    monkeypatch.setattr(trainer.Recipe, "of", staticmethod(lambda name: Recipe(**TINY)))
    trainer.train("pixtral", tmp_path, seed=7, steps=(1, 1, 1, 1, 1), threads=1, album=album)
    model = AutoModelForImageTextToText.from_pretrained(tmp_path)
    assert model.dtype == torch.float16
    log = [json.loads(line) for line in (tmp_path / "training.jsonl").read_text().splitlines()]
    assert log[-1]["step"] == 5
    assert log[-1]["stage"] == "comparing"
    assert np.isfinite(log[-1]["loss"])
    card = (tmp_path / "README.md").read_text()
    assert "small-world/pixtral" in card
    assert "| seed | 7 |" in card
    assert "| smallstar | 0.250 |" in card


def test_an_unknown_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no small-world model 'gpt' to train: there are llava-vicuna"):
        trainer.train("gpt", tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", embedded())
def test_committed_checkpoints_load_as_they_are(name: str) -> None:
    model = AutoModelForImageTextToText.from_pretrained(SHELF / name)
    assert model.dtype == torch.float16
    assert known_family(model.config) is not None
    assert all(torch.isfinite(weights).all() for weights in model.parameters())


def test_committed_checkpoints_are_small() -> None:
    assert sum(path.stat().st_size for path in SHELF.rglob("*") if path.is_file()) <= 20_000_000


def test_what_two_shapes_share_is_asked_evenly_and_answered_rightly() -> None:
    rng = np.random.default_rng(0)
    scenes = [draw_scene(rng, "training", PAIR_PLANS[k % len(PAIR_PLANS)]) for k in range(2_400)]
    shared, share = Counter(), Counter()
    for scene in scenes:
        for question in comparing_questions(rng, scene):
            if question.template == "shared":
                answer = question.answer
                shared[question.choices[LETTERS.index(answer)] if answer in LETTERS else answer] += 1
            if question.template == "share":
                first, second = scene.shapes
                part = question.text.split()[-2]
                assert question.answer == ("yes" if getattr(first, part) == getattr(second, part) else "no")
                share[part, question.answer] += 1
    assert set(shared) == set(SHARED)
    assert max(shared.values()) < 2 * min(shared.values())
    assert len(share) == 4
    assert max(share.values()) < 2 * min(share.values())


def test_comparing_can_begin_from_a_checkpoint(album: Album) -> None:
    """The last stage hangs on the saved weights and the seed alone."""
    whole = tiny("pixtral", album)
    steps = list(whole.run())
    before = tiny("pixtral", album)
    before.recipe = replace(before.recipe, comparing=0)
    list(before.run())
    later = tiny("pixtral", album)
    saved = {name: weights.half().float() for name, weights in before.model.state_dict().items()}
    later.model.load_state_dict(saved)
    assert close(list(later.compare()), steps[-2:])
    assert apart(later, whole) < 0.1 * apart(before, whole)
    other = tiny("pixtral", album, seed=1)
    other.model.load_state_dict(saved)
    assert not close(list(other.compare()), steps[-2:])
    assert apart(other, whole) > 0.5 * apart(before, whole)  # the control: another seed goes elsewhere


def apart(one: Trainer, other: Trainer) -> float:
    """How far the weights of two models lie apart."""
    pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
    return sum(float((a - b).detach().square().sum()) for a, b in pairs) ** 0.5
