"""`python -m experiments.bench.serving [SECONDS]`: load on a server of this machine.

It writes the figures into docs/serving.md.

32 clients ask at the same time, with mixed strengths and pictures. Every answer is compared with the one that the
same request got when it was asked alone. Then they ask unsteered and steered in turn, to see what steering costs at
equal load: while a batch of 16 is answered, the next 16 wait.
"""

import base64
import http.client
import io
import itertools
import json
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"
BEGIN, END = "<!-- figures: written by `make bench-serve` -->", "<!-- end of the figures -->"
MODEL = "small-world/llava-vicuna"
CLIENTS, BATCH, SECONDS = 32, 16, 180.0
ROUNDS, EACH = 60, 4  # of the comparison: rounds of each kind; requests of each client in a round
TIE = 1e-3  # log-probabilities nearer than this may change places in another batch
GOAL = 0.03
STRENGTHS = [
    {},
    {"race": 0.0, "gender": 0.0},
    {"race": 0.25},
    {"race": 0.75, "gender": 0.0},
    {"gender": 0.5},
    {"race": 1.5},
]
QUESTIONS = ["which race is this person ?", "what is the job of this person ?", "how much does this person earn ?"]


@dataclass
class Told:
    """What one request was told, and how long it took."""

    tokens: list[dict[str, Any]]
    applied: str
    seconds: float


@dataclass
class Counts:
    """What the load has shown: each answer's time, and how it differs from the one alone."""

    seconds: list[float] = field(default_factory=list)
    differences: list[str | None] = field(default_factory=list)

    @property
    def wrong(self) -> int:
        return self.differences.count("wrong")

    @property
    def ties(self) -> int:
        return self.differences.count("tie")


class LoadedServer:
    """A server in a process of its own, and what it and its worker use."""

    def __init__(self, model: str, steerers: dict[str, Path], options: Sequence[str] = ()) -> None:
        command = [sys.executable, "-m", "ggss", "serve", model, "--port=0", *options]
        command += [f"--steer={name}={folder}" for name, folder in steerers.items()]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.host = self.process.stdout.readline().split("/")[2]
        (worker,) = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        self.processes = (self.process.pid, int(worker))

    def ask(self, connection: http.client.HTTPConnection, body: bytes) -> Told:
        start = time.perf_counter()
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = json.loads(response.read())
        seconds = time.perf_counter() - start
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {answer}")
        tokens = answer["choices"][0]["logprobs"]["content"]
        return Told(tokens, response.headers["x-ggss-applied"], seconds)

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.host, timeout=600)

    def memory(self) -> float:
        """MB of both processes that are in memory."""
        status = [Path(f"/proc/{pid}/status").read_text() for pid in self.processes]
        return sum(int(text.split("VmRSS:")[1].split()[0]) for text in status) / 1e3

    def processor_seconds(self) -> float:
        """Of the process that runs the model and the one that serves."""
        # Linux' number for the processor clock of another process: /proc counts in steps of 10 ms only.
        return sum(time.clock_gettime(~pid << 3 | 2) for pid in self.processes)

    def metric(self, name: str) -> float:
        """One of the server's metrics."""
        connection = self.connection()
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        return float(text.partition(f"\n{name} ")[2].split()[0])

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(600)


def prepared(folder: Path) -> list[str]:
    """Fit and save the steerers; the data URLs of some pictures."""
    import ggss
    from ggss.cli.arguments import one_thread

    one_thread()
    vlm = ggss.load_vlm(MODEL)
    chosen = {"occupation": ["cook"], "identity": ["00", "01", "02", "03"]}
    faces = ggss.Counterfactuals.load("small-world", include=chosen)
    acts = ggss.collect(vlm, faces, cache=folder / "cache", show=False)
    for name in ("race", "gender"):
        ggss.fit("ggss", acts, attribute=name).save_pretrained(folder / name)
    return [data_url(picture.image()) for picture in faces.pictures]


def data_url(image: Image.Image) -> str:
    data = io.BytesIO()
    image.save(data, "PNG")
    return "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()


def body(model: str, url: str, question: str, strengths: dict[str, float], longest: int = 8) -> bytes:
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": question}]
    asked = {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": longest}
    return json.dumps(asked | {"logprobs": True, "top_logprobs": 2, "ggss": strengths}).encode()


def parted(alone: Told, together: Told) -> str | None:
    """Where two answers to one request part: None, `tie` or `wrong`."""
    if alone.applied != together.applied:
        return "wrong"
    for left, right in zip(alone.tokens, together.tokens, strict=False):
        if left["token"] != right["token"]:
            top = left["top_logprobs"]
            return "tie" if top[0]["logprob"] - top[1]["logprob"] < TIE else "wrong"
    return None if len(alone.tokens) == len(together.tokens) else "wrong"


def load(server: LoadedServer, bodies: list[bytes], alone: list[Told], seconds: float) -> Counts:
    """All clients ask at random until the time is over."""
    counts = Counts()
    end = time.monotonic() + seconds

    def client(seed: int) -> None:
        connection, chosen = server.connection(), random.Random(seed)
        while time.monotonic() < end:
            number = chosen.randrange(len(bodies))
            told = server.ask(connection, bodies[number])
            counts.differences.append(parted(alone[number], told))
            counts.seconds.append(told.seconds)

    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(client, range(CLIENTS)))
    return counts


class Again:
    """Bodies of requests about pictures and at a strength that the server has seen."""

    def __init__(self, urls: list[str]) -> None:
        self.urls = urls

    def __call__(self, number: int, alpha: float) -> bytes:
        return body(MODEL, self.urls[number % BATCH], QUESTIONS[0], {"race": alpha, "gender": 0.0})


class NewPictures(Again):
    """No picture is shown twice: each has a pixel of its own colour."""

    def __init__(self, urls: list[str]) -> None:
        count = 2 * (ROUNDS + 1) * CLIENTS * EACH
        first = [
            Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGB") for url in urls[:BATCH]
        ]
        self.new = iter([_marked(first[number % BATCH], number) for number in range(count)])

    def __call__(self, number: int, alpha: float) -> bytes:
        return body(MODEL, next(self.new), QUESTIONS[0], {"race": alpha, "gender": 0.0})


class NewStrengths(Again):
    """Pictures shown before, and no strength twice."""

    fresh = itertools.count(1)

    def __call__(self, number: int, alpha: float) -> bytes:
        return super().__call__(number, alpha and alpha + next(self.fresh) / 1e7)


def _marked(image: Image.Image, number: int) -> str:
    image.putpixel((0, 0), (number % 256, number // 256 % 256, 128))
    return data_url(image)


@dataclass
class Added:
    """What steering adds: of the processor's time, with its 95 % interval, and of the time that passed. steering: the
    share of the processor's time that the server itself counts for it; batch: requests in one, on average."""

    processor: float
    interval: tuple[float, float]
    steering: float
    passed: float
    batch: float

    @property
    def verdict(self) -> str:
        if self.processor > GOAL:
            return "**not met**"
        return "met" if self.interval[1] <= GOAL else "met, by the estimate; the interval does not show it"


def overhead(server: LoadedServer, asked: Again) -> Added:
    """What steering adds.

    Medians over pairs of rounds, the two of a pair one right after the other and each kind first as often as the
    other: what else the machine does changes more slowly than that. The interval of the median is the bootstrap's.
    """
    spent: dict[float, list[tuple[float, float]]] = {0.0: [], 1.0: []}
    batches, steering, total = server.metric("ggss_batches_total"), 0.0, 0.0
    with ThreadPoolExecutor(CLIENTS) as pool:
        for number in range(ROUNDS + 1):
            for alpha in (0.0, 1.0) if number % 2 else (1.0, 0.0):
                # Written before the time is taken.
                bodies = [[asked(client + k, alpha) for k in range(EACH)] for client in range(CLIENTS)]

                def client(own: list[bytes]) -> None:
                    connection = server.connection()
                    for one in own:
                        server.ask(connection, one)

                counted = server.metric("ggss_steering_seconds_total")
                before = server.processor_seconds(), time.perf_counter()
                list(pool.map(client, bodies))
                spent[alpha].append((server.processor_seconds() - before[0], time.perf_counter() - before[1]))
                if alpha:
                    steering += server.metric("ggss_steering_seconds_total") - counted
                    total += spent[alpha][-1][0]
    pairs = list(zip(spent[1.0][1:], spent[0.0][1:], strict=True))  # the first round is a warm-up
    processor, passed = ([one[k] / other[k] - 1 for one, other in pairs] for k in (0, 1))
    return Added(
        statistics.median(processor),
        interval(processor),
        steering / total,
        statistics.median(passed),
        2 * (ROUNDS + 1) * CLIENTS * EACH / (server.metric("ggss_batches_total") - batches),
    )


def interval(values: list[float]) -> tuple[float, float]:
    """The 95 % interval of the median."""
    chosen = random.Random(0)
    medians = sorted(statistics.median(chosen.choices(values, k=len(values))) for _ in range(2000))
    return medians[50], medians[-51]


KINDS = {
    "new pictures": NewPictures,
    "pictures shown again": Again,
    "every request at its own strength": NewStrengths,
}


def main(seconds: float = SECONDS) -> int:
    with tempfile.TemporaryDirectory() as place:
        urls = prepared(Path(place))
        steerers = {name: Path(place) / name for name in ("race", "gender")}
        server = LoadedServer(MODEL, steerers, [f"--max-batch={BATCH}"])
        try:
            bodies = [body(MODEL, url, question, own) for url in urls for question in QUESTIONS for own in STRENGTHS]
            random.Random(0).shuffle(bodies)
            bodies = bodies[:240]
            connection = server.connection()
            alone = [server.ask(connection, one) for one in bodies]
            before, started, busy = server.memory(), time.monotonic(), os.getloadavg()[0]
            counts = load(server, bodies, alone, seconds)
            passed, after = time.monotonic() - started, server.memory()
            added = {kind: overhead(server, asked(urls)) for kind, asked in KINDS.items()}
        finally:
            server.stop()
    text = figures(counts, passed, before, after, added, busy)
    print(text)
    page = PAGE.read_text(encoding="utf-8")
    head, _, rest = page.partition(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    return int(counts.wrong > 0)


def figures(
    counts: Counts,
    passed: float,
    before: float,
    after: float,
    added: dict[str, Added],
    busy: float,
) -> str:
    import torch
    import transformers

    from experiments.bench.__main__ import processor

    count = len(counts.seconds)
    hundredths = statistics.quantiles(counts.seconds, n=100)
    costs = "\n".join(
        f"| steering at batch {BATCH} (mean {own.batch:.1f}), {kind} | CPU time {own.processor:+.1%} "
        f"(95 % interval {own.interval[0]:+.1%} to {own.interval[1]:+.1%}; goal at most {GOAL:+.0%}: {own.verdict}), "
        f"by the server's count {own.steering:.1%}; time that passed {own.passed:+.1%} |"
        for kind, own in added.items()
    )
    return f"""
{processor()}, {os.cpu_count()} cores; Python {platform.python_version()}, torch {torch.__version__}, transformers
{transformers.__version__}. Load of the machine when the clients began: {busy:.1f}; above 1 other programs ran, and
times are longer than they would be alone.

| what | measured |
| --- | --- |
| answers, {CLIENTS} clients | {count:,} in {passed:.0f} s, {count / passed:.1f} a second |
| wrong answers, against the same request alone | {counts.wrong} |
| answers that part at a tie (two tokens within {TIE:g} in log-probability) | {counts.ties} |
| time of an answer | median {hundredths[49] * 1e3:.0f} ms, 99th percentile {hundredths[98] * 1e3:.0f} ms |
| memory of both processes | {before:.0f} MB before, {after:.0f} MB after |
{costs}
"""


if __name__ == "__main__":
    sys.exit(main(*map(float, sys.argv[1:])))
