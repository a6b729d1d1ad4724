"""Arguments that several commands share, and how their text is parsed."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ggss import ranges
from ggss.errors import InputError
from ggss.escaping import visible

if TYPE_CHECKING:
    from ggss.steering.steerer import Steerer

Model = Annotated[str, typer.Argument(help="A folder, a hub id, or small-world/NAME.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print data for programs instead of a table.")]
Dtype = Annotated[
    str | None,
    typer.Option(
        help="float32, bfloat16, float16, or auto: the checkpoint's own. By default the checkpoint's own on an "
        "accelerator, and float32 on a CPU if that fits in memory.",
        show_default=False,
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of the resamples.", **ranges.SEED.bounds)]
DeviceMap = Annotated[
    str | None,
    typer.Option(
        "--device",
        "--device-map",
        help="Where to put the model: cpu, cuda:0, or auto, which spreads it over all devices. "
        "By default the accelerator, if there is one.",
        show_default=False,
    ),
]
Attention = Annotated[
    str | None,
    typer.Option(help="sdpa, eager or flash_attention_2; transformers' choice by default.", show_default=False),
]
Force = Annotated[bool, typer.Option("--force", help="Replace files that this command did not write.")]
AnyModel = Annotated[bool, typer.Option("--any-model", help="Steer a model the steerer was not made for.")]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run Python code that comes with the model. Read it first.")
]
Strength = Annotated[
    float | None,
    typer.Option(
        help="Strength: 0 changes nothing, 1 reaches the target, more goes past it. "
        "By default the strength that the steerer recommends, or 1.",
        show_default=False,
        **ranges.ALPHA.bounds,
    ),
]


def say(text: object) -> None:
    """Print a line for people. Control characters of names in it are shown, not sent to the terminal."""
    print(visible(str(text)))


def no_strength(alpha: float | None, steer: str | None) -> None:
    """InputError for a strength of nothing."""
    if alpha is not None and steer is None:
        raise InputError(f"--alpha {alpha:g} is the strength of a steerer: give --steer, or leave out --alpha")


def pairs(given: list[str], what: str) -> dict[str, str]:
    """`["a=1", "b=2"]` -> {"a": "1", "b": "2"}."""
    read = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise InputError(f"{what} {text!r} is not NAME=VALUE")
        read[name] = value
    return read


def choices(given: list[str]) -> dict[str, list[str]]:
    """`["occupation=nurse,doctor"]` -> {"occupation": ["nurse", "doctor"]}."""
    return {name: values.split(",") for name, values in pairs(given, "--exclude").items()}


def options(given: list[str]) -> dict[str, Any]:
    """Method options: numbers where they read as numbers, else text; the method checks them."""
    return {name: _number(value) for name, value in pairs(given, "--option").items()}


def batch(text: str | None) -> int | None:
    """A number of questions, the largest for `auto`, None if nothing is said."""
    if text is None or text == ranges.AUTO:
        return None if text is None else ranges.AUTO_BATCH
    count = _number(text)
    if not isinstance(count, int):
        raise InputError(f"--batch-size {text!r} is neither a number of questions nor {ranges.AUTO}")
    ranges.BATCH.check("the batch size", count)
    return count


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def load(
    model: str,
    dtype: str | None = None,
    device_map: str | None = None,
    trust_remote_code: bool = False,
    attention: str | None = None,
) -> Any:
    """The model, with a spinner while it loads."""
    from ggss.models.locating import locate
    from ggss.terminal import Terminal

    locate(model)  # before torch is imported
    with Terminal(stderr=True).status(f"loading {model}"):
        with importing():
            from ggss.models import load_vlm
        return load_vlm(model, dtype, device_map, trust_remote_code, attention)


@contextmanager
def importing() -> Iterator[None]:
    """Importing torch and transformers makes a million objects and no garbage: looking for some takes a second."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # they are not looked through later either
        gc.enable()


def strength_said(steerer: "Steerer") -> str:
    """Where the strength comes from when --alpha was not given."""
    why = "because the steerer recommends none" if steerer.recommended_alpha is None else "as the steerer recommends"
    return f"alpha {steerer.strength():g}, {why}; --alpha chooses another"


def embedded(model: str) -> bool:
    """Whether a model comes with an installed package; those are tiny."""
    from ggss.models.collections import COLLECTIONS

    return model.partition("/")[0] in COLLECTIONS


def one_thread() -> None:
    """For tiny models: their matrix products are too small for several threads, and on a busy machine waiting for
    other threads makes them five times slower."""
    import torch

    torch.set_num_threads(1)
