"""A certificate: paired outcomes of the target alone and of a setting, and what a test on them shows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import AwareDatetime, ConfigDict, Field, model_validator

from fsd_common.errors import UsageError
from fsd_decoding.profile.parts import Change, Confidence, Count, Natural, Part, Ratio, Share

_ROUNDING = 1e-6  # tolerance between two ways to compute the same number


@dataclass(frozen=True)
class OutcomeCounts:
    """Counts of (problem, seed) pairs by whether the target alone and the fuzzy rule solved them."""

    __pydantic_config__ = ConfigDict(
        extra="forbid", use_attribute_docstrings=True,
        json_schema_extra={"description": "Paired outcomes of the target alone and of the fuzzy rule."},
    )  # fmt: skip

    both_right: Count
    """Number of (problem, seed) pairs in which both were right."""
    lost: Count
    """Number of pairs in which only the target alone was right."""
    gained: Count
    """Number of pairs in which only the fuzzy rule was right."""
    both_wrong: Count
    """Number of pairs in which both were wrong."""

    def __post_init__(self) -> None:
        if min(astuple(self)) < 0:
            raise ValueError(f"{self} has a negative count")

    @classmethod
    def of(cls, target: Iterable[Any], fuzzy: Iterable[Any]) -> Self:
        """Returns the counts of grades in the same order."""
        pairs = Counter((bool(t), bool(f)) for t, f in zip(target, fuzzy, strict=True))
        return cls(pairs[True, True], pairs[True, False], pairs[False, True], pairs[False, False])

    @property
    def total(self) -> int:
        return self.both_right + self.lost + self.gained + self.both_wrong

    @property
    def right(self) -> int:
        """Right answers of the target alone."""
        return self.both_right + self.lost

    @property
    def solved(self) -> int:
        """Right answers of the fuzzy rule."""
        return self.both_right + self.gained

    @property
    def retention(self) -> float:
        """Accuracy of the fuzzy rule over the target's. UsageError: the target solved nothing."""
        self.require_solved()
        return self.solved / self.right

    @property
    def churn(self) -> float:
        """Share of outcomes that flipped, lost or gained."""
        return (self.lost + self.gained) / self.total if self.total else 0.0

    def __str__(self) -> str:
        return f"both right {self.both_right}, lost {self.lost}, gained {self.gained}, both wrong {self.both_wrong}"

    def require_solved(self) -> None:
        """Raises UsageError where retention is not defined, since the target solved nothing."""
        if not self.right:
            raise UsageError(
                f"the target solved none of {self.total} problems, so retention is undefined; check its prompts and "
                "answers, or use another target"
            )


_FIRST = 0.9  # share of the budget of errors that the first attempt has


def attempt_level(confidence: float, number: int) -> float:
    """Returns the significance level of attempt `number`; the levels of all attempts sum to 1 - confidence.

    So all attempts at one claim, and all on one problem, together keep the promised confidence. The first has nine
    tenths of the budget, as most claims are tested once; attempt k > 1 has 6 / (pi (k - 1))^2 of the rest. An attempt
    that passes does not hand its level on to a later one, unlike in Tian and Ramdas's online fallback procedure (2021):
    that is valid for hypotheses fixed beforehand, not where a user chooses the next goal by the last result
    (docs/certificate.md has the figures).
    """
    budget = 1 - confidence
    return _FIRST * budget if number == 1 else (1 - _FIRST) * budget * 6 / (math.pi * (number - 1)) ** 2


class ClaimHistory(Part):
    """What the ledger knew when the attempt was opened. It knows what was asked with it, not elsewhere."""

    asked: Natural
    """Certificates asked for this target at this claim (task, retention or accuracy), this one included."""
    passed: Count
    """How many of the earlier ones passed."""
    attempts: Natural
    """All attempts of this target in the ledger, this one included."""
    since: AwareDatetime
    """When the first row of the ledger was written."""
    first: bool
    """Whether the ledger knew no attempt before, of any target."""


class Certificate(Part):
    """Results on the certification part for one configuration: the chosen one, or the safest one if none passed."""

    counts: OutcomeCounts
    """What was counted."""
    certified: bool
    """Whether what was wanted is certified."""
    wanted: Annotated[float, Field(gt=0)] | None
    """What --min-acc requested of `acc`. null: speed or the front was requested; then `certified` says that
    `lower_bound` was computed on problems that played no part in the choice."""
    retention: Ratio | None
    """Right answers of the configuration, divided by those of the target. null: nothing was decoded."""
    lower_bound: Ratio | None
    """Lower bound of retention, by itself at `delta`; see `given_passing`, with which it may be below `wanted`, the
    claim. null: nothing was decoded, or accuracy is certified."""
    confidence: Confidence
    """Confidence over all attempts at this claim, and over all that share a problem."""
    problems: Count
    """Number of problems that were decoded."""
    method: str
    """Name of the test."""
    acc: Literal["retention", "absolute"] = "retention"
    """What `wanted` is of: retention, or accuracy itself."""
    guarantee: Literal["population", "dataset", "none"] = "population"
    """What the certificate is about: new problems like these, these problems alone, or nothing."""
    attempt: Natural | None = None
    """How many times, including this one, this was claimed of the target, or problems of this part were used to decide.
    null: nothing was tested."""
    delta: Confidence | None = None
    """Significance level of the test, over all `looks`, at most that of its attempt, with those that it `extends`: nine
    tenths of 1 - confidence for the first, and 0.6 / (pi^2 (attempt - 1)^2) of it for a later one. null: nothing was
    tested."""
    seeds: Natural = 1
    """Number of noise seeds per problem; the counts are of (problem, seed) pairs."""
    accuracy: Share | None = None
    """Share of right answers. null: nothing was decoded."""
    accuracy_lower_bound: Share | None = None
    """Lower bound of accuracy, as `lower_bound`. null: nothing was decoded, or retention is certified."""
    groups: Natural | None = None
    """Number of groups of problems, which the test takes as its unit. null: each problem is one."""
    frozen: Natural | None = None
    """Number of configurations that were frozen to be tested. If there were several, the bounds of the chosen one hold
    for it by itself and are not corrected for the choice. null: nothing was tested."""
    lossless: bool = False
    """Whether the numbers are of lossless decoding (those of the target), which fulfils the request or failed to."""
    harm: Share | None = None
    """Share of the target's right answers that were lost."""
    harm_upper_bound: Share | None = None
    """Upper bound of harm, as `lower_bound`."""
    difference: Change | None = None
    """Accuracy minus the target's."""
    difference_interval: tuple[Change, Change] | None = None
    """Two-sided interval of the difference, at `confidence`."""
    history: ClaimHistory | None = None
    """What was asked before. null: nothing was tested."""
    given_passing: bool = False
    """Whether the bounds hold given that the test passed, together at `confidence`."""
    dropped: Count = 0
    """Problems that count as lost in the test and its bounds, beside `counts`: an earlier attempt lost them, and they
    are not among these any more."""
    looks: tuple[Natural, ...] = ()
    """Numbers of problems after which outcomes were to be tested, the last of them all; `problems` is the one that
    decided. Empty: nothing was tested."""
    extends: tuple[Natural, ...] = ()
    """Numbers of the attempts that this one goes on from, with what they froze, on their problems and more."""

    @property
    def level(self) -> float:
        """The significance level of the test."""
        return 1 - self.confidence if self.delta is None else self.delta

    @model_validator(mode="after")
    def _counts_agree(self) -> Self:
        c = self.counts
        check_total(c, self.problems, self.seeds)
        for name, count, whole in (
            ("retention", c.solved, c.right),
            ("accuracy", c.solved, c.total),
            ("harm", c.lost, c.right),
            ("difference", c.solved - c.right, c.total),
        ):
            check_quotient(name, getattr(self, name), count, whole)
        return self

    @model_validator(mode="after")
    def _certified_needs_a_bound(self) -> Self:
        name = "lower_bound" if self.acc == "retention" else "accuracy_lower_bound"
        bound = self.lower_bound if self.acc == "retention" else self.accuracy_lower_bound
        if not self.certified:
            return self
        if self.guarantee == "none":
            raise ValueError("certified is true, but guarantee is 'none'")
        if bound is None:
            raise ValueError(f"certified is true, but {name} is null")
        return self

    @model_validator(mode="after")
    def _decided_at_a_look(self) -> Self:
        if list(self.looks) != sorted({*self.looks}):
            raise ValueError(f"looks are {self.looks}; they must rise")
        if self.looks and self.problems not in (0, *self.looks):
            raise ValueError(f"problems is {self.problems}, which is none of the looks {self.looks}")
        return self

    @model_validator(mode="after")
    def _attempts_share_the_level(self) -> Self:
        if self.attempt is None or self.delta is None:
            return self
        if list(self.extends) != sorted({*self.extends}) or any(each >= self.attempt for each in self.extends):
            raise ValueError(f"extends is {self.extends}; they must be attempts before {self.attempt}, and rise")
        most = sum(attempt_level(self.confidence, number) for number in (*self.extends, self.attempt))
        if self.delta > most * (1 + _ROUNDING):
            raise ValueError(f"delta is {self.delta}, but attempt {self.attempt} may be tested at {most:.6g} at most")
        return self


class GuardEstimate(Part):
    """What the chosen configuration keeps on another task: an estimate, of which nothing is certified."""

    task: str
    """Name of the task."""
    source: str
    """Where its problems come from."""
    problems: Natural
    """Number of problems that were decoded, of its tuning part."""
    counts: OutcomeCounts
    """What was counted."""
    seeds: Natural = 1
    """Number of noise seeds per problem; the counts are of (problem, seed) pairs."""
    retention: Ratio | None
    """Right answers of the configuration, divided by those of the target. null: the target solved nothing."""
    interval: tuple[Ratio, Ratio] | None
    """Two-sided interval of retention, by itself at `confidence`. null: the target solved nothing."""
    confidence: Confidence
    """Confidence of the interval."""

    @model_validator(mode="after")
    def _counts_agree(self) -> Self:
        check_total(self.counts, self.problems, self.seeds)
        check_quotient("retention", self.retention, self.counts.solved, self.counts.right)
        return self


def check_total(counts: OutcomeCounts, problems: int, seeds: int) -> None:
    """Raises ValueError if the counts are not of `problems` times `seeds` pairs."""
    if counts.total != problems * seeds:
        times = f" with {seeds} seeds each" if seeds > 1 else ""
        raise ValueError(f"the counts add up to {counts.total}, but problems is {problems}{times}")


def check_quotient(name: str, value: float | None, count: int, whole: int) -> None:
    """Raises ValueError if a value is not count / whole."""
    counted = count / whole if whole else None
    if value is not None and (counted is None or abs(value - counted) > _ROUNDING):
        raise ValueError(f"{name} is {value}, but the counts give {counted}")
