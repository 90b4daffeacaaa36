"""The opening of a run's page: the verdict in one plain sentence, what it rests on, and the main figures."""

from __future__ import annotations

from fsd_calib.formatting import NONE, bound, exact, interval, pace, percent, threshold
from fsd_calib.report.evidence import LIKE
from fsd_calib.report.rows import own_threshold
from fsd_calib.report.summary import drafts, sd_draft_length
from fsd_calib.report.verdict import unbound, verdict
from fsd_collectors.pages.blocks import Section, Tone, Verdict
from fsd_collectors.pages.sheet import Sheet
from fsd_decoding.profile.threshold_profile import ThresholdProfile

_BADGES: dict[str, tuple[str, Tone]] = {
    "certified": ("Certified", "good"), "not-certified": ("Not certified", "bad"), "too-slow": ("Too slow", "bad"),
    "lossless-suffices": ("Lossless decoding suffices", "good"), "untested": ("Untested", "bad"),
    "front": ("A front to choose from", ""),
}  # fmt: skip


def verdict_section(profile: ThresholdProfile) -> Section:
    """Returns the section."""
    badge, tone = _BADGES[profile.outcome]
    if not profile.bound:
        badge, tone = unbound(profile)[0].upper() + unbound(profile)[1:], "bad"
    opened = Verdict(badge, plain_sentence(profile), tuple(verdict(profile).splitlines()), tone)
    return Section("verdict", "What was found", "", (opened, main_figures(profile)))


def plain_sentence(profile: ThresholdProfile) -> str:
    """Returns in one sentence what was asked, what was found, whether it is certified, and what that does not cover."""
    covers = f"this holds {LIKE[profile.certificate.guarantee]} and this grader, and says nothing about other tasks"
    if not profile.certificate.certified or not profile.bound:
        covers = "nothing is certified"
    return f"Asked {_asked(profile)}; found {_found(profile)}; {covers}."


def _asked(profile: ThresholdProfile) -> str:
    c, speed = profile.certificate, profile.speed
    if c.wanted is not None and c.acc == "absolute":
        return f"for the fastest setting with at least {exact(c.wanted)} accuracy"
    if c.wanted is not None:
        return f"for the fastest setting that keeps at least {exact(c.wanted)} of the target's accuracy"
    if speed.wanted is not None:
        return f"for the most accurate setting that makes at least {speed.wanted:g} {speed.unit}"
    return "for the whole front of accuracy and speed"


def _found(profile: ThresholdProfile) -> str:
    speed = profile.speed
    if profile.threshold is not None:
        kept = percent(profile.certificate.retention if profile.certificate.retention is not None else None)
        low = profile.certificate.lower_bound
        keeps = "" if kept == NONE else f", which kept {kept}" + ("" if low is None else f" (at least {bound(low)})")
        faster = f"{speed.chosen / speed.target:.1f} times as fast as the target alone"
        return (
            f"{profile.rule} at T = {threshold(profile.threshold)} on {profile.divergence} with "
            f"{drafts(profile)}{keeps} and is {faster}"
        )
    if profile.outcome == "front":
        return "the points below, to choose from"
    if profile.outcome == "lossless-suffices":
        return f"that plain sd suffices, which makes {pace(speed.sd)} {speed.unit} without any loss"
    return "no setting that was shown to do so, so decoders of this profile decode losslessly"


def main_figures(profile: ThresholdProfile) -> Sheet:
    """Returns the target, `sd` and the chosen setting side by side."""
    c, speed = profile.certificate, profile.speed
    estimate = profile.estimate
    fuzzy = profile.threshold is not None or estimate is not None
    rows = [
        ("target alone", percent(profile.accuracy.target), NONE, NONE, *_speed(profile, "target")),
        (f"sd (lossless), L = {sd_draft_length(profile)}", NONE, NONE, pace(profile.tokens_per_round.sd, 2),
         *_speed(profile, "sd")),
    ]  # fmt: skip
    if fuzzy:
        retention = c.retention if c.retention is not None or estimate is None else estimate.retention
        low = "" if c.lower_bound is None else f"\n≥ {bound(c.lower_bound)}"
        label = "" if profile.threshold is not None else "estimate, not certified: "
        rows.append((
            f"{label}{profile.rule}, T = {threshold(own_threshold(profile))}, {drafts(profile)}",
            percent(profile.accuracy.chosen), percent(retention) + low, pace(profile.tokens_per_round.chosen, 2),
            *_speed(profile, "chosen"),
        ))  # fmt: skip
    marked = frozenset({2}) if profile.threshold is not None else frozenset[int]()
    headings = ("", "accuracy", "retention", "tokens/round", speed.unit, "times the target")
    return Sheet("", headings, tuple(rows), marked=marked)


def _speed(profile: ThresholdProfile, which: str) -> tuple[str, str]:
    speed = profile.speed
    value = getattr(speed, which)
    ends = "" if speed.intervals is None else f"\n{interval(getattr(speed.intervals, which))}"
    return pace(value) + ends, f"{value / speed.target:.2f}×"
