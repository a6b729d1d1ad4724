"""A worker without a model, which does what requests tell it: the real connection, and every way to fail."""

import os
import sys
import threading
from pathlib import Path

from ggss.serve.answers import AnswerPiece, AnswerStart
from ggss.serve.engine import Ask, Failed, JobQueue, Load, NotLoaded, Ready, Reload, Reloaded, ServerGone, Started
from ggss.serve.schema import ServedSteerer


def steerer(name: str, folder: str) -> ServedSteerer:
    return ServedSteerer(folder, "ggss", name, float(Path(f"{folder}-alpha").exists()), Path(folder).read_text())


def work(jobs: JobQueue) -> None:
    load = jobs.next()
    assert isinstance(load, Load)
    steerers = {name: steerer(name, folder) for name, folder in load.setup.steerers.items()}
    for name, content in load.contents.items():
        if content != steerers[name].content:
            return jobs.send(NotLoaded(f"{name} is not the one that was checked"))
    model = Path(load.setup.model, "identity")
    jobs.send(Ready(model.read_text() if model.exists() else "", steerers))
    while True:
        request = jobs.next()
        if isinstance(request, Reload):
            if Path(request.folder).exists():
                jobs.send(Reloaded(request.number, request.name, steerer(request.name, request.folder)))
            else:
                jobs.send(Failed(request.number, 400, "there is no such folder"))
        elif isinstance(request, Ask):
            answer(jobs, request, Path(load.setup.model))


def answer(jobs: JobQueue, request: Ask, folder: Path) -> None:
    number, text = request.number, str(request.job.turns[0][1][0])
    jobs.send(Started([number]))
    once = folder / text
    if text in ("die", "die later"):
        jobs.next()  # the request beside it, which the next worker must get
    if text == "die" or (text.startswith("die once") and not once.exists()):
        once.touch()
        os._exit(9)
    if text == "damaged once" and not once.exists():
        once.touch()
        jobs._events.send_bytes(b"no pickle")
    jobs.output(number, AnswerStart(3, {}))
    if text == "start and die once" and not once.exists():
        once.touch()
        os._exit(9)
    if text == "die later":
        jobs.output(number, AnswerPiece(0, "a", 1))
        os._exit(9)
    if text == "hang":
        threading.Event().wait()
    if text == "wrong":
        return jobs.fail(Failed(number, 400, "that was wrong"))
    while text == "wait for cancel" and not jobs.is_cancelled(number):
        jobs.poll()
    alone = " alone" if request.alone else ""
    jobs.output(number, AnswerPiece(0, f"{text}{alone} {len(request.job.pictures)}", 1, [], "stop"))
    jobs.done(number, {"cached_bytes": 7, "cache_hits": 1, "cache_misses": 2})


if __name__ == "__main__":
    try:
        work(JobQueue.of_process(sys.argv[1:]))
    except ServerGone:
        sys.exit(0)
