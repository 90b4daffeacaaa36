"""The verdict on a calibration, in sentences: the outcome, the evidence for it, and what that does not cover."""

from __future__ import annotations

from fsd_calib.certification.bounds import Floor
from fsd_calib.report.bounds import difference_to_show, shows_no_more
from fsd_calib.report.figures import (
    answers,
    draft_label,
    draft_length_label,
    gain,
    interval_scope,
    rival_of,
    was_selected,
)
from fsd_common.formatting import (
    at_most,
    attempts,
    bound,
    confidence,
    exact,
    interval,
    level,
    percent,
    points,
    points_between,
    tokens,
)
from fsd_decoding.profile.certificate import GuardEstimate
from fsd_decoding.profile.fields import CERTIFIED, MET, Speed
from fsd_decoding.profile.parts import TextCounts
from fsd_decoding.profile.server_profile import ServerProfile
from fsd_decoding.profile.threshold_profile import ThresholdProfile

Tested = ThresholdProfile | ServerProfile

LIKE = {"population": "on problems like these", "dataset": "on these very problems", "none": ""}

_AGREEMENT = (
    "Right means here to agree with the target's own text, so the target alone is always right: this is stricter than, "
    "and different from, accuracy."
)


def shown(profile: Tested) -> str:
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


def rounding(profile: Tested) -> str:
    """Returns how often the lossless rule itself flips an outcome; empty where that was not measured."""
    churn = profile.numerical_churn
    if churn is None:
        return ""
    return (
        f"Rounding alone (the lossless rule compared with the target) changed {churn.texts_changed} of "
        f"{churn.problems} texts and flipped {churn.outcomes_flipped} outcomes, so it flips "
        f"{Floor.of(churn.outcomes_flipped, churn.problems).bound_in_words}."
    )


def _counts(profile: Tested) -> str:
    c = profile.certificate
    if c.guarantee == "none":
        return ""  # there is no certification part
    if not c.problems:
        return _why_no_counts(profile)
    seeds = f", {c.seeds} seeds each" if c.seeds > 1 else ""
    groups = "" if c.groups is None else f" in {c.groups} groups"
    whole = f" of {c.looks[-1]}" if c.looks and c.looks[-1] > c.problems else ""
    decided = f", decided at look {c.looks.index(c.problems) + 1} of {len(c.looks)}" if len(c.looks) > 1 else ""
    decided += f", going on from {attempts(c.extends)}" if c.extends else ""
    part = f"On the certification part ({c.problems}{whole} problems{groups} that the search never saw{seeds}{decided})"
    if c.lossless:
        return f"{part} the target alone solved {percent(c.accuracy)}{_at_least(c.accuracy_lower_bound)}."
    return f"{part}: {c.counts}."


def _why_no_counts(profile: Tested) -> str:
    if profile.certificate.attempt is not None:
        return "What was tested on the certification part is not in this profile."
    why = "no attempt was needed" if profile.outcome in MET else "no setting was worth an attempt"
    return f"Nothing was decoded on the certification part: {why}."


def _bounds(profile: Tested) -> str:
    """Retention and accuracy, whichever of them was requested."""
    c = profile.certificate
    bounds = (None, None) if shows_no_more(c) else (c.lower_bound, c.accuracy_lower_bound)
    both = ("a retention", c.retention, bounds[0]), ("an accuracy", c.accuracy, bounds[1])
    figures = [f"{name} of {percent(share)}{_at_least(low)}" for name, share, low in both if share is not None]
    if not figures or c.lossless:
        return ""
    given = ""
    if shows_no_more(c):
        given = " The outcomes show the claim, and no more than it."
        if c.looks and c.problems < c.looks[-1]:
            given = " Decoding stopped as soon as the outcomes showed the claim; --looks 1 may show more than it."
    elif c.given_passing:
        given = " The bounds hold given that it passed."
    return f"That is {' and '.join(figures)}.{given}"


def _at_least(low: float | None) -> str:
    return "" if low is None else f" (at least {bound(low)})"


def _harm(profile: Tested) -> str:
    """Right answers lost, which gains hide in a retention, unless said already, and the difference in accuracy."""
    c = profile.certificate
    if c.harm is None or c.harm_upper_bound is None or c.difference is None:
        return ""
    interval = ""
    if (ends := difference_to_show(c)) is not None:
        interval = f" ({points_between(ends)} at {exact(c.confidence)} confidence)"
    share, most = percent(c.harm), at_most(c.harm_upper_bound)
    harm = "" if lost(profile) else f"Of the target's right answers, {share} were lost (at most {most})."
    return f"{harm} Accuracy changed by {points(c.difference)} percentage points{interval}.".strip()


def _selected(profile: Tested) -> str:
    """Selection effects that the bounds do not account for; the claim does."""
    c = profile.certificate
    if not was_selected(profile) or not c.problems or (shows_no_more(c) and c.harm_upper_bound is None):
        return ""
    several = "several" if c.frozen is None else c.frozen
    hold = f"Each bound (at least, at most) holds individually at {confidence(c.level)} confidence and is"
    if c.given_passing:
        which = "at most, interval" if shows_no_more(c) else "at least, at most"
        hold = f"The bounds ({which}) hold together at {exact(c.confidence)} confidence and are"
    return f"{hold} not corrected for the choice among the {several} frozen settings."


def _attempt(profile: Tested) -> str:
    c = profile.certificate
    if c.attempt is None:
        return ""
    subject = "This" if c.history is None else "It"
    sentences = [
        f"{subject} is attempt {c.attempt} at this claim or on these problems, tested at level {level(c.level)}."
    ]
    if c.history is not None:
        h = c.history
        since = f"{h.since:%Y-%m-%d}"
        passed = f"; {h.passed} of the earlier ones passed" if h.asked > 1 else ""
        sentences.insert(0, f"This is certificate {h.asked} asked for this claim of this target{passed}.")
        several = "attempt" if h.attempts == 1 else "attempts"
        sentences.append(
            "The ledger is new: attempts elsewhere before are not known."
            if h.first
            else f"The ledger has {h.attempts} {several} of this target since {since}; others elsewhere are not known."
        )
    if c.dropped:
        sentences.append(f"{c.dropped} problems that an earlier attempt lost and that are gone count as lost.")
    return " ".join(sentences)


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
    whose = "the fuzzy setting" if fuzzy else rival_of(profile).rule
    return f"{target} of the target's texts and {chosen} of {whose}'s ({counts.texts:,} texts each)"


def verdict(profile: ThresholdProfile) -> str:
    """Returns the outcome, the evidence, its scope and what rounding alone changes, a line each."""
    outcome = " ".join(filter(None, (_OUTCOMES[profile.outcome](profile), _gain(profile), _requested_speed(profile))))
    outcome = outcome if profile.bound else f"{unbound(profile)}. The profile says: {outcome}"
    guards = (guarded(profile, guard) for guard in profile.guards)
    lines = (outcome, shown(profile), *guards, scope(profile), rounding(profile))
    return "\n".join(filter(None, lines))


def guard_setting(profile: ThresholdProfile) -> str:
    """Returns which setting decoded the guards; empty: the one that is chosen."""
    return "" if profile.estimate is None else " by the setting of the estimate"


def guarded(profile: ThresholdProfile, guard: GuardEstimate) -> str:
    """Returns what the chosen setting, or that of the estimate, keeps on another task."""
    if guard.retention is None or guard.interval is None:
        return f"Guard {guard.task}: the target solved none of {guard.problems} problems."
    low, high = map(percent, guard.interval)
    return (
        f"Guard {guard.task}: an estimated retention of {percent(guard.retention)}{guard_setting(profile)} ({low} to "
        f"{high} at {exact(guard.confidence)} confidence, on {guard.problems:,} problems). Nothing is certified of it."
    )


def unbound(profile: ThresholdProfile) -> str:
    """Returns in a few words why nothing certifies a profile that its digest does not bind."""
    return "edited: not certified" if profile.edited else "no digest: not certified"


def effort_line(profile: ThresholdProfile) -> str:
    """Returns how much was decoded and how much was reused; empty where that is not known."""
    if profile.effort is None:
        return ""
    work = profile.effort.total
    decoded = f"decoded {work.decoded:,} problems ({tokens(work.decoded_tokens)})"
    return f"{decoded}, reused {work.reused:,} (timing not counted)"


def _certified(profile: ThresholdProfile) -> str:
    c = profile.certificate
    kept = _claim(profile, bound(c.lower_bound) if c.wanted is None else exact(c.wanted))
    harm = f" It {lost(profile)}." if lost(profile) else ""
    return f"Certified at {exact(c.confidence)} confidence: {_chosen(profile)} {kept} {LIKE[c.guarantee]}.{harm}"


def lost(profile: Tested) -> str:
    """Returns what a certified setting lost; empty where that has no bound that holds beside the claim."""
    c = profile.certificate
    if not c.certified or not c.given_passing or c.harm is None or c.harm_upper_bound is None:
        return ""
    most = at_most(c.harm_upper_bound)
    return f"lost {percent(c.harm)} of the target's right answers (at most {most}) before what it gained elsewhere"


def _not_certified(profile: ThresholdProfile) -> str:
    c, subject = profile.certificate, "no threshold"
    if c.guarantee == "none":
        return f"Explored: no setting was found that is expected to decode faster. {_runs_lossless(profile)}"
    outcome = "Not certified: what was tested has no bound."
    if c.lossless:
        subject = "not even the target alone, and so no lossless decoding,"
    if c.wanted is not None:
        claim = _claim(profile, exact(c.wanted), keeps="to keep", reaches="to reach")
        outcome = f"Not certified: at {exact(c.confidence)} confidence {subject} was shown {claim}."
    sentences = (outcome, _untried(profile), _runs_lossless(profile), _estimate(profile), _needed(profile))
    return " ".join(filter(None, sentences))


def _untried(profile: ThresholdProfile) -> str:
    if profile.effort is None or profile.effort.trials or profile.certificate.attempt is not None:
        return ""
    return "Nothing was tried: no setting was expected both to decode faster and to pass."


def _lossless(profile: ThresholdProfile) -> str:
    speed, c = profile.speed, profile.certificate
    rival = rival_of(profile)
    pace = f"{speed.lossless:.1f} {speed.unit} (L = {rival.draft_length}{rival.shape})"
    than = f"plain {rival.rule}, which {_makes(speed)} {pace}, so there is no need to lose accuracy."
    outcome = f"No fuzzy setting that keeps the requested accuracy is expected to be faster than {than}"
    if speed.wanted is not None:
        outcome = f"Plain {rival.rule} already makes {pace}, so there is no need to lose accuracy."
    elif c.lossless and c.wanted is not None:
        outcome = (
            f"At {exact(c.confidence)} confidence lossless decoding {_claim(profile, exact(c.wanted))} "
            f"{LIKE[c.guarantee]}. No fuzzy setting was shown to do so too that is expected to be faster than {than}"
        )
    return f"{outcome} Decoders that follow this profile run {profile.followed.rule}."


def _makes(speed: Speed) -> str:
    return "makes" if speed.timed else "is forecast to make"


def _too_slow(profile: ThresholdProfile) -> str:
    outcome = "Too slow: the setting that was chosen by its forecast did not reach the requested speed when timed."
    if not profile.certificate.problems:
        outcome = "Too slow: no setting that was tried is forecast to reach the requested speed, so none was tested."
    if not profile.certificate.certified:
        return " ".join(filter(None, (outcome, _runs_lossless(profile), _estimate(profile))))
    runs = _runs_lossless(profile) if profile.threshold is None else "Decoders that follow this profile run it."
    again = "fsd-profile retime PROFILE times it again, without an attempt."
    return f"{outcome} {_certified(profile)} {runs} {again}"


def _untested(profile: ThresholdProfile) -> str:
    """What --explore came to."""
    point = next((p for p in profile.curve if p.setting == profile.chosen and p.interval), None)
    estimate = ""
    if point is not None and point.interval is not None:
        low, high = map(percent, point.interval)
        at = f"at {exact(profile.certificate.confidence)} confidence, on {point.problems} problems of the tuning part"
        estimate = f" has an estimated retention of {percent(point.retention)} ({low} to {high} {at})"
    return (
        f"Explored: {_chosen(profile)}{estimate or ' was chosen on the tuning part'}. It looks better on these "
        "problems, which it was chosen on, than on others. Nothing is certified (--explore), and no attempt was spent."
    )


def _front(profile: ThresholdProfile) -> str:
    outcome = "No single point was requested: choose one from the front below with ThresholdProfile.at()"
    if is_bounded_front(profile):
        confidence = exact(profile.certificate.confidence)
        outcome += f". Its bounds hold simultaneously at {confidence} confidence, so any choice by them is certified."
    elif profile.certificate.guarantee == "none":
        outcome += ", with certified=False, since its points were measured and not tested."
    else:
        rule = rival_of(profile).rule
        outcome = f"No fuzzy setting that was tried is expected to be faster than plain {rule}, so none was bounded."
    return f"{outcome} {_runs_lossless(profile)}"


_OUTCOMES = {
    **dict.fromkeys(CERTIFIED, _certified), "not-certified": _not_certified, "too-slow": _too_slow,
    "untested": _untested, "front": _front, "lossless": _lossless,
}  # fmt: skip


def _chosen(profile: ThresholdProfile) -> str:
    chosen = profile.chosen
    by = "" if chosen.policy is None else f", moved by {chosen.policy}"
    drafts = f"{draft_length_label(profile)}{by}{draft_label(profile, chosen.draft)}"
    return f"{chosen.rule} at T = {chosen.threshold:.4g} ({chosen.score}, {drafts})"


def _claim(profile: ThresholdProfile, share: str, keeps: str = "keeps", reaches: str = "reaches") -> str:
    """What is claimed of a setting, by a verb in the form that the sentence takes."""
    if profile.certificate.acc == "absolute" and profile.certificate.wanted is not None:
        return f"{reaches} at least {share} accuracy"
    if by_agreement(profile):
        return f"{keeps} to the target's own text for at least {share} of prompts"
    return f"{keeps} at least {share} of the target's accuracy"


def _runs_lossless(profile: ThresholdProfile) -> str:
    return f"Decoders that follow this profile run the lossless rule {profile.followed.rule}."


def _estimate(profile: ThresholdProfile) -> str:
    estimate = profile.estimate
    if estimate is None:
        return ""
    low = " on the tuning part" if estimate.lower_bound is None else f", lower bound {bound(estimate.lower_bound)}"
    by = "" if profile.policy is None else f" moved by {profile.policy}"
    by += draft_label(profile, estimate.draft)
    return f"The estimate is T = {estimate.threshold:.4g}{by}: retention {percent(estimate.retention)}{low}."


def _needed(profile: ThresholdProfile) -> str:
    """How many problems would certify the tested setting, if they showed the same shares."""
    from fsd_calib.certification.looks import Looks
    from fsd_calib.certification.power import problems_needed
    from fsd_decoding.profile.certificate import attempt_level

    c = profile.certificate
    if c.wanted is None or c.retention is None:
        return ""
    counts = c.counts
    solved = counts.solved / counts.total
    truth = {"accuracy": 1.0, "churn": 1 - solved, "retention": solved}  # absolute: as if the target were always right
    if c.acc == "retention":
        truth = {"accuracy": counts.right / counts.total, "churn": counts.churn, "retention": c.retention}
    looks = Looks.evenly(c.looks[-1], len(c.looks)) if c.looks else None
    delta = attempt_level(c.confidence, (c.attempt or 0) + 1)
    needed = problems_needed(**truth, wanted=c.wanted, delta=delta, looks=looks)
    if needed is None:
        return f"At this {c.acc if c.acc == 'retention' else 'accuracy'} no number of problems would certify it."
    return (
        f"If these shares hold, about {needed:,} certification problems would certify it with probability 80% in an "
        "attempt on others. With more problems the same command goes on from this one; --plan says what that can show."
    )


def _gain(profile: ThresholdProfile) -> str:
    """The speed of a setting that is certified or followed, and what the clock showed of it."""
    if not (profile.certificate.certified or profile.outcome == "untested"):
        return ""
    paces = profile.tokens_per_round
    more = f"{paces.chosen / paces.lossless:.2f}x the tokens per round of {rival_of(profile).rule}"
    by = f"It makes {more}, {gain(profile)}."
    return " ".join(filter(None, (by, answers(profile), _shown_speed(profile))))


def _shown_speed(profile: ThresholdProfile) -> str:
    """What decoders run where it is not known to be faster than lossless, or than requested, and how to know more."""
    ends, follow = profile.speed.intervals, "decoders that follow this profile run"
    rival = rival_of(profile).rule
    again = f"{follow} it, and fsd-profile retime PROFILE times it again, in minutes and without an attempt"
    if ends is None:
        why = "Too little was timed to tell how fast it is" if profile.speed.timed else "Nothing was timed"
        return f"{why}: {again}."
    if ends.over_lossless[1] < 1 and profile.threshold is None:
        return f"It was shown to be slower than {rival}, so {follow} {profile.followed.rule}, which loses nothing."
    if ends.over_lossless[1] < 1:
        why = "" if profile.outcome == "untested" else ", which was not shown to do what was requested"
        return f"It was shown to be slower than {rival}{why}; {follow} it all the same."
    if profile.outcome != "certified-faster" and ends.over_lossless[0] <= 1:
        return f"It was not shown to be faster than {rival}, nor slower: {again}."
    open_speed = profile.speed.wanted is not None and ends.chosen[0] < profile.speed.wanted <= ends.chosen[1]
    return f"Its speed may be below what was requested: {again}." if open_speed else ""


def _requested_speed(profile: ThresholdProfile) -> str:
    speed = profile.speed
    if speed.wanted is None:
        return ""
    which = "lossless" if profile.outcome == "lossless" else "chosen"
    pace, ends = getattr(speed, which), speed.intervals
    low, high = (pace, pace) if ends is None else getattr(ends, which)
    known = "" if ends is None else f" ({interval((low, high))} {interval_scope(speed)})"
    wanted = f"the requested {speed.wanted:g} {speed.unit}"
    if low < speed.wanted <= high:
        return f"Whether {wanted} are reached was not shown: {pace:.1f}{known}."
    return f"T{wanted[1:]} were {'reached' if low >= speed.wanted else 'not reached'}: {pace:.1f}{known}."
