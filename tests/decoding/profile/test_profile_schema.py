"""The JSON schema of profiles, as it is committed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from importlib import resources
from typing import Any

import pytest

from fsd_decoding.profile.io import SCHEMA_VERSION
from fsd_decoding.profile.json_schema import schema_text
from support.calibration.profiles import (
    FAST_ENOUGH,
    FRONT,
    LOSSLESS,
    SLOWER,
    TOO_SLOW,
    UNCERTIFIED,
    UNKNOWN,
    UNTESTED,
    profile,
    values,
)

# A validator for the part of JSON Schema that pydantic writes for a profile.
#
# Any other keyword raises `KeyError`, so that none is ignored. No validation library is among the test dependencies.

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


def committed() -> dict[str, Any]:
    text = (resources.files("fsd_decoding") / "schemas" / f"profile-{SCHEMA_VERSION}.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def content(changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """What the file of a profile holds."""
    held: dict[str, Any] = json.loads(profile(changes).model_dump_json())
    return held


def test_the_committed_schema_is_the_current_one() -> None:
    assert committed() == json.loads(schema_text()), (
        "regenerate it: python -m fsd_decoding.profile.json_schema > decoding/fsd_decoding/schemas/"
        f"profile-{SCHEMA_VERSION}.json"
    )


def test_the_schema_names_its_dialect_and_itself() -> None:
    schema = committed()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"].startswith("https://github.com/fsd-calib/fsd-calib/")
    assert schema["$id"].endswith(f"decoding/fsd_decoding/schemas/profile-{SCHEMA_VERSION}.json")


def test_every_property_is_described() -> None:
    described = _descriptions(committed())
    assert len(described) > 150
    assert [name for name, description in described.items() if not str(description or "").strip()] == []


def _descriptions(schema: Any, path: str = "$") -> dict[str, Any]:
    """Returns the description of each property, at any depth, by its path in the schema."""
    if isinstance(schema, list):
        return {k: v for i, one in enumerate(schema) for k, v in _descriptions(one, f"{path}.{i}").items()}
    if not isinstance(schema, dict):
        return {}
    own = {f"{path}.{name}": one.get("description") for name, one in schema.get("properties", {}).items()}
    return own | {k: v for key, one in schema.items() for k, v in _descriptions(one, f"{path}.{key}").items()}


@pytest.mark.parametrize(
    "changes", [{}, UNKNOWN, SLOWER, UNCERTIFIED, TOO_SLOW, FAST_ENOUGH, LOSSLESS, UNTESTED, FRONT]
)
def test_saved_profiles_match_the_schema(changes: dict[str, Any]) -> None:
    assert schema_errors(content(changes), committed()) == []


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"outcome": "splendid"}, "$.outcome"),
        ({"speed.sd": "fast"}, "$.speed.sd"),
        ({"accuracy.target": 1.5}, "$.accuracy.target"),
        ({"surprise": 1}, "$.surprise"),
        ({"speed.intervals.sd": [50.0]}, "$.speed.intervals"),
        ({"schema_version": 2}, "$.schema_version"),
        ({"digest": "5"}, "$.digest"),
        ({"digest": None}, "$.digest"),
    ],
)
def test_the_schema_refuses(changes: dict[str, Any], fault: str) -> None:
    assert fault in " ".join(schema_errors(values(changes), committed()))


@pytest.mark.parametrize("name", ["schema_version", "digest"])
def test_a_file_must_have_what_python_sets_by_itself(name: str) -> None:
    held = content()
    del held[name]
    assert schema_errors(held, committed()) == [f"$.{name} is missing"]


@pytest.mark.parametrize("changes", [{}, UNCERTIFIED, FRONT])
def test_a_full_validator_agrees(changes: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = committed()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(content(changes))
