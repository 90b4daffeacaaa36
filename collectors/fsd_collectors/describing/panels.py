"""Figures of small panels, one a divergence, for light and for dark pages.

Knows matplotlib, colours and places. Knows nothing of what is drawn.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fsd_collectors.describing.sheets import unit_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ACROSS = 3  # panels side by side
DOTS_PER_INCH = 180
_PANEL = (2.6, 1.75)  # inches
_HEAD, _FOOT, _LEFT, _RIGHT = 0.92, 0.52, 0.66, 0.16  # inches
_NARROWEST = 6.2  # inches: a legend must fit
_GAP_ACROSS, _GAP_DOWN = 0.42, 0.58  # inches
_SHORT, _MIDDLING = 60, 3000  # widths of scales, as ratios


@dataclass(frozen=True)
class Theme:
    """`first`, `second`: blue and vermilion of Okabe and Ito, told apart by colour-blind eyes. `lengths`: the part of
    matplotlib's viridis that stands out from the paper."""

    paper: str
    ink: str
    faint: str
    first: str
    second: str
    lengths: tuple[float, float]


LIGHT = Theme("#ffffff", "#1f2328", "#d9dde2", "#0072b2", "#d55e00", (0.0, 0.8))
DARK = Theme("#14171c", "#e4e7eb", "#3a4048", "#56b4e9", "#f0843c", (0.25, 1.0))


@dataclass(frozen=True)
class Key:
    """An entry of the legend."""

    label: str
    colour: str
    dashed: bool = False

    @property
    def style(self) -> str:
        return "--" if self.dashed else "-"

    @property
    def width(self) -> float:
        return 0.9 if self.dashed else 2.4


def panels(
    names: Sequence[str],
    draw: Callable[[Axes, str], None],
    heading: str,
    legend: Sequence[Key],
    axes_say: tuple[str, str],
    theme: Theme,
) -> Figure:
    """`draw` fills one panel for each name; `axes_say`: what stands along x and y of the whole."""
    import matplotlib

    with matplotlib.rc_context(_settings(theme)):
        figure, grid = _empty(len(names))
        for axes, name in zip(grid, names, strict=True):
            axes.set_xscale("log")
            axes.set_title(_with_unit(name), loc="left", fontweight="bold")
            draw(axes, name)
            _ticks(axes)
        _say(figure, heading, legend, axes_say)
    return figure


def png(figure: Figure) -> bytes:
    held = io.BytesIO()
    figure.savefig(held, format="png", dpi=DOTS_PER_INCH, facecolor=figure.get_facecolor())
    return held.getvalue()


def _ticks(axes: Axes) -> None:
    """Powers of ten, or where there would be few of them also places between."""
    from matplotlib.ticker import LogLocator

    axes.minorticks_off()
    low, high = axes.get_xlim()
    if high < low * _MIDDLING:
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < low * _SHORT else (1, 3)))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")


def _with_unit(name: str) -> str:
    unit = unit_of(name)
    return f"{name} ({unit})" if unit else name


def _settings(theme: Theme) -> dict[Any, Any]:
    ink = ("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor")
    faint = ("axes.edgecolor", "grid.color", "xtick.color", "ytick.color")
    return {
        **dict.fromkeys(ink, theme.ink),
        **dict.fromkeys(faint, theme.faint),
        "figure.facecolor": theme.paper,
        "axes.facecolor": theme.paper,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "grid.linewidth": 0.6,
        "font.size": 8.5,
        "axes.titlesize": 9.5,
        "lines.linewidth": 1.7,
    }


def _empty(count: int) -> tuple[Figure, list[Axes]]:
    """A figure of the size that its panels need."""
    from matplotlib.figure import Figure

    across = min(ACROSS, count)
    down = -(-count // across)
    wide = max(_LEFT + across * _PANEL[0] + (across - 1) * _GAP_ACROSS + _RIGHT, _NARROWEST)
    high = _HEAD + _FOOT + down * _PANEL[1] + (down - 1) * _GAP_DOWN
    figure = Figure(figsize=(wide, high))
    edges = {"left": _LEFT / wide, "right": 1 - _RIGHT / wide, "bottom": _FOOT / high, "top": 1 - _HEAD / high}
    gaps = {"wspace": _GAP_ACROSS / _PANEL[0], "hspace": _GAP_DOWN / _PANEL[1]}
    grid = list(figure.subplots(down, across, squeeze=False, gridspec_kw=edges | gaps).flat)
    for spare in grid[count:]:
        spare.remove()
    return figure, grid[:count]


def _say(figure: Figure, heading: str, legend: Sequence[Key], axes_say: tuple[str, str]) -> None:
    """Title, legend and what the axes mean, once for all panels."""
    from matplotlib.lines import Line2D

    wide, high = figure.get_size_inches()
    left = 0.12 / wide
    figure.text(left, 1 - 0.12 / high, heading, va="top", fontsize=12, fontweight="bold")
    figure.legend(
        [Line2D([], [], color=key.colour, ls=key.style, lw=key.width) for key in legend],
        [key.label for key in legend],
        loc="upper left",
        bbox_to_anchor=(left, 1 - 0.36 / high),
        ncols=len(legend),
        frameon=False,
        borderpad=0.2,
        borderaxespad=0,
        handlelength=1.9,
        columnspacing=1.6,
    )
    figure.text((_LEFT + wide - _RIGHT) / 2 / wide, 0.06 / high, axes_say[0], ha="center", va="bottom")
    middle = (high - _HEAD + _FOOT) / 2 / high
    figure.text(0.06 / wide, middle, axes_say[1], rotation=90, ha="left", va="center")
