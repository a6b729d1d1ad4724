"""The process in which the model runs: `python -m ggss.serve.worker FD`, started by `engine.WorkerEngine`.

It reads messages from a socket, answers all requests that wait in one batch, and ends when the socket is closed.
Requests that come while a batch runs wait for the next one.

`ServedModel` is the model with its steerers: from requests to answers, many at once. Pictures are encoded once, each
alone, and kept unsteered by their digest: what is kept depends on the model only. Steering comes after that, for all
pictures of a batch together and each at the strengths of its request, and what it makes is kept under these strengths
(`batching`). So no request gets what was made at another's strength.
"""

import logging
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path

from ggss.data.pictures import BytesPicture, Picture, shrunk
from ggss.errors import InputError, out_of_memory
from ggss.models import prompts
from ggss.models.features import BoundedFeatures, Features, Shown
from ggss.models.vlm import Vlm
from ggss.serve.batching import BatchSteering, ShownPicture, facts_of, with_suffix
from ggss.serve.engine import Gone, JobQueue, Message
from ggss.serve.sampling import AnswerRow, RowSampler, RowsOver
from ggss.serve.schema import AnswerPiece, AnswerText, Began, ChatJob, ServedSteerer, defect
from ggss.steering.compatibility import ONLY_TOGETHER, compare_sizes
from ggss.steering.steerer import Steerer

log = logging.getLogger("ggss")


def failure(number: int, error: Exception) -> Message:
    """Input that the sender can correct is 400; everything else is the server's, and its place is logged."""
    from ggss.models.reading import NoNumbers
    from ggss.steering.attach import NeverFired

    ours = isinstance(error, (NeverFired, NoNumbers))  # sentences that are for whoever runs the server
    if isinstance(error, InputError) and not ours:
        status, sentence = 400, str(error)
    elif out_of_memory(error):
        status, sentence = 503, "the server has not enough memory for this request: make it smaller, or try later"
    else:
        status = 500
        sentence = str(error) if ours else defect(error).sentence
        # An exception's message may hold what was asked, so it is not logged.
        log.error("request failed: %s\n%s", type(error).__name__, "".join(traceback.format_tb(error.__traceback__)))
    return {"event": "failed", "id": number, "status": status, "sentence": sentence}


def refused_reload(number: int, error: Exception) -> Message:
    """What it is told of a steerer that cannot take the place of another."""
    sentence = str(error) if isinstance(error, InputError) else f"it cannot be read ({type(error).__name__})"
    return {"event": "reloaded", "id": number, "sentence": sentence}


Give = Callable[[Began | AnswerPiece], None]


@dataclass
class PreparedJob:
    """A request whose prompt is written and whose pictures are encoded.

    give: gets what is to be told of it. gone: whether nobody waits for it any more.
    """

    job: ChatJob
    ids: list[int]
    pictures: list[ShownPicture]
    most_tokens: int
    give: Give
    gone: Callable[[], bool]


class ServedModel:
    """room: bytes of features that are kept, half of them steered. most_tokens: of an answer; prompt_tokens: of a
    prompt. any_model: whether steerers may be of other models. max_side: pixels of a picture's longer side, at most.

    InputError if the family cannot answer from features.
    """

    def __init__(
        self,
        vlm: Vlm,
        room: int,
        most_tokens: int,
        prompt_tokens: int,
        any_model: bool = False,
        max_side: int | None = None,
    ) -> None:
        if vlm.family.pack is None:
            raise InputError(
                f"{vlm.family.name} models cannot answer from encoded features, so ggss cannot serve them: "
                "`ggss ask` and Python's steerer.attach work"
            )
        self.vlm, self.most_tokens, self.prompt_tokens = vlm, most_tokens, prompt_tokens
        self.any_model, self.max_side = any_model, max_side
        self.steerers: dict[str, Steerer] = {}
        self._kept, self._steering = BoundedFeatures(room // 2), BatchSteering(room // 2)
        self.batches = self.hits = self.misses = 0
        self.steering_seconds = 0.0
        tokenizer = vlm.processor.tokenizer
        self._decode = lambda tokens: tokenizer.decode(tokens, skip_special_tokens=True)
        self._word = cache(lambda token: tokenizer.decode([token]))
        ends = vlm.model.generation_config.eos_token_id
        self._ends = set(ends if isinstance(ends, list) else [ends])
        self._context = getattr(vlm.model.config.get_text_config(), "max_position_embeddings", None) or 2**31

    def load(self, name: str, folder: str, expected: str | None = None) -> ServedSteerer:
        """Read a steerer and check it; only then it replaces the one of this name.

        expected: the content that it must have. InputError if anything is wrong with it.
        """
        if not Path(folder).is_dir():
            raise InputError(f"the steerer {name!r}: there is no folder {folder!r} on the server")
        steerer = Steerer.from_pretrained(folder)
        steerer.check(self.vlm, force=self.any_model)
        compare_sizes(steerer, self.max_side)
        kept = self.vlm.sites("all")
        if outside := [site for site in steerer.operators if site not in kept]:
            raise InputError(
                f"the steerer {name!r} acts at {', '.join(outside)}, and a server steers what the projector gives "
                f"out ({', '.join(kept)}): discover it there"
            )
        if steerer.together:
            raise InputError(f"the steerer {name!r} {ONLY_TOGETHER}")
        content = steerer.content_hash
        if expected is not None and content != expected:
            raise InputError(f"the steerer {name!r} in {folder!r} is not the one that was checked: put that back")
        self.steerers[name] = steerer
        return facts_of(steerer, folder)

    def prepare(self, job: ChatJob, give: Give, gone: Callable[[], bool]) -> PreparedJob:
        """InputError if a picture does not decode, the template cannot write it, or the prompt is too long."""
        pictures = [self._encoded(shrunk(BytesPicture.of(data), self.max_side)) for data in job.pictures]
        self._kept.make_room()
        text = prompts.conversation(self.vlm.processor, with_suffix(job, self.steerers))
        (ids,) = prompts.tokens(self.vlm.processor, [text], [one.features.placeholder for one in pictures])
        room = min(self._context - 1, self.prompt_tokens)
        if len(ids) > room:
            raise InputError(f"the prompt has {len(ids)} tokens with its pictures, at most {room} fit: shorten it")
        most = min(job.most_tokens or self.most_tokens, self._context - len(ids))
        return PreparedJob(job, ids, pictures, most, give, gone)

    def answer(self, jobs: Sequence[PreparedJob], poll: Callable[[], None]) -> None:
        """All requests in one batch; each hears first what was done to its pictures, then its answers."""
        self.batches += 1
        start = time.process_time()
        steered = self._steering(self.steerers, [one.pictures for one in jobs], [one.job.strengths for one in jobs])
        self.steering_seconds += time.process_time() - start
        rows: list[AnswerRow] = []
        sequences: list[list[int]] = []
        shown: list[Sequence[Shown]] = []
        for prepared, (features, records) in zip(jobs, steered, strict=True):
            prepared.give(Began(len(prepared.ids), records))
            rows += self._rows(prepared)
            sequences += [prepared.ids] * prepared.job.choices
            shown += [features] * prepared.job.choices
        self.vlm.generate(
            sequences,
            shown,
            max(row.most_tokens for row in rows),
            RowSampler(rows, self._ends, poll, self._word),
            RowsOver(rows),
        )

    def _rows(self, prepared: PreparedJob) -> Iterator[AnswerRow]:
        job = prepared.job
        for choice in range(job.choices):
            yield AnswerRow(
                choice,
                prepared.most_tokens,
                AnswerText(self._decode, job.stop),
                prepared.give,
                prepared.gone,
                job.temperature,
                job.top_p,
                None if job.seed is None else (job.seed + choice) % 2**63,
                job.top_logprobs,
            )

    @property
    def facts(self) -> dict[str, float]:
        """Counts and CPU time since the start; the bytes of features that are kept, unsteered and steered."""
        return {
            "batches": self.batches,
            "processor_seconds": time.process_time(),
            "steering_seconds": self.steering_seconds,
            "cached_bytes": self._kept.nbytes + self._steering.nbytes,
            "cache_hits": self.hits,
            "cache_misses": self.misses,
        }

    def _encoded(self, picture: Picture) -> ShownPicture:
        if picture.digest in self._kept:
            self.hits += 1
        else:
            self.misses += 1
            self._kept.add({picture.digest: self.vlm.encode([picture.image()])[0]})
        features = self._kept[picture.digest]
        assert isinstance(features, Features)  # only these are added
        return ShownPicture(picture.digest, features)


def work(jobs: JobQueue, model: "ServedModel", most_rows: int) -> None:
    """Do what messages say, until the server is gone."""
    while True:
        message, pictures = jobs.next()
        if message["do"] == "reload":
            jobs.tell(_reloaded(model, message))
            continue
        jobs.poll()
        batch = [(message, pictures)]
        rows = message["job"]["choices"]
        while jobs.waiting and jobs.waiting[0][0]["do"] == "ask" and not message["alone"]:
            rows += jobs.waiting[0][0]["job"]["choices"]
            if rows > most_rows or jobs.waiting[0][0]["alone"]:
                break
            batch.append(jobs.waiting.popleft())
        jobs.tell({"event": "started", "ids": [one["id"] for one, _ in batch]})
        _answer(jobs, model, batch)


def _answer(jobs: JobQueue, model: "ServedModel", batch: Sequence[tuple[Message, list[bytes]]]) -> None:
    ready: dict[int, PreparedJob] = {}
    for message, pictures in batch:
        number, job = message["id"], ChatJob.of_message(message["job"], pictures)
        if jobs.gone(number):
            _done(jobs, model, number)
            continue
        try:
            ready[number] = model.prepare(job, _teller(jobs, model, number, job), partial(jobs.gone, number))
        except Exception as error:
            _fail(jobs, number, error)
    if not ready:
        return
    try:
        _run(jobs, model, ready)
    except Exception as error:
        if len(ready) > 1:
            log.warning("a batch of %d requests failed (%s): each is tried alone", len(ready), type(error).__name__)
        for number, one in ready.items():
            # One request cannot fail another, unless a part of its answer is out already.
            if not jobs.is_open(number):
                continue
            if len(ready) == 1 or jobs.streamed(number):
                _fail(jobs, number, error)
            else:
                _run_alone(jobs, model, number, one)


def _teller(jobs: JobQueue, model: "ServedModel", number: int, job: ChatJob) -> "Give":
    """Tells the server of one request; it is done with its last choice, while others of its batch go on."""
    left = job.choices

    def tell(event: Began | AnswerPiece) -> None:
        nonlocal left
        jobs.give(number, job.stream, event)
        if isinstance(event, Began):
            left = job.choices  # it may begin again, alone
        elif event.finish:
            left -= 1
            if not left:
                _done(jobs, model, number)

    return tell


def _run_alone(jobs: JobQueue, model: "ServedModel", number: int, one: "PreparedJob") -> None:
    jobs.drop(number)
    try:
        _run(jobs, model, {number: one})
    except Exception as error:
        _fail(jobs, number, error)


def _run(jobs: JobQueue, model: "ServedModel", ready: "dict[int, PreparedJob]") -> None:
    model.answer(list(ready.values()), jobs.poll)
    for number in filter(jobs.is_open, ready):
        _done(jobs, model, number)  # cancelled, so that nothing was its last


def _done(jobs: JobQueue, model: "ServedModel", number: int) -> None:
    jobs.flush(number)
    jobs.tell({"event": "done", "id": number, "facts": model.facts})
    jobs.forget(number)


def _fail(jobs: JobQueue, number: int, error: Exception) -> None:
    jobs.tell(failure(number, error))
    jobs.forget(number)


def _reloaded(model: "ServedModel", message: Message) -> Message:
    try:
        steerer = model.load(message["name"], message["folder"])
    except Exception as error:
        return refused_reload(message["id"], error)
    return {"event": "reloaded", "id": message["id"], "steerer": asdict(steerer)}


def loaded(setup: Message) -> "tuple[ServedModel, Message]":
    """The model and its steerers, and what the server is told of them."""
    import torch

    from ggss.models import load_vlm

    if setup["threads"]:
        torch.set_num_threads(setup["threads"])
    vlm = load_vlm(setup["model"], setup["dtype"], setup["device_map"], attention=setup["attention"])
    limits = setup["cache_bytes"], setup["most_tokens"], setup["prompt_tokens"]
    model = ServedModel(vlm, *limits, any_model=setup["any_model"], max_side=setup["max_side"])
    steerers = {
        name: asdict(model.load(name, folder, expected)) for name, (folder, expected) in setup["steerers"].items()
    }
    return model, {"event": "ready", "model": vlm.identity.hash, "steerers": steerers}


def main(arguments: list[str]) -> int:
    """Until the server is gone, or the model cannot be loaded."""
    for one in (signal.SIGINT, signal.SIGTERM):  # they may reach all processes of a group; the server ends this one
        signal.signal(one, signal.SIG_IGN)
    jobs = JobQueue(socket.socket(fileno=int(arguments[0])))
    try:
        (setup, _), model = jobs.next(), None
        try:
            model, message = loaded(setup)
        except InputError as error:
            message = {"event": "refused", "sentence": str(error)}
        jobs.tell(message)
        if model is not None:
            work(jobs, model, setup["most_rows"])
    except Gone:
        return 0
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
