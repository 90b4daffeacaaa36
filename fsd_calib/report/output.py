"""Writing a page in the formats of `fsd-report`: HTML, Markdown, or its charts as PNG or SVG."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from fsd_common.pages.blocks import Page
from fsd_common.pages.markdown import markdown
from fsd_common.pages.page import html, write
from fsd_common.pages.pictures import png, svg

Format = Literal["html", "png", "svg", "md"]
FORMATS: tuple[Format, ...] = ("html", "png", "svg", "md")
PICTURES = "pictures"  # the folder of a page's charts


def write_as(format: Format, page: Page, path: Path) -> list[Path]:
    """Writes the page and returns the paths of its files.

    Args:
        path: Of the file; with PNG and SVG of the folder that each chart gets a file in.

    Raises:
        UsageError: A file cannot be written.
    """
    if format == "html":
        return [write(path, html(page).encode())]
    if format == "md":
        drawn = [write(path.parent / PICTURES / f"{chart.name}.svg", svg(chart)) for chart in page.charts]
        return [write(path, markdown(page, lambda chart: f"{PICTURES}/{chart.name}.svg").encode()), *drawn]
    draw = png if format == "png" else svg
    return [write(path / f"{chart.name}.{format}", draw(chart)) for chart in page.charts]
