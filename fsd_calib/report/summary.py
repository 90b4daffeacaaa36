"""Summary table of a calibration: the target alone, `sd` and the chosen setting, with notes."""

from __future__ import annotations

from rich import box
from rich.table import Table

from fsd_calib.report.figures import Figures, main_figures, point_of, sd_draft_length, source_of
from fsd_calib.report.timing import busy_note, timing_note
from fsd_common.console import TITLE, literal
from fsd_common.formatting import NONE, ROUNDS, answer_seconds, bound, confidence, interval, pace, percent
from fsd_decoding.profile.content import Speed, SpeedFigures
from fsd_decoding.profile.threshold_profile import ThresholdProfile

_PART, _TIMED = "¹", "²"


def profile_table(profile: ThresholdProfile) -> Table:
    """Returns the table. Marks say on which part a number was measured; `notes` explains them."""
    title = literal(f"{profile.task}: what was measured", TITLE)
    narrow = _is_narrow(profile.speed)
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", collapse_padding=narrow, pad_edge=not narrow)
    table.add_column("")
    headings = ("accuracy", "retention", *_pace_headings(profile.speed))
    for heading in headings:
        table.add_column(literal(heading), justify="right", no_wrap=True)
    for row in main_figures(profile):
        table.add_row(*map(literal, _cells(row, profile.speed)))
    return table


def notes(profile: ThresholdProfile) -> str:
    """Returns what the marks of the table mean, and the settings under which it was measured."""
    certificate, speed, temperature = profile.certificate, profile.speed, profile.sampling.temperature
    sampling = f"temperature {temperature:g}" if temperature else "greedy"
    moved = "" if profile.policy is None else f", moved by {profile.policy}"
    seeds = f", {profile.seeds} seeds per problem" if profile.seeds > 1 else ""
    lines = [
        f"{_PART} measured on the {_part(profile)}",
        f"{_TIMED} {timing_note(speed)}",
        busy_note(speed),
        f"≥ lower bound at {confidence(certificate.level)} confidence, individually{_uncorrected(profile)}"
        if _has_bounds(profile)
        else "",
        f"T bounds {profile.divergence}{moved}; {sampling}{seeds}; speed at batch {speed.batch} on {profile.device} in "
        f"{profile.dtype}{_rounds(profile)}",
    ]
    return "\n".join(filter(None, lines))


def _rounds(profile: ThresholdProfile) -> str:
    """How rounds were called, where not directly, as decoders do by themselves; and by which engine but our own."""
    called = f", rounds {ROUNDS[profile.compile]}" if profile.compile in ("capture", "on") else ""
    return called + (f", by {profile.engine}" if profile.engine else "")


def was_selected(profile: ThresholdProfile) -> bool:
    """Returns whether the certified setting may have been chosen among several by their test results.

    Where none passed, the certificate is of the first one, which is no choice.
    """
    return profile.outcome != "not-certified" and profile.certificate.frozen != 1


def _uncorrected(profile: ThresholdProfile) -> str:
    return " and not corrected for the choice" if was_selected(profile) else ""


def _pace_headings(speed: Speed) -> tuple[str, ...]:
    """On two lines where there are many."""
    if not speed.timed:
        return "tokens/round", "forecast"
    answer = ["s/\nanswer"] if speed.answer is not None else []
    if speed.single is None:
        return "tokens/\nround" if answer else "tokens/round", speed.unit, *answer
    return "tokens/\nround", f"{speed.unit}\nat batch {speed.batch}", *answer, f"{speed.unit}\nat batch 1"


def _is_narrow(speed: Speed) -> bool:
    """Returns whether there are so many columns that they must be narrow to fit into 80 characters."""
    return speed.single is not None or speed.answer is not None


def _has_bounds(profile: ThresholdProfile) -> bool:
    rows = main_figures(profile)
    return any(low is not None for row in rows for low in (row.accuracy_bound, row.retention_bound))


def _part(profile: ThresholdProfile) -> str:
    alone, counted = point_of(profile, "target", 1), profile.certificate.problems
    if source_of(profile) == "tuning":
        return f"tuning part: {alone.problems if alone else profile.data.tuning} problems, on which choices were made"
    problems = counted or (alone.problems if alone else profile.data.certification)
    return f"certification part: {problems} problems, unseen by the search{_sd_problems(profile, problems)}"


def _sd_problems(profile: ThresholdProfile, problems: int) -> str:
    """Of `sd`, which may be decoded on fewer problems: enough for its tokens per round."""
    point = point_of(profile, "sd", sd_draft_length(profile), profile.sd_tree)
    return f" (sd on {point.problems})" if point and point.problems != problems else ""


def _cells(row: Figures, speed: Speed) -> tuple[str, ...]:
    """The cells of a row, of up to two lines each: a number, and its bound or interval below."""
    return (
        row.label, _bounded(row.accuracy, row.accuracy_bound), _bounded(row.retention, row.retention_bound),
        _marked(pace(row.tokens_per_round, 2), _PART), *_paces(speed, row.which),
    )  # fmt: skip


def _bounded(share: float | None, low: float | None) -> str:
    measured = _marked(percent(share), _PART)
    return measured if low is None else f"{measured}\n≥ {bound(low)} "


def _paces(speed: Speed, which: str) -> tuple[str, ...]:
    """The cells below `_pace_headings`."""
    answer = [] if speed.answer is None else [_marked(answer_seconds(getattr(speed.answer, which)), _TIMED)]
    single = [] if speed.single is None else [_speed(speed.single, which)]
    return _speed(speed, which), *answer, *single


def _speed(speed: SpeedFigures, which: str) -> str:
    measured = _marked(pace(getattr(speed, which)), _TIMED)
    return measured if speed.intervals is None else f"{measured}\n{interval(getattr(speed.intervals, which))} "


def _marked(number: str, mark: str) -> str:
    return number if number == NONE else number + mark
