"""The tokens drafted in one round, as a tree for every row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad


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
        deepest: L, the largest depth that a tree may have.
    """

    tokens: Tensor
    parents: Tensor
    depths: Tensor
    children: Tensor
    seen: Tensor
    places: Tensor
    deepest: int

    @classmethod
    def of(cls, listed: list[Tensor], deepest: int) -> Tree:
        """Returns the tree that was `listed`."""
        tokens, parents, depths, children, seen, places = listed
        return cls(tokens, parents, depths, children, seen, places, deepest)

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
