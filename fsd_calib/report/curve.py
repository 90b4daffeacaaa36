"""Tables of the measured curve: every point, or the points worth choosing among."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath

from rich import box
from rich.table import Table

from fsd_calib.report.figures import was_timed
from fsd_common.console import TITLE, breakable, literal
from fsd_common.formatting import bound, pace, percent, threshold
from fsd_decoding.profile.content import CurvePoint
from fsd_decoding.profile.selection import corrected
from fsd_decoding.profile.threshold_profile import ThresholdProfile

_BESIDE = 62  # characters of the columns beside the first


def curve_tables(profile: ThresholdProfile, width: int) -> list[Table]:
    """Returns a table of all points for each part of the problems, at most `width` characters wide."""
    parts = [[p for p in profile.curve if p.source == source] for source in ("tuning", "certification")]
    return [
        _table(f"the curve on the {points[0].source} part{_bounds(points)}", profile, points, width)
        for points in parts
        if points
    ]


def _bounds(points: Sequence[CurvePoint]) -> str:
    individual = any(p.lower_bound is not None and not p.simultaneous for p in points)
    return ", individual bounds" if individual else ""


def front_table(profile: ThresholdProfile, width: int) -> Table | None:
    """Returns the points to choose among: those with simultaneous bounds, else the nondominated measured ones.

    At most `width` characters wide.

    None: there are neither.
    """
    points = front(profile)
    simultaneous = any(point.simultaneous for point in points)
    measured = "measured points that no other beats in retention and speed"
    title = "the front, simultaneous bounds" if simultaneous else measured
    return _table(title, profile, points, width) if points else None


def front(profile: ThresholdProfile) -> list[CurvePoint]:
    """Returns the points with simultaneous bounds, else the nondominated measured ones, the highest retention first."""
    bounded = [p for p in profile.curve if p.simultaneous]
    return sorted(bounded, key=lambda p: p.retention, reverse=True) or nondominated(corrected(profile.curve))


def nondominated(points: Sequence[CurvePoint]) -> list[CurvePoint]:
    """Returns the Pareto front of forecast speed and retention, the highest retention first.

    Points without a forecast are left out.
    """
    kept: list[CurvePoint] = []
    for point in sorted(points, key=lambda p: (-p.retention, -_speed(p))):
        if _speed(point) > max(map(_speed, kept), default=0.0):
            kept.append(point)
    return kept


def _speed(point: CurvePoint) -> float:
    return point.forecast or 0.0


def _table(title: str, profile: ThresholdProfile, points: Iterable[CurvePoint], width: int) -> Table:
    table = Table(title=literal(title, TITLE), box=box.SIMPLE_HEAD, title_justify="left", padding=0)
    table.add_column("rule")
    headings = ("L", "T", "accuracy", "retention", "≥", "tokens\n/round", "forecast\ntokens/s", "problems")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for point in points:
        forecast = None if was_timed(profile, point) else point.forecast
        table.add_row(*map(literal, _cells(point, forecast, width - _BESIDE)))
    return table


def _arm(p: CurvePoint, width: int) -> Iterator[str]:
    """Rule, divergence, policy, shape of trees and draft: what distinguishes a row from others with the same L."""
    yield p.rule
    if p.threshold is not None:
        yield p.divergence
    if p.policy is not None:
        yield str(p.policy)
    if p.tree is not None:
        yield f"trees of {p.tree}"
    if p.draft is not None:
        yield f"with {breakable(PurePath(p.draft).name, width)}"


def _cells(p: CurvePoint, forecast: float | None, width: int) -> tuple[str, ...]:
    return (
        " ".join(_arm(p, width)), str(p.draft_length), threshold(p.threshold),
        percent(p.accuracy), percent(p.retention), bound(p.lower_bound), pace(p.tokens_per_round, 2),
        pace(forecast), f"{p.problems:,}",
    )  # fmt: skip
