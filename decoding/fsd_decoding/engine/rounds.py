"""The rounds of decoding on the device: draft, verify, accept, emit.

No step depends on a tensor's value, so each can be one graph; the host reads a round once, in `Decided.of`. Steps take
a tree as a list of tensors, `Tree.listed`, because graphs do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from fsd_decoding.batch import Batch, Request, Row
from fsd_decoding.drafters.base import Drafter, TreeDrafter
from fsd_decoding.engine.cache_pool import PooledCaches
from fsd_decoding.engine.draft import Steps, StepsAhead, draft_until
from fsd_decoding.graphs.callers import EagerCaller, GraphKey
from fsd_decoding.models.runner import ModelRunner
from fsd_decoding.models.slot_cache import Branches, move_path
from fsd_decoding.observers.round_record import Observer
from fsd_decoding.policies.markers import Automaton
from fsd_decoding.policies.stopping import StopPolicy, Verified
from fsd_decoding.policies.threshold import ThresholdPolicy
from fsd_decoding.proposal import Criterion, Proposal
from fsd_decoding.rules import Rule
from fsd_decoding.sampling import Sampling
from fsd_decoding.tree_shape import TreeShape
from fsd_decoding.trees import Tree, draft_tree
from fsd_decoding.walk import Path, walk


@dataclass(frozen=True)
class EngineSettings:
    """How a stream of requests is decoded."""

    rule: Rule
    criterion: Criterion
    sampling: Sampling
    eos: frozenset[int]
    seed: int
    stops: Callable[[Request, list[int], int], int | None] | None = None
    """(request, its new tokens, how many of them are from this round) -> the number of tokens up to the one that ends
    the text, or None if the text goes on."""
    stop_policy: StopPolicy | None = None
    threshold_policy: ThresholdPolicy | None = None
    observer: Observer | None = None
    tree: TreeShape | None = None
    """The shape of the drafted trees; None: chains are drafted."""
    reading: Automaton | None = None
    """Reads the phase that the score depends on; None: it depends on none."""

    def scratch(self, draft_length: int) -> int:
        """Returns the number of slots that a round needs behind each text, at draft lengths of up to this one."""
        return draft_length if self.tree is None else self.tree.scratch(draft_length)


@dataclass(frozen=True)
class Draft:
    """The tokens drafted in a round. Those of a chain are written behind the rows' texts in the batch."""

    logits: list[Tensor]  # of a chain L tensors (B, 1, V), raw; of trees one (B, N, V)
    counts: Tensor  # (B,) tokens each row proposes; a chain's positions beyond are uninitialised padding
    tree: Tree | None = None

    @property
    def draft_length(self) -> int:
        """L, the most drafted tokens that can become text."""
        return len(self.logits) if self.tree is None else self.tree.draft_length


class Rounds:
    """The phases of rounds, over chains or over trees. Steps go through the caches' caller, which may capture them.

    Args:
        caches: the models and the batch.
        settings: how requests are decoded.
    """

    def __init__(self, caches: PooledCaches, settings: EngineSettings) -> None:
        self._settings, self._side = settings, caches.side
        self._batch, self._target, self._call = caches.batch, caches.target, caches.call
        # Trees are drafted only by what can, see `check_drafter`.
        self._drafter = cast(TreeDrafter | None, caches.drafter) if settings.rule.drafts else None
        models = self._target.identity, self._drafter.identity if self._drafter else None
        self._kind = (*models, caches.rows, caches.slots)

    def gumbel_noise(self, draft_length: int) -> Tensor | None:
        """Returns the noise by which draft and target draw tokens, for all positions of a round at once.

        Not in graphs, which own their memory, nor where a policy may end drafts early.
        """
        if not self._call.can_reshape or self._settings.stop_policy is not None:
            return None
        batch, target = self._batch, self._target
        positions = batch.lengths[:, None] + torch.arange(draft_length + 1, device=batch.lengths.device)
        dtype = torch.float64 if target.model.dtype == torch.float64 else torch.float32  # that of logits
        return self._settings.sampling.gumbel_noise(batch.keys, positions, target.vocabulary, dtype)

    def draft(self, rows: Sequence[Row | None], draft_length: int, kv_length: int) -> Draft:
        """Drafts up to `draft_length` tokens after one another in every row.

        Args:
            rows: the rows of the batch on the host.
            draft_length: the largest one of the rows.
            kv_length: an upper bound of the slots in use.
        """
        settings, batch, drafter = self._settings, self._batch, self._drafter
        sampling, policy = settings.sampling, settings.stop_policy
        if drafter is None or draft_length == 0:
            return Draft([], torch.zeros_like(batch.lengths))
        if settings.tree is not None:
            growth = settings.tree, draft_length, settings.rule.fixes_trees(sampling)
            key = GraphKey((self._kind, growth), (sampling, kv_length))
            *listed, logits = self._call(key, draft_tree, drafter, batch, sampling, *growth, kv_length)
            tree = Tree.of(listed, draft_length)
            return Draft([logits], tree.proposed, tree)
        if policy is None:
            key = GraphKey((self._kind, draft_length), (sampling, kv_length))
            given = (drafter, batch, sampling, draft_length, kv_length)
            return Draft(self._call(key, draft_steps, *given), batch.draft_lengths)
        call = EagerCaller() if policy.watches else self._call.uncompiled

        def take(step: int) -> Tensor:
            key = GraphKey((self._kind, step), (sampling, kv_length))
            return call(key, draft_step, drafter, batch, sampling, step, kv_length)

        steps = Steps(take, draft_length)
        if self._side is not None and policy.looks and not policy.watches:
            steps = StepsAhead(take, draft_length, self._side)
        return Draft(*draft_until(policy, rows, batch, draft_length, steps))

    def verify(self, draft: Draft, kv_length: int) -> Tensor:
        """Returns the target's raw logits after each row's last token and after each drafted one."""
        target, batch, drafts, tree = self._target, self._batch, draft.draft_length, draft.tree
        call = self._call.directly if target.waits else self._call  # prompts are of any number and length
        if tree is not None:
            key = GraphKey((self._kind, tree.tokens.shape[1], drafts), kv_length)
            return call(key, verify_tree, target, batch, tree.listed(), drafts, kv_length)
        return call(GraphKey((self._kind, drafts), kv_length), verify, target, batch, drafts, kv_length)

    def propose(self, draft: Draft, logits: Tensor) -> Proposal:
        """Collects a draft and the target's logits for the rule."""
        settings = self._settings
        given = (settings.criterion, settings.sampling, logits, draft.logits, draft.counts, draft.tree)
        return propose(self._batch, *given)

    def emit(self, draft: Draft, proposal: Proposal, path: Path) -> Tensor:
        """Makes accepted tokens text, and packs the round for `Decided.of`: (B, columns) float64."""
        return emit(self._batch, self._target, self._drafter, proposal, draft.counts, path)

    def judge_and_emit(self, draft: Draft, logits: Tensor) -> Tensor:
        """`propose`, the rule and `emit` as one step, for rounds without an observer or a threshold policy."""
        settings, tree = self._settings, draft.tree
        proposing = (settings.criterion, settings.sampling)
        nodes = None if tree is None else tree.tokens.shape[1]
        shape = (self._kind, draft.draft_length, nodes, settings.rule.name)
        key = GraphKey(shape, (proposing, settings.stop_policy is None))
        given = (settings.rule, *proposing, logits, draft.logits, draft.counts)
        trees = ([] if tree is None else tree.listed(), draft.draft_length, self._target, self._drafter)
        return self._call(key, judge_and_emit, self._batch, *given, *trees)


def draft_steps(drafter: Drafter, batch: Batch, sampling: Sampling, draft_length: int, kv_length: int) -> list[Tensor]:
    """Drafts a fixed number of tokens per row and writes them into the batch.

    Args:
        drafter, batch, sampling: what to draft with.
        draft_length: L.
        kv_length: an upper bound of `batch.lengths + L`.

    Returns:
        L tensors of raw logits (B, 1, V).
    """
    return [draft_step(drafter, batch, sampling, step, kv_length) for step in range(draft_length)]


def draft_step(drafter: Drafter, batch: Batch, sampling: Sampling, step: int, kv_length: int) -> Tensor:
    """Drafts one token per row, writes it into the batch and returns its raw logits (B, 1, V)."""
    logits = drafter.logits(batch.tokens, batch.lengths, step, kv_length)
    positions = batch.lengths[:, None] + step
    gumbel = None if batch.gumbel is None else batch.gumbel[:, step : step + 1]
    batch.tokens.scatter_(1, positions, sampling.choose(logits, batch.tokens, batch.keys, positions, gumbel))
    return logits


def verify(target: ModelRunner, batch: Batch, drafts: int, kv_length: int) -> Tensor:
    """Runs the target on every row's last token and the drafted ones.

    Args:
        target: the target model with its cache.
        batch: rows with the drafted tokens behind their texts.
        drafts: L, the number of drafted tokens.
        kv_length: an upper bound of the rows' lengths + L.

    Returns:
        Raw logits (B, L + 1, V) after each row's last token and after each drafted one.
    """
    at = batch.lengths[:, None] - 1 + torch.arange(1 + drafts, device=batch.lengths.device)
    return target.logits(batch.tokens.gather(1, at), at, kv_length, keep=drafts + 1)


def verify_tree(target: ModelRunner, batch: Batch, listed: list[Tensor], draft_length: int, kv_length: int) -> Tensor:
    """Runs the target on every row's last token and its nodes.

    Args:
        target: the target model with its cache.
        batch: rows, without the drafted tokens.
        listed, draft_length: the tree.
        kv_length: an upper bound of the rows' lengths + N.

    Returns:
        Raw logits (B, N + 1, V) after each node.
    """
    tree, roots = Tree.of(listed, draft_length), batch.lengths[:, None] - 1
    tokens = torch.cat([batch.tokens.gather(1, roots), tree.tokens], 1)
    slots = roots + torch.arange(tokens.shape[1], device=roots.device)
    branches = Branches(batch.lengths, slots, pad(tree.seen, (0, 0, 1, 0)), tree.depths)
    return target.logits(tokens, roots + tree.node_depths, kv_length, keep=tokens.shape[1], branches=branches)


def propose(
    batch: Batch,
    criterion: Criterion,
    sampling: Sampling,
    target_logits: Tensor,
    draft_logits: list[Tensor],
    drafted: Tensor,
    tree: Tree | None,
) -> Proposal:
    """Collects a round for the rule.

    Args:
        batch: rows, with the drafted tokens of chains behind their texts.
        criterion, sampling: settings of the proposal.
        target_logits: (B, L + 1, V) raw; of trees (B, N + 1, V).
        draft_logits: L tensors (B, 1, V), raw; of trees one (B, N, V), padding at nodes without children.
        drafted: (B,) number of proposed tokens.
        tree: the nodes; None: a chain.
    """
    if tree is None:
        positions = batch.lengths[:, None] + torch.arange(len(draft_logits) + 1, device=batch.lengths.device)
        tokens, logits = batch.tokens.gather(1, positions[:, :-1]), torch.cat([target_logits[:, :0], *draft_logits], 1)
        gumbel = None if batch.gumbel is None else batch.gumbel[:, : positions.shape[1]]
    else:
        depths = tree.node_depths
        rows = torch.arange(len(depths), device=depths.device).unsqueeze(1)
        positions = batch.lengths[:, None] + depths
        tokens, logits = tree.children[..., 0].clamp_min(0), draft_logits[0]
        gumbel = None if batch.gumbel is None else batch.gumbel[rows, depths]
    return Proposal(
        target_logits, logits, tokens, positions, batch.tokens, batch.keys, batch.thresholds, criterion, sampling,
        gumbel=gumbel, tree=tree, counts=None if tree else drafted, begins=batch.begins,
    )  # fmt: skip


def emit(
    batch: Batch, target: ModelRunner, drafter: TreeDrafter | None, proposal: Proposal, drafted: Tensor, path: Path
) -> Tensor:
    """Writes the tokens of every position into the batch, and packs the round for `Decided.of`.

    In trees, the states of the nodes on each path are moved to where those of a text are.

    Args:
        drafted: (B,) number of proposed tokens.

    Returns:
        (B, columns) float64.
    """
    if proposal.tree is not None and path.nodes is not None:
        numbers = path.nodes[:, 1:] - 1  # among nodes 1 … N, -1 after the path's end
        move_path(target.cache, batch.lengths, numbers)
        places = torch.where(numbers >= 0, proposal.tree.places.gather(1, numbers.clamp_min(0)), -1)
        assert drafter is not None
        drafter.commit(batch.lengths, places)
    batch.tokens.scatter_(1, path.positions, path.emitted)  # positions beyond the new length are overwritten later
    finite_logits, valid_bounds = proposal.finite_and_valid(drafted)
    facts = [drafted, path.accepted, path.whole, finite_logits, valid_bounds]
    parts = [path.emitted, torch.stack(facts, 1)]
    if path.largest_accepted is not None and path.rejecting is not None:
        parts += [path.largest_accepted, path.rejecting]
    return torch.cat([part.double() for part in parts], 1)  # token ids are exact in fp64


def judge_and_emit(
    batch: Batch,
    rule: Rule,
    criterion: Criterion,
    sampling: Sampling,
    target_logits: Tensor,
    draft_logits: list[Tensor],
    drafted: Tensor,
    listed: list[Tensor],
    draft_length: int,
    target: ModelRunner,
    drafter: TreeDrafter | None,
) -> Tensor:
    """`propose`, the rule and `emit` as one step. `listed`: the tree; empty: a chain."""
    tree = Tree.of(listed, draft_length) if listed else None
    proposal = propose(batch, criterion, sampling, target_logits, draft_logits, drafted, tree)
    return emit(batch, target, drafter, proposal, drafted, walk(proposal, rule.judge(proposal), drafted))


@dataclass(frozen=True)
class Decided:
    """One round on the host: the candidate tokens of every row, and the decisions on them."""

    emitted: list[list[int]]  # L + 1 each, of which the first `accepted + 1` are emitted
    drafted: list[int]
    accepted: list[int]
    whole: list[bool]  # nothing was rejected
    finite_logits: list[bool]  # no logits of the row are NaN or +inf
    valid_bounds: list[bool]  # no T of the row is NaN, and no scale negative
    largest_accepted: list[list[float]]  # by position, the largest score up to it that accepted a token; -inf: none
    rejecting: list[list[float]]  # by position, the score that rejected its token; inf: none

    @classmethod
    def of(cls, packed: Tensor, drafts: int) -> Decided:
        """Unpacks the result of `emit`, by one copy to the host for the whole round.

        Args:
            packed: (B, columns).
            drafts: L, the most drafted tokens that can become text.
        """
        rows = packed.tolist()
        n = drafts + 1
        scores = n + 5
        return cls(
            emitted=[[int(t) for t in row[:n]] for row in rows],
            drafted=[int(row[n]) for row in rows],
            accepted=[int(row[n + 1]) for row in rows],
            whole=[bool(row[n + 2]) for row in rows],
            finite_logits=[bool(row[n + 3]) for row in rows],
            valid_bounds=[bool(row[n + 4]) for row in rows],
            largest_accepted=[row[scores : scores + drafts] for row in rows],
            rejecting=[row[scores + drafts :] for row in rows],
        )

    def interval(self, row: int, kept: int) -> tuple[float, float]:
        """The largest score that accepted one of a row's first `kept` tokens, and the smallest that rejected one."""
        decisions = min(kept, self.accepted[row] + (not self.whole[row]))  # a bonus token is no decision
        largest, rejecting = self.largest_accepted[row][:decisions], self.rejecting[row][:decisions]
        return largest[-1] if largest else -math.inf, min(rejecting, default=math.inf)

    def verified(self, row: int) -> Verified:
        """The outcome of a row's round, as passed to a stop policy."""
        largest, smallest = self.interval(row, self.drafted[row])
        scores = (score if math.isfinite(score) else None for score in (largest, smallest))
        return Verified(self.drafted[row], self.accepted[row], *scores)
