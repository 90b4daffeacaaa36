"""Rounds over trees: run the target on all nodes, judge them, and keep the path that becomes text.

As in `verify.py`, no step depends on a tensor's value. Steps take a tree as a list of tensors, `Tree.listed`, because
graphs do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from fsd_decoding.acceptance.proposal import Criterion, Proposal
from fsd_decoding.acceptance.rules import Rule
from fsd_decoding.batch import Batch
from fsd_decoding.drafters.base import TreeDrafter
from fsd_decoding.engine.draft import Draft
from fsd_decoding.engine.kv_pool import PooledCaches
from fsd_decoding.engine.rounds import Rounds
from fsd_decoding.engine.row import Row
from fsd_decoding.engine.settings import Settings
from fsd_decoding.engine.verify import JudgedRound, judge, settle
from fsd_decoding.graphs.callers import GraphKey
from fsd_decoding.models.branches import Branches, move_path
from fsd_decoding.models.runner import ModelRunner
from fsd_decoding.sampling import Sampling
from fsd_decoding.trees.growth import Growth, draft_tree
from fsd_decoding.trees.tree import Tree


class TreeRounds(Rounds):
    """The phases of rounds over trees."""

    def __init__(self, caches: PooledCaches, settings: Settings) -> None:
        super().__init__(caches, settings)
        assert settings.tree is not None
        self._shape = settings.tree
        self._drafter = cast(TreeDrafter, caches.drafter)  # as `check_drafter` has found

    def scratch(self, most: int) -> int:
        return self._shape.scratch(most)

    def draft(self, rows: Sequence[Row | None], most: int, reach: int) -> Draft:
        settings = self._settings
        growth = Growth(self._shape, most, settings.rule.fixes_trees(settings.sampling))
        key = GraphKey((self._kind, growth), (settings.sampling, reach))
        given = (self._drafter, self._batch, settings.sampling, growth, reach)
        *listed, logits = self._call(key, draft_tree, *given)
        tree = Tree.of(listed, most)
        return Draft([logits], tree.proposed, tree)

    def verify(self, draft: Draft, reach: int) -> Tensor:
        tree = _tree_of(draft)
        key = GraphKey((self._kind, tree.tokens.shape[1], tree.deepest), reach)
        return self._call(key, verify_tree, self._target, self._batch, tree.listed(), tree.deepest, reach)

    def propose(self, draft: Draft, logits: Tensor) -> Proposal:
        proposing = (self._settings.criterion, self._settings.sampling)
        return propose_tree(self._batch, *proposing, logits, draft.logits[0], _tree_of(draft))

    def judge_and_settle(self, draft: Draft, logits: Tensor) -> Tensor:
        settings, tree = self._settings, _tree_of(draft)
        proposing, models = (settings.criterion, settings.sampling), (self._target, self._drafter)
        key = GraphKey((self._kind, tree.tokens.shape[1], tree.deepest, settings.rule.name), proposing)
        given = (settings.rule, *proposing, logits, draft.logits[0], tree.listed(), tree.deepest)
        return self._call(key, judge_and_settle_trees, self._batch, *models, *given)

    def settle(self, judged: JudgedRound) -> Tensor:
        return settle_trees(judged, self._batch, self._target, self._drafter)


def _tree_of(draft: Draft) -> Tree:
    assert draft.tree is not None
    return draft.tree


def verify_tree(target: ModelRunner, batch: Batch, listed: list[Tensor], deepest: int, reach: int) -> Tensor:
    """Runs the target on every row's last token and its nodes.

    Args:
        target: the target model with its cache.
        batch: rows, without the drafted tokens.
        listed, deepest: the tree.
        reach: an upper bound of the rows' lengths + N.

    Returns:
        Raw logits (B, N + 1, V) after each node.
    """
    tree, roots = Tree.of(listed, deepest), batch.lengths[:, None] - 1
    tokens = torch.cat([batch.tokens.gather(1, roots), tree.tokens], 1)
    slots = roots + torch.arange(tokens.shape[1], device=roots.device)
    branches = Branches(batch.lengths, slots, pad(tree.seen, (0, 0, 1, 0)), tree.depths)
    return target.logits(tokens, roots + tree.node_depths, reach, keep=tokens.shape[1], branches=branches)


def propose_tree(
    batch: Batch, criterion: Criterion, sampling: Sampling, target_logits: Tensor, draft_logits: Tensor, tree: Tree
) -> Proposal:
    """Collects a round for the rule.

    Args:
        batch: rows, without the drafted tokens.
        criterion, sampling: settings of the proposal.
        target_logits: (B, N + 1, V) raw.
        draft_logits: (B, N, V) raw, padding at nodes without children.
        tree: the nodes.
    """
    depths = tree.node_depths
    rows = torch.arange(len(depths), device=depths.device).unsqueeze(1)
    return Proposal(
        target_logits,
        draft_logits,
        tree.children[..., 0].clamp_min(0),
        batch.lengths[:, None] + depths,
        batch.tokens,
        batch.keys,
        batch.thresholds,
        criterion,
        sampling,
        race=None if batch.race is None else batch.race[rows, depths],
        tree=tree,
    )


def judge_and_settle_trees(
    batch: Batch,
    target: ModelRunner,
    drafter: TreeDrafter,
    rule: Rule,
    criterion: Criterion,
    sampling: Sampling,
    target_logits: Tensor,
    draft_logits: Tensor,
    listed: list[Tensor],
    deepest: int,
) -> Tensor:
    """`propose_tree`, `judge` and `settle_trees` as one step, for rounds without an observer or a threshold policy."""
    tree = Tree.of(listed, deepest)
    proposal = propose_tree(batch, criterion, sampling, target_logits, draft_logits, tree)
    return settle_trees(judge(rule, proposal, tree.proposed), batch, target, drafter)


def settle_trees(judged: JudgedRound, batch: Batch, target: ModelRunner, drafter: TreeDrafter) -> Tensor:
    """`settle`, after the states of the nodes on each path were moved to where those of a text are."""
    tree, nodes = judged.proposal.tree, judged.path.nodes
    assert tree is not None
    assert nodes is not None
    numbers = nodes[:, 1:] - 1  # among nodes 1 … N, -1 after the path's end
    move_path(target.cache, batch.lengths, numbers)
    places = torch.where(numbers >= 0, tree.places.gather(1, numbers.clamp_min(0)), -1)
    drafter.commit(batch.lengths, places)
    return settle(judged, batch)
