"""Writing a file completely or not at all, even if the process is killed."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from ggss.errors import InputError


def write_whole(path: Path, data: bytes | Iterable[bytes], advice: str = "choose another place") -> None:
    """Write a temporary file in the same folder, then rename it; folders are created. InputError if that fails.

    data: all of it, or its pieces in order.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("wb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
        unfinished.replace(path)
    except OSError as error:
        raise InputError(f"cannot write {str(path)!r} ({error.strerror}): {advice}") from error
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
