"""The main figures of a calibration: target alone, the lossless rival, the chosen setting, and how they were timed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import Literal, NamedTuple

from rich import box
from rich.table import Table

from fsd_calib.report.bounds import bound_to_show, bounds_to_show, shows_no_more
from fsd_common.console import TITLE, literal
from fsd_common.formatting import (
    NONE,
    ROUNDS,
    answer_seconds,
    bound,
    confidence,
    exact,
    interval,
    pace,
    percent,
)
from fsd_decoding.meanings import RULE_MEANINGS, family_of, score_meaning
from fsd_decoding.profile.fields import CurvePoint, Source, Speed, SpeedFigures
from fsd_decoding.profile.server_profile import ServerProfile
from fsd_decoding.profile.setting import Setting
from fsd_decoding.profile.threshold_profile import ThresholdProfile


def interval_scope(speed: Speed) -> str:
    """Returns what the intervals of speeds cover: this run alone, or fresh processes."""
    return f"over {speed.processes} fresh processes" if speed.processes else "within this run"


def timing_note(speed: Speed) -> str:
    """Returns how speeds were timed, or that they were not."""
    if not speed.timed:
        return f"forecast from rounds decoded on {speed.part} problems and the cost of a round; no setting was timed"
    where = f", in each of {speed.processes} fresh processes" if speed.processes else ""
    return f"timed on {_timed(speed)}, with every setting in turn{where}{_interval_note(speed)}{_clock_note(speed)}"


def busy_note(speed: Speed) -> str:
    """Returns a warning where the machine was busy, else an empty string."""
    if not speed.busy:
        return ""
    cores = f"{speed.cores} core{'s' * (speed.cores != 1)}"
    return f"the machine was busy when timing began (load {speed.load:.1f} on {cores}): speeds may be low"


def pace_axis(unit: str, batches: Iterable[int]) -> str:
    """Returns the title of an axis of speeds that are of one stream among as many as each batch has."""
    several = sorted(set(batches))
    streams = "one stream" if several == [1] else f"each of {' or '.join(map(str, several))} streams"
    return f"{unit}, {streams}"


def gain(profile: ThresholdProfile) -> str:
    """Returns the speed of the chosen setting relative to the fastest lossless rule and to the target alone.

    With one stream too, where several were timed.
    """
    speed, rule = profile.speed, rival_of(profile).rule
    if not speed.timed:
        return f"by the cost model's forecast {_times(speed, speed.unit, rule)}"
    unit = speed.unit if speed.clock == "wall" else speed.unit.replace("/s", " per processor second")
    single = "" if speed.single is None else f"; with one stream {_times(speed.single, unit, rule)}"
    return _times(speed, unit, rule, f" {interval_scope(speed)}") + single


def answers(profile: ThresholdProfile) -> str:
    """Returns how long the chosen setting's answers take, and whether longer texts use up what it gains."""
    speed, lengths = profile.speed, profile.lengths
    answer = speed.answer
    if answer is None:
        return ""
    long = "" if lengths is None else f"texts are {lengths.ratio:.2f} times as long as the target's"
    own, lossless, target = map(answer_seconds, (answer.chosen, answer.lossless, answer.target))
    rule = rival_of(profile).rule
    if long and speed.chosen > speed.lossless and answer.chosen >= answer.lossless:
        return (
            f"Its {long}, so its answers take no less time than those of {rule}: {own} s each, against "
            f"{lossless} s, and {target} s of the target alone."
        )
    more = f"; its {long}" if long else ""
    return f"An answer takes {own} s, with {rule} {lossless} s and with the target alone {target} s{more}."


def _timed(speed: Speed) -> str:
    if speed.single is None:
        return f"{speed.timed} {speed.part} problems"
    return f"{speed.timed} {speed.part} problems at batch {speed.batch} and {speed.single.timed} at batch 1"


def _clock_note(speed: Speed) -> str:
    """Says by what the ratios were timed, where not by the wall's clock."""
    if speed.clock == "wall":
        return ""
    return "; ratios (x) are of processor seconds, since the clock's scattered more, and not of the tokens/s shown"


def _interval_note(speed: Speed) -> str:
    if speed.intervals is None:
        return "; too few in the time for intervals (fsd-profile retime takes more)"
    intervals = f"; {exact(speed.intervals.confidence)} intervals"
    if speed.processes:
        return f"{intervals} over these processes"
    return f"{intervals} {interval_scope(speed)}; another run may fall outside (--timing careful)"


def over_lossless(speed: SpeedFigures, scope: str = "") -> str:
    """Returns the speed of the chosen setting as a multiple of the lossless one, with its interval if it has one."""
    times = f"{speed.over_lossless:.2f}x"
    return times if speed.intervals is None else f"{times} ({interval(speed.intervals.over_lossless, 2)}{scope})"


def _times(speed: SpeedFigures, unit: str, rule: str, scope: str = "") -> str:
    target = f"{speed.over_target:.2f}x"
    if speed.intervals is not None:
        target += f" ({interval(speed.intervals.over_target, 2)})"
    return f"{over_lossless(speed, scope)} the {unit} of {rule} and {target} the {unit} of the target alone"


_ALONE = Setting.alone("")
_NO_CHOICE = ("lossless", "front")  # unless there is an estimate
_NOT_FOLLOWED = {"too-slow": "too slow", "certified-slower": "certified, slower"}


class Figures(NamedTuple):
    """What was measured of a setting; None: it was not, or says nothing of it.

    Attributes:
        which: The field of `Speed` that has its speed.
        label: The setting, on up to two lines.
        accuracy_bound, retention_bound: Lower bounds by the certificate.
    """

    which: Literal["target", "lossless", "chosen"]
    label: str
    accuracy: float | None = None
    accuracy_bound: float | None = None
    retention: float | None = None
    retention_bound: float | None = None
    tokens_per_round: float | None = None


def main_figures(profile: ThresholdProfile) -> list[Figures]:
    """Returns those of the target alone, the lossless rival, and a fuzzy setting if one was found."""
    lossless = [_of_target(profile), _of_rival(profile)]
    return [*lossless, _of_chosen(profile)] if _is_fuzzy(profile) else lossless


def draft_length_label(profile: ThresholdProfile) -> str:
    """Returns "L = 5" for drafts of the fuzzy rule, "L ≤ 5" where they end early, and the shape of its trees."""
    whole = profile.early_stop is None and profile.stop_policy is None
    return f"L {'=' if whole else '≤'} {profile.draft_length}{profile.chosen.shape}"


def decided_by(profile: ThresholdProfile) -> str:
    """Returns what T accepts a share of."""
    return "drafted tokens" if profile.beams is None else "layers that end lossless rounds"


def draft_label(profile: ThresholdProfile, other: str | None) -> str:
    """Returns ", draft NAME" where several were tried. `other`: the id of one that is not the profile's own."""
    return f", draft {PurePath(other or profile.draft.id).name}" if profile.other_drafts else ""


def rival_of(profile: ThresholdProfile) -> Setting:
    """Returns the fastest lossless setting, as it was measured."""
    return profile.lossless or profile.chosen.under("sd")


def source_of(profile: ThresholdProfile) -> Source:
    """The part that figures are from: certification, as soon as anything was decoded there."""
    return max((point.source for point in profile.curve), default="tuning", key=lambda part: part == "certification")


def was_timed(profile: ThresholdProfile, point: CurvePoint) -> bool:
    """Returns whether the profile has a timed speed of a point's setting, beside which its forecast says nothing."""
    setting = point.setting
    timed = setting.rule == "target" or setting == rival_of(profile) or is_chosen(profile, setting)
    return timed and profile.speed.timed > 0


def is_chosen(profile: ThresholdProfile, setting: Setting) -> bool:
    """Returns whether it is the profile's setting, or its estimate."""
    return setting.threshold is not None and setting == profile.chosen


def point_of(profile: ThresholdProfile, like: Setting) -> CurvePoint | None:
    """The point of a setting's rule, T and policy, preferably of its draft length and shape."""
    points = [
        p for p in profile.curve
        if p.source == source_of(profile)
        and (p.setting.rule, p.setting.threshold, p.setting.policy) == (like.rule, like.threshold, like.policy)
    ]  # fmt: skip
    same = like.draft_length, like.tree
    return min(points, key=lambda p: (p.setting.draft_length, p.setting.tree) != same, default=None)


def _is_fuzzy(profile: ThresholdProfile) -> bool:
    """Whether a fuzzy setting was chosen, estimated or tested."""
    lossless = profile.outcome in _NO_CHOICE or profile.certificate.lossless
    return profile.estimate is not None or not lossless


def _of_target(profile: ThresholdProfile) -> Figures:
    certificate = profile.certificate
    if certificate.lossless:
        return Figures("target", "target alone", certificate.accuracy, bounds_to_show(certificate)[1])
    point = None if certificate.problems else point_of(profile, _ALONE)  # on as many problems as `source_of` has
    return Figures("target", "target alone", point.accuracy if point else profile.accuracy.target)


def _of_rival(profile: ThresholdProfile) -> Figures:
    """The rival loses nothing, but its accuracy is shown where it was measured on the same problems as the target."""
    rival = rival_of(profile)
    point, alone = point_of(profile, rival), point_of(profile, _ALONE)
    if point and alone and point.problems != alone.problems:
        point = None
    return Figures(
        "lossless",
        f"{rival.rule} (lossless)\nL = {rival.draft_length}{rival.shape}{draft_label(profile, rival.draft)}",
        accuracy=point.accuracy if point else None, retention=point.retention if point else None,
        tokens_per_round=profile.tokens_per_round.lossless,
    )  # fmt: skip


def _of_chosen(profile: ThresholdProfile) -> Figures:
    c = profile.certificate
    point = profile.estimate or point_of(profile, profile.chosen)
    figures = Figures(
        "chosen", _configuration(profile), profile.accuracy.chosen, retention=point.retention if point else None,
        tokens_per_round=profile.tokens_per_round.chosen,
    )  # fmt: skip
    if c.lossless:
        return figures  # what was tested is the target
    retention = figures.retention if c.retention is None else c.retention
    low, accuracy_low = bounds_to_show(c)
    return figures._replace(accuracy_bound=accuracy_low, retention=retention, retention_bound=low)


def bound_of(profile: ThresholdProfile, point: CurvePoint) -> float | None:
    """Returns the lower bound of a point's retention, as it is shown."""
    chosen = is_chosen(profile, point.setting) and point.source == "certification"
    return bound_to_show(profile.certificate, point.lower_bound, chosen)


def _configuration(profile: ThresholdProfile) -> str:
    if profile.threshold is not None:
        return f"{profile.rule}\nT = {profile.threshold:.4g}, {draft_length_label(profile)}{draft_label(profile, None)}"
    if profile.estimate is not None:
        label = _NOT_FOLLOWED.get(profile.outcome, "not certified")
        draft = draft_label(profile, profile.estimate.draft)
        return f"{label}\nT = {profile.estimate.threshold:.4g}, {draft_length_label(profile)}{draft}"
    followed = profile.followed
    return f"lossless\n({followed.rule}), L = {followed.draft_length}{followed.shape}"


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
    speed, temperature = profile.speed, profile.sampling.temperature
    sampling = f"temperature {temperature:g}" if temperature else "greedy"
    sampling += "" if profile.beams is None else f", {profile.beams}; tokens are those of a beam"
    seeds = f", {profile.seeds} seeds per problem" if profile.seeds > 1 else ""
    lines = [
        f"{_PART} measured on the {_part(profile)}",
        f"{_TIMED} {timing_note(speed)}",
        busy_note(speed),
        f"≥ lower bound {_held(profile)}{_uncorrected(profile)}" if _has_bounds(profile) else "",
        *meanings(profile),
        f"{sampling}{seeds}; speed at batch {speed.batch} on {profile.device} in {profile.dtype}{_rounds(profile)}",
    ]
    return "\n".join(filter(None, lines))


def meanings(profile: ThresholdProfile) -> Iterator[str]:
    """Yields what the rules of the table do, and what T bounds."""
    fuzzy = [profile.chosen.rule] if _is_fuzzy(profile) or profile.outcome == "front" else []
    rules = [rival_of(profile).rule, *fuzzy]
    own = {each.name: each.meaning for each in profile.addons if each.meaning}
    words = {**RULE_MEANINGS, **own}
    yield from (f"{rule}: {words[rule]}" for rule in rules if rule in words)
    moved = "" if profile.policy is None else f", moved by {profile.policy}"
    meaning = score_meaning(profile.score) or own.get(family_of(profile.score), "")
    yield f"T bounds {profile.score}{meaning and f' = {meaning}'}{moved}"


def _rounds(profile: ThresholdProfile) -> str:
    """How rounds were called, where not directly, as decoders do by themselves; and by which engine but our own."""
    called = f", rounds {ROUNDS[profile.compile]}" if profile.compile in ("capture", "on") else ""
    return called + (f", by {profile.engine}" if profile.engine else "")


def was_selected(profile: ThresholdProfile | ServerProfile) -> bool:
    """Returns whether the certified setting may have been chosen among several by their test results.

    Where none passed, the certificate is of the first one, which is no choice.
    """
    return profile.outcome != "not-certified" and profile.certificate.frozen != 1


def _held(profile: ThresholdProfile) -> str:
    c = profile.certificate
    if shows_no_more(c):
        said = "as certified" if profile.bound else "as the profile says"
        return f"{said}, at {exact(c.confidence)} confidence"
    if c.given_passing:
        return f"given that it passed, at {exact(c.confidence)} confidence together with the other bounds"
    return f"at {confidence(c.level)} confidence, individually"


def _uncorrected(profile: ThresholdProfile) -> str:
    selected = was_selected(profile) and not shows_no_more(profile.certificate)
    return " and not corrected for the choice" if selected else ""


def _pace_headings(speed: Speed) -> tuple[str, ...]:
    """The headings of tokens per round and of speeds, on two lines where there are many."""
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
    alone, counted = point_of(profile, _ALONE), profile.certificate.problems
    if source_of(profile) == "tuning":
        return f"tuning part: {alone.problems if alone else profile.data.tuning} problems, on which choices were made"
    problems = counted or (alone.problems if alone else profile.data.certification)
    return f"certification part: {problems} problems, unseen by the search{_rival_problems(profile, problems)}"


def _rival_problems(profile: ThresholdProfile, problems: int) -> str:
    """Says on how many the lossless rule was decoded, which may be fewer: enough for its tokens per round."""
    rival = rival_of(profile)
    point = point_of(profile, rival)
    return (
        f"; {rival.rule} on {point.problems}, enough for its tokens/round"
        if point and point.problems != problems
        else ""
    )


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
