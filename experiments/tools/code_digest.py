"""Which code was mutated: a digest of a module that comments, docstrings and layout do not change.

It is of one version of Python: another may write the same code in another way.
"""

import ast
import platform
from hashlib import sha256
from pathlib import Path

PYTHON = ".".join(platform.python_version_tuple()[:2])


def code_digest(path: Path) -> str:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body[0] = ast.Pass()
    return sha256(ast.unparse(tree).encode()).hexdigest()[:12]
