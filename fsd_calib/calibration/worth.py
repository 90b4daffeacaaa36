"""What a calibration is worth, by forecasts: the most that any rule could gain, and what the goal leaves of it.

Speeds follow from replay and the costs of a round. How much a threshold loses follows from the pilot alone, so the
expected gain has a wide interval; the search and the test use none of this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import numpy as np
from scipy.stats import beta

from fsd_calib.calibration.odds import Odds
from fsd_calib.calibration.pilot import INTERVAL, Pilot
from fsd_calib.search.forecast import DraftForecasts
from fsd_calib.search.space import Space, logit
from fsd_decoding.profile.setting import Setting

_SHARES = np.linspace(logit(0.5), logit(0.9995), 40)  # in logit(u), of thresholds that are weighed
_LOSSES = 1.5, 0.5  # a prior of the share of flips that are losses: three of four, as strong as two flips


@dataclass(frozen=True)
class Ceiling:
    """The speed of accepting every drafted token, beside that of the best lossless setting: no rule gains more.

    Attributes:
        lossless: The fastest lossless setting.
        lossless_speed: Its forecast, in tokens/s of one stream.
        draft_length: At which accepting everything is the fastest.
        gain: How many times as fast it then is.
    """

    lossless: Setting
    lossless_speed: float
    draft_length: int
    gain: float


def with_prompts(speed: float, prefill: float) -> float:
    """Returns tokens/s with the prefill of prompts, which takes so many seconds for each token."""
    return 1 / (1 / speed + prefill)


@dataclass(frozen=True)
class Expected:
    """The setting that a plan expects most of: the one with the greatest expected certified gain, by forecasts.

    Attributes:
        gain: Its speed over that of the fastest lossless setting.
        low, high: The same, where losses and flips are as many, and as few, as the pilot lets them be with probability
            80 %.
        truth: Its supposed true retention, or accuracy.
        chance: To certify it.
        between: The least and the greatest chance of this setting so.
    """

    gain: float
    low: float
    high: float
    truth: float
    chance: float
    between: tuple[float, float]


def expected_gain(
    forecast: DraftForecasts,
    space: Space,
    rival_speed: float,
    fuzzy: Setting,
    pilot: Pilot,
    odds: Odds,
    problems: int,
    prefill: float = 0.0,
) -> Expected | None:
    """Returns what a plan expects of settings with the rule that the pilot decoded; None: no accuracy is to be kept.

    Losses are taken to grow with the rounds that a threshold saves, from none to those that the pilot saw at its own.

    Args:
        rival_speed: tokens/s of the fastest lossless setting, by its forecast.
        fuzzy: the pilot's fuzzy setting.
        problems: that there are to certify on.
        prefill: see `with_prompts`.
    """
    if odds.claim.wanted is None:
        return None
    least, usual, most = _net_losses(pilot)
    steps = _steps(forecast, space, with_prompts(rival_speed, prefill), fuzzy, prefill)
    few, many = odds.ends
    supposed = ((least, few), (usual, odds), (most, many))
    high, middle, low = (_best(steps, loss, pilot, each, problems) for loss, each in supposed)
    chances = [_best(middle.step, loss, pilot, each, problems).chance for loss, each in supposed]
    return Expected(
        middle.gain, min(low.gain, middle.gain), max(high.gain, middle.gain), middle.truth, middle.chance,
        (min(chances), max(chances)),
    )  # fmt: skip


class _Step(NamedTuple):
    """A share of accepted tokens: its losses as a multiple of the pilot's, and the best gain over lossless decoding."""

    losses: float
    gain: float


class _Outcome(NamedTuple):
    gain: float
    truth: float
    chance: float
    step: tuple[_Step, ...]  # none: lossless


def _steps(forecast: DraftForecasts, space: Space, rival_speed: float, fuzzy: Setting, prefill: float) -> list[_Step]:
    """The steps of every score of the search."""
    by_pilot = _saved(forecast, fuzzy)
    steps = []
    for score in space.scores:
        alike = replace(fuzzy.arm, score=score)
        arms = [arm for arm in chain(*space.families) if (arm.rule, arm.score) == (alike.rule, score)]
        for share in map(float, _SHARES):
            saved = _saved(forecast, alike.at(forecast.threshold(alike, share)))
            speed = max(forecast.tokens_per_second(arm.at(forecast.threshold(arm, share))) for arm in arms)
            steps.append(_Step(saved / by_pilot if by_pilot else 1.0, with_prompts(speed, prefill) / rival_speed))
    return steps


def _saved(forecast: DraftForecasts, setting: Setting) -> float:
    """The share of rounds that a threshold saves beside the strictest of the search."""
    strictest = forecast.counts(setting.at(forecast.threshold(setting.arm, forecast.lowest))).rounds
    return max(1 - forecast.counts(setting).rounds / strictest, 0.0)


def _net_losses(pilot: Pilot) -> tuple[float, float, float]:
    """Losses less gains at the pilot's setting, as a share of problems: the low end, as expected, the high end."""
    flips = pilot.problems * pilot.churn
    net = pilot.problems * pilot.accuracy * (1 - (1.0 if pilot.retention is None else pilot.retention))
    lost = (flips + net) / 2
    are_losses = (lost + _LOSSES[0]) / (flips + sum(_LOSSES))
    churn = beta(flips + 0.5, pilot.problems - flips + 0.5)  # Jeffreys' prior
    low, high = (float(churn.ppf(at)) for at in INTERVAL)
    share = max(2 * are_losses - 1, 0.0)
    return share * low, share * float(churn.mean()), share * high


def _best(steps: Sequence[_Step], loss: float, pilot: Pilot, odds: Odds, problems: int) -> _Outcome:
    """The step with the greatest expected gain, if the pilot's setting has this loss; lossless, where none gains."""
    assert odds.claim.wanted is not None
    accuracy = pilot.likely_accuracy
    whole = 1.0 if odds.claim.acc == "absolute" else accuracy
    best, most = _Outcome(1.0, accuracy / whole, 0.0, ()), 0.0
    for step in sorted(steps, key=lambda step: -step.gain):
        if step.gain - 1 <= most:
            break
        truth = max(accuracy - step.losses * loss, 0.0) / whole
        chance = odds.chance(problems, truth, odds.claim.wanted)
        if chance * (step.gain - 1) > most:
            best, most = _Outcome(step.gain, truth, chance, (step,)), chance * (step.gain - 1)
    return best
