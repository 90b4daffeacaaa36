"""Charts: tokens per round, and the share of drafted tokens accepted, against the draft length L."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fsd_calib.report.charts.marks import hover, hovering, series
from fsd_calib.report.record import Replayed, RunRecord
from fsd_calib.report.rows import Row, series_of
from fsd_common.pages.charts import Chart, Spec, layered, quantitative

_LENGTHS_HEIGHT = 240


def tokens_by_length(found: Sequence[Row], record: RunRecord | None) -> Chart:
    """Returns the chart of tokens per round, below the most that there can be, L + 1."""
    shown = _drafting(found)
    values = [_length_value(row, row.tokens_per_round) for row in shown]
    y = quantitative("of", "tokens per round", scale={"zero": True})
    longest = max((row.draft_length for row in shown), default=1)
    ceiling = [{"length": 1, "of": 2}, {"length": longest, "of": longest + 1}]
    most: Spec = {
        "data": {"values": ceiling},
        "mark": {"type": "line", "strokeDash": [2, 3], "color": "@quiet", "strokeWidth": 1.5},
        "encoding": {"x": _length(longest), "y": y},
    }  # fmt: skip
    replayed = [] if record is None else [(r, r.tokens_per_round) for r in record.replayed]
    alt = "Tokens per round by draft length: " + _words(shown, [f"{row.tokens_per_round:.2f}" for row in shown])
    return Chart("tokens", alt, layered(values, [most, *_length_layers(shown, found, replayed, y)], _LENGTHS_HEIGHT))


def accepted_by_length(found: Sequence[Row], record: RunRecord | None) -> Chart | None:
    """Returns the chart of the share accepted; None: it is not known, as without a record."""
    shown = [row for row in _drafting(found) if row.accepted is not None]
    if not shown:
        return None
    values = [_length_value(row, 100 * (row.accepted or 0.0)) for row in shown]
    y = quantitative("of", "% of drafted tokens accepted", scale={"domain": [0, 100]})
    replayed = [] if record is None else [(r, 100 * r.accepted) for r in record.replayed]
    alt = "Share of drafted tokens accepted by draft length: " + _words(shown, [f"{row.accepted:.1%}" for row in shown])
    return Chart("accepted", alt, layered(values, _length_layers(shown, found, replayed, y), _LENGTHS_HEIGHT))


def _drafting(found: Sequence[Row]) -> list[Row]:
    """Rows that draft, on the tuning part, where all settings are."""
    return [row for row in found if row.drafts and row.source == "tuning"]


def _length(longest: int) -> Spec:
    scale = {"domain": [0.5, longest + 0.5], "nice": False}
    return quantitative("length", "draft length L", scale=scale, axis={"tickMinStep": 1, "format": "d"})


def _length_layers(
    shown: Sequence[Row], found: Sequence[Row], replayed: Sequence[tuple[Replayed, float]], y: Spec
) -> list[Spec]:
    x = _length(max((row.draft_length for row in shown), default=1))
    line = [{"length": r.draft_length, "of": value, "name": "replay at the chosen T"} for r, value in replayed]
    shown_by = [
        {"field": "name", "type": "nominal", "title": "from"},
        {"field": "length", "type": "nominal", "title": "L"},
        {"field": "of", "type": "quantitative", "format": ".2f", "title": y["title"]},
    ]
    curve: Spec = {
        "data": {"values": line},
        "mark": {"type": "line", "color": "@quiet", "strokeWidth": 2, "point": {"color": "@quiet", "size": 22}},
        "encoding": {"x": x, "y": y, "tooltip": shown_by},
    }
    points: Spec = {
        "mark": {"type": "point", "filled": True, "size": 85, "opacity": 0.85},
        "encoding": {"x": x, "y": y, **series(series_of(shown), found), "tooltip": hovering()},
    }
    return [curve, points] if line else [points]


def _length_value(row: Row, of: float) -> dict[str, Any]:
    return {**hover(row), "series": row.series, "length": row.draft_length, "of": of, "chosen": row.chosen}


def _words(shown: Sequence[Row], figures: Sequence[str]) -> str:
    return "; ".join(f"{row.name}: {figure}" for row, figure in zip(shown, figures, strict=True)) or "none"
