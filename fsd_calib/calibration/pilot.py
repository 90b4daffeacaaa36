"""The pilot of a calibration: what the first tuning problems show, from which a plan follows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import beta

from fsd_calib.certification.bounds import Floor
from fsd_calib.certification.claim import Claim
from fsd_calib.certification.multi_seed import FEW
from fsd_calib.certification.outcomes import Paired
from fsd_calib.certification.power import Noise, independent_worth
from fsd_calib.measuring.measurement import Measurement

_CAUTION = 0.8  # the probability that the churn is not above the planned one
INTERVAL = (0.1, 0.9)  # quantiles of what a pilot shows


@dataclass(frozen=True)
class Pilot:
    """Counts on the first tuning problems: the target, the lossless rule, and one plausible fuzzy setting."""

    problems: int
    accuracy: float  # of the target
    numerical_churn: float | None  # share of outcomes that flip between the target and the lossless rule, by rounding
    churn: float  # between the target and the fuzzy setting
    retention: float | None  # of the fuzzy setting; None: the target solved nothing
    worth: float = 1.0  # independent problems that one in a group counts as
    noise: Noise | None = None  # of outcomes; None: there is one seed

    @classmethod
    def of(cls, target: Measurement, lossless: Measurement | None, fuzzy: Measurement, claim: Claim) -> Pilot:
        """Returns the pilot of measurements on the same problems; `lossless` is None where its noise is its own.

        With several seeds all shares but the numerical churn are of (problem, seed) pairs.

        Args:
            claim: what is to be shown, by which flips of a group are weighed.
        """
        paired = Paired.of(target, fuzzy)
        return cls(
            target.problems,
            target.accuracy,
            None if lossless is None else float((target.correct[:, 0] != lossless.correct[:, 0]).mean()),
            float((target.correct != fuzzy.correct).mean()),
            fuzzy.accuracy / target.accuracy if target.accuracy else None,
            _worth(claim.judged(paired).of_seed(0), claim.wanted or 1),
            Noise.of(claim.judged(paired), claim.wanted or 1) if paired.seeds > 1 else None,
        )

    @property
    def floor(self) -> Floor | None:
        """How often rounding alone flips an outcome; None: that is not known."""
        churn = self.numerical_churn
        return None if churn is None else Floor.of(round(self.problems * churn), self.problems)

    @property
    def likely_accuracy(self) -> float:
        """The target's accuracy as the mean under Jeffreys' prior: never 0 or 1, which a pilot cannot show."""
        return (self.problems * self.accuracy + 0.5) / (self.problems + 1)

    @property
    def cautious_churn(self) -> float:
        """Upper 80 % bound of the churn."""
        return self._churn_at(_CAUTION)

    @property
    def churn_between(self) -> tuple[float, float]:
        """The ends of the 80 % interval of the churn."""
        low, high = map(self._churn_at, INTERVAL)
        return low, high

    def _churn_at(self, probability: float) -> float:
        """A quantile of the churn by Jeffreys' interval (Brown, Cai, DasGupta 2001)."""
        flipped = self.problems * max(self.churn, self.numerical_churn or 0.0)
        return float(beta.ppf(probability, flipped + 0.5, self.problems - flipped + 0.5))


def _worth(tested: Paired, wanted: float) -> float:
    """See `Pilot`, by the outcomes that the claim's test compares, with one seed.

    Where too few of them flipped to tell, a group counts as one problem.
    """
    if tested.groups is None:
        return 1.0
    if np.count_nonzero(tested.unit_flips) < FEW:
        return len(tested.unit_sizes) / tested.problems
    return min(independent_worth(tested, wanted), 1.0)
