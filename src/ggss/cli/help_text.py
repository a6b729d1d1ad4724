"""A command's help from its docstring: paragraphs as wide as the screen, and the example after the options.

An option's name that is too long for its column is folded. typer's own tables would cut it.
"""

import inspect
from typing import Any

import typer
from rich.markup import escape
from rich.table import Table
from typer import rich_utils

EXAMPLE = "Example: "


class FoldedTable(Table):
    """A table of which nothing is cut."""

    def add_row(self, *cells: Any, **how: Any) -> None:
        super().add_row(*cells, **how)
        for column in self.columns:
            column.overflow = "fold"


def fold_tables() -> None:
    """In all help of the process: typer has no setting for it."""
    used: Any = rich_utils
    used.Table = FoldedTable


def show_examples_last(app: typer.Typer) -> None:
    """For every command of an app and of its groups: the last paragraph, if it is an example, ends the help."""
    for command in app.registered_commands:
        text, blank, last = (inspect.getdoc(command.callback) or "").rpartition("\n\n")
        if blank and last.startswith(EXAMPLE):
            command.help, command.epilog = escape(flowing(text)), escape(flowing(last))
    for group in app.registered_groups:
        if group.typer_instance is not None:
            show_examples_last(group.typer_instance)


def flowing(text: str) -> str:
    """Each paragraph in one line, which the screen breaks where it needs to; indented ones stay as they are."""
    paragraphs = text.split("\n\n")
    return "\n\n".join(one if one.startswith(" ") else " ".join(one.split()) for one in paragraphs)
