"""What displays show of a calibration: the stages of its plan, and the best setting so far."""

from __future__ import annotations

from dataclasses import replace

from fsd_calib.calibration.plan import Paces, PlannedStep, planned_steps, stages_of
from fsd_calib.calibration.run import best_so_far, decided
from fsd_calib.search.objective import FinishedTrial
from fsd_common.progress.base import Stage
from fsd_decoding.profile.setting import Setting

SETTING = Setting("fsd-coupled", "js", 5, 0.25)
TRIAL = FinishedTrial(SETTING, 0.0, 120.0, -0.1, 120.0, 0.992, 0.01, 0.0, 128, 0.01)


def steps_of(graphs: float) -> tuple[PlannedStep, ...]:
    return planned_steps(
        Paces(2.0, 1.0, 0.5), tuning=100, lossless=50, searched=300, certification=200, likely=1, candidates=6,
        timed=240, timed_seconds=0.1, graphs=graphs,
    )  # fmt: skip


def test_stages_take_what_the_plan_says_and_graphs_are_made_while_searching() -> None:
    stages = stages_of(steps_of(graphs=10.0))
    assert stages == [
        Stage("baseline", 250.0, 150), Stage("search", 160.0, 300), Stage("certification", 500.0, 400),
        Stage("timing", 24.0),
    ]  # fmt: skip
    assert sum(stage.seconds for stage in stages) == sum(step.seconds for step in steps_of(graphs=10.0))


def test_the_best_is_the_fastest_that_is_likely_to_meet_the_goal() -> None:
    slower, hopeless = replace(TRIAL, value=100.0), replace(TRIAL, value=200.0, shortfall=0.3)
    assert best_so_far([slower, TRIAL, hopeless], 60.0, front=False) == (
        f"best: retention 99.2%, about 2.00x lossless, {SETTING}"
    )
    assert best_so_far([hopeless], 60.0, front=False) == "settings tried: 1, none likely to meet the goal"
    assert best_so_far([], 60.0, front=False) == "settings tried: 0"
    assert best_so_far([slower, TRIAL], 60.0, front=True) == "settings tried: 2"


def test_what_was_decided_may_be_a_setting_or_none() -> None:
    assert decided("certified-speed-unknown", SETTING) == f"certified, before timing: {SETTING}"
    assert decided("lossless", None) == "lossless, before timing"
