"""A notebook as a Markdown page, with what its cells gave: text as text, tables as HTML, pictures inside the page."""

from collections.abc import Iterator, Mapping
from typing import Any


def page(notebook: Mapping[str, Any]) -> str:
    """The Markdown of all cells, in order."""
    return "\n\n".join(part for cell in notebook["cells"] for part in _cell(cell)) + "\n"


def _cell(cell: Mapping[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"]).strip()
    if cell["cell_type"] == "markdown":
        yield source
        return
    yield f"```python\n{source}\n```"
    for output in cell["outputs"]:
        yield _output(output)


def _output(output: Mapping[str, Any]) -> str:
    if output["output_type"] == "stream":
        return f"```text\n{''.join(output['text'])}\n```"
    data = output["data"]
    if "image/png" in data:
        picture = f"data:image/png;base64,{data['image/png']}"
        return f'<div class="output"><img alt="what the cell draws" src="{picture}"></div>'
    if "text/html" in data:
        lines = "".join(data["text/html"]).splitlines()  # an empty line would end the block of HTML
        return '<div class="output">' + "\n".join(line for line in lines if line.strip()) + "</div>"
    return f"```text\n{''.join(data['text/plain'])}\n```"
