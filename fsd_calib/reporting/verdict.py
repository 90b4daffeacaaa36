"""What a calibration showed and what it did not, in plain sentences. Knows the profile alone."""

from __future__ import annotations

from fsd_calib.reporting.numbers import bound, exact, interval, percent, tokens
from fsd_calib.reporting.summary import drafts, sd_draft_length
from fsd_decoding.profile import ThresholdProfile

_LIKE = {"population": "on problems like these", "dataset": "on these very problems", "none": ""}


def verdict(profile: ThresholdProfile) -> str:
    """The outcome first, then what it rests on; a line each."""
    found = (_SAID[profile.outcome](profile), _gain(profile), _speed_asked(profile))
    shown = () if profile.outcome == "front" else (_counts(profile), _bounds(profile), _attempt(profile))
    lines = (" ".join(filter(None, sentences)) for sentences in (found, shown, (_floor(profile),)))
    return "\n".join(filter(None, lines))


def effort_line(profile: ThresholdProfile) -> str:
    """How much was decoded, and how much that saved; empty where it is not known."""
    if profile.effort is None:
        return ""
    work = profile.effort.total
    return f"decoded {work.decoded:,} problems ({tokens(work.decoded_tokens)}), reused {work.reused:,} decodings"


def _certified(profile: ThresholdProfile) -> str:
    c = profile.certificate
    kept = _claim(profile, bound(c.lower_bound) if c.wanted is None else exact(c.wanted))
    return f"Certified at {exact(c.confidence)} confidence: {_chosen(profile)} {kept} {_LIKE[c.guarantee]}."


def _not_certified(profile: ThresholdProfile) -> str:
    c = profile.certificate
    said = "Not certified: what was tested has no bound."
    if c.wanted is not None:
        shown = _claim(profile, exact(c.wanted)).replace("keeps", "to keep").replace("solves", "to solve")
        said = f"Not certified: at {exact(c.confidence)} confidence no threshold was shown {shown}."
    return " ".join(filter(None, (said, _runs_lossless(profile), _guess(profile), _needed(profile))))


def _lossless_suffices(profile: ThresholdProfile) -> str:
    speed, at = profile.speed, f"(L = {sd_draft_length(profile)})"
    if speed.wanted is not None:
        said = f"Plain sd already makes {speed.sd:.1f} {speed.unit} {at}: nothing need be lost."
    else:
        said = (
            f"No fuzzy setting that keeps the accuracy is faster than plain sd, which makes {speed.sd:.1f} "
            f"{speed.unit} {at}: nothing need be lost."
        )
    return f"{said} Decoders that follow this profile run {profile.effective_rule}."


def _too_slow(profile: ThresholdProfile) -> str:
    said = "Too slow: nothing that was measured is as fast as was asked."
    return " ".join(filter(None, (said, _runs_lossless(profile), _guess(profile))))


def _untested(profile: ThresholdProfile) -> str:
    return (
        f"Untested: {_chosen(profile)} was chosen by how it measured, and no problems were kept to test it on "
        "(--guarantee none). A choice looks better on the problems it was made on than it is."
    )


def _front(profile: ThresholdProfile) -> str:
    said = "No single point was asked for: the front is below, to choose from with ThresholdProfile.at()."
    if any(point.simultaneous for point in profile.curve):
        confidence = exact(profile.certificate.confidence)
        said += f" Its bounds hold all at once at {confidence} confidence, so any choice by them stays certified."
    return f"{said} {_runs_lossless(profile)}"


_SAID = {
    "certified": _certified, "not-certified": _not_certified, "lossless-suffices": _lossless_suffices,
    "too-slow": _too_slow, "untested": _untested, "front": _front,
}  # fmt: skip


def _chosen(profile: ThresholdProfile) -> str:
    by = "" if profile.policy is None else f", moved by {profile.policy}"
    return f"{profile.rule} at T = {profile.threshold:.4g} ({profile.divergence}, {drafts(profile)}{by})"


def _claim(profile: ThresholdProfile, share: str) -> str:
    if profile.certificate.acc == "absolute" and profile.certificate.wanted is not None:
        return f"solves at least {share}"
    return f"keeps at least {share} of the target's accuracy"


def _runs_lossless(profile: ThresholdProfile) -> str:
    return f"Decoders that follow this profile run the lossless rule {profile.effective_rule}."


def _guess(profile: ThresholdProfile) -> str:
    guess = profile.estimate
    if guess is None:
        return ""
    low = "" if guess.lower_bound is None else f", lower bound {bound(guess.lower_bound)}"
    by = "" if profile.policy is None else f" moved by {profile.policy}"
    return f"The estimate is T = {guess.threshold:.4g}{by}: retention {percent(guess.retention)}{low}."


def _needed(profile: ThresholdProfile) -> str:
    """How many problems would have certified what was tested, had they shown the same shares."""
    from fsd_calib.certifying.levels import attempt_level
    from fsd_calib.certifying.power import problems_needed

    c = profile.certificate
    if c.wanted is None or c.retention is None:
        return ""
    solved = (c.both_right + c.gained) / c.total
    truth = {"accuracy": 1.0, "churn": 1 - solved, "retention": solved}  # absolute: of a target that is always right
    if c.acc == "retention":
        right, flipped = (c.both_right + c.lost) / c.total, (c.lost + c.gained) / c.total
        truth = {"accuracy": right, "churn": flipped, "retention": c.retention}
    needed = problems_needed(**truth, wanted=c.wanted, delta=attempt_level(c.confidence, (c.attempt or 0) + 1))
    if needed is None:
        what = "retention" if c.acc == "retention" else "accuracy"
        return f"At this {what} no number of problems would certify it."
    part = f"about {needed:,} problems on the certification part"
    return f"At these shares {part} would certify it 4 times in 5, in the next attempt."


def _gain(profile: ThresholdProfile) -> str:
    """How much faster, where there is something to be glad of."""
    if profile.threshold is None:
        return ""
    speed, paces, sure = profile.speed, profile.tokens_per_round, profile.speed.intervals
    over_sd, over_target = f"{speed.chosen / speed.sd:.2f}x", f"{speed.chosen / speed.target:.2f}x"
    if sure is not None:
        over_sd += f" ({interval(sure.over_sd, 2)})"
        over_target += f" ({interval(sure.over_target, 2)})"
    return (
        f"It makes {paces.chosen / paces.sd:.2f}x the tokens a round of sd, {over_sd} its {speed.unit} and "
        f"{over_target} those of the target alone."
    )


def _speed_asked(profile: ThresholdProfile) -> str:
    speed = profile.speed
    if speed.wanted is None:
        return ""
    made = speed.sd if profile.outcome == "lossless-suffices" else speed.chosen
    compared = "reached" if made >= speed.wanted else "not reached"
    return f"At least {speed.wanted:g} {speed.unit} were asked for, {compared}: {made:.1f}."


def _counts(profile: ThresholdProfile) -> str:
    c = profile.certificate
    if c.guarantee == "none":
        return ""  # there is no such part
    if not c.problems:
        return "Nothing was decoded on the certification part: nothing found was worth an attempt."
    seeds = f", {c.seeds} seeds each" if c.seeds > 1 else ""
    return (
        f"On the certification part ({c.problems} problems that the search never saw{seeds}): "
        f"both right {c.both_right}, lost {c.lost}, gained {c.gained}, both wrong {c.both_wrong}."
    )


def _bounds(profile: ThresholdProfile) -> str:
    """Retention and plain accuracy, whichever was asked for."""
    c, shown = profile.certificate, []
    for name, share, low in (
        ("retention", c.retention, c.lower_bound),
        ("accuracy", c.accuracy, c.accuracy_lower_bound),
    ):
        if share is not None:
            shown.append(f"{name} {percent(share)}" + ("" if low is None else f" (at least {bound(low)})"))
    return f"That is {' and '.join(shown)}." if shown else ""


def _attempt(profile: ThresholdProfile) -> str:
    c = profile.certificate
    if c.attempt is None:
        return ""
    return f"Attempt {c.attempt} to certify on these problems, tested at level {c.level:.3g}."


def _floor(profile: ThresholdProfile) -> str:
    churn = profile.numerical_churn
    if churn is None:
        return ""
    return (
        f"Rounding alone (the lossless rule against the target) changed {churn.texts_changed} of {churn.problems} "
        f"texts and flipped {churn.outcomes_flipped} outcomes: nothing can be told from the target more finely."
    )
