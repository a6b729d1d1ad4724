"""The navigation of the documentation site: what mkdocs.yml names, without pages that are not written yet."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"
MADE = ("cli.md", "notebook.md")  # by the hooks, while the site is built
UNWRITTEN = ("serving.md", "sites.md")  # pages that may not be there yet; every other page of the nav must be


def present(nav: Any) -> Any:
    """The nav without pages that are not written yet, and without sections that are empty then."""
    if isinstance(nav, str):
        return None if nav in UNWRITTEN and not (DOCS / nav).is_file() else nav
    if isinstance(nav, dict):
        return {name: kept for name, own in nav.items() if (kept := present(own))} or None
    return [kept for own in nav if (kept := present(own))]


def pages(nav: Any) -> Iterator[str]:
    """The pages of a nav, in order."""
    if isinstance(nav, str):
        yield nav
    else:
        for own in nav.values() if isinstance(nav, dict) else nav:
            yield from pages(own)
