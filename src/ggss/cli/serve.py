"""`ggss serve`: serve a steered model with OpenAI's chat API."""

import re
from typing import Annotated

import typer

from ggss import errors
from ggss.cli.arguments import (
    AnyModel,
    Attention,
    DeviceMap,
    Dtype,
    MaxSide,
    Model,
    embedded,
    named_strengths,
    pairs,
    say,
)
from ggss.errors import InputError, no_such

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")  # of a steerer; it is sent in a header


def serve(
    model: Model,
    steer: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FOLDER", help="A steerer, and its name in requests; may be repeated."),
    ] = None,
    alpha: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=ALPHA", help="A steerer's strength unless a request says another; by default its own."
        ),
    ] = None,
    engine: Annotated[str, typer.Option(help="What runs the model: transformers or vllm.")] = "transformers",
    host: Annotated[str, typer.Option(help="The address to listen on; any but 127.0.0.1 needs keys.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 is any free one.", min=0, max=65_535)] = 8000,
    keys_file: Annotated[
        str | None,
        typer.Option(
            help="A file of keys, one in a line; those in GGSS_SERVE_KEYS are valid too.", show_default=False
        ),
    ] = None,
    admin_key_file: Annotated[
        str | None,
        typer.Option(help="A file with the key of /ggss/reload; or GGSS_SERVE_ADMIN_KEY.", show_default=False),
    ] = None,
    metrics_key_file: Annotated[
        str | None,
        typer.Option(help="A file with a key of /metrics only; or GGSS_METRICS_KEY.", show_default=False),
    ] = None,
    api_key: Annotated[str | None, typer.Option(hidden=True)] = None,
    locked: Annotated[
        bool, typer.Option("--locked", help="Requests may not ask for less than the server's strengths.")
    ] = False,
    max_alpha: Annotated[
        float, typer.Option(help="The largest strength that requests may ask for.", min=0, max=errors.ALPHA.most)
    ] = errors.MAX_ALPHA,
    allow_negative: Annotated[
        bool, typer.Option("--allow-negative", help="Requests may ask for negative strengths, which amplify bias.")
    ] = False,
    any_model: AnyModel = False,
    log: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Log what was applied to each request, without its content.", show_default=False
        ),
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="The most tokens of one answer.", **errors.TOKENS.bounds)] = 512,
    max_prompt_tokens: Annotated[
        int, typer.Option(help="The most tokens of one prompt, those of images included.", **errors.TOKENS.bounds)
    ] = 32_768,
    max_batch: Annotated[
        int, typer.Option(help="The most answers that are generated together.", **errors.BATCH.bounds)
    ] = 16,
    max_queue: Annotated[int, typer.Option(help="Requests that may wait; more get 429.", min=1, max=65_536)] = 64,
    max_pictures: Annotated[int, typer.Option(help="The most pictures of one request.", min=0, max=1_024)] = 8,
    max_picture_mb: Annotated[
        float, typer.Option(help="The most MB of one picture's file.", min=0.001, max=1_024)
    ] = 10,
    max_megapixels: Annotated[float, typer.Option(help="The most megapixels of a picture.", min=0.001, max=89)] = 16,
    max_body_mb: Annotated[float, typer.Option(help="The most MB of one request.", min=0.001, max=4_096)] = 32,
    timeout: Annotated[float, typer.Option(help="Seconds that a request may take.", min=0.1, max=86_400)] = 120,
    idle_timeout: Annotated[
        float, typer.Option(help="Seconds that a connection may be silent.", min=0.1, max=86_400)
    ] = 10,
    max_connections: Annotated[
        int,
        typer.Option(help="The most open connections; more get 503. Fewer if `ulimit -n` is low.", min=1, max=10**6),
    ] = 512,
    max_per_address: Annotated[
        int, typer.Option(help="The most connections from one client address.", min=1, max=10**6)
    ] = 128,
    cache_mb: Annotated[float, typer.Option(help="MB of encoded pictures that are kept.", min=0, max=10**6)] = 512,
    max_side: MaxSide = None,
    dtype: Dtype = None,
    device_map: DeviceMap = None,
    attention: Attention = None,
) -> None:
    """Serve a model with OpenAI's chat API; clients of OpenAI work as they are.

    Needs FastAPI and uvicorn: pip install 'ggss[serve]'; with --engine vllm also vLLM: pip install 'ggss[vllm]'.
    Every image is steered at the server's strengths, or at those of the request: extra_body={"ggss": {"race": 0.75}}.
    Header x-ggss-applied says what was applied.

    Example: ggss serve small-world/llava-vicuna --steer race=race-steerer --alpha race=1.0
    """
    from ggss.serve.engine import COMMANDS, WorkerSetup
    from ggss.serve.guard import ADMIN_ENVIRONMENT, ENVIRONMENT, METRICS_ENVIRONMENT, ApiKeys, RequestLog
    from ggss.serve.schema import Limits, SteeringRules

    if api_key is not None:
        raise InputError(
            "--api-key would show the key to everybody who lists processes: write it into a file and give "
            "--keys-file FILE, or set GGSS_SERVE_KEYS"
        )
    _require_libraries()
    if engine not in COMMANDS:
        raise no_such(f"no engine {engine!r} in this version", engine, COMMANDS)
    if engine == "vllm":
        if any_model:
            raise InputError("--any-model is for --engine transformers: vLLM's steerers must be made for its model")
        from ggss.vllm_plugin import engine_version

        engine_version()
    folders = pairs(steer or [], "--steer")
    rules = SteeringRules(_strengths(alpha or [], folders, allow_negative), locked, allow_negative, max_alpha)
    keys = ApiKeys.read(keys_file, ENVIRONMENT)
    admin = ApiKeys.read(admin_key_file, ADMIN_ENVIRONMENT)
    metrics_key = ApiKeys.read(metrics_key_file, METRICS_ENVIRONMENT)
    limits = Limits(
        body=int(max_body_mb * 1e6),
        picture=int(max_picture_mb * 1e6),
        pixels=int(max_megapixels * 1e6),
        pictures=max_pictures,
        tokens=max_tokens,
        prompt_tokens=max_prompt_tokens,
        rows=max_batch,
        queue=max_queue,
        seconds=timeout,
        cache=int(cache_mb * 1e6),
        connections=max_connections,
        per_address=max_per_address,
        idle=idle_timeout,
    )
    from ggss.models import locate
    from ggss.serve.app import ServerSettings, bound, run

    locate(model)
    listener = bound(host, port, keys)
    setup = WorkerSetup(
        model,
        folders,
        most_rows=limits.rows,
        most_tokens=limits.tokens,
        prompt_tokens=limits.prompt_tokens,
        cache_bytes=limits.cache,
        most_pictures=limits.pictures,
        any_model=any_model,
        max_side=max_side,
        dtype=dtype,
        device_map=device_map,
        attention=attention,
        threads=1 if embedded(model) else None,
    )
    requests = RequestLog(log) if log else None
    settings = ServerSettings(model, rules, limits, keys, admin, requests, metrics_key)
    if not run(setup, settings, listener, say, engine):
        raise typer.Exit(1)


def _strengths(texts: list[str], steerers: dict[str, str], allow_negative: bool) -> dict[str, float]:
    """By steerer, the strength of --alpha. steerers: their folders by name; InputError for a bad name or strength."""
    for name in steerers:
        if not NAME.fullmatch(name):
            raise InputError(f"--steer {name!r}: a steerer's name has letters, digits, dots, - and _ only")
    strengths = named_strengths(texts, steerers)
    for name, alpha in strengths.items():
        if alpha < 0 and not allow_negative:
            raise InputError(f"--alpha {name}={alpha:g} would amplify the bias: that needs --allow-negative")
    return strengths


def _require_libraries() -> None:
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise InputError("serving needs FastAPI and uvicorn: pip install 'ggss[serve]'") from error
