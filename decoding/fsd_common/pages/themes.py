"""The light and the dark theme of pages and charts: colours by role, and the settings of charts that follow from them.

Charts name their colours by role ("@first"), so that one specification serves both themes. Each colour of a mark stands
out from its paper by a contrast of at least 3:1, and texts by 4.5:1; the first ones are of Okabe and Ito's palette,
which colour-blind readers can tell apart.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from fsd_common.terminal import visible

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
SERIES = ("@first", "@second", "@third", "@fourth", "@fifth", "@sixth", "@seventh")
"""Colours of series, in the order in which to take them."""
SHAPES = ("circle", "triangle-up", "diamond", "square", "triangle-down", "cross", "triangle-right")
"""Shapes of the same series, so that colour is not all that tells them apart."""
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [4, 4], [1, 3])
"""Dashes of the same series, where they are lines; one fewer than colours, so that no two of 42 series look alike."""


@dataclass(frozen=True)
class Theme:
    """Colours by role.

    Attributes:
        ink, quiet, faint: Colours of texts, of explanations and labels, of lines that must not distract.
        good, bad: Colours of outcomes that went well or badly.
        fuzzy: Behind tokens that were accepted only because of their score.
    """

    paper: str
    card: str
    ink: str
    quiet: str
    faint: str
    good: str
    bad: str
    fuzzy: str
    first: str
    second: str
    third: str
    fourth: str
    fifth: str
    sixth: str
    seventh: str


LIGHT = Theme(
    paper="#ffffff", card="#f6f8fa", ink="#1f2328", quiet="#57606a", faint="#d9dde2", good="#1a7f37", bad="#b3261e",
    fuzzy="#ffe3b8", first="#0072b2", second="#d55e00", third="#00795c", fourth="#a4478c", fifth="#6b5b00",
    sixth="#4b4bb5", seventh="#5f6368",
)  # fmt: skip
DARK = Theme(
    paper="#14171c", card="#1c2128", ink="#e4e7eb", quiet="#a9b2bd", faint="#3a4048", good="#57c878", bad="#ff8a80",
    fuzzy="#5c4210", first="#56b4e9", second="#f0843c", third="#3cc8a0", fourth="#e08fcb", fifth="#e3d25b",
    sixth="#a5a5ff", seventh="#b8bec6",
)  # fmt: skip
_OF_DATA = ("values", "domain", "sort")  # parts of a specification whose texts are not ours
THEMES = {"light": LIGHT, "dark": DARK}


def variables(theme: Theme) -> str:
    """Returns the theme as variables of CSS."""
    return "; ".join(f"--{role}: {colour}" for role, colour in asdict(theme).items())


def settings(theme: Theme) -> dict[str, Any]:
    """Returns Vega-Lite's `config` of a theme."""
    axis = {
        "labelColor": theme.quiet, "titleColor": theme.ink, "domainColor": theme.faint, "tickColor": theme.faint,
        "gridColor": theme.faint, "gridOpacity": 0.7, "labelFontSize": 12, "titleFontSize": 12.5,
        "titleFontWeight": "normal", "titlePadding": 8, "labelOverlap": True, "labelSeparation": 6, "labelFlush": False,
        "tickCount": 6,
    }  # fmt: skip
    legend = {
        "labelColor": theme.ink, "titleColor": theme.quiet, "labelFontSize": 12, "titleFontSize": 12,
        "titleFontWeight": "normal", "orient": "top", "direction": "horizontal", "columns": 6, "labelLimit": 260,
        "symbolStrokeWidth": 2, "symbolSize": 90, "symbolOpacity": 1,
        "symbolBaseFillColor": theme.ink, "symbolBaseStrokeColor": theme.ink, "columnPadding": 18, "offset": 12,
        "layout": {"top": {"anchor": "start", "direction": "horizontal", "margin": 24}},
    }  # fmt: skip
    return {
        "background": None, "font": FONT, "axis": axis, "legend": legend, "view": {"stroke": None},
        "title": {"color": theme.ink, "fontSize": 13, "fontWeight": 600, "anchor": "start"},
        "text": {"color": theme.ink, "fontSize": 12}, "header": {"labelColor": theme.ink, "titleColor": theme.ink},
        "rule": {"color": theme.ink}, "line": {"strokeWidth": 2}, "point": {"size": 70, "filled": True},
    }  # fmt: skip


def coloured(spec: Any, theme: Theme) -> Any:
    """Returns a specification with a theme's colours in the place of their roles.

    Data and the names of series stay as they are: a run may be called "@first". `page.js` does the same.
    """
    if isinstance(spec, str):
        return getattr(theme, spec[1:]) if spec.startswith("@") else spec
    if isinstance(spec, dict):
        return {name: value if name in _OF_DATA else coloured(value, theme) for name, value in spec.items()}
    return [coloured(value, theme) for value in spec] if isinstance(spec, list | tuple) else spec


def plain(spec: Any) -> Any:
    """Returns a specification that JSON can hold and a reader can see, whatever data it is of: control characters are
    escapes, and numbers that are not finite are null, which is not drawn."""
    if isinstance(spec, str):
        return visible(spec)
    if isinstance(spec, float) and not math.isfinite(spec):
        return None
    if isinstance(spec, dict):
        return {name: plain(value) for name, value in spec.items()}
    return [plain(value) for value in spec] if isinstance(spec, list | tuple) else spec
