"""DraftedTrees: an observer that keeps the drafted tree of every round, and which path of it was accepted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from fsd_decoding.observers.round_record import RoundRecord
from fsd_decoding.text import token_name


@dataclass(frozen=True)
class DraftedNode:
    """One drafted token of a tree.

    Args:
        token: its id.
        name: the token alone, as text.
        depth: its place after the text, from 1.
        parent: the place of its parent in the list of nodes; None: it follows the text.
        accepted: whether it was accepted, as text, unless the text ended before it in that round.
    """

    token: int
    name: str
    depth: int
    parent: int | None
    accepted: bool


DraftedTree = tuple[DraftedNode, ...]
"""The nodes of a round, each after its parent."""


class _Round(NamedTuple):
    prompts: list[int | None]  # by row: the index of its prompt; None: the row is empty
    tokens: Tensor  # (B, N)
    parents: Tensor  # (B, N)
    depths: Tensor  # (B, N)
    nodes: Tensor  # (B, L + 1) the passed ones, from 1, padded with 0


class DraftedTrees:
    """Keeps all drafted trees: pass it to one call of `generate` as `observer`, then call `trees`.

    Args:
        tokenizer: the decoder's.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._rounds: list[_Round] = []

    def __call__(self, record: RoundRecord) -> None:
        if record.trees is not None:
            tree, nodes = record.trees.tree, record.trees.nodes  # which the next round overwrites
            kept = (tree.tokens.clone(), tree.parents.clone(), tree.depths.clone(), nodes.clone())
            prompts = [request.index if request else None for request in record.requests]
            self._rounds.append(_Round(prompts, *kept))

    def trees(self, prompt: int = 0) -> list[DraftedTree]:
        """Returns the trees of a text by round; none where chains were drafted. Waits for the device.

        Args:
            prompt: the index of its prompt in the observed call.
        """
        rounds = [each for each in self._rounds if prompt in each.prompts]
        return [self._tree(each, each.prompts.index(prompt)) for each in rounds]

    def _tree(self, round: _Round, row: int) -> DraftedTree:
        tokens, parents, depths, nodes = (
            column[row].tolist() for column in (round.tokens, round.parents, round.depths, round.nodes)
        )
        numbered = zip(range(1, len(tokens) + 1), tokens, parents, depths, strict=True)
        proposed = [each for each in numbered if each[-1] > 0]
        places = {number: place for place, (number, *_) in enumerate(proposed)}
        return tuple(
            DraftedNode(token, token_name(self._tokenizer, token), depth, places.get(parent), number in nodes)
            for number, token, parent, depth in proposed
        )
