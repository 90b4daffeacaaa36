"""The measured settings of a run as rows: the points of the profile's curve and, from its record, the draft alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fsd_calib.options.common import RULES_WITHOUT_T
from fsd_calib.report.figures import bound_of, is_chosen, was_timed
from fsd_calib.report.run_folder import Run
from fsd_calib.report.tables import nondominated
from fsd_common.formatting import in_trees
from fsd_decoding.profile.fields import CurvePoint
from fsd_decoding.profile.setting import DRAFT_ALONE, Setting

TARGET, DRAFT = "target alone", "draft alone"
LOSSLESS = tuple(f"{rule} (lossless)" for rule in RULES_WITHOUT_T)


@dataclass(frozen=True)
class Row:
    """A point of the curve as reports show it.

    Attributes:
        forecast: Tokens/s of one stream; None: not known, or it was timed.
        chosen: Whether it is the profile's setting, or its estimate.
        front: Whether no other row of its part beats it in retention and forecast.
    """

    point: CurvePoint
    forecast: float | None
    chosen: bool
    front: bool

    @property
    def setting(self) -> Setting:
        return self.point.setting

    @property
    def drafts(self) -> bool:
        """Whether one model drafts for another."""
        return self.setting.rule not in ("target", DRAFT_ALONE)

    @property
    def series(self) -> str:
        """What it belongs to in charts: the target or the draft alone, a lossless rule, or a score."""
        return series_name(self.setting)


def rows(run: Run) -> list[Row]:
    """Returns the rows of both parts, with the bounds to show; those on the front of the tuning part are marked."""
    profile, alone = run.profile, run.record and run.record.draft_alone
    points = [*profile.curve, *([alone.point] if alone else [])]
    front = _front(points)
    return [
        Row(
            p.model_copy(update={"lower_bound": bound_of(profile, p)}), None if was_timed(profile, p) else p.forecast,
            is_chosen(profile, p.setting), p in front,
        )
        for p in points
    ]  # fmt: skip


def series_name(setting: Setting) -> str:
    """Returns the series of a setting; see `Row.series`."""
    if setting.rule in ("target", DRAFT_ALONE):
        return TARGET if setting.rule == "target" else DRAFT
    if setting.threshold is None:
        return f"{setting.rule} (lossless)"
    by = "" if setting.policy is None else f" by {setting.policy.name}"
    return f"{setting.score}{by}{in_trees(setting.tree)}"


def series_of(found: Sequence[Row]) -> list[str]:
    """Returns the series of rows in the order of legends: target and draft alone, lossless rules, then scores."""
    names = dict.fromkeys(row.series for row in found)
    fixed = [name for name in (TARGET, DRAFT, *LOSSLESS) if name in names]
    return fixed + sorted(name for name in names if name not in fixed)


def _front(points: Sequence[CurvePoint]) -> list[CurvePoint]:
    """The points of the tuning part that no other one beats; those of few problems are left out."""
    whole = max((p.problems for p in points if p.source == "tuning"), default=0)
    return nondominated(
        [p for p in points if p.source == "tuning" and p.setting.threshold is not None and 2 * p.problems >= whole]
    )
