"""Comparison of two profiles, field by field."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rich import box
from rich.table import Table

from fsd_common.console import breakable, literal
from fsd_common.formatting import NONE
from fsd_decoding.profile.fields import CurvePoint
from fsd_decoding.profile.threshold_profile import ThresholdProfile

_NOT_COMPARED = {
    "schema_version",
    "digest",
    "created",
    "effort",
}  # how and when the profile was made, not what it holds
_MODELS = {"target", "draft", "tokenizer", "versions"}
_MEASURED = {"certificate", "accuracy", "tokens_per_round", "speed", "costs", "numerical_churn", "truncation",
             "acceptance", "kept_scores"}  # fmt: skip
_OF_A_LONE_POINT = ("retention",)  # the field shown of a point that only one of the two has
_MAX_LENGTH = 24  # characters of a value that are shown


class ProfileDifference(NamedTuple):
    """A field with different values. `name` is its dotted path; a point of the curve is a section of its own."""

    section: str
    name: str
    first: str
    second: str


def differences(first: ThresholdProfile, second: ThresholdProfile) -> list[ProfileDifference]:
    """Returns differences in settings, models, certificate (with its measurements) and curve, in this order."""
    left, right = _sections(first), _sections(second)
    differing = []
    for section in left | right:
        a, b = left.get(section, {}), right.get(section, {})
        names = a | b if a and b else _OF_A_LONE_POINT
        unequal = (name for name in names if a.get(name, NONE) != b.get(name, NONE))
        differing += [
            ProfileDifference(section, name, *_shown(a.get(name, NONE), b.get(name, NONE))) for name in unequal
        ]
    return differing


def shared_settings(profiles: Sequence[ThresholdProfile]) -> dict[str, tuple[str, ...]]:
    """Returns, by dotted path, the settings and facts of models in which any two of the profiles differ."""
    of_each = [_sections(profile)["settings"] | _sections(profile)["models"] for profile in profiles]
    names = dict.fromkeys(name for fields in of_each for name in fields)
    values = {name: [fields.get(name, NONE) for fields in of_each] for name in names}
    return {name: tuple(map(_brief, each)) for name, each in values.items() if any(v != each[0] for v in each)}


def difference_table(differing: list[ProfileDifference], names: tuple[str, str], width: int) -> Table:
    """Returns a table with a column for each profile, at most `width` characters wide.

    Args:
        names: what the profiles are called there.
    """
    each = width // 3 - 2
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("", *names):
        table.add_column(literal(breakable(heading, each)), overflow="fold")
    section = None
    for difference in differing:
        if difference.section != section:
            table.add_row(literal(difference.section, "bold"))
        section = difference.section
        name = breakable(f"  {difference.name}", each).replace("\n", "\n  ")
        table.add_row(*map(literal, (name, difference.first, difference.second)))
    return table


def _sections(profile: ThresholdProfile) -> dict[str, dict[str, Any]]:
    sections: dict[str, dict[str, Any]] = {"settings": {}, "models": {}, "certificate": {}}
    for field, value in profile.model_dump(mode="json", exclude={"curve", *_NOT_COMPARED}).items():
        section = "models" if field in _MODELS else "certificate" if field in _MEASURED else "settings"
        sections[section] |= dict(_leaves(field, value))
    return sections | {_point(p): dict(_leaves("", p.model_dump(mode="json"))) for p in profile.curve}


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yields the values of a nested record by dotted path, without nulls."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(f"{name}.{key}" if name else key, inner)
    elif value is not None:
        yield name, value


def _point(point: CurvePoint) -> str:
    exact = "" if point.setting.threshold is None else f", T = {point.setting.threshold!r}"
    return f"{point.setting}{exact} ({point.source} part)"


def _shown(first: Any, second: Any) -> tuple[str, str]:
    """Returns both values, in full where they look alike when abbreviated."""
    left, right = _brief(first), _brief(second)
    return (left, right) if left != right else (str(first), str(second))


def _brief(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}…"
