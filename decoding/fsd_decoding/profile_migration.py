"""Profiles of older schemas, made into the present one.

Knows what each schema changed, as functions from one JSON object to the next. Knows no models and checks nothing:
what comes out is validated as any profile is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

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
