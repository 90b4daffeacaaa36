"""What notebooks show of our objects: HTML by a renderer of another package, found by its entry point."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

GROUP = "fsd_decoding.html"
"""Entry points of this group are named by a kind of object, are called with one, and return its HTML."""


def html_of(kind: str, shown: Any) -> str | None:
    """Returns the HTML of an object of this kind; None, so that its text is shown: no renderer is installed."""
    for renderer in entry_points(group=GROUP, name=kind):
        return str(renderer.load()(shown))
    return None
