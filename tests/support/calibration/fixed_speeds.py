"""Patches that fix the costs and speeds that a calibration measures, so that no test depends on the clock."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from fsd_calib.calibration import prepare
from fsd_calib.calibration.run_facts import Pace, Timings
from fsd_calib.calibration.session import Session
from fsd_calib.calibration.timing import Timed, Timer
from fsd_calib.certification.holdout import HoldoutAttempt
from fsd_calib.measuring.speed import TimedRun, TimedSpeeds
from fsd_calib.options.goal import Goal
from fsd_calib.options.run_config import RunConfig
from fsd_calib.search.space import Space
from fsd_collectors.replay.cost import CostModel
from fsd_decoding.profile.setting import Setting

_PIECES = 20
_PACES = {"target": 50.0, "sd": 100.0}  # tokens/s
_COSTS = CostModel(draft_step=0.002, verify=0.01, position=0.0001)  # seconds


def fix_speeds(monkeypatch: pytest.MonkeyPatch, over_lossless: float, spread: float = 0.0) -> None:
    """Patches timing so that fuzzy settings make `over_lossless` times the tokens/s of `sd`.

    The costs of a round are fixed too, such that fuzzy settings are forecast to be faster and are tried.

    Args:
        spread: by what share the seconds of pieces of work differ at most.
    """

    def timed(timer: Timer, configurations: Sequence[Setting], opened: HoldoutAttempt | None = None) -> Timed:
        paces = {c: _PACES.get(c.rule, 100.0 * over_lossless) for c in configurations}
        tokens = {kind: np.full(_PIECES, 100.0) for kind in paces}
        seconds = {kind: 100.0 / pace * _uneven(spread * (kind.rule not in _PACES)) for kind, pace in paces.items()}
        run = TimedRun(np.arange(_PIECES), tokens, {"wall": seconds})
        speeds = TimedSpeeds([run], _PIECES, timer.goal.confidence)
        return Timed(speeds, "tuning" if opened is None else "certification")

    monkeypatch.setattr(Timer, "time", timed)
    monkeypatch.setattr(Timer, "fastest", lambda timer, configurations: configurations[0])
    fix_costs(monkeypatch)


def fix_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patches the measured costs of a round, for every draft."""

    def timings(session: Session, goal: Goal, space: Space, config: RunConfig, *_: object) -> Timings:
        way = "off" if config.compile == "auto" else config.compile
        return Timings((_COSTS,) * len(space.compared), Pace(0.01, 0.01, session.processes), way)

    monkeypatch.setattr(prepare, "_timings", timings)


def _uneven(spread: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return 1 + spread * np.linspace(-1, 1, _PIECES)
