"""What there is: `ggss methods` and `ggss probes` list what is registered, `ggss cache` the activations on disk.

`ggss cache prune` deletes old activations.
"""

import json
import re
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

import typer

from ggss.cli.arguments import Json, say
from ggss.errors import InputError

cache = typer.Typer(
    no_args_is_help=True, help="Show and delete the activations that ggss keeps on disk, in the folder GGSS_CACHE."
)

UNITS = {"s": 1, "min": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400}
SIZES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
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
    _show_rows(("method", "what it does", "options", "reference", "package"), table_rows)
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
    _show_rows(
        ("probe", "kind", "what it asks", "package"), [(r.name, r.kind, r.summary, package) for r, package in rows]
    )


def _show_rows(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    from ggss.terminal import Terminal

    table = Table(*columns, box=None)
    for first, *others in rows:
        table.add_row(Text(first, "bold"), *others)
    Terminal().print(table)


@cache.command("list")
def list_cache(as_json: Json = False) -> None:
    """Show what is in the cache, by model and site.

    A model is shown by the first digits of the hash of its vision weights and settings.

    Example: ggss cache list
    """
    contents = _contents()
    groups = contents.groups()
    if as_json:
        data: dict[str, Any] = {"folder": str(contents.folder), "files": len(contents.files), "bytes": contents.size}
        print(json.dumps(data | {"others": contents.others, "groups": [asdict(group) for group in groups]}, indent=2))
        return
    from rich.table import Table

    from ggss.terminal import Terminal

    if groups:
        table = Table("model", "site", "entries", "size", "first written", "last written", box=None)
        for group in groups:
            names = (group.model, group.site) if group.model else ("(never finished)", "")
            days = (_day(group.oldest), _day(group.newest))
            table.add_row(*names, f"{group.entries:,}", bytes_for_people(group.size), *days)
        Terminal().print(table)
    say(f"{len(contents.files):,} files, {bytes_for_people(contents.size)}, in {contents.folder}{_others(contents)}")


@cache.command()
def prune(
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="Delete what was written longer ago: 30d, 12h, 2w.")
    ] = None,
    max_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Delete the oldest until the rest is no larger: 5GB, 500MB.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    as_json: Json = False,
) -> None:
    """Delete entries that are old, or the oldest if there are too many. They are computed again when they are needed.

    Only files that ggss wrote are deleted: those whose name follows from the key that is in them.

    Example: ggss cache prune --older-than 30d --max-size 5GB
    """
    if older_than is None and max_size is None:
        raise InputError(
            "what should be deleted? Give --older-than, such as 30d, or --max-size, such as 5GB, or both"
        )
    age = None if older_than is None else _read(older_than, "--older-than", UNITS)
    room = None if max_size is None else _read(max_size, "--max-size", SIZES)
    contents = _contents()
    chosen = contents.expendable(time.time(), age, None if room is None else int(room))
    if dry_run:
        count, size = len(chosen), sum(file.size for file in chosen)
    else:
        from ggss.activations.cache import delete

        count, size = delete(chosen)
    left = contents.size - (0 if dry_run else size)
    if as_json:
        data = {"folder": str(contents.folder), "deleted": count, "bytes": size, "left": left, "dry_run": dry_run}
        print(json.dumps(data, indent=2))
        return
    done = "would be deleted" if dry_run else "deleted"
    sentence = f"{count:,} files, {bytes_for_people(size)}, {done}; {bytes_for_people(left)} are in {contents.folder}"
    say(f"{sentence}{_others(contents)}")


def bytes_for_people(count: float) -> str:
    """A number of bytes with a suitable unit, such as 1.5 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1_000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1_000
    return f"{count:.1f} TB"


def _contents() -> Any:
    from ggss.activations.cache import CacheContents
    from ggss.activations.collect import default_cache

    return CacheContents.read(default_cache())


def _others(contents: Any) -> str:
    return f"; {contents.others:,} other files in it are not ours and stay" if contents.others else ""


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d")


def _read(text: str, option: str, units: dict[str, int]) -> float:
    """The value of a number with a unit, such as 30d or 5 GB, in the smallest unit."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) *([A-Za-z]+)", text.strip())
    factors = {unit.lower(): factor for unit, factor in units.items()}
    if not match or match[2].lower() not in factors:
        raise InputError(
            f"{option} {text!r} is not a number and one of {', '.join(units)}, such as 30{list(units)[3]}"
        )
    return float(match[1]) * factors[match[2].lower()]
