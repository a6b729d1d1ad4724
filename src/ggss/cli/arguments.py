"""Arguments that several commands share, and how their text is parsed."""

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ggss import errors
from ggss.errors import InputError, no_such
from ggss.escaping import visible

if TYPE_CHECKING:
    from ggss.probes.base import Parser
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
Seed = Annotated[int, typer.Option(help="Seed of the resamples.", **errors.SEED.bounds)]
ParserRule = Annotated[
    str,
    typer.Option(
        metavar="careful|release",
        help="How answers are read: careful never guesses; release is the rule of the authors' code and paper. "
        "Nothing is asked again for the other rule.",
    ),
]
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
MaxSide = Annotated[
    int | None,
    typer.Option(
        help="Shrink each picture until its longer side has at most so many pixels; the authors' code has 512. "
        "By default pictures are as large as their files.",
        show_default=False,
        **errors.SIDE.bounds,
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace files that this command did not write.")]
AnyModel = Annotated[bool, typer.Option("--any-model", help="Steer a model the steerer was not made for.")]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run Python code that comes with the model. Read it first.")
]
Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="FILE.py",
        help="A Python file that registers methods, probes, suites, families, ...; may be repeated.",
        show_default=False,
    ),
]
Strength = Annotated[
    float | None,
    typer.Option(
        help="Strength: 0 changes nothing, 1 reaches the target, more goes past it. "
        "By default the strength that the steerer recommends, or 1.",
        show_default=False,
        **errors.ALPHA.bounds,
    ),
]


def say(text: object) -> None:
    """Print a line of text. Control characters in it are made visible, not sent to the terminal."""
    print(visible(str(text)))


def check_alpha_has_steerer(alpha: float | None, steer: str | None) -> None:
    """InputError for --alpha without --steer."""
    if alpha is not None and steer is None:
        raise InputError(f"--alpha {alpha:g} is the strength of a steerer: give --steer, or leave out --alpha")


def checked_parser(name: str) -> "Parser":
    """The parser of that name, by which answers are read; InputError if there is none."""
    from ggss.probes.base import PARSERS

    if name not in PARSERS:
        raise no_such(f"--parser {name!r} is no rule by which answers are read", name, PARSERS)
    return name


def checked_run_file(path: Path | None) -> Path | None:
    """The path; InputError if it has no file name, such as an empty string."""
    if path is not None and not path.name:
        raise InputError(f"{str(path)!r} is not the name of a file: give one that was written by `ggss probe -o`")
    return path


def pairs(texts: list[str], what: str) -> dict[str, str]:
    """`["a=1", "b=2"]` -> {"a": "1", "b": "2"}."""
    read = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise InputError(f"{what} {text!r} is not NAME=VALUE")
        read[name] = value
    return read


def named_strengths(texts: list[str], steerers: Iterable[str]) -> dict[str, float]:
    """`["race=1.0"]` -> {"race": 1.0}, for steerers of these names."""
    strengths: dict[str, float] = {}
    for name, text in pairs(texts, "--alpha").items():
        if name not in steerers:
            raise no_such(f"--alpha {name}={text} is for no steerer of --steer", name, steerers)
        try:
            strengths[name] = float(text)
        except ValueError as error:
            raise InputError(f"--alpha {name}={text} is not a number") from error
        errors.ALPHA.check(f"--alpha of {name}", strengths[name])
    return strengths


def choices(texts: list[str]) -> dict[str, list[str]]:
    """`["occupation=nurse,doctor"]` -> {"occupation": ["nurse", "doctor"]}."""
    return {name: values.split(",") for name, values in pairs(texts, "--exclude").items()}


def options(texts: list[str]) -> dict[str, Any]:
    """`["k=2", "gate=off"]` -> {"k": 2, "gate": "off"}: the options of a method, which it checks itself."""
    return {name: _number(value) for name, value in pairs(texts, "--option").items()}


def batch(text: str | None) -> int | None:
    """The batch size: a number, the largest one for `auto`, None for None."""
    if text is None or text == errors.AUTO:
        return None if text is None else errors.AUTO_BATCH
    count = _number(text)
    if not isinstance(count, int):
        raise InputError(f"--batch-size {text!r} is neither a number of questions nor {errors.AUTO}")
    errors.BATCH.check("the batch size", count)
    return count


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


@dataclass(frozen=True)
class Loading:
    """How a command loads its model. A command that is decorated with `loads_model` has these as its options."""

    dtype: Dtype = None
    device_map: DeviceMap = None
    trust_remote_code: TrustRemoteCode = False
    attention: Attention = None

    @property
    def given(self) -> dict[str, Any]:
        """By option, what was given; None where nothing was."""
        return {f"--{name.replace('_', '-')}": value or None for name, value in vars(self).items()}

    def load(self, model: str) -> Any:
        """The model, with a spinner while it loads."""
        from ggss.models import locate
        from ggss.terminal import Terminal

        locate(model)  # before torch is imported
        with Terminal(stderr=True).status(f"loading {model}"):
            from ggss.models import load_vlm

            return load_vlm(model, self.dtype, self.device_map, self.trust_remote_code, self.attention)


def loads_model(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for each field of `Loading` instead of its parameter `loading`.

    typer makes options from a function's parameters, and cannot group them.
    """
    fields = inspect.signature(Loading).parameters
    parameters = inspect.signature(command).parameters

    def with_loading(**values: Any) -> None:
        loading = Loading(**{name: values.pop(name) for name in fields})
        command(**values, loading=loading)

    options = [
        option for name in parameters for option in (fields.values() if name == "loading" else [parameters[name]])
    ]
    return _with_options(command, with_loading, options)


SERVERS = ("serve", "play", "watch")  # commands that run until they are stopped, and log by themselves


def with_plugins_and_heartbeat(command: Callable[..., None], name: str) -> Callable[..., None]:
    """The command with the option --plugin, whose files are imported first; in a log it shows that it is running."""
    option = inspect.Parameter("plugin", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Plugins)

    def prepared(*, plugin: list[str] | None = None, **values: Any) -> None:
        from ggss.terminal import ProgressLog

        if command.__name__ in SERVERS:
            use_plugins(plugin)
            command(**values)
            return
        with ProgressLog(name):
            use_plugins(plugin)
            command(**values)

    return _with_options(command, prepared, [*inspect.signature(command).parameters.values(), option])


def use_plugins(files: list[str] | None) -> None:
    """Import the files of --plugin."""
    if files:
        from ggss.plugins import load_files

        load_files(files)


def _with_options(
    command: Callable[..., None], replacement: Callable[..., None], options: list[inspect.Parameter]
) -> Callable[..., None]:
    """The replacement with the command's name and help, and these parameters for typer to read."""
    functools.update_wrapper(replacement, command)
    read_by_typer: Any = replacement
    read_by_typer.__signature__ = inspect.Signature(options)
    read_by_typer.__annotations__ = {option.name: option.annotation for option in options}
    return replacement


def strength_note(steerer: "Steerer") -> str:
    """Which strength is used without --alpha, and why."""
    why = "because the steerer recommends none" if steerer.recommended_alpha is None else "as the steerer recommends"
    return f"alpha {steerer.strength():g}, {why}; --alpha chooses another"


def embedded(model: str) -> bool:
    """Whether a model comes with an installed package. Such models are tiny."""
    from ggss.models import COLLECTIONS

    return model.partition("/")[0] in COLLECTIONS


def one_thread() -> None:
    """Use one CPU thread, for tiny models. Their matrix products are too small for several, and on a busy machine
    waiting for other threads makes them five times slower."""
    import torch

    torch.set_num_threads(1)
