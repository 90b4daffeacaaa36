"""Acceptance rules: which drafted tokens stay, and what is emitted where one does not.

Knows the formulas that decide over a `Proposal`. Knows nothing of models, caches or rows' bookkeeping. A
rule is one small class; `RULES` is where one is added. What is emitted after a round accepted whole is no
rule's to say: it is always the target's own choice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fsd_decoding import noise
from fsd_decoding.acceptance.proposal import Proposal, Verdict
from fsd_decoding.errors import UsageError


class Rule:
    """One acceptance rule.

    name: what users and profiles call it. drafts: whether it has a use for a draft. lossless: the rule
    to run when no threshold may be trusted (its own name: it never loses anything). bounds_divergence: whether
    its threshold is one of D.
    """

    name: str
    lossless: str
    drafts = True
    bounds_divergence = False

    @property
    def fuzzy(self) -> bool:
        return self.lossless != self.name

    def widest(self, threshold: float) -> tuple[float, float]:
        """Where no decision has narrowed it, the interval [lo, hi) of T that gives one and the same text."""
        return -math.inf, math.inf

    def judge(self, round_: Proposal) -> Verdict:
        raise NotImplementedError


class TargetOnly(Rule):
    """No drafting: the target decodes alone."""

    name = lossless = "target"
    drafts = False

    def judge(self, round_: Proposal) -> Verdict:
        nothing = torch.zeros_like(round_.drafted, dtype=torch.bool)
        return Verdict(nothing, round_.target_choice[:, :-1])


class Coupled(Rule):
    """Accept x = y: drafter-invariant speculative decoding by Gumbel coupling (arXiv 2408.07978)."""

    name = lossless = "coupled"

    def judge(self, round_: Proposal) -> Verdict:
        y = round_.target_choice[:, :-1]
        return Verdict(round_.drafted == y, y)


class Speculative(Rule):
    """Speculative sampling (Leviathan et al. 2023): u <= p(x)/q(x), else a sample of (p - q)+.

    Greedy decoding is its limit: accept x = y, else emit y.
    """

    name = lossless = "sd"

    def judge(self, round_: Proposal) -> Verdict:
        if round_.sampling.greedy:
            return Coupled().judge(round_)
        p, q = _probabilities(round_)
        p_x, q_x = round_.of_drafted(p), round_.of_drafted(q)
        accepted = accepted_by_chance(p_x, q_x, round_.keys, round_.positions[:, :-1])
        return Verdict(accepted, _residual(p, q, round_))


class Fuzzy(Rule):
    """Fuzzy Speculative Decoding (arXiv 2502.20704, section 3): accept when D <= T, whatever x is."""

    name, lossless = "fsd", "coupled"
    bounds_divergence = True

    def judge(self, round_: Proposal) -> Verdict:
        return _by_score(round_, round_.scores)


class FuzzyOver(Rule):
    """An exact rule's acceptances, and those with D <= T: `fsd`'s quality, never a shorter round."""

    bounds_divergence = True

    def __init__(self, name: str, exact: Rule) -> None:
        self.name, self.lossless, self._exact = name, exact.name, exact

    def judge(self, round_: Proposal) -> Verdict:
        exact = self._exact.judge(round_)
        fuzzy = round_.within_threshold(round_.scores)
        return Verdict(exact.accepted | fuzzy, exact.fallback, round_.scores, ~exact.accepted)


class Typical(Rule):
    """Medusa's typical acceptance (arXiv 2401.10774): p(x) > min(ε, δ·exp(-H(p))).

    One threshold: T = 1 - ε, and δ = √ε, the tie Medusa itself uses. Then x is accepted when 1 - max(p(x),
    (p(x)·exp H)²) < T, so T < 0 accepts nothing, like `fsd`; and ε is never below 0, so x that the target
    cannot emit stays out at every T. p is after the processors; at temperature 0 it is the softmax of the
    logits, where Medusa takes the limit, which is `coupled` at every T. D plays no part.
    """

    name, lossless = "typical", "coupled"

    def judge(self, round_: Proposal) -> Verdict:
        p = torch.softmax(round_.warped_target[:, :-1], -1)
        p_x, entropy = round_.of_drafted(p), torch.special.entr(p).sum(-1)
        score = 1.0 - torch.maximum(p_x, (p_x * entropy.exp()).square()).double()
        below = torch.nextafter(score, torch.full_like(score, math.inf))  # <= T exactly where score < T
        return _by_score(round_, below.clamp_min(0.0).masked_fill(p_x == 0, math.inf))


class Ensemble(Rule):
    """Static ensemble verification (arXiv 2604.07622; transformers' `assistant_ensemble_weight` w): `sd`
    against v = w·p + (1 - w)·q in place of p, so that every drafted position emits from v.

    T = 1 - w, held to [0, 1]: T <= 0 is `sd`. Sampled: accept when u <= v(x)/q(x), else a sample of (v - q)+,
    which normalised is that of (p - q)+. Greedy: accept x = argmax v, else emit that. p and q are after the
    processors; at temperature 0 they are the softmax of the logits. D plays no part, and what is emitted
    depends on T itself, so a text holds for this T alone.
    """

    name, lossless = "ensemble", "sd"

    def widest(self, threshold: float) -> tuple[float, float]:
        if threshold <= 0.0:
            return -math.inf, math.nextafter(0.0, math.inf)
        return (1.0, math.inf) if threshold >= 1.0 else (threshold, math.nextafter(threshold, math.inf))

    def judge(self, round_: Proposal) -> Verdict:
        p, q = _probabilities(round_)
        share = round_.thresholds.clamp(0.0, 1.0).to(p.dtype)[:, None]  # (B, 1) of q in v
        if round_.sampling.greedy:
            mixed = _mixture(p, q, share.unsqueeze(-1)).argmax(-1)
            choice = torch.where(share > 0, mixed, round_.target_choice[:, :-1])  # softmax may tie what logits do not
            return Verdict(round_.drafted == choice, choice)
        p_x, q_x = round_.of_drafted(p), round_.of_drafted(q)
        accepted = accepted_by_chance(_mixture(p_x, q_x, share), q_x, round_.keys, round_.positions[:, :-1])
        if round_.criterion.within_support:
            accepted &= p_x > 0
        return Verdict(accepted, _residual(p, q, round_))


def _probabilities(round_: Proposal) -> tuple[Tensor, Tensor]:
    """p and q after the processors at the drafted positions: (B, L, V) each."""
    return torch.softmax(round_.warped_target[:, :-1], -1), torch.softmax(round_.warped_draft, -1)


def accepted_by_chance(p_x: Tensor, q_x: Tensor, keys: Tensor, positions: Tensor) -> Tensor:
    """u <= p(x)/q(x), where u is the noise of `keys` (B, 2) at `positions`: all else and the answer (B, L)."""
    return noise.uniform(keys, positions, noise.Stream.ACCEPT, p_x.dtype) * q_x <= p_x


def _residual(p: Tensor, q: Tensor, round_: Proposal) -> Tensor:
    """A keyed sample of (p - q)+ at every drafted position; y where p = q leaves nothing: (B, L)."""
    rest = (p - q).clamp_min(0.0)
    race = noise.gumbel(round_.keys, round_.positions[:, :-1], noise.Stream.RESIDUAL, p.shape[-1], p.dtype)
    sampled = (rest.log() + race).argmax(-1)
    return torch.where(rest.sum(-1) > 0, sampled, round_.target_choice[:, :-1])


def _mixture(p: Tensor, q: Tensor, share: Tensor) -> Tensor:
    return (1.0 - share) * p + share * q


def _by_score(round_: Proposal, scores: Tensor) -> Verdict:
    """Accept score <= T, else emit y."""
    accepted = round_.within_threshold(scores)
    return Verdict(accepted, round_.target_choice[:, :-1], scores, torch.ones_like(accepted))


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


def rule_named(name: str) -> Rule:
    if not isinstance(name, str) or name not in RULES:
        raise UsageError(f"unknown rule {name!r}; known: {', '.join(RULES)}")
    return RULES[name]
