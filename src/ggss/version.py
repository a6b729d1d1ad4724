"""The version of ggss and of the libraries that determine its numbers, digests of code, and the machine.

A version number does not change when code is edited, so what is kept across runs depends on a digest of the code. The
digest is of the syntax tree without comments and docstrings: editing a comment or breaking a line elsewhere changes
no number, and must not make a study ask everything again. Names and types count, because nothing proves that they
change no number.
"""

import ast
import hashlib
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path

__version__ = "0.1.0.dev0"

# Paths in the package of ggss. Probes are not among them: what they ask, and the longest answer, are in the keys by
# content, and their parsers and metrics read the stored answers again each time.
ANSWERING = (
    *("data", "models", "vllm_plugin", "probes/steered_model.py", "probes/endpoint.py"),
    *("analysis/asking.py", "study/worker.py", "study/executors.py"),
)
FITTING = ("sphere.py", "activations", "methods", "steering")


def library_versions() -> dict[str, str]:
    return {"ggss": __version__, **{name: installed_version(name) for name in ("torch", "transformers", "pillow")}}


@cache
def installed_version(name: str) -> str:
    """The version of an installed package. Cached: a study needs it before every question."""
    return version(name)


@cache
def hardware() -> str:
    """The machine in words: its CPU, its system, and the GPUs if torch is loaded and sees any.

    It decides no key: a run may be finished on another machine.
    """
    name = platform.processor() or platform.machine()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    words = [name, f"{os.cpu_count() or 1} CPUs", f"{platform.system()} {platform.machine()}"]
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_available():
        words = [f"{cuda.device_count()} × {cuda.get_device_name(0)}", *words]
    return ", ".join(words)


def ggss_code() -> dict[str, str]:
    """Digests of the code of ggss that answers questions, and of the code that fits and steers.

    In an installed release both are the release number, because its code does not change.
    """
    package = Path(__file__).parent
    if "dev" not in __version__ and not (package.parents[1] / "pyproject.toml").exists():
        return {"ggss (answering)": __version__, "ggss (steering)": __version__}
    return {
        "ggss (answering)": _digest_of_paths(package, ANSWERING),
        "ggss (steering)": _digest_of_paths(package, FITTING),
    }


@cache
def _digest_of_paths(package: Path, paths: tuple[str, ...]) -> str:
    files = (file for path in paths for file in files_under(package / path))
    return code_digest({str(file.relative_to(package)): file.read_bytes() for file in files})


def files_under(path: Path) -> Iterator[Path]:
    """A file, or all files of a folder except hidden and compiled ones."""
    if path.is_file():
        yield path
        return
    for file in path.rglob("*"):
        parts = file.relative_to(path).parts
        if file.is_file() and not any(part.startswith(".") or part == "__pycache__" for part in parts):
            yield file


def code_digest(files: Mapping[str, bytes]) -> str:
    """SHA-256 of files by name: of the syntax tree of Python files, of the bytes of others."""
    digest = hashlib.sha256()
    for name in sorted(files):
        content = files[name]
        if name.endswith(".py"):
            with suppress(SyntaxError, ValueError):  # not Python, whatever its name says
                content = "".join(_spelled(ast.parse(content))).encode(errors="surrogatepass")
        digest.update(f"{name} {len(content)}\n".encode(errors="surrogateescape"))
        digest.update(content)
    return digest.hexdigest()


def _spelled(node: object) -> Iterable[str]:
    """A syntax tree as text. Not `ast.dump`, whose text differs between versions of Python."""
    if isinstance(node, ast.AST):
        yield f"({type(node).__name__}"
        for name in node._fields:
            value = getattr(node, name, None)
            # `kind`: whether a string has the prefix u. None is a value only in a constant.
            if value == [] or name == "kind" or (value is None and not isinstance(node, ast.Constant)):
                continue
            yield f" {name}="
            yield from _spelled(value)
        yield ")"
    elif isinstance(node, list):
        for part in node:
            if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)):  # docstrings
                yield from _spelled(part)
    else:
        yield repr(node)
