"""The scale on which models read T: logit(u), where u is the share of drafted tokens with D <= T in the traces.

Thresholds of different scores have no common scale and crowd near 0; as logit(u) they are comparable and evenly
spread.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from fsd_collectors.replay.blocks import Array, Traces
from fsd_collectors.replay.cases import check_score
from fsd_common.errors import UsageError

NEVER, MOST = math.log(0.01 / 0.99), math.log(0.9999 / 0.0001)  # logits of the smallest and the largest share
_KNOTS = 101


@dataclass(frozen=True)
class Knots:
    """Knots of one score's scale.

    Args:
        thresholds: (k,) finite, strictly rising, k >= 1.
        logits: (k,) logit of the share that each threshold accepts, non-decreasing.
    """

    thresholds: Array
    logits: Array

    def __post_init__(self) -> None:
        thresholds, logits = self.thresholds, self.logits
        paired = thresholds.shape == logits.shape == (len(thresholds),) and len(thresholds) > 0
        if not (paired and np.isfinite(thresholds).all() and np.isfinite(logits).all()):
            raise UsageError("a share scale needs as many thresholds as logits, all finite; measure it again")
        if not ((np.diff(thresholds) > 0).all() and (np.diff(logits) >= 0).all()):
            raise UsageError("a share scale's thresholds and logits must rise; measure it again")


class ShareScale:
    """Maps T to logit(u), u the share of drafted tokens with D <= T; non-decreasing in T.

    u is clipped to [.01, .9999]; .01 also stands for T < 0, where D accepts nothing. Between knots the map is linear.

    Args:
        knots: knots by score.
    """

    def __init__(self, knots: Mapping[str, Knots]) -> None:
        self._knots = dict(knots)

    @classmethod
    def of_traces(cls, traces: Traces, scores: Sequence[str], where: Any = None) -> Self:
        """Measures the scale on the rows that `where` selects, in one pass over them for each score.

        Raises:
            UsageError: the traces lack one of the scores, hold no rows, or no finite value of it.
        """
        return cls({name: _measure(traces, name, where) for name in scores})

    @property
    def scores(self) -> tuple[str, ...]:
        return tuple(self._knots)

    def index(self, score: str) -> int:
        """Returns the index of the score in `scores`."""
        self._of(score)
        return self.scores.index(score)

    def of(self, score: str, threshold: float) -> float:
        """Returns logit(u) of a threshold. Raises UsageError where the score is unknown or the threshold NaN."""
        return float(self.of_all(score, np.array([threshold]))[0])

    def of_all(self, score: str, thresholds: Array) -> Array:
        """Returns logit(u) of thresholds (n,), as `of` does."""
        knots = self._of(score)
        if np.isnan(thresholds).any():
            raise UsageError("the threshold is NaN; it must be a number")
        return np.interp(thresholds, knots.thresholds, knots.logits, left=NEVER)

    def ends(self, score: str) -> tuple[float, float]:
        """Returns the smallest and the largest logit(u) of a threshold T >= 0."""
        logits = self._of(score).logits
        return float(logits[0]), float(logits[-1])

    def thresholds_of(self, score: str, logits: Array) -> Array:
        """Returns a threshold for each logit(u); beyond the outermost knots it is that knot's."""
        knots = self._of(score)
        return np.interp(logits, knots.logits, knots.thresholds)

    def to_json(self) -> dict[str, Any]:
        return {
            name: {"thresholds": knots.thresholds.tolist(), "logits": knots.logits.tolist()}
            for name, knots in self._knots.items()
        }

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Self:
        """Restores a scale from `to_json`'s value. Raises UsageError where it is none."""
        try:
            arrays = {
                name: [np.array(values[part], np.float64, ndmin=1) for part in ("thresholds", "logits")]
                for name, values in plain.items()
            }
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UsageError(f"{plain!r:.80} is no share scale; measure it again") from error
        return cls({name: Knots(*pair) for name, pair in arrays.items()})

    def _of(self, score: str) -> Knots:
        if score not in self._knots:
            raise UsageError(f"the share scale has the scores {', '.join(self._knots)}, not {score!r}; train with it")
        return self._knots[score]


def _measure(traces: Traces, score: str, where: Any) -> Knots:
    logits = np.linspace(NEVER, MOST, _KNOTS)
    check_score(traces, score)
    parts = [table[score].to_numpy() for table in traces.batches([score], where)]
    if not parts:
        raise UsageError(f"these traces hold no rows to measure the scale of score {score!r} on; collect more")
    shares = 1 / (1 + np.exp(-logits))
    quantiles = np.quantile(np.concatenate(parts), shares, method="inverted_cdf").astype(np.float64)
    quantiles[quantiles < np.finfo(np.float32).tiny] = 0.0  # subnormal numbers count as 0
    finite = quantiles[np.isfinite(quantiles)]
    if not len(finite):
        raise UsageError(f"score {score!r} is infinite in nearly all rows; train with another one")
    thresholds, first = np.unique(finite, return_index=True)
    last = np.append(first[1:], len(finite)) - 1  # of equal thresholds the last: the share that they accept
    return Knots(thresholds, logits[last])
