"""Check the built documentation site: `python -m experiments.tools.site_check site`.

Every link leads somewhere, and no page loads anything from another machine.

MkDocs checks the links that are written in Markdown. This looks at what was built, also at HTML and style sheets.
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADS = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "embed": "src",
}
STYLED = re.compile(r"""(?:url\(|@import)\s*["']?(?!data:)((?:https?:)?//[^"')\s]+)""")


class BuiltPage(HTMLParser):
    """The links of a page, what it loads, and the names that can be linked to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.names |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "link" and given.get("rel") not in ("canonical", "prev", "next", "alternate"):
            self.loaded.append(given.get("href", ""))
        if given.get(LOADS.get(tag, "")):
            self.loaded.append(given[LOADS[tag]])


def problems(site: Path) -> list[str]:
    """A sentence for each link that leads nowhere, and for each thing from elsewhere."""
    files = [path for path in sorted(site.rglob("*.html")) if path.name != "404.html"]  # it is shown at any address
    pages = {path.resolve(): BuiltPage(path.read_text(encoding="utf-8")) for path in files}
    found = []
    for path, page in pages.items():
        where = path.relative_to(site.resolve())
        found += [f"{where} loads {one}" for one in page.loaded if urlsplit(one).netloc]
        for link in page.links:
            if wrong := _wrong(link, path, pages):
                found.append(f"{where}: the link {link!r} {wrong}")
    for style in sorted(site.rglob("*.css")):
        found += [
            f"{style.relative_to(site)} loads {one}" for one in STYLED.findall(style.read_text(encoding="utf-8"))
        ]
    return found


def _wrong(link: str, path: Path, pages: dict[Path, BuiltPage]) -> str:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return ""
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    target = target / "index.html" if target.is_dir() else target
    if not target.is_file():
        return "leads to no file"
    own = pages.get(target)
    if own is not None and parts.fragment and unquote(parts.fragment) not in own.names:
        return "leads to no such place on its page"
    return ""


def main() -> int:
    site = Path(sys.argv[1] if len(sys.argv) > 1 else "site")
    found = problems(site)
    print(
        "\n".join(found) or f"{len(list(site.rglob('*.html')))} pages: every link leads somewhere, nothing is loaded"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
