"""Chart: retention against speed, of every setting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fsd_calib.report.charts.draft_alone import Room, draft_alone
from fsd_calib.report.charts.marks import hover, hovering, intervals, kept, levels, retention_axis, ring, series
from fsd_calib.report.figures import sd_draft_length
from fsd_calib.report.record import RunRecord
from fsd_calib.report.rows import SD, TARGET, Row, series_of
from fsd_calib.report.timing import pace_axis
from fsd_common.formatting import pace_between
from fsd_common.pages.charts import Chart, Spec, layered, quantitative
from fsd_decoding.profile.threshold_profile import ThresholdProfile

_SPEED_HEIGHT = 380
_RIGHT = 0.7  # of the fastest: on a phone there is no room for a label beyond


def retention_and_speed(profile: ThresholdProfile, found: Sequence[Row], record: RunRecord | None = None) -> Chart:
    """Returns the chart: settings that were timed with the clock's speed, the others with the forecast."""
    timed = list(_timed(profile, found))
    forecast = [row for row in found if row.source == "tuning" and row.threshold is not None and row.forecast]
    values = [_speed_value(row) for row in forecast] + timed
    shown = [*forecast, *(row for row in found if row.chosen or row.rule == "sd")]
    y = retention_axis(shown, profile)
    most = max((value.get("fast", value["speed"]) for value in values), default=1.0)
    draft = draft_alone(found, record, Room(most, *y["scale"]["domain"]))
    if draft is not None:
        values.append(draft)
        most = max(most, draft["speed"])
    names = [name for name in series_of(found) if any(value["series"] == name for value in values)]
    scale = {"domain": [0, 1.08 * most], "nice": False}
    x = quantitative("speed", pace_axis(profile.speed.unit, [profile.speed.batch]), scale=scale)
    looks = series(names, found)
    spec = layered(values, [*levels(profile, left=True), *_speed_layers(x, y, looks, most)], _SPEED_HEIGHT)
    return Chart("speed", _speed_alt(profile, [*timed, *([draft] if draft else [])], forecast), spec)


def _speed_layers(x: Spec, y: Spec, looks: Spec, most: float) -> list[Spec]:
    colour = looks["color"]
    return [
        {
            "transform": [{"filter": "datum.front"}],
            "mark": {"type": "line", "color": "@quiet", "strokeDash": [6, 4], "strokeWidth": 1.5},
            "encoding": {"x": x, "y": y, "order": {"field": "speed", "type": "quantitative"}},
        },
        intervals(x, y, colour, 0.4),
        {
            "transform": [{"filter": "isValid(datum.slow)"}],
            "mark": {"type": "rule", "strokeWidth": 2},
            "encoding": {"x": x | {"field": "slow"}, "x2": {"field": "fast"}, "y": y, "color": colour},
        },
        ring(x, y),
        {
            "transform": [{"filter": "!datum.timed"}],
            "mark": {"type": "point", "filled": False, "strokeWidth": 2, "size": 75, "fill": "@paper"},
            "encoding": {"x": x, "y": y, **looks, "tooltip": hovering()},
        },
        {
            "transform": [{"filter": "datum.timed"}],
            "mark": {"type": "point", "filled": True, "size": 130, "opacity": 1},
            "encoding": {"x": x, "y": y, **looks, "tooltip": hovering()},
        },
        *_labels(x, y, most),
    ]  # fmt: skip


def _labels(x: Spec, y: Spec, most: float) -> list[Spec]:
    """Returns the layers of labels: above the lossless marks, which can be close, and beside the chosen one."""
    lossless, right = "datum.label === 'target' || datum.label === 'sd'", f"datum.speed > {_RIGHT * most}"
    places = {lossless: {"align": "center", "dx": 0}, f"!({lossless}) && {right}": {"align": "right", "dx": -9},
              f"!({lossless}) && !({right})": {"align": "left", "dx": 9}}  # fmt: skip
    return [
        {"transform": [{"filter": f"isValid(datum.label) && ({where})"}],
         "mark": {"type": "text", "baseline": "bottom", "dy": -10, "fontWeight": 600, **place},
         "encoding": {"x": x, "y": y, "text": {"field": "label"}}}
        for where, place in places.items()
    ]  # fmt: skip


def _speed_value(row: Row) -> dict[str, Any]:
    return {**kept(row), **hover(row), "speed": row.forecast, "front": row.front, "timed": False, "chosen": False}


def _timed(profile: ThresholdProfile, found: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """The target, `sd` and the chosen setting, by the clock where they were timed."""
    speed = profile.speed
    for which, label, row in main_settings(profile, found):
        value = getattr(speed, which)
        ends = None if speed.intervals is None else getattr(speed.intervals, which)
        words = f"{pace_between(value, ends)}, {'timed' if speed.timed else 'forecast'}"
        between = {} if ends is None else {"slow": ends[0], "fast": ends[1]}
        yield {
            **kept(row), **hover(row, words), **between, "speed": value, "front": False, "timed": bool(speed.timed),
            "label": label, "name": label,
        }  # fmt: skip


def main_settings(profile: ThresholdProfile, found: Sequence[Row]) -> Iterator[tuple[str, str, Row]]:
    """Yields field, label and row of the settings of the profile's speeds, each on the certification part where it was
    decoded there."""

    def one(rule: str, length: int | None = None) -> Row | None:
        same = [row for row in found if row.rule == rule and length in (None, row.draft_length)]
        return max(same, key=lambda row: (row.source == "certification", row.problems), default=None)

    chosen = [row for row in found if row.chosen]
    best = max(chosen, key=lambda row: row.source == "certification", default=None)
    own = "chosen" if profile.threshold is not None else "estimate"
    for which, label, row in (
        ("target", "target", one("target")), ("sd", "sd", one("sd", sd_draft_length(profile))), ("chosen", own, best)
    ):  # fmt: skip
        if row is not None:
            yield which, label, row


def _speed_alt(profile: ThresholdProfile, timed: Sequence[dict[str, Any]], forecast: Sequence[Row]) -> str:
    main = (f"{value['name']}: retention {value['retention']}, {value['tokens/s']}" for value in timed)
    return (
        f"Points of retention against {profile.speed.unit}: {'; '.join(main)}; and {len(forecast)} settings of the "
        f"search by their forecast speed, with a dashed line through those that no other beats. Series: "
        f"{TARGET}, {SD}, and the fuzzy settings by divergence."
    )
