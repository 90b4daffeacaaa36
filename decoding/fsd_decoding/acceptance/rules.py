"""Acceptance rules: which drafted tokens are accepted, and which token is emitted after a rejection.

Every rule is one small class over a `Proposal`, listed in `RULES`; new rules are added there. The bonus token, emitted
after a draft accepted whole, is not up to the rule: it is always the target's own choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fsd_common.errors import UsageError
from fsd_decoding.acceptance.proposal import Proposal, Verdict
from fsd_decoding.acceptance.residuals import accepted_by_chance, judge_siblings, residual
from fsd_decoding.sampling import Sampling


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
        """Whether the tokens drawn may not decide which others are proposed beside them; see `trees.growth.Growth`."""
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
    follow, see `residuals.py`.
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


class Fuzzy(Rule):
    """Fuzzy speculative decoding (arXiv 2502.20704, section 3): accepts when D <= T, whatever x is, else emits y."""

    name, lossless = "fsd", "coupled"
    bounds_divergence = judges_trees = True

    def judge(self, proposal: Proposal) -> Verdict:
        return _by_score(proposal, proposal.scores)


class FuzzyOver(Rule):
    """Accepts what a lossless rule accepts, and also every token with D <= T; else emits the lossless rule's token.

    It accepts every token that `fsd` accepts at the same T, so its rounds are never shorter. In a tree D decides only
    where the lossless rule's token is no child's: elsewhere the round goes on without a loss.
    """

    bounds_divergence = judges_trees = True

    def __init__(self, name: str, base: Rule) -> None:
        self.name, self.lossless, self._base = name, base.name, base

    def fixes_trees(self, sampling: Sampling) -> bool:
        return self._base.fixes_trees(sampling)

    def judge(self, proposal: Proposal) -> Verdict:
        base = self._base.judge(proposal)
        fuzzy, by_score = proposal.within_threshold(proposal.scores), ~base.accepted
        if proposal.tree is not None:
            by_score &= ~proposal.tree.holds(base.fallback)
            fuzzy &= by_score
        return Verdict(base.accepted | fuzzy, base.fallback, proposal.scores, by_score)


class Typical(Rule):
    """Medusa's typical acceptance (arXiv 2401.10774): p(x) > min(ε, δ·exp(-H(p))).

    There is one threshold: T = 1 - ε, with δ = √ε as in Medusa. Then x is accepted when
    1 - max(p(x), (p(x)·exp H)²) < T, so T < 0 accepts nothing, as with `fsd`; and ε is never below 0, so a token that
    the target cannot emit is rejected at every T. p is taken after the logits processors. At temperature 0 it is the
    softmax of the logits, where Medusa takes the limit, which is `coupled` at every T. D is not used.
    """

    name, lossless = "typical", "coupled"

    def judge(self, proposal: Proposal) -> Verdict:
        p = torch.softmax(proposal.warped_target[:, :-1], -1)
        p_x, entropy = proposal.of_drafted(p), torch.special.entr(p).sum(-1)
        score = 1.0 - torch.maximum(p_x, (p_x * entropy.exp()).square()).double()
        below = torch.nextafter(score, torch.full_like(score, math.inf))  # <= T exactly where score < T
        return _by_score(proposal, below.clamp_min(0.0).masked_fill(p_x == 0, math.inf))


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
    return torch.softmax(proposal.warped_target[:, :-1], -1), torch.softmax(proposal.warped_draft, -1)


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
