"""A validator for the part of JSON Schema that pydantic writes for a profile.

Any other keyword raises `KeyError`, so that none is ignored. No validation library is among the test dependencies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

_NOTES = {"$schema", "$id", "title", "description", "default", "$defs", "format"}
_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
    "string": lambda v: isinstance(v, str),
    "boolean": lambda v: isinstance(v, bool),
    "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "number": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool),
    "null": lambda v: v is None,
}
_SIMPLE: dict[str, Callable[[Any, Any], bool]] = {
    "type": lambda v, name: _TYPES[name](v),
    "const": lambda v, only: bool(v == only),
    "enum": lambda v, all_: v in all_,
    "minimum": lambda v, least: bool(v >= least),
    "maximum": lambda v, most: bool(v <= most),
    "exclusiveMinimum": lambda v, below: bool(v > below),
    "exclusiveMaximum": lambda v, above: bool(v < above),
    "pattern": lambda v, regex: re.search(regex, v) is not None,
    "minItems": lambda v, least: len(v) >= least,
    "maxItems": lambda v, most: len(v) <= most,
}


def schema_errors(value: Any, schema: dict[str, Any]) -> list[str]:
    """Returns one line per violation, with the path of the value."""
    return list(_faults(value, schema, schema, "$"))


def _faults(value: Any, schema: dict[str, Any], root: dict[str, Any], path: str) -> Iterator[str]:
    if "type" in schema and not _TYPES[schema["type"]](value):
        yield f"{path} is not of type {schema['type']}"
        return
    for keyword, rule in schema.items():
        if keyword in _SIMPLE:
            if not _SIMPLE[keyword](value, rule):
                yield f"{path} breaks {keyword} {rule}"
        elif keyword not in _NOTES:
            yield from _NESTED[keyword](value, schema, root, path)


def _reference(value: Any, schema: dict[str, Any], root: dict[str, Any], path: str) -> Iterator[str]:
    yield from _faults(value, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root, path)


def _any(value: Any, schema: dict[str, Any], root: dict[str, Any], path: str) -> Iterator[str]:
    if all(list(_faults(value, one, root, path)) for one in schema["anyOf"]):
        yield f"{path} fits none of its schemas"


def _required(value: Any, schema: dict[str, Any], root: dict[str, Any], path: str) -> Iterator[str]:
    yield from (f"{path}.{name} is missing" for name in schema["required"] if name not in value)


def _properties(value: Any, schema: dict[str, Any], root: dict[str, Any], path: str) -> Iterator[str]:
    for name, one in schema["properties"].items():
        if name in value:
            yield from _faults(value[name], one, root, f"{path}.{name}")


def _additional(value: Any, schema: dict[str, Any], root: dict[str, Any], path: str) -> Iterator[str]:
    for name in value.keys() - schema.get("properties", {}).keys():
        if schema["additionalProperties"] is False:
            yield f"{path}.{name} is unknown"
        else:
            yield from _faults(value[name], schema["additionalProperties"], root, f"{path}.{name}")


def _items(value: Any, schema: dict[str, Any], root: dict[str, Any], path: str) -> Iterator[str]:
    for i, one in enumerate(value):
        yield from _faults(one, schema["items"], root, f"{path}.{i}")


def _first_items(value: Any, schema: dict[str, Any], root: dict[str, Any], path: str) -> Iterator[str]:
    for i, (one, inner) in enumerate(zip(value, schema["prefixItems"], strict=False)):
        yield from _faults(one, inner, root, f"{path}.{i}")


_NESTED: dict[str, Callable[[Any, dict[str, Any], dict[str, Any], str], Iterator[str]]] = {
    "$ref": _reference, "anyOf": _any, "required": _required, "properties": _properties,
    "additionalProperties": _additional, "items": _items, "prefixItems": _first_items,
}  # fmt: skip
