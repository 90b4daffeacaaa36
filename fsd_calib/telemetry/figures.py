"""The figures of a run: T, divergences, accepted lengths, tokens/s and the policy's facts over time.

Long runs are drawn in steps of many rounds each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fsd_calib.telemetry.tables import divergences_line, facts_of, unit
from fsd_collectors.report.page import Drawn
from fsd_collectors.report.panels import DARK, LIGHT, Layout, LegendEntry, Theme, panels, png
from fsd_decoding.observers.round_log import DecodingSetup

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_STEPS = 300  # points a curve
_WIDE = Layout(1, 7.9, 1.3)
_MIN_WINDOW = 32  # rounds that speeds are averaged over, at least


@dataclass(frozen=True)
class _Panel:
    title: str
    line: str  # column drawn as a line; `dots`, `dashes` and `band` are columns, too
    dots: str | None = None
    dashes: str | None = None
    band: tuple[str, str] | None = None


def draw_run(table: pd.DataFrame, setups: Sequence[DecodingSetup]) -> Drawn:
    """Returns the figure of a run, from the table of its rounds, with alternative text and a caption."""
    steps, rounds = downsample(table), -(-len(table) // MAX_STEPS)
    drawn = _panels(table, setups)
    light, dark = (png(_figure(steps, drawn, theme)) for theme in (LIGHT, DARK))
    titles = "; ".join(panel.title for panel in drawn)
    alt = f"Curves over the seconds since the run began, one panel each: {titles}. The table above gives their means."
    step = f"Each step is the mean of up to {rounds} rounds; bands and dots show the extremes among them. "
    caption = (
        f"{step if rounds > 1 else ''}Speeds are averaged over {max(_MIN_WINDOW, rounds)} rounds. Divergences are "
        f"{divergences_line(setups)}, of drafted tokens up to the first rejected one."
    )
    return Drawn(light, dark, alt, caption)


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
        _Panel(f"Threshold T{each}", "threshold", band=("threshold_least", "threshold_most")),
        _Panel(f"Divergence D of decided tokens{each}", "divergence", dots="divergence_substituted"),
        _Panel("Accepted length (tokens per row and round)", "accepted", dashes="drafted"),
        _Panel("Speed of one text (tokens/s)", "tokens_per_second_of_one"),
        _Panel("Speed of all texts (tokens/s)", "tokens_per_second"),
        *(_Panel(f"Policy: {name}", column) for column, name in facts_of(table).items()),
    ]
    alone = table.rows.max() == 1  # the speed of all texts is that of one
    return [p for p in candidates if np.isfinite(table[p.line]).any() and not (alone and p.line == "tokens_per_second")]


def _figure(steps: pd.DataFrame, drawn: Sequence[_Panel], theme: Theme) -> Figure:
    keys = {
        "dashes": LegendEntry("drafted", theme.ink, dashed=True),
        "line": LegendEntry("mean (for T also smallest to largest)", theme.first),
        "dots": LegendEntry("largest accepted only because D ≤ T", theme.second, dots=True),
    }
    by_title = {panel.title: panel for panel in drawn}

    def draw(axes: Axes, title: str) -> None:
        panel = by_title[title]
        if panel.band is not None:
            least, most = (_finite(steps[name]) for name in panel.band)
            axes.fill_between(steps.seconds, least, most, color=theme.first, alpha=0.25, lw=0)
        for kind, key in keys.items():
            if (column := getattr(panel, kind)) is not None:
                axes.plot(
                    steps.seconds, _finite(steps[column]), color=key.colour, ls=key.style, marker=key.marker, ms=3
                )
        axes.set_xlim(0, steps.seconds.iloc[-1])
        _from_zero(axes)

    used = [key for kind, key in keys.items() if any(getattr(panel, kind) for panel in drawn)]
    titles = {title: title for title in by_title}
    return panels(
        titles, draw, "A run, round by round", used, ("seconds since the first round began", ""), theme, _WIDE
    )


def _from_zero(axes: Axes) -> None:
    """Starts the vertical axis at 0 unless there are negative values."""
    low, high = axes.dataLim.intervaly
    if low >= 0:
        axes.set_ylim(0, 1.08 * high or 1)


def _finite(column: pd.Series[float]) -> pd.Series[float]:
    """Returns the column with infinite values, which cannot be drawn, as NaN."""
    return column.where(np.isfinite(column))
