"""A profile's file: JSON, written whole or not at all, read in whichever schema it was written.

Knows files and schema versions. Knows no field of a profile but `schema_version`.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from fsd_decoding.errors import UsageError

# MERGED: """Profiles of older schemas, made into the present one.
#
# Knows what each schema changed, as functions from one JSON object to the next. Knows no models and checks nothing:
# what comes out is validated as any profile is.
# """


SCHEMA_VERSION: Final = 3


def upgraded(content: Mapping[str, Any]) -> dict[str, Any]:
    """The same in the present schema; `schema_version` is one of 1 … SCHEMA_VERSION."""
    made = dict(content)
    for version in range(made["schema_version"], SCHEMA_VERSION):
        made = _STEPS[version](made) | {"schema_version": version + 1}
    return made


def _from_1(content: dict[str, Any]) -> dict[str, Any]:
    """Schema 1 left the outcome to be told from the numbers, and timed `sd` at the chosen draft length."""
    return content | {"outcome": _outcome_of_1(content), "sd_draft_length": content.get("draft_length")}


def _outcome_of_1(content: dict[str, Any]) -> str:
    if content.get("threshold") is not None:
        return "certified"
    speed = content.get("speed")
    asked = isinstance(speed, dict) and speed.get("wanted") is not None
    return "too-slow" if asked else "not-certified"


def _from_2(content: dict[str, Any]) -> dict[str, Any]:
    """Schema 2 called the curve's forecasts tokens_per_second, and had brought them to what was timed."""
    curve = content.get("curve")
    return content | {"curve": [_forecast_of_2(point) for point in curve]} if isinstance(curve, list) else content


def _forecast_of_2(point: Any) -> Any:
    if not isinstance(point, dict):
        return point
    return {"forecast" if name == "tokens_per_second" else name: value for name, value in point.items()}


_STEPS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: _from_1, 2: _from_2}


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
