"""What a round adds to a text: the drafted tokens after its last one that are accepted, and one token after them.

In a chain these are all drafted tokens up to the first rejection. In a tree they are a path: at every node the rule
decides on one token, and where that is a child's the path goes on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from fsd_decoding.acceptance.proposal import Proposal, Verdict, emitted_tokens
from fsd_decoding.trees.tree import Tree


@dataclass(frozen=True)
class Path:
    """The tokens of a round, and the scores that decided on them."""

    emitted: Tensor  # (B, L + 1) of which the first `accepted + 1` of a row are emitted
    positions: Tensor  # (B, L + 1) theirs
    accepted: Tensor  # (B,) number of drafted tokens in the text
    whole: Tensor  # (B,) bool: nothing was rejected, so the last token is a bonus
    spared: Tensor | None  # (B, L) largest score up to each position that accepted a token; -inf: none. None: no scores
    refused: Tensor | None  # (B, L) smallest score up to each position that rejected a token; inf: none
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
    spared = torch.where(verdict.by_score & verdict.accepted, score, -torch.inf).cummax(1).values
    refused = torch.where(verdict.by_score & ~verdict.accepted, score, torch.inf)
    return Path(emitted, proposal.positions, accepted, accepted == drafted, spared, refused)


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
    span = torch.arange(tree.deepest + 1, device=nodes.device)
    positions = proposal.positions[:, :1] + span
    if verdict.score is None or verdict.by_score is None:
        return Path(emitted, positions, accepted, whole, None, None, nodes)
    judged = span[:-1] <= accepted.unsqueeze(1)  # (B, L)
    by_score = judged & _at(verdict.by_score & internal, nodes)
    spares, score = _at(verdict.accepted, nodes), _at(verdict.score.double(), nodes)
    spared = torch.where(by_score & spares, score, -torch.inf).cummax(1).values
    refused = torch.where(by_score & ~spares, score, torch.inf).cummin(1).values
    return Path(emitted, positions, accepted, whole, spared, refused, nodes)


def _by_depth(tree: Tree, passed: Tensor) -> Tensor:
    """The numbers of the passed nodes (B, N), of which there is one per depth, by depth: (B, L + 1), padded with 0."""
    numbers = torch.arange(1, passed.shape[1] + 1, device=passed.device)
    nodes = torch.zeros((len(passed), tree.deepest + 1), dtype=torch.int64, device=passed.device)
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
    passed = torch.arange(tree.deepest, device=nodes.device) < path.accepted.unsqueeze(1)  # (B, L)
    rows = torch.arange(len(nodes), device=nodes.device).unsqueeze(1)
    chain = replace(
        proposal,
        target_logits=proposal.target_logits[rows, nodes],
        draft_logits=_at(proposal.draft_logits, nodes),
        drafted=torch.where(passed, path.emitted[:, :-1], _at(proposal.drafted, nodes)),
        positions=path.positions,
        scales=_each(proposal.scales, nodes),
        race=None,
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


def _each(values: Tensor | None, nodes: Tensor) -> Tensor | None:
    """`_at` of values (B, N) of nodes; of values (B, 1) for all nodes, and None, those themselves."""
    return values if values is None or values.shape[1] == 1 else _at(values, nodes)
