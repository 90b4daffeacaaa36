"""Charts: where a calibration's time and decodings went."""

from __future__ import annotations

from collections.abc import Sequence

from fsd_calib.report.record import Step
from fsd_common.formatting import duration, tokens
from fsd_common.pages.charts import Chart, Spec, by_series, layered, quantitative

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
    return f"{seconds:.1f} s" if seconds < 10 else duration(seconds)


def _step(steps: Sequence[Step]) -> Spec:
    return {"field": "step", "type": "nominal", "title": None, "sort": [step.name for step in steps],
            "axis": {"labelLimit": 110, "ticks": False, "domain": False, "grid": False}}  # fmt: skip
