"""Reading and writing of profile files: JSON, written atomically, read in any schema version so far."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from fsd_decoding.atomic_files import atomic_write
from fsd_decoding.errors import UsageError
from fsd_decoding.profile import digest
from fsd_decoding.regular_file import check_regular
from fsd_decoding.strict_json import parse

SCHEMA_VERSION: Final = 4
FILE_NAME: Final = "profile.json"
_LARGEST = 64 << 20  # bytes; a curve of a thousand points takes half a megabyte


def upgrade(content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a profile's content in the current schema, not validated. It has a version of 1 … SCHEMA_VERSION."""
    upgraded = dict(content)
    for version in range(upgraded["schema_version"], SCHEMA_VERSION):
        upgraded = _STEPS[version](upgraded) | {"schema_version": version + 1}
    return upgraded


def _from_1(content: dict[str, Any]) -> dict[str, Any]:
    """Schema 1 had no outcome, which follows from the numbers, and timed `sd` at the chosen draft length."""
    return content | {"outcome": _outcome_of_1(content), "sd_draft_length": content.get("draft_length")}


def _outcome_of_1(content: dict[str, Any]) -> str:
    if content.get("threshold") is not None:
        return "certified"
    speed = content.get("speed")
    has_speed = isinstance(speed, dict) and speed.get("wanted") is not None
    return "too-slow" if has_speed else "not-certified"


def _from_2(content: dict[str, Any]) -> dict[str, Any]:
    """Schema 2 called the curve's forecasts tokens_per_second, and rescaled them to what was timed."""
    curve = content.get("curve")
    return content | {"curve": [_forecast_of_2(point) for point in curve]} if isinstance(curve, list) else content


def _forecast_of_2(point: Any) -> Any:
    if not isinstance(point, dict):
        return point
    return {"forecast" if name == "tokens_per_second" else name: value for name, value in point.items()}


def _from_3(content: dict[str, Any]) -> dict[str, Any]:
    """Schema 3 had no digest, and one made later would not show that the threshold is the certified one; and its
    outcomes did not tell what was shown of speed."""
    renamed = {"certified": "certified-speed-unknown", "lossless-suffices": "lossless"}
    outcome = content.get("outcome")
    return content | {digest.FIELD: None, "outcome": renamed.get(str(outcome), outcome)}


_STEPS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: _from_1, 2: _from_2, 3: _from_3}


def write_atomically(final: Path, text: str, what: str = "profile") -> None:
    """Writes a file whole or not at all. Raises UsageError if it cannot be written; a previous file then remains."""
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(final) as file:
            file.write(text.encode())
    except (OSError, ValueError) as error:  # ValueError: the path holds a null byte
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"{what} {str(final)!r} cannot be written: {why}; free space or give another path") from error


def file_of(path: str | os.PathLike[str]) -> Path:
    """Returns the path of a profile's file, given itself or its folder."""
    return Path(path, FILE_NAME) if os.path.isdir(path) else Path(path)


def read(path: Path, name: str) -> dict[str, Any]:
    """Returns a file's content as it is, of any schema so far, not validated.

    Raises:
        UsageError: the file is missing, not a regular one or too large; it is not JSON, or has a newer schema; or its
            digest is missing, or there without being part of its schema.
    """
    data = _bytes(path, name)
    try:
        content = parse(data)
    except ValueError as error:
        raise UsageError(f"{name} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise UsageError(f"{name} is not a profile: it holds no JSON object")
    _check_version(content, name)
    return content


def first_problem(error: ValidationError) -> str:
    """Returns the first problem in one line, with its field and the number of further problems."""
    problems = error.errors(include_url=False)
    where = ".".join(str(step) for step in problems[0]["loc"])
    where = where if where.isprintable() else ascii(where)
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{where + ': ' if where else ''}{problems[0]['msg']}{more}"


def _check_version(content: Mapping[str, Any], name: str) -> None:
    version = content.get("schema_version")
    if type(version) is not int or version < 1:
        raise UsageError(f"{name} is not a profile: schema_version is {version!r:.60}")
    if version > SCHEMA_VERSION:
        raise UsageError(
            f"{name} has schema_version {version}, but this fsd-calib reads up to {SCHEMA_VERSION}; upgrade fsd-calib"
        )
    if version < digest.FIRST_VERSION and digest.FIELD in content:
        raise UsageError(
            f"{name} has schema_version {version} and a digest, which came with version {digest.FIRST_VERSION}, so the "
            "file was changed; restore it, or calibrate again"
        )
    if version >= digest.FIRST_VERSION and digest.FIELD not in content:
        raise UsageError(f"{name} has no digest, so the file was changed; restore it, or calibrate again")


def _bytes(path: Path, name: str) -> bytes:
    """Returns the content of a regular file that is not too large."""
    try:
        size = check_regular(path).st_size
        data = path.read_bytes() if size <= _LARGEST else b""
    except (OSError, ValueError) as error:  # ValueError: the path holds a null byte
        raise UsageError(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if size > _LARGEST:
        raise UsageError(
            f"{name} has {size:,} bytes, too many for a profile; pass a {FILE_NAME}, or a folder that holds one"
        )
    return data
