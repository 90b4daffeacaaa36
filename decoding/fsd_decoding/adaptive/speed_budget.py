"""A budget of speed: so many tokens a second of every stream, at the least T that gives them.

Knows clocks, averages and what a profile measured. Knows nothing of quality beyond what the profile's T stands for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fsd_decoding.adaptive.budget import MOSTLY, SameModels, Tally, restored, saved
from fsd_decoding.errors import UsageError
from fsd_decoding.policies.threshold import Begun, RoundOutcome, RoundState, ThresholdPolicy
from fsd_decoding.profile.curve import CurvePoint, arm_of
from fsd_decoding.profile.selection import corrected
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from fsd_decoding.validation import amount, check_count

# MERGED: """How many tokens a round brings at each T, as a profile measured it, and which T brings so many.
#
# Knows a profile's curve and the lines through its points. Knows neither clocks nor rounds.
# """


_LOSSLESS = -1e-9  # D is never negative
_STEP = 1e-3  # tokens a round between two T that measured alike: leads from one to the other


@dataclass(frozen=True)
class TokensCurve:
    """Lines between points, both coordinates rising."""

    thresholds: tuple[float, ...]
    tokens: tuple[float, ...]  # a round, of one stream

    @classmethod
    def of(cls, profile: ThresholdProfile, beyond: bool) -> TokensCurve:
        """From the lossless rule up to the profile's T, or `beyond` it to the largest T measured.

        Where measurements fall while T rises they are evened out, each weighing its problems (isotonic regression).

        UsageError: there is no such T.
        """
        from scipy.optimize import isotonic_regression

        points = reached(profile, beyond)
        tokens = [_lossless(profile), *(p.tokens_per_round for p in points)]
        weights = [max(p.problems for p in points), *(p.problems for p in points)]
        rising = isotonic_regression(np.array(tokens), weights=np.array(weights)).x
        steps = _STEP * np.arange(len(rising))
        return cls((_LOSSLESS, *(p.threshold or 0.0 for p in points)), tuple((rising + steps).tolist()))


class Inverse:
    """T by tokens a round, on a device."""

    def __init__(self, curve: TokensCurve, device: torch.device) -> None:
        shape = torch.tensor([curve.thresholds, curve.tokens], dtype=torch.float64).to(device)
        rise, self._widths = shape.diff()
        self._starts, self._slopes = shape[1, :-1], rise / self._widths
        self._lowest = curve.thresholds[0]

    def __call__(self, tokens: Tensor) -> Tensor:
        """() -> (); beyond the curve's ends the T there."""
        along = (tokens - self._starts).clamp_min(0.0).minimum(self._widths)  # how far on each line
        found: Tensor = (along * self._slopes).sum() + self._lowest
        return found


def reached(profile: ThresholdProfile, beyond: bool) -> Sequence[CurvePoint]:
    """The profile's own points that T may move between, by T. UsageError: there are none."""
    arm = arm_of(profile.rule, profile.divergence, profile.draft_length, policy=None)
    mine = {p.threshold: p for p in corrected(profile.curve) if p.arm == arm and p.threshold is not None}
    most = math.inf if beyond else profile.threshold
    if most is None:
        raise UsageError(
            f"the profile of {profile.task!r} has no threshold (outcome {profile.outcome!r}), T has nowhere to move; "
            "calibrate for one, or let T go beyond what is certified with beyond=True"
        )
    points = [mine[threshold] for threshold in sorted(mine) if threshold <= most]
    if not points:
        raise UsageError(f"the profile of {profile.task!r} measured no threshold of its own rule; calibrate again")
    return points


def _lossless(profile: ThresholdProfile) -> float:
    """Tokens a round where T accepts nothing; `fsd` then is the target alone."""
    if profile.rule == "fsd":
        return 1.0
    own = [p for p in corrected(profile.curve) if p.draft is None]
    found = [p for p in own if p.rule == "sd" and p.draft_length == profile.draft_length]
    return found[0].tokens_per_round if found else profile.tokens_per_round.sd


_LEARNED = ("rounds", "seconds", "tokens", "expected")
_CLOSE = 0.95  # of what was asked: less than that was out of reach, where T could go no further


class SpeedBudget(ThresholdPolicy):
    """Holds the tokens/s of one stream, the mean over the rows being decoded: what --min-speed and a profile's `speed`
    mean. T moves between lossless and the profile's own; `beyond`: up to the largest that it measured.

    Tokens a second are tokens a round, which T decides, over seconds a round, which it does not. So a round's seconds
    s are measured; the profile's curve g says what tokens a round T brings, and ρ = live tokens / those that g
    expected, what they bring here: T = g⁻¹(asked · s / ρ), held to the curve's ends. s and ρ are averages that never
    depend on how far T could follow, so nothing winds up where it could not; where T settles, ρ·g(T) is what rounds do
    bring, so what is made is what was asked, however wrong g is. Slower than asked is what it mends; where lossless
    decoding is faster already, T stays there.

    A round lasts from the end of the one before, in a call's first round from when its first texts begin. So prompts
    count, as they do in a profile's speeds, and so does whatever a consumer of `stream` does between pieces; time
    between calls does not.

    Settling: averages reach `rounds` rounds back (R), a step in what they follow has decayed to exp(-n/R) of itself
    after n rounds. When rounds suddenly cost twice as much, speed is within 5 % of what was asked after R·ln 10
    rounds, when half as much after R·ln 20: `settling`, 192 rounds by default. A step in ρ takes as long where live
    tokens answer T as steeply as the profile's, and 1/b of it where they answer b times as steeply. The first `rounds`
    rounds count alike and outweigh the profile at once, so a budget begins faster than it goes on.

    current: T of the next round, () on the device.

    Raises:
        UsageError: `tokens_per_second` is not above 0 or beyond the profile's fastest point; the profile has no
            threshold. Both but for the number itself are allowed with `beyond`. In use: the profile is of other
            models, or of another rule, divergence or draft length.
    """

    budget = True

    def __init__(
        self,
        tokens_per_second: float = 60.0,
        profile: ThresholdProfile | None = None,
        beyond: bool = False,
        rounds: int = 64,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.tokens_per_second = amount("tokens_per_second", tokens_per_second, zero=False)
        check_count("rounds", rounds)
        if profile is None:
            raise UsageError("SpeedBudget needs profile=: without one nothing says how far T may move")
        self.profile, self.beyond, self.rounds = profile, beyond, rounds
        self._same = SameModels(profile)
        self._curve = TokensCurve.of(profile, beyond)
        self._check_reach()
        self._settings = {
            "tokens_per_second": self.tokens_per_second,
            "averaged_rounds": rounds,
            "calibrated": profile.created.isoformat(),
            "beyond": beyond,
        }
        self._clock, self._last = clock, 0.0
        self._seen = 0  # rounds
        self._seconds = profile.tokens_per_round.chosen / max(profile.speed.chosen, 1e-9)  # of a round, averaged
        most = torch.tensor(self._curve.tokens[-1], dtype=torch.float64)
        self._tokens = self._expected = most  # of a round, averaged: live ones, and those that the curve expected
        self._move_to(torch.device("cpu"))

    @property
    def settling(self) -> int:
        """Rounds after which speed is within 5 % again once rounds cost half, or twice, what they did."""
        return math.ceil(math.log(20) * self.rounds)

    def start(self, begun: Begun) -> None:
        wrong = [r.draft_length for r in begun.requests if r.draft_length != self.profile.draft_length]
        if wrong:
            raise UsageError(
                f"draft_length is {wrong[0]}, SpeedBudget's profile is of {self.profile.draft_length}; decode with "
                "that one, or calibrate with this"
            )
        if begun.first:
            self._move_to(begun.rows.device)
            self._last = self._clock()

    def thresholds(self, state: RoundState) -> Tensor:
        self._same.check_round(state)
        return self.current.expand(len(state.drafted))

    def observe(self, outcome: RoundOutcome) -> None:
        now = self._clock()
        self.learn(outcome.kept, now - self._last)
        self._last = now

    def learn(self, kept: Tensor, seconds: float) -> None:
        """A round took so long and brought the rows `kept` (B,) tokens; 0: the row is empty."""
        self._seen += 1
        share = max(1 / self.rounds, 1 / (self._seen + 1))  # what the profile expected counts as a round
        self._seconds += share * (seconds - self._seconds)
        tokens = kept.sum(dtype=torch.float64) / kept.count_nonzero().clamp_min(1)
        self._tokens = torch.lerp(self._tokens, tokens, share)
        self._expected = torch.lerp(self._expected, self._reached, share)
        self._aim()
        self._call.add(self._wanted > self._curve.tokens[-1], tokens, seconds)

    def _aim(self) -> None:
        """T for the next round."""
        self._wanted = self._expected / self._tokens * (self.tokens_per_second * self._seconds)
        self._reached = self._wanted.clamp(self._curve.tokens[0], self._curve.tokens[-1])
        self.current = self._inverse(self._reached)

    def _move_to(self, device: torch.device) -> None:
        """A call begins there."""
        self._inverse = Inverse(self._curve, device)
        self._tokens, self._expected = self._tokens.to(device), self._expected.to(device)
        self._call = Tally()  # tokens of one stream, and seconds
        self._aim()

    def _check_reach(self) -> None:
        profile = self.profile
        own = [profile.speed.chosen] if profile.threshold is not None else []
        fastest = max([*own, *(p.forecast or 0.0 for p in reached(profile, self.beyond))])
        if self.tokens_per_second > fastest and not self.beyond:
            raise UsageError(
                f"tokens_per_second is {self.tokens_per_second:g}; the fastest point up to the profile's threshold "
                f"makes {fastest:.4g}: ask for less, or let T go beyond what is certified with beyond=True"
            )

    def check(self, models: Sequence[Any], tokenizer: Any, rule: str, divergence: str) -> None:
        self._same.check(models, tokenizer, rule, divergence)

    def doubts(self) -> list[str]:
        call, asked = self._call, self.tokens_per_second
        if call.share_limited <= MOSTLY or float(call.tokens) >= _CLOSE * asked * float(call.spent):
            return self._same.doubts
        made = float(call.tokens) / float(call.spent)
        more = "calibrate for more" if self.beyond else "let T go beyond the certified one with beyond=True"
        return [
            *self._same.doubts,
            f"SpeedBudget was asked for {asked:g} tokens/s and made {made:.4g}: T was at its largest, "
            f"{self._curve.thresholds[-1]:g}, in {call.share_limited:.0%} of the rounds; ask for less, decode fewer "
            f"prompts at a time, or {more}",
        ]

    def facts(self) -> dict[str, float | Tensor]:
        return {
            "asked (tokens/s)": self.tokens_per_second,
            "a round takes (s)": self._seconds,
            "live tokens over the profile's": self._tokens / self._expected,
        }

    def state_dict(self) -> dict[str, Any]:
        learned = (self._seen, self._seconds, float(self._tokens), float(self._expected))
        return saved(self, self._settings, dict(zip(_LEARNED, learned, strict=True)))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._seen, self._seconds, *both = restored(self, self._settings, _LEARNED, state).values()
        self._tokens, self._expected = torch.tensor(both, dtype=torch.float64).unbind()
        self._move_to(torch.device("cpu"))
