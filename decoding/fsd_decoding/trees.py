"""Trees of drafted tokens, of which one forward pass of the target judges all paths, and how they grow, level by level.

No step depends on a tensor's value, so the whole draft can be one graph.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from fsd_decoding.batch import Batch
from fsd_decoding.drafters.base import Frontier, TreeDrafter
from fsd_decoding.sampling import Sampling
from fsd_decoding.tree_shape import TreeShape


@dataclass(frozen=True)
class Tree:
    """Node 0 is a row's last token, nodes 1 … N are the drafted ones, breadth first.

    Parents come before their children, so node N never has any. A row may propose fewer than N tokens; the other nodes
    have depth 0 and are no node's children.

    Args:
        tokens: (B, N) of nodes 1 … N.
        parents: (B, N) their parents, in 0 … N - 1.
        depths: (B, N) their depths, 1 for children of node 0; 0: not proposed.
        children: (B, N, k) tokens of the children of nodes 0 … N - 1, beginning with x, the token that the draft draws
            there; -1: none.
        seen: (B, N, N) bool, which of nodes 1 … N are on the path to each of them, itself included.
        places: (B, N) where the drafter keeps its states of them, counted from the end of the text; -1: nowhere.
        draft_length: L, the largest depth that a tree may have.
    """

    tokens: Tensor
    parents: Tensor
    depths: Tensor
    children: Tensor
    seen: Tensor
    places: Tensor
    draft_length: int

    @classmethod
    def of(cls, listed: list[Tensor], draft_length: int) -> Tree:
        """Returns the tree that was `listed`."""
        tokens, parents, depths, children, seen, places = listed
        return cls(tokens, parents, depths, children, seen, places, draft_length)

    def listed(self) -> list[Tensor]:
        """The tensors in their order, as a step returns them that may be captured as a graph."""
        return [self.tokens, self.parents, self.depths, self.children, self.seen, self.places]

    @property
    def proposed(self) -> Tensor:
        """Number of drafted tokens: (B,)."""
        return (self.depths > 0).sum(1)

    @property
    def internal(self) -> Tensor:
        """Which of nodes 0 … N - 1 have children: (B, N) bool."""
        return self.children[..., 0] >= 0

    @property
    def node_depths(self) -> Tensor:
        """The depths of nodes 0 … N: (B, N + 1)."""
        return pad(self.depths, (1, 0))

    def holds(self, tokens: Tensor) -> Tensor:
        """Whether `tokens` (B, N), one for each of nodes 0 … N - 1, are among the tokens of its children: (B, N)."""
        return (self.children == tokens.unsqueeze(-1)).any(-1)


def ancestors(parents: Tensor, depth: int) -> Tensor:
    """Returns `Tree.seen` from the parents (B, N) of trees of up to this depth: (B, N, N) bool."""
    nodes = parents.shape[1]
    number = torch.arange(nodes, device=parents.device)
    seen = (parents[:, :, None] == number + 1) | (number[:, None] == number)
    generations = 1
    while generations < depth - 1:
        known = seen.to(torch.float32)
        seen, generations = known @ known > 0, 2 * generations
    return seen


FIRST_CHILD = 0.6
"""Share of a node that its first child is taken to have in trees of a fixed shape, and so on among its siblings."""


def draft_tree(
    drafter: TreeDrafter, batch: Batch, sampling: Sampling, shape: TreeShape, depth: int, fixed: bool, kv_length: int
) -> list[Tensor]:
    """Drafts a tree for every row.

    Args:
        drafter, batch, sampling: what to draft with.
        shape, depth: how wide the trees are, and their largest depth.
        fixed: choose nodes by the ranks of tokens among their siblings alone, not by what q says of them. Sampling by
            residuals needs this: its law holds where the tokens drawn do not decide which others are proposed.
        kv_length: an upper bound of the rows' lengths and the scratch slots behind them.

    Returns:
        The fields of a `Tree`, and the raw logits (B, N, V) of q at nodes 0 … N - 1, which are padding at nodes without
        children.
    """
    growing = _Growing(batch, sampling, shape, depth, fixed)
    growing.branch(drafter.logits(batch.tokens, batch.lengths, 0, kv_length))
    for _ in range(1, depth):
        growing.branch(drafter.expand(batch.tokens, batch.lengths, growing.advance(), kv_length))
    tree, logits = growing.pruned()
    return [*tree.listed(), logits]


class _Growing:
    """Trees being drafted.

    Candidates are all children found so far, in the order in which they were found, which is breadth first. Number 0
    is a row's last token, number c + 1 candidate c.
    """

    def __init__(self, batch: Batch, sampling: Sampling, shape: TreeShape, depth: int, fixed: bool) -> None:
        self._batch, self._sampling, self._shape, self._depth, self._fixed = batch, sampling, shape, depth, fixed
        rows, self._device = len(batch.lengths), batch.lengths.device
        self._level = 0
        # Of the nodes whose children come next: (B, w).
        self._numbers = torch.zeros((rows, 1), dtype=torch.int64, device=self._device)
        self._scores = torch.zeros((rows, 1), device=self._device)
        self._valid = torch.ones((rows, 1), dtype=torch.bool, device=self._device)
        self._paths = torch.zeros((rows, 1, 0), dtype=torch.int64, device=self._device)
        scratch = shape.top_k * (depth - 1)
        self._seen = torch.zeros((rows, 1, scratch), dtype=torch.bool, device=self._device)
        self._expanded = [self._numbers]  # numbers of the nodes in `_logits`
        self._logits: list[Tensor] = []
        # By level: tokens, parents' numbers, depths, scores and validity of candidates, (B, n) each.
        self._found: list[tuple[Tensor, ...]] = []
        self._count = 0  # of candidates

    def branch(self, logits: Tensor) -> None:
        """Finds the children of the current nodes, from q's raw logits (B, w, V) there."""
        batch, top_k, width = self._batch, self._shape.top_k, logits.shape[1]
        positions = (batch.lengths[:, None] + self._level).expand(-1, width)
        gumbel = None if batch.gumbel is None else batch.gumbel[:, self._level : self._level + 1]
        tokens, log_q = self._sampling.ranked(logits, batch.tokens, batch.keys, positions, gumbel, top_k)
        self._level += 1
        deep = (batch.draft_lengths < self._level)[:, None, None]
        valid = self._valid.unsqueeze(-1) & ~deep & (log_q != -torch.inf)
        if self._fixed:
            ranks = torch.arange(top_k, device=self._device)
            likelihood = math.log(FIRST_CHILD) + ranks * math.log1p(-FIRST_CHILD)
            scores = (self._scores.unsqueeze(-1) + likelihood).masked_fill(deep, -torch.inf)
        else:  # log q, but no less than that of a later sibling, so that x, which comes first, is kept first
            likelihood = log_q.flip(-1).cummax(-1).values.flip(-1)
            scores = (self._scores.unsqueeze(-1) + likelihood).masked_fill(~valid, -torch.inf)
        parents = self._numbers.unsqueeze(-1).expand_as(tokens)
        depths = torch.full_like(tokens, self._level)
        self._logits.append(logits)
        self._found.append(tuple(each.flatten(1) for each in (tokens, parents, depths, scores, valid)))
        self._count += width * top_k

    def advance(self) -> Frontier:
        """Chooses the nodes of the newest level that get children."""
        (tokens, _, _, scores, valid), top_k = self._found[-1], self._shape.top_k
        chosen = _highest(scores, top_k)  # (B, w) among the newest candidates
        parents = chosen // top_k  # among the nodes before
        self._numbers = chosen + (1 + self._count - tokens.shape[1])
        self._scores, self._valid = scores.gather(1, chosen), valid.gather(1, chosen)
        paths = self._paths.gather(1, parents.unsqueeze(-1).expand(-1, -1, self._paths.shape[2]))
        self._paths = torch.cat([paths, tokens.gather(1, chosen).unsqueeze(-1)], 2)
        first, width = (self._level - 1) * top_k, chosen.shape[1]
        places = torch.arange(first, first + width, device=self._device)
        scratch = self._seen.shape[2]
        seen = self._seen.gather(1, parents.unsqueeze(-1).expand(-1, -1, scratch))
        self._seen = seen | (torch.arange(scratch, device=self._device) == places[:, None])
        self._expanded.append(self._numbers)
        return Frontier(self._paths, parents, places, self._seen, top_k)

    def pruned(self) -> tuple[Tree, Tensor]:
        """The trees, and q's logits at their nodes; see `draft_tree`."""
        tokens, parents, depths, scores, valid = (torch.cat(parts, 1) for parts in zip(*self._found, strict=True))
        kept = _highest(scores, self._shape.nodes).sort(1).values  # (B, N) breadth first
        valid = valid.gather(1, kept)
        renumbered = _inverse(kept + 1, self._count + 1)
        tokens, parents = tokens.gather(1, kept), renumbered.gather(1, parents.gather(1, kept))
        depths = torch.where(valid, depths.gather(1, kept), 0)
        expanded = torch.cat(self._expanded, 1)
        # Which of `_logits` each node has; 0, which is that of a row's last token, where it has none.
        at = _inverse(expanded[:, 1:], self._count + 1).gather(1, kept + 1)
        children = self._children(tokens, parents, kept, valid)
        tree = Tree(tokens, parents, depths, children, ancestors(parents, self._depth), at - 1, self._depth)
        logits = torch.cat(self._logits, 1)
        return tree, logits.gather(1, pad(at[:, :-1], (1, 0)).unsqueeze(-1).expand(-1, -1, logits.shape[2]))

    def _children(self, tokens: Tensor, parents: Tensor, kept: Tensor, valid: Tensor) -> Tensor:
        """`Tree.children`, where the ranks among siblings are the order in which candidates were found."""
        rows, nodes = kept.shape
        top_k = self._shape.top_k
        where = torch.where(valid, parents * top_k + kept % top_k, nodes * top_k)
        children = torch.full((rows, nodes * top_k + 1), -1, device=self._device)
        return children.scatter_(1, where, tokens)[:, :-1].view(rows, nodes, top_k)


def _highest(scores: Tensor, most: int) -> Tensor:
    """Indices of up to `most` of the highest scores (B, n), and of equal ones the first: (B, min(most, n)).

    A parent comes before its children, whose scores are not higher.
    """
    return scores.sort(dim=1, descending=True, stable=True).indices[:, :most]


def _inverse(numbers: Tensor, size: int) -> Tensor:
    """Returns (B, size) with n + 1 at the number `numbers[:, n]`, and 0 elsewhere."""
    places = torch.arange(1, numbers.shape[1] + 1, device=numbers.device).expand_as(numbers)
    return torch.zeros((len(numbers), size), dtype=torch.int64, device=numbers.device).scatter_(1, numbers, places)
