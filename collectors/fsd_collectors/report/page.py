"""A self-contained HTML page of the report's tables and pictures, for light and dark screens."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import NamedTuple

from fsd_collectors.pages.sheet import Sheet
from fsd_decoding.terminal import visible

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{{ title }}</title>
<style>
:root { --paper: #ffffff; --ink: #1f2328; --faint: #d9dde2; --quiet: #57606a }
@media (prefers-color-scheme: dark) { :root { --paper: #14171c; --ink: #e4e7eb; --faint: #3a4048; --quiet: #a2abb5 } }
body { background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; max-width: 60rem;
       margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem } h2 { font-size: 1.15rem; margin: 2.2rem 0 .5rem }
figure { margin: 1.5rem 0 2.5rem } img { width: 100%; height: auto }
p, figcaption { color: var(--quiet); max-width: 46rem; font-size: .92rem }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .9rem .25rem 0; border-bottom: 1px solid var(--faint); text-align: right; vertical-align: top }
thead th { color: var(--quiet); font-weight: 600 } tbody th { font-weight: 400 }
.name { text-align: left }
</style>
</head>
<body>
<main>
<h1>{{ title }}</h1>
{% macro table(sheet) %}
<section>
<h2>{{ sheet.title }}</h2>
<div class="wide" tabindex="0" role="region" aria-label="{{ sheet.title }}">
<table>
{% if sheet.headings %}
<thead><tr>
{% for heading in sheet.headings %}
<th scope="col"{% if loop.index <= sheet.names %} class="name"{% endif %}>{{ heading }}</th>
{% endfor %}
</tr></thead>
{% endif %}
<tbody>
{% for row in sheet.rows %}
<tr><th scope="row" class="name">{{ row[0] }}</th>
{% for cell in row[1:] %}
<td{% if not sheet.headings or loop.index < sheet.names %} class="name"{% endif %}>{{ cell }}</td>
{% endfor %}
</tr>
{% endfor %}
</tbody>
</table>
</div>
{% if sheet.note %}
<p>{{ sheet.note }}</p>
{% endif %}
</section>
{% endmacro %}
{% for sheet in sheets %}
{{ table(sheet) }}
{% endfor %}
<section>
<h2>Pictures</h2>
{% for picture in drawn %}
<figure>
<picture>
<source media="(prefers-color-scheme: dark)" srcset="data:image/png;base64,{{ picture.dark }}">
<img src="data:image/png;base64,{{ picture.light }}" alt="{{ picture.alt }}">
</picture>
<figcaption>{{ picture.caption }}</figcaption>
</figure>
{% endfor %}
{% for remark in remarks %}
<p>{{ remark }}</p>
{% endfor %}
</section>
</main>
</body>
</html>
"""


class Drawn(NamedTuple):
    """A picture for the page: PNG for light and for dark screens, alt text and caption."""

    light: bytes
    dark: bytes
    alt: str
    caption: str


def page(title: str, sheets: Sequence[Sheet], drawn: Sequence[Drawn], remarks: Sequence[str] = ()) -> str:
    """Returns the page's HTML; all texts are escaped, and their control characters are visible."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    encoded = [each._asdict() | {"light": _text(each.light), "dark": _text(each.dark)} for each in drawn]
    return visible(environment.from_string(_PAGE).render(title=title, sheets=sheets, drawn=encoded, remarks=remarks))


def _text(png: bytes) -> str:
    return base64.b64encode(png).decode()
