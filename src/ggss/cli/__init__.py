"""The command line: thin commands over the library. Nothing here imports torch until a command needs it.

`app` has all commands, in the order in which a new user needs them. A command's help is its docstring: paragraphs as
wide as the screen, and the example after the options. An option's name that is too long for its column is folded;
typer would cut it.

`main` turns whatever a command raises into a sentence on stderr and an exit code.

| exit code | when |
| --- | --- |
| 0 | the command did what was asked |
| 1 | it ran, and a check failed (`doctor`, `gate`, `verify`, `world check`); or the reader of its output went away |
| 2 | the input was wrong, or the machine has not enough room, memory or rights |
| 70 | a defect of ggss itself |
| 130 | stopped by Ctrl-C |
"""

import gc
import inspect
import os
import re
import sys
import traceback
from io import TextIOWrapper
from typing import Any

import typer
from rich.markup import escape
from rich.table import Table
from typer import rich_utils

from ggss.cli import (
    compare,
    data,
    discover,
    doctor,
    export,
    gate,
    inventory,
    play,
    probe,
    report,
    serve,
    study,
    world,
)
from ggss.cli.arguments import Plugins, use_plugins, with_plugins_and_heartbeat
from ggss.errors import InputError, nearest, out_of_memory
from ggss.escaping import visible

DEBUG, COMPLETE = "GGSS_DEBUG", "_GGSS_COMPLETE"
WRONG, DEFECT, STOPPED = 2, 70, 130
EXAMPLE = "Example: "


class FoldedTable(Table):
    """A table whose cells are folded, not cut."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        super().add_row(*cells, **options)
        for column in self.columns:
            column.overflow = "fold"


def fold_tables() -> None:
    """Replace the tables of typer's help, which has no setting for it, in this process."""
    utilities: Any = rich_utils
    utilities.Table = FoldedTable


def show_examples_last(app: typer.Typer) -> None:
    """Move the example, the last paragraph of a docstring, to the end of the help of every command of an app."""
    for command in app.registered_commands:
        text, blank, last = (inspect.getdoc(command.callback) or "").rpartition("\n\n")
        if blank and last.startswith(EXAMPLE):
            command.help, command.epilog = escape(flowing(text)), escape(flowing(last))
    for group in app.registered_groups:
        if group.typer_instance is not None:
            show_examples_last(group.typer_instance)


def prepare_commands(app: typer.Typer, path: str = "ggss") -> None:
    """Give every command of an app what all have: the option --plugin, and lines in a log while it runs."""
    for command in app.registered_commands:
        if command.callback is not None:
            name = command.name or command.callback.__name__
            command.callback = with_plugins_and_heartbeat(command.callback, f"{path} {name}")
    for group in app.registered_groups:
        if group.typer_instance is not None:
            prepare_commands(group.typer_instance, f"{path} {group.name}")


def flowing(text: str) -> str:
    """The text with each paragraph in one line, for the terminal to wrap; indented paragraphs stay as they are."""
    paragraphs = text.split("\n\n")
    return "\n\n".join(
        paragraph if paragraph.startswith(" ") else " ".join(paragraph.split()) for paragraph in paragraphs
    )


app = typer.Typer(
    name="ggss",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Measure and reduce the demographic bias of a frozen vision-language model.\n\n"
    "A first look: [bold]ggss demo[/bold]. Then, on your own model, "
    "[bold]ggss doctor MODEL[/bold] says whether it can be steered, "
    "[bold]ggss discover[/bold] finds the subspace that carries an attribute, "
    "[bold]ggss ask[/bold] shows an answer before and after, "
    "[bold]ggss probe[/bold] measures bias and capability, "
    "[bold]ggss compare[/bold] says what steering changed, "
    "[bold]ggss recommend[/bold] writes a strength into the steerer, "
    "[bold]ggss gate[/bold] checks a run against a release policy, "
    "[bold]ggss export[/bold] puts the steering into the weights, for any engine, "
    "[bold]ggss report[/bold] makes a page of it, "
    "[bold]ggss bundle[/bold] puts all of it into a zip that [bold]ggss verify[/bold] checks. "
    "MODEL is a folder, a hub id, or small-world/NAME.",
)

app.command()(world.demo)
app.command()(doctor.doctor)
app.command()(discover.discover)
app.command()(play.ask)
app.command()(probe.probe)
app.command()(compare.compare)
app.command()(compare.recommend)
app.command()(gate.gate)
app.command()(gate.judge)
app.command()(export.export)
app.command()(report.report)
app.command()(report.bundle)
app.command()(report.verify)
app.command()(play.play)
app.command()(serve.serve)
app.command()(export.convert)
app.command()(inventory.methods)
app.command()(inventory.probes)
app.add_typer(data.data, name="data")
app.add_typer(study.study, name="study")
app.add_typer(world.world, name="world")
app.add_typer(inventory.cache, name="cache")
prepare_commands(app)
show_examples_last(app)
fold_tables()


@app.callback(invoke_without_command=True)
def root(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error, as GGSS_DEBUG=1 does."),
    quiet: bool = typer.Option(
        False, "--quiet", help="Print results and errors only: no progress, no notes. As GGSS_QUIET=1 does."
    ),
    plugin: Plugins = None,
) -> None:
    if debug:
        os.environ["GGSS_DEBUG"] = "1"  # which worker processes inherit
    if quiet:
        os.environ["GGSS_QUIET"] = "1"  # the same
    if os.environ.get("GGSS_QUIET"):
        import logging

        logging.getLogger("ggss").setLevel(logging.ERROR)
    use_plugins(plugin)
    if version:
        from ggss.version import __version__

        print(__version__)
        raise typer.Exit


def program() -> None:
    """What the command `ggss` runs: `main`, in a process of its own.

    Importing torch and transformers makes 600,000 objects, nearly all of which stay. Garbage collection looks through
    them many times, which takes a quarter of the time of a short command: `ggss ask` with a tiny model takes 5.3 s of
    CPU time with Python's settings, 3.7 s with these (medians of 5 alternating runs).
    """
    gc.set_threshold(100_000)
    try:
        main()
    finally:
        gc.freeze()


def main() -> None:
    """Run `ggss`, and end with an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # else a caller has replaced it by a stream that can print everything
            stream.reconfigure(errors="backslashreplace")
    code = 0
    try:
        try:
            command: Any = typer.main.get_command(app)
            if os.environ.get(COMPLETE):
                command.main(prog_name="ggss")  # prints what the shell asks for, and exits
            with command.make_context("ggss", sys.argv[1:]) as context:
                command.invoke(context)
        except typer.Exit as ended:
            code = ended.exit_code
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still to be flushed at exit goes nowhere, instead of failing once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except (Exception, KeyboardInterrupt) as error:
        if os.environ.get(DEBUG):
            traceback.print_exc()
        code, sentence = explained(error)
        if sentence:
            print(f"ggss: {visible(sentence)}", file=sys.stderr)
    if code:
        sys.exit(code)


def explained(error: BaseException) -> tuple[int, str]:
    """The exit code for an error, and the sentence that says what was wrong and what to do."""
    if isinstance(error, InputError):
        return WRONG, str(error)
    if isinstance(error, KeyboardInterrupt):
        return STOPPED, "; ".join(["stopped", *getattr(error, "__notes__", [])])
    if hasattr(error, "format_message"):  # an unknown option or command, or a wrong value
        return WRONG, _usage(error)
    if out_of_memory(error):
        return WRONG, "not enough memory: use a smaller model, batch or image, --dtype bfloat16, or another machine"
    if isinstance(error, OSError):
        return WRONG, f"{error.strerror or error}{f': {str(error.filename)!r}' if error.filename else ''}"
    if isinstance(error, RecursionError):
        return WRONG, "the input is nested too deeply to be read: is the file damaged?"
    reason = " ".join(str(error).split())
    return DEFECT, (
        f"this is a defect of ggss, not of your input ({type(error).__name__}{f': {reason}' if reason else ''}): "
        f"please report it with the traceback, which `ggss --debug ...` or {DEBUG}=1 shows"
    )


def _usage(error: Any) -> str:
    """What is wrong with a call, in one line; empty for a command without arguments, whose help was printed."""
    context = error.ctx
    where = context.command_path if context is not None else "ggss"
    if context is not None and (option := getattr(error, "option_name", "")) and hasattr(error, "possibilities"):
        message = f"No such option: {option}"
        if option in _options(context.find_root().command):
            return f"{message} of {where}; it is for all commands and goes before them: ggss {option} ..."
        near = nearest(option, _options(context.command))
    else:
        message = error.format_message().rstrip(".")
        near = ""
        if context is not None and (wrong := re.match(r"No such command '(.*?)'", message)):
            message, near = wrong[0], nearest(wrong[1], context.command.commands)  # instead of typer's suggestion
    return message and f"{message}{f': {near}' if near else ''} (see {where} --help)"


def _options(command: Any) -> list[str]:
    return [name for option in command.params for name in option.opts if name.startswith("-")]
