"""Running the server: an address that may be bound, the engine, and an orderly end."""

import asyncio
import ipaddress
import signal
import socket
from collections.abc import Callable, Sequence
from typing import Any

from ggss.errors import InputError
from ggss.serve.api_keys import ApiKeys
from ggss.serve.http_app import ServerSettings, make_app
from ggss.serve.worker_engine import COMMANDS, WorkerEngine, WorkerSetup


def bound(host: str, port: int, keys: ApiKeys) -> socket.socket:
    """A socket at the address. InputError if it is taken, or if others could reach a server without keys."""
    if not keys and not _is_loopback(host):
        raise InputError(
            f"others can reach {host}, and there is no key: give --keys-file or GGSS_SERVE_KEYS, or bind to 127.0.0.1"
        )
    here = None
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        here = socket.socket(family, kind, number)
        here.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        here.bind(address)
    except OSError as error:
        if here is not None:
            here.close()
        raise InputError(f"cannot listen on {host} port {port} ({error.strerror}): give another --port") from error
    return here


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def run(
    setup: WorkerSetup,
    settings: ServerSettings,
    here: socket.socket,
    say: Callable[[str], None],
    engine: str = "transformers",
) -> bool:
    """Serve until a signal comes, then answer what is there and end; False if the model was lost."""
    return asyncio.run(_run(setup, settings, here, say, COMMANDS[engine]))


async def _run(
    setup: WorkerSetup,
    settings: ServerSettings,
    here: socket.socket,
    say: Callable[[str], None],
    command: Sequence[str],
) -> bool:
    import uvicorn

    kept = True

    def lost() -> None:
        nonlocal kept
        kept, server.should_exit = False, True

    engine = WorkerEngine(setup, settings.limits.seconds, lost, command)
    config: Any = uvicorn.Config(
        make_app(engine, settings),
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=max(1, int(settings.limits.seconds)),
    )
    server = uvicorn.Server(config)
    try:
        await engine.start()
        # While the model is loaded, SIGTERM ends the process. From now on it drains; uvicorn has its own handler, and
        # raises the signal once more when it is done.
        signal.signal(signal.SIGTERM, lambda *_: setattr(server, "should_exit", True))
        here.listen(config.backlog)  # or whoever reads the next line and is fast would be refused
        say(f"ready: http://{_written(here)}/v1")
        await server.serve(sockets=[here])
    finally:
        await engine.stop()
    return kept


def _written(here: socket.socket) -> str:
    host, port = here.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
