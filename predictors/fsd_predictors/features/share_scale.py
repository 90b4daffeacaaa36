"""T as a share: of drafted tokens, those with D <= T, on the traces a predictor was trained on.

Knows quantiles of divergences. Knows no rule and no model. Thresholds of different divergences share no scale and
crowd near 0; in logit(u) they are comparable and even (DESIGN section 11).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from fsd_collectors.replay.blocks import Array, Traces
from fsd_collectors.replay.share_quantiles import check_divergence
from fsd_decoding.errors import UsageError

NEVER, MOST = math.log(0.01 / 0.99), math.log(0.9999 / 0.0001)  # logits of the least and the largest share
_KNOTS = 101


@dataclass(frozen=True)
class Knots:
    """thresholds: rising, finite, one at least. logits: of the share that each accepts, rising; the same number."""

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
    """From T to logit(u), u the share of drafted tokens with D <= T; never falling in T.

    u is held to [.01, .9999]: .01 stands for T < 0 too, at which D accepts nothing. Between knots it is linear in T.
    """

    def __init__(self, knots: Mapping[str, Knots]) -> None:
        self._knots = dict(knots)

    @classmethod
    def of_traces(cls, traces: Traces, divergences: Sequence[str], where: Any = None) -> Self:
        """Of the rows that `where` chooses; a pass over them for each divergence.

        Raises:
            UsageError: the traces hold no such divergence, no rows, or no finite value of it.
        """
        return cls({name: _measured(traces, name, where) for name in divergences})

    @property
    def divergences(self) -> tuple[str, ...]:
        return tuple(self._knots)

    def index(self, divergence: str) -> int:
        """Its place among the divergences."""
        self._of(divergence)
        return self.divergences.index(divergence)

    def of(self, divergence: str, threshold: float) -> float:
        """logit(u) of T. UsageError: the divergence is unknown, or T is NaN."""
        return float(self.of_all(divergence, np.array([threshold]))[0])

    def of_all(self, divergence: str, thresholds: Array) -> Array:
        """The same of (n,): (n,)."""
        knots = self._of(divergence)
        if np.isnan(thresholds).any():
            raise UsageError("the threshold is NaN; it must be a number")
        return np.interp(thresholds, knots.thresholds, knots.logits, left=NEVER)

    def ends(self, divergence: str) -> tuple[float, float]:
        """The smallest and the largest logit(u) that some T >= 0 has."""
        logits = self._of(divergence).logits
        return float(logits[0]), float(logits[-1])

    def thresholds_of(self, divergence: str, logits: Array) -> Array:
        """A T for each logit(u), where it lies between the knots; else the nearest knot's."""
        knots = self._of(divergence)
        return np.interp(logits, knots.logits, knots.thresholds)

    def to_json(self) -> dict[str, Any]:
        return {
            name: {"thresholds": knots.thresholds.tolist(), "logits": knots.logits.tolist()}
            for name, knots in self._knots.items()
        }

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Self:
        """UsageError: it is no scale."""
        try:
            arrays = {
                name: [np.array(values[part], np.float64, ndmin=1) for part in ("thresholds", "logits")]
                for name, values in plain.items()
            }
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UsageError(f"{plain!r:.80} is no share scale; measure it again") from error
        return cls({name: Knots(*pair) for name, pair in arrays.items()})

    def _of(self, divergence: str) -> Knots:
        if divergence not in self._knots:
            raise UsageError(
                f"the share scale knows divergences {', '.join(self._knots)}, not {divergence!r}; train with it"
            )
        return self._knots[divergence]


def _measured(traces: Traces, divergence: str, where: Any) -> Knots:
    logits = np.linspace(NEVER, MOST, _KNOTS)
    check_divergence(traces, divergence)
    parts = [table[divergence].to_numpy() for table in traces.batches([divergence], where)]
    if not parts:
        raise UsageError(f"no rows of these traces tell the scale of divergence {divergence!r}; collect more")
    found = np.quantile(np.concatenate(parts), 1 / (1 + np.exp(-logits)), method="inverted_cdf").astype(np.float64)
    found[found < np.finfo(np.float32).tiny] = 0.0  # quantiles end bins, and zero's ends a little above it
    finite = found[np.isfinite(found)]
    if not len(finite):
        raise UsageError(f"divergence {divergence!r} is infinite in nearly all rows; train with another one")
    thresholds, first = np.unique(finite, return_index=True)
    last = np.append(first[1:], len(finite)) - 1  # of equal thresholds: what they accept together
    return Knots(thresholds, logits[last])
