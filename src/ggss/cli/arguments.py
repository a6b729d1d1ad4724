"""Arguments that several commands share, and how their text is parsed."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ggss.errors import InputError

if TYPE_CHECKING:
    from ggss.steering.steerer import Steerer

Model = Annotated[str, typer.Argument(help="A folder, a hub id, or small-world/NAME.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print data for programs instead of a table.")]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16 or float16; float32 on a CPU by default.")]
DeviceMap = Annotated[str | None, typer.Option(help='Where to put the model, as in transformers: "auto", "cuda:0".')]
Strength = Annotated[
    float | None,
    typer.Option(
        help="Strength: 0 changes nothing, 1 reaches the target, more goes past it. "
        "By default the strength that the steerer recommends, or 1.",
        show_default=False,
    ),
]


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


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def load(model: str, dtype: str | None = None, device_map: str | None = None) -> Any:
    """The model, with a spinner while it loads."""
    from rich.console import Console

    with Console(stderr=True).status(f"loading {model}"):
        from ggss.models import load_vlm

        return load_vlm(model, dtype=dtype, device_map=device_map)


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
