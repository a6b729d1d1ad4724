"""The demo as one self-contained HTML page."""

import base64
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment

from ggss.files import write_whole
from ggss.output import mark
from ggss.smallworld.demo_picture import COMMAND
from ggss.smallworld.demonstration import Demo


def page(demo: Demo, target: Path) -> Path:
    """Write the page next to the picture, which it contains."""
    source = (files("ggss.smallworld") / "data" / "demo.html").read_text(encoding="utf-8")
    picture = base64.b64encode(demo.picture.read_bytes()).decode()
    template = Environment(autoescape=True, trim_blocks=True).from_string(source)
    write_whole(target, template.render(demo=demo, picture=picture, mark=mark(COMMAND)).encode())
    return target
