"""What a certificate claims of a setting, and the test that decides it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fsd_calib.certification import betting_test, grouped, multi_seed, score_test
from fsd_calib.certification.bounds import largest
from fsd_calib.certification.looks import NOTHING, Begun, Looks, combined
from fsd_calib.certification.outcomes import Paired
from fsd_common.errors import UsageError

Acc = Literal["retention", "absolute"]
Guarantee = Literal["population", "dataset"]


@dataclass(frozen=True)
class Claim:
    """The claim that at least `wanted` of the target's accuracy is retained, or of all problems solved (`acc`
    "absolute").

    Args:
        wanted: None: nothing is tested, only bounds are computed.
        guarantee: "population": holds for problems like these. "dataset": for these `problems`, with the noise of their
            seeds; tested by betting, which may look at any time, and no longer uncertain once all were decoded.
        looks: After how many problems outcomes are tested. None: once.
        confidence: Of what is printed beside a claim that passed, see `given_passing`.
        dropped: Problems beside these that count as lost, see `dropped`; of the last stage, where there are several.

    Raises:
        UsageError: `wanted` is out of range, or `looks` are required and missing.
    """

    wanted: float | None
    acc: Acc = "retention"
    guarantee: Guarantee = "population"
    looks: Looks | None = None
    confidence: float = 0.95
    dropped: int = 0

    def __post_init__(self) -> None:
        most = 1.0 if self.acc == "absolute" else math.inf
        if self.wanted is not None and not (0 < self.wanted <= most and self.wanted < math.inf):
            rule = "above 0 and at most 1" if self.acc == "absolute" else "above 0 (0.98 keeps 98 %)"
            quantity = "accuracy" if self.acc == "absolute" else "retention"
            raise UsageError(f"the wanted {quantity} is {self.wanted}; it must be {rule}")
        if self.guarantee == "dataset" and self.looks is None:
            raise UsageError("guarantee 'dataset' needs the number of problems; give `looks`, or use 'population'")

    @property
    def problems(self) -> int | None:
        """The number of problems of the whole certification part, as far as `looks` say it."""
        return None if self.looks is None else self.looks.whole

    def level(self, problems: int, delta: float) -> float:
        """Returns the level after so many problems of a test of size `delta`: p-values up to it pass.

        Betting may look at any time.
        """
        return delta if self.looks is None or self.guarantee == "dataset" else self.looks.level(problems, delta)

    def chance(self, once: float, delta: float, begun: Begun = NOTHING) -> float:
        """Returns the probability to pass a test of size `delta`, where one on the rest passes with `once`."""
        if self.looks is None or self.guarantee == "dataset":
            return once
        return self.looks.outlook(once, delta, begun)[0]

    def method_on(self, paired: Paired | None) -> str:
        """The name of the test of these grades, as it is written to a profile."""
        if self.guarantee == "dataset":
            return "betting test without replacement; fixed sequence"
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
        return self._p_value(self.judged(paired), self.wanted)

    def judged(self, paired: Paired) -> Paired:
        """Returns the grades beside those that the claim compares them with."""
        return paired.against_perfect() if self.acc == "absolute" else paired

    def bounds(self, paired: Paired, level: float) -> tuple[float, float]:
        """Returns lower bounds of retention and of absolute accuracy, each by itself: what the test rejects at `level`.

        Raises:
            UsageError: `level` is not in (0, 1).
        """
        retention = self._bound(paired, "retention", level) if paired.target.any() or self.all_dropped else 0.0
        return retention, self._bound(paired.against_perfect(), "absolute", level)

    @property
    def _dropped(self) -> list[int]:
        """What counts as lost, by stage.

        In front of its problems, since betting counts the largest wealth that it ever had, which later losses do not
        take away.
        """
        return [*(stage.dropped for stage in (self.looks.earlier if self.looks else ())), self.dropped]

    @property
    def all_dropped(self) -> int:
        """What counts as lost in all stages together."""
        return sum(self._dropped)

    def bound(self, paired: Paired, level: float) -> float:
        """Returns the lower bound of what is claimed, as `bounds` does."""
        return self._bound(self.judged(paired), self.acc, level)

    def _bound(self, paired: Paired, acc: Acc, level: float) -> float:
        """Returns the bound, which is at least `wanted` where the test of `wanted` passes, whatever the rounding."""
        bound = largest(lambda r: self._p_value(paired, r), level)
        if acc == self.acc and self.wanted is not None and self._p_value(paired, self.wanted) <= level:
            return max(bound, self.wanted)
        return bound

    def stages(self, paired: Paired) -> list[tuple[Paired, float]]:
        """See `Looks.stages`; without looks there is one stage."""
        return [(paired, 1.0)] if self.looks is None else self.looks.stages(paired)

    def _p_value(self, judged: Paired, wanted: float) -> float:
        stages = self.stages(judged)
        charged = [
            each.preceded_by(True, False, dropped) for (each, _), dropped in zip(stages, self._dropped, strict=False)
        ]
        alone = len(stages) == 1
        p_values = [self._of_one_stage(each, wanted) if each.target.any() or alone else 1.0 for each in charged]
        return float(combined(p_values, [time for _, time in stages]))

    def _of_one_stage(self, paired: Paired, wanted: float) -> float:
        if self.looks is not None and self.guarantee == "dataset":
            return betting_test.p_value(paired, wanted, self.looks.whole + self.dropped)
        if paired.groups is not None:
            return grouped.p_value(paired, wanted)
        return score_test.p_value(paired.outcomes, wanted) if paired.seeds == 1 else multi_seed.p_value(paired, wanted)
