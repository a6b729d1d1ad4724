"""A worker without a model, which does what requests tell it: the real protocol, and every way to fail."""

import os
import socket
import sys
import threading
from pathlib import Path

from ggss.serve.engine import Gone, JobQueue
from ggss.serve.schema import AnswerPiece, Began


def work(jobs: JobQueue) -> None:
    (setup, _) = jobs.next()
    steerers = {
        name: {
            "folder": folder,
            "method": "ggss",
            "attribute": name,
            "alpha": float(Path(f"{folder}-alpha").exists()),
            "content": Path(folder).read_text(),
        }
        for name, (folder, _) in setup["steerers"].items()
    }
    for name, (_, expected) in setup["steerers"].items():
        if expected not in (None, steerers[name]["content"]):
            return jobs.tell({"event": "refused", "sentence": f"{name} is not the one that was checked"})
    model = Path(setup["model"], "identity")
    jobs.tell({"event": "ready", "model": model.read_text() if model.exists() else "", "steerers": steerers})
    while True:
        message, pictures = jobs.next()
        number = message["id"]
        if message["do"] == "reload":
            content = Path(message["folder"]).read_text() if Path(message["folder"]).exists() else ""
            new = {
                "folder": message["folder"],
                "method": "ggss",
                "attribute": "race",
                "alpha": float(Path(f"{message['folder']}-alpha").exists()),
                "content": content,
            }
            told = {"steerer": new} if content else {"sentence": "there is no such folder"}
            jobs.tell({"event": "reloaded", "id": number, **told})
            continue
        jobs.tell({"event": "started", "ids": [number]})
        text = message["job"]["turns"][0][1][0]
        once = Path(setup["model"]) / text
        if text in ("die", "die later"):
            jobs.next()  # the request beside it: a socket that is closed with something unread loses what was said
        if text == "die" or (text.startswith("die once") and not once.exists()):
            once.touch()
            os._exit(9)
        jobs.give(number, True, Began(3, {}))
        if text == "die later":
            jobs.give(number, True, AnswerPiece(0, "a", 1))
            os._exit(9)
        if text == "hang":
            threading.Event().wait()
        if text == "wrong":
            jobs.tell({"event": "failed", "id": number, "status": 400, "sentence": "that was wrong"})
            continue
        while text == "wait for cancel" and not jobs.gone(number):
            jobs.poll()
        alone = " alone" if message["alone"] else ""
        jobs.give(number, True, AnswerPiece(0, f"{text}{alone} {len(pictures)}", 1, [], "stop"))
        jobs.tell({"event": "done", "id": number, "facts": {"cached_bytes": 7, "cache_hits": 1, "cache_misses": 2}})
        jobs.forget(number)


if __name__ == "__main__":
    try:
        work(JobQueue(socket.socket(fileno=int(sys.argv[1]))))
    except Gone:
        sys.exit(0)
