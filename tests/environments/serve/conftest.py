"""One server on a free port of this machine, with a small-world model and steerers fitted on a few pictures."""

import base64
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")

import openai
import pytest

import ggss
from ggss.cli.arguments import one_thread

MODEL = "small-world/llava-vicuna"
KEY, ADMIN = "a-key-for-tests-only", "an-admin-key-for-tests"
PATIENCE = 900  # seconds; a busy machine may be slow, and nothing here waits for time to pass


@dataclass
class World:
    """The model in this process, its pictures, and the folders of its steerers."""

    vlm: Any
    faces: Any
    steerers: dict[str, Path]

    def png(self, number: int) -> bytes:
        import io

        data = io.BytesIO()
        self.faces.pictures[number].image().save(data, "PNG")
        return data.getvalue()


@dataclass
class Server:
    """A running `ggss serve`."""

    process: subprocess.Popen
    url: str
    log: Path
    errors: Path

    @property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=KEY, max_retries=0, timeout=PATIENCE)

    @property
    def worker(self) -> int:
        """The process id of the one worker."""
        pid = self.process.pid
        (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(child)

    def ended(self) -> int:
        """The exit code, once it has ended."""
        with self.process:
            return self.process.wait(PATIENCE)

    def get(self, path: str) -> str:
        request = urllib.request.Request(f"{self.url}{path}", headers={"Authorization": f"Bearer {KEY}"})
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.read().decode()

    def metric(self, name: str) -> float:
        return next(
            float(line.split()[-1]) for line in self.get("/metrics").splitlines() if line.startswith(f"{name} ")
        )


def start(world: World, folder: Path, *options: str, model: str = MODEL, descriptors: int | None = None) -> Server:
    """A server with keys, an admin key and a log; descriptors: how many files it may open."""
    limited = ["sh", "-c", f'ulimit -n {descriptors} && exec "$@"', "sh"] if descriptors else []
    (folder / "keys").write_text(f"{KEY}\n")
    (folder / "admin").write_text(f"{ADMIN}\n")
    steerers = [f"--steer={name}={place}" for name, place in world.steerers.items()]
    files = [
        f"--keys-file={folder / 'keys'}",
        f"--admin-key-file={folder / 'admin'}",
        f"--log={folder / 'log.jsonl'}",
    ]
    errors = folder / "stderr"
    with errors.open("w") as file:
        process = subprocess.Popen(
            [
                *limited,
                sys.executable,
                "-m",
                "ggss",
                "serve",
                model,
                *steerers,
                *files,
                "--port=0",
                f"--timeout={PATIENCE}",
                *options,
            ],
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
        )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("ready: http://127.0.0.1:"), (line, errors.read_text())
    return Server(process, line.split()[1].removesuffix("/v1"), folder / "log.jsonl", errors)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    one_thread()
    folder = tmp_path_factory.mktemp("steerers")
    vlm = ggss.load_vlm(MODEL)
    faces = ggss.Counterfactuals.load(
        "small-world", include={"occupation": "cook", "identity": ["00", "01", "02", "03"]}
    )
    acts = ggss.collect(vlm, faces, cache=folder / "cache", show=False)
    steerers = {name: ggss.fit("ggss", acts, attribute=name) for name in ("race", "gender")}
    folders = {name: one.save_pretrained(folder / name) for name, one in steerers.items()}
    return World(vlm, faces, {name: Path(place) for name, place in folders.items()})


@pytest.fixture(scope="session")
def server(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    served = start(world, tmp_path_factory.mktemp("server"), "--max-picture-mb=1", "--max-body-mb=4")
    yield served
    served.process.send_signal(signal.SIGTERM)
    assert served.ended() == 0


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return server.client


def shown(*pictures: bytes) -> list[dict[str, Any]]:
    """The parts of a message that show pictures."""
    urls = [f"data:image/png;base64,{base64.b64encode(one).decode()}" for one in pictures]
    return [{"type": "image_url", "image_url": {"url": url}} for url in urls]


def asked(text: str, *pictures: bytes) -> list[dict[str, Any]]:
    """The messages of a question about pictures."""
    return [{"role": "user", "content": [*shown(*pictures), {"type": "text", "text": text}]}]
