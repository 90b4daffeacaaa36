"""The HTML of a page: one file that needs no network, in a light and a dark theme, written whole or not at all.

Every text is escaped, and its control characters are visible. A content security policy forbids requests, whatever the
page holds. The JavaScript that draws charts (Vega-Lite, Vega and their embedding) comes with vl-convert; bundling it
takes seconds and gives the same text each time, so it is kept in the user's cache folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fsd_common.errors import UsageError
from fsd_common.files import atomic_write
from fsd_common.pages.blocks import Page
from fsd_common.pages.themes import DARK, LIGHT, THEMES, plain, settings, variables
from fsd_common.terminal import visible
from fsd_common.user_folders import keep, kept

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


FOLDER = "pages"  # of the cache
_SNIPPET = "window.vegaEmbed = vegaEmbed;"  # all that a page calls


@cache
def chart_script() -> str:
    """Returns the script, safe to stand in an element of HTML; it defines `vegaEmbed`."""
    name = f"{FOLDER}/vega-{version('vl-convert-python')}.js"
    script = kept(name)
    if script is None:
        keep(name, script := _bundle())
    return script


def _bundle() -> str:
    import vl_convert

    return vl_convert.javascript_bundle(_SNIPPET).replace("</script", r"<\/script")


def write(path: Path, content: bytes) -> Path:
    """Writes a file, with its folders, and returns its path.

    Raises:
        UsageError: It cannot be written, or something that is no file has its name.
    """
    if path.is_dir():
        raise UsageError(f"{str(path)!r} is a folder; name a file in it, such as {str(path / 'page.html')!r}")
    if path.exists() and not path.is_file():  # a device or a pipe, which the file would replace
        raise UsageError(f"{str(path)!r} is a device or a pipe, and a page is written to a file; name another")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(content)
    except OSError as error:
        raise UsageError(
            f"{str(path)!r} cannot be written: {error.strerror or error}; free space or choose another folder"
        ) from error
    return path
