"""The page that compares several runs: their main figures, a chart of retention against speed, and what differs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fsd_calib.report.bounds import bounds_to_show
from fsd_calib.report.charts import levels, main_settings, retention_axis
from fsd_calib.report.diff import shared_settings
from fsd_calib.report.figures import pace_axis, rival_of
from fsd_calib.report.rows import rows
from fsd_calib.report.run_folder import Run
from fsd_calib.report.zoom import ends_of, whole_range
from fsd_common.formatting import NONE, answer_seconds, bound, interval, pace, percent, threshold
from fsd_common.pages.blocks import Block, Page, Paragraph, Section, Sheet
from fsd_common.pages.charts import Chart, Spec, by_series, layered, quantitative
from fsd_common.pages.themes import SERIES
from fsd_decoding.profile.threshold_profile import ThresholdProfile


def comparison_page(runs: Sequence[Run]) -> Page:
    """Returns the page; runs of the same name are numbered."""
    names = _distinct([run.name for run in runs])
    sections = (_glance(names, runs), _speeds(names, runs), _differing(names, runs))
    return Page(f"Comparison of {len(runs)} calibrations", sections, ", ".join(names))


def _distinct(names: Sequence[str]) -> list[str]:
    return [
        name if names.count(name) == 1 else f"{name} ({names[: i + 1].count(name)})" for i, name in enumerate(names)
    ]


def _glance(names: Sequence[str], runs: Sequence[Run]) -> Section:
    headings = ("run", "outcome", "T", "score", "L", "retention", "at least", "tokens\n/round", "tokens/s",
                "times\nthe target", "times\nsd", "seconds\n/answer")  # fmt: skip
    table = Sheet("", headings, tuple(map(_line, names, runs)), names=2, sortable=True)
    doubts = [Paragraph(doubt, "note") for doubt in _doubts(runs)]
    return Section(
        "glance", "At a glance",
        "What each calibration chose, or would have chosen; retention and bound are of the certification part.",
        (table, *doubts),
    )  # fmt: skip


def _line(name: str, run: Run) -> tuple[str, ...]:
    p = run.profile
    c, speed = p.certificate, p.speed
    value = p.chosen.threshold
    length = p.followed.draft_length if value is None else p.draft_length
    ends = "" if speed.timed else "forecast"
    ends = ends if speed.intervals is None else interval(speed.intervals.chosen)
    retention, low = (None, None) if c.lossless else (c.retention, bounds_to_show(c)[0])  # of the target then
    outcome = p.outcome if p.bound else f"{p.outcome}, but edited"
    return (
        name, outcome, threshold(value), p.score if value is not None else NONE, str(length),
        percent(retention), bound(low), pace(p.tokens_per_round.chosen, 2), f"{pace(speed.chosen)}\n{ends}",
        f"{speed.over_target:.2f}×", f"{speed.over_lossless:.2f}×",
        answer_seconds(None if speed.answer is None else speed.answer.chosen),
    )  # fmt: skip


def _doubts(runs: Sequence[Run]) -> list[str]:
    """What makes a comparison of the runs unfair."""
    first = runs[0].profile
    same: dict[str, Callable[[ThresholdProfile], object]] = {
        "tasks or problems": lambda p: (p.task, p.data.fingerprint), "targets": lambda p: p.target.fingerprint,
        "devices": lambda p: (p.device, p.dtype, p.engine_name), "batch sizes of timing": lambda p: p.speed.batch,
        "ways to know speed (timing, forecast)": lambda p: bool(p.speed.timed),
    }  # fmt: skip
    differ = [what for what, of in same.items() if any(of(run.profile) != of(first) for run in runs)]
    return [f"The runs have different {', '.join(differ)}, so their figures are not of one thing."] if differ else []


def _speeds(names: Sequence[str], runs: Sequence[Run]) -> Section:
    values: list[dict[str, Any]] = []
    shown = []
    for name, run in zip(names, runs, strict=True):
        for which, label, row in main_settings(run.profile, rows(run)):
            shown.append(row)
            speed, between = getattr(run.profile.speed, which), row.point.interval
            values.append({
                "run": name, "setting": str(row.setting), "mark": label, "kept": 100 * row.point.retention,
                "speed": speed, "retention": percent(row.point.retention), "tokens/s": pace(speed),
                **({} if between is None else {"low": 100 * between[0], "high": 100 * between[1]}),
            })  # fmt: skip
    most = max(value["speed"] for value in values)
    title = pace_axis("tokens/s", [run.profile.speed.batch for run in runs])
    x = quantitative("speed", title, scale={"domain": [0, 1.08 * most], "nice": False})
    y = retention_axis(whole_range(ends_of(shown), runs[0].profile))
    colour = by_series("color", "run", names, SERIES)
    marks = ("target", *dict.fromkeys(rival_of(run.profile).rule for run in runs), "chosen", "estimate")
    shape = by_series("shape", "mark", [m for m in marks if any(v["mark"] == m for v in values)],
                      ["square", "diamond", "circle", "triangle-up", "cross", "triangle-down"])  # fmt: skip
    tooltip = [{"field": field, "type": "nominal"} for field in ("run", "mark", "setting", "retention", "tokens/s")]
    same_wish = len({(run.profile.certificate.wanted, run.profile.certificate.acc) for run in runs}) == 1
    layers: list[Spec] = [
        *(levels(runs[0].profile, left=True) if same_wish else ()),
        {"transform": [{"filter": "isValid(datum.low)"}], "mark": {"type": "rule", "opacity": 0.5, "strokeWidth": 1.5},
         "encoding": {"x": x, "y": y | {"field": "low"}, "y2": {"field": "high"}, **colour}},
        {"mark": {"type": "point", "filled": True, "size": 130, "opacity": 0.9},
         "encoding": {"x": x, "y": y, **colour, **shape, "tooltip": tooltip}},
    ]  # fmt: skip
    alt = "; ".join(f"{v['run']}, {v['mark']}: {v['retention']} at {v['tokens/s']} tokens/s" for v in values)
    return Section(
        "speed", "Accuracy against speed",
        "Each run in a colour of its own; the shape says whether a mark is the target alone, the fastest lossless "
        "rule, or what was chosen.",
        (Chart("speed", f"Retention against tokens/s: {alt}.", layered(values, layers)),),
    )  # fmt: skip


def _differing(names: Sequence[str], runs: Sequence[Run]) -> Section:
    differing = shared_settings([run.profile for run in runs])
    rows_shown = tuple((name, *cells) for name, cells in differing.items())
    block: Block = Sheet("", ("", *names), rows_shown, names=len(names) + 1) if rows_shown else Paragraph(
        "Nothing differs in settings and models."
    )  # fmt: skip
    return Section(
        "differing", "What differs", "Settings and models of which the profiles record different values.", (block,)
    )
