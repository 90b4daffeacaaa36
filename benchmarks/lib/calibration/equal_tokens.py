"""Retention at equal tokens per round, read off decodings at several thresholds.

Between two thresholds a curve is linear, which is what drawing one of the two for each problem gives. Retention falls
steeply, so thresholds far apart would make a divergence look worse than it is: `bracketing` places them close around
every level.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_SEED, _NARROW = 0, 0.02  # tokens a round


@dataclass
class Curve:
    """One divergence over the same N problems at S rising thresholds."""

    thresholds: list[float] = field(default_factory=list)
    right: list[list[bool]] = field(default_factory=list)  # (S, N)
    emitted: list[list[int]] = field(default_factory=list)
    rounds: list[list[int]] = field(default_factory=list)

    def retention(self, target_right: Sequence[bool], levels: Sequence[float], weights: Floats) -> Floats:
        """Returns retention at each level of tokens per round, (R, levels), for R weightings of the problems (R, N).

        Below the first threshold's level it is that threshold's retention; at a level that no threshold reaches, 0.
        """
        tokens, rounds, right = (weights @ np.asarray(x, float).T for x in (self.emitted, self.rounds, self.right))
        kept = right / (weights @ np.asarray(target_right, float))[:, None]  # (R, S)
        pairs = zip(tokens / rounds, kept, strict=True)
        return np.array([np.interp(levels, *_rising(*pair), right=0.0) for pair in pairs])

    def points(self, target_right: Sequence[bool]) -> list[dict[str, float]]:
        """Returns tokens per round and retention at each threshold."""
        sums = zip(self.thresholds, self.right, self.emitted, self.rounds, strict=True)
        return [
            {"threshold": t, "tokens_a_round": sum(e) / sum(r), "retention": sum(s) / sum(target_right)}
            for t, s, e, r in sums
        ]


class Difference(NamedTuple):
    """One divergence's retention less another's at one level, as a share, with a 95 % interval over problems."""

    level: float | None  # None: the mean over the levels
    difference: float
    lower: float
    upper: float


def _rising(tokens_a_round: Floats, kept: Floats) -> tuple[Floats, Floats]:
    order = np.argsort(tokens_a_round, kind="stable")
    return tokens_a_round[order], kept[order]


def bracketing(tokens_a_round: Callable[[int], float], last: int, levels: Sequence[float]) -> list[int]:
    """Returns rising ranks from 0 to `last` such that every level lies between two less than `_NARROW` apart.

    Args:
        tokens_a_round: of the threshold with a rank, about rising with it; it is called once per rank.
    """
    known = {rank: tokens_a_round(rank) for rank in (0, last)}
    return sorted({rank for level in levels for rank in _around(level, known, tokens_a_round)})


def _around(level: float, known: dict[int, float], tokens_a_round: Callable[[int], float]) -> tuple[int, int]:
    """Returns two ranks around a level, by regula falsi away from the ends; adds what is computed to `known`."""
    while True:
        below = max((rank for rank, tokens in known.items() if tokens <= level), default=0)
        above = min((rank for rank in known if rank > below), default=below)
        gap = known[above] - known[below]
        if above - below <= 1 or abs(gap) < _NARROW:
            return below, above
        share = min(max((level - known[below]) / gap, 0.1), 0.9)
        middle = min(max(round(below + share * (above - below)), below + 1), above - 1)
        known[middle] = tokens_a_round(middle)


def at_levels(curve: Curve, target_right: Sequence[bool], levels: Sequence[float]) -> list[float]:
    """Returns retention at each level."""
    retention: list[float] = curve.retention(target_right, levels, np.ones((1, len(target_right))))[0].tolist()
    return retention


def differences(
    ours: Curve, theirs: Curve, target_right: Sequence[bool], levels: Sequence[float], resamples: int
) -> list[Difference]:
    """Returns the differences at each level and of the means, by a paired percentile bootstrap over problems."""
    n = len(target_right)
    drawn = np.random.default_rng(_SEED).multinomial(n, np.full(n, 1 / n), resamples)
    weights = np.vstack([np.ones(n), drawn])  # the first row gives the estimates
    gained = ours.retention(target_right, levels, weights) - theirs.retention(target_right, levels, weights)
    gained = np.column_stack([gained, gained.mean(1)])  # (1 + resamples, levels + 1)
    lower, upper = np.percentile(gained[1:], [2.5, 97.5], axis=0)
    rows = zip([*levels, None], gained[0].tolist(), lower.tolist(), upper.tolist(), strict=True)
    return [Difference(*row) for row in rows]
