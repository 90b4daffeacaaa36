"""A budget of risk: so much accepted divergence, or so many substitutions, per token, and never more in the long run.

Knows what a round spent and the update that holds T to it. Knows neither clocks nor accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from fsd_decoding.adaptive.budget import MOSTLY, SameModels, Tally, restored, saved
from fsd_decoding.errors import UsageError
from fsd_decoding.policies.threshold import Begun, RoundOutcome, RoundState, ThresholdPolicy
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from fsd_decoding.validation import amount

Measure = Literal["divergence", "substitutions"]
_LARGEST = {"js": math.log(2), "tv": 1.0, "hellinger": 1.0}  # and of their @k forms: merging tokens adds none
_A_SUBSTITUTION = 1 / 16  # of the ceiling: what it moves T by, as if it were so much divergence
_LEARNED = ("threshold", "tokens", "spent", "slots", "credit", "divergence")


class DivergenceBudget(ThresholdPolicy):
    """Holds what is spent per emitted token: the divergence of tokens that the divergence alone accepted, or their
    number (`measure="substitutions"`). Adaptive-conformal update (Gibbs and Candès 2021), one T for all rows:

        T ← min(ceiling, T + γ·u·(per_token · tokens of the round - spent in it)),   T < 0 accepts nothing

    with u = 1 for divergences, and ceiling/16 for substitutions, which are no nats. γ is `gamma`, or less: 1/m, where m
    is the most tokens that any round so far could have substituted (rows times drafted).

    Guarantee, for any texts, models and order, and after every round: with n tokens emitted

        mean spent ≤ per_token + (start/(γ₁u) + ceiling/u·(1/γ - 1/γ₁) + o) / n  =  bound(n),

    γ₁ that of the first round and γ today's, o = 0 for divergences and m for substitutions. By default `start` is 0,
    so that divergences in rounds of one size (rows times drafted) never are above the budget at all.
    Proof: the ceiling only lowers T, so spent - per_token·tokens ≤ (T - T')/(γu) in every round, T' being the next T.
    Summed, with γ only ever falling: the sum of excess ≤ T₁/(γ₁u) + ceiling/u·(1/γ - 1/γ₁) - T'/(γu), as T ≤ ceiling.
    A round that began with T ≥ 0 spends at most m·T of divergence, for each token has D ≤ T: then T' ≥ T(1 - γm) ≥ 0.
    Of substitutions it spends at most m, which adds as much to the excess before it; rounds with T < 0 spend
    nothing, and the excess falls. ∎

    From below: while T is below its ceiling the mean is at least per_token - ceiling/(γ·u·n): what T stands for was
    saved first. At the ceiling what is not spent is given up and not saved for later (no windup): then the budget was
    out of reach, and `doubts` says so.

    current: T of the next round, () on the device.

    Args:
        per_token: nats, or substitutions, per emitted token.
        ceiling: the largest T; default: the profile's, else the largest value of the divergence (js, tv, hellinger).
        start: the first T. gamma: larger follows a stream faster, and lets T waver more.
        profile: where it is given, models, rule and divergence must be its own.

    Raises:
        UsageError: a number is negative, NaN or infinite, the ceiling 0; no token can spend more than `per_token`;
            `start` is above the ceiling; the profile's T is moved, or it has no threshold and no ceiling is given. In
            use: the divergence has no largest value and there is no ceiling, or it is another than before.
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
    ) -> None:
        self.per_token, self._start = amount("per_token", per_token), amount("start", start)
        self.gamma, self.measure = amount("gamma", gamma, zero=False), measure
        if measure not in ("divergence", "substitutions"):
            raise UsageError(f"measure is {measure!r}; it must be 'divergence' or 'substitutions'")
        self._same = SameModels(profile) if profile is not None else None
        self._ceiling = _ceiling(ceiling, profile)
        self._settings = {
            "per_token": self.per_token,
            "measure": measure,
            "gamma": self.gamma,
            "ceiling": self._ceiling,
        }
        self._check_within(self._ceiling or max(_LARGEST.values()))
        self._divergence: str | None = None  # whose T it learned
        self._credit = 0.0  # the bound's, times u
        self._slots: int | None = None  # m; None before the first round, which may draft nothing
        self.current = torch.tensor(self._start, dtype=torch.float64)
        zero = torch.zeros((), dtype=torch.float64)
        self._before, self._call = (zero, zero), Tally()  # tokens and what was spent, before this call and in it

    def check(self, models: Sequence[Any], tokenizer: Any, rule: str, divergence: str) -> None:
        if self._same is not None:
            self._same.check(models, tokenizer, rule, divergence)
        if self._divergence not in (None, divergence):
            raise UsageError(f"this DivergenceBudget has spent {self._divergence!r}; make another for {divergence!r}")
        if self._ceiling is None and _base(divergence) not in _LARGEST:
            raise UsageError(f"divergence {divergence!r} has no largest value; give DivergenceBudget(ceiling=...)")
        self._check_within(self._largest(divergence))
        self._divergence = divergence

    def start(self, begun: Begun) -> None:
        if begun.first:
            self._begin(begun.rows.device)

    def thresholds(self, state: RoundState) -> Tensor:
        if self._same is not None:
            self._same.check_round(state)
        return self.current.expand(len(state.drafted))

    def observe(self, outcome: RoundOutcome) -> None:
        substituted = outcome.substituted
        counted = substituted if self.measure == "substitutions" else outcome.divergences.where(substituted, 0.0)
        self.spend(outcome.kept, counted.sum(dtype=torch.float64), substituted.numel())

    def spend(self, kept: Tensor, spent: Tensor, slots: int) -> None:
        """The update: a round that could have substituted `slots` tokens kept (B,) tokens and spent () on them."""
        tokens = kept.sum(dtype=torch.float64)
        moved = torch.add(self.current, self.per_token * tokens - spent, alpha=self._step(slots))
        self.current = moved.clamp_max(self.ceiling)
        self._call.add(moved >= self.ceiling, tokens, spent)

    @property
    def ceiling(self) -> float:
        """The largest T. Where none was given, that of js until a decoder says which divergence it runs."""
        return self._largest(self._divergence or "js")

    @property
    def mean(self) -> float:
        """Spent per emitted token so far; NaN before the first. Waits for the device."""
        tokens, spent = self._total
        return float(spent) / float(tokens) if float(tokens) else math.nan

    def bound(self, tokens: float) -> float:
        """What `mean` cannot exceed after so many tokens, all of them emitted in rounds like those so far."""
        overshoot = self._slots or 0 if self.measure == "substitutions" else 0
        return self.per_token + (self._credit / self._unit + overshoot) / tokens

    def doubts(self) -> list[str]:
        call, doubts = self._call, self._same.doubts if self._same is not None else []
        if call.share_limited <= MOSTLY:
            return doubts
        spent = float(call.spent) / float(call.tokens)
        return [
            *doubts,
            f"DivergenceBudget was given {self.per_token:g} a token and spent {spent:.3g}: T was at its ceiling, "
            f"{self.ceiling:.4g}, in {call.share_limited:.0%} of the rounds; these texts leave no more to spend below "
            "it: budget less, or raise ceiling= if the divergence goes further",
        ]

    def facts(self) -> dict[str, float | Tensor]:
        tokens, spent = self._total
        return {f"budget ({self.measure} a token)": self.per_token, f"spent ({self.measure} a token)": spent / tokens}

    def state_dict(self) -> dict[str, Any]:
        read = (float(self.current), *map(float, self._total))
        learned = (*read, self._slots, self._credit, self._divergence)
        return saved(self, self._settings, dict(zip(_LEARNED, learned, strict=True)))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        *read, self._slots, self._credit, self._divergence = restored(self, self._settings, _LEARNED, state).values()
        self.current, *before = torch.tensor(read, dtype=torch.float64).unbind()
        self._before, self._call = (before[0], before[1]), Tally()

    def _largest(self, divergence: str) -> float:
        return _LARGEST[_base(divergence)] if self._ceiling is None else self._ceiling

    def _check_within(self, ceiling: float) -> None:
        """UsageError: it begins above the ceiling, or no text could spend so much."""
        if self._start > ceiling:
            raise UsageError(f"start is {self._start:g}, above the ceiling, {ceiling:.4g}; begin at or below it")
        most = 1.0 if self.measure == "substitutions" else ceiling
        if self.per_token >= most:
            raise UsageError(
                f"per_token is {self.per_token:g}; no token can spend more than {most:.4g} ({self.measure}): budget "
                "less, or decode at a constant T"
            )

    def _begin(self, device: torch.device) -> None:
        """A call begins there."""
        tokens, spent = self._total
        self.current, self._before = self.current.to(device), (tokens.to(device), spent.to(device))
        self._call = Tally()

    @property
    def _total(self) -> tuple[Tensor, Tensor]:
        """Tokens, and what was spent, of all calls."""
        return self._before[0] + self._call.tokens, self._before[1] + self._call.spent

    def _step(self, slots: int) -> float:
        """γu of a round of so many slots; where γ falls, the bound grants what T may stand for."""
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
        """u: nats that one of what is spent counts as."""
        return self.ceiling * _A_SUBSTITUTION if self.measure == "substitutions" else 1.0


def _ceiling(given: float | None, profile: ThresholdProfile | None) -> float | None:
    """What the largest T is set to; None: the divergence's own largest value."""
    if given is not None:
        return amount("ceiling", given, zero=False)
    if profile is not None and profile.threshold is None:
        raise UsageError(f"the profile of {profile.task!r} has no threshold to be a ceiling; give ceiling=")
    return None if profile is None else profile.threshold


def _base(divergence: str) -> str:
    """A divergence's name without its @k."""
    return divergence.partition("@")[0]
