"""What the charts of settings have in common: colours and shapes of series, what hovering shows, lines of reference."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any

from fsd_calib.report.rows import COUPLED, DRAFT, SD, TARGET, Row, series_of
from fsd_common.formatting import NONE, bound, in_trees, pace, percent, threshold
from fsd_common.pages.charts import Spec, by_series
from fsd_common.pages.themes import SERIES, SHAPES
from fsd_decoding.profile.threshold_profile import ThresholdProfile

HOVER = ("setting", "T", "L", "divergence", "policy", "retention", "accuracy", "tokens/round", "accepted", "tokens/s",
         "measured on")  # fmt: skip
_RING = 420  # area of the ring around the chosen setting
_PADDING = 0.08  # of an axis, beyond the values


def hover(row: Row, speed: str | None = None) -> dict[str, str]:
    """Returns the fields of `HOVER`, as text. `speed`: None: the forecast, if there is any."""
    retention = percent(row.retention)
    if row.low is not None and row.high is not None:
        retention += f" ({percent(row.low)} to {percent(row.high)})"
    if row.lower_bound is not None:
        retention += f", certificate ≥ {bound(row.lower_bound)}"
    forecast = NONE if row.forecast is None else f"{pace(row.forecast)}, forecast"
    return {
        "setting": row.rule if row.drafts else row.series,
        "T": threshold(row.threshold), "L": f"{row.draft_length}{in_trees(row.tree)}" if row.drafts else NONE,
        "divergence": row.divergence if row.threshold is not None else NONE,
        "policy": "constant T" if row.policy is None else str(row.policy),
        "retention": retention, "accuracy": percent(row.accuracy), "tokens/round": pace(row.tokens_per_round, 2),
        "accepted": percent(row.accepted), "tokens/s": speed or forecast,
        "measured on": f"{row.problems:,} {row.source} problems",
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
        SD: ("@second", "diamond"),
        COUPLED: ("@seventh", "cross"),
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
    wanted = profile.certificate.wanted
    lines = level(100.0, "", (1, 3))  # the axis says what 100 is
    if wanted is not None and profile.certificate.acc == "retention" and wanted != 1:
        lines += level(100 * wanted, f"requested: {100 * wanted:g}%", left=left)
    return lines


def padded_range(retentions: Sequence[float], profile: ThresholdProfile) -> list[float]:
    """Returns the ends of an axis of retention, in percent, which shows all of these and the lines of `levels`."""
    wanted = profile.certificate.wanted if profile.certificate.acc == "retention" else None
    ends = [*retentions, 1.0, *([] if wanted is None else [wanted])]
    low, high = min(ends), max(ends)
    pad = _PADDING * max(high - low, 0.02)
    return [max(100 * (low - pad), 0.0), 100 * (high + pad)]


def retention_axis(found: Sequence[Row], profile: ThresholdProfile) -> Spec:
    """Returns the encoding of retention on the vertical axis, which shows all of intervals and bounds."""
    ends = [end for row in found for end in (row.retention, row.low, row.high, row.lower_bound) if end is not None]
    scale = {"domain": padded_range(ends, profile), "zero": False, "nice": False}
    title = "retention (% of the target's accuracy)"
    return {"field": "kept", "type": "quantitative", "title": title, "scale": scale}


def kept(row: Row) -> dict[str, Any]:
    """Returns the fields of a row's retention in percent."""
    ends = {} if row.low is None or row.high is None else {"low": 100 * row.low, "high": 100 * row.high}
    return {"kept": 100 * row.retention, "series": row.series, "chosen": row.chosen, **ends}


def intervals(x: Spec, y: Spec, colour: Spec, opacity: float = 0.45) -> Spec:
    """Returns the layer of the intervals of retention."""
    return {
        "transform": [{"filter": "isValid(datum.low)"}],
        "mark": {"type": "rule", "opacity": opacity, "strokeWidth": 1.5},
        "encoding": {"x": x, "y": y | {"field": "low"}, "y2": {"field": "high"}, "color": colour},
    }
