"""Pages and tables as Markdown; charts are linked pictures."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from fsd_common.pages.blocks import Block, Legend, Page, Paragraph, Sheet, TextPair, Verdict, Zoomed
from fsd_common.pages.charts import Chart
from fsd_common.terminal import visible

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")


def markdown(page: Page, picture_of: Callable[[Chart], str]) -> str:
    """Returns the page. `picture_of`: the path of a chart's picture, relative to the page's."""
    parts = [f"# {_escaped(page.title)}", _escaped(page.subtitle)]
    for section in page.sections:
        parts += [f"## {_escaped(section.title)}", _escaped(section.explanation)]
        for block in section.blocks:
            parts += _block(block, picture_of)
    return "\n\n".join(filter(None, parts)) + "\n"


def table(sheet: Sheet) -> str:
    """Returns the rows of a sheet."""
    headings = sheet.headings or ("", "")
    sides = [":--" if place < sheet.names or not sheet.headings else "--:" for place in range(len(headings))]
    return "\n".join(_line(row) for row in (headings, sides, *sheet.rows))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(' '.join(visible(cell).replace('|', chr(92) + '|').split()) for cell in cells)} |"


def _block(block: Block, picture_of: Callable[[Chart], str]) -> Iterator[str]:
    match block:
        case Chart():
            yield f"![{_escaped(block.alt)}]({picture_of(block)})"
        case Zoomed():
            for chart in (block.chart, block.whole):
                yield from _block(chart, picture_of)
            yield _escaped(block.caption)
        case Sheet():
            headings, *rows = (tuple(map(_without_markup, row)) for row in (block.headings, *block.rows))
            yield f"### {_escaped(block.title)}" if block.title else ""
            yield table(Sheet(block.title, headings, tuple(rows), block.note, block.names))
            yield _escaped(block.note)
        case Paragraph():
            yield _escaped(block.text)
        case Verdict():
            yield f"**{_escaped(block.badge)}.** {_escaped(block.lead)}"
            yield from map(_escaped, block.lines)
        case Legend():
            yield _escaped("; ".join(f"{source}: {meaning}" for source, meaning in block.entries))
        case TextPair():
            yield f"### {_escaped(block.kind)}"
            yield _code(block.prompt)
            for side in block.sides:
                yield from (_escaped(side.label), _code("".join(part.text for part in side.tokens or side.pieces)))


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", " ".join(visible(text).split()))


def _without_markup(text: str) -> str:
    """A cell, in which | is escaped later."""
    return re.sub(r"([\\`*_\[\]<>])", r"\\\1", text)


def _code(text: str) -> str:
    """A block of code, within a fence longer than any in the text."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}text\n{visible(text)}\n{fence}"
