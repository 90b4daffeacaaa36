"""What a rule keeps and how fast it is at every T at once, on all problems and on resamples of them.

The outcome of a problem is a step function of T, so sums over problems change only where a text ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fsd_collectors.replay.cost import CostModel

Floats = NDArray[Any]  # of 32 or 64 bits
Columns = dict[str, NDArray[Any]]

RESAMPLES, CONFIDENCE = 400, 0.95
SPREAD = 2.0  # standard errors by which a retention may miss 1 and still pass for lossless


def draws(problems: int, resamples: int = RESAMPLES) -> Floats:
    """How often each problem counts: once, and in resamples as often as it is drawn: (1 + resamples, problems)."""
    drawn = np.random.default_rng(0).multinomial(problems, np.full(problems, 1 / problems), resamples)
    return np.concatenate([np.ones((1, problems)), drawn]).astype(np.float32)


class Found(NamedTuple):
    """A number of all problems, and its interval by resamples."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, drawn: Floats) -> Self:
        tail = (1 - CONFIDENCE) / 2
        low, high = np.quantile(drawn[1:], [tail, 1 - tail], method="nearest")
        return cls(float(drawn[0]), float(low), float(high))


@dataclass(frozen=True)
class Curve:
    """Sums over problems, by draw, at each T where one changes: (draws, thresholds). They are whole, so exact in fp32.

    Args:
        thresholds: (thresholds,) rising, from -inf; each holds up to the next.
        right: problems that the target solves, and `both` those of them that the rule solves too.
    """

    thresholds: Floats
    right: Floats
    both: Floats
    correct: Floats
    tokens: Floats
    rounds: Floats
    drafted: Floats

    @classmethod
    def of(cls, texts: Columns, alone: NDArray[np.bool_], weights: Floats) -> Self:
        """Returns the curve of a rule.

        Args:
            texts: columns named after `Text`, and `problem`; by problem and T.
            alone: whether the target alone solves each problem.
            weights: see `draws`.
        """
        problem = texts["problem"].astype(np.intp)
        first = np.r_[True, np.diff(problem) > 0]
        begins = np.where(first, -np.inf, texts["lo"])
        order = np.argsort(begins, kind="stable")
        last = np.r_[begins[order][1:] > begins[order][:-1], True]  # of those that begin at one T

        def summed(values: NDArray[Any]) -> Floats:
            change = np.where(first, values, values - np.roll(values, 1)).astype(np.float32)
            return np.cumsum(change[order] * weights[:, problem[order]], axis=1)[:, last]

        counts = {name: summed(texts[name].astype(np.int64)) for name in ("correct", "tokens", "rounds", "drafted")}
        both = summed((texts["correct"] & alone[problem]).astype(np.int64))
        right = np.broadcast_to((weights @ alone.astype(np.float32))[:, None], both.shape)
        return cls(begins[order][last], right, both, **counts)

    @classmethod
    def beside(cls, curves: Sequence[Self]) -> Self:
        """Returns settings that hold for their own T alone as one curve; its thresholds are their places."""
        sums = [field.name for field in fields(cls)][1:]
        joined = {name: np.concatenate([getattr(curve, name)[:, :1] for curve in curves], 1) for name in sums}
        return cls(np.arange(len(curves), dtype=np.float64), **joined)

    @property
    def retention(self) -> Floats:
        return self.correct / self.right

    @property
    def error(self) -> Floats:
        """The standard error of the retention, of which problems that flip are the cause."""
        flipped = self.right + self.correct - 2 * self.both
        share: Floats = flipped / (self.right * np.maximum(self.correct, 1))
        return self.retention * np.sqrt(share)

    @property
    def tokens_per_round(self) -> Floats:
        return self.tokens / self.rounds

    def tokens_per_second(self, costs: CostModel, slower: float) -> Floats:
        """slower: how many times as long a round takes as the costs say."""
        speed: Floats = costs.tokens_per_second(self.tokens, self.rounds, self.drafted) / slower
        return speed

    def place(self, threshold: float) -> int:
        """The place of a T among the thresholds."""
        return int(np.searchsorted(self.thresholds, threshold, side="right")) - 1

    def keeping(self, wanted: float | Floats | None) -> NDArray[np.bool_]:
        """Where the retention is at least what is wanted, and where nothing is lost by design.

        wanted: for all draws, or for each: (draws, 1). None: at least 1 less two standard errors.
        """
        least = 1.0 - SPREAD * self.error if wanted is None else wanted
        return np.asarray((self.retention >= least) | (np.arange(self.retention.shape[1]) == 0))


def fastest(speed: Floats, keeping: NDArray[np.bool_]) -> tuple[NDArray[np.intp], Floats]:
    """Returns for each draw the place of the fastest T that keeps enough, and its speed."""
    reached = np.where(keeping, speed, -np.inf)
    places = reached.argmax(1)
    return places, reached[np.arange(len(places)), places]
