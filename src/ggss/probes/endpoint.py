"""A model behind an OpenAI-compatible chat server (vLLM, SGLang, llama.cpp, Ollama, `ggss serve`) that answers items.

It is asked what a local model is asked: the same prompts, with pictures at the same places. A picture is sent as the
PNG of the pixels that a local model sees, in a data URL. Temperature is 0. What decides the answers besides, such as
weights and chat template, is the server's and cannot be known here.

The probabilities of options are those that the server lists for the first token of its answer (`top_logprobs`):

- An option has the likeliest listed token that is the option or begins it, white space aside.
- Each is divided by their sum, so that they sum to 1.
- An option without a listed token is at most as likely as the least likely listed one. Where that bound is below
  `NEGLIGIBLE` of the sum, its probability is 0. Elsewhere it is not known, and the item has no probabilities at all.
- If a listed token begins two options, the item has none either.

A request that fails for a reason that may pass (no connection, no answer in time, 408, 429, 5xx, an answer that is no
chat completion) is repeated after 1, 2, 4, ... seconds, or when the server says (Retry-After). Everything else is a
sentence.
"""

import base64
import io
import json
import math
import queue
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ggss import errors
from ggss.data.pictures import PICTURE, Picture
from ggss.errors import InputError
from ggss.escaping import one_line
from ggss.models.reading import Answer
from ggss.probes.base import Item
from ggss.terminal import note
from ggss.version import __version__, installed_version

KEY = "GGSS_ENDPOINT_KEY"  # the environment variable of the server's key
CONCURRENCY, TIMEOUT, TRIES = 8, 120.0, 8
LONGEST_WAIT, LONGEST_RETRY_AFTER = 60.0, 600.0  # seconds
NEGLIGIBLE = 1e-3  # of the options' probability
LISTED = (20, 5, None)  # how many likely tokens are asked for; fewer if the server refuses more; None: none at all
LARGEST = 2**24  # bytes of a reply
MAY_PASS = (408, 425, 429, 500, 502, 503, 504, 529)
RESERVED = ("model", "messages", "stream", "n", "logprobs", "top_logprobs", "temperature")
NOT_KNOWN = ("weights", "image processor and chat template", "engine and dtype")


class Unanswered(InputError):
    """A server could not be asked, or did not answer."""


class HttpReply(NamedTuple):
    status: int
    headers: Mapping[str, str]
    data: bytes


@dataclass
class Endpoint:
    """A served model that answers items, as `SteeredModel` does. What steers it, if anything does, is the server's.

    Args:
        url: the server's base address, such as http://localhost:8000/v1.
        model: its name there.
        request: fields of every request besides; one that is None is left out.
        key: sent as a bearer token; it is neither printed nor kept.
        concurrency: requests at a time.
        timeout: seconds without a byte from the server.
        tries: of a request that fails for a reason that may pass.
        wait: waits so many seconds; None: the clock does.
    """

    url: str
    model: str
    request: Mapping[str, Any] = field(default_factory=dict)
    key: str = field(default="", repr=False)
    concurrency: int = CONCURRENCY
    timeout: float = TIMEOUT
    tries: int = TRIES
    wait: Callable[[float], object] | None = field(default=None, repr=False)

    steerings = ()
    alpha = 0.0
    suffix = ""

    def __post_init__(self) -> None:
        self.url = _base_address(self.url)
        if not self.model:
            raise InputError("an endpoint serves models by name: give --model NAME")
        if not self.key.isascii() or not self.key.isprintable():
            raise InputError(f"the key in {KEY} has characters that no HTTP header can have: set it again")
        if reserved := [name for name in self.request if name in RESERVED]:
            raise InputError(
                f"a request's field {reserved[0]!r} is set by ggss: leave it out; it sets {', '.join(RESERVED)}"
            )
        errors.CONCURRENCY.check("the number of requests at a time", self.concurrency)
        errors.SECONDS.check("the timeout", self.timeout)
        self._listed = list(LISTED)
        self._models: list[str] = []
        self._warned: set[str] = set()
        self._opener = urllib.request.build_opener(_NoRedirect)

    @property
    def name(self) -> str:
        return self.model

    @property
    def identity(self) -> dict[str, str]:
        """What is known of what answers, and what is not."""
        extra = {"request": json.dumps(dict(self.request), sort_keys=True)} if self.request else {}
        return {"endpoint": self.url, "temperature": "0", **extra} | dict.fromkeys(NOT_KNOWN, "not known")

    @property
    def versions(self) -> dict[str, str]:
        """Of what decides the requests."""
        return {"ggss": __version__, "pillow": installed_version("pillow")}

    def check(self) -> None:
        """Unanswered if the server cannot be reached or refuses the key. A server need not list its models."""
        try:
            reply = self._http("/models")
        except _MayPass as error:
            raise Unanswered(f"{self.url} {error}: is the server running, and is this its address?") from error
        if reply.status in (401, 403):
            raise self._refusal(_Refused(reply.status, _message(reply.data)), None)
        if 300 <= reply.status < 400:
            raise self._redirected(reply)
        try:
            self._models = [str(model["id"]) for model in json.loads(reply.data)["data"]]
        except (ValueError, TypeError, KeyError, RecursionError):
            self._models = []

    def preload(self, pictures: Sequence[Picture], show: bool | None = None) -> None:
        """Nothing: a picture is encoded by the server, with the request that shows it."""

    def read_batch(self, items: Sequence[Item], max_new_tokens: int) -> list[Answer]:
        """The items asked, `concurrency` at a time; their answers in order."""
        pictures = {picture.digest: picture for item in items for picture in item.images}
        urls = {digest: data_url(picture) for digest, picture in pictures.items()}
        todo, done = queue.SimpleQueue[int](), queue.SimpleQueue[tuple[int, Answer | BaseException]]()
        stop = threading.Event()
        for number in range(len(items)):
            todo.put(number)

        def work() -> None:
            while not stop.is_set():
                try:
                    number = todo.get_nowait()
                except queue.Empty:
                    return
                try:
                    done.put((number, self._answer(items[number], urls, max_new_tokens, stop)))
                except BaseException as error:
                    stop.set()
                    done.put((number, error))

        # They do not keep the process alive: after Ctrl-C nobody waits for the answers under way.
        for _ in range(min(self.concurrency, len(items))):
            threading.Thread(target=work, daemon=True).start()
        answers: dict[int, Answer] = {}
        try:
            while len(answers) < len(items):
                number, answer = done.get()
                if isinstance(answer, BaseException):
                    raise answer
                answers[number] = answer
        finally:
            stop.set()
        return [answers[number] for number in range(len(items))]

    def _answer(self, item: Item, urls: Mapping[str, str], max_new_tokens: int, stop: threading.Event) -> Answer:
        body = {"model": self.model, "messages": [{"role": "user", "content": _content(item, urls)}]}
        body |= {"temperature": 0, "max_tokens": max_new_tokens, **self.request}
        body = {name: value for name, value in body.items() if value is not None}
        while True:
            listed = self._listed[0] if item.options else None
            scored = body if listed is None else body | {"logprobs": True, "top_logprobs": listed}
            try:
                choice = self._chat(scored, stop)
            except _Refused as refused:
                if listed is None or refused.status not in (400, 422):
                    raise self._refusal(refused, item) from refused
                self._list_fewer(body, listed, refused, item, stop)
                continue
            return Answer(_text(choice).strip(), option_probabilities(_listed_tokens(choice), tuple(item.options)))

    def _list_fewer(
        self, body: dict[str, Any], listed: int, refused: "_Refused", item: Item, stop: threading.Event
    ) -> None:
        """Ask for fewer likely tokens from now on. Raises if the request is refused without them, too."""
        try:
            self._chat(body, stop)
        except _Refused as error:
            raise self._refusal(error, item) from refused
        if self._listed[0] == listed:  # or another request has found that out
            self._listed.pop(0)
            if self._listed[0] is None:
                self._say(f"{self.url} gives no log-probabilities ({refused}): options have no probabilities")

    def _chat(self, body: Mapping[str, Any], stop: threading.Event) -> dict[str, Any]:
        """The first choice of a chat completion. _Refused if that would not change; Unanswered after all tries."""
        tried = 0
        while True:
            try:
                return self._chat_once(body)
            except _MayPass as problem:
                tried += 1
                if tried >= self.tries or stop.is_set():
                    raise self._given_up(body, problem) from problem
                seconds = min(2.0 ** (tried - 1), LONGEST_WAIT) if problem.after is None else problem.after
                self._say(f"{self.url} {problem}: such requests are repeated, after {seconds:g} s and more")
            (self.wait or stop.wait)(seconds)

    def _given_up(self, body: Mapping[str, Any], problem: "_MayPass") -> Unanswered:
        if problem.status >= 500 and self._takes_text_only(body):
            return Unanswered(self._no_pictures(str(problem)))
        return Unanswered(f"{self.url} {problem}, {self.tries} times: look at the server, then ask again")

    def _chat_once(self, body: Mapping[str, Any]) -> dict[str, Any]:
        reply = self._http("/chat/completions", body)
        if reply.status == 200:
            return _choice(reply.data)
        if reply.status in MAY_PASS:
            after = _retry_after(reply.headers)
            raise _MayPass(f"answered {reply.status} ({_message(reply.data)})", reply.status, after)
        if 300 <= reply.status < 400:
            raise self._redirected(reply)
        raise _Refused(reply.status, _message(reply.data))

    def _say(self, text: str) -> None:
        """Once for each reason, however many requests meet it."""
        reason = re.sub(r"\d", "", text)
        if reason not in self._warned:
            self._warned.add(reason)
            note(text)

    def _takes_text_only(self, body: Mapping[str, Any]) -> bool:
        """Whether the server answers the request if it shows no picture."""
        (message,) = body["messages"]
        texts = [part["text"] for part in message["content"] if part["type"] == "text"]
        if len(texts) == len(message["content"]):
            return False
        try:
            self._chat_once({**body, "messages": [{"role": "user", "content": " ".join(texts)}]})
        except (_MayPass, _Refused, Unanswered):
            return False
        return True

    def _no_pictures(self, problem: str) -> str:
        return (
            f"{self.model!r} at {self.url} takes no pictures: without one it answers, with one it {problem}. "
            "Serve a vision-language model; llama.cpp needs its mmproj file"
        )

    def _refusal(self, refused: "_Refused", item: Item | None) -> Unanswered:
        status, reply = refused.status, f"{refused.status}: {refused.message}"
        if status in (401, 403):
            wrong = f"refuses the key in {KEY}" if self.key else f"wants a key, and {KEY} is not set"
            # What the server says besides may quote the key.
            return Unanswered(f"{self.url} {wrong} ({status}): set this environment variable to the server's key")
        if status == 404:
            known = f"it has {', '.join(self._models)}" if self._models else "look at its list, GET /models"
            return Unanswered(
                f"{self.url} has no model {self.model!r}, or no chat at this address ({reply}): {known}"
            )
        if item is not None and item.images and status != 413:
            body = {
                "model": self.model,
                "messages": [{"role": "user", "content": _content(item, {})}],
                "max_tokens": 1,
            }
            if self._takes_text_only(body):
                return Unanswered(self._no_pictures(f"answered {reply}"))
        return Unanswered(
            f"{self.url} refuses a request ({reply}): what it does not take can be left out by --request"
        )

    def _redirected(self, reply: HttpReply) -> Unanswered:
        place = one_line(reply.headers.get("Location", "it does not say where"))
        return Unanswered(
            f"{self.url} is elsewhere ({reply.status}, {place}): give that address; the key goes to no other"
        )

    def _http(self, path: str, body: Mapping[str, Any] | None = None) -> HttpReply:
        """One request. _MayPass if there is no reply."""
        headers = {"Accept": "application/json", "User-Agent": f"ggss/{__version__}"}
        headers |= {"Content-Type": "application/json"} if body is not None else {}
        headers |= {"Authorization": f"Bearer {self.key}"} if self.key else {}
        data = None if body is None else json.dumps(body).encode()
        try:
            return self._replied(urllib.request.Request(self.url + path, data, headers))
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, TimeoutError):
                raise _MayPass(f"did not answer within {self.timeout:g} s") from error
            words = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
            raise _MayPass(f"cannot be reached ({one_line(words)})") from error

    def _replied(self, request: urllib.request.Request) -> HttpReply:
        try:
            reply: Any = self._opener.open(request, timeout=self.timeout)
        except urllib.error.HTTPError as error:
            reply = error
        with reply:
            return HttpReply(reply.status or 0, dict(reply.headers.items()), reply.read(LARGEST))


def option_probabilities(listed: Sequence[tuple[str, float]], options: Sequence[str]) -> tuple[float, ...]:
    """The options' probabilities, by the rules above; () if they are not known.

    listed: tokens that an answer may begin with, and their log-probabilities, the likeliest of all there are.
    """
    if not listed or not options:
        return ()
    likeliest: dict[str, float] = {}
    for token, logprob in listed:
        begun = [option for option in options if token.strip() and option.startswith(token.strip())]
        if len(begun) > 1:
            return ()
        for option in begun:
            likeliest[option] = max(likeliest.get(option, 0.0), math.exp(logprob))
    total = sum(likeliest.values())
    bound = math.exp(min(logprob for _, logprob in listed))
    if not total or (len(likeliest) < len(options) and bound > NEGLIGIBLE * total):
        return ()
    return tuple(likeliest.get(option, 0.0) / total for option in options)


def data_url(picture: Picture) -> str:
    """The pixels that a local model sees, as a PNG."""
    file = io.BytesIO()
    picture.image().save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


class _MayPass(Exception):
    """What a server did instead of answering; it may answer later. after: seconds, if it says when."""

    def __init__(self, what: str, status: int = 0, after: float | None = None) -> None:
        super().__init__(what)
        self.status, self.after = status, after


class _Refused(Exception):
    """A request that would be refused again."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status, self.message = status, message


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """urllib would send the key to wherever a server points."""

    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: Any) -> None:
        return None


def _base_address(url: str) -> str:
    """Scheme, host and path, without a slash at the end; /v1 if there is no path. InputError for anything else."""
    wrong = InputError(f"--endpoint {url!r} is no address of a server: give one such as http://localhost:8000/v1")
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        raise wrong from None
    if not usable or not url.isascii() or not url.isprintable() or " " in url:
        raise wrong
    if parts.username is not None or parts.query or parts.fragment:
        raise InputError(
            f"--endpoint must be an address alone, without a name, key or question mark in it: set {KEY} to the key"
        )
    path = parts.path.rstrip("/").removesuffix("/chat/completions").rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path or '/v1'}"


def _content(item: Item, urls: Mapping[str, str]) -> list[dict[str, Any]]:
    """The prompt's parts: pictures at its marks, or before it if it has none."""
    if item.shapes:
        raise InputError(
            f"the wording asks some families of models in a shape of their own ({', '.join(sorted(item.shapes))}), "
            "and the family of a served model is not known: leave `families` out of the wording"
        )
    marks = item.prompt.count(PICTURE)
    if marks not in (0, len(item.images)):
        raise InputError(f"a question about {len(item.images)} images shows {marks} with {PICTURE}: {item.prompt!r}")
    texts = item.prompt.split(PICTURE) if marks else [*[""] * len(item.images), item.prompt]
    content: list[dict[str, Any]] = []
    for number, text in enumerate(texts):
        if number:
            url = urls.get(item.images[number - 1].digest, "")
            content.append({"type": "image_url", "image_url": {"url": url}})
        if text:
            content.append({"type": "text", "text": text})
    return content


def _choice(data: bytes) -> dict[str, Any]:
    """The first choice; its message is there, and its content is text."""
    try:
        reply = json.loads(data)
        choice = reply["choices"][0]
        if not isinstance(_text(choice), str):
            raise TypeError
        return choice
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise _MayPass(f"answered what is no chat completion ({_message(data)})") from error


def _text(choice: dict[str, Any]) -> Any:
    """What the model says; a refusal has a field of its own. A model that is cut off while it thinks says nothing."""
    message = choice["message"]
    return message["content"] or message.get("refusal") or ""


def _listed_tokens(choice: Mapping[str, Any]) -> list[tuple[str, float]]:
    """The likely first tokens of an answer; none if they are not there, or are not of OpenAI's form."""
    try:
        listed = [
            (token["token"], float(token["logprob"])) for token in choice["logprobs"]["content"][0]["top_logprobs"]
        ]
    except (TypeError, KeyError, IndexError, ValueError):
        return []
    usable = all(isinstance(token, str) and logprob <= 1e-3 for token, logprob in listed)
    return listed if usable else []


def _message(data: bytes) -> str:
    """What a server says of an error, shortened; or the beginning of what it sent."""
    text = data.decode(errors="replace")
    try:
        body = json.loads(text)
        error = body.get("error", body)
        message = error if isinstance(error, str) else error.get("message") or error.get("detail")
        text = message if isinstance(message, str) else text
    except (ValueError, AttributeError, RecursionError):
        pass
    line = one_line(text).strip()
    return (line[:200] + "..." if len(line) > 200 else line) or "nothing was said"


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server wants to be left alone; a date is not read."""
    text = next((value.strip() for name, value in headers.items() if name.lower() == "retry-after"), "")
    return min(float(text), LONGEST_RETRY_AFTER) if re.fullmatch(r"\d{1,9}(\.\d+)?", text) else None
