"""Charts as PNG, SVG and PDF, drawn by vl-convert without a browser, in the light theme unless told otherwise."""

from __future__ import annotations

from typing import Any

from fsd_common.pages.charts import Chart
from fsd_common.pages.themes import LIGHT, Theme, coloured, plain, settings

WIDTH = 760  # pixels of a chart's plot, without its axes
_SCALE = 2.0  # pixels of a PNG for each of the chart's
_PADDING = 12


def svg(chart: Chart, theme: Theme = LIGHT, width: int = WIDTH) -> bytes:
    """Returns the chart as SVG."""
    import vl_convert

    return vl_convert.vegalite_to_svg(_whole(chart, theme, width)).encode()


def png(chart: Chart, theme: Theme = LIGHT) -> bytes:
    """Returns the chart as PNG."""
    import vl_convert

    return bytes(vl_convert.vegalite_to_png(_whole(chart, theme), scale=_SCALE))


def pdf(chart: Chart, theme: Theme = LIGHT) -> bytes:
    """Returns the chart as a page of PDF, of its own size."""
    import vl_convert

    return bytes(vl_convert.vegalite_to_pdf(_whole(chart, theme)))


def _whole(chart: Chart, theme: Theme, width: int = WIDTH) -> dict[str, Any]:
    """The specification with theme, paper and width."""
    spec = coloured(plain(chart.spec), theme)
    config = settings(theme) | {"background": theme.paper, "padding": _PADDING}
    sized = {} if "hconcat" in spec else {"width": width}
    return {**sized, **spec, "config": config | spec.get("config", {})}
