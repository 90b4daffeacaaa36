"""The charts of a run: T, divergences, accepted lengths, tokens/s and the policy's facts over time.

Long runs are drawn in steps of many rounds each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fsd_calib.telemetry.tables import divergences_line, facts_of, unit
from fsd_common.pages.blocks import Paragraph, Section
from fsd_common.pages.charts import LINES, Chart, Spec, by_series, layered, quantitative
from fsd_decoding.observers.round_log import DecodingSetup

if TYPE_CHECKING:
    import pandas as pd

MAX_STEPS = 300  # points a curve
_HEIGHT = 170
_MIN_WINDOW = 32  # rounds that speeds are averaged over, at least
_KEYS = {"line": "mean", "dashes": "drafted", "dots": "largest fuzzy one"}
_LOOKS = {"line": ("@first", [1, 0]), "dashes": ("@quiet", [5, 3]), "dots": ("@second", [1, 0])}


@dataclass(frozen=True)
class _Panel:
    name: str
    title: str
    axis: str
    line: str  # column drawn as a line; `dots`, `dashes` and `band` are columns, too
    dots: str | None = None
    dashes: str | None = None
    band: tuple[str, str] | None = None


def run_section(table: pd.DataFrame, setups: Sequence[DecodingSetup]) -> Section:
    """Returns the charts of a run, from the table of its rounds."""
    steps, rounds = downsample(table), -(-len(table) // MAX_STEPS)
    blocks: list[Chart | Paragraph] = []
    for panel in _panels(table, setups):
        blocks += [Paragraph(panel.title), _chart(panel, steps)]
    step = f"Each step is the mean of up to {rounds} rounds; bands and dots show the extremes among them. "
    notes = (
        f"{step if rounds > 1 else ''}Speeds are averaged over {max(_MIN_WINDOW, rounds)} rounds. Divergences are "
        f"{divergences_line(setups)}, of drafted tokens up to the first rejected one; a fuzzy one was accepted only "
        "because D ≤ T."
    )
    return Section(
        "rounds", "Round by round", "What was decided and how fast, over the seconds since the first round began.",
        (*blocks, Paragraph(notes, "note")),
    )  # fmt: skip


def downsample(table: pd.DataFrame) -> pd.DataFrame:
    """Returns a table of at most 300 steps of equally many rounds each. T and D are averaged over tokens, accepted and
    drafted lengths over rows, everything else over rounds."""
    count = min(len(table), MAX_STEPS)
    step = np.arange(len(table)) * count // len(table)
    grouped = table.groupby(step)
    sums, means = grouped.sum(), grouped.mean()
    weighted = {
        name: (table[name] * table.decided).groupby(step).sum(min_count=1) / sums.decided
        for name in ("threshold", "divergence")
    }
    window = max(_MIN_WINDOW, -(-len(table) // count))
    emitted, seconds, streams = (
        column.rolling(window, min_periods=1).sum().groupby(step).last()
        for column in (table.emitted, table.round_seconds, table.rows * table.round_seconds)
    )
    return means.assign(
        **weighted,
        **{name: sums[name] / sums.rows for name in ("drafted", "accepted")},
        threshold_least=grouped.threshold_least.min(),
        threshold_most=grouped.threshold_most.max(),
        divergence_substituted=grouped.divergence_substituted.max(),
        tokens_per_second=emitted / seconds,
        tokens_per_second_of_one=emitted / streams,
    )


def _panels(table: pd.DataFrame, setups: Sequence[DecodingSetup]) -> list[_Panel]:
    """Returns the panels for which the table has finite values."""
    each = unit(setups)
    candidates = [
        _Panel("threshold", f"Threshold T{each}", f"T{each}", "threshold", band=("threshold_least", "threshold_most")),
        _Panel("divergence", f"Divergence D of decided tokens{each}", f"D{each}", "divergence",
               dots="divergence_substituted"),
        _Panel("accepted", "Accepted length (tokens per row and round)", "tokens", "accepted", dashes="drafted"),
        _Panel("one", "Speed of one text (tokens/s)", "tokens/s", "tokens_per_second_of_one"),
        _Panel("all", "Speed of all texts (tokens/s)", "tokens/s", "tokens_per_second"),
        *(_Panel(f"fact-{i}", f"Policy: {name}", name, column)
          for i, (column, name) in enumerate(facts_of(table).items())),
    ]  # fmt: skip
    alone = table.rows.max() == 1  # the speed of all texts is that of one
    return [p for p in candidates if np.isfinite(table[p.line]).any() and not (alone and p.line == "tokens_per_second")]


def _chart(panel: _Panel, steps: pd.DataFrame) -> Chart:
    kinds = [kind for kind in _KEYS if getattr(panel, kind) is not None]
    values = [value for kind in kinds for value in _values(steps, getattr(panel, kind), kind)]
    names = [_KEYS[kind] for kind in kinds]
    legend: dict[str, Any] = {"legend": LINES if "dots" not in kinds else {}} if len(kinds) > 1 else {"legend": None}
    looks = by_series("color", "kind", names, [_LOOKS[kind][0] for kind in kinds], **legend)
    dashes = by_series("strokeDash", "kind", names, [_LOOKS[kind][1] for kind in kinds], **legend)
    last = float(steps.seconds.iloc[-1]) or 1.0
    x = quantitative("seconds", "seconds since the first round began", scale={"domain": [0, last], "nice": False})
    y = quantitative("value", panel.axis, scale={"domain": _range(panel, steps)})
    tooltip = [{"field": "kind", "type": "nominal", "title": panel.axis},
               *({"field": f, "type": "quantitative", "format": ".4~g"} for f in ("seconds", "value"))]  # fmt: skip
    lines: Spec = {
        "transform": [{"filter": f"datum.kind != '{_KEYS['dots']}'"}],
        "mark": {"type": "line", "point": {"size": 8}},
        "encoding": {"x": x, "y": y, **looks, **dashes, "tooltip": tooltip},
    }  # fmt: skip
    dots: Spec = {
        "transform": [{"filter": f"datum.kind == '{_KEYS['dots']}'"}],
        "mark": {"type": "point", "size": 22, "shape": "cross"},
        "encoding": {"x": x, "y": y, **looks, "tooltip": tooltip},
    }  # fmt: skip
    layers = [*_band(panel, steps, x, y), lines, *([dots] if panel.dots else [])]
    mean = float(np.nanmean(_finite(steps[panel.line])))
    alt = f"{panel.title} over {last:.3g} seconds; mean {mean:.4g}."
    return Chart(panel.name, alt, layered(values, layers, _HEIGHT))


def _range(panel: _Panel, steps: pd.DataFrame) -> list[float]:
    """The ends of the vertical axis: from 0, unless there are negative values."""
    columns = [*filter(None, (panel.line, panel.dots, panel.dashes)), *(panel.band or ())]
    ends = [float(end) for name in columns for end in _finite(steps[name]).agg(["min", "max"]) if np.isfinite(end)]
    return [min(0.0, *ends), 1.05 * max(0.0, *ends) or 1.0]


def _band(panel: _Panel, steps: pd.DataFrame, x: Spec, y: Spec) -> list[Spec]:
    if panel.band is None:
        return []
    ends = zip(steps.seconds, *(_finite(steps[name]) for name in panel.band), strict=True)
    values = [{"seconds": at, "least": low, "most": high} for at, low, high in ends if np.isfinite([low, high]).all()]
    return [{
        "data": {"values": values}, "mark": {"type": "area", "color": "@first", "opacity": 0.25},
        "encoding": {"x": x, "y": y | {"field": "least"}, "y2": {"field": "most"}},
    }]  # fmt: skip


def _values(steps: pd.DataFrame, column: str, kind: str) -> Iterator[dict[str, Any]]:
    for at, value in zip(steps.seconds, _finite(steps[column]), strict=True):
        if np.isfinite(value):
            yield {"seconds": float(at), "value": float(value), "kind": _KEYS[kind]}


def _finite(column: pd.Series[float]) -> pd.Series[float]:
    """Returns the column with infinite values, which cannot be drawn, as NaN."""
    return column.where(np.isfinite(column))
