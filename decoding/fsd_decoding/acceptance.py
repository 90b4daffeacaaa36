"""Acceptance of drafted tokens: what a rule sees of a round, the rules, and what a round adds to a text.

Throughout x is the drafted token, y the token that target-only decoding would emit at its position with the same noise,
D the divergence of the two models' next-token distributions there, and T the threshold. Every rule is one small class
over a `Proposal`, listed in `RULES`; new rules are added there. The bonus token, emitted after a draft accepted whole,
is not up to the rule: it is always the target's own choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from fsd_common.errors import UsageError
from fsd_decoding import noise
from fsd_decoding.sampling import Sampling
from fsd_decoding.scores import Logits, Score, Seen, score_named
from fsd_decoding.tensors import kernels_support, lazy, wide
from fsd_decoding.trees import Tree

if TYPE_CHECKING:
    from fsd_decoding.kernels import Scan


@dataclass(frozen=True)
class Criterion:
    """What T bounds, and which tokens it may not accept.

    Args:
        divergence: a name of `scores.py`, such as "js", "js@50" or "margin".
        on: "raw" logits, or logits "processed" by temperature, top-k and the other sampling settings; those that a
            score is defined on are taken, whatever is given.
        within_support: reject tokens to which the processed target gives probability 0, however low their score is.
    """

    divergence: str = "js"
    on: Logits = "raw"
    within_support: bool = False
    score: Score = field(init=False, repr=False, compare=False)  # looked up once, as a compiled round cannot

    def __post_init__(self) -> None:
        object.__setattr__(self, "score", score_named(self.divergence))
        if self.on not in ("raw", "processed"):
            raise UsageError(f"scores are computed on 'raw' or 'processed' logits, not on {self.on!r}")
        object.__setattr__(self, "on", self.score.on or self.on)
        if not isinstance(self.within_support, bool):
            raise UsageError(f"within_support is {self.within_support!r}; it must be True or False")


@dataclass
class Proposal:
    """One round as a rule receives it: B rows, L drafted tokens each, verified at L + 1 positions.

    With trees, whose nodes are breadth first, "position" n is node n of N instead: `drafted` are the first children of
    nodes 0 … N - 1, and mean nothing where there are none.
    """

    target_logits: Tensor  # (B, L + 1, V) raw
    draft_logits: Tensor  # (B, L, V) raw
    drafted: Tensor  # (B, L) x
    positions: Tensor  # (B, L + 1) absolute positions of the tokens to emit
    tokens: Tensor  # (B, slots) prompt and new tokens of each row, the drafted ones included
    keys: Tensor  # (B, 2) noise keys
    thresholds: Tensor  # (B,) T requested for each prompt
    criterion: Criterion
    sampling: Sampling
    adapted: Tensor | None = None  # (B, 1) or (B, L) T of a threshold policy, which replaces `thresholds`
    scales: Tensor | None = None  # (B, 1) or (B, L) factors of a scale policy, by which T is multiplied
    gumbel: Tensor | None = None  # (B, L + 1, V) Gumbel noise of the positions, where it was computed for the draft
    tree: Tree | None = None  # what was drafted; None: a chain
    counts: Tensor | None = None  # (B,) how many tokens of a chain were drafted, the rest is padding; None: all

    @lazy
    def warped_target(self) -> Tensor:
        """The target's processed logits: (B, L + 1, V)."""
        return self.sampling.warp(self.target_logits, self.tokens, self.positions)

    @lazy
    def warped_draft(self) -> Tensor:
        """The draft's processed logits: (B, L, V)."""
        return self.sampling.warp(self.draft_logits, self.tokens, self.positions[:, :-1])

    @lazy
    def target_choice(self) -> Tensor:
        """y at every position, the last one being the bonus token: (B, L + 1)."""
        if self._target_scan is not None:
            return self._target_scan.choice
        return self.sampling.draw(self.warped_target, self.keys, self.positions, self.gumbel)

    @lazy
    def _target_scan(self) -> Scan | None:
        """One kernel pass over the target's raw logits, shared by y and D; None where no kernel applies."""
        return self.sampling.scan(self.target_logits, self.keys, self.positions)

    @lazy
    def _draft_scan(self) -> Scan | None:
        """One kernel pass over the draft's raw logits; None where no kernel applies."""
        if self._target_scan is None or not (self.draft_logits.numel() and kernels_support(self.draft_logits)):
            return None
        from fsd_decoding.kernels import scan

        return scan(self.draft_logits)

    @property
    def finite(self) -> tuple[Tensor, Tensor]:
        """Where logits hold no NaN, no +inf and not only -inf: the target's (B, L + 1), the draft's (B, L)."""
        target, draft = self._target_scan, self._draft_scan
        return (
            (self.target_logits.amax(-1) if target is None else target.normaliser).isfinite(),
            (self.draft_logits.amax(-1) if draft is None else draft.normaliser).isfinite(),
        )

    @lazy
    def divergences(self) -> Tensor:
        """The score at the drafted positions, without regard to other positions: (B, L)."""
        return self.criterion.score.of(self.seen(self.criterion.on))

    def seen(self, on: Logits) -> Seen:
        """What scores may read, as (B, L)."""
        if on == "raw":
            target, draft, scans = self.target_logits[:, :-1], self.draft_logits, (self._target_scan, self._draft_scan)
        else:
            target, draft, scans = self.warped_target[:, :-1], self.warped_draft, (None, None)
        return Seen(target, draft, self.drafted, partial(self.uniform, torch.float64), scans)

    def uniform(self, dtype: torch.dtype) -> Tensor:
        """u of the exact test of every drafted token: (B, L)."""
        return noise.uniform(self.keys, self.positions[:, :-1], noise.Stream.ACCEPT, dtype)

    def scores(self, exact: Tensor) -> Tensor:
        """Scores compared with T: divided by their scales if there are any; infinite where no T may accept: (B, L).

        Args:
            exact: (B, L) bool: what the exact rule accepts.
        """
        scores, window = self.divergences, self.criterion.score.window
        if self.scales is not None:
            scores = torch.where(self.scales > 0, scores / self.scales, float("inf"))
        if window:
            scores = scores.masked_fill(~self.followed(exact, window), float("inf"))
        if self.criterion.within_support:
            impossible = self.of_drafted(self.warped_target[:, :-1]) == float("-inf")
            scores = scores.masked_fill(impossible, float("inf"))
        return scores

    def followed(self, exact: Tensor, window: int) -> Tensor:
        """Whether as many tokens were drafted after each one, and the exact rule accepts all of them: (B, L) bool."""
        kept = pad(exact & self.inside, (0, window))
        return kept.unfold(1, window, 1)[:, 1:].all(-1)

    @property
    def inside(self) -> Tensor:
        """The tokens of a chain that were drafted, without padding: (B, L) bool."""
        if self.counts is None:
            return torch.ones_like(self.drafted, dtype=torch.bool)
        return torch.arange(self.drafted.shape[1], device=self.drafted.device) < self.counts[:, None]

    def of_drafted(self, values: Tensor) -> Tensor:
        """The entries of `values` (B, L, V) at the drafted tokens x: (B, L)."""
        return values.gather(-1, self.drafted.unsqueeze(-1)).squeeze(-1)

    def within_threshold(self, scores: Tensor) -> Tensor:
        """Whether score <= T, which an infinite score never is: (B, L) bool."""
        return (scores <= self._unscaled_bounds) & scores.isfinite()

    @property
    def bounds(self) -> Tensor:
        """The effective bounds on D, scales included: (B, 1) or (B, L)."""
        return self._unscaled_bounds if self.scales is None else self._unscaled_bounds * self.scales

    def finite_and_valid(self, drafted: Tensor) -> tuple[Tensor, Tensor]:
        """Whether all logits are finite, and whether no T is NaN and no scale negative: (B,) bool each.

        Args:
            drafted: (B,) how many of a chain's tokens count; the rest is padding.
        """
        target, draft = self.finite
        if self.tree is None:
            padding = torch.arange(self.drafted.shape[1], device=drafted.device) >= drafted[:, None]
            return target[:, 0] & (target[:, 1:] & draft | padding).all(1), self._has_valid_bounds(padding)
        unread, unjudged = self.tree.depths == 0, ~self.tree.internal
        finite = (target[:, 1:] | unread) & (draft | unjudged)
        return target[:, 0] & finite.all(1), self._has_valid_bounds(unjudged)

    def _has_valid_bounds(self, unjudged: Tensor) -> Tensor:
        if self.scales is None and self.adapted is None:
            return torch.ones_like(self.thresholds, dtype=torch.bool)
        valid = self.scales >= 0 if self.scales is not None else ~self._unscaled_bounds.isnan()
        return (valid | unjudged).all(1)

    @property
    def _unscaled_bounds(self) -> Tensor:
        """The bounds on scores: (B, 1) or (B, L)."""
        return self.thresholds[:, None] if self.adapted is None else self.adapted


@dataclass(frozen=True)
class Verdict:
    """A rule's decisions on every drafted token of a round, without regard to earlier rejections; see `walk`."""

    accepted: Tensor  # (B, L) bool
    fallback: Tensor  # (B, L) token emitted in place of a rejected one; in a tree it may be another child's
    score: Tensor | None = None  # (B, L) compared with T: accepted where score <= T
    by_score: Tensor | None = None  # (B, L) bool: decided by the score; the other decisions do not depend on T


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


def accepted_by_chance(p_x: Tensor, q_x: Tensor, keys: Tensor, positions: Tensor, rank: int = 0) -> Tensor:
    """Whether u <= p(x)/q(x), where u is the acceptance noise of `keys` at `positions`.

    Args:
        p_x, q_x: (B, L) probabilities of the drafted tokens.
        keys: (B, 2) noise keys.
        positions: (B, L) absolute positions.
        rank: which of several tokens at one position it is, each of which has a u of its own.

    Returns:
        (B, L) bool.
    """
    return noise.uniform(keys, positions, noise.Stream.ACCEPT, p_x.dtype, rank) * q_x <= p_x


def residual(p: Tensor, q: Tensor, proposal: Proposal) -> Tensor:
    """A keyed sample of (p - q)+ at every drafted position, or y where p = q: (B, L)."""
    return _sample((p - q).clamp_min(0.0), proposal)


def judge_siblings(proposal: Proposal, children: Tensor, p: Tensor, q: Tensor) -> Verdict:
    """Tests the children of every node one after the other, as in SpecInfer (arXiv 2305.09781, multi-step speculative
    sampling), for children drawn without replacement, as in recursive rejection sampling (arXiv 2402.14160).

    After a rejection, what is left of p is tested against what is left of q: (p - q)+, normalised, against q without
    the rejected token, normalised. So the emitted token has the law p, if the tokens drawn do not decide how many of
    them are proposed. With one child it is speculative sampling.

    Args:
        proposal: a round of trees.
        children: (B, N, k), -1: none; see `Tree.children`.
        p, q: (B, N, V) probabilities at nodes 0 … N - 1.

    Returns:
        The verdict on each node's first child; in its place comes an accepted sibling, or a sample of what is left.
    """
    accepted = torch.full_like(children[..., 0], -1)
    for rank in range(children.shape[2]):
        token = children[..., rank]
        x, proposed = token.clamp_min(0).unsqueeze(-1), token >= 0
        if rank:
            p, q = _normalised(p), _normalised(q)
        p_x, q_x = p.gather(-1, x).squeeze(-1), q.gather(-1, x).squeeze(-1)
        lucky = accepted_by_chance(p_x, q_x, proposal.keys, proposal.positions[:, :-1], rank)
        accepted = torch.where(lucky & proposed & (accepted < 0), token, accepted)
        p = torch.where(proposed.unsqueeze(-1), (p - q).clamp_min(0.0), p)
        q = q.scatter(-1, x, 0.0)
    first = (accepted == proposal.drafted) & (accepted >= 0)
    return Verdict(first, torch.where(accepted >= 0, accepted, _sample(p, proposal)))


def _normalised(weights: Tensor) -> Tensor:
    """The distribution (…, V) that weights are proportional to; zeros where all are zero."""
    return weights / weights.sum(-1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)


def _sample(rest: Tensor, proposal: Proposal) -> Tensor:
    """A keyed sample in proportion to `rest` (B, L, V) at every drafted position, or y where it is 0: (B, L)."""
    gumbel = noise.gumbel(proposal.keys, proposal.positions[:, :-1], noise.Stream.RESIDUAL, rest.shape[-1], rest.dtype)
    sampled = (rest.log() + gumbel).argmax(-1)
    return torch.where(rest.sum(-1) > 0, sampled, proposal.target_choice[:, :-1])


class Rule:
    """Base class of acceptance rules.

    Attributes:
        name: the rule's name in `RULES`, arguments and profiles.
        lossless: name of the rule to run when no threshold may be trusted; a lossless rule names itself.
        drafts: whether the rule needs a draft model.
        bounds_divergence: whether its threshold bounds the divergence D.
        judges_trees: whether it can judge trees of drafted tokens.
    """

    name: str
    lossless: str
    drafts = True
    bounds_divergence = False
    judges_trees = False

    @property
    def fuzzy(self) -> bool:
        """Whether the rule may change the target's outputs, depending on T."""
        return self.lossless != self.name

    def lossless_at(self, threshold: float) -> bool:
        """Whether the target's outputs cannot change at this T."""
        return not self.fuzzy or threshold < 0

    def initial_interval(self, threshold: float) -> tuple[float, float]:
        """The interval [lo, hi) of thresholds that give the same text, before any decision narrows it."""
        return -math.inf, math.inf

    def fixes_trees(self, sampling: Sampling) -> bool:
        """Whether the tokens drawn may not decide which others are proposed beside them; see `trees.draft_tree`."""
        return False

    def judge(self, proposal: Proposal) -> Verdict:
        """Decides every drafted token of a round, without regard to earlier rejections in it."""
        raise NotImplementedError


class TargetOnly(Rule):
    """Target-only decoding, without a draft."""

    name = lossless = "target"
    drafts = False

    def judge(self, proposal: Proposal) -> Verdict:
        nothing = torch.zeros_like(proposal.drafted, dtype=torch.bool)
        return Verdict(nothing, proposal.target_choice[:, :-1])


class Coupled(Rule):
    """Drafter-invariant speculative decoding by Gumbel coupling (arXiv 2408.07978): accepts x = y, else emits y."""

    name = lossless = "coupled"
    judges_trees = True

    def judge(self, proposal: Proposal) -> Verdict:
        y = proposal.target_choice[:, :-1]
        return Verdict(proposal.drafted == y, y)


class Speculative(Rule):
    """Speculative sampling (Leviathan et al. 2023): accepts when u <= p(x)/q(x), else emits a sample of (p - q)+.

    Greedy decoding is its limit at temperature 0: it accepts x = y, else emits y. In a tree a rejected child's siblings
    follow, see `judge_siblings`.
    """

    name = lossless = "sd"
    judges_trees = True

    def fixes_trees(self, sampling: Sampling) -> bool:
        return not sampling.greedy

    def judge(self, proposal: Proposal) -> Verdict:
        if proposal.sampling.greedy:
            return Coupled().judge(proposal)
        p, q = _probabilities(proposal)
        if proposal.tree is not None:
            return judge_siblings(proposal, proposal.tree.children, p, q)
        p_x, q_x = proposal.of_drafted(p), proposal.of_drafted(q)
        accepted = accepted_by_chance(p_x, q_x, proposal.keys, proposal.positions[:, :-1])
        return Verdict(accepted, residual(p, q, proposal))


class Block(Rule):
    """Block verification (arXiv 2403.10444, algorithm 2; vLLM's `rejection_sample_method: "block"`).

    Drafted tokens are tested together: the draft is kept up to the last place i that passes its test, with a chance
    that counts what the tokens before it had to spare. So it keeps no fewer than `sd` on average, and the target's
    distribution. Greedily it is `sd`.
    """

    name = lossless = "sd-block"

    def judge(self, proposal: Proposal) -> Verdict:
        if proposal.sampling.greedy:
            return Coupled().judge(proposal)
        (p, q), inside = _probabilities(proposal), proposal.inside
        ratio = torch.where(inside, proposal.of_drafted(p) / proposal.of_drafted(q), 0.0)
        kept = [torch.ones_like(ratio[:, 0])]  # of the draft up to each place, what the target gives it: (B,) each
        for place in range(ratio.shape[1]):
            kept.append((kept[-1] * ratio[:, place]).clamp_max(1.0))
        share = torch.stack(kept, 1)  # (B, L + 1)
        rest = (share[:, :-1, None] * p - q).clamp_min(0.0)  # (B, L, V) emitted after each place, if it is the last
        left = rest.sum(-1)
        chance = left / (left + 1.0 - share[:, :-1])  # (B, L) of places 0 … L - 1, of which 0 needs none
        chance = torch.where(left + 1.0 - share[:, :-1] > 0, chance, 1.0)
        last = inside & ~pad(inside, (0, 1))[:, 1:]
        chance = torch.where(last, share[:, 1:], pad(chance, (0, 1))[:, 1:])  # (B, L) of places 1 … L
        passed = inside & (proposal.uniform(chance.dtype) <= chance)
        kept_to = passed.flip(1).cumsum(1).flip(1) > 0  # whether a place at or after it passed
        return Verdict(kept_to, _sample(rest, proposal))


class Fuzzy(Rule):
    """Fuzzy speculative decoding (arXiv 2502.20704, section 3): accepts when the score is at most T, else emits y."""

    name, lossless = "fsd", "coupled"
    bounds_divergence = judges_trees = True

    def judge(self, proposal: Proposal) -> Verdict:
        scores = proposal.scores(proposal.drafted == proposal.target_choice[:, :-1])
        return _by_score(proposal, scores)


class FuzzyOver(Rule):
    """Accepts what a lossless rule accepts, and also every token with a score of at most T; else emits the lossless
    rule's token.

    It accepts every token that `fsd` accepts at the same T, so its rounds are never shorter. In a tree the score
    decides only where the lossless rule's token is no child's: elsewhere the round goes on without a loss.
    """

    bounds_divergence = judges_trees = True

    def __init__(self, name: str, base: Rule) -> None:
        self.name, self.lossless, self._base = name, base.name, base

    def fixes_trees(self, sampling: Sampling) -> bool:
        return self._base.fixes_trees(sampling)

    def judge(self, proposal: Proposal) -> Verdict:
        base = self._base.judge(proposal)
        scores = proposal.scores(base.accepted)
        fuzzy, by_score = proposal.within_threshold(scores), ~base.accepted
        if proposal.tree is not None:
            by_score &= ~proposal.tree.holds(base.fallback)
            fuzzy &= by_score
        return Verdict(base.accepted | fuzzy, base.fallback, scores, by_score)


class Typical(Rule):
    """Medusa's typical acceptance (arXiv 2401.10774): `fsd` with the score "typical", whatever score is given."""

    name, lossless = "typical", "coupled"

    def judge(self, proposal: Proposal) -> Verdict:
        return _by_score(proposal, score_named(self.name).of(proposal.seen("processed")))


class Ensemble(Rule):
    """Static ensemble verification (arXiv 2604.07622; transformers' `assistant_ensemble_weight` w): `sd`
    with v = w·p + (1 - w)·q in place of p, so that every drafted position emits a sample of v.

    T = 1 - w, clamped to [0, 1]; T <= 0 is `sd`. With sampling, x is accepted when u <= v(x)/q(x); else a sample of
    (v - q)+ is emitted, which after normalisation is (p - q)+. Greedily, x = argmax v is accepted; else argmax v is
    emitted. p and q are taken after the logits processors; at temperature 0 they are the softmax of the logits. D is
    not used, and the emitted tokens depend on T itself, so a text is known to hold for its own T alone.
    """

    name, lossless = "ensemble", "sd"

    def lossless_at(self, threshold: float) -> bool:
        return threshold <= 0

    def initial_interval(self, threshold: float) -> tuple[float, float]:
        if threshold <= 0.0:
            return -math.inf, math.nextafter(0.0, math.inf)
        return (1.0, math.inf) if threshold >= 1.0 else (threshold, math.nextafter(threshold, math.inf))

    def judge(self, proposal: Proposal) -> Verdict:
        p, q = _probabilities(proposal)
        share = proposal.thresholds.clamp(0.0, 1.0).to(p.dtype)[:, None]  # (B, 1) weight of q in v
        if proposal.sampling.greedy:
            mixed = _mixture(p, q, share.unsqueeze(-1)).argmax(-1)
            choice = torch.where(share > 0, mixed, proposal.target_choice[:, :-1])  # softmax may tie
            return Verdict(proposal.drafted == choice, choice)
        p_x, q_x = proposal.of_drafted(p), proposal.of_drafted(q)
        accepted = accepted_by_chance(_mixture(p_x, q_x, share), q_x, proposal.keys, proposal.positions[:, :-1])
        if proposal.criterion.within_support:
            accepted &= p_x > 0
        return Verdict(accepted, residual(p, q, proposal))


def _probabilities(proposal: Proposal) -> tuple[Tensor, Tensor]:
    """p and q at the drafted positions, after the logits processors: (B, L, V) each."""
    return torch.softmax(wide(proposal.warped_target[:, :-1]), -1), torch.softmax(wide(proposal.warped_draft), -1)


def _mixture(p: Tensor, q: Tensor, share: Tensor) -> Tensor:
    return (1.0 - share) * p + share * q


def _by_score(proposal: Proposal, scores: Tensor) -> Verdict:
    """Accepts where score <= T, else emits y."""
    accepted = proposal.within_threshold(scores)
    return Verdict(accepted, proposal.target_choice[:, :-1], scores, torch.ones_like(accepted))


RULES: Mapping[str, Rule] = {
    rule.name: rule
    for rule in (
        TargetOnly(),
        Speculative(),
        Block(),
        Coupled(),
        Fuzzy(),
        FuzzyOver("fsd-sd", Speculative()),
        FuzzyOver("fsd-coupled", Coupled()),
        Typical(),
        Ensemble(),
    )
}


def rule_named(name: str, fits: Callable[[Rule], bool] = lambda rule: True) -> Rule:
    """Returns the rule of that name, whether it fits or not.

    Raises:
        UsageError: there is none; the message lists those that fit what the caller does with a rule.
    """
    if not isinstance(name, str) or name not in RULES:
        raise UsageError(f"unknown rule {name!r:.60}; known: {', '.join(rule for rule in RULES if fits(RULES[rule]))}")
    return RULES[name]
