"""Files that appear whole or not at all, whenever the process is killed."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from ggss.errors import InputError


def write_whole(path: Path, data: bytes | Iterable[bytes], advice: str = "choose another place") -> None:
    """Write beside the target, then rename over it; folders are made. InputError if that cannot be done.

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
