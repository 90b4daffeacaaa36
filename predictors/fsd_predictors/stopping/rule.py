"""Stopping rules, which decide after each drafted token whether to draft one more; the predictor's own is `Throughput`.

Rules work on floats (one row) or arrays (many rows) alike; `in_loop.py` runs them while decoding, `in_replay.py` over
traces. Published rules are in `baselines.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Protocol

import numpy as np

from fsd_collectors.replay.cost import CostModel
from fsd_common.errors import UsageError
from fsd_predictors.features import Array, Drafted, RoundContext, Value, feature_values, matrix

Answer = bool | Array  # (n,) bool of n rows
Kept = tuple[Value, ...]  # what a rule keeps of a row's rounds


@dataclass
class Round:
    """A round being drafted, of one row (all values are floats) or of n rows (arrays).

    Args:
        context: what was known before the round.
        kept: what the rule keeps of the row's earlier rounds, see `StoppingRule.remembers`.
        steps: the tokens drafted so far.
        survival: S, for the rule to carry from token to token.
        state: the draft's last hidden state, which gave the last token's q; empty unless the rule reads it.
    """

    context: RoundContext
    kept: Kept = ()
    steps: list[Drafted] = field(default_factory=list)
    survival: Value = 1.0
    state: Sequence[Value] = ()


class StoppingRule:
    """Decides after each drafted token whether to draft one more; the first of a round is always drafted.

    Attributes:
        name: name of the kind of rule.
        kept: what is kept of a row before its first round.
        reads_threshold: whether decisions depend on T.
        reads_state: whether they depend on the draft's hidden state.
    """

    name: str
    kept: Kept = ()
    reads_threshold: bool = False
    reads_state: bool = False

    @property
    def identity(self) -> str:
        """Name and parameters: two rules of the same identity stop alike."""
        raise NotImplementedError

    def goes_on(self, drafting: Round) -> Answer:
        """Returns whether to draft one more token; never after one that ends the text."""
        ends = drafting.steps[-1].ends
        if isinstance(ends, float):
            return not ends and self.wants_more(drafting)
        more: Array = np.logical_and(ends == 0.0, self.wants_more(drafting))
        return more

    def wants_more(self, drafting: Round) -> Answer:
        """Returns whether to draft one more token of a text that has not ended."""
        raise NotImplementedError

    def remembers(self, kept: Kept, drafted: Value, accepted: Value) -> Kept:
        """Returns what is kept of a row once a round is verified."""
        return kept


def numbers(*values: float) -> str:
    """Formats numbers for an identity: the shortest digits that restore them exactly."""
    return ", ".join(repr(float(value)) for value in values)


@dataclass(frozen=True)
class Rates:
    """λ by T, and the costs it was found with.

    Args:
        shares: thresholds as logit(u), strictly rising.
        tokens_per_second: λ at each share; interpolated between shares, constant beyond them.
        costs: seconds c of a draft step, v of a verification and Δv of a verified position.
    """

    shares: tuple[float, ...]
    tokens_per_second: tuple[float, ...]
    costs: CostModel

    def __post_init__(self) -> None:
        rising = all(one < other for one, other in zip(self.shares, self.shares[1:], strict=False))
        if not self.shares or not rising or not all(map(math.isfinite, self.shares)):
            raise UsageError(f"shares are {self.shares!r:.80}; they must be finite, rising numbers, at least one")
        rates = self.tokens_per_second
        if len(rates) != len(self.shares) or not all(0.0 <= rate < math.inf for rate in rates):
            raise UsageError(f"tokens_per_second are {rates!r:.80}; give a finite number of 0 or more for each share")

    @property
    def identity(self) -> str:
        return repr((self.shares, self.tokens_per_second, asdict(self.costs)))

    def worth(self, share: Value) -> Value:
        """Returns λ(c + Δv): the tokens that the time of a draft step and of its verified position would bring."""
        rate: Value = np.interp(share, self.shares, self.tokens_per_second)
        return rate * (self.costs.draft_step + self.costs.position)


_VERSION = 1  # part of the identity, raised when the same predictor would stop elsewhere: it voids cached texts


class Forecast(Protocol):
    """The part of `AcceptanceModel` that the rule uses: the probability of acceptance of one row and of several."""

    def probability(self, values: Sequence[float]) -> float: ...

    def predict_proba(self, x: Array) -> Array: ...


class Throughput(StoppingRule):
    """Stops where one more token is expected to bring less than its time would bring otherwise.

    Let S_j be the probability that all j tokens so far are accepted, λ the tokens per second, and c and Δv the seconds
    of a draft step and of one more verified position. The draft ends when S_j·b_{j+1} < λ(c + Δv). Every drafted token
    is verified: leaving out a last token where S_{j-1}·a_j < λΔv gained at most 0.2 % in six settings, see
    docs/predictor.md.

    Args:
        accepting: forecasts a_j from `features.feature_values`.
        further: forecasts b_{j+1} from the same features.
        rates: λ by T, c and Δv.
        fingerprint: identifies the forecasts, as part of the rule's identity.
        reads_state: whether both forecasts read the draft's hidden state after their features.
    """

    name = "throughput"
    reads_threshold = True

    def __init__(
        self, accepting: Forecast, further: Forecast, rates: Rates, fingerprint: str, reads_state: bool = False
    ) -> None:
        self._accepting, self._further, self._rates, self._fingerprint = accepting, further, rates, fingerprint
        self.reads_state = reads_state
        self._share = self._needed = math.nan  # cache of `_worth`: the last share and its result

    @property
    def identity(self) -> str:
        return f"{self.name}-{_VERSION}({self._fingerprint}, {self._rates.identity})"

    def wants_more(self, drafting: Round) -> Answer:
        values = [*feature_values(drafting.steps, drafting.context), *drafting.state]
        needed = self._worth(drafting.context.share)
        survival = drafting.survival = drafting.survival * _forecast(self._accepting, values)
        if isinstance(survival, float) and survival < needed:
            return False  # whatever b is
        return survival * _forecast(self._further, values) >= needed

    def _worth(self, share: Value) -> Value:
        """Returns `Rates.worth`, cached for one row."""
        if not isinstance(share, float):
            return self._rates.worth(share)
        if share != self._share:
            self._share, self._needed = share, float(self._rates.worth(share))
        return self._needed


def _forecast(model: Forecast, values: list[Value]) -> Value:
    if isinstance(values[0], float):
        return model.probability(values)  # type: ignore[arg-type]  # where one is a float, all are
    return model.predict_proba(matrix(values))[:, 1]
