"""Parsing of JSON without what Python lets pass: names that are there twice, NaN, infinity and numbers too large."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn


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
