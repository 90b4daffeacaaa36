"""The HTML of a page: one file that needs no network, in a light and a dark theme.

Every text is escaped, and its control characters are visible. A content security policy forbids requests, whatever the
page holds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fsd_collectors.pages.blocks import Page
from fsd_collectors.pages.script import chart_script
from fsd_collectors.pages.themes import DARK, LIGHT, THEMES, plain, settings, variables
from fsd_decoding.terminal import visible

_FOLDER = Path(__file__).parent
# Vega compiles the expressions of a chart to functions, which is what 'unsafe-eval' allows.
_POLICY = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data:"


def html(page: Page) -> str:
    """Returns the page's HTML."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    def shown(value: Any) -> Any:
        return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = Environment(
        loader=FileSystemLoader(_FOLDER), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=StrictUndefined, finalize=shown,
    )  # fmt: skip
    ours = {  # not from data, or made safe for where it stands
        "css": (_FOLDER / "page.css").read_text(encoding="utf-8") + token_style(),
        "js": (_FOLDER / "page.js").read_text(encoding="utf-8"),
        "vega": chart_script() if page.charts else "",
        "charts": _json({chart.name: plain(chart.spec) for chart in page.charts}),
        "themes": _json({name: {"colours": asdict(t), "settings": settings(t)} for name, t in THEMES.items()}),
        "light": variables(LIGHT), "dark": variables(DARK), "policy": _POLICY,
    }  # fmt: skip
    safe = {name: Markup(text) for name, text in ours.items()}
    return environment.get_template("page.html").render(page=page, **safe)


def token_style() -> str:
    """Returns the CSS of tokens by their source, for pages with the variables of a theme."""
    return (_FOLDER / "tokens.css").read_text(encoding="utf-8")


def _json(content: Mapping[str, Any]) -> str:
    """JSON that stands in an element of HTML: no text in it can end the element."""
    return json.dumps(content, allow_nan=False).replace("<", r"\u003c")
