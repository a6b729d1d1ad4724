"""The process in which transformers runs the model: `python -m ggss.serve.worker`, started by `engine.WorkerProcess`.

`work` answers all requests that are waiting in one batch; those that arrive while it runs wait for the next batch.
The process ends when the server closes the connection.

`ServedModel` is the model with its steerers. A picture is encoded once and its unsteered features are cached by its
digest. All pictures of a batch are then steered together, each at the strengths of its request (`batching`), so no
request gets features that were steered at the strengths of another.

Each row of a batch has its own temperature, top-p, seed, length and stop sequences. They act inside transformers'
`generate`: `RowSampler`, a logits processor, chooses the next token of each row and sends its text; `RowsFinished`, a
stopping criterion, ends rows. So a server generates with the code that `ggss ask` uses, for every family that
transformers supports.
"""

import logging
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, StoppingCriteria

from ggss.data.pictures import BytesPicture, Picture, shrunk
from ggss.errors import InputError, out_of_memory
from ggss.models import load_vlm, prompts
from ggss.models.features import BoundedFeatures, Features, ImageOrFeatures
from ggss.models.reading import NoNumbers
from ggss.models.vlm import Vlm
from ggss.serve.answers import AnswerPart, AnswerPiece, AnswerStart, AnswerText, PartialAnswer, logprob_entry
from ggss.serve.batching import BatchSteering, EncodedPicture, served_steerer, turns_with_suffix
from ggss.serve.engine import Ask, Failed, JobQueue, Load, NotLoaded, Ready, Reload, Reloaded, ServerGone, Started
from ggss.serve.schema import ChatJob, ServedSteerer, defect
from ggss.steering.attach import ONLY_TOGETHER, NeverFired, compare_sizes
from ggss.steering.steerer import Steerer

log = logging.getLogger("ggss")


class AnswerRow(PartialAnswer):
    """One row of a batch. send: gets each new piece. is_cancelled: whether the client is gone."""

    def __init__(
        self,
        choice: int,
        most_tokens: int,
        text: AnswerText,
        send: Callable[[AnswerPiece], None],
        is_cancelled: Callable[[], bool],
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int | None = None,
        top_logprobs: int | None = None,
    ) -> None:
        super().__init__(choice, most_tokens, text)
        self.send, self.is_cancelled = send, is_cancelled
        self.temperature, self.top_p, self.top_logprobs = temperature, top_p, top_logprobs
        self.generator = torch.Generator()
        if seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(seed)

    def sampled(self, logits: Tensor) -> int:
        """A token from logits [V], by temperature and top-p."""
        shifted = logits.double().cpu() - logits.max().double().cpu()  # no temperature is too low to divide this
        ordered, tokens = (shifted / self.temperature).softmax(0).sort(descending=True, stable=True)
        nucleus = ordered.cumsum(0) - ordered < self.top_p
        nucleus[0] = True
        return int(tokens[torch.multinomial(ordered * nucleus, 1, generator=self.generator)])


class RowSampler(LogitsProcessor):
    """Chooses the tokens of one call of `generate`.

    eos_tokens: they end an answer. poll: called before every token. token_text: the text of one token.
    """

    def __init__(
        self,
        rows: Sequence[AnswerRow],
        eos_tokens: Collection[int],
        poll: Callable[[], None],
        token_text: Callable[[int], str],
    ) -> None:
        self.rows, self.eos_tokens, self.poll, self.token_text = rows, eos_tokens, poll, token_text

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The scores [rows, V]. In a row that is sampled, all but the chosen token are -inf."""
        self.poll()
        likeliest = scores.argmax(-1).tolist()  # `generate` chooses the same way
        forced = scores
        for number, row in enumerate(self.rows):
            row.finished = row.finished or row.is_cancelled()
            if row.finished:
                continue
            token = likeliest[number]
            if row.temperature > 0:
                token = row.sampled(scores[number])
                forced = scores.clone() if forced is scores else forced
                forced[number] = -torch.inf
                forced[number, token] = 0
            self._add(row, token, scores[number])
        return forced

    def _add(self, row: AnswerRow, token: int, scores: Tensor) -> None:
        logprobs = [] if row.top_logprobs is None else [self._logprobs(token, scores, row.top_logprobs)]
        row.send(row.add(token, self.eos_tokens, logprobs))

    def _logprobs(self, token: int, scores: Tensor, count: int) -> dict[str, Any]:
        """The token's log-probability before temperature and top-p, and those of the `count` likeliest."""
        every = scores.float().log_softmax(-1)
        values, tokens = every.topk(count)
        likeliest = zip(map(self.token_text, tokens.tolist()), values.tolist(), strict=True)
        entry = logprob_entry(self.token_text(token), float(every[token]))
        return entry | {"top_logprobs": [logprob_entry(text, logprob) for text, logprob in likeliest]}


class RowsFinished(StoppingCriteria):
    """Ends each row that its sampler has finished."""

    def __init__(self, rows: Sequence[AnswerRow]) -> None:
        self.rows = rows

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Any:
        return torch.tensor([row.finished for row in self.rows], device=input_ids.device)


@dataclass
class PreparedJob:
    """A request whose prompt is tokenised and whose pictures are encoded.

    send: gets each part of its answer. is_cancelled: whether its client is gone.
    """

    job: ChatJob
    ids: list[int]
    pictures: list[EncodedPicture]
    most_tokens: int
    send: Callable[[AnswerPart], None]
    is_cancelled: Callable[[], bool]


class ServedModel:
    """A model with its steerers: from requests to answers, many at once.

    room: bytes of cached features, half of them steered. most_tokens: of an answer; prompt_tokens: of a prompt.
    any_model: whether steerers may be made for another model. max_side: pixels of a picture's longer side, at most.
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
        self._features, self._steering = BoundedFeatures(room // 2), BatchSteering(room // 2)
        self.batches = self.hits = self.misses = 0
        self.steering_seconds = 0.0
        tokenizer = vlm.processor.tokenizer
        self._decode = lambda tokens: tokenizer.decode(tokens, skip_special_tokens=True)
        self._token_text = cache(lambda token: tokenizer.decode([token]))
        eos = vlm.model.generation_config.eos_token_id
        self._eos_tokens = set(eos if isinstance(eos, list) else [eos])
        self._context = getattr(vlm.model.config.get_text_config(), "max_position_embeddings", None) or 2**31

    def load(self, name: str, folder: str, expected: str | None = None) -> ServedSteerer:
        """Read and check a steerer, then replace the one of this name by it.

        expected: the hash of the content that it must have. InputError if the steerer cannot be used.
        """
        if not Path(folder).is_dir():
            raise InputError(f"the steerer {name!r}: there is no folder {folder!r} on the server")
        steerer = Steerer.from_pretrained(folder)
        steerer.check(self.vlm, force=self.any_model)
        compare_sizes(steerer, self.max_side)
        sites = self.vlm.sites("all")
        if outside := [site for site in steerer.operators if site not in sites]:
            raise InputError(
                f"the steerer {name!r} acts at {', '.join(outside)}, and a server steers only the projector's output "
                f"({', '.join(sites)}): discover it there"
            )
        if steerer.together:
            raise InputError(f"the steerer {name!r} {ONLY_TOGETHER}")
        content = steerer.content_hash
        if expected is not None and content != expected:
            raise InputError(f"the steerer {name!r} in {folder!r} is not the one that was checked: put that back")
        self.steerers[name] = steerer
        return served_steerer(steerer, folder)

    def prepare(
        self, job: ChatJob, send: Callable[[AnswerPart], None], is_cancelled: Callable[[], bool]
    ) -> PreparedJob:
        """Tokenise the prompt and encode the pictures.

        InputError if a picture does not decode, the chat template refuses the turns, or the prompt is too long.
        """
        pictures = [self._encoded(shrunk(BytesPicture.of(data), self.max_side)) for data in job.pictures]
        self._features.make_room()
        text = prompts.conversation(self.vlm.processor, turns_with_suffix(job, self.steerers))
        (ids,) = prompts.tokens(self.vlm.processor, [text], [picture.features.placeholder for picture in pictures])
        room = min(self._context - 1, self.prompt_tokens)
        if len(ids) > room:
            raise InputError(f"the prompt has {len(ids)} tokens with its pictures, at most {room} fit: shorten it")
        most = min(job.most_tokens or self.most_tokens, self._context - len(ids))
        return PreparedJob(job, ids, pictures, most, send, is_cancelled)

    def answer(self, jobs: Sequence[PreparedJob], poll: Callable[[], None]) -> None:
        """Answer all requests in one batch: send the start of each answer, then the pieces. poll: see RowSampler."""
        self.batches += 1
        start = time.process_time()
        pictures, strengths = [job.pictures for job in jobs], [job.job.strengths for job in jobs]
        steered = self._steering(self.steerers, pictures, strengths)
        self.steering_seconds += time.process_time() - start
        rows: list[AnswerRow] = []
        sequences: list[list[int]] = []
        features_of_rows: list[Sequence[ImageOrFeatures]] = []
        for prepared, (features, records) in zip(jobs, steered, strict=True):
            prepared.send(AnswerStart(len(prepared.ids), records))
            rows += self._rows(prepared)
            sequences += [prepared.ids] * prepared.job.choices
            features_of_rows += [features] * prepared.job.choices
        self.vlm.generate(
            sequences,
            features_of_rows,
            max(row.most_tokens for row in rows),
            RowSampler(rows, self._eos_tokens, poll, self._token_text),
            RowsFinished(rows),
        )

    def _rows(self, prepared: PreparedJob) -> Iterator[AnswerRow]:
        job = prepared.job
        for choice in range(job.choices):
            yield AnswerRow(
                choice,
                prepared.most_tokens,
                AnswerText(self._decode, job.stop),
                prepared.send,
                prepared.is_cancelled,
                job.temperature,
                job.top_p,
                None if job.seed is None else (job.seed + choice) % 2**63,
                job.top_logprobs,
            )

    @property
    def facts(self) -> dict[str, float]:
        """Counts and CPU time since the start; the bytes of cached features, unsteered and steered."""
        return {
            "batches": self.batches,
            "processor_seconds": time.process_time(),
            "steering_seconds": self.steering_seconds,
            "cached_bytes": self._features.nbytes + self._steering.nbytes,
            "cache_hits": self.hits,
            "cache_misses": self.misses,
        }

    def _encoded(self, picture: Picture) -> EncodedPicture:
        if picture.digest in self._features:
            self.hits += 1
        else:
            self.misses += 1
            self._features.add({picture.digest: self.vlm.encode([picture.image()])[0]})
        features = self._features[picture.digest]
        assert isinstance(features, Features)  # only these are added
        return EncodedPicture(picture.digest, features)


def work(jobs: JobQueue, model: ServedModel, most_rows: int) -> None:
    """Answer requests and replace steerers. ServerGone when the server has ended."""
    while True:
        request = jobs.next()
        if isinstance(request, Ask):
            jobs.poll()
            batch = [request, *_others_of_batch(jobs, request, most_rows)]
            jobs.send(Started([ask.number for ask in batch]))
            _answer(jobs, model, batch)
        elif isinstance(request, Reload):
            try:
                steerer = model.load(request.name, request.folder)
            except Exception as error:
                jobs.send(reload_failure(request.number, error))
            else:
                jobs.send(Reloaded(request.number, request.name, steerer))


def failure(number: int, error: Exception) -> Failed:
    """Input that the client can correct is 400. For everything else, the place in the code is logged."""
    for_operator = isinstance(error, (NeverFired, NoNumbers))  # InputErrors that the client cannot correct
    if isinstance(error, InputError) and not for_operator:
        return Failed(number, 400, str(error))
    if out_of_memory(error):
        sentence = "the server has not enough memory for this request: make it smaller, or try later"
        return Failed(number, 503, sentence)
    # The message of an exception may contain text of the request, so it is not logged.
    log.error("request failed: %s\n%s", type(error).__name__, "".join(traceback.format_tb(error.__traceback__)))
    return Failed(number, 500, str(error) if for_operator else defect(error).sentence)


def reload_failure(number: int, error: Exception) -> Failed:
    """Why a steerer did not replace another."""
    sentence = str(error) if isinstance(error, InputError) else f"it cannot be read ({type(error).__name__})"
    return Failed(number, 400, sentence)


def _others_of_batch(jobs: JobQueue, first: Ask, most_rows: int) -> Iterator[Ask]:
    """The requests after the first that are answered in its batch, in their order. most_rows: answers of a batch."""
    rows = first.job.choices
    while not first.alone and jobs.waiting:
        request = jobs.waiting[0]
        if not isinstance(request, Ask) or request.alone:
            return
        rows += request.job.choices
        if rows > most_rows:
            return
        jobs.waiting.popleft()
        yield request


def _answer(jobs: JobQueue, model: ServedModel, batch: Sequence[Ask]) -> None:
    prepared: dict[int, PreparedJob] = {}
    for ask in batch:
        number = ask.number
        if jobs.is_cancelled(number):
            jobs.done(number, model.facts)
            continue
        try:
            prepared[number] = model.prepare(ask.job, _sender(jobs, model, ask), partial(jobs.is_cancelled, number))
        except Exception as error:
            jobs.fail(failure(number, error))
    if not prepared:
        return
    try:
        _generate(jobs, model, prepared)
    except Exception as error:
        if len(prepared) > 1:
            log.warning(
                "a batch of %d requests failed (%s): each is tried alone", len(prepared), type(error).__name__
            )
        for number, job in prepared.items():
            # A request fails only by itself, unless a part of its answer was already sent.
            if not jobs.is_open(number):
                continue
            if len(prepared) == 1 or jobs.has_streamed(number):
                jobs.fail(failure(number, error))
            else:
                _generate_alone(jobs, model, number, job)


def _sender(jobs: JobQueue, model: ServedModel, ask: Ask) -> Callable[[AnswerPart], None]:
    """Sends the parts of an answer. The request is done with its last choice, even if others of its batch are not."""
    unfinished = ask.job.choices

    def send(part: AnswerPart) -> None:
        nonlocal unfinished
        jobs.output(ask.number, part)
        if isinstance(part, AnswerStart):
            unfinished = ask.job.choices  # it may start a second time, alone
        elif part.finish:
            unfinished -= 1
            if not unfinished:
                jobs.done(ask.number, model.facts)

    return send


def _generate_alone(jobs: JobQueue, model: ServedModel, number: int, job: PreparedJob) -> None:
    jobs.restart(number)
    try:
        _generate(jobs, model, {number: job})
    except Exception as error:
        jobs.fail(failure(number, error))


def _generate(jobs: JobQueue, model: ServedModel, prepared: dict[int, PreparedJob]) -> None:
    model.answer(list(prepared.values()), jobs.poll)
    for number in filter(jobs.is_open, prepared):
        jobs.done(number, model.facts)  # cancelled: it had no last piece


def load_model(request: Load) -> tuple[ServedModel, Ready]:
    """The model with its steerers, and the event that describes them."""
    setup = request.setup
    if setup.threads:
        torch.set_num_threads(setup.threads)
    vlm = load_vlm(setup.model, setup.dtype, setup.device_map, attention=setup.attention)
    limits = setup.cache_bytes, setup.most_tokens, setup.prompt_tokens
    model = ServedModel(vlm, *limits, any_model=setup.any_model, max_side=setup.max_side)
    steerers = {name: model.load(name, folder, request.contents.get(name)) for name, folder in setup.steerers.items()}
    return model, Ready(vlm.identity.hash, steerers)


def main(arguments: Sequence[str]) -> int:
    """Run until the server is gone. 2 if the model cannot be loaded."""
    jobs = JobQueue.of_process(arguments)
    try:
        request = jobs.next()
        assert isinstance(request, Load)  # the engine's first request
        try:
            model, ready = load_model(request)
        except InputError as error:
            jobs.send(NotLoaded(str(error)))
            return 2
        jobs.send(ready)
        work(jobs, model, request.setup.most_rows)
    except ServerGone:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
