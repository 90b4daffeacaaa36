"""The throughput rule of DESIGN section 12: draft while one more token is worth its time.

Knows forecasts of acceptance and what time is worth. Knows neither how forecasts are made nor how the worth was found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from fsd_predictors.features.features import Array, Value, known, matrix
from fsd_predictors.stopping.rates import Rates
from fsd_predictors.stopping.rule import Answer, Round, StoppingRule

_VERSION = 2  # raised when the same predictor may stop elsewhere than before: caches of texts ask for it


class Forecast(Protocol):
    """What is asked of a model: the chance that a token is accepted, of one row and of several."""

    def probability(self, values: Sequence[float]) -> float: ...

    def predict_proba(self, x: Array) -> Array: ...


class Throughput(StoppingRule):
    """Stops where a token more brings less than the tokens that its time brings elsewhere.

    With S_j the chance that all j tokens so far are accepted, λ tokens a second, c and Δv the seconds of a draft step
    and of one more verified position: no further token when S_j·b_{j+1} < λ(c + Δv). What is drawn is verified: leaving
    a last token out where S_{j-1}·a_j < λΔv (DESIGN section 12) gained nothing in any setting measured.

    Args:
        accepting: forecasts a_j from `features.known`. further: b_{j+1}.
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
        self._share = self._needed = math.nan  # the last one asked about, and what a step is worth there

    @property
    def identity(self) -> str:
        return f"{self.name}-{_VERSION}({self._fingerprint}, {self._rates.identity})"

    def wants_more(self, drafting: Round) -> Answer:
        values, needed = [*known(drafting.steps, drafting.place), *drafting.state], self._worth(drafting.place.share)
        survival = drafting.survival = drafting.survival * _forecast(self._accepting, values)
        if isinstance(survival, float) and survival < needed:
            return False  # whatever the chance of one more is
        return survival * _forecast(self._further, values) >= needed

    def _worth(self, share: Value) -> Value:
        """Tokens that the time of a step and its position is worth."""
        if not isinstance(share, float):
            return self._rates.worth(share)
        if share != self._share:
            self._share, self._needed = share, float(self._rates.worth(share))
        return self._needed


def _forecast(model: Forecast, values: list[Value]) -> Value:
    if isinstance(values[0], float):
        return model.probability(values)  # type: ignore[arg-type]  # where one is a float, all are
    return model.predict_proba(matrix(values))[:, 1]
