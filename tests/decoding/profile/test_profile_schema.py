"""The JSON schema of profiles, as it is committed, and strict reading of their files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from fsd_common.errors import UsageError
from fsd_decoding.profile.io import SCHEMA_VERSION
from fsd_decoding.profile.json_schema import schema_text
from fsd_decoding.profile.threshold_profile import ThresholdProfile
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
        ({"speed.lossless": "fast"}, "$.speed.lossless"),
        ({"accuracy.target": 1.5}, "$.accuracy.target"),
        ({"surprise": 1}, "$.surprise"),
        ({"speed.intervals.lossless": [50.0]}, "$.speed.intervals"),
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


def refusal(path: Path) -> str:
    """The one line that refuses a file, edited or not."""
    with pytest.raises(UsageError) as raised:
        ThresholdProfile.load(path, allow_edited=True)
    message = str(raised.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "profile.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def text_of(changes: dict[str, Any] | None = None) -> str:
    content: dict[str, Any] = json.loads(profile().model_dump_json())
    for dotted, value in (changes or {}).items():
        *folders, last = dotted.split(".")
        place: Any = content
        for step in folders:
            place = place[int(step) if step.isdigit() else step]
        place[last] = value
    return json.dumps(content)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"threshold": True}, "threshold: Input should be a valid number"),
        ({"threshold": "0.1"}, "threshold: Input should be a valid number"),
        ({"draft_length": 5.0}, "draft_length: Input should be a valid integer"),
        ({"draft_length": "5"}, "draft_length: Input should be a valid integer"),
        ({"draft_length": True}, "draft_length: Input should be a valid integer"),
        ({"lossy": 1}, "lossy: Input should be a valid boolean"),
        ({"lossy": "true"}, "lossy: Input should be a valid boolean"),
        ({"task": 3}, "task: Input should be a valid string"),
        ({"created": 0}, "created: Input should be a valid datetime"),
        ({"certificate.lower_bound": "0.98"}, "certificate.lower_bound: Input should be a valid number"),
        ({"certificate.certified": "yes"}, "certificate.certified: Input should be a valid boolean"),
        ({"certificate.wanted": True}, "certificate.wanted: Input should be a valid number"),
        ({"speed.intervals.lossless": [True, 51.0]}, "speed.intervals.lossless.0: Input should be a valid number"),
        ({"curve.4.problems": 700.0}, "curve.4.problems: Input should be a valid integer"),
        ({"versions": {"torch": 2}}, "versions.torch: Input should be a valid string"),
        ({"created": "1767323045"}, "created: Value error, '1767323045' is not a date and time"),
        ({"created": "20260102"}, "created: Value error, '20260102' is not a date and time"),
        ({"created": "2026-01-02T03:04:05"}, "created: Input should have timezone info"),
        ({"two\nlines": 1}, "Extra inputs are not permitted"),
    ],
)
def test_types_are_not_converted(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    assert complaint in refusal(written(tmp_path, text_of(changes)))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"certificate.attempt": 10**400}, "certificate.attempt: Input should be less than or equal to 90071992547409"),
        ({"certificate.attempt": 10**300}, "certificate.attempt: Input should be less than or equal to 90071992547409"),
        ({"effort.search.decoded_tokens": 2**53 + 1}, "effort.search.decoded_tokens: Input should be less than"),
        ({"numerical_churn.problems": 10**400}, "numerical_churn.problems: Input should be less than"),
        ({"certificate.lower_bound": 1e308}, "certificate.lower_bound: Input should be less than"),
        ({"speed.target": 0}, "speed.target: Input should be greater than 0"),
        ({"speed.lossless": 0.0}, "speed.lossless: Input should be greater than 0"),
        ({"tokens_per_round.lossless": 0}, "tokens_per_round.lossless: Input should be greater than 0"),
        ({"curve.0.tokens_per_round": 0}, "curve.0.tokens_per_round: Input should be greater than 0"),
    ],
)
def test_values_that_no_calibration_writes_are_refused(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    assert complaint in refusal(written(tmp_path, text_of(changes)))


def test_the_largest_count_is_read_and_added_up(tmp_path: Path) -> None:
    most = {f"effort.{part}.decoded_tokens": 2**53 for part in ("baseline", "search", "certification")}
    loaded = ThresholdProfile.load(written(tmp_path, text_of(most)), allow_edited=True)
    assert loaded.effort is not None
    assert loaded.effort.total.decoded_tokens == 3 * 2**53


def test_an_integer_is_a_number(tmp_path: Path) -> None:
    loaded = ThresholdProfile.load(written(tmp_path, text_of({"speed.target": 20})))
    assert loaded.model_dump() == profile().model_dump()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (text_of().replace('"threshold"', '"threshold": 0.9, "threshold"', 1), "'threshold' is there twice"),
        (text_of().replace('"wanted"', '"wanted": 0.1, "wanted"', 1), "'wanted' is there twice"),
        (text_of().replace('"torch"', '"torch": "1", "torch"'), "'torch' is there twice"),
        (text_of().replace("0.0625", "NaN"), "NaN is not a number of JSON"),
        (text_of().replace("0.0625", "Infinity"), "Infinity is not a number of JSON"),
        (text_of().replace("0.0625", "-Infinity"), "-Infinity is not a number of JSON"),
        (text_of().replace("0.0625", "1e999"), "1e999 is not a number of JSON that fits"),
        (text_of() + "}", "Extra data"),
        (text_of() + text_of(), "Extra data"),
        (text_of() + "\0", "Extra data"),
        ("\ufeff" + text_of(), "BOM"),
        (text_of().encode("utf-16"), "can't decode"),
        (text_of().encode() + b"\xff", "can't decode"),
        (text_of().replace("0.0625", "0x1"), "is not JSON"),
        (text_of().replace("0.0625", "9" * 5000), "is not JSON"),
    ],
)
def test_only_plain_json_is_read(tmp_path: Path, text: str | bytes, complaint: str) -> None:
    assert complaint in refusal(written(tmp_path, text))


def test_python_may_still_give_what_converts() -> None:
    assert ThresholdProfile.model_validate(values({"speed.lossless": 51})).speed.lossless == 51.0


# What kind of file


def test_a_fifo_is_refused_at_once(tmp_path: Path) -> None:
    """Nothing writes to it, so reading it would wait for ever; a process of its own, so that this test would not."""
    os.mkfifo(tmp_path / "profile.json")
    command = "import sys; from fsd_calib.cli.profile import app; from fsd_calib.cli.console import run; "
    command += f"sys.exit(run(app, 'fsd-profile', ['show', {str(tmp_path / 'profile.json')!r}]))"
    ran = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "is not a regular file" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/full", "/dev/null"])
def test_devices_are_refused(device: str) -> None:
    assert "is not a regular file" in refusal(Path(device))


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "profile.json").open("wb") as file:
        file.truncate(1 << 36)  # sparse
    assert "68,719,476,736 bytes" in refusal(tmp_path / "profile.json")


def test_a_folder_stands_for_the_profile_in_it(tmp_path: Path) -> None:
    profile().save(tmp_path / "profile.json")
    loaded = ThresholdProfile.load(tmp_path)
    assert (loaded, loaded.folder) == (ThresholdProfile.load(tmp_path / "profile.json"), tmp_path)


def test_a_folder_without_a_profile_is_refused(tmp_path: Path) -> None:
    assert "profile.json' cannot be read: No such file" in refusal(tmp_path)
    (tmp_path / "profile.json").mkdir()
    assert "is not a regular file" in refusal(tmp_path / "profile.json" / "..")


@pytest.mark.parametrize("path", ["\0", "a\0b"])
def test_a_path_that_cannot_be_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="cannot be read: embedded null byte"):
        ThresholdProfile.load(path)
