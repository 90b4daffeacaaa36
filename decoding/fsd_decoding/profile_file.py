"""A profile's file: JSON, written whole or not at all, read in whichever schema it was written.

Knows files and schema versions. Knows no field of a profile but `schema_version`.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fsd_decoding.errors import UsageError
from fsd_decoding.profile_migration import SCHEMA_VERSION, upgraded


def write_whole(final: Path, text: str) -> None:
    """UsageError: it cannot be written; then what was there before still is."""
    unfinished = final.with_name(f".{final.name}.{os.getpid()}.tmp")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(final)
    except OSError as error:
        raise UsageError(f"profile {str(final)!r} cannot be written: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):  # its folder cannot be written: there is nothing to remove
            unfinished.unlink(missing_ok=True)


def read_upgraded(path: Path, name: str) -> dict[str, Any]:
    """The content in the present schema, not validated yet. UsageError: missing, no JSON, or of a newer schema."""
    content = _read(path, name)
    version = content.get("schema_version")
    if type(version) is not int or version < 1:
        raise UsageError(f"{name} is not a profile: schema_version is {version!r}")
    if version > SCHEMA_VERSION:
        raise UsageError(f"{name} has schema_version {version}, this reads up to {SCHEMA_VERSION}; upgrade fsd-calib")
    return upgraded(content)


def first_problem(error: ValidationError) -> str:
    """One line: where, what, and how many more there are."""
    problems = error.errors(include_url=False)
    where = ".".join(str(step) for step in problems[0]["loc"])
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{where + ': ' if where else ''}{problems[0]['msg']}{more}"


def _read(path: Path, name: str) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise UsageError(f"{name} is not a profile: it holds no JSON object")
    return content
