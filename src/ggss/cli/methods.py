"""`ggss methods` and `ggss probes`: list the methods and the probes."""

import json
from collections.abc import Sequence

from ggss.cli.arguments import Json

ADVICE = """\
The default is ggss, the paper's. Where attributes are entangled try pace first,
with pictures without people (--neutral) if you have some; auto compares it with
others on held-out discovery pictures."""


def methods(as_json: Json = False) -> None:
    """List every method with its options, its reference and the package it comes from.

    Example: ggss methods
    """
    from ggss.methods.registry import METHODS

    rows = [(METHODS.get(name), METHODS.package(name)) for name in METHODS.names()]
    if as_json:
        described = [
            {
                "name": row.name,
                "summary": row.summary,
                "reference": row.reference,
                "options": {name: field.default for name, field in row.options.model_fields.items()},
                "needs_tokens": row.needs_tokens,
                "takes_unpaired": row.takes_unpaired,
                "package": package,
            }
            for row, package in rows
        ]
        print(json.dumps(described, indent=2))
        return
    table_rows = [
        (
            row.name,
            row.summary,
            ", ".join(f"{name}={field.default}" for name, field in row.options.model_fields.items()),
            row.reference,
            package,
        )
        for row, package in rows
    ]
    _show(("method", "what it does", "options", "reference", "package"), table_rows)
    print(ADVICE)


def probes(as_json: Json = False) -> None:
    """List every probe with what it measures and the package it comes from; a task is a probe, or PROBE-ATTRIBUTE.

    Example: ggss probes
    """
    import ggss.probes  # noqa: F401 (they register themselves)
    from ggss.probes.base import PROBES

    rows = [(PROBES.get(name), PROBES.package(name)) for name in PROBES.names()]
    if as_json:
        described = [
            {
                "name": row.name,
                "kind": row.kind,
                "summary": row.summary,
                "metrics": list(row.displays),
                "package": package,
            }
            for row, package in rows
        ]
        print(json.dumps(described, indent=2))
        return
    _show(("probe", "kind", "what it asks", "package"), [(r.name, r.kind, r.summary, package) for r, package in rows])


def _show(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    from ggss.terminal import Terminal

    table = Table(*columns, box=None)
    for first, *others in rows:
        table.add_row(Text(first, "bold"), *others)
    Terminal().print(table)
