"""A speed budget: the smallest T that makes a given number of tokens per second in each stream."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fsd_common.argument_checks import amount, check_count
from fsd_common.errors import UsageError
from fsd_decoding.adaptive.budget import MOSTLY, ProfileCheck, Tally, learned_from, state_of
from fsd_decoding.policies.threshold import NewRequests, RoundOutcome, RoundState, ThresholdPolicy
from fsd_decoding.profile.fields import CurvePoint
from fsd_decoding.profile.selection import corrected
from fsd_decoding.profile.setting import Setting
from fsd_decoding.profile.threshold_profile import ThresholdProfile

_LOSSLESS = -1e-9  # T: accepts nothing, as D is never negative
_STEP = 1e-3  # tokens a round, added between two T that measured the same, so that the curve can be inverted


class TokensCurve:
    """Tokens per round as a function of T: linear between the points that a profile measured, strictly rising.

    It begins at the lossless rule. Where measurements fall while T rises, isotonic regression evens them out, weighted
    by numbers of problems.

    Args:
        profile: whose measurements.
        beyond: go on to the largest T measured; else it ends at the profile's T.

    Attributes:
        thresholds: T of the points.
        tokens: tokens per round of one stream there.

    Raises:
        UsageError: the profile has no such T.
    """

    def __init__(self, profile: ThresholdProfile, beyond: bool) -> None:
        from scipy.optimize import isotonic_regression

        points = reachable_points(profile, beyond)
        tokens = [_lossless_tokens(profile), *(p.tokens_per_round for p in points)]
        weights = [max(p.problems for p in points), *(p.problems for p in points)]
        rising = isotonic_regression(np.array(tokens), weights=np.array(weights)).x
        self.thresholds = (_LOSSLESS, *(p.setting.threshold or 0.0 for p in points))
        self.tokens: tuple[float, ...] = tuple((rising + _STEP * np.arange(len(rising))).tolist())
        self.to(torch.device("cpu"))

    def to(self, device: torch.device) -> None:
        """Moves what `inverse` reads to a device."""
        shape = torch.tensor([self.thresholds, self.tokens], dtype=torch.float64).to(device)
        rise, self._widths = shape.diff()
        self._starts, self._slopes = shape[1, :-1], rise / self._widths

    def inverse(self, tokens: Tensor) -> Tensor:
        """Returns T () for `tokens` () per round, clamped to the ends of the curve."""
        along = (tokens - self._starts).clamp_min(0.0).minimum(self._widths)  # part of each line's width covered
        threshold: Tensor = (along * self._slopes).sum() + self.thresholds[0]
        return threshold


def reachable_points(profile: ThresholdProfile, beyond: bool) -> Sequence[CurvePoint]:
    """Returns the points of the profile's own arm that T may move between, by rising T.

    Raises:
        UsageError: there are none.
    """
    arm = Setting(profile.rule, profile.score, profile.draft_length)
    own = [p for p in corrected(profile.curve) if p.setting.arm == arm]
    by_threshold = {p.setting.threshold: p for p in own if p.setting.threshold is not None}
    most = math.inf if beyond else profile.threshold
    if most is None:
        raise UsageError(
            f"the profile of {profile.task!r} has no threshold (outcome {profile.outcome!r}), so T cannot move; "
            "calibrate again, or set beyond=True to allow thresholds that are not certified"
        )
    points = [by_threshold[threshold] for threshold in sorted(by_threshold) if threshold <= most]
    if not points:
        raise UsageError(
            f"the curve of the profile of {profile.task!r} has no threshold for its own rule; calibrate again"
        )
    return points


def _lossless_tokens(profile: ThresholdProfile) -> float:
    """Returns tokens per round where T accepts nothing. `fsd` then makes one token a round, like the target alone."""
    if profile.rule == "fsd":
        return 1.0
    sd = [p for p in corrected(profile.curve) if p.setting == Setting("sd", p.setting.score, profile.draft_length)]
    return sd[0].tokens_per_round if sd else profile.tokens_per_round.lossless


_LEARNED = ("rounds", "seconds", "tokens", "expected")
_CLOSE = 0.95  # of the requested speed: below it, with T at its limit, the speed counts as out of reach


class SpeedBudget(ThresholdPolicy):
    """Holds the tokens/s of one stream, averaged over the rows being decoded, at `tokens_per_second`: the same speed
    that --min-speed and a profile's `speed` mean. T moves between lossless and the profile's threshold.

    Tokens per second are tokens per round, which depend on T, divided by seconds per round, which do not. The seconds
    s of rounds are measured. The profile's curve g says how many tokens a round makes at each T, and ρ corrects it: the
    tokens that rounds made divided by those that g expected. So T = g⁻¹(tokens_per_second · s / ρ), clamped to the
    ends of the curve. s and ρ are averages that do not depend on how far T could follow, so nothing winds up where it
    could not. Where T settles, ρ·g(T) is what rounds make, so the speed is the requested one, however wrong g is.
    Only speeds that are too low are corrected: where lossless decoding is faster already, T remains there.

    A round lasts from the end of the previous one; the first round of a call lasts from when its first texts begin. So
    reading prompts counts, as it does in a profile's speeds, and so does whatever a consumer of `stream` does between
    pieces. Time between calls does not count.

    Settling: averages reach back over R = `rounds` rounds, so a step in what they follow has decayed to exp(-n/R) of
    itself after n rounds. If rounds suddenly take twice as long, speed is within 5 % of the requested one after
    R·ln 10 rounds; if they take half as long, after R·ln 20: `settling`, 192 rounds by default. A step in ρ takes as
    long if tokens respond to T as steeply as in the profile, and 1/b of it if they respond b times as steeply. The
    first `rounds` rounds have equal weight and soon outweigh the profile, so a budget adapts faster at first.

    Args:
        tokens_per_second: the speed to hold.
        profile: whose curve is used and whose threshold limits T. Required.
        beyond: T may go up to the largest threshold that the profile measured, where nothing is certified.
        rounds: that averages reach back.
        clock: returns seconds.
        allow_edited: follow a profile that was changed after its calibration.

    Attributes:
        current: T of the next round, () on the device.

    Raises:
        UsageError: `tokens_per_second` is not above 0, or, without `beyond`, faster than the profile's fastest point;
            the profile has no threshold, without `beyond`, is for trees, or is edited. In use: the profile is of other
            models, or of another rule, score or draft length.
    """

    budget = True

    def __init__(
        self,
        tokens_per_second: float = 60.0,
        profile: ThresholdProfile | None = None,
        beyond: bool = False,
        rounds: int = 64,
        clock: Callable[[], float] = time.perf_counter,
        allow_edited: bool = False,
    ) -> None:
        self.tokens_per_second = amount("tokens_per_second", tokens_per_second, zero=False)
        check_count("rounds", rounds)
        if profile is None:
            raise UsageError("SpeedBudget needs profile=, which says how far T may move")
        self.profile, self.beyond, self.rounds = profile, beyond, rounds
        self._profile_check = ProfileCheck(profile, allow_edited)
        self._curve = TokensCurve(profile, beyond)
        self._check_reach()
        self._settings = {
            "tokens_per_second": self.tokens_per_second,
            "averaged_rounds": rounds,
            "calibrated": profile.created.isoformat(),
            "beyond": beyond,
        }
        self._clock, self._last = clock, 0.0
        self._rounds_seen = 0
        self._seconds = profile.tokens_per_round.chosen / max(profile.speed.chosen, 1e-9)  # average of a round
        most = torch.tensor(self._curve.tokens[-1], dtype=torch.float64)
        self._tokens = self._expected = most  # averages of a round: tokens made, and tokens that the curve expected
        self._begin_call(torch.device("cpu"))

    @property
    def settling(self) -> int:
        """Rounds until speed is within 5 % again after rounds begin to take half, or twice, as long."""
        return math.ceil(math.log(20) * self.rounds)

    def start(self, new: NewRequests) -> None:
        wrong = [r.draft_length for r in new.requests if r.draft_length != self.profile.draft_length]
        if wrong:
            raise UsageError(
                f"draft_length is {wrong[0]}, but SpeedBudget's profile was calibrated with "
                f"{self.profile.draft_length}; decode with draft_length={self.profile.draft_length}, or calibrate again"
            )
        if new.first:
            self._begin_call(new.rows.device)
            self._last = self._clock()

    def thresholds(self, state: RoundState) -> Tensor:
        self._profile_check.check_round(state)
        return self.current.expand(len(state.drafted))

    def observe(self, outcome: RoundOutcome) -> None:
        now = self._clock()
        self.learn(outcome.kept, now - self._last)
        self._last = now

    def learn(self, kept: Tensor, seconds: float) -> None:
        """Updates averages and T after a round.

        Args:
            kept: (B,) tokens added to the texts; 0 for empty rows.
            seconds: duration of the round.
        """
        self._rounds_seen += 1
        weight = max(1 / self.rounds, 1 / (self._rounds_seen + 1))  # the profile's expectation counts as one round
        self._seconds += weight * (seconds - self._seconds)
        tokens = kept.sum(dtype=torch.float64) / kept.count_nonzero().clamp_min(1)
        self._tokens = torch.lerp(self._tokens, tokens, weight)
        self._expected = torch.lerp(self._expected, self._reached, weight)
        self._set_threshold()
        self._call.add(self._wanted > self._curve.tokens[-1], tokens, seconds)

    def _set_threshold(self) -> None:
        """Sets T for the next round."""
        self._wanted = self._expected / self._tokens * (self.tokens_per_second * self._seconds)
        self._reached = self._wanted.clamp(self._curve.tokens[0], self._curve.tokens[-1])
        self.current = self._curve.inverse(self._reached)

    def _begin_call(self, device: torch.device) -> None:
        """Begins a call of the decoder on `device`."""
        self._curve.to(device)
        self._tokens, self._expected = self._tokens.to(device), self._expected.to(device)
        self._call = Tally()  # of tokens of one stream; seconds are what is spent
        self._set_threshold()

    def _check_reach(self) -> None:
        profile = self.profile
        own = [profile.speed.chosen] if profile.threshold is not None else []
        fastest = max([*own, *(p.forecast or 0.0 for p in reachable_points(profile, self.beyond))])
        if self.tokens_per_second > fastest and not self.beyond:
            raise UsageError(
                f"tokens_per_second is {self.tokens_per_second:g}, but the fastest point up to the profile's threshold "
                f"makes {fastest:.4g}; set a lower speed, or beyond=True to allow thresholds that are not certified"
            )

    def check(self, models: Sequence[Any], tokenizer: Any, rule: str, score: str) -> None:
        self._profile_check.check(models, tokenizer, rule, score)

    def departures(self, settings: Sequence[Any]) -> list[str]:
        return self._profile_check.departures(settings)

    def doubts(self) -> list[str]:
        call, requested = self._call, self.tokens_per_second
        if call.share_limited <= MOSTLY or float(call.tokens) >= _CLOSE * requested * float(call.spent):
            return self._profile_check.doubts
        speed = float(call.tokens) / float(call.spent)
        more = "calibrate larger thresholds" if self.beyond else "set beyond=True to allow thresholds not certified"
        return [
            *self._profile_check.doubts,
            f"SpeedBudget should hold {requested:g} tokens/s but made {speed:.4g}: T was at its largest value, "
            f"{self._curve.thresholds[-1]:g}, in {call.share_limited:.0%} of the rounds; set a lower speed, decode "
            f"fewer prompts at a time, or {more}",
        ]

    def facts(self) -> dict[str, float | Tensor]:
        return {
            "requested (tokens/s)": self.tokens_per_second,
            "round (s)": self._seconds,
            "tokens made over expected": self._tokens / self._expected,
        }

    def state_dict(self) -> dict[str, Any]:
        learned = (self._rounds_seen, self._seconds, float(self._tokens), float(self._expected))
        return state_of(self, self._settings, dict(zip(_LEARNED, learned, strict=True)))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._rounds_seen, self._seconds, *tensors = learned_from(state, self, self._settings, _LEARNED).values()
        self._tokens, self._expected = torch.tensor(tensors, dtype=torch.float64).unbind()
        self._begin_call(torch.device("cpu"))
