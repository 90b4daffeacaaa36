"""What a page is made of: sections, each with a title, a sentence that explains it, and blocks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from fsd_common.pages.charts import Chart

Tone = Literal["good", "bad", ""]


@dataclass(frozen=True)
class Sheet:
    """A table whose first `names` columns label a row and whose others are figures; without headings, plain facts.

    Attributes:
        title: Its heading; "": the section that it stands in has one.
        marked: Rows to stand out on a page, by number.
        sortable: Whether a page lets its readers sort the rows by a column.
    """

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    names: int = 1
    marked: frozenset[int] = frozenset()
    sortable: bool = False


@dataclass(frozen=True)
class Paragraph:
    """A paragraph; `style` is "note" for what is less important."""

    text: str
    style: Literal["", "note"] = ""


@dataclass(frozen=True)
class Verdict:
    """The outcome: a word or two, one sentence, and the sentences of evidence for it."""

    badge: str
    lead: str
    lines: tuple[str, ...] = ()
    tone: Tone = ""


@dataclass(frozen=True)
class ShownToken:
    """A token of a text.

    Attributes:
        source: Why it was emitted: a class of `page.css`.
        hover: What hovering says of it.
    """

    text: str
    source: str
    hover: str


@dataclass(frozen=True)
class Piece:
    """A piece of a text, and whether the text beside it has something else there."""

    text: str
    differs: bool = False


@dataclass(frozen=True)
class Answer:
    """A text beside another, in pieces; or token by token, where that is known."""

    label: str
    pieces: tuple[Piece, ...] = ()
    tokens: tuple[ShownToken, ...] = ()


@dataclass(frozen=True)
class TextPair:
    """Two texts from one prompt, side by side; on a phone one below the other."""

    kind: str
    summary: str
    prompt: str
    reference: str
    sides: tuple[Answer, Answer]
    tone: Tone = ""
    open: bool = False


@dataclass(frozen=True)
class Legend:
    """What the looks of tokens mean: classes of `page.css` with words; hovering over a token tells more."""

    entries: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Zoomed:
    """A chart of a part of its axis, and beside it, small, the whole; on a phone one below the other."""

    chart: Chart
    whole: Chart
    caption: str


Block = Chart | Zoomed | Sheet | Paragraph | Verdict | TextPair | Legend


@dataclass(frozen=True)
class Section:
    """A part of a page; `name` is its anchor."""

    name: str
    title: str
    explanation: str
    blocks: tuple[Block, ...]

    @property
    def charts(self) -> tuple[Chart, ...]:
        shown = ((b.chart, b.whole) if isinstance(b, Zoomed) else (b,) for b in self.blocks)
        return tuple(block for blocks in shown for block in blocks if isinstance(block, Chart))


@dataclass(frozen=True)
class Page:
    """A whole page."""

    title: str
    sections: tuple[Section, ...]
    subtitle: str = ""
    footer: str = field(default="Made by fsd-calib. This file is complete: it loads nothing from anywhere.")

    @property
    def charts(self) -> tuple[Chart, ...]:
        return tuple(chart for section in self.sections for chart in section.charts)
