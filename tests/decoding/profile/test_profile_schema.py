"""The JSON schema of profiles, as it is committed."""

from __future__ import annotations

import json
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
from support.json_schema import schema_errors


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
