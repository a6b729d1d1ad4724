"""A steered model that lmms-eval evaluates on any of its picture tasks.

    python -m lmms_eval --model ggss --tasks mmstar --batch_size 8 \\
        --model_args pretrained=llava-hf/llava-v1.6-vicuna-7b-hf,steerer=race-steerer,alpha=1.0,identity=id-...

The harness caches answers under the model arguments only. So all that determines an answer must be among them: the
strength has no default, and `identity` is a hash of model and steerer. It is checked: leave it out once, and the
error says what it must be. Without `steerer` the model is not steered: that is the run to compare with.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from PIL import Image

from ggss import hashing
from ggss.data.pictures import in_rgb
from ggss.errors import InputError
from ggss.models import Vlm, load_vlm
from ggss.steering.steerer import Steerer, checked_alpha
from ggss.terminal import track

try:
    from lmms_eval.api.model import lmms  # pyright: ignore[reportMissingImports]
    from lmms_eval.models.registry_v2 import ModelManifest  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise ImportError("evaluating with lmms-eval needs it: pip install 'ggss[eval]'") from error

LONGEST_ANSWER = 1024  # tokens, for a task that sets no limit


class _Question(NamedTuple):
    """One request: the prompt, how to fetch its pictures, and the target.

    target: the generation options of an answer, or the continuation to score.
    """

    prompt: str
    pictures: Callable[[], list[Image.Image]]
    target: Any


class LmmsModel(lmms):
    """Answers greedily and scores continuations, one chat turn each, with the steerer attached.

    pretrained: a hub id, a folder, or `small-world/NAME`. steerer: a folder or hub id of `Steerer.save_pretrained`,
    with alpha its strength. identity: what `cache_identity` says of them. device, device_map and dtype are as in
    `load_vlm`; force and allow_amplify as in `Steerer.attach`. InputError says what does not fit.
    """

    is_simple = True

    def __init__(
        self,
        pretrained: str = "",
        steerer: str | None = None,
        alpha: float | None = None,
        identity: str | None = None,
        force: bool = False,
        allow_amplify: bool = False,
        dtype: str | None = None,
        device: str | None = None,
        device_map: str | None = None,
        batch_size: int | str = 1,
        max_batch_size: int | None = None,
        **unknown: Any,
    ) -> None:
        super().__init__()
        self.batch_size = _checked_batch_size(batch_size)
        if unknown:
            raise InputError(f"the model 'ggss' has no argument {', '.join(unknown)}")
        if not pretrained:
            raise InputError("the model 'ggss' needs pretrained=, a hub id, a folder or a small-world/ name")
        if (processes := int(os.environ.get("WORLD_SIZE", "1"))) > 1:
            raise InputError(
                f"the model 'ggss' runs in one process, seen {processes}: for several GPUs give device_map=auto"
            )
        if (steerer is None) != (alpha is None):
            raise InputError(f"steerer= and alpha= go together, seen steerer={steerer} and alpha={alpha}")
        if alpha is not None and not isinstance(alpha, int | float):
            raise InputError(f"alpha must be a number, seen {alpha!r}")
        self.alpha = float(alpha or 0)
        checked_alpha(self.alpha, allow_amplify)
        self.steerer = None if steerer is None else Steerer.from_pretrained(str(steerer))
        self.vlm = load_vlm(str(pretrained), dtype=dtype, device_map=device_map or device)
        self._permissions = {"force": force, "allow_amplify": allow_amplify}
        if self.steerer is not None:
            self.steerer.check(self.vlm, force=force)
        if identity != (expected := cache_identity(self.vlm, self.steerer)):
            raise InputError(
                f"the model 'ggss' needs identity={expected} among its arguments, seen {identity}: lmms-eval's cache "
                "knows answers by the arguments alone, so these must say which model and steerer gave them"
            )

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """The greedy answer to each request, cut off at the task's stop strings."""
        questions = []
        for prompt, options, pictures, *document in (_arguments(request) for request in requests):
            _check_greedy(options, document)
            questions.append(_Question(self._prompt(prompt), self._fetch(pictures, *document), options))
        answers = [""] * len(questions)
        for batch in self._batches(questions, key=_longest):
            texts = self._answer([questions[i] for i in batch], _longest(questions[batch[0]].target))
            for i, text in zip(batch, texts, strict=True):
                answers[i] = _until(text, questions[i].target.get("until"))
        return answers

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """log P(continuation | prompt) of each request, and whether the greedy answer of its length is the same.

        The space before a continuation is dropped: the chat template writes what separates question and answer.
        """
        questions = []
        for prompt, target, pictures, *document in (_arguments(request) for request in requests):
            continuation = target if isinstance(target, str) else str(target(self._document(*document)))
            if not continuation.strip():
                raise InputError(f"task {document[1]!r} asks for the probability of an empty answer")
            fetch = self._fetch(pictures, *document)
            questions.append(_Question(self._prompt(prompt), fetch, continuation.strip()))
        scores = [(0.0, False)] * len(questions)
        for batch in self._batches(questions, key=self._tokens):
            group = [questions[i] for i in batch]
            texts = self._answer(group, self._tokens(group[0].target))
            for i, logp, text in zip(batch, self._score(group), texts, strict=True):
                scores[i] = (logp, text == questions[i].target)
        return scores

    def generate_until_multi_round(self, requests: Sequence[Any]) -> list[str]:
        """Refused: a steered model is asked one question at a time."""
        raise InputError("the model 'ggss' answers single questions: choose tasks that are not multi-round")

    def _prompt(self, prompt: str) -> str:
        return prompt + (self.steerer.prompt_suffix if self.steerer else "")

    def _document(self, doc_id: int, task: str, split: str) -> Any:
        return self.task_dict[task][split][doc_id]

    def _fetch(self, pictures: Any, doc_id: int, task: str, split: str) -> Callable[[], list[Image.Image]]:
        """A function that reads the pictures of a request, called only when the request is answered."""

        def fetch() -> list[Image.Image]:
            images = (pictures(self._document(doc_id, task, split)) if pictures else None) or []
            if other := [type(image).__name__ for image in images if not isinstance(image, Image.Image)]:
                raise InputError(f"task {task!r} shows a {other[0]}, and the model 'ggss' sees pictures only")
            return [in_rgb(picture, f"a picture of task {task!r}") for picture in images]

        return fetch

    def _batches(self, questions: Sequence[_Question], key: Callable[[Any], int]) -> Iterable[list[int]]:
        """Batches of numbers of questions; those of a batch have the same number of tokens to generate."""
        groups: dict[int, list[int]] = {}
        for i, question in enumerate(questions):
            groups.setdefault(key(question.target), []).append(i)
        size = self.batch_size
        batches = [group[i : i + size] for group in groups.values() for i in range(0, len(group), size)]
        return track(batches, f"{self.vlm.name}: {len(questions)} requests")

    def _answer(self, group: Sequence[_Question], max_new_tokens: int) -> list[str]:
        prompts, pictures = [question.prompt for question in group], [question.pictures() for question in group]
        with self._steering(pictures):
            return self.vlm.answer(prompts, pictures, max_new_tokens=max_new_tokens, batch_size=len(group))

    def _score(self, group: Sequence[_Question]) -> list[float]:
        prompts, pictures = [question.prompt for question in group], [question.pictures() for question in group]
        with self._steering(pictures):
            scores = self.vlm.score(
                prompts, pictures, [[question.target] for question in group], batch_size=len(group)
            )
        return [score for (score,) in scores]

    def _steering(self, pictures: Sequence[Sequence[Image.Image]]) -> AbstractContextManager[Any]:
        """Attaches the steerer, if there is one and the batch has pictures; text alone is not steered."""
        if self.steerer is None or not any(pictures):
            return nullcontext()
        return self.steerer.attach(self.vlm, self.alpha, **self._permissions)

    def _tokens(self, continuation: str) -> int:
        return len(self.vlm.processor.tokenizer(continuation, add_special_tokens=False)["input_ids"])


def cache_identity(vlm: Vlm, steerer: Steerer | None = None) -> str:
    """Hash of everything that determines the answers besides the strength. It cannot be parsed as a number."""
    return f"id-{hashing.of([vlm.identity.hash, steerer and steerer.content_hash])[:16]}"


def _arguments(request: Any) -> tuple[Any, ...]:
    if len(request.args) != 6:
        raise InputError(
            f"task {request.task_name!r} asks in a way the model 'ggss' does not know ({len(request.args)} parts): "
            "single questions about pictures are answered; probabilities without a question (acc_mutual_info) are not"
        )
    return request.args


def _check_greedy(options: dict[str, Any], document: Sequence[Any]) -> None:
    """InputError for options that are not greedy decoding."""
    sampling = [
        f"{name}={options[name]}"
        for name, limit in (("temperature", 0), ("do_sample", 0), ("num_beams", 1))
        if (options.get(name) or 0) > limit
    ]
    if sampling:
        raise InputError(
            f"task {document[1]!r} wants {', '.join(sampling)}, and the model 'ggss' answers greedily: "
            "give --gen_kwargs temperature=0,do_sample=False,num_beams=1"
        )


def _longest(options: dict[str, Any]) -> int:
    return int(options.get("max_new_tokens") or LONGEST_ANSWER)


def _until(text: str, stops: str | Sequence[str] | None) -> str:
    for stop in [stops] if isinstance(stops, str) else stops or []:
        text = text.split(stop)[0] if stop else text
    return text


def _checked_batch_size(size: int | str) -> int:
    if not str(size).isdecimal() or int(size) < 1:
        raise InputError(f"the model 'ggss' needs a batch size of at least 1, seen {size!r}")
    return int(size)


def lmms_eval_models() -> ModelManifest:
    """What lmms-eval finds under its entry-point group `lmms_eval.models`: the model `ggss`."""
    return ModelManifest("ggss", simple_class_path="ggss.evaluation.LmmsModel")
