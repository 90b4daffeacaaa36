"""What the certification part showed beside the outcome, and how far that goes, in plain sentences."""

from __future__ import annotations

from fsd_calib.calibration.numerical_floor import Floor
from fsd_calib.formatting import at_most, bound, confidence, exact, level, percent, points, points_between
from fsd_calib.report.summary import was_selected
from fsd_decoding.profile.threshold_profile import ThresholdProfile

LIKE = {"population": "on problems like these", "dataset": "on these very problems", "none": ""}


def shown(profile: ThresholdProfile) -> str:
    """Counts, bounds, and what the bounds leave out."""
    if profile.outcome == "front":
        return _attempt(profile)  # its points' bounds stand in its table
    said = (_counts(profile), _bounds(profile), _harm(profile), _selected(profile), _attempt(profile))
    return " ".join(filter(None, said))


def reach(profile: ThresholdProfile) -> str:
    """What the figures do not speak of, and texts that may have been cut short."""
    return " ".join(filter(None, (_scope(profile), _cut_short(profile))))


def is_bounded_front(profile: ThresholdProfile) -> bool:
    return any(point.simultaneous for point in profile.curve)


def rounding(profile: ThresholdProfile) -> str:
    """How often the lossless rule itself flips an outcome."""
    churn = profile.numerical_churn
    if churn is None:
        return ""
    return (
        f"Rounding alone (the lossless rule against the target) changed {churn.texts_changed} of {churn.problems} "
        f"texts and flipped {churn.outcomes_flipped} outcomes, so of all outcomes it flips "
        f"{Floor.of(churn.outcomes_flipped, churn.problems).below}."
    )


def _counts(profile: ThresholdProfile) -> str:
    c = profile.certificate
    if c.guarantee == "none":
        return ""  # there is no such part
    if not c.problems:
        return _nothing_counted(profile)
    seeds = f", {c.seeds} seeds each" if c.seeds > 1 else ""
    part = f"On the certification part ({c.problems} problems that the search never saw{seeds})"
    if c.lossless:
        return f"{part} the target alone solved {percent(c.accuracy)}{_at_least(c.accuracy_lower_bound)}."
    return f"{part}: both right {c.both_right}, lost {c.lost}, gained {c.gained}, both wrong {c.both_wrong}."


def _nothing_counted(profile: ThresholdProfile) -> str:
    if profile.certificate.attempt is not None:
        return "What was tested on the certification part is not in this profile."
    why = "no attempt was needed" if profile.met else "nothing found was worth an attempt"
    return f"Nothing was decoded on the certification part: {why}."


def _bounds(profile: ThresholdProfile) -> str:
    """Retention and plain accuracy, whichever was asked for."""
    c = profile.certificate
    both = (("retention", c.retention, c.lower_bound), ("accuracy", c.accuracy, c.accuracy_lower_bound))
    shown = [f"{name} {percent(share)}{_at_least(low)}" for name, share, low in both if share is not None]
    return f"That is {' and '.join(shown)}." if shown and not c.lossless else ""


def _at_least(low: float | None) -> str:
    return "" if low is None else f" (at least {bound(low)})"


def _harm(profile: ThresholdProfile) -> str:
    """What a net figure hides, and the same difference not as a ratio."""
    c = profile.certificate
    if c.harm is None or c.harm_upper_bound is None or c.difference is None:
        return ""
    sure = ""
    if c.difference_interval is not None:
        sure = f" ({points_between(c.difference_interval)} at {exact(c.confidence)} confidence)"
    return (
        f"Of the target's right answers {percent(c.harm)} were lost (at most {at_most(c.harm_upper_bound)}); accuracy "
        f"changed by {points(c.difference)} percentage points{sure}."
    )


def _selected(profile: ThresholdProfile) -> str:
    """What each bound leaves out."""
    c = profile.certificate
    if not was_selected(profile) or not c.problems:
        return ""
    several = "several settings" if c.frozen is None else f"{c.frozen} settings"
    return (
        f"Each bound (at least, at most) holds by itself at {confidence(c.level)} confidence, not corrected for the "
        f"choice among the {several} that were frozen."
    )


def _attempt(profile: ThresholdProfile) -> str:
    c = profile.certificate
    if c.attempt is None:
        return ""
    return f"Attempt {c.attempt} to certify on these problems, tested at level {level(c.level)}."


def _scope(profile: ThresholdProfile) -> str:
    """How far what was tested goes."""
    c = profile.certificate
    if not c.problems and not is_bounded_front(profile):
        return ""
    return f"These figures are of one task and one grader, {LIKE[c.guarantee]}; they say nothing of others."


def _cut_short(profile: ThresholdProfile) -> str:
    cut = profile.truncation
    if cut is None or not cut.target + cut.chosen:
        return ""
    fuzzy = profile.threshold is not None or profile.estimate is not None
    target, chosen = (percent(count / cut.texts) for count in (cut.target, cut.chosen))
    return (
        f"The limit of {cut.max_new_tokens} new tokens was reached by {target} of the target's texts and {chosen} of "
        f"{'the fuzzy setting' if fuzzy else 'sd'}'s, {cut.texts:,} each: these may be cut short."
    )
