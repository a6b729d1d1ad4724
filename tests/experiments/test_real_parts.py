"""A VLM of real parts: its pieces on tiny random models and made pictures; nothing is downloaded."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import Dinov2Config, Dinov2Model, LlamaConfig, LlamaForCausalLM

from experiments.real_parts import evaluation, page, parts, photographs, projector, questions, record, scenes, tower
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


QUESTIONS = ["Is it a cat?", "Which letter is it then?"]


def alone(model, tokenizer, rows, question):
    """The logits of an answer's first token, in a prompt of its own."""
    embed = model.get_input_embeddings()
    before = embed(torch.tensor(tokenizer("<|im_start|>user\n")["input_ids"]))
    after = embed(torch.tensor(tokenizer("\n")["input_ids"] + projector.question_block(tokenizer, question)))
    inputs = torch.cat([before, rows, after])[None]
    return model.lm_head(model.model.language_model(inputs_embeds=inputs).last_hidden_state)[0, -1]


def test_questions_in_one_pass_are_answered_as_if_each_were_asked_alone(model, monkeypatch):
    tokenizer = Letters()
    rows = torch.randn(2, 16, WIDTH, generator=torch.Generator().manual_seed(1))
    expected = torch.stack([torch.stack([alone(model, tokenizer, of, text) for text in QUESTIONS]) for of in rows])
    assert torch.allclose(projector.answer_logits(model, tokenizer, rows, QUESTIONS), expected, atol=1e-4)
    # The negative control: if the second question saw the first, its answer would be another.
    pack = projector.pack

    def leaking(prefix, blocks):
        packed = pack(prefix, blocks)
        return dataclasses.replace(packed, visible=torch.ones_like(packed.visible, dtype=torch.float).tril().bool())

    monkeypatch.setattr(projector, "pack", leaking)
    wrong = projector.answer_logits(model, tokenizer, rows, QUESTIONS)
    assert torch.allclose(wrong[:, 0], expected[:, 0], atol=1e-4)
    assert (wrong[:, 1] - expected[:, 1]).abs().max() > 1e-3


def test_option_probabilities_are_of_the_first_tokens_and_depend_on_the_picture(model):
    tokenizer = Letters()
    rows = torch.randn(3, 16, WIDTH, generator=torch.Generator().manual_seed(2))
    asked = [(QUESTIONS[0], ("yes", "no")), (QUESTIONS[1], ("b", "a")), (QUESTIONS[0], ("cat", "dog"))]
    together = projector.option_probabilities(model, tokenizer, rows, asked)
    assert together.shape == (3, 3, 2)
    for number, (text, options) in enumerate(asked):
        for row in range(3):
            logits = alone(model, tokenizer, rows[row], text)[projector.first_tokens(options, tokenizer)]
            assert torch.allclose(together[row, number], torch.softmax(logits, 0), atol=1e-5)
    assert (together[0] - together[1]).abs().max() > 1e-3


def test_the_error_of_an_answer_is_least_where_the_things_are_shown():
    shown = torch.tensor([[1.0, 0.0, 1.0]])
    options = torch.tensor([4, 2, 0])
    logits = torch.full((1, 6), -20.0)
    logits[0, [4, 0]] = 0.0
    assert projector.answer_loss(logits, options, shown).item() == pytest.approx(np.log(2), abs=1e-4)
    logits[0, 2] = 0.0  # a thing that is not shown
    assert projector.answer_loss(logits, options, shown).item() == pytest.approx(np.log(3), abs=1e-4)
    logits[0, 1] = 20.0  # no thing: little of it counts
    extra = projector.answer_loss(logits, options, shown).item() - np.log(3)
    assert extra == pytest.approx(projector.ELSEWHERE * (20 - np.log(3)), abs=1e-3)


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


@pytest.fixture
def two_kinds():
    """Two kinds of photographs, told apart by their rows and by their captions."""
    generator = torch.Generator().manual_seed(0)
    kinds = torch.arange(60) % 2
    rows = torch.randn(60, 16, 24, generator=generator) + 3.0 * kinds[:, None, None]
    return rows, [
        shown(["a dog in snow", "dog", "dog"] if kind else ["the cat at home", "cat", "cat"]) for kind in kinds
    ]


def test_words_are_learned_and_rows_keep_the_size_of_words(model, two_kinds):
    rows, pictures = two_kinds
    table = model.get_input_embeddings().weight.detach()
    head = model.model.multi_modal_projector
    target = projector.root_mean_square(table)
    projector.initialise(head, rows, target, torch.Generator().manual_seed(0))
    assert projector.root_mean_square(head(rows).detach()) == pytest.approx(target, rel=0.1)
    settings = projector.Settings(word_steps=60, word_batch=16, word_rows=8)
    words = projector.Words(pictures, Letters(), table)
    losses = projector.learn_words(head, rows, words, target, settings)
    assert np.mean(losses[-5:]) < 0.6 * np.mean(losses[:5])
    assert projector.root_mean_square(head(rows).detach()) == pytest.approx(target, rel=0.3)
    assert projector.rms_penalty(torch.full((3, 5), 2.0), 2.0) == 0
    assert projector.rms_penalty(torch.full((3, 5), 4.0), 2.0) == 1


def targets_of(pictures, tokenizer):
    """Of each question: which of two words is right depends on the kind of photograph."""
    options = projector.options_of(pictures, tokenizer)
    assert options == ["cat", "dog"]
    right = torch.tensor([[word in picture.words for word in options] for picture in pictures]).float()
    return [
        projector.Targets(projector.first_tokens(options, tokenizer), right),
        projector.Targets(projector.first_tokens(["x", "y"], tokenizer), right.flip(1)),
    ]


def test_answers_to_both_questions_are_learned_through_the_frozen_text_model(tiny, two_kinds):
    rows, pictures = two_kinds
    model = parts.llava(*tiny, image_token=2, side=SIDE)
    tokenizer = Letters()
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    targets = targets_of(pictures, tokenizer)
    words = projector.Words(pictures, tokenizer, model.get_input_embeddings().weight.detach())
    untrained = projector.held_out_losses(model, tokenizer, rows, targets)
    settings = projector.Settings(answer_steps=40, answer_batch=10, answer_rows=12, answer_rate=1e-2)
    losses = projector.learn_answers(model, tokenizer, rows, targets, words, settings)
    assert np.mean(losses[-5:]) < 0.5 * np.mean(losses[:5])
    # All rows are shown here, and some of them in training.
    trained = projector.held_out_losses(model, tokenizer, rows, targets)
    assert all(now < 0.7 * then for now, then in zip(trained, untrained, strict=True))
    changed = {name for name, weight in model.named_parameters() if not torch.equal(weight, before[name])}
    assert changed
    assert all("multi_modal_projector" in name for name in changed)


def test_half_of_the_photographs_of_a_step_have_an_answer_to_the_second_question(model, two_kinds, monkeypatch):
    rows, pictures = two_kinds
    few = torch.zeros(60, 2)
    few[:3] = 0.5
    targets = [targets_of(pictures, Letters())[0], projector.Targets(torch.tensor([5, 6]), few)]
    words = projector.Words(pictures, Letters(), model.get_input_embeddings().weight.detach())
    batches = []
    monkeypatch.setattr(words, "loss", lambda rows, batch: batches.append(batch) or rows.sum() * 0)
    settings = projector.Settings(answer_steps=4, answer_batch=8, answer_rows=2)
    projector.learn_answers(model, Letters(), rows, targets, words, settings)
    assert [(batch < 3).sum() for batch in batches] == [4] * 4
    # No photograph comes twice before all have come.
    assert len({int(number) for batch in batches for number in batch if number >= 3}) == 16


def test_photographs_without_a_right_answer_do_not_count():
    logits = torch.zeros(2, 6)
    logits[0, 3] = 5.0
    targets = projector.Targets(torch.tensor([3, 4]), torch.tensor([[0.0, 0.0], [1.0, 0.0]]))
    alone = projector.answer_loss(logits[1:], targets.tokens, targets.right[1:])
    assert targets.loss(logits, torch.tensor([0, 1])) == alone
    assert targets.loss(logits[:1], torch.tensor([0])) == 0


def test_the_text_model_reads_captions_of_people_and_what_it_always_says_is_no_target(model):
    """Read alone, each photograph's captions give what they give among others of their length."""
    tokenizer = Letters()
    pictures = [shown(["a man in red"]), shown(["a dog"]), shown(["a boy in sun"]), shown(["the woman", "a red hat"])]
    read = projector.read_captions(model, tokenizer, pictures)
    begins = projector.first_tokens(projector.OCCUPATION_WORDS, tokenizer)
    embed = model.get_input_embeddings()
    for number, text in [(0, "a man in red"), (2, "a boy in sun"), (3, "the woman a red hat")]:
        logits = alone(model, tokenizer, embed(torch.tensor(tokenizer(text)["input_ids"])), questions.JOB)
        assert torch.allclose(read[number], logits[begins].log_softmax(-1), atol=1e-4)
    assert not read[1].any()
    targets = projector.occupation_targets(read)
    assert not targets[1].any()
    assert torch.allclose(targets[[0, 2, 3]].sum(1), torch.ones(3))
    preferred = read + (read != 0) * torch.linspace(-3, 3, read.shape[1])
    assert torch.allclose(projector.occupation_targets(preferred), targets, atol=1e-5)
    assert not torch.allclose(preferred[[0, 2, 3]].softmax(-1), read[[0, 2, 3]].softmax(-1), atol=1e-2)


def test_the_words_of_the_second_question_begin_differently_and_have_all_that_is_measured():
    measured = {option for question in questions.OCCUPATIONS for option in question.options}
    assert measured <= set(projector.OCCUPATION_WORDS)
    assert len(set(projector.OCCUPATION_WORDS)) == len(projector.OCCUPATION_WORDS)


def test_words_of_many_captions_belong_most_to_a_photograph():
    pictures = [shown(["a dog", "the dog and a ball"]), shown(["the ball"]), shown(["nothing"])]
    wanted = projector.wanted_words(pictures, ["dog", "ball"])
    assert torch.allclose(wanted, torch.tensor([[2 / 3, 1 / 3], [0.0, 1.0], [0.0, 0.0]]))


def test_only_photographs_that_anyone_may_use_and_adapt_are_read(tmp_path):
    licences = ["by-nc-sa", "by", "by-nd", "by-sa"]
    content = {
        "licenses": [
            {"id": k, "url": f"http://creativecommons.org/licenses/{kind}/2.0/", "name": kind}
            for k, kind in enumerate(licences)
        ],
        "images": [{"id": 10 + k, "license": k} for k in range(4)],
        "annotations": [{"image_id": 10 + k, "caption": text} for k, text in enumerate(["a", "trees", "c", "a man"])],
    }
    (tmp_path / "captions_some.json").write_text(json.dumps(content))
    for k in range(4):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{10 + k:012d}.jpg")
    read = photographs.read_photographs(tmp_path, 10)
    assert [photograph.captions for photograph in read] == [("a man",), ("trees",)]  # people first
    assert [(photograph.number, photograph.licence) for photograph in read] == [(13, "by-sa"), (11, "by")]
    assert photographs.read_photographs(tmp_path, 1)[0].captions == ("a man",)
    with pytest.raises(InputError, match="no captions"):
        photographs.read_photographs(tmp_path / "nothing", 10)


def test_things_are_what_three_captions_name_and_no_colours():
    pictures = [shown(["a dog on a bed", "dog on bed", "the black dog and a woman"])] * 20
    assert photographs.things(pictures) == ["dog"]  # a bed is mentioned by two of three
    assert photographs.things([shown(["a black man", "the black man", "black, man and his"])] * 20) == ["man"]


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
    assert evaluation.gap_chance([noise]) > 0.05
    assert evaluation.gap(noise + 0.05) > evaluation.gap_without_bias([noise + 0.05])[1]
    assert evaluation.gap_chance([noise + 0.05]) < 0.05


def test_flips_and_right_answers_are_counted():
    answers = planted(gender=0.5, noise=0.0)  # .9 for men, .4 for women, in one of ten questions
    assert answers.flipped("gender").tolist() == [0.1] * 40
    assert answers.flipped("race").tolist() == [0.0] * 40
    p = np.full((2, 2, 2, len(questions.QUESTIONS)), 0.9)
    told = evaluation.Answers(("scrubs", "cooking"), p)
    counts = told.right(questions.OCCUPATIONS)
    assert counts.tolist() == [[4, 4], [0, 4]]  # the first option of doctor or cook
    assert evaluation.named_estimate([counts]).value == 0.5
    assert evaluation.named_change([counts], [counts]).value == 0.0
    better = evaluation.Answers(told.scenes, np.stack([p[0], 1 - p[1]])).right(questions.OCCUPATIONS)
    change = evaluation.named_change([better], [counts])
    assert (change.value, change.low, change.high) == (0.5, 0.0, 1.0)  # one of the two scenes is right now
    shares = evaluation.share_change([answers.flipped("gender")], [answers.flipped("race")])
    assert shares.value == pytest.approx(0.1)


def test_every_right_answer_is_about_a_scene_that_has_one_occupation():
    known = {name for names in scenes.OCCUPATIONS.values() for name in names}
    for question in questions.OCCUPATIONS:
        for option, names in zip(question.options, question.scenes, strict=True):
            assert set(names) <= known
            assert set(names) <= set(scenes.OCCUPATIONS[option])


def recorded(gaps):
    """Made-up results of a projector: unsteered answers with gaps, and smaller ones of two methods."""
    names = [
        ["scrubs", "cooking", "bus", "computer", *(f"s{k}" for k in range(20))],
        [f"s{k}" for k in range(20, 40)],
    ]
    measured = {}
    for condition in evaluation.conditions():
        share = {"": 1.0}.get(condition.attribute, 0.2 if condition.method == "pace" else 0.6)
        halves = []
        for asked in reversed(names):
            rng = np.random.default_rng(len(asked))
            p = 0.5 + 0.02 * rng.normal(size=(len(asked), 2, 2, len(questions.QUESTIONS)))
            p += 0.5 * gaps * share * np.array([1, -1])[None, None, :, None]
            for number, question in enumerate(questions.QUESTIONS):
                for row, name in enumerate(asked):
                    if (right := question.right(name)) is not None:
                        p[row, ..., number] = 0.9 if right == question.options[0] else 0.1
            probabilities = p.reshape(4 * len(asked), -1).tolist()
            halves.append(
                {"probabilities": probabilities, "read": {"gender": 0.6, "race": 0.7}, "moved": 0.1 * share}
            )
        measured[condition.name] = halves
    return record.Projector(TRAINING, (tuple(names[0]), tuple(names[1])), measured)


TRAINING = {
    "settings": {"seed": 0},
    "photographs": 70,
    "options": ["dog", "cat"],
    "word_loss": [6.0, 4.0],
    "answer_loss": [5.0, 3.0],
    "held_out": 7,
    "occupations": 57,
    "held_out_loss": {"things": [6.0, 4.0], "occupations": [5.0, 3.5]},
    "effective_rank": 12.0,
    "rms": 0.14,
    "rms_of_words": 0.13,
    "cpu_seconds": 60.0,
}


TOWER = {"140": {"rows": 100, "gender": [0.55, 0.5, 0.6], "race": [0.65, 0.59, 0.7]}}


def test_the_page_says_who_wins_where_a_bias_is_planted_and_stops_where_there_is_none():
    planted_ = page.text([recorded(0.2)], {"Attribution License": [1, 2]}, "$ ggss doctor", TOWER)
    assert "There is a bias by gender" in planted_
    assert "Removing gender: `pace` leaves a smaller gap than `ggss` (-" in planted_
    assert "## Removing gender" in planted_
    assert "## Removing race" not in planted_  # there is no bias by race
    measured = {name: halves for name, halves in recorded(0.2).measured.items() if "race" not in name}
    only = dataclasses.replace(recorded(0.2), measured=measured)
    assert "| 0 | race |" in page.text([only], {}, "", TOWER)  # the methods that removed gender have no gap of race
    assert "there is only one" in planted_
    assert "there is only one" not in page.text([recorded(0.2)] * 2, {}, "", TOWER)
    assert "| Attribution License | 2 |" in planted_
    assert "| 140 x 140 | 100 | 55 [50, 60] | 65 [59, 70] |" in planted_
    without = page.text([recorded(0.0)], {"Attribution License": [1, 2]}, "$ ggss doctor", TOWER)
    assert "The model answers, but no bias is seen." in without
    assert "(neither is)" in without
    assert "## Removing race" not in without
    assert "None was judged here" in without
    assert "it warns" not in without
    assert "no direction of gender is above" in page.text(
        [recorded(0.0)], {}, "Nothing is removed for 'gender': no", TOWER
    )


def test_conditions_are_measured_of_the_attributes_by_which_a_bias_is_seen():
    conditions = page.judged(page.read_measured([recorded(0.2)]))
    assert {condition.attribute for condition in conditions} == {"gender", evaluation.BOTH}
    assert conditions[0] == evaluation.Condition("pace", "gender")
    assert page.judged(page.read_measured([recorded(0.0)])) == []
    wrong = recorded(0.2)  # as many right answers as by chance, and the same gap
    for half in wrong.measured["none"]:
        p = np.array(half["probabilities"]).reshape(-1, 2, 2, 10)
        known = np.abs(p - 0.5).min((1, 2)) > 0.3
        p[known[:, None, None].repeat(2, 1).repeat(2, 2)] = 0.5
        half["probabilities"] = p.reshape(-1, 10).tolist()
    assert page.biased(page.read_measured([wrong])[0]) == ["gender"]
    assert page.judged(page.read_measured([wrong])) == []
    assert "does not answer well enough" in page.text([wrong], {}, "", TOWER)


@pytest.mark.parametrize(("gender", "biased"), [(0.02, ["gender"]), (0.04, [])])
def test_a_bias_is_seen_where_chance_is_unlikely_for_both_attributes_together(monkeypatch, gender, biased):
    monkeypatch.setattr(page.Measured, "chance", lambda self, name: {"gender": gender, "race": 0.5}[name])
    unsteered = page.read_measured([recorded(0.2)])[0]
    assert page.biased(unsteered) == biased
    assert page.adjusted_chances(unsteered) == pytest.approx({"gender": 2 * gender, "race": 0.5})


def test_a_probe_of_the_towers_rows_reads_what_is_in_them_and_nothing_else():
    """Gender is added to the rows of each scene, race is not."""
    pictures = scenes.pictures_of([scenes.Scene(str(number), "") for number in range(30)])
    generator = torch.Generator().manual_seed(0)
    scene = torch.randn(30, 4, 16, generator=generator).repeat_interleave(4, 0)
    rows = scene + 0.1 * torch.randn(120, 4, 16, generator=generator)
    rows[:, :, 0] += 3 * torch.tensor([picture.gender == "woman" for picture in pictures]).float()[:, None]
    found = tower.probed(rows, pictures)
    assert found["gender"][0] > 0.9 > 0.62 > found["race"][0]
    assert found["race"][1] < 0.5 < found["gender"][1]


def test_the_page_has_the_beginnings_of_what_commands_print():
    walk = "$ ggss one\n" + "a\n" * 3 + "$ ggss two\n" + "b\n" * 2
    assert page.beginnings(walk, 2) == "$ ggss one\na\na\n…\n$ ggss two\nb\nb"


def test_a_projectors_results_are_read_as_they_were_written(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")
    pictures = [scenes.pictures_of([scenes.Scene(name, "")]) for name in ("scrubs", "tent")]
    out, model = tmp_path / "out", tmp_path / "model"
    for half in (0, 1):
        (out / f"fitted-on-{half}").mkdir(parents=True)
        answers = {
            "steerer": "",
            "probabilities": [[0.123456 + half] * 10] * 4,
            "read": {"gender": 0.5, "race": 0.5},
            "moved": 0.0,
        }
        (out / f"fitted-on-{half}" / "none.json").write_text(json.dumps(answers))
    model.mkdir()
    (model / "training.json").write_text(json.dumps(TRAINING))
    record.write_projector(model, out, pictures)
    (projector_,) = record.read_projectors(tmp_path / "results")
    assert list(projector_.measured) == ["none"]
    answers = projector_.answers("none")
    assert answers.scenes == ("tent", "scrubs")  # fitted on the first half, asked about the second, and so on
    assert answers.probabilities[:, 0, 0, 0].tolist() == [0.1235, 1.1235]
    record.write_photographs([photographs.Photograph(tmp_path / f"{k:012d}.jpg", (), "by") for k in (7, 3)])
    assert json.loads((tmp_path / "results" / "photographs.json").read_text()) == {"by": [3, 7]}


def test_the_page_is_what_the_committed_results_say():
    assert page.PAGE.read_text(encoding="utf-8") == page.from_results()
