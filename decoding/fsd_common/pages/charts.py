"""A chart: a specification in Vega-Lite, which pages draw interactively and `pictures.py` draws as PNG and SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Spec = dict[str, Any]
Values = Sequence[Mapping[str, Any]]
LINES: Spec = {"symbolType": "stroke", "symbolSize": 350, "symbolStrokeWidth": 2}
"""The legend of series that are lines."""


@dataclass(frozen=True)
class Chart:
    """A chart, as wide as the page.

    Attributes:
        name: That of its file, and of its element in the page.
        alt: What it shows, in words.
        spec: In Vega-Lite, without width and theme; colours are named by role, see `themes.py`.
    """

    name: str
    alt: str
    spec: Spec


def layered(values: Values, layers: Sequence[Spec], height: int = 320, **more: Any) -> Spec:
    """Returns a chart of layers that share data and, unless `more` says otherwise, scales."""
    return {"data": {"values": list(values)}, "height": height, "layer": list(layers), **more}


def quantitative(field: str, title: str, **more: Any) -> Spec:
    """Returns the encoding of a number. `more`: `scale`, `axis` and others of Vega-Lite."""
    return {"field": field, "type": "quantitative", "title": title, **more}


def by_series(channel: str, field: str, names: Sequence[str], values: Sequence[Any], **more: Any) -> Spec:
    """Returns the encoding of a series by a colour, shape or dash of its own.

    Args:
        names: The series in the order of the legend.
        values: What they look like; repeated where there are more series.
    """
    scale = {"domain": list(names), "range": [values[i % len(values)] for i in range(len(names))]}
    return {channel: {"field": field, "type": "nominal", "scale": scale, "title": None, **more}}


def tooltip(**shown: str) -> list[Spec]:
    """Returns what hovering shows: fields that hold text, by their titles with _ for spaces."""
    return [{"field": field, "title": title.replace("_", " "), "type": "nominal"} for title, field in shown.items()]
