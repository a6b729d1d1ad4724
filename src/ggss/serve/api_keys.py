"""Keys that requests must show."""

import hashlib
import hmac
import os

from ggss.errors import InputError
from ggss.files import read_utf8

SHORTEST = 16  # characters
ENVIRONMENT, ADMIN_ENVIRONMENT = "GGSS_SERVE_KEYS", "GGSS_SERVE_ADMIN_KEY"


class ApiKeys:
    """Only hashes are held, so that no key is in a message or a memory dump. Without keys, everybody may ask."""

    def __init__(self, keys: list[str]) -> None:
        for key in keys:
            if len(key) < SHORTEST or not key.isascii() or " " in key:
                raise InputError(
                    f"a key must have at least {SHORTEST} ASCII characters without spaces, seen one of {len(key)}: "
                    'make one with `python -c "import secrets; print(secrets.token_urlsafe(32))"`'
                )
        self._hashes = [_hashed(key) for key in keys]

    @classmethod
    def read(cls, file: str | None, environment: str) -> "ApiKeys":
        """From a file, one a line, and a variable, separated by commas. Lines that begin with # are comments."""
        lines = read_utf8(file, "the file of keys").splitlines() if file else []
        found = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
        if file and not found:
            raise InputError(f"the file of keys {file!r} has no key: write one on a line of its own")
        return cls(found + [key.strip() for key in os.environ.get(environment, "").split(",") if key.strip()])

    def __bool__(self) -> bool:
        return bool(self._hashes)

    def match(self, authorization: str) -> bool:
        """Whether a header `Bearer KEY` has one of the keys. All are compared, each in constant time."""
        scheme, _, key = authorization.partition(" ")
        shown = _hashed(key.strip())
        found = False
        for own in self._hashes:
            found |= hmac.compare_digest(own, shown)
        return found and scheme.lower() == "bearer"


def _hashed(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
