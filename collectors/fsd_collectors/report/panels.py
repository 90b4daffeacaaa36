"""The layout of figures made of panels, and their light and dark themes."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from fsd_collectors.report.tables import unit_of
from fsd_decoding.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DOTS_PER_INCH = 180
_HEAD, _FOOT, _LEFT, _RIGHT = 0.92, 0.52, 0.66, 0.16  # inches
_NARROWEST = 6.2  # inches: a legend must fit
_GAP_ACROSS, _GAP_DOWN = 0.42, 0.58  # inches
_SHORT, _MIDDLING = 60, 3000  # ratios of a scale's ends below which it gets more ticks


@dataclass(frozen=True)
class Theme:
    """The colours of a figure.

    `first` and `second` are the blue and vermilion of Okabe and Ito, which colour-blind readers can tell apart.
    `lengths` is the range of matplotlib's viridis that stands out from the background.
    """

    paper: str
    ink: str
    faint: str
    first: str
    second: str
    lengths: tuple[float, float]


@dataclass(frozen=True)
class Layout:
    """The number of panels in a row, and the size of a panel in inches."""

    across: int
    wide: float
    high: float


SMALL = Layout(3, 2.6, 1.75)
LIGHT = Theme("#ffffff", "#1f2328", "#d9dde2", "#0072b2", "#d55e00", (0.0, 0.8))
DARK = Theme("#14171c", "#e4e7eb", "#3a4048", "#56b4e9", "#f0843c", (0.25, 1.0))


@dataclass(frozen=True)
class LegendEntry:
    """An entry of the legend."""

    label: str
    colour: str
    dashed: bool = False
    dots: bool = False

    @property
    def style(self) -> str:
        return "none" if self.dots else "--" if self.dashed else "-"

    @property
    def marker(self) -> str:
        return "." if self.dots else ""

    @property
    def width(self) -> float:
        return 0.9 if self.dashed else 2.4


Draw = Callable[["Axes", str], None]


def panels(
    titles: Mapping[str, str],
    draw: Draw,
    heading: str,
    legend: Sequence[LegendEntry],
    axis_labels: tuple[str, str],
    theme: Theme,
    layout: Layout,
) -> Figure:
    """Draws a figure with one panel for each titled name.

    Args:
        titles: titles of the panels by name.
        draw: draws the panel of a name.
        heading: heading of the figure.
        legend: entries of the legend.
        axis_labels: labels of the x and y axes, once for the whole figure.
        theme: colours.
        layout: size and number of panels.
    """
    import matplotlib

    with matplotlib.rc_context(_settings(theme)):
        figure, grid = _empty(len(titles), layout)
        for axes, (name, title) in zip(grid, titles.items(), strict=True):
            axes.set_title(title, loc="left", fontweight="bold")
            draw(axes, name)
        _label(figure, heading, legend, axis_labels)
    return figure


def divergence_panels(
    names: Sequence[str],
    draw: Draw,
    heading: str,
    legend: Sequence[LegendEntry],
    axis_labels: tuple[str, str],
    theme: Theme,
) -> Figure:
    """Draws a figure with one panel for each divergence, on a log scale; the arguments are those of `panels`."""

    def draw_on_log_scale(axes: Axes, name: str) -> None:
        axes.set_xscale("log")
        draw(axes, name)
        _ticks(axes)

    return panels({n: _with_unit(n) for n in names}, draw_on_log_scale, heading, legend, axis_labels, theme, SMALL)


def png(figure: Figure) -> bytes:
    """Renders a figure as PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH, facecolor=figure.get_facecolor())
    return buffer.getvalue()


def _ticks(axes: Axes) -> None:
    """Sets ticks at powers of ten, and between them where the scale spans only few."""
    from matplotlib.ticker import LogLocator

    axes.minorticks_off()
    low, high = axes.get_xlim()
    if high < low * _MIDDLING:
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < low * _SHORT else (1, 3)))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")


def _with_unit(name: str) -> str:
    unit = unit_of(name)
    return f"{name} ({unit})" if unit else name


def can_draw() -> bool:
    """Whether matplotlib is installed, which only pictures need."""
    return find_spec("matplotlib") is not None


def require_drawing() -> None:
    """Raises UsageError where matplotlib is not installed."""
    if not can_draw():
        raise UsageError("pictures need matplotlib, which is not installed: pip install 'fsd-calib[report]'")


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


def _empty(count: int, layout: Layout) -> tuple[Figure, list[Axes]]:
    """Returns an empty figure of the size that its panels need, and their axes."""
    from matplotlib.figure import Figure

    across = min(layout.across, count)
    down = -(-count // across)
    wide = max(_LEFT + across * layout.wide + (across - 1) * _GAP_ACROSS + _RIGHT, _NARROWEST)
    high = _HEAD + _FOOT + down * layout.high + (down - 1) * _GAP_DOWN
    figure = Figure(figsize=(wide, high))
    edges = {"left": _LEFT / wide, "right": 1 - _RIGHT / wide, "bottom": _FOOT / high, "top": 1 - _HEAD / high}
    gaps = {"wspace": _GAP_ACROSS / layout.wide, "hspace": _GAP_DOWN / layout.high}
    grid = list(figure.subplots(down, across, squeeze=False, gridspec_kw=edges | gaps).flat)
    for spare in grid[count:]:
        spare.remove()
    return figure, grid[:count]


def _label(figure: Figure, heading: str, legend: Sequence[LegendEntry], axis_labels: tuple[str, str]) -> None:
    """Adds the heading, the legend and the labels of the axes, once for all panels."""
    from matplotlib.lines import Line2D

    wide, high = figure.get_size_inches()
    left = 0.12 / wide
    figure.text(left, 1 - 0.12 / high, heading, va="top", fontsize=12, fontweight="bold")
    figure.legend(
        [Line2D([], [], color=key.colour, ls=key.style, lw=key.width, marker=key.marker) for key in legend],
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
    figure.text((_LEFT + wide - _RIGHT) / 2 / wide, 0.06 / high, axis_labels[0], ha="center", va="bottom")
    middle = (high - _HEAD + _FOOT) / 2 / high
    figure.text(0.06 / wide, middle, axis_labels[1], rotation=90, ha="left", va="center")
