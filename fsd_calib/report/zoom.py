"""Charts of retention that begin at what was asked for, each with the whole beside it where settings lie far below."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from fsd_calib.report.rows import Row
from fsd_common.pages.blocks import Zoomed
from fsd_common.pages.charts import Chart, Spec
from fsd_decoding.profile.threshold_profile import ThresholdProfile

Range = tuple[float, float]
"""The ends of an axis of retention, in percent."""

_PADDING = 0.08  # of an axis, beyond the values
_LEAST = 0.02  # of the target's accuracy: an axis shows no less
_WORTH = 1.5  # times as much of the axis: from there on it is worth a second chart
_BESIDE = 300  # pixels: height of a whole that stands beside
_CAPTION = "From what was asked for upward; beside it, or below, the whole, where the same part is shaded."


def ends_of(found: Iterable[Row]) -> list[float]:
    """Returns what an axis must reach to show these rows: retentions, ends of intervals and lower bounds."""
    shown = ((p.retention, p.lower_bound, *(p.interval or ())) for p in (row.point for row in found))
    return [end for each in shown for end in each if end is not None]


def whole_range(retentions: Sequence[float], profile: ThresholdProfile) -> Range:
    """Returns the axis that shows all of these, the target's accuracy, and what was asked for."""
    wanted = wanted_retention(profile)
    return _padded([*retentions, 1.0, *([] if wanted is None else [wanted])])


def zoomable(
    profile: ThresholdProfile, retentions: Sequence[float], near: Sequence[float], draw: Callable[[Range], Chart]
) -> Chart | Zoomed:
    """Returns a chart of retention; with the whole beside it where that takes much more of the axis.

    Args:
        retentions: All that the chart has.
        near: Those that are to be seen even where they lie below what was asked for.
        draw: Draws the chart with an axis.
    """
    whole, wanted = whole_range(retentions, profile), wanted_retention(profile)
    if wanted is None:
        return draw(whole)
    part = _padded([*near, wanted, 1.0, max(retentions, default=1.0)])
    if whole[1] - whole[0] < _WORTH * (part[1] - part[0]):
        return draw(whole)
    return Zoomed(_clipped(draw(part)), _beside(draw(whole), part), _CAPTION)


def wanted_retention(profile: ThresholdProfile) -> float | None:
    """Returns the retention that was asked for; None: something else was."""
    return profile.certificate.wanted if profile.certificate.acc == "retention" else None


def _padded(ends: Sequence[float]) -> Range:
    low, high = min(ends), max(ends)
    pad = _PADDING * max(high - low, _LEAST)
    return max(100 * (low - pad), 0.0), 100 * (high + pad)


def _clipped(chart: Chart) -> Chart:
    """Leaves out what lies beyond the axes; labels are of what lies within, and may stand over an edge."""
    layers = [
        layer | {"mark": layer["mark"] | {"clip": layer["mark"]["type"] != "text"}} for layer in chart.spec["layer"]
    ]
    return replace(chart, spec=chart.spec | {"layer": layers})


def _beside(chart: Chart, part: Range) -> Chart:
    """The whole, small: with neither legend nor labels, for which there is no room, and with `part` shaded."""
    shade: Spec = {
        "data": {"values": [dict(zip(("from", "to"), part, strict=True))]},
        "mark": {"type": "rect", "color": "@faint", "opacity": 0.5},
        "encoding": {"y": {"field": "from", "type": "quantitative"}, "y2": {"field": "to"}},
    }
    layers = [_without_legend(layer) for layer in chart.spec["layer"] if layer["mark"]["type"] != "text"]
    spec = chart.spec | {"layer": [shade, *layers], "height": _BESIDE}
    return Chart(f"{chart.name}-whole", f"The whole of the same chart. {chart.alt}", spec)


def _without_legend(layer: Spec) -> Spec:
    looks = {
        name: layer["encoding"][name] | {"legend": None} for name in ("color", "shape") if name in layer["encoding"]
    }
    return layer | {"encoding": layer["encoding"] | looks}
