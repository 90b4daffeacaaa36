"""The page of a run: its sections, in the order of questions that a reader has."""

from __future__ import annotations

from fsd_calib.report.charts.acceptance import accepted_by_length, tokens_by_length
from fsd_calib.report.charts.effort import decodings_by_step, seconds_by_step
from fsd_calib.report.charts.retention import retention_by_share, retention_by_threshold
from fsd_calib.report.charts.search import trials
from fsd_calib.report.charts.speed import retention_and_speed
from fsd_calib.report.differing import differing_section
from fsd_calib.report.facts import provenance_section, rung_sheet, scale_sheet, settings_section
from fsd_calib.report.opening import verdict_section
from fsd_calib.report.rows import Row
from fsd_calib.report.rows import rows as measured_rows
from fsd_calib.report.run_folder import Run
from fsd_calib.report.timing import busy_note, timing_note
from fsd_collectors.report.description import short_name
from fsd_common.formatting import exact
from fsd_common.pages.blocks import Block, Page, Paragraph, Section

_TIMED = (
    "Filled marks were timed; hollow ones are settings of the search at the speed that the cost model forecasts: judge "
    "those by each other."
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
        "intervals, where they are known; the dashed line joins the settings that no other beats in both. The axis of "
        f"retention does not begin at 0. {_of_draft(run)}"
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
        f"The draft alone was measured on {alone.problems:,} tuning problems; where it lies beyond the chart, its mark "
        "is at the edge, with an arrow."
    )


def _threshold(run: Run, found: list[Row]) -> Section | None:
    chart = retention_by_threshold(run.profile, found)
    if chart is None:
        return None
    marks = (
        "Hollow marks are of the tuning part, on which T was chosen; filled ones of the certification part, where the "
        "thick line reaches down to what the certificate shows."
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
        marks = "Filled marks: the search expects them to meet the goal; hollow ones: it does not."
        blocks += [chart, Paragraph(marks, "note")] if chart else [Paragraph("Nothing was searched.", "note")]
        blocks.append(rung_sheet(run.profile, run.record))
    return Section(
        "search", "What each trial and each rung showed",
        "The search tries settings on the tuning part; some are then frozen as rungs, the likeliest to pass first, and "
        "tested on problems that it never saw, until one fails.",
        tuple(blocks),
    )  # fmt: skip


def _lengths(run: Run, found: list[Row]) -> Section:
    accepted = accepted_by_length(found, run.record)
    second = accepted or lacking(run, "The share of drafted tokens that were accepted is")
    marks = Paragraph(
        "Marks were decoded on the tuning part; the grey line replays the chosen T at the other lengths, and the "
        "dotted one is the most that there can be, L + 1.", "note",
    )  # fmt: skip
    return Section(
        "lengths", "Draft length L",
        "A longer draft can make more tokens per round, but the later a token is drafted the more rarely it counts.",
        (tokens_by_length(found, run.record), second, marks),
    )  # fmt: skip


def _shares(run: Run, found: list[Row]) -> Section:
    if run.record is None:
        blocks: tuple[Block, ...] = (lacking(run, "What T means in shares of tokens is"),)
    else:
        chart = retention_by_share(run.profile, run.record, found)
        blocks = (*((chart,) if chart else ()), scale_sheet(run.record))
    return Section(
        "shares", "Divergences on one scale",
        "Thresholds of different divergences have no common unit, but the share of drafted tokens that they accept "
        "has: at the same share, the higher mark lost less accuracy.",
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
