"""The command line: thin commands over the library. Nothing here imports torch until a command needs it.

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
import os
import re
import sys
import traceback
from io import TextIOWrapper
from typing import Any

import typer

from ggss.cli.app import app
from ggss.errors import InputError, nearest, out_of_memory
from ggss.escaping import visible

DEBUG, COMPLETE = "GGSS_DEBUG", "_GGSS_COMPLETE"
WRONG, DEFECT, STOPPED = 2, 70, 130


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
