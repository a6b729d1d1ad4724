"""All commands, in the order in which a new user needs them."""

import os

import typer

from ggss.cli import ask, convert, demo, discover, doctor, methods, play, probe, report, serve
from ggss.cli.cache import cache
from ggss.cli.data import data
from ggss.cli.help_text import fold_tables, show_examples_last
from ggss.cli.study import study
from ggss.cli.world import world

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
    "[bold]ggss report[/bold] makes a page of it. "
    "MODEL is a folder, a hub id, or small-world/NAME.",
)

app.command()(demo.demo)
app.command()(doctor.doctor)
app.command()(discover.discover)
app.command()(ask.ask)
app.command()(probe.probe)
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
show_examples_last(app)
fold_tables()


@app.callback(invoke_without_command=True)
def root(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error, as GGSS_DEBUG=1 does."),
    quiet: bool = typer.Option(
        False, "--quiet", help="Print results and errors only: no progress, no notes. As GGSS_QUIET=1 does."
    ),
) -> None:
    if debug:
        os.environ["GGSS_DEBUG"] = "1"  # which worker processes see too
    if quiet:
        os.environ["GGSS_QUIET"] = "1"  # as above
    if os.environ.get("GGSS_QUIET"):
        import logging

        logging.getLogger("ggss").setLevel(logging.ERROR)
    if version:
        from ggss.version import __version__

        print(__version__)
        raise typer.Exit


__all__ = ["app"]
