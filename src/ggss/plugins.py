"""Registries that other packages can extend: methods, probes, suites, model families, picture sets, tables.

An entry comes from ggss itself, from an installed package by an entry point of the registry's group, or from a module
that a study plan names under `plugins`. The entry point's value is a module that registers its entries when it is
imported. Every entry is stored with its package, and the error of a refused registration names the package.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

from ggss.errors import InputError, no_such

T = TypeVar("T")
OURS = "ggss"

_package = OURS  # the package whose entries are being registered


@contextmanager
def _registering(package: str) -> Iterator[None]:
    global _package
    before, _package = _package, package
    try:
        yield
    finally:
        _package = before


def _registering_package() -> str:
    """The package whose module is being imported: ggss for its own modules, even if another package imports them."""
    frame = sys._getframe(1)
    while frame and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    module = frame.f_globals["__name__"] if frame else ""
    return OURS if module.partition(".")[0] == OURS else _package


class Registry(Generic[T]):
    """One registry. `what` names an entry in messages; `group` is the entry-point group of other packages' entries.

    check: returns what is wrong with an entry, or "".
    """

    def __init__(self, what: str, group: str, check: Callable[[T], str] = lambda entry: "") -> None:
        self.what, self.group, self._check = what, group, check
        self._entries: dict[str, T] = {}
        self._packages: dict[str, str] = {}
        self._complete = False

    def add(self, name: str, entry: T) -> T:
        """Register an entry. InputError, naming the package, if the name is taken or the entry is malformed."""
        package = _registering_package()
        by = "" if package == OURS else f" (from {package})"
        if wrong := self._check(entry) or ("" if name else "it has no name"):
            raise InputError(f"the {self.what} {name!r}{by} cannot be registered: {wrong}")
        if name in self._entries:
            raise InputError(
                f"the {self.what} {name!r}{by} cannot be registered: {self._packages[name]} has one of that name; "
                "choose another"
            )
        self._entries[name] = entry
        self._packages[name] = package
        return entry

    def names(self) -> list[str]:
        """All names: those of ggss first, in the order of registration."""
        self._load_installed()
        return list(self._entries)

    def get(self, name: str) -> T:
        """The entry of a name. InputError lists all names, and suggests the nearest one."""
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

    def _load_installed(self) -> None:
        if self._complete:
            return
        self._complete = True
        try:
            for point in sorted(entry_points(group=self.group), key=lambda point: (point.name, point.value)):
                _load(point, self.group)
        except BaseException:
            self._complete = False
            raise


def _load(point: EntryPoint, group: str) -> None:
    package = f"{point.dist.name} {point.dist.version}" if point.dist else point.value
    with _registering(package):
        try:
            point.load()
        except InputError:
            raise
        except Exception as error:  # the module of another package may raise anything
            raise InputError(
                f"the package {package} cannot be used: its entry point {point.name!r} of {group} fails "
                f"({type(error).__name__}: {error}); fix it or uninstall it"
            ) from error


def load_plugins(modules: Sequence[str]) -> None:
    """Import modules that register entries. Each must be installed, or be in a folder on PYTHONPATH."""
    for module in modules:
        with _registering(module):
            try:
                import_module(module)
            except InputError:
                raise
            except ModuleNotFoundError as error:
                raise InputError(
                    f"the plug-in {module!r} cannot be imported ({error}): "
                    "install it, or put its folder on PYTHONPATH"
                ) from error
            except Exception as error:  # as above
                raise InputError(f"the plug-in {module!r} fails ({type(error).__name__}: {error}): fix it") from error
