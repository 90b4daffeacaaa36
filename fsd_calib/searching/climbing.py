"""Where to look for the fastest threshold that still holds, from the history alone: the climb.

Knows brackets in logit(u), and what replay expects of speed. Knows nothing of what makes a trial feasible.

One rule decides everything: an arm is **open** while a share that would be 1 % faster than the best feasible trial is
not known to fail, neither in the arm itself nor in its kin (quality hardly depends on L at one threshold). So the
first arm is bisected, kin are only tried close to where it failed, and another divergence is first challenged where
it would be 1 % faster: failing there ends it after one trial.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from fsd_calib.measuring.configuration import Configuration
from fsd_calib.searching.forecast import Forecast, first_as_fast, speed_at
from fsd_calib.searching.history import History, highest_success, lowest_failure
from fsd_calib.searching.space import Point, Space, logit

_GAIN = 1.01  # a speed that is worth a trial
_ROUNDING = 1e-6  # of a speed
_NARROW = 0.01  # in logit(u): no threshold in between tells anything new
_TYPICAL = logit(0.97)  # where to begin when nothing is known
_BEYOND = logit(0.985)
_STEP = 1.0  # in logit(u), doubled with every trial that leaves the bracket open on one side


@dataclass(frozen=True)
class Bracket:
    """Of an arm, in logit(u): from `floor`, which holds or is as fast as the best, to `ceiling`, where it fails or
    the scale ends."""

    arm: Configuration
    floor: float
    ceiling: float
    trials: int
    held: float | None  # of the arm itself
    failed: float | None
    kin_held: float | None
    running: tuple[float, ...]

    @property
    def begun(self) -> bool:
        return self.trials + len(self.running) > 0


class Climb:
    def __init__(self, history: History, space: Space, forecast: Forecast) -> None:
        self._history, self._space, self._forecast = history, space, forecast
        feasible = [t for t in history.tried if t.feasible]
        self._best = max(feasible, key=lambda t: t.tokens_per_second, default=None)

    def next(self) -> Point | None:
        """One bracket a family is looked at; of these, one nobody works in, one that was begun, the most promising."""
        brackets = [b for family in self._space.families if (b := self._of_family(family)) is not None]
        if not brackets:
            return None
        chosen = min(brackets, key=lambda b: (len(b.running), not b.begun, -self._promise(b)))
        return Point(chosen.arm, self._probe(chosen))

    def why_not(self, arm: Configuration) -> str:
        if self._is_open(self._bracket(arm)):
            return "the trials ran out"
        if self._best is None:
            return "nothing held at any draft length that was tried"
        return f"by replay it is less than 1 % faster than {self._best.configuration} where thresholds still hold"

    def _of_family(self, family: list[Configuration]) -> Bracket | None:
        brackets = [b for arm in family if self._is_open(b := self._bracket(arm))]
        begun = [b for b in brackets if b.begun]
        return max(begun or brackets, key=self._promise, default=None)

    def _bracket(self, arm: Configuration) -> Bracket:
        own, forecast = self._history.of(arm), self._forecast
        kin = self._history.kin_of(arm)
        held, failed = highest_success(own), lowest_failure(own)
        kin_held, kin_failed = highest_success(kin), lowest_failure(kin)
        ends = [forecast.highest, kin_failed]
        starts = [forecast.lowest, held, self._as_fast_as_best(arm)]
        return Bracket(
            arm,
            floor=max(at for at in starts if at is not None),
            ceiling=min(at for at in ends if at is not None),
            trials=len(own),
            held=held,
            failed=failed,
            kin_held=kin_held,
            running=tuple(self._history.running_in(arm)),
        )

    def _as_fast_as_best(self, arm: Configuration, gain: float = 1.0) -> float | None:
        """By replay for both, which errs alike where both substitute alike."""
        if self._best is None:
            return None
        wanted = gain * self._forecast.tokens_per_second(self._best.configuration)
        found = first_as_fast(self._forecast, arm, wanted)
        return self._forecast.highest if found is None else found

    def _is_open(self, bracket: Bracket) -> bool:
        if bracket.ceiling - bracket.floor <= _NARROW:
            return False
        slow, fast = (speed_at(self._forecast, bracket.arm, at) for at in (bracket.floor, bracket.ceiling))
        return fast > _GAIN * (1 + _ROUNDING) * slow

    def _promise(self, bracket: Bracket) -> float:
        """Expected tokens/s where the arm probably still holds."""
        best = _TYPICAL if self._best is None else self._best.logit_share
        likely = best if bracket.kin_held is None else bracket.kin_held
        return speed_at(self._forecast, bracket.arm, min(likely, bracket.ceiling))

    def _probe(self, bracket: Bracket) -> float:
        at = self._start(bracket) if bracket.trials == 0 else self._step(bracket)
        others = [other for other in bracket.running if bracket.floor < other < bracket.ceiling]
        if all(abs(at - other) > _NARROW for other in bracket.running):
            return at
        gaps = pairwise([bracket.floor, *sorted(others), bracket.ceiling])
        low, high = max(gaps, key=lambda gap: gap[1] - gap[0])
        return (low + high) / 2

    def _start(self, bracket: Bracket) -> float:
        if bracket.kin_held is not None and bracket.floor < bracket.kin_held < bracket.ceiling:
            return bracket.kin_held
        challenge = self._as_fast_as_best(bracket.arm, _GAIN)
        start = _TYPICAL if challenge is None else challenge
        return start if bracket.floor < start < bracket.ceiling else (bracket.floor + bracket.ceiling) / 2

    def _step(self, bracket: Bracket) -> float:
        """The middle, or ever longer steps where one side is the scale's end still; but first one look beyond the
        first failure, since quality may dip and rise again."""
        if bracket.held is None and bracket.trials == 1 and bracket.ceiling < _BEYOND < self._forecast.highest:
            return _BEYOND
        step = math.ldexp(_STEP, bracket.trials - 1)
        if bracket.ceiling == self._forecast.highest and bracket.failed is None:
            return min(bracket.floor + step, bracket.ceiling)
        if bracket.floor == self._forecast.lowest and bracket.held is None:
            return max(bracket.ceiling - step, bracket.floor)
        return (bracket.floor + bracket.ceiling) / 2
