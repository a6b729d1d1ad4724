"""A report as its readers have it: the elements of the page, from Python's own parser of HTML."""

import base64
import re
import zlib
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "img", "input", "hr", "line", "circle", "rect", "use", "image", "polyline", "path"}
PACKED = re.compile(r'<script type="text/plain" class="packed">([^<]*)</script>')


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    parent: "Element | None"
    parts: list["Element | str"] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(part if isinstance(part, str) else part.text for part in self.parts)

    @property
    def words(self) -> str:
        return " ".join(self.text.split())

    def all(self, tag: str = "", **wanted: str) -> list["Element"]:
        """All elements inside with this tag and these attributes; `kind` is a class."""
        found = []
        for part in self.parts:
            if isinstance(part, Element):
                fits = not tag or part.tag == tag
                for name, value in wanted.items():
                    own = part.attributes.get({"kind": "class"}.get(name, name.replace("_", "-")), "")
                    fits = fits and (value in own.split() if name == "kind" else own == value)
                found += [part] if fits else []
                found += part.all(tag, **wanted)
        return found

    def one(self, tag: str = "", **wanted: str) -> "Element":
        (found,) = self.all(tag, **wanted)
        return found


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = self.here = Element("root", {}, None)
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]], closed: bool = False) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs}, self.here)
        self.here.parts.append(element)
        if not closed and tag not in VOID:
            self.here = element

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs, closed=True)

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        if self.here.tag != tag or self.here.parent is None:
            self.wrong.append(f"</{tag}> inside <{self.here.tag}>")
            return
        self.here = self.here.parent

    def handle_data(self, data: str) -> None:
        self.here.parts.append(data)


def unpacked(page: str) -> str:
    """The page with what its script shows when it is opened."""
    return PACKED.sub(lambda found: zlib.decompress(base64.b64decode(found[1]), -zlib.MAX_WBITS).decode(), page)


def read(page: str) -> Element:
    """The whole page, all of it opened; AssertionError if its tags are not balanced."""
    reader = _Reader()
    reader.feed(unpacked(page))
    reader.close()
    assert reader.wrong == []
    assert reader.here is reader.root
    return reader.root
