"""Reading and writing of profile files: JSON, written atomically, checked for its schema version and its digest."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from fsd_common.errors import UsageError
from fsd_common.files import atomic_write, check_regular
from fsd_common.strict_json import parse

FIELD: Final = "digest"


def digest_of(content: Mapping[str, Any]) -> str:
    """Returns the SHA-256, in hexadecimal, of a profile's parsed JSON without the field `digest`.

    What is hashed is the content as canonical JSON, which is that of Python's `json.dumps` with `sort_keys=True` and
    `separators=(",", ":")`: names in order, no spaces, ASCII, and the shortest digits that give the same float.
    """
    rest = {name: value for name, value in content.items() if name != FIELD}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def edited_message(name: str) -> str:
    """Returns why a profile is refused whose content does not match its digest."""
    return (
        f"{name} was changed after the calibration that wrote it, so nothing certifies its threshold; restore the "
        "file, calibrate again, or set allow_edited=True (--allow-edited) to decode without a certificate"
    )


SCHEMA_VERSION: Final = 1
FILE_NAME: Final = "profile.json"
_LARGEST = 64 << 20  # bytes; a curve of a thousand points takes half a megabyte


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
    """Returns a file's content as it is, not validated.

    Raises:
        UsageError: the file is missing, not a regular one or too large; it is not JSON, of a newer schema, or
            without a digest.
    """
    data = _bytes(path, name)
    try:
        content = parse(data)
    except ValueError as error:
        raise UsageError(f"{name} is not JSON: {error}; give a profile.json, or its folder") from error
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
        raise UsageError(
            f"{name} is not a profile: schema_version is {version!r:.60}; give a profile.json, or its folder"
        )
    if version > SCHEMA_VERSION:
        raise UsageError(
            f"{name} has schema_version {version}, but this fsd-calib reads {SCHEMA_VERSION}; upgrade fsd-calib"
        )
    if content.get(FIELD) is None:
        raise UsageError(f"{name} has no digest, so the file was changed; restore it, or calibrate again")


def _where_else(path: Path) -> str:
    """Where profiles are instead, or what writes one."""
    beside = sorted(str(found.parent) for found in path.parent.glob(f"*/{FILE_NAME}"))
    return f"; there are profiles in {', '.join(beside[:5])}" if beside else "; fsd-calibrate writes one"


def _bytes(path: Path, name: str) -> bytes:
    """Returns the content of a regular file that is not too large."""
    try:
        size = check_regular(path).st_size
        data = path.read_bytes() if size <= _LARGEST else b""
    except (OSError, ValueError) as error:  # ValueError: the path holds a null byte
        missing = _where_else(path) if isinstance(error, FileNotFoundError) else ""
        raise UsageError(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}{missing}") from error
    if size > _LARGEST:
        raise UsageError(
            f"{name} has {size:,} bytes, too many for a profile; pass a {FILE_NAME}, or a folder that holds one"
        )
    return data
