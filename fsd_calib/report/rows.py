"""The measured settings of a run as rows, from its record or, where there is none, from the profile's curve."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from fsd_calib.engines.configuration import DRAFT_ALONE
from fsd_calib.report.figures import is_chosen, key_of, was_timed
from fsd_calib.report.record import DraftAlone, Measured, Setting
from fsd_calib.report.run_folder import Run
from fsd_common.formatting import in_trees
from fsd_decoding.profile.content import CurvePoint, Source
from fsd_decoding.profile.parts import PolicyInfo
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from fsd_decoding.tree_shape import TreeShape

TARGET, DRAFT, SD, COUPLED = "target alone", "draft alone", "sd (lossless)", "coupled (lossless)"


@dataclass(frozen=True)
class Row:
    """A setting on one part.

    Attributes:
        series: What it belongs to in charts: the target or the draft alone, `sd`, or a divergence.
        rule: "draft" for the draft alone.
        low, high: Ends of the interval of its retention; None: not known.
        lower_bound: Of its retention, by the certificate; None: it was not tested.
        accepted: Share of drafted tokens; None: not known, or nothing was drafted.
        forecast: Tokens/s of one stream; None: not known, or it was timed.
        chosen: Whether it is the profile's setting, or its estimate.
        front: Whether no other row of its part beats it in retention and forecast.
    """

    series: str
    rule: str
    divergence: str
    draft_length: int
    threshold: float | None
    policy: PolicyInfo | None
    draft: str | None
    tree: TreeShape | None
    source: Source
    problems: int
    accuracy: float
    retention: float
    low: float | None
    high: float | None
    lower_bound: float | None
    tokens_per_round: float
    accepted: float | None
    forecast: float | None
    chosen: bool
    front: bool = False

    @property
    def name(self) -> str:
        """The setting in words."""
        return setting_name(self)

    @property
    def drafts(self) -> bool:
        """Whether one model drafts for another."""
        return self.rule not in ("target", DRAFT_ALONE)


def setting_name(setting: Setting | Row | CurvePoint) -> str:
    """Returns a setting in words, such as "fsd-coupled, js ≤ 0.31, L = 5"."""
    if setting.rule == "target":
        return TARGET
    if setting.rule == DRAFT_ALONE:
        return DRAFT if setting.draft is None else f"{PurePath(setting.draft).name} alone"
    bound = "" if setting.threshold is None else f", {setting.divergence} ≤ {setting.threshold:.4g}"
    by = "" if setting.policy is None else f" by {setting.policy}"
    drafting = "" if setting.draft is None else f", {PurePath(setting.draft).name}"
    return f"{setting.rule}{bound}{by}, L = {setting.draft_length}{in_trees(setting.tree)}{drafting}"


def rows(run: Run) -> list[Row]:
    """Returns the rows of both parts; those on the front of the tuning part are marked."""
    profile, record = run.profile, run.record
    found = list(_of_curve(profile) if record is None else _of_record(profile, record.measured))
    if record is not None and record.draft_alone is not None:
        found.append(_of_draft(profile, record.draft_alone))
    found = _with_front(found)
    return [replace(row, forecast=None) if was_timed(profile, row) else row for row in found]


def series_of(found: Sequence[Row]) -> list[str]:
    """Returns the series of rows in the order of legends: target and draft alone, `sd`, then the divergences."""
    names = dict.fromkeys(row.series for row in found)
    fixed = [name for name in (TARGET, DRAFT, SD, COUPLED) if name in names]
    return fixed + sorted(name for name in names if name not in fixed)


def _of_record(profile: ThresholdProfile, measured: tuple[Measured, ...]) -> Iterator[Row]:
    bounds = {(p.source, *key_of(profile, p)): p.lower_bound for p in profile.curve}
    for m in measured:
        c = m.counts
        solved, right = c.both_right + c.gained, c.both_right + c.lost
        low, high = m.interval or (None, None)
        yield Row(
            _series(m), m.rule, m.divergence, m.draft_length, m.threshold, m.policy, m.draft, m.tree, m.source,
            m.problems, solved / c.total, solved / right if right else 0.0, low, high,
            bounds.get((m.source, *key_of(profile, m))), m.tokens / m.rounds,
            m.accepted / m.drafted if m.drafted else None, m.forecast, is_chosen(profile, m),
        )  # fmt: skip


def _of_draft(profile: ThresholdProfile, alone: DraftAlone) -> Row:
    solved, right = alone.counts.both_right + alone.counts.gained, alone.counts.both_right + alone.counts.lost
    low, high = alone.interval or (None, None)
    return Row(
        DRAFT, DRAFT_ALONE, profile.divergence, 1, None, None, alone.draft, None, "tuning", alone.problems,
        solved / alone.counts.total, solved / right if right else 0.0, low, high, None, 1.0, None, None, False,
    )  # fmt: skip


def _of_curve(profile: ThresholdProfile) -> Iterator[Row]:
    for p in profile.curve:
        yield Row(
            _series(p), p.rule, p.divergence, p.draft_length, p.threshold, p.policy, p.draft, p.tree, p.source,
            p.problems, p.accuracy, p.retention, None, None, p.lower_bound, p.tokens_per_round, None, p.forecast,
            is_chosen(profile, p),
        )  # fmt: skip


def _series(setting: Setting | CurvePoint) -> str:
    if setting.rule == "target":
        return TARGET
    if setting.threshold is None:
        return SD if setting.rule == "sd" else f"{setting.rule} (lossless)"
    by = "" if setting.policy is None else f" by {setting.policy.name}"
    return f"{setting.divergence}{by}{in_trees(setting.tree)}"


def _with_front(found: list[Row]) -> list[Row]:
    best, front = 0.0, set[int]()
    whole = max((row.problems for row in found if row.source == "tuning"), default=0)
    lossy = [
        (i, row) for i, row in enumerate(found)
        if row.source == "tuning" and row.threshold is not None and 2 * row.problems >= whole
    ]  # fmt: skip
    for i, row in sorted(lossy, key=lambda each: (-each[1].retention, -(each[1].forecast or 0.0))):
        if (row.forecast or 0.0) > best:
            best = row.forecast or 0.0
            front.add(i)
    return [replace(row, front=i in front) for i, row in enumerate(found)]
