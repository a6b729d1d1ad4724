"""Answers in the making: text and stop sequences, sampling, batches of mixed strengths against each request alone."""

import asyncio
import io
import itertools
import json
from types import SimpleNamespace

import pytest
import torch

from conftest import noise
from experiments.training.architectures import build
from ggss.errors import InputError
from ggss.methods.spherical import Geodesic
from ggss.models import Vlm
from ggss.models.features import steered_with_gates
from ggss.serve import batching
from ggss.serve.answers import AnswerPiece, AnswerStart, AnswerText, ChatAnswer
from ggss.serve.batching import BatchSteering, EncodedPicture
from ggss.serve.engine import Load, WorkerSetup
from ggss.serve.schema import ChatJob
from ggss.serve.worker import AnswerRow, RowSampler, ServedModel, load_model
from ggss.steering import SteeringRecord
from ggss.steering.attach import NeverFired
from ggss.steering.steerer import Steerer
from test_attachment import steerer_for

TIE = 1e-3  # log-probabilities nearer than this may change places in another batch


LETTERS = "abcdefghijklmnopqrstuvwxyz"


def spelled(tokens: list[int]) -> str:
    return "".join(LETTERS[token] for token in tokens)


def typed(text: str, *stop: str) -> tuple[list[str], bool]:
    """What is given away letter by letter, and whether a stop sequence ended it."""
    answer = AnswerText(spelled, stop)
    given = []
    for letter in text:
        given.append(answer.add(LETTERS.index(letter)))
        if answer.stopped:
            return given, True
    return [*given, answer.rest()], False


def test_text_is_held_back_while_it_may_become_a_stop_sequence():
    assert typed("hello", "lo") == (["h", "e", "", "l", ""], True)
    assert typed("helhel", "help") == (["", "", "", "hel", "", "", "hel"], False)
    assert typed("abab", "ba", "abc") == (["", "", "a"], True)
    assert typed("abc") == (["a", "b", "c", ""], False)


@pytest.mark.parametrize("stop", [("ab",), ("aab", "ba"), ("aaa",), ("b", "abab"), ()])
def test_text_is_cut_at_the_first_stop_sequence(stop):
    """Against a search in the whole text, for every text of up to seven letters of two."""
    for length in range(8):
        for letters in itertools.product("ab", repeat=length):
            text = "".join(letters)
            ends = [text.find(one) + len(one) for one in stop if one in text]
            seen = text[: min(ends)] if ends else text  # what was there when the first sequence was complete
            places = [seen.find(one) for one in stop if one in seen]
            given, stopped = typed(text, *stop)
            assert "".join(given) == (seen[: min(places)] if places else text)
            assert stopped == bool(ends)


def test_half_a_character_is_not_given_away():
    pieces = {0: "\N{REPLACEMENT CHARACTER}", 1: "é"}
    answer = AnswerText(lambda tokens: "x" + pieces[len(tokens) - 1])
    assert [answer.add(0), answer.add(1)] == ["x", "é"]


# sampling


def sampler(rows: list[AnswerRow], polled: list[int] | None = None) -> RowSampler:
    return RowSampler(
        rows, {0}, lambda: (polled if polled is not None else []).append(1), lambda token: LETTERS[token]
    )


def row(pieces: list[AnswerPiece], most: int = 5, gone: bool = False, **how) -> AnswerRow:
    return AnswerRow(0, most, AnswerText(spelled, how.pop("stop", ())), pieces.append, lambda: gone, **how)


def drawn(seed: int, count: int = 400, **how) -> list[int]:
    one = row([], most=count + 1, temperature=1.0, seed=seed, **how)
    logits = torch.tensor([0.0, 1.0, 2.0, 3.0])
    return [one.sampled(logits) for _ in range(count)]


def test_a_seed_decides_and_shares_are_those_of_the_softmax():
    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    seen = torch.bincount(torch.tensor(drawn(3, 4000)), minlength=4) / 4000
    assert torch.allclose(seen.double(), torch.tensor([0.0, 1, 2, 3]).double().softmax(0), atol=0.03)


def test_top_p_keeps_the_smallest_set_that_reaches_it():
    shares = torch.tensor([0.0, 1.0, 2.0, 3.0]).softmax(0)  # 0.03, 0.09, 0.24, 0.64
    assert set(drawn(0, top_p=float(shares[3]) - 0.01)) == {3}
    assert set(drawn(0, top_p=float(shares[3]) + 0.01)) == {2, 3}
    assert set(drawn(0, top_p=1.0)) == {0, 1, 2, 3}
    assert set(drawn(0, top_p=1e-9)) == {3}


@pytest.mark.parametrize("how", [{"temperature": 5e-324}, {"temperature": 1e-300, "top_p": 5e-324}, {"top_p": 0.0}])
def test_the_lowest_temperature_and_share_give_the_likeliest_token(how):
    logits = torch.tensor([1.0, 30.0, -torch.inf, 29.9])
    one = row([], **{"temperature": 1.0, "seed": 0, **how})
    assert [one.sampled(logits) for _ in range(50)] == [1] * 50


def test_every_row_ends_for_itself():
    ended, long, cut, left = [], [], [], []
    rows = [row(ended), row(long, most=2), row(cut, stop=("cb",)), row(left, gone=True)]
    sample = sampler(rows)
    steps = [[1, 1, 2, 1], [0, 1, 1, 1], [1, 1, 1, 1]]
    for tokens in steps:
        scores = torch.nn.functional.one_hot(torch.tensor(tokens), 4).float() * 9
        assert torch.equal(sample(torch.zeros(4, 1), scores), scores), "a greedy row's scores are left alone"
    assert [(one.text, one.finish) for one in ended] == [("b", None), ("", "stop")]
    assert [(one.text, one.finish) for one in long] == [("b", None), ("b", "length")]
    assert [(one.text, one.finish) for one in cut] == [("", None), ("", "stop")]
    assert left == []
    assert [one.finished for one in rows] == [True] * 4


def test_a_sampled_row_leaves_the_others_alone():
    first, second = [], []
    rows = [row(first, temperature=1.0, seed=5), row(second, top_logprobs=2)]
    scores = torch.tensor([[0.0, 1.0, 1.0, 1.0], [0.0, 1.0, 2.0, 3.0]])
    before = scores.clone()
    forced = sampler(rows)(torch.zeros(2, 1), scores)
    assert torch.equal(scores, before)
    assert torch.equal(forced[1], before[1])
    assert (forced[0] > -torch.inf).sum() == 1
    assert LETTERS[int(forced[0].argmax())] == first[0].text
    told = second[0].logprobs[0]
    assert told["token"] == "d"
    assert told["bytes"] == [100]
    assert told["logprob"] == pytest.approx(float(before[1].log_softmax(0)[3]))
    assert [one["token"] for one in told["top_logprobs"]] == ["d", "c"]
    assert first[0].logprobs == []


# the shapes of answers


def test_a_stream_says_what_the_whole_answer_says():
    record = SteeringRecord(0.75, 1, 64, 64, 25.6)
    pieces = [
        AnswerPiece(0, "a", 1),
        AnswerPiece(1, "x", 1),
        AnswerPiece(0, " b", 1),
        AnswerPiece(1, "", 1, [], "stop"),
        AnswerPiece(0, "", 1, [], "length"),
    ]
    answer = ChatAnswer("m", ChatJob([], choices=2), AnswerStart(10, {"race": record}))
    whole = answer.completion(pieces)
    assert [one["message"]["content"] for one in whole["choices"]] == ["a b", "x"]
    assert [one["finish_reason"] for one in whole["choices"]] == ["length", "stop"]
    assert whole["usage"] == {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    assert whole["ggss"] == {"race": {"alpha": 0.75, "calls": 1, "tokens": 64, "gate_mean": 0.4}}

    async def streamed():
        async def events():
            for piece in pieces:
                yield piece

        return [one async for one in ChatAnswer("m", answer.job, answer.start).events(events(), True)]

    *chunks, last = asyncio.run(streamed())
    assert last == "data: [DONE]\n\n"
    read = [json.loads(one.removeprefix("data: ")) for one in chunks]
    text = {0: "", 1: ""}
    for chunk in read:
        for choice in chunk["choices"]:
            text[choice["index"]] += choice["delta"].get("content", "")
    assert text == {0: "a b", 1: "x"}
    assert read[0]["ggss"] == whole["ggss"]
    assert read[-1]["usage"] == whole["usage"]


# steering and batches


def steerer(width: int, seed: int, site: str = "projection-mlp2") -> Steerer:
    frame = torch.linalg.qr(torch.randn(width, 3, generator=torch.Generator().manual_seed(seed)))[0]
    operator = Geodesic(frame[:, 0].contiguous(), frame[:, 1:].contiguous(), 0.0, 1.0)
    return Steerer(method="ggss", attribute="none", values=(), operators={site: operator})


def png(seed: int) -> bytes:
    data = io.BytesIO()
    noise(seed).save(data, "PNG")
    return data.getvalue()


@pytest.fixture(scope="module")
def served(vlm) -> ServedModel:
    model = ServedModel(vlm, room=2**24, most_tokens=8, prompt_tokens=2**20)
    model.steerers = {"first": steerer(64, 0), "second": steerer(64, 1)}
    return model


def answered(model: ServedModel, jobs: list[ChatJob]) -> list[list[AnswerStart | AnswerPiece]]:
    told: list[list[AnswerStart | AnswerPiece]] = [[] for _ in jobs]
    ready = [model.prepare(one, own.append, lambda: False) for one, own in zip(jobs, told, strict=True)]
    model.answer(ready, lambda: None)
    return told


def tokens(told: list[AnswerStart | AnswerPiece]) -> list[dict]:
    return [one for piece in told if isinstance(piece, AnswerPiece) for one in piece.logprobs]


def same_up_to_ties(one: list[dict], other: list[dict]) -> int:
    """0 if the tokens are the same; 1 if they part where two tokens were equally likely; else it fails."""
    for left, right in zip(one, other, strict=False):
        if left["token"] != right["token"]:
            top = left["top_logprobs"]
            assert top[0]["logprob"] - top[1]["logprob"] < TIE, "another token, and no tie"
            return 1
        assert left["logprob"] == pytest.approx(right["logprob"], abs=TIE)
    assert len(one) == len(other)
    return 0


def test_a_mixed_batch_is_every_request_alone(served):
    """Several strengths, steerers, pictures, lengths and turns. The strength matters, or this would say nothing."""
    pictures = [png(seed) for seed in range(3)]
    strengths = [{}, {"first": 0.5}, {"first": 1.5}, {"second": 1.0}, {"first": 1.0, "second": 0.7}, {"first": 0.0}]
    jobs = [
        ChatJob([("user", [None, f"the {'person ' * (number % 4)}in this picture is a nurse or"])], [picture], own)
        for number, (own, picture) in enumerate(itertools.product(strengths, pictures))
    ]
    jobs.append(ChatJob([("user", [None, None, "which of two"])], pictures[:2], {"first": 0.6, "second": 1.2}))
    jobs.append(
        ChatJob([("user", ["what colour hat"]), ("assistant", ["red"]), ("user", [None, "or"])], pictures[:1])
    )
    jobs.append(ChatJob([("user", ["who earns more than which"])]))
    jobs = [ChatJob(**{**vars(one), "top_logprobs": 2, "most_tokens": 2 + n % 5}) for n, one in enumerate(jobs)]
    together = answered(served, jobs)
    ties = sum(
        same_up_to_ties(tokens(answered(served, [job])[0]), tokens(told))
        for job, told in zip(jobs, together, strict=True)
    )
    assert ties <= len(jobs) // 4
    for job, told in zip(jobs, together, strict=True):
        began = told[0]
        assert isinstance(began, AnswerStart)
        assert {name: one.alpha for name, one in began.steering.items()} == job.strengths
        for name, one in began.steering.items():
            acted = bool(job.strengths[name])
            assert (one.calls, one.tokens > 0, one.gate_mean is not None) == (int(acted), acted, acted)
    assert jobs[0].turns == jobs[12].turns
    assert tokens(together[0])[0]["logprob"] != pytest.approx(tokens(together[12])[0]["logprob"], abs=TIE)


def test_answers_are_those_of_the_attached_steerer(served):
    """An independent path: the live hook on the model, which knows nothing of kept features."""
    vlm, question = served.vlm, "the person in this picture is a"
    for alpha in (0.0, 0.7, 1.3):
        job = ChatJob([("user", [None, question])], [png(0)], {"first": alpha}, most_tokens=3, top_logprobs=1)
        told = answered(served, [job])[0]
        with served.steerers["first"].attach(vlm, alpha, force=True) as run:
            logits = vlm.logits([question], [[noise(0)]])[0]
        expected = logits.log_softmax(0).max()
        assert tokens(told)[0]["top_logprobs"][0]["logprob"] == pytest.approx(float(expected), abs=TIE)
        assert alpha == 0.0 or told[0].steering["first"].tokens == run.tokens
        assert alpha == 0.0 or told[0].steering["first"].gate_mean == pytest.approx(float(run.gate.mean()), abs=1e-4)


def test_one_picture_at_alternating_strengths_is_encoded_once(served, monkeypatch):
    job = ChatJob([("user", [None, "who"])], [png(9)], {"first": 0.0}, most_tokens=1, top_logprobs=1)
    other = ChatJob(**{**vars(job), "strengths": {"first": 1.0}})
    first = [answered(served, [one])[0] for one in (job, other)]
    monkeypatch.setattr(served.vlm, "encode", lambda images, **_: pytest.fail("encoded again"))
    again = [answered(served, [one])[0] for one in (job, other, job, other)]
    assert tokens(first[0]) != tokens(first[1])
    assert [tokens(one) for one in again] == [tokens(one) for one in (*first, *first)]


def test_batches_and_the_time_of_steering_are_counted(served, monkeypatch):
    """By a clock that goes on by 3 whenever it is read."""
    clock = iter(range(0, 1000, 3))
    monkeypatch.setattr("ggss.serve.worker.time", SimpleNamespace(process_time=lambda: float(next(clock))))
    before = served.facts
    jobs = [ChatJob([("user", [None, "who"])], [png(0)], {"first": 1.0}, most_tokens=1) for _ in range(3)]
    answered(served, jobs)
    answered(served, jobs[:1])
    after = served.facts
    assert after["batches"] - before["batches"] == 2
    assert after["steering_seconds"] - before["steering_seconds"] == 6.0
    assert after["processor_seconds"] > before["processor_seconds"]
    assert after["cache_hits"] + after["cache_misses"] - before["cache_hits"] - before["cache_misses"] == 4


def test_choices_share_a_prompt_and_have_their_own_seeds(served):
    job = ChatJob(
        [("user", [None, "who"])], [png(1)], {"first": 1.0}, choices=4, most_tokens=6, temperature=2.0, seed=1
    )
    texts = []
    for _ in range(2):
        told = answered(served, [job])[0]
        texts.append(["".join(p.text for p in told[1:] if p.choice == n) for n in range(4)])
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 1


def test_what_a_model_cannot_do_is_said(served):
    def prepared(**job):
        return served.prepare(ChatJob(**job), lambda _: None, lambda: False)

    with pytest.raises(InputError, match="the mark of an image"):
        prepared(turns=[("user", [f"who {served.vlm.processor.image_token}"])])
    with pytest.raises(InputError, match="no known image format"):
        prepared(turns=[("user", [None])], pictures=[b"x"])
    served.prompt_tokens, before = 5, served.prompt_tokens
    try:
        with pytest.raises(InputError, match=r"the prompt has \d+ tokens with its pictures, at most 5 fit"):
            prepared(turns=[("user", [None, "who"])], pictures=[png(0)])
    finally:
        served.prompt_tokens = before


def test_a_steerer_that_did_not_act_is_an_error(served):
    shown = [EncodedPicture("noise", served.vlm.encode([noise(0)])[0])]
    silent, steering = Steerer(method="ggss", attribute="none", values=(), operators={}), BatchSteering(2**20)
    with pytest.raises(NeverFired, match="'race' was to act on 1 pictures and changed 0 tokens"):
        steering({"race": silent}, [shown], [{"race": 1.0}])
    ((_, records),) = steering({"race": silent}, [shown], [{"race": 0.0}])
    assert records["race"].calls == 0


def test_a_picture_is_steered_once_for_each_strength_and_steerer(served, monkeypatch):
    """What is kept is found by the picture, the steerers' content and the strengths, whoever asked before."""
    passes: list[int] = []

    def counted(features, *rest, **options):
        passes.append(len(features))
        return steered_with_gates(features, *rest, **options)

    monkeypatch.setattr(batching, "steered_with_gates", counted)
    site, steerers = "projection-mlp2", dict(served.steerers)
    shown = [EncodedPicture(f"noise-{seed}", one) for seed, one in enumerate(served.vlm.encode([noise(0), noise(1)]))]

    def rows(steering, strengths, picture=0):
        (((features,), records),) = steering(steerers, [[shown[picture]]], [strengths])
        return features.rows[site], records

    steering, forgetful = BatchSteering(2**24), BatchSteering(0)
    both = [{"first": 1.0, "second": 0.5}, {"first": 0.5, "second": 1.0}]
    asked = [{"first": 1.0}, {"first": 0.5}, {"second": 1.0}, *both]
    for strengths in (*asked, *reversed(asked), *asked):
        found, records = rows(steering, strengths)
        expected = shown[0].features.rows[site]
        for name, alpha in strengths.items():
            expected = steerers[name].steer(expected, alpha=alpha)
            assert records[name].tokens == len(expected)
        assert torch.allclose(found, expected, atol=1e-5)
    assert len(passes) == len(asked) + len(both)  # a pass for each steerer
    again = rows(forgetful, both[0])
    assert again[1] == rows(steering, both[0])[1]
    assert len(passes) == len(asked) + len(both) + 2
    every = sum(own.nbytes for own in shown[0].features.rows.values()) + sum(
        own.nbytes for own in shown[0].features.inputs.values()
    )
    assert (steering.nbytes, forgetful.nbytes) == (len(asked) * every, 0)
    # Pictures that are steered together are kept, and let go, each alone.
    for (features,), _ in BatchSteering(0)(steerers, [[one] for one in shown], [{"first": 0.3}, {"first": 0.4}]):
        assert features.rows[site].untyped_storage().nbytes() == features.rows[site].nbytes
    # A steerer that is replaced, and another picture, are steered anew.
    before, passes[:] = rows(steering, {"first": 1.0})[0], []
    steerers["first"] = steerer(64, 7)
    after = rows(steering, {"first": 1.0})[0]
    assert passes == [1]
    assert not torch.allclose(after, before, atol=1e-3)
    assert not torch.allclose(rows(steering, {"first": 1.0}, picture=1)[0], after, atol=1e-3)
    assert passes == [1, 1]


def test_gates_and_negative_strengths(served):
    one = served.steerers["first"]
    features = served.vlm.encode([noise(0), noise(1)])
    site = "projection-mlp2"
    for alphas in ((0.5, -0.5), (-0.5, -0.5)):
        both = steered_with_gates(features, one, alphas, allow_amplify=True)
        assert both.counts == {site: [len(own.rows[site]) for own in features]}
        gates = both.gates[site].split(both.counts[site])
        for before, after, alpha, gate in zip(features, both.features, alphas, gates, strict=True):
            rows = before.rows[site]
            assert torch.allclose(after.rows[site], one.steer(rows, alpha=alpha, allow_amplify=True))
            assert torch.allclose(gate, one.gate(rows), atol=1e-6)
        with pytest.raises(InputError, match="would amplify"):
            steered_with_gates(features, one, alphas)


def test_a_steerer_is_checked_before_it_replaces_another(served, tmp_path):
    before = dict(served.steerers)
    with pytest.raises(InputError, match="there is no folder"):
        served.load("first", str(tmp_path / "none"))
    steerer(32, 0).save_pretrained(tmp_path / "narrow")
    with pytest.raises(InputError, match="width"):
        served.load("first", str(tmp_path / "narrow"))
    assert served.steerers == before
    good = steerer(64, 5)
    good.save_pretrained(tmp_path / "good")
    with pytest.raises(InputError, match="is not the one that was checked"):
        served.load("first", str(tmp_path / "good"), expected="0" * 64)
    assert served.steerers == before
    try:
        loaded = served.load("first", str(tmp_path / "good"))
        assert (loaded.content, loaded.alpha) == (good.content_hash, 1.0)
        assert served.steerers["first"].content_hash == good.content_hash
    finally:
        served.steerers = before


def test_a_steerer_of_another_model_is_served_only_where_any_model_is_allowed(tmp_path):
    vlm, other = (Vlm(*build("pixtral", ["a"], seed, width=32, layers=1)) for seed in (0, 1))
    folder = str(steerer_for(other).save_pretrained(tmp_path / "steerer"))
    limits = {"room": 2**20, "most_tokens": 8, "prompt_tokens": 2**10}
    with pytest.raises(InputError, match="vision weights"):
        ServedModel(vlm, **limits).load("race", folder)
    assert ServedModel(vlm, **limits, any_model=True).load("race", folder).folder == folder


def test_a_server_shrinks_the_pictures_it_gets(qwen):
    limits = {"room": 2**24, "most_tokens": 8, "prompt_tokens": 2**20}
    asked = ChatJob([("user", [None, "which of two"])], [png(3)])
    lengths = []
    for max_side in (None, 64, 32):
        model = ServedModel(qwen, **limits, max_side=max_side)
        lengths.append(len(model.prepare(asked, lambda _: None, lambda: False).ids))
    assert lengths[0] == lengths[1] > lengths[2]


def test_the_worker_gets_the_cap_on_pictures():
    model, _ = load_model(Load(WorkerSetup("small-world/qwen3-vl", {}, 4, 8, 100, 2**20, max_side=32)))
    assert model.max_side == 32
