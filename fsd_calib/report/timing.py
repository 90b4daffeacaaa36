"""Sentences on speeds: how they were timed, on how busy a machine, and how they compare."""

from __future__ import annotations

from collections.abc import Iterable

from fsd_common.formatting import answer_seconds, exact, interval
from fsd_decoding.profile.content import Speed, SpeedFigures
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


def gain(speed: Speed) -> str:
    """Returns the speed of the chosen setting relative to `sd` and to the target alone.

    With one stream too, where several were timed.
    """
    if not speed.timed:
        return f"by the cost model's forecast {_times(speed, speed.unit)}"
    single = "" if speed.single is None else f"; with one stream {_times(speed.single, speed.unit)}"
    return _times(speed, speed.unit, f" {interval_scope(speed)}") + single


def answers(profile: ThresholdProfile) -> str:
    """Returns how long the chosen setting's answers take, and whether longer texts use up what it gains."""
    speed, lengths = profile.speed, profile.lengths
    answer = speed.answer
    if answer is None:
        return ""
    long = "" if lengths is None else f"texts are {lengths.ratio:.2f} times as long as the target's"
    own, sd, target = map(answer_seconds, (answer.chosen, answer.sd, answer.target))
    if long and speed.chosen > speed.sd and answer.chosen >= answer.sd:
        return (
            f"Its {long}, so its answers take no less time than those of sd: {own} s each, against {sd} s, and "
            f"{target} s of the target alone."
        )
    more = f"; its {long}" if long else ""
    return f"An answer takes {own} s, with sd {sd} s and with the target alone {target} s{more}."


def _timed(speed: Speed) -> str:
    if speed.single is None:
        return f"{speed.timed} {speed.part} problems"
    return f"{speed.timed} {speed.part} problems at batch {speed.batch} and {speed.single.timed} at batch 1"


def _clock_note(speed: Speed) -> str:
    """Says by what the ratios were timed, where not by the wall's clock."""
    if speed.clock == "wall":
        return ""
    return "; ratios (x) by processor seconds, since those of the wall's clock scattered more"


def _interval_note(speed: Speed) -> str:
    if speed.intervals is None:
        return "; too few in the time for intervals (fsd-profile retime takes more)"
    intervals = f"; {exact(speed.intervals.confidence)} intervals"
    if speed.processes:
        return f"{intervals} over these processes"
    return f"{intervals} {interval_scope(speed)}; another run may fall outside (--timing careful)"


def over_sd(speed: SpeedFigures, scope: str = "") -> str:
    """Returns the speed of the chosen setting as a multiple of that of `sd`, with its interval where there is one."""
    times = f"{speed.over_sd:.2f}x"
    return times if speed.intervals is None else f"{times} ({interval(speed.intervals.over_sd, 2)}{scope})"


def _times(speed: SpeedFigures, unit: str, scope: str = "") -> str:
    target = f"{speed.over_target:.2f}x"
    if speed.intervals is not None:
        target += f" ({interval(speed.intervals.over_target, 2)})"
    return f"{over_sd(speed, scope)} the {unit} of sd and {target} the {unit} of the target alone"
