"""The command line: thin commands over the library. Nothing here imports torch until a command needs it.

`main` is the one boundary: whatever a command raises becomes a sentence on stderr and an exit code.

| exit code | when |
| --- | --- |
| 0 | the command did what was asked |
| 1 | it ran, and a check failed (`doctor`, `world check`); or the reader of its output went away |
| 2 | the input was wrong, or the machine has not enough room, memory or rights |
| 70 | a defect of ggss itself |
| 130 | stopped by Ctrl-C |
"""

import os
import sys
import traceback
from io import TextIOWrapper
from typing import Any

import typer

from ggss.cli.app import app
from ggss.errors import InputError, out_of_memory
from ggss.escaping import visible

DEBUG = "GGSS_DEBUG"
WRONG, OURS, STOPPED = 2, 70, 130


def main() -> None:
    """Run `ggss`, and end with an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # or else somebody has replaced it, and knows what it can print
            stream.reconfigure(errors="backslashreplace")
    code = 0
    try:
        try:
            command: Any = typer.main.get_command(app)
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
    """The exit code of what a command raised, and the sentence that says what was wrong and what to do."""
    if isinstance(error, InputError):
        return WRONG, str(error)
    if isinstance(error, KeyboardInterrupt):
        return STOPPED, "; ".join(["stopped", *getattr(error, "__notes__", [])])
    if hasattr(error, "format_message"):  # an option or a command that is not there, or has a wrong value
        return WRONG, _usage(error)
    if out_of_memory(error):
        return WRONG, "not enough memory: use a smaller model, batch or image, --dtype bfloat16, or another machine"
    if isinstance(error, OSError):
        return WRONG, f"{error.strerror or error}{f': {str(error.filename)!r}' if error.filename else ''}"
    if isinstance(error, RecursionError):
        return WRONG, "the input is nested too deeply to be read: is the file damaged?"
    reason = " ".join(str(error).split())
    return OURS, (
        f"this is a defect of ggss, not of your input ({type(error).__name__}{f': {reason}' if reason else ''}): "
        f"please report it with the traceback, which `ggss --debug ...` or {DEBUG}=1 shows"
    )


def _usage(error: Any) -> str:
    """A wrong call of a command in one line; empty for a command without arguments, whose help was printed."""
    message = error.format_message().rstrip(".")
    where = error.ctx.command_path if error.ctx is not None else "ggss"
    return message and f"{message} (see {where} --help)"
