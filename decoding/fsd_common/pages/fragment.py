"""A page as HTML within a notebook's cell: without scripts, charts as pictures, on a light card whatever the theme."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape

from fsd_common.pages.blocks import Block, Paragraph, Section, Sheet, Verdict, Zoomed
from fsd_common.pages.charts import Chart
from fsd_common.pages.pictures import WIDTH, svg
from fsd_common.pages.themes import FONT, LIGHT
from fsd_common.terminal import visible

_CARD = (
    f"background: {LIGHT.paper}; color: {LIGHT.ink}; font: 14px/1.5 {FONT}; padding: 1rem 1.2rem; "
    f"border-radius: .4rem; border: 1px solid {LIGHT.faint}; max-width: 54rem; overflow-x: auto"
)
_CELL = f"padding: .2rem .8rem .2rem 0; border-bottom: 1px solid {LIGHT.faint}; white-space: pre; background: none"


def fragment(title: str, sections: Sequence[Section]) -> str:
    """Returns the sections; those blocks that need a whole page, such as texts side by side, are left out."""
    parts = [f"<h3 style='margin: 0 0 .4rem; color: inherit'>{_text(title)}</h3>"]
    for section in sections:
        if section.title != title:
            parts.append(f"<h4 style='margin: 1rem 0 .2rem; color: inherit'>{_text(section.title)}</h4>")
        parts += [_block(block) for block in section.blocks]
    return f'<div style="{_CARD}">{"".join(parts)}</div>'


def _block(block: Block) -> str:
    match block:
        case Verdict():
            colour = {"good": LIGHT.good, "bad": LIGHT.bad}.get(block.tone, LIGHT.quiet)
            return f"<p><strong style='color: {colour}'>{_text(block.badge)}.</strong> {_text(block.lead)}</p>"
        case Paragraph():
            quiet = f" style='color: {LIGHT.quiet}'" if block.style else ""
            return f"<p{quiet}>{_text(block.text)}</p>"
        case Sheet():
            return _table(block)
        case Chart():
            return _picture(block)
        case Zoomed():
            pictures = "".join(_picture(chart, share) for chart, share in ((block.chart, 0.68), (block.whole, 0.28)))
            beside = f'<div style="display: flex; gap: 1rem; align-items: end">{pictures}</div>'
            return beside + _block(Paragraph(block.caption, "note"))
    return ""


def _picture(chart: Chart, share: float = 1.0) -> str:
    """`share`: of the card's width."""
    source = f"data:image/svg+xml;base64,{base64.b64encode(svg(chart, width=round(share * WIDTH))).decode()}"
    return f'<img alt="{_text(chart.alt)}" src="{source}" style="max-width: {share:.0%}">'


def _table(sheet: Sheet) -> str:
    rows = [sheet.headings, *sheet.rows] if sheet.headings else list(sheet.rows)
    lines = []
    for number, row in enumerate(rows):
        tag = "th" if sheet.headings and number == 0 else "td"
        sides = ["left" if place < sheet.names or not sheet.headings else "right" for place in range(len(row))]
        cells = (
            f'<{tag} style="{_CELL}; text-align: {side}">{_text(cell)}</{tag}>'
            for side, cell in zip(sides, row, strict=True)
        )
        lines.append(f"<tr style='background: none'>{''.join(cells)}</tr>")
    note = f"<p style='color: {LIGHT.quiet}'>{_text(sheet.note)}</p>" if sheet.note else ""
    heading = f"<p style='margin: .8rem 0 .2rem'><strong>{_text(sheet.title)}</strong></p>" if sheet.title else ""
    style = "border-collapse: collapse; color: inherit; font-variant-numeric: tabular-nums"
    return f'{heading}<table style="{style}">{"".join(lines)}</table>{note}'


def _text(text: str) -> str:
    return escape(visible(text))
