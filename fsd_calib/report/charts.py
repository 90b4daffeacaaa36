"""The charts of what a run found, each with the data that it shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any, NamedTuple

from fsd_calib.options.common import RULES_WITHOUT_T
from fsd_calib.report.figures import decided_by, pace_axis, rival_of
from fsd_calib.report.record import Replayed, RunRecord
from fsd_calib.report.rows import DRAFT, LOSSLESS, TARGET, Row, series_of
from fsd_calib.report.zoom import Range, ends_of, wanted_retention, zoomable
from fsd_common.formatting import NONE, bound, pace, pace_between, percent, threshold
from fsd_common.pages.blocks import Zoomed
from fsd_common.pages.charts import Chart, Spec, by_series, layered, quantitative
from fsd_common.pages.themes import SERIES, SHAPES
from fsd_decoding.profile.setting import DRAFT_ALONE
from fsd_decoding.profile.threshold_profile import ThresholdProfile

HOVER = ("setting", "T", "L", "score", "policy", "retention", "accuracy", "tokens/round", "accepted", "tokens/s",
         "measured on")  # fmt: skip
_RING = 420  # area of the ring around the chosen setting


def hover(row: Row, speed: str | None = None) -> dict[str, str]:
    """Returns the fields of `HOVER`, as text. `speed`: None: the forecast, if there is any."""
    point, setting = row.point, row.setting
    retention = percent(point.retention)
    if point.interval is not None:
        low, high = point.interval
        retention += f" ({percent(low)} to {percent(high)})"
    if point.lower_bound is not None:
        retention += f", lower bound {bound(point.lower_bound)}"
    forecast = NONE if row.forecast is None else f"{pace(row.forecast)}, forecast"
    return {
        "setting": setting.rule if row.drafts else row.series,
        "T": threshold(setting.threshold),
        "L": f"{setting.draft_length}{setting.shape}" if row.drafts else NONE,
        "score": setting.score if setting.threshold is not None else NONE,
        "policy": "constant T" if setting.policy is None else str(setting.policy),
        "retention": retention, "accuracy": percent(point.accuracy), "tokens/round": pace(point.tokens_per_round, 2),
        "accepted": percent(point.accepted), "tokens/s": speed or forecast,
        "measured on": f"{point.problems:,} {point.source} problems",
    }  # fmt: skip


def hovering() -> list[Spec]:
    """Returns the encoding of what hovering shows."""
    return [{"field": name.replace(".", "\\."), "title": name, "type": "nominal"} for name in HOVER]


def series(names: Sequence[str], found: Sequence[Row]) -> Spec:
    """Returns the encodings of series by colour and shape.

    Args:
        names: Those that the chart shows.
        found: All rows of the run, so that a series looks the same in every chart.
    """
    looks = _looks(list(dict.fromkeys([*series_of(found), *names])))
    colours, shapes = zip(*(looks[name] for name in names), strict=True)
    return by_series("color", "series", names, colours) | by_series("shape", "series", names, shapes)


def _looks(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Colour and shape of every series of a run."""
    looks = {
        TARGET: ("@ink", "square"),
        DRAFT: ("@quiet", "triangle-down"),
        **dict(zip(LOSSLESS, (("@second", "diamond"), ("@seventh", "cross"), ("@seventh", "diamond")), strict=True)),
    }
    colours = [colour for colour in SERIES if colour not in ("@second", "@seventh")]
    shapes = [shape for shape in SHAPES if shape not in ("square", "triangle-down", "diamond", "cross")]
    free = cycle(zip(colours, cycle(shapes), strict=False))
    return looks | dict(zip((name for name in names if name not in looks), free, strict=False))


def ring(x: Spec, y: Spec) -> Spec:
    """Returns the layer of a ring around the chosen setting; before its mark, so that this is what hovering meets."""
    return {
        "transform": [{"filter": "datum.chosen"}],
        "mark": {
            "type": "point",
            "filled": False,
            "size": _RING,
            "stroke": "@ink",
            "strokeWidth": 2,
            "shape": "circle",
        },
        "encoding": {"x": x, "y": y},
    }


def level(at: float, label: str, dash: Sequence[int] = (5, 4), left: bool = False) -> list[Spec]:
    """Returns the layers of a horizontal line and its label, at its right end unless at its `left`."""
    place = {"x": {"value": 6}} if left else {"x": {"value": "width"}}
    align = "left" if left else "right"
    data = {"values": [{"at": at, "label": label}]}
    y = {"field": "at", "type": "quantitative"}
    return [
        {"data": data, "mark": {"type": "rule", "strokeDash": list(dash), "color": "@quiet"}, "encoding": {"y": y}},
        {
            "data": data,
            "mark": {
                "type": "text",
                "align": align,
                "baseline": "top",  # 98 % is too close to the target's line for a label above it
                "dy": 4,
                "color": "@quiet",
                "fontSize": 11.5,
            },
            "encoding": {"y": y, **place, "text": {"field": "label"}},
        },
    ]


def levels(profile: ThresholdProfile, left: bool = False) -> list[Spec]:
    """Returns the lines of a chart of retention: the target's accuracy, and what was requested."""
    wanted = wanted_retention(profile)
    lines = level(100.0, "", (1, 3))  # the axis says what 100 is
    if wanted is not None and wanted != 1:
        lines += level(100 * wanted, f"requested: {100 * wanted:g}%", left=left)
    return lines


def retention_axis(ends: Range) -> Spec:
    """Returns the encoding of retention on the vertical axis."""
    scale = {"domain": list(ends), "zero": False, "nice": False}
    return quantitative("kept", "retention (% of the target's accuracy)", scale=scale)


def kept(row: Row) -> dict[str, Any]:
    """Returns the fields of a row's retention in percent."""
    between = row.point.interval
    ends = {} if between is None else {"low": 100 * between[0], "high": 100 * between[1]}
    return {"kept": 100 * row.point.retention, "series": row.series, "chosen": row.chosen, **ends}


def intervals(x: Spec, y: Spec, colour: Spec, opacity: float = 0.45) -> Spec:
    """Returns the layer of the intervals of retention."""
    return {
        "transform": [{"filter": "isValid(datum.low)"}],
        "mark": {"type": "rule", "opacity": opacity, "strokeWidth": 1.5},
        "encoding": {"x": x, "y": y | {"field": "low"}, "y2": {"field": "high"}, "color": colour},
    }


_LABEL = "format(1 - datum.value, datum.value < 0.001 ? '.2%' : datum.value < 0.01 ? '.1%' : '.0%')"
_TICKS = [0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005]  # shares rejected


def retention_by_threshold(profile: ThresholdProfile, found: Sequence[Row]) -> Chart | Zoomed | None:
    """Returns the chart of the profile's score; None: nothing was measured of it under a threshold."""
    shown = [row for row in found if row.setting.threshold is not None and row.setting.score == profile.score]
    if not shown:
        return None
    values = [
        {**kept(row), **hover(row), "chosen": row.chosen and _last(row, shown), "at": row.setting.threshold,
         "certification": row.point.source == "certification",
         "bound": None if row.point.lower_bound is None else 100 * row.point.lower_bound,
         "shown": "" if row.point.lower_bound is None else f"≥ {bound(row.point.lower_bound)}"}
        for row in shown
    ]  # fmt: skip
    most = max(row.setting.threshold or 0.0 for row in shown)
    scale = {"domain": [0, 1.05 * most or 1.0], "nice": False}
    x = quantitative("at", f"threshold T on {profile.score}", scale=scale)
    looks = series(series_of(shown), found)

    def draw(ends: Range) -> Chart:
        y = retention_axis(ends)
        layers = [
            *levels(profile), intervals(x, y, looks["color"]), *_bounds(x, y),
            ring(x, y),
            {"transform": [{"filter": "!datum.certification"}],
             "mark": {"type": "point", "filled": False, "strokeWidth": 2, "size": 75, "fill": "@paper"},
             "encoding": {"x": x, "y": y, **looks, "tooltip": hovering()}},
            {"transform": [{"filter": "datum.certification"}],
             "mark": {"type": "point", "filled": True, "size": 110, "opacity": 1},
             "encoding": {"x": x, "y": y, **looks, "tooltip": hovering()}},
        ]  # fmt: skip
        return Chart("threshold", alt, layered(values, layers))

    tested = [row.point for row in shown if row.point.lower_bound is not None]
    words = (f"{p.setting}: {percent(p.retention)}, at least {bound(p.lower_bound)}" for p in tested)
    alt = (
        f"Retention at {len(shown)} measured thresholds on {profile.score}, with intervals; on the certification "
        f"part: {'; '.join(words) or 'nothing'}."
    )
    return zoomable(profile, ends_of(shown), _near(shown), draw)


def _near(shown: Sequence[Row]) -> list[float]:
    """What a chart of these rows shows at least: the chosen one whole, or else the best one's mark."""
    chosen = [row for row in shown if row.chosen]
    return ends_of(chosen) if chosen else [max(row.point.retention for row in shown)]


def _last(row: Row, shown: Sequence[Row]) -> bool:
    """Whether it is the row of its setting to point at: of the certification part where there is one."""
    return row.point.source == "certification" or not any(r.chosen and r.point.source == "certification" for r in shown)


def _bounds(x: Spec, y: Spec) -> list[Spec]:
    """The certificate's lower bounds: a thick line from the measured retention down to a tick and its number."""
    tested = [{"filter": "isValid(datum.bound)"}]
    low = y | {"field": "bound"}
    label = {"type": "text", "align": "right", "baseline": "bottom", "dx": -8, "dy": -4, "fontWeight": 600}
    tick = {"type": "tick", "thickness": 3, "size": 18, "color": "@ink", "orient": "horizontal"}
    return [
        {"transform": tested, "mark": {"type": "rule", "strokeWidth": 3, "color": "@ink"},
         "encoding": {"x": x, "y": low, "y2": {"field": "kept"}}},
        {"transform": tested, "mark": tick, "encoding": {"x": x, "y": low}},
        {"transform": tested, "mark": label, "encoding": {"x": x, "y": low, "text": {"field": "shown"}}},
    ]  # fmt: skip


def retention_by_share(profile: ThresholdProfile, record: RunRecord, found: Sequence[Row]) -> Chart | Zoomed | None:
    """Returns the chart of all scores on one scale; None: the search tried nothing."""
    by_setting = {row.setting: row for row in found if row.point.source == "tuning"}
    pairs = [(trial, by_setting.get(trial.setting)) for trial in record.trials]
    shown = [(trial, row) for trial, row in pairs if row is not None]
    if not shown:
        return None
    values = [
        {**kept(row), **hover(row), "rejected": 1 - trial.share, "share": f"{trial.share:.2%}"} for trial, row in shown
    ]
    rows = [row for _, row in shown]
    rejected = [1 - trial.share for trial, _ in shown]
    axis = {"values": _TICKS, "labelExpr": _LABEL}
    x = quantitative(
        "rejected", f"{decided_by(profile)} with score ≤ T", axis=axis,
        scale={"type": "log", "reverse": True, "nice": False, "domain": [min(rejected) / 1.2, max(rejected) * 1.2]},
    )  # fmt: skip
    looks = series(series_of(rows), found)
    shared = {"field": "share", "title": "score ≤ T for", "type": "nominal"}

    def draw(ends: Range) -> Chart:
        y = retention_axis(ends)
        points: Spec = {
            "mark": {"type": "point", "filled": False, "strokeWidth": 2, "size": 75, "fill": "@paper"},
            "encoding": {"x": x, "y": y, **looks, "tooltip": [shared, *hovering()]},
        }
        layers = [*levels(profile), intervals(x, y, looks["color"]), ring(x, y), points]
        return Chart("share", alt, layered(values, layers))

    alt = f"Retention against the share of {decided_by(profile)} that T accepts: " + "; ".join(
        f"{trial.setting.score} {trial.share:.1%}: {percent(row.point.retention)}" for trial, row in shown
    )
    return zoomable(profile, ends_of(rows), _near(rows), draw)


_WIDER = 1.3  # times the fastest setting's speed: a chart this wide still leaves room for the settings
_INSIDE = 0.04  # of the axis of retention: how far from the edge a mark stands that lies beyond it


class Room(NamedTuple):
    """What the settings of a chart take: the highest speed, and the ends of the axis of retention in percent."""

    fastest: float
    low: float
    high: float


def draft_alone(found: Sequence[Row], record: RunRecord | None, room: Room) -> dict[str, Any] | None:
    """Returns the fields of the mark; None: the draft alone was not timed, or not measured."""
    measured = None if record is None else record.draft_alone
    row = next((row for row in found if row.setting.rule == DRAFT_ALONE), None)
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
    return fields | {"label": f"draft {percent(row.point.retention)} {arrow}"}


_SPEED_HEIGHT = 380
_RIGHT = 0.7  # of the fastest: on a phone there is no room for a label beyond


def retention_and_speed(
    profile: ThresholdProfile, found: Sequence[Row], record: RunRecord | None = None
) -> Chart | Zoomed:
    """Returns the chart: settings that were timed with the clock's speed, the others with the forecast.

    Forecasts are of an idle machine, without prompts, and for comparing settings with each other. So all are multiplied
    by one factor, with which the chosen setting's own would be at its timed speed.
    """
    factor = profile.speed.chosen / profile.speed.forecast.chosen
    timed = list(_timed(profile, found))
    fuzzy = [row for row in found if row.point.source == "tuning" and row.setting.threshold is not None]
    forecast = [row for row in fuzzy if row.forecast]
    settings = [_speed_value(row, factor) for row in forecast] + timed
    fastest = max((value.get("fast", value["speed"]) for value in settings), default=1.0)

    def draw(ends: Range) -> Chart:
        draft = draft_alone(found, record, Room(fastest, *ends))
        alone = [] if draft is None else [draft]
        values, most = settings + alone, max([fastest, *(mark.get("fast", mark["speed"]) for mark in alone)])
        names = [name for name in series_of(found) if any(value["series"] == name for value in values)]
        scale = {"domain": [0, 1.08 * most], "nice": False}
        hollow = "; hollow: forecast" if forecast else ""
        x = quantitative("speed", f"{pace_axis(profile.speed.unit, [profile.speed.batch])}{hollow}", scale=scale)
        layers = _speed_layers(x, retention_axis(ends), series(names, found), most)
        spec = layered(values, [*levels(profile, left=True), *layers], _SPEED_HEIGHT)
        return Chart("speed", _speed_alt(profile, timed + alone, forecast), spec)

    main = [row for row in found if row.chosen or row.setting == rival_of(profile)]
    near = ends_of(main) + (_near(forecast) if forecast and not any(row.chosen for row in main) else [])
    return zoomable(profile, ends_of([*forecast, *main]), near, draw)


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
    """Returns the layers of labels: above the lossless marks, away from each other, and beside the chosen one."""
    alone, right = "datum.label == 'target'", f"datum.speed > {_RIGHT * most}"
    lossless = f"indexof({list(RULES_WITHOUT_T)}, datum.label) >= 0 && !({alone})"
    other = f"!({alone}) && !({lossless})"
    places = {
        alone: {"align": "right", "dx": 6},
        lossless: {"align": "left", "dx": -6},
        f"{other} && {right}": {"align": "right", "dx": -9},
        f"{other} && !({right})": {"align": "left", "dx": 9},
    }
    return [
        {"transform": [{"filter": f"isValid(datum.label) && ({where})"}],
         "mark": {"type": "text", "baseline": "bottom", "dy": -10, "fontWeight": 600, **place},
         "encoding": {"x": x, "y": y, "text": {"field": "label"}}}
        for where, place in places.items()
    ]  # fmt: skip


def _speed_value(row: Row, factor: float) -> dict[str, Any]:
    assert row.forecast is not None
    speed = factor * row.forecast
    words = f"{pace(speed)}, forecast" + ("" if factor == 1 else f" ({pace(row.forecast)} × {factor:.2f})")
    return {**kept(row), **hover(row, words), "speed": speed, "front": row.front, "timed": False, "chosen": False}


def _timed(profile: ThresholdProfile, found: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """The target, the fastest lossless rule and the chosen setting, by the clock where they were timed."""
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
        same = [row for row in found if row.setting.rule == rule and length in (None, row.setting.draft_length)]
        return max(same, key=lambda row: (row.point.source == "certification", row.point.problems), default=None)

    chosen = [row for row in found if row.chosen]
    best = max(chosen, key=lambda row: row.point.source == "certification", default=None)
    own, rival = "chosen" if profile.threshold is not None else "estimate", rival_of(profile)
    for which, label, row in (
        ("target", "target", one("target")), ("lossless", rival.rule, one(rival.rule, rival.draft_length)),
        ("chosen", own, best),
    ):  # fmt: skip
        if row is not None:
            yield which, label, row


def _speed_alt(profile: ThresholdProfile, timed: Sequence[dict[str, Any]], forecast: Sequence[Row]) -> str:
    main = (f"{value['name']}: retention {value['retention']}, {value['tokens/s']}" for value in timed)
    return (
        f"Points of retention against {profile.speed.unit}: {'; '.join(main)}; and {len(forecast)} settings of the "
        f"search by their forecast speed, with a dashed line through those that no other beats. Series: "
        f"{TARGET}, {rival_of(profile).rule} (lossless), and the fuzzy settings by score."
    )


_LENGTHS_HEIGHT = 240


def tokens_by_length(found: Sequence[Row], record: RunRecord | None) -> Chart:
    """Returns the chart of tokens per round, below the most that there can be, L + 1."""
    shown = _drafting(found)
    values = [_length_value(row, row.point.tokens_per_round) for row in shown]
    y = quantitative("of", "tokens per round", scale={"zero": True})
    replayed = [] if record is None else [(r, r.tokens_per_round) for r in record.replayed]
    longest = _longest(shown, replayed)
    ceiling = [{"length": 1, "of": 2}, {"length": longest, "of": longest + 1}]
    most: Spec = {
        "data": {"values": ceiling},
        "mark": {"type": "line", "strokeDash": [2, 3], "color": "@quiet", "strokeWidth": 1.5},
        "encoding": {"x": _length(longest), "y": y},
    }  # fmt: skip
    alt = "Tokens per round by draft length: " + _words(shown, [f"{row.point.tokens_per_round:.2f}" for row in shown])
    return Chart("tokens", alt, layered(values, [most, *_length_layers(shown, found, replayed, y)], _LENGTHS_HEIGHT))


def accepted_by_length(found: Sequence[Row], record: RunRecord | None) -> Chart | None:
    """Returns the chart of the share accepted; None: it is not known, as without a record."""
    shown = [row for row in _drafting(found) if row.point.accepted is not None]
    if not shown:
        return None
    values = [_length_value(row, 100 * (row.point.accepted or 0.0)) for row in shown]
    y = quantitative("of", "% of drafted tokens accepted", scale={"domain": [0, 100]})
    replayed = [] if record is None else [(r, 100 * r.accepted) for r in record.replayed]
    figures = [f"{row.point.accepted:.1%}" for row in shown]
    alt = "Share of drafted tokens accepted by draft length: " + _words(shown, figures)
    return Chart("accepted", alt, layered(values, _length_layers(shown, found, replayed, y), _LENGTHS_HEIGHT))


def _drafting(found: Sequence[Row]) -> list[Row]:
    """Rows that draft, on the tuning part, where all settings are."""
    return [row for row in found if row.drafts and row.point.source == "tuning"]


def _longest(shown: Sequence[Row], replayed: Sequence[tuple[Replayed, float]]) -> int:
    lengths = [row.setting.draft_length for row in shown] + [of.setting.draft_length for of, _ in replayed]
    return max(lengths, default=1)


def _length(longest: int) -> Spec:
    scale = {"domain": [0.5, longest + 0.5], "nice": False}
    return quantitative("length", "draft length L", scale=scale, axis={"tickMinStep": 1, "format": "d"})


def _length_layers(
    shown: Sequence[Row], found: Sequence[Row], replayed: Sequence[tuple[Replayed, float]], y: Spec
) -> list[Spec]:
    x = _length(_longest(shown, replayed))
    line = [{"length": r.setting.draft_length, "of": value, "name": "replay at the chosen T"} for r, value in replayed]
    shown_by = [
        {"field": "name", "type": "nominal", "title": "from"},
        {"field": "length", "type": "nominal", "title": "L"},
        {"field": "of", "type": "quantitative", "format": ".2f", "title": y["title"]},
    ]
    curve: Spec = {
        "data": {"values": line},
        "mark": {"type": "line", "color": "@ink", "strokeDash": [6, 4], "point": {"color": "@ink", "size": 22}},
        "encoding": {"x": x, "y": y, "tooltip": shown_by},
    }
    points: Spec = {
        "mark": {"type": "point", "filled": True, "size": 85, "opacity": 0.85},
        "encoding": {"x": x, "y": y, **series(series_of(shown), found), "tooltip": hovering()},
    }
    return [curve, points] if line else [points]


def _length_value(row: Row, of: float) -> dict[str, Any]:
    return {**hover(row), "series": row.series, "length": row.setting.draft_length, "of": of, "chosen": row.chosen}


def _words(shown: Sequence[Row], figures: Sequence[str]) -> str:
    return "; ".join(f"{row.setting}: {figure}" for row, figure in zip(shown, figures, strict=True)) or "none"
