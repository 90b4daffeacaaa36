"""The charts of how a run went: trials of the search, and where the effort went."""

from __future__ import annotations

from collections.abc import Sequence

from fsd_calib.report.charts import levels, retention_axis, series
from fsd_calib.report.record import RunRecord, Step, Trial
from fsd_calib.report.rows import Row, series_name
from fsd_calib.report.zoom import Range, zoomable
from fsd_common.formatting import pace, percent, threshold, tokens
from fsd_common.pages.blocks import Zoomed
from fsd_common.pages.charts import Chart, Spec, by_series, layered, quantitative
from fsd_decoding.profile.threshold_profile import ThresholdProfile

_SHOWN = ("trial", "verdict", "T", "L", "score", "policy", "retention", "lossless share", "tokens/s", "problems")


def trials(profile: ThresholdProfile, record: RunRecord, found: Sequence[Row]) -> Chart | Zoomed | None:
    """Returns the chart; None: the search tried nothing."""
    if not record.trials:
        return None
    values = [_trial_value(number, trial) for number, trial in enumerate(record.trials, 1)]
    names = sorted({str(value["series"]) for value in values})
    x = quantitative(
        "number", "trial of the search", axis={"tickMinStep": 1, "format": "d"},
        scale={"domain": [0.5, len(values) + 0.5], "nice": False},
    )  # fmt: skip
    looks, pale = series(names, found), {"condition": {"test": "datum.feasible", "value": 1}, "value": 0.35}
    tooltip = [{"field": name, "type": "nominal"} for name in _SHOWN if name in values[0]]

    def draw(ends: Range) -> Chart:
        y = retention_axis(ends)
        layers = [
            *levels(profile),
            {"mark": {"type": "line", "color": "@faint", "strokeWidth": 1.5}, "encoding": {"x": x, "y": y}},
            {"mark": {"type": "point", "filled": False, "strokeWidth": 2, "size": 80, "fill": "@paper"},
             "encoding": {"x": x, "y": y, **looks, "strokeOpacity": pale, "tooltip": tooltip}},
        ]  # fmt: skip
        return Chart("trials", _trials_alt(record.trials), layered(values, layers, 280))

    retentions = [trial.retention for trial in record.trials]
    return zoomable(profile, retentions, [max(retentions)], draw)


def _trial_value(number: int, trial: Trial) -> dict[str, object]:
    setting = trial.setting
    return {
        "number": number, "trial": str(number), "kept": 100 * trial.retention, "feasible": trial.feasible,
        "series": series_name(setting), "T": threshold(setting.threshold),
        "L": str(setting.draft_length),
        "score": setting.score, "policy": "constant T" if setting.policy is None else str(setting.policy),
        "retention": percent(trial.retention), "tokens/s": f"{pace(trial.speed)}, forecast",
        "problems": f"{trial.problems:,} tuning problems",
        "verdict": "meets the goal, as far as the search can tell" if trial.feasible else "does not meet the goal",
    }  # fmt: skip


def _trials_alt(done: Sequence[Trial]) -> str:
    shown = (f"{number}: {trial.setting}, {percent(trial.retention)}" for number, trial in enumerate(done, 1))
    return f"Retention of {len(done)} trials in their order: {'; '.join(shown)}."


_BAR = 34  # pixels of a step
_BEGUN = ("made", "from the cache")


def seconds_by_step(steps: Sequence[Step]) -> Chart:
    """Returns the chart of seconds."""
    values = [{"step": step.name, "seconds": step.seconds, "time": _time(step.seconds)} for step in steps]
    y = _step(steps)
    most = max((step.seconds for step in steps), default=0.0) or 1.0
    scale = {"domain": [0, 1.25 * most], "nice": False}  # with room for a label, on a phone too
    x = quantitative("seconds", "seconds", scale=scale)
    bars: Spec = {
        "mark": {"type": "bar", "color": "@first", "cornerRadiusEnd": 2},
        "encoding": {"x": x, "y": y, "tooltip": [{"field": "step"}, {"field": "time"}]},
    }
    label: Spec = {
        "mark": {"type": "text", "align": "left", "dx": 5, "color": "@ink"},
        "encoding": {"x": x, "y": y, "text": {"field": "time"}},
    }
    alt = "Seconds by step: " + "; ".join(f"{value['step']} {value['time']}" for value in values)
    return Chart("seconds", alt, layered(values, [bars, label], _BAR * len(steps)))


def decodings_by_step(steps: Sequence[Step]) -> Chart:
    """Returns the chart of decodings, made and taken from the cache."""
    counted = [(step, step.work) for step in steps if step.work is not None]
    values = [
        {
            "step": step.name,
            "kind": kind,
            "count": count,
            "problems": f"{count:,}",
            "tokens": tokens(emitted),
            "order": i,
        }
        for step, work in counted
        for i, (kind, count, emitted) in enumerate(
            zip(_BEGUN, (work.decoded, work.reused), (work.decoded_tokens, work.reused_tokens), strict=True)
        )
    ]
    bars: Spec = {
        "mark": {"type": "bar"},
        "encoding": {
            "x": quantitative("count", "decodings of a problem", scale={"zero": True}),
            "y": _step([step for step, _ in counted]),
            **by_series("color", "kind", _BEGUN, ("@first", "@seventh")), "order": {"field": "order"},
            "tooltip": [{"field": name} for name in ("step", "kind", "problems", "tokens")],
        },
    }  # fmt: skip
    alt = "Decodings by step: " + "; ".join(f"{v['step']} {v['problems']} {v['kind']}" for v in values)
    return Chart("decodings", alt, layered(values, [bars], _BAR * len(counted)))


def _time(seconds: float) -> str:
    return f"{seconds:,.1f} s" if seconds < 10 else f"{seconds:,.0f} s"


def _step(steps: Sequence[Step]) -> Spec:
    return {"field": "step", "type": "nominal", "title": None, "sort": [step.name for step in steps],
            "axis": {"labelLimit": 110, "ticks": False, "domain": False, "grid": False}}  # fmt: skip
