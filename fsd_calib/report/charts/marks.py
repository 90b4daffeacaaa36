"""What the charts of settings have in common: colours and shapes of series, what hovering shows, lines of reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fsd_calib.formatting import NONE, bound, pace, percent, threshold
from fsd_calib.report.rows import SD, TARGET, Row
from fsd_collectors.pages.charts import Spec, by_series
from fsd_collectors.pages.themes import SERIES, SHAPES
from fsd_decoding.profile.threshold_profile import ThresholdProfile

HOVER = ("setting", "T", "L", "divergence", "policy", "retention", "accuracy", "tokens/round", "accepted", "tokens/s",
         "measured on")  # fmt: skip
_RING = 420  # area of the ring around the chosen setting
_PADDING = 0.08  # of an axis, beyond the values


def hover(row: Row, speed: str | None = None) -> dict[str, str]:
    """Returns the fields of `HOVER`, as text. `speed`: None: the forecast."""
    retention = percent(row.retention)
    if row.low is not None and row.high is not None:
        retention += f" ({percent(row.low)} to {percent(row.high)})"
    if row.lower_bound is not None:
        retention += f", certificate ≥ {bound(row.lower_bound)}"
    drafts = row.rule != "target"
    return {
        "setting": row.rule, "T": threshold(row.threshold), "L": str(row.draft_length) if drafts else NONE,
        "divergence": row.divergence if row.threshold is not None else NONE,
        "policy": "constant T" if row.policy is None else str(row.policy),
        "retention": retention, "accuracy": percent(row.accuracy), "tokens/round": pace(row.tokens_per_round, 2),
        "accepted": percent(row.accepted), "tokens/s": speed or f"{pace(row.forecast)} (forecast)",
        "measured on": f"{row.problems:,} {row.source} problems",
    }  # fmt: skip


def hovering() -> list[Spec]:
    """Returns the encoding of what hovering shows."""
    return [{"field": name.replace(".", "\\."), "title": name, "type": "nominal"} for name in HOVER]


def series(names: Sequence[str]) -> Spec:
    """Returns the encodings of series by colour and shape. The target and `sd` look the same in every chart."""
    fixed = {TARGET: ("@ink", "square"), SD: ("@second", "diamond")}
    free = [(c, s) for c, s in zip(SERIES, SHAPES, strict=True) if c != "@second" and s not in ("square", "diamond")]
    looks: dict[str, tuple[str, str]] = {}
    for name in names:
        looks[name] = fixed.get(name) or free[len([n for n in looks if n not in fixed]) % len(free)]
    colours, shapes = zip(*(looks[name] for name in names), strict=True)
    return by_series("color", "series", names, colours) | by_series("shape", "series", names, shapes)


def ring(x: Spec, y: Spec) -> Spec:
    """Returns the layer of a ring around the chosen setting."""
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


def level(at: float, label: str, dash: Sequence[int] = (5, 4)) -> list[Spec]:
    """Returns the layers of a horizontal line and its label, at its right end."""
    data = {"values": [{"at": at, "label": label}]}
    y = {"field": "at", "type": "quantitative"}
    return [
        {"data": data, "mark": {"type": "rule", "strokeDash": list(dash), "color": "@quiet"}, "encoding": {"y": y}},
        {
            "data": data,
            "mark": {
                "type": "text",
                "align": "right",
                "baseline": "bottom",
                "dy": -3,
                "color": "@quiet",
                "fontSize": 11.5,
            },
            "encoding": {"y": y, "x": {"value": "width"}, "text": {"field": "label"}},
        },
    ]


def levels(profile: ThresholdProfile) -> list[Spec]:
    """Returns the lines of a chart of retention: the target's accuracy, and what was requested."""
    wanted = profile.certificate.wanted
    lines = level(100.0, "as the target alone", (1, 3))
    if wanted is not None and profile.certificate.acc == "retention" and wanted != 1:
        lines += level(100 * wanted, f"requested: {100 * wanted:g}%")
    return lines


def retention_range(found: Sequence[Row], profile: ThresholdProfile) -> list[float]:
    """Returns the ends of an axis of retention, in percent, which shows all intervals, bounds and lines."""
    wanted = profile.certificate.wanted if profile.certificate.acc == "retention" else None
    ends = [row.retention for row in found] + [1.0] + ([wanted] if wanted is not None else [])
    ends += [end for row in found for end in (row.low, row.high, row.lower_bound) if end is not None]
    low, high = min(ends), max(ends)
    pad = _PADDING * max(high - low, 0.02)
    return [max(100 * (low - pad), 0.0), 100 * (high + pad)]


def retention_axis(found: Sequence[Row], profile: ThresholdProfile) -> Spec:
    """Returns the encoding of retention on the vertical axis."""
    scale = {"domain": retention_range(found, profile), "zero": False, "nice": False}
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
