"""YAML as version 1.2 reads plain scalars: `3e-3` is a number, `no`, `1:30` and `2026-01-01` are text, 010 is ten.

Plain data only (a SafeLoader), and a key that appears twice in one mapping is an error.
"""

from __future__ import annotations

import re
from typing import Any, cast

import yaml


def load_yaml(text: str) -> Any:
    """The one document in the text. Raises `yaml.YAMLError`, `RecursionError` or `ValueError`."""
    return yaml.load(text, Loader=_Loader)  # noqa: S506 (a SafeLoader)


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value!r} appears twice", key.start_mark
                    )
                seen.add(key.value)
        return cast("dict[Any, Any]", super().construct_mapping(node, deep=deep))


def _integer(loader: yaml.SafeLoader, node: yaml.Node) -> int:
    text = str(loader.construct_scalar(cast("yaml.ScalarNode", node)))
    return int(text, 16 if "x" in text else 10)


def _float(loader: yaml.SafeLoader, node: yaml.Node) -> float:
    text = str(loader.construct_scalar(cast("yaml.ScalarNode", node))).lower()
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))


_NUMBER = r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
_SPECIAL = r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"

# Tag, pattern, and the characters that such a scalar can begin with ("" = it can be empty). The first match counts.
_RESOLVERS: tuple[tuple[str, str, list[str]], ...] = (
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    ("float", rf"{_NUMBER}|{_SPECIAL}", list("-+.0123456789")),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("merge", r"<<", ["<"]),
)

_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in _RESOLVERS:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), _first)
_Loader.add_constructor("tag:yaml.org,2002:int", _integer)
_Loader.add_constructor("tag:yaml.org,2002:float", _float)
