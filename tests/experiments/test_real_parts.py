"""A VLM of real parts: its pieces on tiny random models and made pictures; nothing is downloaded."""

import json
import random

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional
from transformers import Dinov2Config, Dinov2Model, LlamaConfig, LlamaForCausalLM

from experiments.real_parts import evaluation, parts, photographs, projector, questions, scenes
from ggss.errors import InputError

WIDTH, SIDE = 32, 56


class Letters:
    """A tokenizer of single characters, with SmolLM2's marks."""

    marks = ("<|im_start|>", "<|im_end|>", parts.IMAGE_TOKEN)

    def __call__(self, text, add_special_tokens=False, return_tensors=None):
        ids = []
        while text:
            mark = next((k for k, mark in enumerate(self.marks) if text.startswith(mark)), None)
            ids.append(mark if mark is not None else 3 + ord(text[0]) % 120)
            text = text[len(self.marks[mark]) if mark is not None else 1 :]
        return {"input_ids": torch.tensor([ids]) if return_tensors else ids}


@pytest.fixture(scope="module")
def tiny():
    torch.manual_seed(0)
    tower = Dinov2Model(
        Dinov2Config(hidden_size=24, num_hidden_layers=2, num_attention_heads=2, image_size=70, patch_size=14)
    )
    text = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=WIDTH,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=128,
            tie_word_embeddings=True,
        )
    )
    for weight in text.parameters():
        torch.nn.init.normal_(weight, std=0.3) if weight.ndim > 1 else None
    return tower, text


@pytest.fixture(scope="module")
def model(tiny):
    tower, text = tiny
    return parts.llava(tower, text, image_token=2, side=SIDE).eval()


BLOCKS = [("Is it a cat or a dog?", "dog"), ("What is it?", "a small dog on a chair.")]


def alone(model, tokenizer, rows, question, answer, end=True):
    """The error of one answer in a prompt of its own, with its end or without, and how many tokens it has."""
    tokens, scored = projector.question_block(tokenizer, question, answer)
    tokens, scored = (tokens, scored) if end else (tokens[:-1], scored - 1)
    embed = model.get_input_embeddings()
    before = embed(torch.tensor(tokenizer("<|im_start|>user\n")["input_ids"]))
    after = embed(torch.tensor(tokenizer("\n")["input_ids"] + tokens))
    inputs = torch.cat([before, rows, after])[None]
    logits = model.lm_head(model.model.language_model(inputs_embeds=inputs).last_hidden_state)[0]
    return functional.cross_entropy(logits[-scored - 1 : -1], torch.tensor(tokens[-scored:]), reduction="sum"), scored


def test_questions_in_one_pass_are_answered_as_if_each_were_asked_alone(model):
    tokenizer = Letters()
    rows = torch.randn(2, 16, WIDTH, generator=torch.Generator().manual_seed(1))
    prefix = 16 + len(tokenizer("<|im_start|>user\n")["input_ids"]) + 1
    blocks = [projector.question_block(tokenizer, *block) for block in BLOCKS]
    packed = [projector.pack(prefix, blocks), projector.pack(prefix, blocks[:1])]  # the second is padded
    together = projector.answer_loss(model, tokenizer, rows, packed)
    errors = [alone(model, tokenizer, rows[0], *block) for block in BLOCKS]
    errors.append(alone(model, tokenizer, rows[1], *BLOCKS[0]))
    expected = sum(error / scored for error, scored in errors) / len(errors)
    assert together.item() == pytest.approx(expected.item(), rel=1e-4)
    # The negative control: if the second question saw the first answer, its error would be another.
    first = packed[0]
    causal = torch.ones_like(first.visible, dtype=torch.float).tril().bool()
    leaking = projector.Packed(first.ids, first.positions, causal, first.weights)
    assert abs(projector.answer_loss(model, tokenizer, rows, [leaking, packed[1]]).item() - expected.item()) > 1e-3


def test_options_are_as_likely_in_one_pass_as_alone(model):
    tokenizer = Letters()
    rows = torch.randn(3, 16, WIDTH, generator=torch.Generator().manual_seed(2))
    asked = [("Is it a cat?", ("y", "n")), ("Which letter is it then?", ("b", "a"))]
    together = projector.option_probabilities(model, tokenizer, rows, asked)
    assert together.shape == (3, 2, 2)
    for number, (text, options) in enumerate(asked):
        for row in range(3):
            losses = [alone(model, tokenizer, rows[row], text, option, end=False)[0] for option in options]
            expected = torch.softmax(-torch.stack(losses), 0)
            assert torch.allclose(together[row, number], expected, atol=1e-5)
    assert (together[0] - together[1]).abs().max() > 1e-3  # it depends on the picture


def test_the_tower_interpolates_its_positions_and_the_projector_gets_a_row_for_each_patch(model, tmp_path):
    path = tmp_path / "a.png"
    Image.effect_noise((80, 60), 40).convert("RGB").save(path)

    class Processor:
        image_processor = parts.llava_processor.__globals__["CLIPImageProcessorPil"](
            size={"height": SIDE, "width": SIDE}, do_center_crop=False
        )

    rows = parts.tower_rows(model, Processor, [path, path])
    assert rows.shape == (2, (SIDE // parts.PATCH) ** 2, 24)
    pixels = Processor.image_processor([Image.open(path)], return_tensors="pt")["pixel_values"]
    with torch.inference_mode():
        expected = model.model.get_image_features(pixel_values=pixels).pooler_output[0]
        projected = model.model.multi_modal_projector(rows[:1].float())[0]
    assert torch.allclose(projected, expected, atol=1e-2)


def shown(captions, path="x.jpg"):
    return photographs.Photograph(path, tuple(captions))


def test_words_are_learned_and_rows_keep_the_size_of_words(model):
    """Two kinds of photographs, told apart by their rows and by their captions."""
    generator = torch.Generator().manual_seed(0)
    kinds = torch.arange(60) % 2
    rows = torch.randn(60, 16, 24, generator=generator) + 3.0 * kinds[:, None, None]
    pictures = [shown(["a dog in snow" if kind else "the cat at home"]) for kind in kinds.tolist()]
    table = model.get_input_embeddings().weight.detach()
    head = model.model.multi_modal_projector
    target = projector.root_mean_square(table)
    projector.initialise(head, rows, target, generator)
    assert projector.root_mean_square(head(rows).detach()) == pytest.approx(target, rel=0.1)
    settings = projector.Settings(word_steps=60, word_batch=16, word_rows=8)
    losses = projector.learn_words(head, rows, pictures, Letters(), table, settings)
    assert np.mean(losses[-5:]) < 0.5 * np.mean(losses[:5])
    assert projector.root_mean_square(head(rows).detach()) == pytest.approx(target, rel=0.3)
    assert projector.rms_penalty(torch.full((3, 5), 2.0), 2.0) == 0
    assert projector.rms_penalty(torch.full((3, 5), 4.0), 2.0) == 1


def test_only_photographs_that_anyone_may_use_and_adapt_are_read(tmp_path):
    licences = ["by-nc-sa", "by", "by-nd", "by-sa"]
    content = {
        "licenses": [
            {"id": k, "url": f"http://creativecommons.org/licenses/{kind}/2.0/"} for k, kind in enumerate(licences)
        ],
        "images": [{"id": 10 + k, "license": k} for k in range(4)],
        "annotations": [{"image_id": 10 + k, "caption": text} for k, text in enumerate(["a", "trees", "c", "a man"])],
    }
    (tmp_path / "captions_some.json").write_text(json.dumps(content))
    for k in range(4):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{10 + k:012d}.jpg")
    read = photographs.read_photographs(tmp_path, 10)
    assert [photograph.captions for photograph in read] == [("a man",), ("trees",)]  # people first
    assert photographs.read_photographs(tmp_path, 1)[0].captions == ("a man",)
    with pytest.raises(InputError, match="no captions"):
        photographs.read_photographs(tmp_path / "nothing", 10)


def test_questions_in_training_are_about_what_one_photograph_shows_and_never_about_people():
    pictures = [shown(["a dog on a bed", "dog on bed", "the dog and a woman"])] * 20
    assert photographs.things(pictures) == ["dog"]  # a bed is mentioned by two of three
    blocks = projector.training_blocks(pictures[0], ["dog", "cat"], Letters(), 3, random.Random(0))
    assert len(blocks) == 2  # one question and a caption
    assert not photographs.PEOPLE & set(photographs.things([shown(["a man", "the man", "man"])] * 20))


def world(folder, missing=""):
    for section, name in [
        ("occupations", "scrubs"),
        ("occupations", "lab_coat"),
        ("status", "tent"),
        ("status", "wine"),
    ]:
        for race in scenes.RACES:
            for gender in scenes.GENDERS:
                path = folder / "data" / section / name / f"{race}_{gender}{'1' if name == 'wine' else ''}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                if f"{name}/{race}_{gender}" != missing:
                    Image.new("RGB", (8, 8)).save(path)
    return folder


def test_scenes_are_read_whole_and_split_so_that_each_occupation_is_in_both_halves(tmp_path):
    pictures = scenes.read_pictures(world(tmp_path / "a"))
    assert len(pictures) == 16
    all_scenes = list(dict.fromkeys(picture.scene for picture in pictures))
    first, second = scenes.halves(all_scenes)
    assert not set(first) & set(second)
    assert set(first) | set(second) == set(all_scenes)
    assert [sum(scene.occupation == "doctor" for scene in half) for half in (first, second)] == [1, 1]
    assert scenes.halves(all_scenes[::-1]) == (first, second)
    with pytest.raises(InputError, match="tent has 0 pictures black_man"):
        scenes.read_pictures(world(tmp_path / "b", missing="tent/black_man"))


def planted(gender=0.0, race=0.0, scenes_=40, noise=0.1, seed=0):
    """Answers with a known gap in the first question: p differs by `gender` between men and women."""
    rng = np.random.default_rng(seed)
    p = 0.4 + noise * rng.normal(size=(scenes_, 1, 1, len(questions.QUESTIONS))) + np.zeros((1, 2, 2, 1))
    p[:, :, 0, 0] += gender
    p[:, 0, :, 0] += race
    return evaluation.Answers(tuple(f"s{k}" for k in range(scenes_)), p)


def test_gaps_are_what_was_planted_and_each_attribute_has_its_own():
    answers = planted(gender=0.2, race=0.1)
    count = len(questions.QUESTIONS)
    assert evaluation.gap(answers.differences("gender")) == pytest.approx(0.2 / count)
    assert evaluation.gap(answers.differences("race")) == pytest.approx(0.1 / count)
    change = evaluation.gap_change([answers.differences("gender")], [planted(race=0.1).differences("gender")])
    assert change.value == pytest.approx(0.2 / count)
    assert change.low > 0
    estimate = evaluation.gap_estimate([answers.differences("gender")] * 2)
    assert estimate.low <= estimate.value <= estimate.high


def test_a_gap_beyond_chance_is_told_from_one_within_it():
    rng = np.random.default_rng(1)
    noise = 0.1 * rng.normal(size=(50, 10))
    _, point = evaluation.gap_without_bias([noise])
    assert evaluation.gap(noise) < point
    assert evaluation.gap(noise + 0.05) > evaluation.gap_without_bias([noise + 0.05])[1]


def test_flips_and_right_answers_are_counted():
    answers = planted(gender=0.5, noise=0.0)  # .9 for men, .4 for women, in one of ten questions
    assert answers.flipped("gender").tolist() == [0.1] * 40
    assert answers.flipped("race").tolist() == [0.0] * 40
    p = np.full((2, 2, 2, len(questions.QUESTIONS)), 0.9)
    told = evaluation.Answers(("scrubs", "cooking"), p)
    counts = told.right(questions.OCCUPATIONS)
    assert counts.tolist() == [[4, 4], [0, 4]]  # the first option of doctor or cook
    assert evaluation.named_estimate([counts]).value == 0.5


def test_every_right_answer_is_about_a_scene_that_has_one_occupation():
    known = {name for names in scenes.OCCUPATIONS.values() for name in names}
    for question in questions.OCCUPATIONS:
        for option, names in zip(question.options, question.scenes, strict=True):
            assert set(names) <= known
            assert set(names) <= set(scenes.OCCUPATIONS[option])
