"""What a round adds to a text: drafted tokens up to the first rejection of a chain, or along the path kept of a tree.

The bonus token, emitted after a draft accepted whole, is not up to the rule: it is always the target's own choice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from fsd_decoding.proposal import Proposal, Verdict
from fsd_decoding.trees import Tree


def emitted_tokens(proposal: Proposal, verdict: Verdict, drafted: Tensor, accepted: Tensor) -> Tensor:
    """The tokens of a round, of which the first `accepted + 1` of each row are emitted: (B, L + 1).

    Args:
        drafted: (B,) number of proposed tokens.
        accepted: (B,) number of them before the first rejection.
    """
    span = torch.arange(proposal.positions.shape[1], device=drafted.device)
    last = torch.where(span < drafted[:, None], pad(verdict.fallback, (0, 1)), proposal.target_choice)
    return torch.where(span < accepted[:, None], pad(proposal.drafted, (0, 1)), last)


@dataclass(frozen=True)
class Path:
    """The tokens of a round, and the scores that decided on them."""

    emitted: Tensor  # (B, L + 1) of which the first `accepted + 1` of a row are emitted
    positions: Tensor  # (B, L + 1) theirs
    accepted: Tensor  # (B,) number of drafted tokens in the text
    whole: Tensor  # (B,) bool: nothing was rejected, so the last token is a bonus
    # (B, L) the largest score up to each position that accepted a token, -inf where none did; None: no scores.
    largest_accepted: Tensor | None
    rejecting: Tensor | None  # (B, L) the score that rejected the token at each position; inf where none did
    nodes: Tensor | None = None  # (B, L + 1) in a tree: the node at each depth up to `accepted`, padded with 0


def walk(proposal: Proposal, verdict: Verdict, drafted: Tensor) -> Path:
    """Returns what a round adds to each text; in a chain the first `drafted` (B,) tokens of each row count."""
    return _along_chain(proposal, verdict, drafted) if proposal.tree is None else _along_tree(proposal, verdict)


def _along_chain(proposal: Proposal, verdict: Verdict, drafted: Tensor) -> Path:
    span = torch.arange(proposal.drafted.shape[1], device=drafted.device)
    accepted = (verdict.accepted & (span < drafted[:, None])).cumprod(1).sum(1)
    emitted = emitted_tokens(proposal, verdict, drafted, accepted)
    if verdict.score is None or verdict.by_score is None:
        return Path(emitted, proposal.positions, accepted, accepted == drafted, None, None)
    score = verdict.score.double()
    largest = torch.where(verdict.by_score & verdict.accepted, score, -torch.inf).cummax(1).values
    rejecting = torch.where(verdict.by_score & ~verdict.accepted, score, torch.inf)
    return Path(emitted, proposal.positions, accepted, accepted == drafted, largest, rejecting)


def _along_tree(proposal: Proposal, verdict: Verdict) -> Path:
    tree = proposal.tree
    assert tree is not None
    internal = tree.internal
    chosen = torch.where(verdict.accepted, proposal.drafted, verdict.fallback)  # (B, N) at nodes 0 … N - 1
    reached = (tree.depths > 0) & (tree.tokens == torch.where(internal, chosen, -1).gather(1, tree.parents))
    passed = ~(tree.seen & ~reached.unsqueeze(1)).any(2)  # (B, N) nodes 1 … N whose whole path is reached
    nodes = _by_depth(tree, passed)
    accepted = passed.sum(1)
    goes_on = pad(internal, (0, 1))
    emitted = torch.where(goes_on, pad(chosen, (0, 1)), proposal.target_choice).gather(1, nodes)
    whole = ~goes_on.gather(1, nodes).gather(1, accepted.unsqueeze(1)).squeeze(1)
    span = torch.arange(tree.draft_length + 1, device=nodes.device)
    positions = proposal.positions[:, :1] + span
    if verdict.score is None or verdict.by_score is None:
        return Path(emitted, positions, accepted, whole, None, None, nodes)
    judged = span[:-1] <= accepted.unsqueeze(1)  # (B, L)
    by_score = judged & _at(verdict.by_score & internal, nodes)
    accepts, score = _at(verdict.accepted, nodes), _at(verdict.score.double(), nodes)
    largest = torch.where(by_score & accepts, score, -torch.inf).cummax(1).values
    rejecting = torch.where(by_score & ~accepts, score, torch.inf)
    return Path(emitted, positions, accepted, whole, largest, rejecting, nodes)


def _by_depth(tree: Tree, passed: Tensor) -> Tensor:
    """The numbers of the passed nodes (B, N), of which there is one per depth, by depth: (B, L + 1), padded with 0."""
    numbers = torch.arange(1, passed.shape[1] + 1, device=passed.device)
    nodes = torch.zeros((len(passed), tree.draft_length + 1), dtype=torch.int64, device=passed.device)
    return nodes.scatter_(1, torch.where(passed, tree.depths, 0), torch.where(passed, numbers, 0))


def _at(values: Tensor, nodes: Tensor) -> Tensor:
    """The values of nodes 0 … N - 1 (B, N, …) along a path (B, L + 1): (B, L, …)."""
    at = nodes[:, :-1].clamp_max(values.shape[1] - 1)
    return values[torch.arange(len(values), device=values.device).unsqueeze(1), at]


def as_chain(proposal: Proposal, verdict: Verdict, path: Path) -> tuple[Proposal, Verdict, Tensor]:
    """Returns a judged round of trees as if each path had been drafted alone, with what was not passed left out.

    Returns:
        The round, its verdict, and the number of drafted tokens of each row (B,): those passed, and x where the path
        ended by a rejection.
    """
    tree, nodes = proposal.tree, path.nodes
    assert tree is not None
    assert nodes is not None
    passed = torch.arange(tree.draft_length, device=nodes.device) < path.accepted.unsqueeze(1)  # (B, L)
    rows = torch.arange(len(nodes), device=nodes.device).unsqueeze(1)
    scales = proposal.scales
    if scales is not None and scales.shape[1] > 1:  # else they are for all nodes
        scales = _at(scales, nodes)
    chain = replace(
        proposal,
        target_logits=proposal.target_logits[rows, nodes],
        draft_logits=_at(proposal.draft_logits, nodes),
        drafted=torch.where(passed, path.emitted[:, :-1], _at(proposal.drafted, nodes)),
        positions=path.positions,
        scales=scales,
        gumbel=None,
        tree=None,
    )
    score, by_score = verdict.score, verdict.by_score
    along = Verdict(
        passed,
        path.emitted[:, :-1],
        None if score is None else _at(score, nodes),
        None if by_score is None else _at(by_score, nodes),
    )
    return chain, along, path.accepted + ~path.whole
