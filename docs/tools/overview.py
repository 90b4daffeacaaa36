"""Draws README's figure, a round and what T buys, from measured figures: python docs/tools/overview.py

A test compares the picture with what this draws, so run it after the benchmarks that it reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from fsd_common.pages.themes import FONT, LIGHT

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "images" / "overview.svg"
_RESULTS = ROOT / "benchmarks" / "results"
_WIDTH, _HEIGHT, _MIDDLE = 960, 330, 470
_WISH = 0.98
_LEFT, _RIGHT, _TOP, _BOTTOM = _MIDDLE + 70, _WIDTH - 20, 62, 262  # of the chart
_FASTEST, _LEAST = 1.8, 0.4  # where its axes end
_TOKENS = (  # of a draft, with a score of each, and what becomes of it
    ("Then", 0.0, "the target's own"), ("she", 0.0, "the target's own"), ("gives", 0.18, "lossy: score ≤ T"),
    ("away", 0.0, "the target's own"), ("7", 0.85, "rejected: score > T"),
)  # fmt: skip
_T = 0.4


class Point(NamedTuple):
    """How many times as fast as lossless, and the share of the target's accuracy that is kept, with its interval."""

    gain: float
    kept: float
    low: float
    high: float


def drawn() -> str:
    """Returns the picture."""
    parts = [*_round(), *_chart()]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="{escape(FONT)}" '
    about = "A draft of five tokens, of which one is kept by a score below T; and accuracy kept against speed"
    paper = f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="{LIGHT.paper}"/>'
    return "\n".join([head + f'role="img"><title>{about}</title>', paper, *parts, "</svg>"]) + "\n"


def bundled() -> list[Point]:
    """What thresholds of the score js do on the bundled pair, greedily."""
    found = json.loads((_RESULTS / "rules.json").read_text())["temperatures"][0]["points"]
    curve = [point for point in found if point["rule"] == "js" and point["gain"] >= 1]
    return [Point(each["gain"], each["retention"], *[each["retention"]] * 2) for each in curve[::4]]


def real() -> list[Point]:
    """The same on a real pair."""
    (cell, *_) = json.loads((_RESULTS / "real.json").read_text())["cells"]
    return [Point(each["gain"][0], *each["retention"]) for each in cell["points"] if each["score"] == "js"]


def _round() -> Iterator[str]:
    yield _text(24, 34, "A round: the draft proposes, the target checks", size=16, weight=600)
    for place, (token, score, _) in enumerate(_TOKENS):
        x, kept = 24 + 86 * place, score <= _T
        colour = LIGHT.good if score == 0 else LIGHT.second if kept else LIGHT.bad
        box = f'x="{x}" y="62" width="78" height="38" rx="6" stroke-width="2"'
        yield f'<rect {box} fill="{LIGHT.card}" stroke="{colour}"/>'
        yield _text(x + 39, 86, token, anchor="middle", size=15)
        height = 4 + 96 * score
        yield f'<rect x="{x + 27}" y="{222 - height:g}" width="24" height="{height:g}" fill="{colour}" opacity="0.8"/>'
    level = 222 - 4 - 96 * _T
    yield _line(24, level, 446, level, LIGHT.ink, dashed=True)
    yield _text(446, level - 6, "T", anchor="end", weight=600)
    yield _text(24, 128, "each token's score: at most T is kept", colour=LIGHT.quiet)
    fates = dict.fromkeys(fate for _, _, fate in _TOKENS)
    for place, (fate, colour) in enumerate(zip(fates, (LIGHT.good, LIGHT.second, LIGHT.bad), strict=True)):
        yield f'<circle cx="{30 + 140 * place}" cy="250" r="5" fill="{colour}"/>'
        yield _text(42 + 140 * place, 255, fate)
    yield _text(24, 292, "The text: “Then she gives away 5”, four tokens drafted, one by the target.")
    yield _text(24, 314, "T < 0 is lossless. The larger T, the longer the rounds, and the more texts that change.")


def _chart() -> Iterator[str]:
    yield _text(_LEFT - 48, 34, "What T buys, and what it costs (score js)", size=16, weight=600)
    for gain in (1.0, 1.2, 1.4, 1.6, 1.8):
        yield _line(_x(gain), _TOP, _x(gain), _BOTTOM, LIGHT.faint)
        yield _text(_x(gain), _BOTTOM + 18, f"{gain:.1f}×", anchor="middle")
    for kept in (0.4, 0.6, 0.8, 1.0):
        yield _line(_LEFT, _y(kept), _RIGHT, _y(kept), LIGHT.faint)
        yield _text(_LEFT - 8, _y(kept) + 4, f"{kept:.0%}", anchor="end")
    yield _text(_RIGHT, _BOTTOM + 36, "tokens/s over lossless speculative decoding", anchor="end", colour=LIGHT.quiet)
    yield _text(_LEFT - 48, _TOP - 10, "share of the target's accuracy kept", colour=LIGHT.quiet)
    yield _line(_LEFT, _y(_WISH), _RIGHT, _y(_WISH), LIGHT.good, dashed=True)
    yield _text(_RIGHT - 4, _y(_WISH) - 10, "--min-acc 0.98", anchor="end", colour=LIGHT.good)
    yield from _curve(bundled(), LIGHT.first)
    yield from _curve(real(), LIGHT.second)
    yield _text(_x(1.42), _y(0.87), "bundled pair", colour=LIGHT.first, weight=600)
    yield _text(_x(1.21), _y(0.62), "Qwen2.5-Coder 1.5B with 0.5B,", colour=LIGHT.second, weight=600)
    yield _text(_x(1.21), _y(0.62) + 17, "GSM8K, 32 problems", colour=LIGHT.second, weight=600)


def _curve(points: Sequence[Point], colour: str) -> Iterator[str]:
    line = " ".join(f"{_x(point.gain):.1f},{_y(point.kept):.1f}" for point in points)
    yield f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>'
    for point in points:
        x, ends = _x(point.gain), (_y(point.low), _y(point.high))
        if ends[0] > ends[1]:
            yield _line(x, ends[0], x, ends[1], colour, opacity=0.4)
        yield f'<circle cx="{x:.1f}" cy="{_y(point.kept):.1f}" r="3" fill="{colour}"/>'


def _line(
    x1: float, y1: float, x2: float, y2: float, colour: str, dashed: bool = False, opacity: float = 1.0
) -> str:  # fmt: skip
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" opacity="{opacity:g}"{dashes}/>'


def _x(gain: float) -> float:
    return _LEFT + (gain - 0.95) / (_FASTEST - 0.95) * (_RIGHT - _LEFT)


def _y(kept: float) -> float:
    """The place of a share; what is outside of the chart is at its edge."""
    return min(max(_BOTTOM - (kept - _LEAST) / (1.02 - _LEAST) * (_BOTTOM - _TOP), _TOP), _BOTTOM)


def _text(x: float, y: float, text: str, colour: str = LIGHT.ink, size: int = 13, **more: Any) -> str:
    weight, anchor = more.get("weight", 400), more.get("anchor", "start")
    style = f'fill="{colour}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}"'
    return f'<text x="{x:g}" y="{y:g}" {style}>{escape(text)}</text>'


if __name__ == "__main__":
    PICTURE.write_text(drawn(), encoding="utf-8")
