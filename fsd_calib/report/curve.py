"""The measured curve as tables: all of it, or the points worth choosing among."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath

from rich import box
from rich.table import Table

from fsd_calib.formatting import bound, pace, percent, threshold
from fsd_decoding.profile.curve import CurvePoint
from fsd_decoding.profile.selection import corrected
from fsd_decoding.profile.threshold_profile import ThresholdProfile


def curve_tables(profile: ThresholdProfile) -> list[Table]:
    """Every point, part by part."""
    parts = [[p for p in profile.curve if p.source == source] for source in ("tuning", "certification")]
    return [_table(f"the curve on the {points[0].source} part{_each(points)}", points) for points in parts if points]


def _each(points: Sequence[CurvePoint]) -> str:
    by_itself = any(p.lower_bound is not None and not p.simultaneous for p in points)
    return ", each bound by itself" if by_itself else ""


def front_table(profile: ThresholdProfile) -> Table | None:
    """What to choose among: the points whose bounds hold at once, else what measured well; None: nothing did."""
    sure = [p for p in profile.curve if p.simultaneous]
    if sure:
        return _table("the front, all bounds at once", sorted(sure, key=lambda p: p.retention, reverse=True))
    measured = nondominated(corrected(profile.curve))
    return _table("measured: nothing else is both faster and keeps more", measured) if measured else None


def nondominated(points: Sequence[CurvePoint]) -> list[CurvePoint]:
    """Of points with a forecast those that no other one beats in it and in retention, most faithful first."""
    kept: list[CurvePoint] = []
    for point in sorted(points, key=lambda p: (-p.retention, -_speed(p))):
        if _speed(point) > max(map(_speed, kept), default=0.0):
            kept.append(point)
    return kept


def _speed(point: CurvePoint) -> float:
    return point.forecast or 0.0


def _table(title: str, points: Iterable[CurvePoint]) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", padding=0)
    table.add_column("rule")
    headings = ("L", "T", "accuracy", "retention", "≥", "tokens\n/round", "forecast\ntokens/s", "problems")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for point in points:
        table.add_row(*_cells(point))
    return table


def _arm(p: CurvePoint) -> Iterator[str]:
    """What tells a row apart from one of the same L."""
    yield p.rule
    if p.threshold is not None:
        yield p.divergence
    if p.policy is not None:
        yield str(p.policy)
    if p.draft is not None:
        yield f"with {PurePath(p.draft).name}"


def _cells(p: CurvePoint) -> tuple[str, ...]:
    return (
        " ".join(_arm(p)), str(p.draft_length), threshold(p.threshold),
        percent(p.accuracy), percent(p.retention), bound(p.lower_bound), pace(p.tokens_per_round, 2),
        pace(p.forecast), f"{p.problems:,}",
    )  # fmt: skip
