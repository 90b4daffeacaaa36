"""Reliability diagrams: the share accepted against the forecast probability, as a PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fsd_collectors.report.panels import LIGHT, png
from fsd_predictors.features.features import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SIZE = (9.2, 3.5)  # inches
_LOWEST, _HIGHEST = 0.005, 0.9995  # ends of the logit scale; most forecasts are near 1
_TICKS = (0.01, 0.1, 0.5, 0.9, 0.99, 0.999)


@dataclass(frozen=True)
class Curve:
    """A reliability curve: (bins,) mean forecasts and (bins,) shares accepted."""

    label: str
    forecast: Array
    accepted: Array


def reliability(panels: Mapping[str, Sequence[Curve]]) -> bytes:
    """Returns a PNG with one panel for each heading; curves of the same label share a colour."""
    import matplotlib
    from matplotlib.figure import Figure

    labels = list(dict.fromkeys(curve.label for curves in panels.values() for curve in curves))
    shades = matplotlib.colormaps["viridis"]
    low, high = LIGHT.lengths
    colours = {label: shades(low + (high - low) * i / max(1, len(labels) - 1)) for i, label in enumerate(labels)}
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=_SIZE, layout="constrained")
        row = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (heading, curves) in zip(row, panels.items(), strict=True):
            _panel(axes, heading, curves, colours)
        row[0].set_ylabel("share accepted")
        handles, texts = row[0].get_legend_handles_labels()
        figure.legend(handles, texts, loc="outside lower center", ncols=len(labels) + 1, frameon=False)
        return png(figure)


def _panel(axes: Axes, heading: str, curves: Sequence[Curve], colours: Mapping[str, Any]) -> None:
    axes.plot([_LOWEST, _HIGHEST], [_LOWEST, _HIGHEST], color=LIGHT.ink, lw=0.9, ls="--", label="as forecast")
    for curve in curves:
        axes.plot(
            curve.forecast.clip(_LOWEST, _HIGHEST), curve.accepted.clip(_LOWEST, _HIGHEST), marker="o", ms=3.5,
            color=colours[curve.label], label=curve.label,
        )  # fmt: skip
    for scale, limits in ((axes.set_xscale, axes.set_xlim), (axes.set_yscale, axes.set_ylim)):
        scale("logit")
        limits(_LOWEST, _HIGHEST)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(_TICKS, [f"{tick:.3g}" for tick in _TICKS])
        axis.set_ticks([], minor=True)
    axes.set_title(heading, loc="left", fontweight="bold")
    axes.set_xlabel("forecast")


_SETTINGS: dict[Any, Any] = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), LIGHT.ink),
    **dict.fromkeys(("axes.edgecolor", "grid.color", "xtick.color", "ytick.color"), LIGHT.faint),
    "axes.grid": True, "axes.axisbelow": True, "axes.spines.top": False, "axes.spines.right": False,
    "grid.linewidth": 0.6, "font.size": 8.5, "axes.titlesize": 9.5, "lines.linewidth": 1.3,
}  # fmt: skip
