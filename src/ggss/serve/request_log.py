"""A log of what was applied to each request, for audits: JSON lines without anything that was asked or answered."""

import json
from datetime import UTC, datetime
from logging import LogRecord, makeLogRecord
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from ggss.errors import InputError

LARGEST, KEPT = 10 * 2**20, 5  # bytes of a file; files of earlier lines, FILE.1 the newest


class RequestLog:
    """A file that is moved to FILE.1 when it is full; FILE.1 to FILE.2, and so on."""

    def __init__(self, path: str, largest: int = LARGEST, kept: int = KEPT) -> None:
        if not Path(path).parent.is_dir():
            raise InputError(f"the log {path!r} cannot be written: there is no folder {str(Path(path).parent)!r}")
        try:
            self._file = RotatingFileHandler(path, maxBytes=largest, backupCount=kept, encoding="utf-8")
        except OSError as error:
            raise InputError(f"the log {path!r} cannot be written: {error.strerror}") from error

    def write(self, record: dict[str, Any]) -> None:
        line = json.dumps({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **record})
        self._file.handle(_record(line))

    def close(self) -> None:
        self._file.close()


def _record(line: str) -> LogRecord:
    return makeLogRecord({"msg": line})
