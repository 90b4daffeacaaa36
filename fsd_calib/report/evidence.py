"""Sentences on the evidence: what the certification part showed, and what that does not cover."""

from __future__ import annotations

from fsd_calib.certification.bounds import Floor
from fsd_calib.report.summary import was_selected
from fsd_common.formatting import at_most, bound, confidence, exact, level, percent, points, points_between
from fsd_decoding.profile.content import MET
from fsd_decoding.profile.parts import TextCounts
from fsd_decoding.profile.threshold_profile import ThresholdProfile

LIKE = {"population": "on problems like these", "dataset": "on these very problems", "none": ""}

_AGREEMENT = (
    "Right means here to agree with the target's own text, so the target alone is always right: this is stricter than, "
    "and different from, accuracy."
)


def shown(profile: ThresholdProfile) -> str:
    """Returns counts and bounds on the certification part, and how the bounds are to be read."""
    if profile.outcome == "front":
        return _attempt(profile)  # the bounds of its points are in its table
    sentences = (_counts(profile), _bounds(profile), _harm(profile), _selected(profile), _attempt(profile))
    return " ".join(filter(None, sentences))


def scope(profile: ThresholdProfile) -> str:
    """Returns what the figures do not cover, and how many texts may have been cut short or end in a loop."""
    return " ".join(filter(None, (_tested_scope(profile), _cut_short(profile), _repeating(profile))))


def is_bounded_front(profile: ThresholdProfile) -> bool:
    """Returns whether points of the curve have simultaneous bounds."""
    return any(point.simultaneous for point in profile.curve)


def rounding(profile: ThresholdProfile) -> str:
    """Returns how often the lossless rule itself flips an outcome; empty where that was not measured."""
    churn = profile.numerical_churn
    if churn is None:
        return ""
    return (
        f"Rounding alone (the lossless rule compared with the target) changed {churn.texts_changed} of "
        f"{churn.problems} texts and flipped {churn.outcomes_flipped} outcomes, so it flips "
        f"{Floor.of(churn.outcomes_flipped, churn.problems).bound_in_words}."
    )


def _counts(profile: ThresholdProfile) -> str:
    c = profile.certificate
    if c.guarantee == "none":
        return ""  # there is no certification part
    if not c.problems:
        return _why_no_counts(profile)
    seeds = f", {c.seeds} seeds each" if c.seeds > 1 else ""
    part = f"On the certification part ({c.problems} problems that the search never saw{seeds})"
    if c.lossless:
        return f"{part} the target alone solved {percent(c.accuracy)}{_at_least(c.accuracy_lower_bound)}."
    return f"{part}: both right {c.both_right}, lost {c.lost}, gained {c.gained}, both wrong {c.both_wrong}."


def _why_no_counts(profile: ThresholdProfile) -> str:
    if profile.certificate.attempt is not None:
        return "What was tested on the certification part is not in this profile."
    why = "no attempt was needed" if profile.outcome in MET else "no setting was worth an attempt"
    return f"Nothing was decoded on the certification part: {why}."


def _bounds(profile: ThresholdProfile) -> str:
    """Retention and accuracy, whichever of them was requested."""
    c = profile.certificate
    both = (("a retention", c.retention, c.lower_bound), ("an accuracy", c.accuracy, c.accuracy_lower_bound))
    figures = [f"{name} of {percent(share)}{_at_least(low)}" for name, share, low in both if share is not None]
    return f"That is {' and '.join(figures)}." if figures and not c.lossless else ""


def _at_least(low: float | None) -> str:
    return "" if low is None else f" (at least {bound(low)})"


def _harm(profile: ThresholdProfile) -> str:
    """Right answers lost, which gains hide in a retention, and the difference in accuracy."""
    c = profile.certificate
    if c.harm is None or c.harm_upper_bound is None or c.difference is None:
        return ""
    interval = ""
    if c.difference_interval is not None:
        interval = f" ({points_between(c.difference_interval)} at {exact(c.confidence)} confidence)"
    return (
        f"Of the target's right answers, {percent(c.harm)} were lost (at most {at_most(c.harm_upper_bound)}); accuracy "
        f"changed by {points(c.difference)} percentage points{interval}."
    )


def _selected(profile: ThresholdProfile) -> str:
    """Selection effects that the bounds do not account for."""
    c = profile.certificate
    if not was_selected(profile) or not c.problems:
        return ""
    several = "several" if c.frozen is None else c.frozen
    return (
        f"Each bound (at least, at most) holds individually at {confidence(c.level)} confidence and is not corrected "
        f"for the choice among the {several} frozen settings."
    )


def _attempt(profile: ThresholdProfile) -> str:
    c = profile.certificate
    if c.attempt is None:
        return ""
    return f"This was attempt {c.attempt} to certify on these problems, tested at level {level(c.level)}."


def _tested_scope(profile: ThresholdProfile) -> str:
    """The population that tested figures hold for; empty where nothing was tested."""
    c = profile.certificate
    if not c.problems and not is_bounded_front(profile):
        return ""
    figures = f"These figures hold for one task and one grader, {LIKE[c.guarantee]}; they say nothing about others."
    return f"{_AGREEMENT} {figures}" if by_agreement(profile) else figures


def by_agreement(profile: ThresholdProfile) -> bool:
    """Whether right means agreement with the target's own text."""
    return profile.task.partition(":")[0] == "agreement"


def _cut_short(profile: ThresholdProfile) -> str:
    cut = profile.truncation
    if cut is None or not cut.target + cut.chosen:
        return ""
    return (
        f"The limit of {cut.max_new_tokens} new tokens, or the end of the context, was reached by "
        f"{_shares(profile, cut)}, which may be cut short."
    )


def _repeating(profile: ThresholdProfile) -> str:
    loops = profile.repetition
    if loops is None or not loops.target + loops.chosen:
        return ""
    return f"A loop, one passage three times or more in a row, is the end of {_shares(profile, loops)}."


def _shares(profile: ThresholdProfile, counts: TextCounts) -> str:
    fuzzy = profile.threshold is not None or profile.estimate is not None
    target, chosen = (percent(count / counts.texts) for count in (counts.target, counts.chosen))
    whose = "the fuzzy setting" if fuzzy else "sd"
    return f"{target} of the target's texts and {chosen} of {whose}'s ({counts.texts:,} texts each)"
