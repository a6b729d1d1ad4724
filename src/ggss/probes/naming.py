"""Names of metrics and words for values. A metric that was published for an attribute keeps its name for it."""

import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files


@cache
def _read(name: str) -> dict[str, object]:
    return json.loads((files("ggss.probes") / "data" / name).read_text(encoding="utf-8"))


def metric_name(kind: str, about: str) -> str:
    """The published name of a kind of metric for an attribute, or the kind and the attribute: `salary_gap_age`."""
    published: dict[str, str] = _read("metric_names.json")  # pyright: ignore[reportAssignmentType]
    return kind if published.get(kind) == about else f"{kind}_{about}"


@cache
def vocabulary(values: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """By value of an attribute, the words and phrases that mean it: its own name, and its synonyms.

    Synonyms that two of the values share ("asian" for both "chinese" and "japanese") are not used.
    """
    groups: Sequence[Sequence[str]] = _read("synonyms.json")["groups"]  # pyright: ignore[reportAssignmentType]
    spelled = {value: value.lower().replace("_", " ") for value in values}
    found = {}
    for value, name in spelled.items():
        group = next((group for group in groups if name in group), ())
        alone = sum(other in group for other in spelled.values()) == 1
        found[value] = tuple(dict.fromkeys([value, name, name.replace(" ", "-"), *(group if alone else ())]))
    return found
