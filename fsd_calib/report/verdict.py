"""What a calibration came to, in plain sentences: the outcome, then what it rests on."""

from __future__ import annotations

from fsd_calib.formatting import bound, exact, interval, percent, tokens
from fsd_calib.report.evidence import LIKE, is_bounded_front, reach, rounding, shown
from fsd_calib.report.summary import draft_among, drafts, sd_draft_length
from fsd_calib.report.timing import gain, of_what, over_sd
from fsd_decoding.profile.costs import Speed
from fsd_decoding.profile.threshold_profile import ThresholdProfile


def verdict(profile: ThresholdProfile) -> str:
    """The outcome first, then what it rests on, and how far that goes; a line each."""
    found = " ".join(filter(None, (_SAID[profile.outcome](profile), _gain(profile), _speed_asked(profile))))
    return "\n".join(filter(None, (found, shown(profile), reach(profile), rounding(profile))))


def effort_line(profile: ThresholdProfile) -> str:
    """How much was decoded, and how much that saved; empty where it is not known."""
    if profile.effort is None:
        return ""
    work = profile.effort.total
    return f"decoded {work.decoded:,} problems ({tokens(work.decoded_tokens)}), reused {work.reused:,} decodings"


def _certified(profile: ThresholdProfile) -> str:
    c = profile.certificate
    kept = _claim(profile, bound(c.lower_bound) if c.wanted is None else exact(c.wanted))
    return f"Certified at {exact(c.confidence)} confidence: {_chosen(profile)} {kept} {LIKE[c.guarantee]}."


def _not_certified(profile: ThresholdProfile) -> str:
    c, who = profile.certificate, "no threshold"
    said = "Not certified: what was tested has no bound."
    if c.lossless:
        who = "not even the target alone, and so no lossless decoding,"
    if c.wanted is not None:
        shown = _claim(profile, exact(c.wanted)).replace("keeps", "to keep").replace("solves", "to solve")
        said = f"Not certified: at {exact(c.confidence)} confidence {who} was shown {shown}."
    return " ".join(filter(None, (said, _untried(profile), _runs_lossless(profile), _guess(profile), _needed(profile))))


def _untried(profile: ThresholdProfile) -> str:
    if profile.effort is None or profile.effort.trials:
        return ""
    return "Nothing was tried: no setting was expected both to decode faster and to pass."


def _lossless_suffices(profile: ThresholdProfile) -> str:
    speed, c = profile.speed, profile.certificate
    makes = f"{_makes(speed)} {speed.sd:.1f} {speed.unit} (L = {sd_draft_length(profile)})"
    than = f"plain sd, which {makes}: nothing need be lost."
    said = f"No fuzzy setting that keeps the accuracy asked for was found to be faster than {than}"
    if speed.wanted is not None:
        at = f"(L = {sd_draft_length(profile)})"
        said = f"Plain sd already makes {speed.sd:.1f} {speed.unit} {at}: nothing need be lost. {_no_faster(profile)}"
    elif c.lossless and c.wanted is not None:
        said = (
            f"At {exact(c.confidence)} confidence lossless decoding {_claim(profile, exact(c.wanted))} "
            f"{LIKE[c.guarantee]}. No fuzzy setting was shown both to do so and to be faster than {than}"
        )
    elif c.acc == "absolute" and c.guarantee == "none":
        said += " That plain sd solves as many problems as were asked for is untested (--guarantee none)."
    elif profile.estimate is not None:
        said = f"{_no_faster(profile)} Nothing need be lost."
    return f"{said.strip()} Decoders that follow this profile run {profile.effective_rule}."


def _makes(speed: Speed) -> str:
    return "makes" if speed.timed else "is forecast to make"


def _no_faster(profile: ThresholdProfile) -> str:
    """Of the setting that would have been chosen, had it been faster."""
    guess, c, speed = profile.estimate, profile.certificate, profile.speed
    if guess is None:
        return ""
    tested = "was chosen by how it measured, untested"
    if guess.lower_bound is not None:
        kept = _claim(profile, bound(c.lower_bound) if c.wanted is None else exact(c.wanted))
        tested = f"was tested and {kept} {LIKE[c.guarantee]} ({exact(c.confidence)} confidence)"
    return (
        f"{_setting(profile, guess.threshold, guess.draft)} {tested}, but was not shown to be faster than plain sd: it "
        f"{_makes(speed)} {over_sd(speed)} the {speed.unit} of sd, which {_makes(speed)} {speed.sd:.1f} "
        f"(L = {sd_draft_length(profile)})."
    )


def _too_slow(profile: ThresholdProfile) -> str:
    said = "Too slow: what was chosen by its forecast is slower than was asked when it is timed."
    if profile.certificate.guarantee == "none":
        said = "Too slow: nothing that was tried makes as many tokens a second as were asked for."
    elif not profile.certificate.problems:
        said = "Too slow: nothing that was tried is forecast to be as fast as was asked, so nothing was tested."
    return " ".join(filter(None, (said, _runs_lossless(profile), _guess(profile))))


def _untested(profile: ThresholdProfile) -> str:
    return (
        f"Untested: {_chosen(profile)} was chosen by how it measured, and was tested on no other problems "
        "(--guarantee none). A choice looks better on the problems it was made on than it is."
    )


def _front(profile: ThresholdProfile) -> str:
    said = "No single point was asked for: the front is below, to choose from with ThresholdProfile.at()"
    if is_bounded_front(profile):
        confidence = exact(profile.certificate.confidence)
        said += f". Its bounds hold all at once at {confidence} confidence, so any choice by them stays certified."
    elif profile.certificate.guarantee == "none":
        said += ", where certified=False says that a choice by what merely measured so will do."
    else:
        said = "No fuzzy setting that was tried is expected to be faster than plain sd, so none was bounded."
    return f"{said} {_runs_lossless(profile)}"


_SAID = {
    "certified": _certified, "not-certified": _not_certified, "lossless-suffices": _lossless_suffices,
    "too-slow": _too_slow, "untested": _untested, "front": _front,
}  # fmt: skip


def _chosen(profile: ThresholdProfile) -> str:
    assert profile.threshold is not None
    return _setting(profile, profile.threshold)


def _setting(profile: ThresholdProfile, threshold: float, other_draft: str | None = None) -> str:
    by = "" if profile.policy is None else f", moved by {profile.policy}"
    among = draft_among(profile, other_draft)
    return f"{profile.rule} at T = {threshold:.4g} ({profile.divergence}, {drafts(profile)}{by}{among})"


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
    low = " on the tuning part" if guess.lower_bound is None else f", lower bound {bound(guess.lower_bound)}"
    by = "" if profile.policy is None else f" moved by {profile.policy}"
    by += draft_among(profile, guess.draft)
    return f"The estimate is T = {guess.threshold:.4g}{by}: retention {percent(guess.retention)}{low}."


def _needed(profile: ThresholdProfile) -> str:
    """How many problems would have certified what was tested, had they shown the same shares."""
    from fsd_calib.certification.attempt_ledger import attempt_level
    from fsd_calib.certification.power import problems_needed

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
    """How much faster what decoders run is, or that it may not be."""
    if profile.threshold is None:
        return ""
    paces = profile.tokens_per_round
    faster = "" if _is_faster(profile.speed) else " It was not shown to be faster than sd."
    return f"It makes {paces.chosen / paces.sd:.2f}x the tokens a round of sd, {gain(profile.speed)}.{faster}"


def _is_faster(speed: Speed) -> bool:
    return (speed.chosen / speed.sd if speed.intervals is None else speed.intervals.over_sd[0]) > 1


def _speed_asked(profile: ThresholdProfile) -> str:
    speed = profile.speed
    if speed.wanted is None:
        return ""
    which = "sd" if profile.outcome == "lossless-suffices" else "chosen"
    made = getattr(speed, which)
    compared = "reached" if made >= speed.wanted else "not reached"
    sure = "" if speed.intervals is None else f" ({interval(getattr(speed.intervals, which))} {of_what(speed)})"
    return f"At least {speed.wanted:g} {speed.unit} were asked for, {compared}: {made:.1f}{sure}."
