"""Planning and running `fsd-calibrate`'s calibration, or with several engines theirs in turn."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from fsd_calib.calibration.api import Calibration
from fsd_calib.calibration.in_turn import in_turn, passed
from fsd_calib.report.console import print_report
from fsd_calib.report.plan import print_plan
from fsd_collectors.report.terminal import LiteralConsole, literal


def print_plans(calibration: Calibration, engines: Sequence[str]) -> None:
    """Prints the plan of each engine, as if those before it had passed their tests."""

    def plan(one: Calibration) -> int:
        planned, console = one.plan(), LiteralConsole()
        _print_turn(one, planned.attempt, console)
        print_plan(planned, console)
        return planned.attempt

    in_turn(calibration, engines, plan)


def run_and_report(calibration: Calibration, engines: Sequence[str]) -> bool:
    """Runs the calibration of each engine and prints its report; returns whether all have met the goal."""
    met, console, on_stderr = [], LiteralConsole(), LiteralConsole(stderr=True)

    def run(one: Calibration) -> int | None:
        profile = one.run(lambda planned: print_plan(planned, on_stderr))
        found = profile.certificate
        _print_turn(one, found.attempt, console)
        folder = one.config.path("out")
        print_report(profile, folder and folder / "profile.json", console)
        met.append(profile.met)
        return found.attempt if passed(profile) else None

    for engine in in_turn(calibration, engines, run):
        console.print(
            literal(f"Not tested: {engine}. The sequence ends with the first engine that does not pass a test.")
        )
    return len(met) == len(engines) and all(met)


def _print_turn(one: Calibration, attempt: int | None, console: Console) -> None:
    """Prints which engine's turn it is, where several have one."""
    turn = one.sequence
    if turn is None:
        return
    together = turn.attempt in (None, attempt)  # else the sequence went on before, with another version of the engine
    sequence = " in one frozen sequence" if together else ""
    of_attempt = "" if attempt is None else f", attempt {attempt}"
    text = f"Engine {turn.place + 1} of {len(turn.engines)}{sequence}{of_attempt}: {one.config.engine}"
    console.print(literal(text, "bold"))
    console.print()
