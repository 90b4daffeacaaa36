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
from fsd_decoding.errors import UsageError
from fsd_decoding.proposal import Proposal, Verdict


class Rule:
    """One acceptance rule.

    name: what users and profiles call it. drafts: whether it has a use for a draft. lossless: the rule
    to run when no threshold may be trusted (its own name: it never loses anything).
    """

    name: str
    lossless: str
    drafts = True

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
        p = torch.softmax(round_.warped_target, -1)  # (B, L + 1, V)
        q = torch.softmax(round_.warped_draft, -1)  # (B, L, V)
        x = round_.drafted.unsqueeze(-1)
        p_x, q_x = p[:, :-1].gather(-1, x).squeeze(-1), q.gather(-1, x).squeeze(-1)
        u = noise.uniform(round_.keys, round_.positions[:, :-1], noise.Stream.ACCEPT, p.dtype)
        return Verdict(u * q_x <= p_x, _residual(p[:, :-1], q, round_))


class Fuzzy(Rule):
    """Fuzzy Speculative Decoding (arXiv 2502.20704, section 3): accept when D <= T, whatever x is."""

    name, lossless = "fsd", "coupled"

    def judge(self, round_: Proposal) -> Verdict:
        accepted = round_.within_threshold(round_.scores)
        return Verdict(accepted, round_.target_choice[:, :-1], round_.scores, torch.ones_like(accepted))


class FuzzyOver(Rule):
    """An exact rule's acceptances, and those with D <= T: `fsd`'s quality, never a shorter round."""

    def __init__(self, name: str, exact: Rule) -> None:
        self.name, self.lossless, self._exact = name, exact.name, exact

    def judge(self, round_: Proposal) -> Verdict:
        exact = self._exact.judge(round_)
        fuzzy = round_.within_threshold(round_.scores)
        return Verdict(exact.accepted | fuzzy, exact.fallback, round_.scores, ~exact.accepted)


def _residual(p: Tensor, q: Tensor, round_: Proposal) -> Tensor:
    """A keyed sample of (p - q)+ at every drafted position; y where p = q leaves nothing: (B, L)."""
    rest = (p - q).clamp_min(0.0)
    race = noise.gumbel(round_.keys, round_.positions[:, :-1], noise.Stream.RESIDUAL, p.shape[-1], p.dtype)
    sampled = (rest.log() + race).argmax(-1)
    return torch.where(rest.sum(-1) > 0, sampled, round_.target_choice[:, :-1])


RULES: Mapping[str, Rule] = {
    rule.name: rule
    for rule in (
        TargetOnly(),
        Speculative(),
        Coupled(),
        Fuzzy(),
        FuzzyOver("fsd-sd", Speculative()),
        FuzzyOver("fsd-coupled", Coupled()),
    )
}


def rule_named(name: str) -> Rule:
    if name not in RULES:
        raise UsageError(f"unknown rule {name!r}; known: {', '.join(RULES)}")
    return RULES[name]
