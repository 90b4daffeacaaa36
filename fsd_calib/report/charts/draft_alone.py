"""The mark of the draft alone, which lies far from the settings: at the edge of their chart where it is beyond it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from fsd_calib.engines.configuration import DRAFT_ALONE
from fsd_calib.report.charts.marks import hover, kept
from fsd_calib.report.record import RunRecord
from fsd_calib.report.rows import Row
from fsd_common.formatting import pace_between, percent

_WIDER = 1.7  # times the fastest setting's speed: a chart this wide still leaves room for the settings
_INSIDE = 0.04  # of the axis of retention: how far from the edge a mark stands that lies beyond it


class Room(NamedTuple):
    """What the settings of a chart take: the highest speed, and the ends of the axis of retention in percent."""

    fastest: float
    low: float
    high: float


def draft_alone(found: Sequence[Row], record: RunRecord | None, room: Room) -> dict[str, Any] | None:
    """Returns the fields of the mark; None: the draft alone was not timed, or not measured."""
    measured = None if record is None else record.draft_alone
    row = next((row for row in found if row.rule == DRAFT_ALONE), None)
    if measured is None or row is None or measured.speed is None or measured.speed_interval is None:
        return None
    fields = kept(row) | hover(row, f"{pace_between(measured.speed, measured.speed_interval)}, timed")
    fields |= {"speed": measured.speed, "front": False, "timed": True, "name": "draft alone", "label": "draft"}
    slow, fast = measured.speed_interval
    right, below = fast > _WIDER * room.fastest, min(fields["kept"], fields.get("low", 100.0)) < room.low
    if not right:
        fields |= {"slow": slow, "fast": fast}
    if not right and not below:
        return fields
    fields.pop("low", None)
    if right:
        fields["speed"] = _WIDER * room.fastest
    if below:
        fields["kept"] = room.low + _INSIDE * (room.high - room.low)
    arrow = "↘" if right and below else "→" if right else "↓"
    return fields | {"label": f"draft {percent(row.retention)} {arrow}"}
