"""A run drawn: T, divergences, accepted lengths, tokens/s and what a policy tells, over time.

Knows the table of rounds that `telemetry.py` makes. Long runs are drawn in steps of many rounds each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fsd_calib.telemetry.tables import divergences_line, facts_of, unit
from fsd_collectors.report.page import Drawn
from fsd_collectors.report.panels import DARK, LIGHT, Layout, LegendEntry, Theme, panels, png
from fsd_decoding.observers.round_log import Way

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STEPS = 300  # drawn at most
_WIDE = Layout(1, 7.9, 1.3)
_FEWEST = 32  # rounds that speeds are averaged over


@dataclass(frozen=True)
class _Panel:
    title: str
    line: str  # column of the means
    dots: str | None = None
    dashes: str | None = None
    band: tuple[str, str] | None = None


def picture(table: pd.DataFrame, ways: Sequence[Way]) -> Drawn:
    """For the page."""
    shown, rounds = stepped(table), -(-len(table) // STEPS)
    drawn = _panels(table, ways)
    light, dark = (png(_figure(shown, drawn, theme)) for theme in (LIGHT, DARK))
    titles = "; ".join(panel.title for panel in drawn)
    alt = f"Curves over the seconds since the run began, one panel each: {titles}. The table above has their means."
    each = f"A step is the mean of up to {rounds} rounds, bands and dots are the extremes in it. " if rounds > 1 else ""
    caption = (
        f"{each}Speeds are averaged over {max(_FEWEST, rounds)} rounds. Divergences are {divergences_line(ways)}, of "
        "drafted tokens up to the first rejected one."
    )
    return Drawn(light, dark, alt, caption)


def stepped(table: pd.DataFrame) -> pd.DataFrame:
    """At most 300 rows, each of as many rounds: a mean is of tokens where tokens have it, else of rounds."""
    count = min(len(table), STEPS)
    step = np.arange(len(table)) * count // len(table)
    of = table.groupby(step)
    sums, means = of.sum(), of.mean()
    weighted = {
        name: (table[name] * table.decided).groupby(step).sum(min_count=1) / sums.decided
        for name in ("threshold", "divergence")
    }
    window = max(_FEWEST, -(-len(table) // count))
    emitted, seconds, streams = (
        column.rolling(window, min_periods=1).sum().groupby(step).last()
        for column in (table.emitted, table.round_seconds, table.rows * table.round_seconds)
    )
    return means.assign(
        **weighted,
        **{name: sums[name] / sums.rows for name in ("drafted", "accepted")},
        threshold_least=of.threshold_least.min(),
        threshold_most=of.threshold_most.max(),
        divergence_substituted=of.divergence_substituted.max(),
        tokens_per_second=emitted / seconds,
        tokens_per_second_of_one=emitted / streams,
    )


def _panels(table: pd.DataFrame, ways: Sequence[Way]) -> list[_Panel]:
    """Those that have something to show."""
    each = unit(ways)
    found = [
        _Panel(f"Threshold T{each}", "threshold", band=("threshold_least", "threshold_most")),
        _Panel(f"Divergence D of decided tokens{each}", "divergence", dots="divergence_substituted"),
        _Panel("Accepted length (tokens a row and round)", "accepted", dashes="drafted"),
        _Panel("Speed of one text (tokens/s)", "tokens_per_second_of_one"),
        _Panel("Speed of all texts (tokens/s)", "tokens_per_second"),
        *(_Panel(f"Policy: {name}", column) for column, name in facts_of(table).items()),
    ]
    alone = table.rows.max() == 1
    return [p for p in found if np.isfinite(table[p.line]).any() and not (alone and p.line == "tokens_per_second")]


def _figure(shown: pd.DataFrame, drawn: Sequence[_Panel], theme: Theme) -> Figure:
    keys = {
        "dashes": LegendEntry("drafted", theme.ink, dashed=True),
        "line": LegendEntry("mean (T: and least to most)", theme.first),
        "dots": LegendEntry("largest accepted for D ≤ T alone", theme.second, dots=True),
    }
    by_title = {panel.title: panel for panel in drawn}

    def draw(axes: Axes, title: str) -> None:
        panel = by_title[title]
        if panel.band is not None:
            least, most = (_finite(shown[name]) for name in panel.band)
            axes.fill_between(shown.seconds, least, most, color=theme.first, alpha=0.25, lw=0)
        for kind, key in keys.items():
            if (column := getattr(panel, kind)) is not None:
                axes.plot(
                    shown.seconds, _finite(shown[column]), color=key.colour, ls=key.style, marker=key.marker, ms=3
                )
        axes.set_xlim(0, shown.seconds.iloc[-1])
        _from_zero(axes)

    used = [key for kind, key in keys.items() if any(getattr(panel, kind) for panel in drawn)]
    titles = {title: title for title in by_title}
    return panels(
        titles, draw, "A run, round by round", used, ("seconds since the first round began", ""), theme, _WIDE
    )


def _from_zero(axes: Axes) -> None:
    """Where nothing lies below."""
    low, high = axes.dataLim.intervaly
    if low >= 0:
        axes.set_ylim(0, 1.08 * high or 1)


def _finite(column: pd.Series[float]) -> pd.Series[float]:
    """An infinite T or D stands on no scale."""
    return column.where(np.isfinite(column))
