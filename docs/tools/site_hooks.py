"""What mkdocs does with a page before it renders it, so that one text serves GitHub and the site.

On GitHub links lead to files beside the pages (`../examples/own_policy.py`), and Mermaid blocks are drawn by the
browser. On the site the former lead to the repository, and the latter are drawn by the build, as pages fetch nothing.
The site's home also has the README's figure and result table, and names of the public API lead to their entries.
"""

from __future__ import annotations

import posixpath
import re
from functools import cache
from pathlib import Path
from typing import Any

_README = Path(__file__).parents[2] / "README.md"


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Called by mkdocs for every page."""
    source = page.file.src_uri
    if source == "README.md":
        markdown = _with_results(markdown, config.repo_url)
    if source == "api.md":
        markdown = _with_links_to_entries(markdown)
    return _with_drawings(_with_links_to_the_repository(markdown, posixpath.dirname(source), config.repo_url))


def _with_results(markdown: str, repository: str) -> str:
    """Puts the README's figure and the table after it before the first table of a page."""
    readme = _README.read_text(encoding="utf-8")
    shown = "\n\n".join(
        re.findall(r"^!\[.*?$|(?:^\|.*\n)+", readme.partition("## ")[0], flags=re.MULTILINE)
    )  # all before its first section
    beside = re.sub(re.escape(repository) + r"/(?:blob|raw)/main/docs/", "", shown)
    before, table, after = markdown.partition("| you want to")
    return f"{before}{beside}\n{table}{after}"


def _with_links_to_entries(markdown: str) -> str:
    """Makes a link of every name in the tables below a heading that leads to a page."""

    def linked(section: re.Match[str]) -> str:
        return re.sub(r"^\| (`([\w.]+)`)", rf"| [\1]({section[1]}#\2)", section[0], flags=re.MULTILINE)

    return re.sub(r"^## \[.*?\]\((.*?)\)\n(?:(?!^## ).*\n?)*", linked, markdown, flags=re.MULTILINE)


def _with_links_to_the_repository(markdown: str, folder: str, repository: str) -> str:
    """Rewrites links that leave the folder of pages."""

    def rewritten(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", folder, link[1]))
        return link[0] if path.startswith("docs/") else f"]({repository}/blob/main/{path}{link[2] or ''})"

    return re.sub(r"\]\(((?:\.\./)[^)#\s]*)(#[^)\s]*)?\)", rewritten, markdown)


def _with_drawings(markdown: str) -> str:
    blocks = re.compile(r"^```mermaid\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
    return blocks.sub(lambda block: f'<figure class="diagram">{_drawn(block[1])}</figure>', markdown)


@cache
def _drawn(source: str) -> str:
    """An SVG, in one line so that Markdown takes it as it is, whose ids are its own on any page."""
    import mermaidx

    svg = mermaidx.render(source).svg()
    own = f"diagram-{abs(hash(source)):x}"
    return re.sub(r"\s*\n\s*", " ", svg).replace("my-svg", own)
