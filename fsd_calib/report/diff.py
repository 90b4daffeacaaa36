"""In what two profiles differ. Knows their fields by name, and no meaning of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from rich import box
from rich.table import Table
from rich.text import Text

from fsd_calib.formatting import NONE
from fsd_decoding.profile.curve import CurvePoint
from fsd_decoding.profile.threshold_profile import ThresholdProfile

_OF_THE_RUN = {"schema_version", "created", "effort"}  # how and when it was found, not what
_MODELS = {"target", "draft", "tokenizer", "versions"}
_MEASURED = {"certificate", "accuracy", "tokens_per_round", "speed", "costs", "numerical_churn", "truncation",
             "acceptance"}  # fmt: skip
_ONLY_ONE = ("retention",)  # shown of a point that one of the two does not have
_LONGEST = 24  # characters of a value that are shown


class Difference(NamedTuple):
    """`name` is a field's dotted path; a point of the curve is a section of its own."""

    section: str
    name: str
    first: str
    second: str


def differences(first: ThresholdProfile, second: ThresholdProfile) -> list[Difference]:
    """In settings, models, certificate (with what was measured beside it) and curve, in this order."""
    one, other = _sections(first), _sections(second)
    found = []
    for section in one | other:
        a, b = one.get(section, {}), other.get(section, {})
        names = a | b if a and b else _ONLY_ONE
        unlike = (name for name in names if a.get(name, NONE) != b.get(name, NONE))
        found += [Difference(section, name, *_shown(a.get(name, NONE), b.get(name, NONE))) for name in unlike]
    return found


def difference_table(found: list[Difference], names: tuple[str, str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("", *names):
        table.add_column(Text(heading), overflow="fold")
    section = None
    for one in found:
        if one.section != section:
            table.add_row(Text(one.section, "bold"))
        section = one.section
        table.add_row(*map(Text, (f"  {one.name}", one.first, one.second)))
    return table


def _sections(profile: ThresholdProfile) -> dict[str, dict[str, Any]]:
    sections: dict[str, dict[str, Any]] = {"settings": {}, "models": {}, "certificate": {}}
    for field, value in profile.model_dump(mode="json", exclude={"curve", *_OF_THE_RUN}).items():
        section = "models" if field in _MODELS else "certificate" if field in _MEASURED else "settings"
        sections[section] |= dict(_leaves(field, value))
    return sections | {_point(p): dict(_leaves("", p.model_dump(mode="json"))) for p in profile.curve}


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The numbers and words in a record, each by its path; what is null is not there."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(f"{name}.{key}" if name else key, inner)
    elif value is not None:
        yield name, value


def _point(point: CurvePoint) -> str:
    by = "" if point.policy is None else f" by {point.policy}"
    drafting = "" if point.draft is None else f", draft {point.draft}"
    bound = "" if point.threshold is None else f" {point.divergence} <= {point.threshold!r}{by}"
    return f"{point.rule}{bound}, L = {point.draft_length}{drafting} ({point.source} part)"


def _shown(first: Any, second: Any) -> tuple[str, str]:
    """Both values, so long that the eye sees the difference."""
    one, other = _brief(first), _brief(second)
    return (one, other) if one != other else (str(first), str(second))


def _brief(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
