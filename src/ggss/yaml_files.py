"""Reading YAML written by people, as plain data. Errors name the line."""

import re
from pathlib import Path
from typing import Any

import yaml

from ggss.errors import InputError
from ggss.files import DEEPEST, read_utf8

_LARGEST = 2**63  # integers must be smaller, to be stored
_MERGED = 10_000  # keys of a mapping, including those that `<<` adds
_TAG = "tag:yaml.org,2002:"
_PLAIN = [_TAG + kind for kind in ("null", "bool", "int", "float", "str", "seq", "map")]


def read_yaml(path: Path, what: str) -> Any:
    """The content of a file: text, numbers, true, false, null, lists and mappings; dates are text.

    InputError if it cannot be read, is not YAML, or has a key twice. what: its name in messages, such as "the plan".
    """
    text = read_utf8(path, what)
    try:
        return yaml.load(text, _PlainLoader)
    except (yaml.YAMLError, ValueError, KeyError) as error:
        raise InputError(f"{what} {str(path)!r} is not usable YAML: {' '.join(str(error).split())}") from error


class _PlainLoader(yaml.SafeLoader):
    """Only the types that JSON has; `yes`, `no` and `2024-01-31` are text, as in YAML 1.2."""

    yaml_constructors = {  # noqa: RUF012
        tag: make for tag, make in yaml.SafeLoader.yaml_constructors.items() if tag is None or tag in _PLAIN
    }
    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, text) for tag, text in resolvers if tag not in (_TAG + "timestamp", _TAG + "bool")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth += 1
        if self.depth > DEEPEST:
            raise yaml.YAMLError(f"it is nested too deeply, at most {DEEPEST} levels are read")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def plain_list(self, node: Any) -> list[Any]:
        return self.construct_sequence(node, deep=True)  # all of it at once: a list inside itself is refused

    def plain_mapping(self, node: Any) -> dict[Any, Any]:
        lines: dict[Any, int] = {}
        for key_node, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key_node, yaml.ScalarNode):
                key, line = key_node.value, key_node.start_mark.line + 1
                if key in lines:
                    raise yaml.YAMLError(f"{key!r} is there twice, in line {lines[key]} and in line {line}")
                lines[key] = line
        return self.construct_mapping(node, deep=True)

    def flatten_mapping(self, node: Any) -> None:
        super().flatten_mapping(node)
        if len(node.value) > _MERGED:  # references to references of `<<` grow without end
            raise yaml.YAMLError(f"the mapping in line {node.start_mark.line + 1} merges too many others")

    def plain_int(self, node: Any) -> int:
        text = str(self.construct_scalar(node))
        # Python converts no more than some thousand digits.
        number = self.construct_yaml_int(node) if len(text) < 100 else _LARGEST
        if abs(number) >= _LARGEST:
            line = node.start_mark.line + 1
            raise yaml.YAMLError(f"the whole number in line {line}, which begins {text[:20]}, is too large")
        return number


for _kind, _make in (
    ("seq", _PlainLoader.plain_list),
    ("map", _PlainLoader.plain_mapping),
    ("int", _PlainLoader.plain_int),
):
    _PlainLoader.add_constructor(_TAG + _kind, _make)
_PlainLoader.add_implicit_resolver(_TAG + "bool", re.compile("^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
