"""Run docs/tutorial.ipynb and write what its cells give into it. No Jupyter is needed.

python -m experiments.tools.tutorial
"""

import ast
import base64
import contextlib
import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.ipynb"
LINES = 30  # of text that a cell may show


def code_cells(page: Path = PAGE) -> list[str]:
    """The source of each code cell, in order."""
    cells = json.loads(page.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def run_cell(source: str, names: dict[str, Any]) -> tuple[str, Any]:
    """Execute a cell; returns what it printed, and the value of its last line if that is an expression."""
    body = ast.parse(source)
    last = body.body[-1] if body.body and isinstance(body.body[-1], ast.Expr) else None
    body.body = body.body[: -1 if last else None]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(body, "<cell>", "exec"), names)
        value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names) if last else None
    return printed.getvalue(), value


def _outputs(printed: str, value: Any, number: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if printed:
        found.append({"output_type": "stream", "name": "stdout", "text": _trimmed(printed)})
    if value is None:
        return found
    if hasattr(value, "get_figure"):
        return [*found, {"output_type": "display_data", "metadata": {}, "data": {"image/png": _png(value)}}]
    html = getattr(value, "_repr_html_", None)
    plain = f"<{type(value).__name__}>" if html else repr(value)
    data = {"text/plain": _trimmed(plain)} | ({"text/html": [html()]} if html else {})
    return [*found, {"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": data}]


def _trimmed(text: str) -> list[str]:
    lines = [line[:160] for line in text.splitlines()]
    kept = lines if len(lines) <= LINES else [*lines[:LINES], f"... {len(lines) - LINES} more lines"]
    return [f"{line}\n" for line in kept[:-1]] + kept[-1:]


def _png(axis: Any) -> str:
    data = io.BytesIO()
    axis.get_figure().savefig(data, dpi=70, metadata={"Software": None})
    return base64.b64encode(data.getvalue()).decode()


def main() -> None:
    import matplotlib

    matplotlib.use("Agg")
    page, names = json.loads(PAGE.read_text(encoding="utf-8")), {"__name__": "__main__"}
    number = 0
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        os.environ["GGSS_CACHE"], os.environ["GGSS_QUIET"] = place, "1"
        for cell in page["cells"]:
            if cell["cell_type"] == "code":
                number += 1
                printed, value = run_cell("".join(cell["source"]), names)
                cell |= {"execution_count": number, "outputs": _outputs(printed, value, number)}
    PAGE.write_text(json.dumps(page, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{number} cells of {PAGE} were run")


if __name__ == "__main__":
    main()
