"""Single rounds of chains or trees, kept while decoding and walked again at any T: how far each would have gone.

A round's drafts are those of its own place in the text. With heads, and in trees, they depend on how far the text was
true when they began, so they say nothing of another draft length or shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from fsd_decoding.observers.round_record import RoundRecord
from fsd_decoding.proposal import Proposal
from fsd_decoding.scores import score_named, scores_of

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Walks:
    """Rounds that were drafted along the target's own text: R rounds of N nodes, of which node 0 is the text's end.

    Args:
        exact: (R, N + 1) the child whose token is y; 0: none is.
        drafted: (R, N + 1) the child whose token is x; 0: the node has no children.
        scores: by name, (R, N + 1) D at each node; what stands at nodes without children means nothing.
        chains: whether there are chains alone.
    """

    exact: NDArray[np.int64]
    drafted: NDArray[np.int64]
    scores: Mapping[str, Array]
    chains: bool = False

    def tokens_per_round(self, score: str, thresholds: Array, x_first: bool = False) -> Array:
        """Returns the mean number of tokens of a round at each T.

        Args:
            score: its name.
            thresholds: (n,) of T.
            x_first: whether the rule goes on from x before it looks for y, as `fsd` does, and in chains never looks.
        """
        return np.array([self._mean(score, threshold, x_first) for threshold in thresholds])

    @property
    def exactly(self) -> float:
        """The mean number of tokens of a lossless round."""
        return float(self._reached(self.exact)[1].mean())

    def scale(self, score: str, shares: Array) -> Array:
        """Returns the T at which D alone accepts each share of the tokens drafted along the target's text."""
        visited, _ = self._reached(self.exact)
        judged = visited & (self.drafted > 0)
        return np.asarray(np.quantile(self.scores[score][judged], shares, method="inverted_cdf"))

    def _mean(self, score: str, threshold: float, x_first: bool) -> float:
        passes = (self.scores[score] <= threshold) & np.isfinite(self.scores[score])
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


class JudgedNodes:
    """Keeps every round of a call of `generate`, to which it is passed as `observer`, for `walks`.

    Args:
        scores: names.
    """

    def __init__(self, scores: Sequence[str]) -> None:
        self._scores = tuple(scores)
        self._rounds: list[dict[str, np.ndarray]] = []
        self._chains = True

    def __call__(self, record: RoundRecord) -> None:
        proposal = record.proposal if record.trees is None else record.trees
        if proposal.tree is None:
            drafted = proposal.drafted
            parents = torch.arange(drafted.shape[1], device=drafted.device).expand_as(drafted)  # as nodes: (B, L)
            proposed = record.proposed
        else:
            self._chains = False
            parents, proposed = proposal.tree.parents, proposal.tree.depths > 0
        columns = self._columns(proposal, parents, proposed)
        self._rounds.append({name: column[record.active].cpu().numpy() for name, column in columns.items()})

    def walks(self) -> Walks:
        """Returns the rounds."""
        width = max(each["exact"].shape[1] for each in self._rounds)
        names = ("exact", "drafted", *self._scores)
        joined = {name: np.concatenate([_padded(each[name], width) for each in self._rounds]) for name in names}
        scores = {name: joined[name] for name in self._scores}
        return Walks(joined["exact"], joined["drafted"], scores, self._chains)

    def _columns(self, proposal: Proposal, parents: Tensor, proposed: Tensor) -> dict[str, Tensor]:
        """The columns of `Walks`, of all rows."""
        tokens = proposal.drafted if proposal.tree is None else proposal.tree.tokens
        y, x = proposal.target_choice, proposal.drafted
        scores = scores_of(self._scores, "raw", proposal.seen)
        for name in self._scores:
            if window := score_named(name).window:
                scores[name].masked_fill_(~proposal.followed(x == y[:, :-1], window), torch.inf)
        return {
            "exact": _child(tokens == y.gather(1, parents), parents, proposed),
            "drafted": _child(tokens == x.gather(1, parents), parents, proposed),
            **{name: pad(each, (0, 1), value=torch.inf) for name, each in scores.items()},
        }


def _child(wanted: Tensor, parents: Tensor, proposed: Tensor) -> Tensor:
    """The number of the proposed child of nodes 0 … N whose token is `wanted` (B, N); 0: there is none."""
    rows, nodes = wanted.shape
    numbers = torch.arange(1, nodes + 1, device=wanted.device).expand_as(wanted)
    found = torch.zeros((rows, nodes + 2), dtype=torch.int64, device=wanted.device)
    at = torch.where(wanted & proposed, parents, nodes + 1)  # the last column takes what is of no use
    return found.scatter_(1, at, numbers)[:, :-1]


def _padded(values: np.ndarray, width: int) -> np.ndarray:
    """Rounds with few nodes, as in a batch of short drafts, as wide as the widest."""
    filling = np.inf if values.dtype.kind == "f" else 0
    return np.pad(values, ((0, 0), (0, width - values.shape[1])), constant_values=filling)
