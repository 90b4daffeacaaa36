"""Reliability diagrams: the share accepted against the forecast probability, as a PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fsd_common.pages.charts import Chart, Spec, by_series, quantitative
from fsd_common.pages.pictures import png
from fsd_common.pages.themes import SERIES, SHAPES
from fsd_predictors.features.features import Array

_SIDE = 220  # pixels of a panel
_LOWEST, _HIGHEST = 0.005, 0.9995  # ends of the logit scale; most forecasts are near 1
_TICKS = (0.01, 0.1, 0.5, 0.9, 0.99, 0.999)


@dataclass(frozen=True)
class Curve:
    """A reliability curve: (bins,) mean forecasts and (bins,) shares accepted."""

    label: str
    forecast: Array
    accepted: Array


def reliability(panels: Mapping[str, Sequence[Curve]]) -> bytes:
    """Returns a PNG with one panel for each heading; curves of the same label share a colour and a shape."""
    labels = list(dict.fromkeys(curve.label for curves in panels.values() for curve in curves))
    looks = by_series("color", "label", labels, SERIES) | by_series("shape", "label", labels, SHAPES)
    row = [_panel(heading, curves, looks) for heading, curves in panels.items()]
    return png(Chart("reliability", "", {"hconcat": row, "spacing": 28}))


def _panel(heading: str, curves: Sequence[Curve], looks: Spec) -> Spec:
    values: list[dict[str, Any]] = [
        {"label": curve.label, "forecast": _logit(f), "accepted": _logit(a)}
        for curve in curves for f, a in zip(curve.forecast, curve.accepted, strict=True)
    ]  # fmt: skip
    x, y = _axis("forecast", "forecast"), _axis("accepted", "share accepted")
    ends = [{"forecast": _logit(end), "accepted": _logit(end)} for end in (_LOWEST, _HIGHEST)]
    layers: list[Spec] = [
        {"data": {"values": ends}, "mark": {"type": "line", "color": "@ink", "strokeDash": [5, 4], "strokeWidth": 1},
         "encoding": {"x": x, "y": y}},
        {"mark": {"type": "line", "strokeWidth": 1.3}, "encoding": {"x": x, "y": y, "color": looks["color"]}},
        {"mark": {"type": "point", "filled": True, "size": 32}, "encoding": {"x": x, "y": y, **looks}},
    ]  # fmt: skip
    return {"title": heading, "width": _SIDE, "height": _SIDE, "data": {"values": values}, "layer": layers}


def _axis(field: str, title: str) -> Spec:
    """The encoding of a probability that is drawn on a logit scale."""
    domain = [_logit(_LOWEST), _logit(_HIGHEST)]
    axis = {"values": [_logit(tick) for tick in _TICKS], "labelExpr": "format(1 / (1 + exp(-datum.value)), '.3~g')"}
    return quantitative(field, title, scale={"domain": domain, "nice": False}, axis=axis)


def _logit(share: float) -> float:
    clipped = float(np.clip(share, _LOWEST, _HIGHEST))
    return float(np.log(clipped / (1 - clipped)))
