"""The version of ggss, and of the libraries that decide its numbers."""

from functools import cache
from importlib.metadata import version

__version__ = "0.1.0.dev0"


def library_versions() -> dict[str, str]:
    return {"ggss": __version__, **{name: _installed(name) for name in ("torch", "transformers", "pillow")}}


@cache
def _installed(name: str) -> str:
    """Read once: a study asks for it before every question."""
    return version(name)
