"""Inspected texts on a terminal: coloured, with marks where there are no colours, or as a table of tokens."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fsd_calib.inspection.inspected import (
    HEADINGS,
    MEANINGS,
    NUMBERS,
    TREE_WORDS,
    WITHOUT_TEXT,
    InspectedText,
    counts_line,
    difference_line,
    first_difference,
    shares_line,
    token_cells,
)
from fsd_common.console import LiteralConsole, literal
from fsd_common.formatting import threshold
from fsd_decoding.observers.token_sources import DraftedTree, SourcedToken, TokenSource, name_of

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text
    from rich.tree import Tree

_ABREAST = 110  # columns from which two texts stand side by side
_LARGEST = 8  # fuzzy tokens that are listed under a text
_PARTS = "▶"  # where two texts part
_NO_TEXT = "·"
_ACCEPTED = ("(", ")")  # around accepted tokens, without colours


# How the tokens of a source look: with colours by a style, which is no colour alone; otherwise between two marks.
_LOOKS = {
    TokenSource.EXACT: ("", "", ""),
    TokenSource.FUZZY: ("bold black on bright_yellow", "[", "]"),
    TokenSource.FALLBACK: ("underline magenta", "<", ">"),
    TokenSource.BONUS: ("bold green", "{", "}"),
    TokenSource.TARGET: ("", "", ""),
}


def print_texts(texts: Sequence[InspectedText], console: Console | None = None, table: bool = False) -> None:
    """Prints one text, or two side by side where there is room, then the legend.

    Args:
        texts: one or two.
        console: by default one on stdout.
        table: print a row for each token instead of the text.
    """
    console = console or LiteralConsole()
    coloured = console.color_system is not None and not console.no_color and not os.environ.get("NO_COLOR")
    parts = first_difference(texts[0].tokens, texts[1].tokens) if len(texts) == 2 else None
    shown = [_described(text, parts, coloured, table) for text in texts]
    if len(shown) == 2 and console.width >= _ABREAST and not table:
        console.print(_abreast(shown))
    else:
        for lines in shown:
            console.print(*lines, sep="\n")
    if len(texts) == 2:
        console.print(literal(difference_line(parts)), end="\n\n")
    if not table:
        console.print(_legend(texts, parts is not None, coloured))


def _described(text: InspectedText, parts: int | None, coloured: bool, table: bool) -> list[RenderableType]:
    """The text or its table under its title, and over its numbers."""
    head = [literal(text.title, "bold"), literal(text.setting, "dim")]
    if table:
        body: RenderableType = _token_table(text, parts)
    else:
        body = _marked_text(text.tokens, parts, coloured)
    numbers = literal(f"{counts_line(text)}\n{shares_line(text)}")
    more = _tree_lines(text, coloured) if table else _fuzzy_lines(text)
    return [*head, "", body, "", numbers, *more, ""]


def _abreast(shown: Sequence[Sequence[RenderableType]]) -> Table:
    from rich.console import Group
    from rich.table import Table

    grid = Table.grid(padding=(0, 2), expand=True)
    for _ in shown:
        grid.add_column(ratio=1)
    grid.add_row(*(Group(*lines) for lines in shown))
    return grid


def _marked_text(tokens: Sequence[SourcedToken], parts: int | None, coloured: bool) -> Text:
    whole = literal("")
    for token in tokens:
        if token.position == parts:
            whole.append_text(_parting(coloured))
        whole.append_text(_styled(token) if coloured else literal(_between_marks(token)))
    if parts == len(tokens):  # the other text goes on
        whole.append_text(_parting(coloured))
    return whole


def _parting(coloured: bool) -> Text:
    return literal(_PARTS, "bold red" if coloured else "")


def _styled(token: SourcedToken) -> Text:
    if _unmarked(token):
        return literal(token.text)
    return literal(token.text.replace("\n", "⏎\n") or _NO_TEXT, _LOOKS[token.source][0])


def _between_marks(token: SourcedToken) -> str:
    """The token between its marks, which stand within the spaces around it; a fuzzy one with its score."""
    if _unmarked(token):
        return token.text
    (_, opening, closing), inner = _LOOKS[token.source], token.text.strip()
    before, _, after = token.text.partition(inner) if inner else ("", "", token.text)
    score = f" {token.score:.2g}" if token.source is TokenSource.FUZZY else ""
    return f"{before}{opening}{inner or name_of(token.text) or _NO_TEXT}{score}{closing}{after}"


def _unmarked(token: SourcedToken) -> bool:
    return not _LOOKS[token.source][0]


def _fuzzy_lines(text: InspectedText) -> list[RenderableType]:
    """The fuzzy tokens of the largest scores, in the order of the text."""
    fuzzy = [token for token in text.tokens if token.source is TokenSource.FUZZY]
    largest = sorted(fuzzy, key=lambda token: token.score or 0.0, reverse=True)[:_LARGEST]
    if not fuzzy:
        return []
    of = f"the {_LARGEST} of {len(fuzzy)} with the largest D" if len(fuzzy) > _LARGEST else "all"
    rows = [
        literal(
            f"  token {token.position + 1}: {name_of(token.name)} instead of {name_of(token.alternative_name or '')}, "
            f"D = {threshold(token.score)}"
        )
        for token in fuzzy if token in largest
    ]  # fmt: skip
    return ["", literal(f"Fuzzy tokens ({of}):"), *rows]


def _token_table(text: InspectedText, parts: int | None) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for i, heading in enumerate(HEADINGS):
        table.add_column(literal(heading), justify="right" if i in NUMBERS else "left", overflow="fold")
    for token in text.tokens:
        number, *others = token_cells(token)
        table.add_row(*map(literal, (f"{_PARTS} {number}" if token.position == parts else number, *others)))
    return table


def _tree_lines(text: InspectedText, coloured: bool) -> list[RenderableType]:
    """The tree of every round, with what was accepted marked."""
    if not text.trees:
        return []
    head = literal(f"Drafted trees, by round ({TREE_WORDS}{'' if coloured else ' by parentheses'}):")
    return ["", head, *(_drawn(number, tree, coloured) for number, tree in enumerate(text.trees, 1))]


def _drawn(number: int, nodes: DraftedTree, coloured: bool) -> Tree:
    from rich.tree import Tree

    root = Tree(literal(f"round {number}"))
    branches: list[Tree] = []
    for node in nodes:
        name = name_of(node.name)
        label = literal(name, "bold green" if coloured and node.accepted else "")
        if node.accepted and not coloured:
            label = literal(f"{_ACCEPTED[0]}{name}{_ACCEPTED[1]}")
        branches.append((root if node.parent is None else branches[node.parent]).add(label))
    return root


def _legend(texts: Sequence[InspectedText], parting: bool, coloured: bool) -> Text:
    """The sources that occur, each as its tokens look."""
    lines = []
    for source in TokenSource:
        if any(source in text.shares for text in texts):
            style, opening, closing = _LOOKS[source]
            marked = f"{opening}{source}{' D' * (source is TokenSource.FUZZY)}{closing}"
            sample = literal(str(source), style) if coloured else literal(marked)
            lines.append(literal("").append_text(sample).append(f": {MEANINGS[source]}"))
    if any(not token.text and not _unmarked(token) for text in texts for token in text.tokens):
        lines.append(literal(f"{_NO_TEXT} {WITHOUT_TEXT}"))
    if parting:
        lines.append(_parting(coloured).append(" where the texts part", style="default not bold"))
    return literal("\n").join(lines)
