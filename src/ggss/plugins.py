"""Registries that other packages can extend: methods, probes, suites, families, picture sets, executors, tables.

An entry comes from ggss itself, from an installed package by an entry point of the registry's group, from a module
that a study plan names under `plugins`, or from a file: `ggss --plugin FILE.py` names it, and so does the variable
GGSS_PLUGINS, which worker processes inherit. The entry point's value is a module. A module registers its entries when
it is imported. Every entry is stored with its package, and the error of a refused registration names the package. Its
module is stored too: stored answers depend on a digest of the code that registered an entry (`Registry.code`).
"""

import ast
import linecache
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Generic, NamedTuple, TypeVar

from ggss.errors import InputError, no_such
from ggss.version import code_digest, files_under

T = TypeVar("T")
OURS = "ggss"
PLUGINS = "GGSS_PLUGINS"  # the variable that names files, separated as those of PATH

_package = OURS  # the package whose entries are being registered


@contextmanager
def _registering(package: str) -> Iterator[None]:
    global _package
    previous, _package = _package, package
    try:
        yield
    finally:
        _package = previous


class _Registrar(NamedTuple):
    """What registers an entry: the package, and the module with its file; "" for ggss itself."""

    package: str
    module: str = ""
    file: str = ""


def _registrar() -> _Registrar:
    """The code that is registering an entry: ggss for its own modules, even if another package imports them."""
    frame: FrameType | None = sys._getframe(1)
    caller: FrameType | None = None
    while frame:
        if caller is None and not _is_ours(frame):
            caller = frame
        if frame.f_code.co_name == "<module>":
            break
        frame = frame.f_back
    if caller is None or (frame and _is_ours(frame)):
        return _Registrar(OURS)
    module = caller.f_globals.get("__name__", "")
    package = module.partition(".")[0] if _package == OURS else _package  # imported by itself, or a script
    return _Registrar(package, module, caller.f_code.co_filename)


def _is_ours(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__", "").partition(".")[0] == OURS


class Registry(Generic[T]):
    """A registry. what: the word for an entry in messages. group: the entry-point group of other packages' entries.

    check: returns what is wrong with an entry, or "".
    """

    def __init__(self, what: str, group: str, check: Callable[[T], str] = lambda entry: "") -> None:
        self.what, self.group, self._check = what, group, check
        self._entries: dict[str, T] = {}
        self._packages: dict[str, str] = {}
        self._modules: dict[str, tuple[str, str]] = {}  # the module that registered an entry, and its file
        self._complete = False

    def add(self, name: str, entry: T) -> T:
        """Register an entry. InputError, naming the package, if the name is taken or the entry is malformed."""
        registrar = _registrar()
        origin = "" if registrar.package == OURS else f" (from {registrar.package})"
        if wrong := self._check(entry) or ("" if name else "it has no name"):
            raise InputError(f"the {self.what} {name!r}{origin} cannot be registered: {wrong}")
        if name in self._entries:
            raise InputError(
                f"the {self.what} {name!r}{origin} cannot be registered: {self._packages[name]} has one of that "
                "name; choose another"
            )
        self._entries[name] = entry
        self._packages[name] = registrar.package
        self._modules[name] = registrar.module, registrar.file
        return entry

    def register(self, entry: T) -> T:
        """Add an entry under its attribute `name`; docs/adding.md has examples.

        Args:
            entry: such as a `ggss.methods.Method` or a `ggss.probes.Probe`.

        Returns:
            The entry.

        Raises:
            InputError: if its name is taken or it is malformed.

        Examples:
            >>> try:
            ...     ggss.methods.register(ggss.methods.get("ggss"))
            ... except ggss.InputError as error:
            ...     "ggss has one of that name" in str(error)
            True
        """
        return self.add(getattr(entry, "name", ""), entry)

    def names(self) -> list[str]:
        """All names: those of ggss first, in the order of registration.

        Returns:
            Those of ggss and of every plug-in.

        Examples:
            >>> ggss.methods.names()[:3]
            ['none', 'prompt', 'ggss']
            >>> "mcq" in ggss.probes.names()
            True
        """
        self._load_installed()
        return list(self._entries)

    def get(self, name: str) -> T:
        """The entry of a name.

        Args:
            name: see `names()`.

        Returns:
            The entry.

        Raises:
            InputError: if there is none; it lists all names and the nearest one.

        Examples:
            >>> ggss.methods.get("ggss").summary
            'pooled spherical subspace, calibrated gate, slerp'
        """
        self._load_installed()
        if name not in self._entries:
            raise no_such(f"no {self.what} {name!r}", name, self._entries)
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        self._load_installed()
        return name in self._entries

    def package(self, name: str) -> str:
        """Where an entry comes from: "ggss", a package with its version, or a plug-in module."""
        self.get(name)
        return self._packages[name]

    def code(self, name: str) -> dict[str, str]:
        """{plug-in's package or module: digest of its code}; {} for an entry of ggss.

        All files of the package count. If the plug-in is a single file, the modules in its folder that it imports
        count too.
        """
        self.get(name)
        module, file = self._modules[name]
        return _code(module, file) if module else {}

    def _load_installed(self) -> None:
        if self._complete:
            return
        self._complete = True
        try:
            for point in sorted(entry_points(group=self.group), key=lambda point: (point.name, point.value)):
                _load(point, self.group)
            load_plugins(_files_of_variable())
        except BaseException:
            self._complete = False
            raise


@cache
def _code(module: str, file: str) -> dict[str, str]:
    """{package or module: digest of its code}. Cached: a file edited later is not the code that was imported."""
    parts = module.split(".")
    # The outermost package with an __init__.py: those above it are namespaces, which others share.
    for name in (".".join(parts[: count + 1]) for count in range(len(parts))):
        package = sys.modules.get(name)
        if package and getattr(package, "__path__", None) and package.__file__:
            root = Path(package.__file__).parent
            sources = {str(source.relative_to(root)): source.read_bytes() for source in files_under(root)}
            return {name: code_digest(sources)}
    if Path(file).is_file():
        return {module: code_digest({source.name: source.read_bytes() for source in _with_imported(Path(file))})}
    return {module: code_digest({f"{module}.py": "".join(linecache.getlines(file)).encode()})}  # a notebook's cell


def _with_imported(file: Path) -> set[Path]:
    """A file and the modules in its folder that it imports, directly or not; only itself if it is installed."""
    files, waiting = {file}, [file]
    installed = {"site-packages", "dist-packages"} & {file.parent.name}
    while waiting and not installed:
        try:
            tree = ast.parse(waiting.pop().read_bytes())
        except (SyntaxError, ValueError):
            continue
        imported = [name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names]
        imported += [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
        beside = {file.with_name(name.partition(".")[0] + ".py") for name in imported}
        waiting += [neighbour for neighbour in beside - files if neighbour.is_file()]
        files |= set(waiting)
    return files


def _load(point: EntryPoint, group: str) -> None:
    package = point.value  # of ggss's own distribution, such as ggss_rivals
    if point.dist and point.dist.name != OURS:
        package = f"{point.dist.name} {point.dist.version}"
    with _registering(package):
        try:
            point.load()
        except InputError:
            raise
        except (Exception, SystemExit) as error:  # another package's module may raise anything, or end the process
            raise InputError(
                f"the package {package} cannot be used: its entry point {point.name!r} of {group} fails "
                f"({type(error).__name__}: {error}); fix it or uninstall it"
            ) from error


def load_plugins(plugins: Sequence[str]) -> None:
    """Import plug-ins, which register entries: modules that are installed or on PYTHONPATH, or paths of files."""
    for plugin in plugins:
        module = _module_name(plugin)
        with _registering(module):
            try:
                imported = import_module(module)
            except InputError:
                raise
            except ModuleNotFoundError as error:
                raise InputError(
                    f"the plug-in {plugin!r} cannot be imported ({error}): install it, put its folder on PYTHONPATH, "
                    "or give its file"
                ) from error
            except (Exception, SystemExit) as error:  # as above
                raise InputError(f"the plug-in {plugin!r} fails ({type(error).__name__}: {error}): fix it") from error
        if _is_path(plugin) and _source(plugin).resolve() != Path(imported.__file__ or "").resolve():
            raise InputError(
                f"the plug-in {plugin!r} has the name of another module, {imported.__file__ or module}: rename it"
            )


def load_files(files: Sequence[str]) -> None:
    """Import plug-ins that are files, in this process and, when they need them, in those that it starts."""
    paths = [str(Path(file).expanduser().resolve()) for file in files]
    if wrong := [file for file, path in zip(files, paths, strict=True) if Path(path).suffix != ".py"]:
        raise InputError(f"the plug-in {wrong[0]!r} is no Python file: give one, such as my_methods.py")
    load_plugins(paths)
    os.environ[PLUGINS] = os.pathsep.join(dict.fromkeys([*_files_of_variable(), *paths]))


def beside(folder: Path, plugin: str) -> str:
    """The path of a plug-in in a folder; its name, if there is none or a module of that name is found elsewhere."""
    if plugin.endswith(".py"):
        return str((folder / Path(plugin).expanduser()).resolve())
    if not plugin.isidentifier() or plugin in sys.modules or find_spec(plugin) is not None:
        return plugin
    candidates = folder / f"{plugin}.py", folder / plugin
    return next((str(path.resolve()) for path in candidates if _source(str(path)).is_file()), plugin)


def _files_of_variable() -> list[str]:
    return list(filter(None, os.environ.get(PLUGINS, "").split(os.pathsep)))


def _is_path(plugin: str) -> bool:
    return plugin.endswith(".py") or os.sep in plugin


def _source(path: str) -> Path:
    """The file of a plug-in that is a file or a package's folder."""
    return Path(path) if path.endswith(".py") else Path(path) / "__init__.py"


def _module_name(plugin: str) -> str:
    """The name by which a plug-in is imported. The folder of a file becomes the last on Python's path."""
    if not _is_path(plugin):
        return plugin
    path = Path(plugin)
    if not _source(plugin).is_file():
        raise InputError(f"there is no plug-in {plugin!r}: give a Python file, such as my_methods.py")
    if not path.stem.isidentifier():
        raise InputError(
            f"the plug-in {plugin!r} cannot be imported by its name: use letters, digits and underscores"
        )
    if (folder := str(path.resolve().parent)) not in sys.path:
        sys.path.append(folder)
    return path.stem
