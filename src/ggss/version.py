"""The version of ggss, and of the libraries that decide its numbers."""

from importlib.metadata import version

__version__ = "0.1.0.dev0"


def library_versions() -> dict[str, str]:
    return {"ggss": __version__, **{name: version(name) for name in ("torch", "transformers", "pillow")}}
