"""A table of a page or a terminal, as texts."""

from __future__ import annotations

from dataclasses import dataclass


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
