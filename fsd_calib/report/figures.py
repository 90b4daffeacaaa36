"""The main figures of a calibration: target alone, `sd` and the chosen setting, as every report has them."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Literal, NamedTuple

from fsd_common.formatting import in_trees
from fsd_decoding.profile.content import CurvePoint, Source
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from fsd_decoding.tree_shape import TreeShape

if TYPE_CHECKING:
    from fsd_calib.report.record import Setting
    from fsd_calib.report.rows import Row

_NO_CHOICE = ("lossless", "front")  # unless there is an estimate
_NOT_FOLLOWED = {"too-slow": "too slow", "certified-slower": "certified, slower"}


class Figures(NamedTuple):
    """What was measured of a setting; None: it was not, or says nothing of it.

    Attributes:
        which: The field of `Speed` that has its speed.
        label: The setting, on up to two lines.
        accuracy_bound, retention_bound: Lower bounds by the certificate.
    """

    which: Literal["target", "sd", "chosen"]
    label: str
    accuracy: float | None = None
    accuracy_bound: float | None = None
    retention: float | None = None
    retention_bound: float | None = None
    tokens_per_round: float | None = None


def main_figures(profile: ThresholdProfile) -> list[Figures]:
    """Returns those of the target alone, `sd`, and a fuzzy setting if one was chosen, estimated or tested."""
    lossless = [_of_target(profile), _of_sd(profile)]
    return [*lossless, _of_chosen(profile)] if _is_fuzzy(profile) else lossless


def drafts(profile: ThresholdProfile) -> str:
    """Returns the draft length of the fuzzy rule: exact, or the longest where drafts end early."""
    return f"L {'=' if profile.early_stop is None else '≤'} {profile.draft_length}{in_trees(profile.tree)}"


def draft_among(profile: ThresholdProfile, other: str | None) -> str:
    """Returns the draft's name where several were tried. `other`: the id of one that is not the profile's own."""
    return f", draft {PurePath(other or profile.draft.id).name}" if profile.other_drafts else ""


def own_threshold(profile: ThresholdProfile) -> float | None:
    """Returns the profile's T, else that of its estimate; None: it has neither."""
    return profile.estimate.threshold if profile.estimate is not None else profile.threshold


def sd_draft_length(profile: ThresholdProfile) -> int:
    """Returns the draft length at which `sd` was measured."""
    return profile.draft_length if profile.sd_draft_length is None else profile.sd_draft_length


def source_of(profile: ThresholdProfile) -> Source:
    """The part that figures are from: certification, as soon as anything was decoded there."""
    return max((point.source for point in profile.curve), default="tuning", key=lambda part: part == "certification")


def was_timed(profile: ThresholdProfile, setting: Row | CurvePoint) -> bool:
    """Returns whether the profile has a timed speed of the setting, beside which its forecast says nothing."""
    if not profile.speed.timed:
        return False
    if setting.rule == "sd":
        own, draft = profile.draft.id, setting.draft or profile.draft.id
        timed = sd_draft_length(profile), profile.sd_tree, profile.sd_draft or own
        return (setting.draft_length, setting.tree, draft) == timed
    return setting.rule == "target" or is_chosen(profile, setting)


def key_of(profile: ThresholdProfile, setting: Setting | Row | CurvePoint) -> tuple[object, ...]:
    """Returns what tells settings apart, with the draft's id in full: the record and the curve leave it out
    differently."""
    policy, draft = setting.policy and setting.policy.identity, setting.draft or profile.draft.id
    return setting.rule, setting.divergence, setting.draft_length, setting.threshold, policy, draft, setting.tree


def is_chosen(profile: ThresholdProfile, setting: Setting | Row | CurvePoint) -> bool:
    """Returns whether it is the profile's setting, or its estimate."""
    estimate, threshold = profile.estimate, own_threshold(profile)
    policy = profile.policy and profile.policy.identity
    draft = (estimate and estimate.draft) or profile.draft.id
    chosen = (profile.rule, profile.divergence, profile.draft_length, threshold, policy, draft, profile.tree)
    return threshold is not None and key_of(profile, setting) == chosen


def point_of(
    profile: ThresholdProfile, rule: str, draft_length: int, tree: TreeShape | None = None
) -> CurvePoint | None:
    """The point of a rule at the profile's threshold, where the rule has one, preferably of this draft length and
    shape."""
    setting = (None, None) if rule in ("sd", "target") else (profile.threshold, profile.policy)
    points = [p for p in profile.curve if (p.rule, p.source) == (rule, source_of(profile))]
    points = [p for p in points if (p.threshold, p.policy) == setting]
    return min(points, key=lambda p: (p.draft_length, p.tree) != (draft_length, tree), default=None)


def _is_fuzzy(profile: ThresholdProfile) -> bool:
    """Whether a fuzzy setting was chosen, estimated or tested."""
    lossless = profile.outcome in _NO_CHOICE or profile.certificate.lossless
    return profile.estimate is not None or not lossless


def _of_target(profile: ThresholdProfile) -> Figures:
    certificate = profile.certificate
    if certificate.lossless:
        return Figures("target", "target alone", certificate.accuracy, certificate.accuracy_lower_bound)
    point = None if certificate.problems else point_of(profile, "target", 1)  # on as many problems as `source_of` has
    return Figures("target", "target alone", point.accuracy if point else profile.accuracy.target)


def _of_sd(profile: ThresholdProfile) -> Figures:
    """`sd` loses nothing, but its accuracy is shown where it was measured on the same problems as the target."""
    point, alone = point_of(profile, "sd", sd_draft_length(profile), profile.sd_tree), point_of(profile, "target", 1)
    if point and alone and point.problems != alone.problems:
        point = None
    among = draft_among(profile, profile.sd_draft)
    return Figures(
        "sd", f"sd (lossless)\nL = {sd_draft_length(profile)}{in_trees(profile.sd_tree)}{among}",
        accuracy=point.accuracy if point else None, retention=point.retention if point else None,
        tokens_per_round=profile.tokens_per_round.sd,
    )  # fmt: skip


def _of_chosen(profile: ThresholdProfile) -> Figures:
    c = profile.certificate
    point = profile.estimate or point_of(profile, profile.rule, profile.draft_length, profile.tree)
    figures = Figures(
        "chosen", _configuration(profile), profile.accuracy.chosen, retention=point.retention if point else None,
        tokens_per_round=profile.tokens_per_round.chosen,
    )  # fmt: skip
    if c.lossless:
        return figures  # what was tested is the target
    retention = figures.retention if c.retention is None else c.retention
    return figures._replace(accuracy_bound=c.accuracy_lower_bound, retention=retention, retention_bound=c.lower_bound)


def _configuration(profile: ThresholdProfile) -> str:
    if profile.threshold is not None:
        return f"{profile.rule}\nT = {profile.threshold:.4g}, {drafts(profile)}{draft_among(profile, None)}"
    if profile.estimate is not None:
        label = _NOT_FOLLOWED.get(profile.outcome, "not certified")
        among = draft_among(profile, profile.estimate.draft)
        return f"{label}\nT = {profile.estimate.threshold:.4g}, {drafts(profile)}{among}"
    return (
        f"lossless\n({profile.effective_rule}), L = {profile.effective_draft_length}{in_trees(profile.effective_tree)}"
    )
