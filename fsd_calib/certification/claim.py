"""What a certificate claims of a setting, and the test that decides it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from fsd_calib.certification import betting_test, grouped, multi_seed, score_test
from fsd_calib.certification.bounds import largest
from fsd_calib.certification.outcomes import Paired
from fsd_common.errors import UsageError

Acc = Literal["retention", "absolute"]
Guarantee = Literal["population", "dataset"]
Test = Literal["score", "betting"]
PValue = Callable[[Paired, float], float]
"""Returns the p-value of H0: retention <= the number."""


@dataclass(frozen=True)
class Claim:
    """The claim that at least `wanted` of the target's accuracy is retained, or of all problems solved (`acc`
    "absolute").

    Args:
        wanted: None: nothing is tested, only bounds are computed.
        guarantee: "population": holds for problems like these. "dataset": for these `problems`, with the noise of their
            seeds; always tested by betting, and no longer uncertain once all were decoded.
        test: "score" decides on the whole certification part. "betting" is valid at any time, so it may decide early;
            it has less power where all problems are decoded anyway.
        problems: Size of the whole certification part. Without it no test stops for futility.
        confidence: Of what is printed beside a claim that passed, see `given_passing`.
        dropped: Problems beside these that count as lost, see `dropped`.

    Raises:
        UsageError: `wanted` is out of range, or `problems` is required and missing.
    """

    wanted: float | None
    acc: Acc = "retention"
    guarantee: Guarantee = "population"
    test: Test = "score"
    problems: int | None = None
    confidence: float = 0.95
    dropped: int = 0

    def __post_init__(self) -> None:
        most = 1.0 if self.acc == "absolute" else math.inf
        if self.wanted is not None and not (0 < self.wanted <= most and self.wanted < math.inf):
            rule = "above 0 and at most 1" if self.acc == "absolute" else "above 0 (0.98 keeps 98 %)"
            quantity = "accuracy" if self.acc == "absolute" else "retention"
            raise UsageError(f"the wanted {quantity} is {self.wanted}; it must be {rule}")
        if self.guarantee == "dataset" and self.problems is None:
            raise UsageError("guarantee 'dataset' needs the number of problems; give it, or use guarantee 'population'")

    @property
    def any_time(self) -> bool:
        """Whether the test may decide before all problems are decoded."""
        return self.test == "betting" or self.guarantee == "dataset"

    def method_on(self, paired: Paired | None) -> str:
        """The name of the test of these grades, as it is written to a profile."""
        if self.guarantee == "dataset":
            return "betting test without replacement; fixed sequence"
        if self.test == "betting":
            return "betting test; fixed sequence"
        if paired is not None and paired.groups is not None:
            return "t test of sums over groups (betting below 5 that flipped); fixed sequence"
        if self.acc == "absolute":
            return "exact binomial test (several seeds: score test of problems); fixed sequence"
        return "paired-ratio score test, exact below 12 flips (several seeds: betting below 5); fixed sequence"

    def p_value(self, paired: Paired) -> float:
        """Returns the p-value of H0: the claim is false. Under H0, p <= delta has a probability of at most delta.

        That holds as far as the test keeps its size; see the tests' docstrings.
        """
        assert self.wanted is not None
        counted = self._with_dropped(paired)
        return self._test()(counted.against_perfect() if self.acc == "absolute" else counted, self.wanted)

    def bounds(self, paired: Paired, delta: float, any_time: bool = False) -> tuple[float, float]:
        """Returns lower bounds of retention and of absolute accuracy, each by itself at 1 - `delta`.

        Args:
            any_time: Use betting whatever the claim's test is: for a sample whose size depended on its outcomes.

        Raises:
            UsageError: `delta` is not in (0, 1).
        """
        paired = self._with_dropped(paired)
        perfect = paired.against_perfect()
        retention = self._bound(paired, "retention", delta, any_time) if paired.target.any() else 0.0
        return retention, self._bound(perfect, "absolute", delta, any_time)

    def _with_dropped(self, paired: Paired) -> Paired:
        """Returns the grades after those of the dropped problems.

        In front, since betting counts the largest wealth that it ever had, which later losses do not take away.
        """
        return paired.preceded_by(True, False, self.dropped) if self.dropped else paired

    def bound(self, paired: Paired, delta: float) -> float:
        """Returns the lower bound of what is claimed, by itself at 1 - `delta`."""
        paired = self._with_dropped(paired)
        return self._bound(paired.against_perfect() if self.acc == "absolute" else paired, self.acc, delta, False)

    def _bound(self, paired: Paired, acc: Acc, delta: float, any_time: bool) -> float:
        """Returns the bound, which is at least `wanted` where the test of `wanted` passes, whatever the rounding."""
        test = self._test(any_time)
        bound = largest(lambda r: test(paired, r), delta)
        if acc == self.acc and self.wanted is not None and test(paired, self.wanted) <= delta:
            return max(bound, self.wanted)
        return bound

    def _test(self, any_time: bool = False) -> PValue:
        if self.any_time or any_time:
            whole = self.problems + self.dropped if self.problems is not None and self.guarantee == "dataset" else None
            return lambda paired, r: betting_test.p_value(paired, r, whole)
        return _score_test


def _score_test(paired: Paired, wanted: float) -> float:
    if paired.groups is not None:
        return grouped.p_value(paired, wanted)
    return score_test.p_value(paired.outcomes, wanted) if paired.seeds == 1 else multi_seed.p_value(paired, wanted)
