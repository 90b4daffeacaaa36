"""The verdict on a calibration, in sentences: the outcome first, then the evidence for it."""

from __future__ import annotations

from fsd_calib.formatting import bound, exact, in_trees, interval, percent, tokens
from fsd_calib.report.evidence import LIKE, by_agreement, is_bounded_front, rounding, scope, shown
from fsd_calib.report.figures import draft_among, drafts, sd_draft_length
from fsd_calib.report.timing import gain, interval_scope, over_sd
from fsd_decoding.profile.costs import Speed
from fsd_decoding.profile.threshold_profile import ThresholdProfile


def verdict(profile: ThresholdProfile) -> str:
    """Returns the outcome, the evidence, its scope and what rounding alone changes, a line each."""
    outcome = " ".join(filter(None, (_OUTCOMES[profile.outcome](profile), _gain(profile), _requested_speed(profile))))
    outcome = outcome if profile.bound else f"{unbound(profile)}. The profile says: {outcome}"
    return "\n".join(filter(None, (outcome, shown(profile), scope(profile), rounding(profile))))


def unbound(profile: ThresholdProfile) -> str:
    """Returns in a few words why nothing certifies a profile that its digest does not bind."""
    return "edited: not certified" if profile.edited else "no digest: not certified"


def effort_line(profile: ThresholdProfile) -> str:
    """Returns how much was decoded and how much was reused; empty where that is not known."""
    if profile.effort is None:
        return ""
    work = profile.effort.total
    return f"decoded {work.decoded:,} problems ({tokens(work.decoded_tokens)}), reused {work.reused:,} decodings"


def _certified(profile: ThresholdProfile) -> str:
    c = profile.certificate
    kept = _claim(profile, bound(c.lower_bound) if c.wanted is None else exact(c.wanted))
    return f"Certified at {exact(c.confidence)} confidence: {_chosen(profile)} {kept} {LIKE[c.guarantee]}."


def _not_certified(profile: ThresholdProfile) -> str:
    c, subject = profile.certificate, "no threshold"
    outcome = "Not certified: what was tested has no bound."
    if c.lossless:
        subject = "not even the target alone, and so no lossless decoding,"
    if c.wanted is not None:
        claim = _claim(profile, exact(c.wanted), keeps="to keep", reaches="to reach")
        outcome = f"Not certified: at {exact(c.confidence)} confidence {subject} was shown {claim}."
    sentences = (outcome, _untried(profile), _runs_lossless(profile), _estimate(profile), _needed(profile))
    return " ".join(filter(None, sentences))


def _untried(profile: ThresholdProfile) -> str:
    if profile.effort is None or profile.effort.trials:
        return ""
    return "Nothing was tried: no setting was expected both to decode faster and to pass."


def _lossless_suffices(profile: ThresholdProfile) -> str:
    speed, c = profile.speed, profile.certificate
    pace = f"{speed.sd:.1f} {speed.unit} (L = {sd_draft_length(profile)}{in_trees(profile.sd_tree)})"
    than = f"plain sd, which {_makes(speed)} {pace}, so there is no need to lose accuracy."
    outcome = f"No fuzzy setting that keeps the requested accuracy was found to be faster than {than}"
    if speed.wanted is not None:
        outcome = f"Plain sd already makes {pace}, so there is no need to lose accuracy. {_no_faster(profile)}"
    elif c.lossless and c.wanted is not None:
        outcome = (
            f"At {exact(c.confidence)} confidence lossless decoding {_claim(profile, exact(c.wanted))} "
            f"{LIKE[c.guarantee]}. No fuzzy setting was shown both to do so and to be faster than {than}"
        )
    elif c.acc == "absolute" and c.guarantee == "none":
        outcome += " Whether plain sd reaches the requested accuracy was not tested (--guarantee none)."
    elif profile.estimate is not None:
        outcome = f"{_no_faster(profile)} There is no need to lose accuracy."
    return f"{outcome.strip()} Decoders that follow this profile run {profile.effective_rule}."


def _makes(speed: Speed) -> str:
    return "makes" if speed.timed else "is forecast to make"


def _no_faster(profile: ThresholdProfile) -> str:
    """On the setting that would have been chosen, had it been faster."""
    estimate, c, speed = profile.estimate, profile.certificate, profile.speed
    if estimate is None:
        return ""
    tested = "was chosen on the tuning part, untested"
    if estimate.lower_bound is not None:
        kept = _claim(profile, bound(c.lower_bound) if c.wanted is None else exact(c.wanted))
        tested = f"was tested and {kept} {LIKE[c.guarantee]} ({exact(c.confidence)} confidence)"
    return (
        f"{_setting(profile, estimate.threshold, estimate.draft)} {tested}, but was not shown to be faster than plain "
        f"sd: it {_makes(speed)} {over_sd(speed)} the {speed.unit} of sd, which {_makes(speed)} {speed.sd:.1f} "
        f"(L = {sd_draft_length(profile)}{in_trees(profile.sd_tree)})."
    )


def _too_slow(profile: ThresholdProfile) -> str:
    outcome = "Too slow: the setting that was chosen by its forecast did not reach the requested speed when timed."
    if profile.certificate.guarantee == "none":
        outcome = "Too slow: no setting that was tried reaches the requested speed."
    elif not profile.certificate.problems:
        outcome = "Too slow: no setting that was tried is forecast to reach the requested speed, so none was tested."
    return " ".join(filter(None, (outcome, _runs_lossless(profile), _estimate(profile))))


def _untested(profile: ThresholdProfile) -> str:
    return (
        f"Untested: {_chosen(profile)} was chosen on the tuning part and tested on no other problems (--guarantee "
        "none). A setting looks better on the problems it was chosen on than it is on others."
    )


def _front(profile: ThresholdProfile) -> str:
    outcome = "No single point was requested: choose one from the front below with ThresholdProfile.at()"
    if is_bounded_front(profile):
        confidence = exact(profile.certificate.confidence)
        outcome += f". Its bounds hold simultaneously at {confidence} confidence, so any choice by them is certified."
    elif profile.certificate.guarantee == "none":
        outcome += ", with certified=False, since its points were measured and not tested."
    else:
        outcome = "No fuzzy setting that was tried is expected to be faster than plain sd, so none was bounded."
    return f"{outcome} {_runs_lossless(profile)}"


_OUTCOMES = {
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


def _claim(profile: ThresholdProfile, share: str, keeps: str = "keeps", reaches: str = "reaches") -> str:
    """What is claimed of a setting, by a verb in the form that the sentence takes."""
    if profile.certificate.acc == "absolute" and profile.certificate.wanted is not None:
        return f"{reaches} at least {share} accuracy"
    if by_agreement(profile):
        return f"{keeps} to the target's own text for at least {share} of prompts"
    return f"{keeps} at least {share} of the target's accuracy"


def _runs_lossless(profile: ThresholdProfile) -> str:
    return f"Decoders that follow this profile run the lossless rule {profile.effective_rule}."


def _estimate(profile: ThresholdProfile) -> str:
    estimate = profile.estimate
    if estimate is None:
        return ""
    low = " on the tuning part" if estimate.lower_bound is None else f", lower bound {bound(estimate.lower_bound)}"
    by = "" if profile.policy is None else f" moved by {profile.policy}"
    by += draft_among(profile, estimate.draft)
    return f"The estimate is T = {estimate.threshold:.4g}{by}: retention {percent(estimate.retention)}{low}."


def _needed(profile: ThresholdProfile) -> str:
    """How many problems would certify the tested setting, if they showed the same shares."""
    from fsd_calib.certification.attempt_ledger import attempt_level
    from fsd_calib.certification.power import problems_needed

    c = profile.certificate
    if c.wanted is None or c.retention is None:
        return ""
    solved = (c.both_right + c.gained) / c.total
    truth = {"accuracy": 1.0, "churn": 1 - solved, "retention": solved}  # absolute: as if the target were always right
    if c.acc == "retention":
        right, flipped = (c.both_right + c.lost) / c.total, (c.lost + c.gained) / c.total
        truth = {"accuracy": right, "churn": flipped, "retention": c.retention}
    needed = problems_needed(**truth, wanted=c.wanted, delta=attempt_level(c.confidence, (c.attempt or 0) + 1))
    if needed is None:
        return f"At this {c.acc if c.acc == 'retention' else 'accuracy'} no number of problems would certify it."
    return (
        f"If these shares hold, about {needed:,} certification problems would certify it with probability 80% in the "
        "next attempt."
    )


def _gain(profile: ThresholdProfile) -> str:
    """The speed-up of what decoders run, and whether it is certain."""
    if profile.threshold is None:
        return ""
    paces = profile.tokens_per_round
    faster = "" if _is_faster(profile.speed) else " It was not shown to be faster than sd."
    return f"It makes {paces.chosen / paces.sd:.2f}x the tokens per round of sd, {gain(profile.speed)}.{faster}"


def _is_faster(speed: Speed) -> bool:
    if speed.intervals is None:
        return not speed.timed and speed.over_sd > 1
    return speed.intervals.over_sd[0] > 1


def _requested_speed(profile: ThresholdProfile) -> str:
    speed = profile.speed
    if speed.wanted is None:
        return ""
    which = "sd" if profile.outcome == "lossless-suffices" else "chosen"
    pace = getattr(speed, which)
    compared = "reached" if pace >= speed.wanted else "not reached"
    ends = "" if speed.intervals is None else f" ({interval(getattr(speed.intervals, which))} {interval_scope(speed)})"
    return f"The requested {speed.wanted:g} {speed.unit} were {compared}: {pace:.1f}{ends}."
