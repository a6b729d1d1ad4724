"""The command line: thin commands over the library. Nothing here imports torch until a command needs it."""

import sys

from ggss.cli.app import app
from ggss.errors import InputError


def main() -> None:
    """Run `ggss`. Wrong input ends with one sentence on stderr and exit code 2."""
    try:
        app()
    except InputError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
    except KeyboardInterrupt:
        print("ggss: stopped", file=sys.stderr)
        sys.exit(130)


def fail(sentence: str) -> None:
    print(f"ggss: {sentence}", file=sys.stderr)
    sys.exit(2)
