"""Parsing of JSON without what Python lets pass: names that are there twice, NaN, infinity and numbers too large.

And of files with a `schema_version`, of which newer ones are refused.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from fsd_common.errors import UsageError


def parse(text: str | bytes) -> Any:
    """Returns what `text` holds, bytes being UTF-8. Raises ValueError if it is not JSON, or not strictly so."""
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    try:
        return json.loads(
            text, object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant, parse_float=_finite
        )
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def parse_versioned(content: bytes, name: str, newest: int, thing: str = "valid") -> dict[str, Any]:
    """Returns the facts of a file that has a `schema_version`.

    Args:
        content: what the file holds.
        name: what messages call it.
        newest: the newest version that can be read.
        thing: what it is not, where it has no version.

    Raises:
        UsageError: it is not JSON, has no version, or a newer one.
    """
    try:
        facts = parse(content)
    except ValueError as error:
        raise UsageError(f"{name} is not JSON: {error}") from error
    version = facts.get("schema_version") if isinstance(facts, dict) else None
    if type(version) is not int or version < 1:
        raise UsageError(f"{name} is not {thing}: its schema_version is {version!r:.60}")
    if version > newest:
        raise UsageError(f"{name} has schema_version {version}, but this fsd-calib reads {newest}; upgrade fsd-calib")
    return dict(facts)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)!a:.60} is there twice")
    return content


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number of JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits:.60} is not a number of JSON that fits a float")
    return value
