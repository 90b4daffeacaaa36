"""The throughput rule: draft as long as one more token is worth its time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from fsd_predictors.features.features import Array, Value, feature_values, matrix
from fsd_predictors.stopping.rates import Rates
from fsd_predictors.stopping.rule import Answer, Round, StoppingRule

_VERSION = 2  # part of the identity, raised when the same predictor would stop elsewhere: it voids cached texts


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
