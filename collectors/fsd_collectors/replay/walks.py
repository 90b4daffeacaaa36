"""Replay of single rounds of chains or trees at any T: how far each round would have gone.

A round's drafts are those of its own place in the text. With heads, and in trees, they depend on how far the text was
true when they began, so they say nothing of another draft length or shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Walks:
    """Rounds that were drafted along the target's own text: R rounds of N nodes, of which node 0 is the text's end.

    Args:
        exact: (R, N + 1) the child whose token is y; 0: none is.
        drafted: (R, N + 1) the child whose token is x; 0: the node has no children.
        divergences: by name, (R, N + 1) D at each node; what stands at nodes without children means nothing.
        chains: whether there are chains alone.
    """

    exact: NDArray[np.int64]
    drafted: NDArray[np.int64]
    divergences: Mapping[str, Array]
    chains: bool = False

    def tokens_per_round(self, divergence: str, thresholds: Array, x_first: bool = False) -> Array:
        """Returns the mean number of tokens of a round at each T.

        Args:
            divergence: its name.
            thresholds: (n,) of T.
            x_first: whether the rule goes on from x before it looks for y, as `fsd` does, and in chains never looks.
        """
        return np.array([self._mean(divergence, threshold, x_first) for threshold in thresholds])

    @property
    def exactly(self) -> float:
        """The mean number of tokens of a lossless round."""
        return float(self._reached(self.exact)[1].mean())

    def scale(self, divergence: str, shares: Array) -> Array:
        """Returns the T at which D alone accepts each share of the tokens drafted along the target's text."""
        visited, _ = self._reached(self.exact)
        judged = visited & (self.drafted > 0)
        return np.asarray(np.quantile(self.divergences[divergence][judged], shares, method="inverted_cdf"))

    def _mean(self, divergence: str, threshold: float, x_first: bool) -> float:
        passes = (self.divergences[divergence] <= threshold) & np.isfinite(self.divergences[divergence])
        fuzzy = np.where(passes, self.drafted, 0)
        first, second = (fuzzy, 0 if self.chains else self.exact) if x_first else (self.exact, fuzzy)
        return float(self._reached(np.where(first > 0, first, second))[1].mean())

    def _reached(self, following: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Returns the nodes of each round's path, (R, N + 1), and the number of its tokens, (R,).

        Args:
            following: (R, N + 1) the node after each one; 0: the path ends.
        """
        at, visited = np.zeros(len(following), np.int64), np.zeros(following.shape, bool)
        tokens = np.ones(len(following), np.int64)  # the one after the path
        while True:
            visited[self._rounds, at] = True
            onward = following[self._rounds, at]
            if not onward.any():
                return visited, tokens
            tokens += onward > 0
            at = np.where(onward > 0, onward, at)

    @cached_property
    def _rounds(self) -> NDArray[np.int64]:
        return np.arange(len(self.exact))


@dataclass(frozen=True, eq=False)
class Walked:
    """Rounds of one draft length along the target's text.

    Args:
        tokens: that the texts had.
        rounds: that they took.
    """

    walks: Walks
    tokens: int
    rounds: int
