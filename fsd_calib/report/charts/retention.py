"""Charts: retention against T with the certificate's bound, and against the share of tokens accepted."""

from __future__ import annotations

from collections.abc import Sequence

from fsd_calib.report.charts.marks import hover, hovering, intervals, kept, levels, retention_axis, ring, series
from fsd_calib.report.record import RunRecord, Trial
from fsd_calib.report.rows import Row, series_of
from fsd_common.formatting import bound, percent
from fsd_common.pages.charts import Chart, Spec, layered, quantitative
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from fsd_decoding.tree_shape import TreeShape

_LABEL = "format(1 - datum.value, datum.value < 0.001 ? '.2%' : datum.value < 0.01 ? '.1%' : '.0%')"
_TICKS = [0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005]  # shares rejected


def retention_by_threshold(profile: ThresholdProfile, found: Sequence[Row]) -> Chart | None:
    """Returns the chart of the profile's divergence; None: nothing was measured of it under a threshold."""
    shown = [row for row in found if row.threshold is not None and row.divergence == profile.divergence]
    if not shown:
        return None
    values = [
        {**kept(row), **hover(row), "chosen": row.chosen and _last(row, shown), "at": row.threshold,
         "certification": row.source == "certification",
         "bound": None if row.lower_bound is None else 100 * row.lower_bound,
         "shown": "" if row.lower_bound is None else f"≥ {bound(row.lower_bound)}"}
        for row in shown
    ]  # fmt: skip
    most = max(row.threshold or 0.0 for row in shown)
    scale = {"domain": [0, 1.05 * most or 1.0], "nice": False}
    x = quantitative("at", f"threshold T on {profile.divergence}", scale=scale)
    y, looks = retention_axis(shown, profile), series(series_of(shown), found)
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
    tested = [row for row in shown if row.lower_bound is not None]
    words = (f"{row.name}: {percent(row.retention)}, at least {bound(row.lower_bound)}" for row in tested)
    alt = (
        f"Retention at {len(shown)} measured thresholds on {profile.divergence}, with intervals; on the certification "
        f"part: {'; '.join(words) or 'nothing'}."
    )
    return Chart("threshold", alt, layered(values, layers))


def _last(row: Row, shown: Sequence[Row]) -> bool:
    """Whether it is the row of its setting to point at: of the certification part where there is one."""
    return row.source == "certification" or not any(r.chosen and r.source == "certification" for r in shown)


def _bounds(x: Spec, y: Spec) -> list[Spec]:
    """The certificate's lower bounds: a thick line from the measured retention down to a tick and its number."""
    tested = [{"filter": "isValid(datum.bound)"}]
    low = y | {"field": "bound"}
    label = {"type": "text", "align": "left", "baseline": "top", "dx": -10, "dy": 6, "fontWeight": 600}
    tick = {"type": "tick", "thickness": 3, "size": 18, "color": "@ink", "orient": "horizontal"}
    return [
        {"transform": tested, "mark": {"type": "rule", "strokeWidth": 3, "color": "@ink"},
         "encoding": {"x": x, "y": low, "y2": {"field": "kept"}}},
        {"transform": tested, "mark": tick, "encoding": {"x": x, "y": low}},
        {"transform": tested, "mark": label, "encoding": {"x": x, "y": low, "text": {"field": "shown"}}},
    ]  # fmt: skip


def retention_by_share(profile: ThresholdProfile, record: RunRecord, found: Sequence[Row]) -> Chart | None:
    """Returns the chart of all divergences on one scale; None: the search tried nothing."""
    by_setting = {(row.rule, row.divergence, row.draft_length, row.tree, row.threshold): row
                  for row in found if row.source == "tuning"}  # fmt: skip
    pairs = [(trial, by_setting.get(_key(trial))) for trial in record.trials]
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
        "rejected", "drafted tokens with D ≤ T, along the target's text", axis=axis,
        scale={"type": "log", "reverse": True, "nice": False, "domain": [min(rejected) / 1.2, max(rejected) * 1.2]},
    )  # fmt: skip
    y, looks = retention_axis(rows, profile), series(series_of(rows), found)
    shared = {"field": "share", "title": "D ≤ T for", "type": "nominal"}
    points = {
        "mark": {"type": "point", "filled": True, "size": 90, "opacity": 0.9},
        "encoding": {"x": x, "y": y, **looks, "tooltip": [shared, *hovering()]},
    }
    layers = [*levels(profile), intervals(x, y, looks["color"]), ring(x, y), points]
    alt = "Retention against the share of drafted tokens that T accepts: " + "; ".join(
        f"{trial.divergence} {trial.share:.1%}: {percent(row.retention)}" for trial, row in shown
    )
    return Chart("share", alt, layered(values, layers))


def _key(trial: Trial) -> tuple[str, str, int, TreeShape | None, float | None]:
    return trial.rule, trial.divergence, trial.draft_length, trial.tree, trial.threshold
