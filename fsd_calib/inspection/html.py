"""Inspected texts as HTML: the tokens of a text as spans, and a page of one text or two, for light and dark screens.

The page is `texts.html`.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
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
from fsd_common.pages.page import token_style
from fsd_common.pages.themes import DARK, LIGHT, variables
from fsd_common.terminal import visible
from fsd_decoding.observers.token_sources import DraftedTree, SourcedToken, TokenSource, name_of, token_line

if TYPE_CHECKING:
    from markupsafe import Markup


def token_spans(tokens: Sequence[SourcedToken], parts: int | None = None) -> str:
    """Returns the tokens of a text as HTML, one span each, whose joined text is the text's.

    Give the page `token_style()` too. All texts are escaped, and their control characters are visible.

    Args:
        tokens: of one text.
        parts: position where another text parts from this one, which gets a mark; see `first_difference`.
    """
    spans = [_span(token) for token in tokens]
    if parts is not None:
        spans.insert(parts, '<span class="parts" title="the texts part"></span>')
    return "".join(spans)


def _span(token: SourcedToken) -> str:
    kind = f"token {token.source}{'' if token.text else ' empty'}"
    focus = "" if token.source is TokenSource.EXACT else ' tabindex="0"'
    return f'<span class="{kind}" data-says="{_escaped(token_line(token))}"{focus}>{_escaped(token.text)}</span>'


def _escaped(text: str) -> str:
    return html.escape(visible(text))


def texts_page(texts: Sequence[InspectedText], prompt: str, models: str) -> str:
    """Returns a self-contained page of one text, or of two beside each other; all texts are escaped.

    Args:
        texts: one or two.
        prompt: as the models read it.
        models: target and draft in words.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    parts = first_difference(texts[0].tokens, texts[1].tokens) if len(texts) == 2 else None
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=StrictUndefined, keep_trailing_newline=True,
    )  # fmt: skip
    occurring = {source for text in texts for source in text.shares}
    return environment.get_template("texts.html").render(
        title="Where the tokens come from",
        subtitle=visible(models),
        texts=[_content(text) | {"spans": Markup(token_spans(text.tokens, parts))} for text in texts],
        parts=parts is not None,
        difference=difference_line(parts) if len(texts) == 2 else "",
        legend=[(source, MEANINGS[source]) for source in TokenSource if source in occurring],
        without_text=WITHOUT_TEXT if any(not token.text for text in texts for token in text.tokens) else None,
        prompt=visible(prompt),
        headings=HEADINGS,
        tree_words=TREE_WORDS,
        numbers=NUMBERS,
        style=Markup(token_style()),
        light=Markup(variables(LIGHT)),
        dark=Markup(variables(DARK)),
    )


def _nested(nodes: DraftedTree, parent: int | None = None) -> Markup:
    """The nodes after one of them, or after the text, as lists within lists."""
    from markupsafe import Markup

    items = [
        Markup("<li>{}{}</li>").format(
            Markup("<b>{}</b>" if node.accepted else "{}").format(visible(name_of(node.name))), _nested(nodes, place)
        )
        for place, node in enumerate(nodes)
        if node.parent == parent
    ]
    return Markup("<ul>{}</ul>").format(Markup("").join(items)) if items else Markup("")


def _content(text: InspectedText) -> dict[str, object]:
    return {
        "title": text.title,
        "setting": text.setting,
        "shares": list(text.shares.items()),
        "shares_line": shares_line(text),
        "counts_line": counts_line(text),
        "trees": [_nested(tree) for tree in text.trees],
        "rows": [tuple(map(visible, token_cells(token))) for token in text.tokens],
    }
