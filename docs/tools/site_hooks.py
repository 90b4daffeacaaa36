"""What mkdocs does with a page before it renders it, so that one text serves GitHub and the site.

On GitHub links lead to files beside the pages (`../examples/own_policy.py`), and Mermaid blocks are drawn by the
browser. On the site the former lead to the repository, and the latter are drawn by the build, as pages fetch nothing.
"""

from __future__ import annotations

import posixpath
import re
from functools import cache
from typing import Any


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Called by mkdocs for every page."""
    folder = posixpath.dirname(page.file.src_uri)
    return _with_drawings(_with_links_to_the_repository(markdown, folder, config.repo_url))


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
