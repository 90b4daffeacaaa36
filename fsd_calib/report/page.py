"""The page of a run: its sections, in the order of questions that a reader has."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher

from fsd_calib.report.bounds import bounds_to_show
from fsd_calib.report.charts import (
    accepted_by_length,
    retention_and_speed,
    retention_by_share,
    retention_by_threshold,
    tokens_by_length,
)
from fsd_calib.report.effort_charts import decodings_by_step, seconds_by_step, trials
from fsd_calib.report.figures import (
    busy_note,
    decided_by,
    draft_length_label,
    main_figures,
    meanings,
    rival_of,
    timing_note,
)
from fsd_calib.report.record import Answer as RecordedAnswer
from fsd_calib.report.record import Differing, Rung, RunRecord
from fsd_calib.report.rows import Row
from fsd_calib.report.rows import rows as measured_rows
from fsd_calib.report.run_folder import Run
from fsd_calib.report.tables import details, front
from fsd_calib.report.verdict import LIKE, by_agreement, guard_setting, is_bounded_front, lost, unbound, verdict
from fsd_calib.report.zoom import wanted_retention
from fsd_collectors.report.description import short_name
from fsd_common.formatting import NONE, answer_seconds, bound, exact, interval, pace, percent, threshold
from fsd_common.pages.blocks import (
    Answer,
    Block,
    Legend,
    Page,
    Paragraph,
    Piece,
    Section,
    Sheet,
    ShownToken,
    TextPair,
    Tone,
    Verdict,
)
from fsd_decoding.profile.fields import Speed
from fsd_decoding.profile.threshold_profile import ThresholdProfile

_TIMED = (
    "Filled marks were timed; hollow ones are settings of the search at the speed that the cost model forecasts, times "
    "one factor, by which the chosen setting's forecast would be what was timed: judge those by each other."
)
_FORECAST = "All marks are hollow, since no setting was timed: their speeds are forecasts by the cost model."


def run_page(run: Run) -> Page:
    """Returns the page of a run; what its record would hold and it lacks is named."""
    profile = run.profile
    found = measured_rows(run)
    sections = (
        verdict_section(profile), _speed(run, found), _threshold(run, found), _search(run, found), _lengths(run, found),
        _shares(run, found), _effort(run), settings_section(found, profile), differing_section(run),
        provenance_section(run),
    )  # fmt: skip
    models = f"{short_name(profile.target.id)} with draft {short_name(profile.draft.id)}"
    subtitle = f"{models} on {profile.device} in {profile.dtype}, {profile.created:%Y-%m-%d %H:%M %Z}"
    return Page(f"Calibration of {profile.task}", tuple(filter(None, sections)), subtitle)


def lacking(run: Run, what: str) -> Paragraph:
    """Returns the paragraph in the place of what needs the record of the run."""
    return Paragraph(f"{what} not shown: {run.lacks}.", "note")


def _speed(run: Run, found: list[Row]) -> Section:
    profile = run.profile
    speed = profile.speed
    marks = (
        f"{_TIMED if speed.timed else _FORECAST} Lines through marks are {exact(profile.certificate.confidence)} "
        "intervals, where they are known; a dashed line joins the forecast settings that no other beats in both. The "
        f"axis of retention does not begin at 0. {_of_draft(run)}"
    )
    told = filter(None, (timing_note(speed), busy_note(speed)))
    timing = [Paragraph(f"{line[0].upper()}{line[1:]}.", "note") for line in told]
    return Section(
        "speed", "Accuracy against speed",
        "Further up keeps more of the target's accuracy, further right is faster.",
        (retention_and_speed(profile, found, run.record), Paragraph(marks, "note"), *timing),
    )  # fmt: skip


def _of_draft(run: Run) -> str:
    """What the chart shows of the draft alone, or why it does not."""
    alone = None if run.record is None else run.record.draft_alone
    if alone is None:
        return f"The draft alone is not a mark: {run.lacks or 'it was not measured'}."
    if alone.speed is None:
        return "The draft alone is not a mark, since it was not timed; its accuracy is in the table of all settings."
    return (
        f"The draft alone was measured on {alone.point.problems:,} tuning problems; where it lies beyond the chart, "
        "its mark is at the edge, with an arrow."
    )


def _threshold(run: Run, found: list[Row]) -> Section | None:
    chart = retention_by_threshold(run.profile, found)
    if chart is None:
        return None
    marks = (
        "Hollow marks are estimates, of the tuning part, on which T was chosen; filled ones are of the certification "
        "part, where the thick line reaches down to what the certificate shows."
    )
    return Section(
        "threshold", "Retention against the threshold T",
        "A larger T accepts more drafted tokens that the target would not have written itself.",
        (chart, Paragraph(marks, "note")),
    )  # fmt: skip


def _search(run: Run, found: list[Row]) -> Section:
    blocks: list[Block] = []
    if run.record is None:
        blocks.append(lacking(run, "The trials of the search and the frozen settings are"))
    else:
        chart = trials(run.profile, run.record, found)
        marks = (
            "All marks are estimates of the tuning part. Pale ones: the search does not expect them to meet the goal."
        )
        blocks += [chart, Paragraph(marks, "note")] if chart else [Paragraph("Nothing was searched.", "note")]
        blocks.append(rung_sheet(run.profile, run.record))
    return Section(
        "search", "What each trial and each frozen setting showed",
        "The search tries settings on the tuning part. Some are then frozen, the likeliest to pass first. They are "
        "tested in this order, on problems that the search never saw, until one fails.",
        tuple(blocks),
    )  # fmt: skip


def _lengths(run: Run, found: list[Row]) -> Section:
    accepted = accepted_by_length(found, run.record)
    marks = Paragraph(
        "Marks were decoded on the tuning part; the dashed line replays the chosen T at the other lengths, and the "
        "dotted one is the most that there can be, L + 1.", "note",
    )  # fmt: skip
    return Section(
        "lengths", "Draft length L",
        "A longer draft can make more tokens per round, but the later a token is drafted the more rarely it counts.",
        (tokens_by_length(found, run.record), *((accepted,) if accepted else ()), marks),
    )  # fmt: skip


def _shares(run: Run, found: list[Row]) -> Section:
    if run.record is None:
        blocks: tuple[Block, ...] = (lacking(run, "What T means in shares of tokens is"),)
    else:
        chart = retention_by_share(run.profile, run.record, found)
        blocks = (*((chart,) if chart else ()), scale_sheet(run.record, decided_by(run.profile)))
    return Section(
        "shares", "Scores on one scale",
        f"Thresholds of different scores have no common unit, but the share of {decided_by(run.profile)} that they "
        "accept has: at the same share, the higher mark lost less accuracy.",
        blocks,
    )  # fmt: skip


def _effort(run: Run) -> Section:
    if run.record is None:
        blocks: tuple[Block, ...] = (lacking(run, "Where the time went is"),)
    else:
        counted = any(step.work is not None for step in run.record.steps)
        blocks = (seconds_by_step(run.record.steps), *((decodings_by_step(run.record.steps),) if counted else ()))
    return Section(
        "effort", "Where time and decodings went",
        "Each decoding is kept in a cache with the interval of T in which its text stays the same, so that most of a "
        "search is not decoded anew.",
        blocks,
    )  # fmt: skip


_EQUALS = "\u00a0=\u00a0"  # on a phone lines break elsewhere
_BADGES: dict[str, tuple[str, Tone]] = {
    "certified-faster": ("Certified", "good"), "certified-speed-unknown": ("Certified, speed not shown", "good"),
    "certified-slower": ("Certified, slower than lossless", "good"), "not-certified": ("Not certified", "bad"),
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
    guards = (guard_sheet(profile),) if profile.guards else ()
    return Section("verdict", "What was found", "", (opened, figures_sheet(profile), *points, *guards))


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
    speed, rival = profile.speed, rival_of(profile).rule
    value = profile.chosen.threshold
    if value is not None and (profile.certificate.certified or profile.outcome == "untested"):
        setting = f"{profile.rule} at T = {threshold(value)} on {profile.score} with {draft_length_label(profile)}"
        slower = ", less than was asked" if profile.outcome == "too-slow" else ""
        slower += f", so that decoders of this profile run {rival}" if profile.threshold is None else ""
        showed = ", ".join(filter(None, (_keeps(profile), lost(profile))))
        return f"{setting}, which {showed}{', and ' if showed else ''}{_runs(speed, rival)}{slower}"
    if profile.outcome == "front":
        fuzzy = any(point.setting.threshold is not None for point in front(profile))
        return (
            "the points below, to choose from"
            if fuzzy
            else f"no fuzzy setting that is expected to be faster than {rival}"
        )
    if profile.outcome == "lossless":
        makes = "makes" if speed.timed else "is forecast to make"
        return f"that plain {rival} does so, which {makes} {pace(speed.lossless)} {speed.unit} without any loss"
    return "no setting that was shown to do so, so decoders of this profile decode losslessly"


def _keeps(profile: ThresholdProfile) -> str:
    """What the chosen setting kept of what was asked; empty where it was not tested."""
    c = profile.certificate
    absolute = c.acc == "absolute" and c.wanted is not None
    kept, low = (c.accuracy, bounds_to_show(c)[1]) if absolute else (c.retention, bounds_to_show(c)[0])
    if kept is None:
        return ""
    verb, what = ("reached", " accuracy") if absolute else ("kept", "")
    return f"{verb} {percent(kept)}{what}" + ("" if low is None else f" (at least {bound(low)})")


def _runs(speed: Speed, rival: str) -> str:
    """How fast the chosen setting is, by the clock or by the forecast."""
    times = f"{speed.over_target:.1f} times"
    if speed.wanted is None:
        lossless = f"{speed.over_lossless:.2f} times as fast as {rival}"
        return f"{'is' if speed.timed else 'is forecast to be'} {lossless} and {times} as fast as the target alone"
    makes = "makes" if speed.timed else "is forecast to make"
    return f"{makes} {pace(speed.chosen)} {speed.unit}, {times} the target's"


def figures_sheet(profile: ThresholdProfile) -> Sheet:
    """Returns the target, the fastest lossless rule and the chosen setting side by side."""
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
    return Sheet("", headings, rows, "; ".join(meanings(profile)), marked=marked)


def front_sheet(profile: ThresholdProfile) -> Sheet:
    """Returns the points to choose among, the highest retention first."""
    rows = tuple(
        (str(point.setting), percent(point.accuracy), _bounded(point.retention, point.lower_bound),
         pace(point.tokens_per_round, 2), pace(point.forecast))
        for point in front(profile)
    )  # fmt: skip
    headings = ("setting", "accuracy", "retention", "tokens\n/round", f"{profile.speed.unit}\n(forecast)")
    return Sheet("The front, to choose from", headings, rows)


def guard_sheet(profile: ThresholdProfile) -> Sheet:
    """Returns what was estimated of other tasks."""
    rows = tuple(
        (guard.task, f"{guard.problems:,}", percent(guard.retention),
         NONE if guard.interval is None else " to ".join(map(percent, guard.interval)))
        for guard in profile.guards
    )  # fmt: skip
    note = (
        f"Estimates on problems of other tasks{guard_setting(profile)}, each with an interval of its own. Nothing is "
        "certified of them."
    )
    return Sheet("Guards", ("task", "problems", "retention", "interval"), rows, note)


def _bounded(share: float | None, low: float | None) -> str:
    return percent(share) if low is None else f"{percent(share)}\n≥ {bound(low)}"


def _speed_cells(speed: Speed, which: str) -> tuple[str, ...]:
    value = getattr(speed, which)
    times = speed.over_target if which == "chosen" else value / speed.target
    if which == "lossless" and speed.ratios is not None:  # whose clock need not be that of the tokens/s shown
        times = speed.ratios.over_target / speed.ratios.over_lossless
    ends = "" if speed.intervals is None else f"\n{interval(getattr(speed.intervals, which))}"
    answer = () if speed.answer is None else (answer_seconds(getattr(speed.answer, which)),)
    return pace(value) + ends, f"{times:.2f}×", *answer


_SHARES = (0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)


def rung_sheet(profile: ThresholdProfile, record: RunRecord) -> Sheet:
    """Returns the frozen settings in the order of the test, with what it showed."""
    claim = wanted_retention(profile) if profile.certificate.given_passing else None
    rows = [_rung(number, rung, claim) for number, rung in enumerate(record.rungs, 1)]
    none = "" if rows else "No setting was frozen, so the certification part was not opened."
    headings = ("order", "setting", "result", "problems", "retention", "at least", "lost", "gained", "p-value")
    return Sheet("Frozen settings, in the order of the test", headings, tuple(rows), none, names=3)


def _rung(number: int, rung: Rung, claim: float | None) -> tuple[str, ...]:
    """claim: the retention that a setting which passed has, though its outcomes may show no more."""
    name, c, low = str(rung.setting), rung.counts, rung.lower_bound
    if c is None:
        return str(number), name, "not tested", *[NONE] * 6
    retention = c.retention if c.right else None
    result = "bounded" if rung.passed is None else "passed" if rung.passed else "failed"
    if rung.passed and claim is not None and low is not None:
        low = max(low, claim)
    p_value = NONE if rung.p_value is None else f"{rung.p_value:.2g}"
    return (
        str(number), name, result, f"{rung.problems:,}", percent(retention), bound(low), f"{c.lost}",
        f"{c.gained}", p_value,
    )  # fmt: skip


def scale_sheet(record: RunRecord, decided: str) -> Sheet:
    """Returns the T that accepts a share of what it decides on, by score. `decided`: see `decided_by`."""
    shares = [share for share in _SHARES if any(share in scale.shares for scale in record.scales)]
    rows = []
    for scale in record.scales:
        arm = scale.arm
        by = "" if arm.policy is None else f", {arm.policy.name}"
        at = dict(zip(scale.shares, scale.thresholds, strict=True))
        rows.append((f"{arm.score}{by}{arm.shape}", *(threshold(at.get(share)) for share in shares)))
    headings = ("score", *(f"{100 * share:g}%" for share in shares))
    return Sheet(f"T that accepts a share of the {decided}", headings, tuple(rows),
                 "Along the target's own text, on the tuning part, by score ≤ T alone. –: no T does, as the score is "
                 "infinite too often.")  # fmt: skip


def settings_section(found: Sequence[Row], profile: ThresholdProfile) -> Section:
    """Returns every measured setting in a table that can be sorted."""
    ordered = sorted(found, key=lambda row: (row.point.source != "certification", -(row.forecast or 0.0)))
    headings = ("setting", "part", "T", "L", "retention", "≥", "accuracy", "tokens\n/round", "accepted",
                "tokens/s\n(forecast)", "problems")  # fmt: skip
    marked = frozenset(i for i, row in enumerate(ordered) if row.chosen)
    table = Sheet("", headings, tuple(map(_cells, ordered)), names=2, marked=marked, sortable=True)
    return Section(
        "settings", "All settings",
        "Every setting that was decoded, on each part; click a heading to sort by it. Highlighted: the profile's own. "
        "≥ is the certificate's lower bound of retention, for settings that were tested.",
        (table,),
    )  # fmt: skip


def _cells(row: Row) -> tuple[str, ...]:
    point, setting = row.point, row.setting
    return (
        row.series if setting.threshold is None else f"{setting.rule}, {row.series}", point.source,
        threshold(setting.threshold), str(setting.draft_length) if row.drafts else NONE, percent(point.retention),
        bound(point.lower_bound), percent(point.accuracy), pace(point.tokens_per_round, 2), percent(point.accepted),
        pace(row.forecast), f"{point.problems:,}",
    )  # fmt: skip


def provenance_section(run: Run) -> Section:
    """Returns models, data, settings, certificate, costs and versions."""
    sheets = [Sheet(title.capitalize(), (), tuple(lines.items())) for title, lines in details(run.profile).items()]
    digest = run.profile.digest or "none"
    of_file = Sheet("Profile", (), (("digest", digest), ("schema version", str(run.profile.schema_version))))
    return Section(
        "provenance", "Where this comes from",
        "Models, data, settings and versions, as the profile records them: what another calibration must agree in to "
        "be compared with this one.",
        (*sheets, of_file),
    )  # fmt: skip


_SOURCES = Legend((
    ("exact", "the exact rule accepts it too"), ("fuzzy", "accepted only because D ≤ T"),
    ("fallback", "in place of a rejected token"), ("bonus", "added after a wholly accepted draft"),
))  # fmt: skip
_SUMMARY = 140  # characters of a question


def differing_section(run: Run) -> Section:
    """Returns the section: how many texts differ, and some of them."""
    record = run.record
    blocks: list[Block] = []
    if record is None:
        blocks.append(Paragraph(f"The problems are not shown: {run.lacks}.", "note"))
    else:
        compared = record.differences
        others = compared.texts - len(compared.shown)
        more = f" {len(compared.shown):,} of them are shown." if others else ""
        of = f"{compared.texts:,} of {compared.problems:,} texts on the {compared.source} part differ."
        blocks.append(Paragraph(f"{of}{more}" if compared.texts else f"None of {compared.problems:,} texts differ."))
        if compared.unattributed:
            blocks.append(Paragraph(f"Tokens are not coloured by their source: {compared.unattributed}.", "note"))
        if any(each.sources for each in compared.shown):
            blocks.append(_SOURCES)
        blocks += [_pair(number, each) for number, each in enumerate(compared.shown)]
    return Section(
        "differing", "Problems where target and chosen setting differ",
        "What was lost comes first, then what was gained, then other texts with the same outcome; words that differ "
        "are underlined.",
        tuple(blocks),
    )  # fmt: skip


def _pair(number: int, each: Differing) -> TextPair:
    kind, tone = _outcome(each.target.correct, each.chosen.correct)
    question = " ".join((each.question or each.prompt).split())
    summary = question if len(question) <= _SUMMARY else f"{question[:_SUMMARY]} …"
    target, chosen = _pieces(each.target.text, each.chosen.text)
    tokens = tuple(ShownToken(token.text, token.source, token.says) for token in each.sources)
    sides = (
        _side("The target alone", each.target, target),
        _side("The chosen setting", each.chosen, chosen, tokens),
    )
    return TextPair(kind, summary, each.prompt, each.reference, sides, tone, open=number == 0)


def _pieces(one: str, other: str) -> tuple[list[Piece], list[Piece]]:
    """Both texts in pieces of words that they share, and words that they do not."""
    words = [re.findall(r"\s+|\S+", text) for text in (one, other)]
    pieces: tuple[list[Piece], list[Piece]] = ([], [])
    for what, *ends in SequenceMatcher(None, words[0], words[1]).get_opcodes():
        for side, its_words, (begin, end) in zip(pieces, words, (ends[:2], ends[2:]), strict=True):
            if begin < end:
                side.append(Piece("".join(its_words[begin:end]), what != "equal"))
    return pieces


def _outcome(target: bool, chosen: bool) -> tuple[str, Tone]:
    if target == chosen:
        return ("Both right" if target else "Both wrong"), ""
    return ("Lost", "bad") if target else ("Gained", "good")


def _side(label: str, answer: RecordedAnswer, pieces: list[Piece], tokens: tuple[ShownToken, ...] = ()) -> Answer:
    outcome = "right" if answer.correct else "wrong"
    return Answer(f"{label}: {outcome}, {answer.tokens} tokens", tuple(pieces), tokens)
