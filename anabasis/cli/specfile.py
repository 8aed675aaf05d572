"""Reading a campaign spec from YAML or JSON, with overrides from the command line.

Plain data only, with YAML 1.2's ideas of it: `3e-3` is a number, `no` and `2026-01-01` are text. Keys that appear
twice, files that are no UTF-8 and aliases that unfold into something huge are errors, with line numbers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, cast

import yaml

from anabasis.campaign.spec import MAX_SPEC_BYTES
from anabasis.cli.yaml12 import load_yaml
from anabasis.errors import InvalidSpec, ObjectNotFound

MAX_VALUES = 20_000
"""Values in one spec, aliases unfolded. The largest sensible spec has some hundred."""


def read_spec(source: str) -> dict[str, Any]:
    """The mapping in a file, or on stdin for `-`.

    Raises:
        ObjectNotFound: no such file.
        InvalidSpec: too large, not UTF-8, not YAML or JSON (with the line), or not a mapping.
    """
    text = _decode(_read(source), source)
    value = _parse_json(text, source) if source.endswith(".json") else _parse_yaml(text, source)
    if value is None:
        _refuse(source, "is empty: it needs at least `name: …`")
    if not isinstance(value, dict):
        _refuse(source, f"must be a mapping with at least a name, not {type(value).__name__}")
    _check_extent(value, source)
    return cast("dict[str, Any]", value)


def override(spec: dict[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """A copy with each `path=value` applied, as in `training.inner_steps=5`; values are YAML."""
    changed = cast("dict[str, Any]", json.loads(json.dumps(spec, default=str)))
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        parts = path.strip().split(".")
        if not equals or not all(parts):
            _refuse("--set", f"{assignment!r} is not PATH=VALUE, such as training.inner_steps=5")
        section = changed
        for depth, part in enumerate(parts[:-1], start=1):
            inner = section.setdefault(part, {})
            if not isinstance(inner, dict):
                _refuse("--set", f"{path}: {'.'.join(parts[:depth])} is {inner!r}, not a section")
            section = cast("dict[str, Any]", inner)
        section[parts[-1]] = _scalar(text)
    return changed


def _scalar(text: str) -> Any:
    try:
        value = load_yaml(text)
    except (yaml.YAMLError, RecursionError):
        return text  # such as a URL with an odd character: plain text, validated like any other
    _check_extent(value, "--set")
    return value


def _read(source: str) -> bytes:
    if source == "-":
        data = sys.stdin.buffer.read(MAX_SPEC_BYTES + 1)
    else:
        try:
            with Path(source).open("rb") as file:
                data = file.read(MAX_SPEC_BYTES + 1)
        except FileNotFoundError:
            raise ObjectNotFound(f"there is no file {source}: `anabasis spec --example > {source}` makes one") from None
        except OSError as error:
            _refuse(source, f"cannot be read: {error.strerror}")
    if len(data) > MAX_SPEC_BYTES:
        _refuse(source, f"is larger than {MAX_SPEC_BYTES} bytes: put data behind data.url")
    return data


def _decode(data: bytes, source: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        _refuse(source, f"line {line}: is not UTF-8 text")


def _parse_json(text: str, source: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        _refuse(source, f"line {error.lineno}, column {error.colno}: {error.msg}")
    except _Duplicate as error:
        _refuse(source, str(error))
    except RecursionError:
        _refuse(source, "is nested too deeply")


class _Duplicate(ValueError):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _Duplicate(f"has the key {key!r} twice in one object")
        found[key] = value
    return found


def _no_constant(text: str) -> NoReturn:
    raise _Duplicate(f"contains {text}, which is no JSON number")


def _parse_yaml(text: str, source: str) -> Any:
    try:
        return load_yaml(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        _refuse(source, where + ": ".join(part for part in (error.context, error.problem) if part))
    except yaml.YAMLError as error:  # characters that YAML does not allow
        _refuse(source, " ".join(str(error).split()))
    except RecursionError:
        _refuse(source, "is nested too deeply")
    except ValueError as error:  # such as an integer of thousands of digits
        _refuse(source, str(error))


def _check_extent(value: Any, source: str) -> None:
    """Refuse what aliases unfold to without unfolding it."""
    pending, seen = [value], 0
    while pending:
        one = pending.pop()
        seen += 1
        if seen > MAX_VALUES:
            _refuse(source, f"has more than {MAX_VALUES} values: put data behind data.url")
        if isinstance(one, dict):
            pending.extend(cast("dict[Any, Any]", one).values())
        elif isinstance(one, list):
            pending.extend(cast("list[Any]", one))


def _refuse(source: str, text: str) -> NoReturn:
    raise InvalidSpec([("(stdin)" if source == "-" else source, text)])
