"""Hooks of the documentation site (mkdocs.yml): pages that are made while it is built, and formulas without a script.

cli.md        from the commands (cli_page)
notebook.md   docs/tutorial.ipynb with what its cells gave
results/      the tables and the report that docs/results.md reads, copied beside the pages
$...$         LaTeX as MathML, which browsers show by themselves
"""

import html
import json
import re
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert  # pyright: ignore[reportMissingImports]
from mkdocs.config.defaults import MkDocsConfig  # pyright: ignore[reportMissingImports]
from mkdocs.structure.files import File, Files  # pyright: ignore[reportMissingImports]

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from experiments.tools import cli_page, docs_nav, notebook_page  # noqa: E402 (found from here only)

RESULTS = ("*.md", "*.csv", "*.png", "*.html")
MATH = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.nav = docs_nav.present(config.nav)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    if notebook := files.get_file_from_path("tutorial.ipynb"):
        page = notebook_page.page(json.loads(Path(str(notebook.abs_src_path)).read_text(encoding="utf-8")))
        files.append(File.generated(config, "notebook.md", content=page))
    files.append(File.generated(config, "cli.md", content=cli_page.page()))
    for pattern in RESULTS:
        for path in sorted((ROOT / "results" / "small-world").glob(pattern)):
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """In the repository, links lead to the notebook and out of docs/; here to the pages that are made of them."""
    return markdown.replace("](../results/", "](results/").replace("](tutorial.ipynb)", "](notebook.md)")


def on_page_content(content: str, **_: Any) -> str:
    return MATH.sub(_formula, content)


def _formula(found: re.Match[str]) -> str:
    """A formula as MathML. Parts of a display formula that are set apart by \\qquad may go on lines of their own."""
    latex = html.unescape(found[3]).strip()
    if found[2] != "[":
        return convert(latex)
    parts = [convert(part.strip(), display="block") for part in latex.split(r"\qquad")]
    return f'<div class="formula">{"".join(parts)}</div>'
