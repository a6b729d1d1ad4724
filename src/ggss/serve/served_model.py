"""A model with its steerers, as the worker's process holds it: from requests to answers, many at a time.

Pictures are encoded once, each alone, and kept unsteered by their digest: what is kept depends on the model only.
Steering comes after that, for all pictures of a batch together and each at the strengths of its request, and what it
makes is kept under these strengths (`batch_steering`). So no request gets what was made at another's strength.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ggss.data.picture import BytesPicture
from ggss.errors import InputError
from ggss.models import prompts
from ggss.models.feature_cache import BoundedFeatures
from ggss.models.features import Features, Shown
from ggss.models.vlm import Vlm
from ggss.serve.answer_text import AnswerText
from ggss.serve.batch_steering import BatchSteering, ShownPicture
from ggss.serve.chat_job import ChatJob
from ggss.serve.engine import AnswerPiece, Began, ServedSteerer
from ggss.serve.row_sampler import AnswerRow, RowSampler, RowsOver
from ggss.serve.steerer_facts import facts_of, with_suffix
from ggss.steering.steerer import Steerer

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
    prompt.

    InputError if the family cannot answer from features.
    """

    def __init__(self, vlm: Vlm, room: int, most_tokens: int, prompt_tokens: int) -> None:
        if vlm.family.pack is None:
            raise InputError(
                f"{vlm.family.name} models cannot answer from encoded features, so ggss cannot serve them: "
                "`ggss ask` and Python's steerer.attach work"
            )
        self.vlm, self.most_tokens, self.prompt_tokens = vlm, most_tokens, prompt_tokens
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
        steerer.check(self.vlm)
        kept = self.vlm.sites("all")
        if outside := [site for site in steerer.operators if site not in kept]:
            raise InputError(
                f"the steerer {name!r} acts at {', '.join(outside)}, and a server steers what the projector gives "
                f"out ({', '.join(kept)}): discover it there"
            )
        content = steerer.content_hash
        if expected is not None and content != expected:
            raise InputError(f"the steerer {name!r} in {folder!r} is not the one that was checked: put that back")
        self.steerers[name] = steerer
        return facts_of(steerer, folder)

    def prepare(self, job: ChatJob, give: Give, gone: Callable[[], bool]) -> PreparedJob:
        """InputError if a picture does not decode, the template cannot write it, or the prompt is too long."""
        pictures = [self._encoded(BytesPicture.of(data)) for data in job.pictures]
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
        """Counts and processor time since the start; the bytes of features that are kept, unsteered and steered."""
        return {
            "batches": self.batches,
            "processor_seconds": time.process_time(),
            "steering_seconds": self.steering_seconds,
            "cached_bytes": self._kept.nbytes + self._steering.nbytes,
            "cache_hits": self.hits,
            "cache_misses": self.misses,
        }

    def _encoded(self, picture: BytesPicture) -> ShownPicture:
        if picture.digest in self._kept:
            self.hits += 1
        else:
            self.misses += 1
            self._kept.add({picture.digest: self.vlm.encode([picture.image()])[0]})
        features = self._kept[picture.digest]
        assert isinstance(features, Features)  # only these are added
        return ShownPicture(picture.digest, features)
