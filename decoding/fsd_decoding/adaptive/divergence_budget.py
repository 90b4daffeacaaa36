"""A risk budget: T is adjusted so that accepted divergence, or substitutions, per token remain within a limit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from fsd_common.argument_checks import amount
from fsd_common.errors import UsageError
from fsd_decoding.adaptive.budget import MOSTLY, ProfileCheck, Tally, learned_from, state_of
from fsd_decoding.policies.threshold import NewRequests, RoundOutcome, RoundState, ThresholdPolicy
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from fsd_decoding.scores import score_named

Measure = Literal["divergence", "substitutions"]
_LARGEST = {
    "js": math.log(2),
    "tv": 1.0,
    "hellinger": 1.0,
}  # nats or none; the same for their @k forms, as merging tokens adds nothing
_A_SUBSTITUTION = 1 / 16  # of the ceiling: the divergence that a substitution counts as when T is updated
_LEARNED = ("threshold", "tokens", "spent", "slots", "credit", "score")


class DivergenceBudget(ThresholdPolicy):
    """Keeps what is spent per emitted token within `per_token`: the divergence of the tokens that were accepted only
    because D <= T, or the number of such tokens (`measure="substitutions"`).

    The update of adaptive conformal inference (Gibbs and Candès, 2021), with one T for all rows:

        T ← min(ceiling, T + γ·u·(per_token · tokens of the round - spent in it)),   T < 0 accepts nothing

    with u = 1 for divergences, and u = ceiling/16 for substitutions, which have no unit. γ is `gamma`, or 1/m if that
    is less, where m is the largest number of tokens that a round so far could have substituted (rows times drafted).

    Guarantee, for any texts, models and order, and after every round: with n tokens emitted

        mean spent ≤ per_token + (start/(γ₁u) + ceiling/u·(1/γ - 1/γ₁) + o) / n  =  bound(n),

    where γ₁ is the γ of the first round and γ that of the latest, o = 0 for divergences and o = m for substitutions.
    By default `start` is 0, so divergences in rounds of one size (rows times drafted) never exceed the budget at all.
    Proof: the ceiling only lowers T, so spent - per_token·tokens ≤ (T - T')/(γu) in every round, T' being the next T.
    In the sum, with γ only ever falling: the total excess ≤ T₁/(γ₁u) + ceiling/u·(1/γ - 1/γ₁) - T'/(γu), as
    T ≤ ceiling. A round that begins with T ≥ 0 spends at most m·T of divergence, as each token has D ≤ T: then
    T' ≥ T(1 - γm) ≥ 0. Of substitutions it spends at most m, which adds as much to the excess before it; rounds with
    T < 0 spend nothing, and the excess falls. ∎

    Lower bound: while T is below its ceiling the mean is at least per_token - ceiling/(γ·u·n), since what T stands for
    was saved first. At the ceiling, what is not spent is given up rather than saved (no windup): then the budget is
    out of reach, and `doubts` says so.

    Args:
        per_token: nats, or substitutions, per emitted token.
        measure: what is limited, "divergence" or "substitutions".
        ceiling: the largest T; default: the profile's, else the largest value of the score (js, tv, hellinger).
        start: the first T.
        gamma: a larger one adapts to the texts faster and lets T fluctuate more.
        profile: if given, models, rule and score must be those it was calibrated with.
        allow_edited: follow a profile that was changed after its calibration.

    Attributes:
        current: T of the next round, () on the device.

    Raises:
        UsageError: a number is negative, NaN or infinite, or the ceiling is 0; no token can spend more than
            `per_token`; `start` is above the ceiling; a policy moves the profile's T, or the profile is for trees, or
            edited, or has no threshold and no ceiling is given. In use: the score has no largest value and no
            ceiling is given, or it is another one than before.
    """

    budget = True

    def __init__(
        self,
        per_token: float = 0.01,
        measure: Measure = "divergence",
        ceiling: float | None = None,
        start: float = 0.0,
        gamma: float = 0.1,
        profile: ThresholdProfile | None = None,
        allow_edited: bool = False,
    ) -> None:
        self.per_token, self._start = amount("per_token", per_token), amount("start", start)
        self.gamma, self.measure = amount("gamma", gamma, zero=False), measure
        if measure not in ("divergence", "substitutions"):
            raise UsageError(f"measure is {measure!r}; it must be 'divergence' or 'substitutions'")
        self._profile_check = ProfileCheck(profile, allow_edited) if profile is not None else None
        self._ceiling = _ceiling_of(ceiling, profile)
        self._settings = {
            "per_token": self.per_token,
            "measure": measure,
            "gamma": self.gamma,
            "ceiling": self._ceiling,
        }
        self._check_within(self._ceiling or max(_LARGEST.values()))
        self._score: str | None = None  # the one that T was learned for
        self._credit = 0.0  # start/γ₁ + ceiling·(1/γ - 1/γ₁) of the bound
        self._slots: int | None = None  # m; None before the first round, which may draft nothing
        self.current = torch.tensor(self._start, dtype=torch.float64)
        zero = torch.zeros((), dtype=torch.float64)
        self._before, self._call = (zero, zero), Tally()  # (tokens, spent) before this call; sums of it

    def check(self, models: Sequence[Any], tokenizer: Any, rule: str, score: str) -> None:
        if self._profile_check is not None:
            self._profile_check.check(models, tokenizer, rule, score)
        if self._score not in (None, score):
            raise UsageError(
                f"this DivergenceBudget has learned a T for score {self._score!r}; create another one for {score!r}"
            )
        if not math.isfinite(self._largest(score)):
            raise UsageError(f"score {score!r} has no largest value; set DivergenceBudget(ceiling=...)")
        self._check_within(self._largest(score))
        self._score = score

    def start(self, new: NewRequests) -> None:
        if new.first:
            device, (tokens, spent) = new.rows.device, self._total
            self.current, self._before = self.current.to(device), (tokens.to(device), spent.to(device))
            self._call = Tally()

    def thresholds(self, state: RoundState) -> Tensor:
        if self._profile_check is not None:
            self._profile_check.check_round(state)
        return self.current.expand(len(state.drafted))

    def observe(self, outcome: RoundOutcome) -> None:
        substituted = outcome.substituted
        counted = substituted if self.measure == "substitutions" else outcome.scores.where(substituted, 0.0)
        self.spend(outcome.kept, counted.sum(dtype=torch.float64), substituted.numel())

    def spend(self, kept: Tensor, spent: Tensor, slots: int) -> None:
        """Updates T after a round.

        Args:
            kept: (B,) tokens added to the texts.
            spent: () divergence or substitutions in them.
            slots: number of tokens that the round could have substituted.
        """
        tokens = kept.sum(dtype=torch.float64)
        updated = torch.add(self.current, self.per_token * tokens - spent, alpha=self._step(slots))
        self.current = updated.clamp_max(self.ceiling)
        self._call.add(updated >= self.ceiling, tokens, spent)

    @property
    def ceiling(self) -> float:
        """The largest T. By default the largest value of the decoder's score, of js before the first decoding."""
        return self._largest(self._score or "js")

    @property
    def mean(self) -> float:
        """What was spent per emitted token so far; NaN before the first token. Waits for the device."""
        tokens, spent = self._total
        return float(spent) / float(tokens) if float(tokens) else math.nan

    def bound(self, tokens: float) -> float:
        """Returns the bound of `mean` after `tokens` tokens, if all rounds are no larger than those so far."""
        overshoot = self._slots or 0 if self.measure == "substitutions" else 0
        return self.per_token + (self._credit / self._unit + overshoot) / tokens

    def departures(self, settings: Sequence[Any]) -> list[str]:
        return [] if self._profile_check is None else self._profile_check.departures(settings)

    def doubts(self) -> list[str]:
        call, doubts = self._call, self._profile_check.doubts if self._profile_check is not None else []
        if call.share_limited <= MOSTLY:
            return doubts
        spent = float(call.spent) / float(call.tokens)
        return [
            *doubts,
            f"DivergenceBudget may spend {self.per_token:g} per token but spent {spent:.3g}: T was at its ceiling, "
            f"{self.ceiling:.4g}, in {call.share_limited:.0%} of the rounds, and these texts offer no more below it; "
            "set a smaller per_token, or raise ceiling= if the score can be larger",
        ]

    def facts(self) -> dict[str, float | Tensor]:
        tokens, spent = self._total
        return {
            f"budget ({self.measure} per token)": self.per_token,
            f"spent ({self.measure} per token)": spent / tokens,
        }

    def state_dict(self) -> dict[str, Any]:
        tensors = (float(self.current), *map(float, self._total))
        learned = (*tensors, self._slots, self._credit, self._score)
        return state_of(self, self._settings, dict(zip(_LEARNED, learned, strict=True)))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        learned = learned_from(state, self, self._settings, _LEARNED)
        *tensors, self._slots, self._credit, self._score = learned.values()
        self.current, *before = torch.tensor(tensors, dtype=torch.float64).unbind()
        self._before, self._call = (before[0], before[1]), Tally()

    def _largest(self, score: str) -> float:
        return _LARGEST.get(_base(score), score_named(score).largest) if self._ceiling is None else self._ceiling

    def _check_within(self, ceiling: float) -> None:
        """Raises UsageError if `start` is above the ceiling, or if no text could spend as much as `per_token`."""
        if self._start > ceiling:
            raise UsageError(
                f"start is {self._start:g}, above the ceiling, {ceiling:.4g}; it must not exceed the ceiling"
            )
        most = 1.0 if self.measure == "substitutions" else ceiling
        if self.per_token >= most:
            raise UsageError(
                f"per_token is {self.per_token:g}, but no token can spend more than {most:.4g} ({self.measure}); set a "
                "smaller per_token, or decode with a constant T"
            )

    @property
    def _total(self) -> tuple[Tensor, Tensor]:
        """(tokens, spent) over all calls."""
        return self._before[0] + self._call.tokens, self._before[1] + self._call.spent

    def _step(self, slots: int) -> float:
        """Returns γu for a round of `slots` tokens. Where γ falls, the bound's credit grows by what T may stand for."""
        most = self._slots or 0
        before = max(1 / self.gamma, most)
        now = max(before, slots)
        if self._slots is None:
            self._credit = self._start * now
        else:
            self._credit += self.ceiling * (now - before)
        self._slots = max(most, slots)
        return self._unit / now

    @property
    def _unit(self) -> float:
        """u: the divergence that one unit of what is spent counts as."""
        return self.ceiling * _A_SUBSTITUTION if self.measure == "substitutions" else 1.0


def _ceiling_of(ceiling: float | None, profile: ThresholdProfile | None) -> float | None:
    """Returns the largest T; None stands for the largest value of the score."""
    if ceiling is not None:
        return amount("ceiling", ceiling, zero=False)
    if profile is not None and profile.threshold is None:
        raise UsageError(f"the profile of {profile.task!r} has no threshold to use as the ceiling; set ceiling=")
    return None if profile is None else profile.threshold


def _base(score: str) -> str:
    """Returns a score's name without its @k."""
    return score.partition("@")[0]
