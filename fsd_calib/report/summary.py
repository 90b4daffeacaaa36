"""Summary table of a calibration: the target alone, `sd` and the chosen setting, with notes."""

from __future__ import annotations

from pathlib import PurePath
from typing import NamedTuple

from rich import box
from rich.table import Table

from fsd_calib.formatting import NONE, ROUNDS, bound, confidence, interval, pace, percent
from fsd_calib.report.timing import FORECAST, busy_note, timing_note
from fsd_collectors.report.terminal import TITLE, literal
from fsd_decoding.profile.costs import Speed, SpeedFigures
from fsd_decoding.profile.curve import CurvePoint
from fsd_decoding.profile.threshold_profile import ThresholdProfile

_PART, _TIMED, _FORECAST = "¹", "²", "³"
_NO_CHOICE = ("lossless-suffices", "front")  # unless there is an estimate
_NOT_CHOSEN = {"too-slow": "too slow", "lossless-suffices": "not shown faster"}


class _Row(NamedTuple):
    """A row of the table. A cell has up to two lines: a number, and its bound or interval below."""

    label: str
    accuracy: str = NONE
    retention: str = NONE
    tokens_per_round: str = NONE
    paces: tuple[str, ...] = ()  # as many as `_pace_headings` gives


def profile_table(profile: ThresholdProfile) -> Table:
    """Returns the table. Marks say on which part a number was measured; `notes` explains them."""
    title = literal(f"{profile.task}: what was measured", TITLE)
    narrow = profile.speed.single is not None or _is_forecast_beside(profile.speed)  # so that it fits into 80 columns
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", collapse_padding=narrow, pad_edge=not narrow)
    table.add_column("")
    headings = ("accuracy", "retention", *_pace_headings(profile.speed))
    for heading in headings:
        table.add_column(literal(heading), justify="right", no_wrap=True)
    for row in _rows(profile):
        table.add_row(*map(literal, (*row[:-1], *row.paces)))
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
        f"{_FORECAST} {FORECAST}" if _is_forecast_beside(speed) else "",
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


def drafts(profile: ThresholdProfile) -> str:
    """Returns the draft length of the fuzzy rule: exact, or the longest where drafts end early."""
    return f"L {'=' if profile.early_stop is None else '≤'} {profile.draft_length}"


def draft_among(profile: ThresholdProfile, other: str | None) -> str:
    """Returns the draft's name where several were tried. `other`: the id of one that is not the profile's own."""
    return f", draft {PurePath(other or profile.draft.id).name}" if profile.other_drafts else ""


def sd_draft_length(profile: ThresholdProfile) -> int:
    """Returns the draft length at which `sd` was measured."""
    return profile.draft_length if profile.sd_draft_length is None else profile.sd_draft_length


def was_selected(profile: ThresholdProfile) -> bool:
    """Returns whether the certified setting may have been chosen among several by their test results.

    Where none passed, the certificate is of the first one, which is no choice.
    """
    return profile.outcome != "not-certified" and profile.certificate.frozen != 1


def _rows(profile: ThresholdProfile) -> list[_Row]:
    lossless = [_target_row(profile), _sd_row(profile)]
    return [*lossless, _chosen_row(profile)] if _is_fuzzy(profile) else lossless


def _is_fuzzy(profile: ThresholdProfile) -> bool:
    """Returns whether a fuzzy setting was chosen, estimated or tested."""
    lossless = profile.outcome in _NO_CHOICE or profile.certificate.lossless
    return profile.estimate is not None or not lossless


def _uncorrected(profile: ThresholdProfile) -> str:
    return " and not corrected for the choice" if was_selected(profile) else ""


def _pace_headings(speed: Speed) -> tuple[str, ...]:
    """On two lines where there are many; the forecast is then below the timed speed."""
    if not speed.timed:
        return "tokens/round", "forecast"
    forecast = ["forecast"] if _is_forecast_beside(speed) else []
    if speed.single is None:
        return "tokens/\nround" if forecast else "tokens/round", speed.unit, *forecast
    return "tokens/\nround", "\n".join([speed.unit, f"at batch {speed.batch}", *forecast]), f"{speed.unit}\nat batch 1"


def _is_forecast_beside(speed: Speed) -> bool:
    """Returns whether there is a forecast beside timed speeds."""
    return bool(speed.timed) and speed.forecast is not None


def _has_bounds(profile: ThresholdProfile) -> bool:
    return any("≥" in cell for row in _rows(profile) for cell in row)


def _part(profile: ThresholdProfile) -> str:
    alone, counted = _point(profile, "target", 1), profile.certificate.problems
    if _source(profile) == "tuning":
        return f"tuning part: {alone.problems if alone else profile.data.tuning} problems, on which choices were made"
    problems = counted or (alone.problems if alone else profile.data.certification)
    return f"certification part: {problems} problems, unseen by the search{_sd_problems(profile, problems)}"


def _sd_problems(profile: ThresholdProfile, problems: int) -> str:
    """Of `sd`, which may be decoded on fewer problems: enough for its tokens per round."""
    point = _point(profile, "sd", sd_draft_length(profile))
    return f" (sd on {point.problems})" if point and point.problems != problems else ""


def _source(profile: ThresholdProfile) -> str:
    """The part that figures are from: certification, as soon as anything was decoded there."""
    return max((point.source for point in profile.curve), default="tuning", key=lambda part: part == "certification")


def _target_row(profile: ThresholdProfile) -> _Row:
    certificate, speed = profile.certificate, profile.speed
    paces = _paces(speed, "target")
    if certificate.lossless:
        return _Row("target alone", _bounded(certificate.accuracy, certificate.accuracy_lower_bound), paces=paces)
    point = None if certificate.problems else _point(profile, "target", 1)  # on as many problems as `_part` says
    accuracy = point.accuracy if point else profile.accuracy.target
    return _Row("target alone", _marked(percent(accuracy), _PART), paces=paces)


def _sd_row(profile: ThresholdProfile) -> _Row:
    """`sd` loses nothing, but its accuracy is shown where it was measured on the same problems as the target."""
    point, alone = _point(profile, "sd", sd_draft_length(profile)), _point(profile, "target", 1)
    if point and alone and point.problems != alone.problems:
        point = None
    return _Row(
        f"sd (lossless)\nL = {sd_draft_length(profile)}{draft_among(profile, profile.sd_draft)}",
        accuracy=_marked(percent(point.accuracy if point else None), _PART),
        retention=_marked(percent(point.retention if point else None), _PART),
        tokens_per_round=_marked(pace(profile.tokens_per_round.sd, 2), _PART),
        paces=_paces(profile.speed, "sd"),
    )


def _chosen_row(profile: ThresholdProfile) -> _Row:
    certificate, estimate = profile.certificate, profile.estimate
    point = estimate or _point(profile, profile.rule, profile.draft_length)
    measured = point.retention if point and certificate.retention is None else certificate.retention
    return _Row(
        _configuration(profile),
        accuracy=_bounded(profile.accuracy.chosen, certificate.accuracy_lower_bound),
        retention=_bounded(measured, certificate.lower_bound),
        tokens_per_round=_marked(pace(profile.tokens_per_round.chosen, 2), _PART),
        paces=_paces(profile.speed, "chosen"),
    )


def _point(profile: ThresholdProfile, rule: str, draft_length: int) -> CurvePoint | None:
    """The point of a rule at the profile's threshold, where the rule has one, preferably at this draft length."""
    setting = (None, None) if rule in ("sd", "target") else (profile.threshold, profile.policy)
    points = [p for p in profile.curve if (p.rule, p.source) == (rule, _source(profile))]
    points = [p for p in points if (p.threshold, p.policy) == setting]
    return min(points, key=lambda p: p.draft_length != draft_length, default=None)


def _configuration(profile: ThresholdProfile) -> str:
    if profile.threshold is not None:
        return f"{profile.rule}\nT = {profile.threshold:.4g}, {drafts(profile)}{draft_among(profile, None)}"
    if profile.estimate is not None:
        label = _NOT_CHOSEN.get(profile.outcome, "not certified")
        among = draft_among(profile, profile.estimate.draft)
        return f"{label}\nT = {profile.estimate.threshold:.4g}, {drafts(profile)}{among}"
    return f"lossless\n({profile.effective_rule}), L = {profile.effective_draft_length}"


def _bounded(share: float | None, low: float | None) -> str:
    measured = _marked(percent(share), _PART)
    return measured if low is None else f"{measured}\n≥ {bound(low)} "


def _paces(speed: Speed, which: str) -> tuple[str, ...]:
    """The cells below `_pace_headings`."""
    forecast = [_marked(pace(getattr(speed.forecast, which)), _FORECAST)] if _is_forecast_beside(speed) else []
    if speed.single is None:
        return _speed(speed, which), *forecast
    return "\n".join([_speed(speed, which), *forecast]), _speed(speed.single, which)


def _speed(speed: SpeedFigures, which: str) -> str:
    measured = _marked(pace(getattr(speed, which)), _TIMED)
    return measured if speed.intervals is None else f"{measured}\n{interval(getattr(speed.intervals, which))} "


def _marked(number: str, mark: str) -> str:
    return number if number == NONE else number + mark
