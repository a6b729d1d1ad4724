"""The app with all commands, in the order in which a new user needs them, and the layout of its help.

A command's help is its docstring: paragraphs as wide as the screen, and the example after the options. An option's
name that is too long for its column is folded; typer would cut it.
"""

import inspect
import os
from typing import Any

import typer
from rich.markup import escape
from rich.table import Table
from typer import rich_utils

from ggss.cli import ask, compare, convert, demo, discover, doctor, export, gate, methods, play, probe, report, serve
from ggss.cli.arguments import Plugins, use_plugins, with_plugins_and_heartbeat
from ggss.cli.cache import cache
from ggss.cli.data import data
from ggss.cli.study import study
from ggss.cli.world import world

__all__ = ["app"]

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
    "[bold]ggss report[/bold] makes a page of it. "
    "MODEL is a folder, a hub id, or small-world/NAME.",
)

app.command()(demo.demo)
app.command()(doctor.doctor)
app.command()(discover.discover)
app.command()(ask.ask)
app.command()(probe.probe)
app.command()(compare.compare)
app.command()(compare.recommend)
app.command()(gate.gate)
app.command()(export.export)
app.command()(report.report)
app.command()(play.play)
app.command()(serve.serve)
app.command()(convert.convert)
app.command()(methods.methods)
app.command()(methods.probes)
app.add_typer(data, name="data")
app.add_typer(study, name="study")
app.add_typer(world, name="world")
app.add_typer(cache, name="cache")
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
