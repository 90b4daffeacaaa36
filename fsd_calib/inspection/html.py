"""Inspected texts as HTML: the tokens of a text as spans, and a page of one text or two, for light and dark screens."""

from __future__ import annotations

import html
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
    name_of,
    shares_line,
    token_cells,
    token_line,
)
from fsd_common.pages.page import token_style
from fsd_common.pages.themes import DARK, LIGHT, variables
from fsd_common.terminal import visible
from fsd_decoding.observers.token_sources import DraftedTree, SourcedToken, TokenSource

if TYPE_CHECKING:
    from markupsafe import Markup

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{{ title }}</title>
<style>
:root { {{ light }} }
@media (prefers-color-scheme: dark) { :root { {{ dark }} } }
* { box-sizing: border-box }
body { background: var(--paper); color: var(--ink); margin: 0 auto; max-width: 60rem; padding: 1.5rem 1.25rem 5rem;
       font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .3rem }
h2 { font-size: 1.2rem; margin: 0 }
p { margin: .3rem 0 } .quiet { color: var(--quiet); font-size: .93rem }
.abreast { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 1.8rem;
           margin: 1.8rem 0 1rem }
.abreast > section { min-width: 0 }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--card); border: 1px solid var(--faint);
      border-radius: .35rem; padding: .8rem .9rem; margin: .6rem 0;
      font: .92rem/1.85 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace }
.shares { display: flex; height: .6rem; gap: 2px; margin: .5rem 0; border-radius: .2rem; overflow: hidden }
.shares span { border: 0; border-radius: 0 } .shares .exact { background: var(--faint) }
.shares .fuzzy { background: var(--second) } .shares .fallback { background: var(--quiet) }
.shares .bonus { background: var(--third) } .shares .target { background: var(--first) }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .35rem 1rem; margin: 1rem 0; font-size: .93rem }
dt { justify-self: start } dd { margin: 0; color: var(--quiet) }
details { border-top: 1px solid var(--faint); padding: .5rem 0 } summary { cursor: pointer }
summary:focus-visible { outline: 2px solid var(--first); outline-offset: 2px }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums }
.trees ul { margin: .1rem 0; padding-left: 1.3rem } .trees li { color: var(--quiet) }
.trees b { color: var(--ink); background: var(--faint); border-radius: .2rem; padding: 0 .25rem }
th, td { padding: .2rem 1rem .2rem 0; border-bottom: 1px solid var(--faint); text-align: left; white-space: nowrap }
thead th { color: var(--quiet); font-weight: 600 } .number { text-align: right }
@media (max-width: 640px) { body { padding: 1.1rem .9rem 6rem } h1 { font-size: 1.35rem }
  dl { grid-template-columns: 1fr; gap: .1rem } dd { margin-bottom: .5rem } }
{{ style }}
</style>
</head>
<body>
<header>
<h1>{{ title }}</h1>
<p class="quiet">{{ subtitle }}</p>
</header>
<main>
<div class="abreast">
{% for text in texts %}
<section>
<h2>{{ text.title }}</h2>
<p class="quiet">{{ text.setting }}</p>
<pre>{{ text.spans }}</pre>
<div class="shares" role="img" aria-label="{{ text.shares_line }}">
{%- for source, share in text.shares %}<span class="{{ source }}" style="flex: {{ share }}"></span>{% endfor -%}
</div>
<p>{{ text.counts_line }}</p>
<p class="quiet">{{ text.shares_line }}</p>
</section>
{% endfor %}
</div>
{% if difference %}
<p>{{ difference }}</p>
{% endif %}
<dl>
{% for source, meaning in legend %}
<dt><span class="{{ source }}">{{ source }}</span></dt><dd>{{ meaning }}</dd>
{% endfor %}
{% if parts %}
<dt><span class="parts"></span></dt><dd>where the texts part</dd>
{% endif %}
{% if without_text %}
<dt>·</dt><dd>{{ without_text }}</dd>
{% endif %}
</dl>
<details{% if prompt|length < 500 %} open{% endif %}><summary>The prompt</summary><pre>{{ prompt }}</pre></details>
{% for text in texts %}
<details><summary>All tokens at {{ text.title }}</summary>
<div class="wide" tabindex="0" role="region" aria-label="All tokens at {{ text.title }}">
<table>
<thead><tr>{% for heading in headings %}<th scope="col"{% if loop.index0 in numbers %} class="number"{% endif %}>{{ heading }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in text.rows %}
<tr>{% for cell in row %}<td{% if loop.index0 in numbers %} class="number"{% endif %}>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}
</tbody>
</table>
</div>
</details>
{% if text.trees %}
<details class="trees"><summary>All drafted trees at {{ text.title }} ({{ tree_words }})</summary>
{% for tree in text.trees %}
<p class="quiet">round {{ loop.index }}</p>
{{ tree }}
{% endfor %}
</details>
{% endif %}
{% endfor %}
</main>
</body>
</html>
"""  # noqa: E501


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
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    parts = first_difference(texts[0].tokens, texts[1].tokens) if len(texts) == 2 else None
    environment = Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    occurring = {source for text in texts for source in text.shares}
    return environment.from_string(_PAGE).render(
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
