"""The opening of a run's page: the verdict in one plain sentence, what it rests on, and the main figures."""

from __future__ import annotations

from fsd_calib.report.curve import front
from fsd_calib.report.evidence import LIKE, by_agreement, is_bounded_front
from fsd_calib.report.figures import drafts, main_figures, own_threshold
from fsd_calib.report.rows import setting_name
from fsd_calib.report.verdict import unbound, verdict
from fsd_common.formatting import answer_seconds, bound, exact, interval, pace, percent, threshold
from fsd_common.pages.blocks import Section, Sheet, Tone, Verdict
from fsd_decoding.profile.content import Speed
from fsd_decoding.profile.threshold_profile import ThresholdProfile

_EQUALS = "\u00a0=\u00a0"  # on a phone lines break elsewhere
_BADGES: dict[str, tuple[str, Tone]] = {
    "certified-faster": ("Certified", "good"), "certified-speed-unknown": ("Certified, speed not shown", "good"),
    "certified-slower": ("Certified, slower than sd", "good"), "not-certified": ("Not certified", "bad"),
    "too-slow": ("Too slow", "bad"), "untested": ("Explored, not certified", ""),
    "front": ("A front to choose from", ""), "lossless": ("Lossless", "good"),
}  # fmt: skip


def verdict_section(profile: ThresholdProfile) -> Section:
    """Returns the section."""
    badge, tone = _BADGES[profile.outcome]
    if not profile.bound:
        badge, tone = unbound(profile)[0].upper() + unbound(profile)[1:], "bad"
    opened = Verdict(badge, plain_sentence(profile), tuple(verdict(profile).splitlines()), tone)
    points = (front_sheet(profile),) if profile.outcome == "front" and front(profile) else ()
    return Section("verdict", "What was found", "", (opened, figures_sheet(profile), *points))


def plain_sentence(profile: ThresholdProfile) -> str:
    """Returns in one sentence what was asked, what was found, whether it is certified, and what that does not cover."""
    return f"Asked {_asked(profile)}; found {_found(profile)}; {_covered(profile)}."


def _covered(profile: ThresholdProfile) -> str:
    c = profile.certificate
    where = f"{LIKE[c.guarantee]} and this grader"
    if not profile.bound:
        return "nothing is certified"
    if c.certified:
        return f"this holds {where}, and says nothing about other tasks"
    if profile.outcome == "front" and is_bounded_front(profile):
        return f"their bounds hold together {where}, and say nothing about other tasks"
    if profile.outcome == "lossless" and c.lossless:
        return f"that lossless decoding reaches what was asked holds {where}, and no fuzzy setting is certified"
    return "nothing is certified"


def _asked(profile: ThresholdProfile) -> str:
    c, speed = profile.certificate, profile.speed
    if c.wanted is not None and c.acc == "absolute":
        return f"for the fastest setting with at least {exact(c.wanted)} accuracy"
    if c.wanted is not None and by_agreement(profile):
        return f"for the fastest setting that keeps to the target's own text for at least {exact(c.wanted)} of prompts"
    if c.wanted is not None:
        return f"for the fastest setting that keeps at least {exact(c.wanted)} of the target's accuracy"
    if speed.wanted is not None:
        return f"for the most accurate setting that makes at least {speed.wanted:g} {speed.unit}"
    return "for the whole front of accuracy and speed"


def _found(profile: ThresholdProfile) -> str:
    speed = profile.speed
    value = own_threshold(profile)
    if value is not None and (profile.certificate.certified or profile.outcome == "untested"):
        setting = f"{profile.rule} at T = {threshold(value)} on {profile.divergence} with {drafts(profile)}"
        slower = ", less than was asked" if profile.outcome == "too-slow" else ""
        slower += ", but is slower than sd, which decoders of this profile run" if profile.threshold is None else ""
        return f"{setting}, which {' and '.join(filter(None, (_keeps(profile), _runs(speed))))}{slower}"
    if profile.outcome == "front":
        fuzzy = any(point.threshold is not None for point in front(profile))
        return "the points below, to choose from" if fuzzy else "no fuzzy setting that is expected to be faster than sd"
    if profile.outcome == "lossless":
        makes = "makes" if speed.timed else "is forecast to make"
        return f"that plain sd does so, which {makes} {pace(speed.sd)} {speed.unit} without any loss"
    return "no setting that was shown to do so, so decoders of this profile decode losslessly"


def _keeps(profile: ThresholdProfile) -> str:
    """What the chosen setting kept of what was asked; empty where it was not tested."""
    c = profile.certificate
    absolute = c.acc == "absolute" and c.wanted is not None
    kept, low = (c.accuracy, c.accuracy_lower_bound) if absolute else (c.retention, c.lower_bound)
    if kept is None:
        return ""
    verb, what = ("reached", " accuracy") if absolute else ("kept", "")
    return f"{verb} {percent(kept)}{what}" + ("" if low is None else f" (at least {bound(low)})")


def _runs(speed: Speed) -> str:
    """How fast the chosen setting is, by the clock or by the forecast."""
    times = f"{speed.over_target:.1f} times"
    if speed.wanted is None:
        return f"{'is' if speed.timed else 'is forecast to be'} {times} as fast as the target alone"
    makes = "makes" if speed.timed else "is forecast to make"
    return f"{makes} {pace(speed.chosen)} {speed.unit}, {times} the target's"


def figures_sheet(profile: ThresholdProfile) -> Sheet:
    """Returns the target, `sd` and the chosen setting side by side."""
    speed, figures = profile.speed, main_figures(profile)
    rows = tuple(
        (row.label.replace(" = ", _EQUALS), _bounded(row.accuracy, row.accuracy_bound),
         _bounded(row.retention, row.retention_bound), pace(row.tokens_per_round, 2), *_speed_cells(speed, row.which))
        for row in figures
    )  # fmt: skip
    marked = frozenset(i for i, row in enumerate(figures) if row.which == "chosen" and profile.threshold is not None)
    timed = speed.unit if speed.timed else f"{speed.unit}\n(forecast)"
    answer = () if speed.answer is None else ("seconds\n/answer",)
    headings = ("", "accuracy", "retention", "tokens\n/round", timed, "times\nthe target", *answer)
    return Sheet("", headings, rows, marked=marked)


def front_sheet(profile: ThresholdProfile) -> Sheet:
    """Returns the points to choose among, the highest retention first."""
    rows = tuple(
        (setting_name(point), percent(point.accuracy), _bounded(point.retention, point.lower_bound),
         pace(point.tokens_per_round, 2), pace(point.forecast))
        for point in front(profile)
    )  # fmt: skip
    headings = ("setting", "accuracy", "retention", "tokens\n/round", f"{profile.speed.unit}\n(forecast)")
    return Sheet("The front, to choose from", headings, rows)


def _bounded(share: float | None, low: float | None) -> str:
    return percent(share) if low is None else f"{percent(share)}\n≥ {bound(low)}"


def _speed_cells(speed: Speed, which: str) -> tuple[str, ...]:
    value = getattr(speed, which)
    times = speed.over_target if which == "chosen" else value / speed.target
    ends = "" if speed.intervals is None else f"\n{interval(getattr(speed.intervals, which))}"
    answer = () if speed.answer is None else (answer_seconds(getattr(speed.answer, which)),)
    return pace(value) + ends, f"{times:.2f}×", *answer
