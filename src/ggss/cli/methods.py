"""`ggss methods`: what can be fitted."""

import json

from ggss.cli.arguments import Json


def methods(as_json: Json = False) -> None:
    """List every method with its options and where it comes from."""
    from ggss.methods import registry

    rows = [registry.get(name) for name in registry.names()]
    if as_json:
        described = [
            {
                "name": row.name,
                "summary": row.summary,
                "reference": row.reference,
                "options": {name: field.default for name, field in row.options.model_fields.items()},
                "needs_tokens": row.needs_tokens,
            }
            for row in rows
        ]
        print(json.dumps(described, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("method", "what it does", "options", "reference", box=None)
    for row in rows:
        options = ", ".join(f"{name}={field.default}" for name, field in row.options.model_fields.items())
        table.add_row(f"[bold]{row.name}[/bold]", row.summary, options, row.reference)
    Console().print(table)
