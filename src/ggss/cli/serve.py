"""`ggss serve`: a steered model behind OpenAI's chat API."""

import re
from typing import Annotated

import typer

from ggss import ranges
from ggss.cli.arguments import Attention, DeviceMap, Dtype, Model, embedded, pairs, say
from ggss.errors import InputError, no_such

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")  # of a steerer: it is part of a header


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
    host: Annotated[str, typer.Option(help="Others than 127.0.0.1 need keys.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: a free one.", min=0, max=65_535)] = 8000,
    keys_file: Annotated[
        str | None, typer.Option(help="Keys, one a line; those in GGSS_SERVE_KEYS hold too.", show_default=False)
    ] = None,
    admin_key_file: Annotated[
        str | None,
        typer.Option(help="The key of /ggss/reload; or GGSS_SERVE_ADMIN_KEY.", show_default=False),
    ] = None,
    locked: Annotated[
        bool, typer.Option("--locked", help="Requests may not ask for less than the server's strengths.")
    ] = False,
    allow_negative: Annotated[
        bool, typer.Option("--allow-negative", help="Requests may ask for negative strengths, which amplify bias.")
    ] = False,
    log: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Log what was applied to each request, without its content.", show_default=False
        ),
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Of one answer.", **ranges.TOKENS.bounds)] = 512,
    max_prompt_tokens: Annotated[int, typer.Option(help="With those of images.", **ranges.TOKENS.bounds)] = 32_768,
    max_batch: Annotated[int, typer.Option(help="Answers that are written together.", **ranges.BATCH.bounds)] = 16,
    max_queue: Annotated[int, typer.Option(help="Requests that may wait; more get 429.", min=1, max=65_536)] = 64,
    max_pictures: Annotated[int, typer.Option(help="Of one request.", min=0, max=1_024)] = 8,
    max_picture_mb: Annotated[float, typer.Option(help="MB of one picture's file.", min=0.001, max=1_024)] = 10,
    max_megapixels: Annotated[float, typer.Option(help="Of one picture.", min=0.001, max=89)] = 16,
    max_body_mb: Annotated[float, typer.Option(help="MB of one request.", min=0.001, max=4_096)] = 32,
    timeout: Annotated[float, typer.Option(help="Seconds that a request may take.", min=0.1, max=86_400)] = 120,
    cache_mb: Annotated[float, typer.Option(help="MB of encoded pictures that are kept.", min=0, max=10**6)] = 512,
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
    from ggss.serve.api_keys import ADMIN_ENVIRONMENT, ENVIRONMENT, ApiKeys
    from ggss.serve.engine import NAMES
    from ggss.serve.limits import Limits
    from ggss.serve.request_log import RequestLog
    from ggss.serve.steering_rules import SteeringRules

    _require_libraries()
    if engine not in NAMES:
        raise no_such(f"no engine {engine!r} in this version", engine, NAMES)
    if engine == "vllm":
        from ggss.vllm_plugin.installed import engine_version

        engine_version()
    folders = pairs(steer or [], "--steer")
    rules = SteeringRules(_strengths(alpha or [], folders, allow_negative), locked, allow_negative)
    keys = ApiKeys.read(keys_file, ENVIRONMENT)
    admin = ApiKeys.read(admin_key_file, ADMIN_ENVIRONMENT)
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
    )
    from ggss.models.locating import locate
    from ggss.serve.http_app import ServerSettings
    from ggss.serve.running import bound, run
    from ggss.serve.worker_engine import WorkerSetup

    locate(model)
    here = bound(host, port, keys)
    setup = WorkerSetup(
        model,
        folders,
        most_rows=limits.rows,
        most_tokens=limits.tokens,
        prompt_tokens=limits.prompt_tokens,
        cache_bytes=limits.cache,
        most_pictures=limits.pictures,
        dtype=dtype,
        device_map=device_map,
        attention=attention,
        threads=1 if embedded(model) else None,
    )
    requests = RequestLog(log) if log else None
    if not run(setup, ServerSettings(model, rules, limits, keys, admin, requests), here, say, engine):
        raise typer.Exit(1)


def _strengths(given: list[str], steerers: dict[str, str], allow_negative: bool) -> dict[str, float]:
    for name in steerers:
        if not NAME.fullmatch(name):
            raise InputError(f"--steer {name!r}: a steerer's name has letters, digits, dots, - and _ only")
    read: dict[str, float] = {}
    for name, text in pairs(given, "--alpha").items():
        if name not in steerers:
            raise no_such(f"--alpha {name}={text} is for no steerer of --steer", name, steerers)
        try:
            read[name] = float(text)
        except ValueError as error:
            raise InputError(f"--alpha {name}={text} is not a number") from error
        ranges.ALPHA.check(f"--alpha of {name}", read[name])
        if read[name] < 0 and not allow_negative:
            raise InputError(f"--alpha {name}={text} would amplify the bias: that needs --allow-negative")
    return read


def _require_libraries() -> None:
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise InputError("serving needs FastAPI and uvicorn: pip install 'ggss[serve]'") from error
