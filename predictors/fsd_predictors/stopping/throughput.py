"""The throughput rule of DESIGN section 12: draft while one more token is worth its time.

Knows forecasts of acceptance and what time is worth. Knows neither how forecasts are made nor how the worth was found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from fsd_predictors.features import Array, Value, matrix, of_accepting, with_token
from fsd_predictors.stopping.rates import Rates
from fsd_predictors.stopping.rule import Answer, Round, StoppingRule

_VERSION = 1  # raised when the same predictor may stop elsewhere than before: caches of texts ask for it


class Forecast(Protocol):
    """What is asked of a model: the chance that a token is accepted, of one row and of several."""

    def probability(self, values: Sequence[float]) -> float: ...

    def predict_proba(self, x: Array) -> Array: ...


class Throughput(StoppingRule):
    """Stops where a token more brings less than the tokens that its time brings elsewhere.

    With S_j the chance that all j tokens so far are accepted, λ tokens a second, c and Δv the seconds of a draft step
    and of one more verified position: no further token when S_j·b_{j+1} < λ(c + Δv); the last stays unverified when
    S_{j-1}·a_j < λΔv. The step that drew it is paid by then, and `accepting` knows nothing of the token.

    Args:
        accepting: forecasts a_j from `features.of_accepting`. further: b_{j+1} from `features.of_next`.
        rates: λ by T, c and Δv.
        fingerprint: names the forecasts, for the identity.
        reads_state: both read the draft's hidden state behind their features.
    """

    name = "throughput"
    reads_threshold = True

    def __init__(
        self, accepting: Forecast, further: Forecast, rates: Rates, fingerprint: str, reads_state: bool = False
    ) -> None:
        self._accepting, self._further, self._rates, self._fingerprint = accepting, further, rates, fingerprint
        self.reads_state = reads_state
        self._share = math.nan  # the last one asked about, and what its times are worth
        self._worths = math.nan, math.nan

    @property
    def identity(self) -> str:
        return f"{self.name}-{_VERSION}({self._fingerprint}, {self._rates.identity})"

    def withholds(self, drafting: Round) -> Answer:
        drafting.known = of_accepting(drafting.steps, drafting.place)
        chance = _forecast(self._accepting, [*drafting.known, *drafting.state])
        drafting.survival = drafting.survival * chance
        return drafting.survival < self._worth(drafting.place.share)[1]

    def wants_more(self, drafting: Round) -> Answer:
        needed, survival = self._worth(drafting.place.share)[0], drafting.survival
        if isinstance(survival, float) and survival < needed:
            return False  # whatever the chance is
        known = with_token(drafting.known, drafting.steps[-1])
        return survival * _forecast(self._further, [*known, *drafting.state]) >= needed

    def _worth(self, share: Value) -> tuple[Value, Value]:
        """Tokens that the time of a step and its position, and of a position alone, are worth."""
        if not isinstance(share, float):
            return self._rates.worth(share)
        if share != self._share:
            step, position = self._rates.worth(share)
            self._share, self._worths = share, (float(step), float(position))
        return self._worths


def _forecast(model: Forecast, values: list[Value]) -> Value:
    if isinstance(values[0], float):
        return model.probability(values)  # type: ignore[arg-type]  # where one is a float, all are
    return model.predict_proba(matrix(values))[:, 1]
