"""How speeds came about, in words: on which problems, in which processes, on how busy a machine."""

from __future__ import annotations

from fsd_calib.formatting import exact, interval
from fsd_decoding.profile.costs import Speed, SpeedFigures

FORECAST = "tokens/s by the cost model: the rounds counted on tuning problems, and what a round costs"


def of_what(speed: Speed) -> str:
    """What intervals of speed speak of."""
    return f"over {speed.processes} fresh processes" if speed.processes else "within this run"


def timing_note(speed: Speed) -> str:
    """How speeds were timed, or that they were not."""
    if not speed.timed:
        return f"forecast from rounds decoded on {speed.part} problems and what a round costs; no setting was timed"
    where = f", in each of {speed.processes} fresh processes" if speed.processes else ""
    return f"on {_timed(speed)}, each decoded in every way in turn{where}{_sure(speed)}"


def busy_note(speed: Speed) -> str:
    """Empty where the machine was not."""
    if not speed.busy:
        return ""
    return f"the machine was busy as timing began (load {speed.load:.1f} on {speed.cores} cores): speeds may be low"


def gain(speed: Speed) -> str:
    """How many times as fast the chosen setting is; with one stream too, where several were timed."""
    if not speed.timed:
        return f"by the cost model's forecast {_times(speed, speed.unit)}"
    single = "" if speed.single is None else f"; with one stream {_times(speed.single, speed.unit)}"
    return _times(speed, speed.unit, f" {of_what(speed)}") + single


def _timed(speed: Speed) -> str:
    if speed.single is None:
        return f"{speed.timed} {speed.part} problems"
    return f"{speed.timed} {speed.part} problems at batch {speed.batch} and {speed.single.timed} at batch 1"


def _sure(speed: Speed) -> str:
    if speed.intervals is None:
        return ""
    sure = f"; interval at {exact(speed.intervals.confidence)}"
    if speed.processes:
        return f"{sure} over them"
    return f"{sure} {of_what(speed)}; another run may lie outside (--timing careful)"


def over_sd(speed: SpeedFigures, of_what: str = "") -> str:
    """How many times the speed of sd the chosen setting makes, with its interval where there is one."""
    times = f"{speed.chosen / speed.sd:.2f}x"
    return times if speed.intervals is None else f"{times} ({interval(speed.intervals.over_sd, 2)}{of_what})"


def _times(speed: SpeedFigures, unit: str, of_what: str = "") -> str:
    target = f"{speed.chosen / speed.target:.2f}x"
    if speed.intervals is not None:
        target += f" ({interval(speed.intervals.over_target, 2)})"
    return f"{over_sd(speed, of_what)} its {unit} and {target} those of the target alone"
