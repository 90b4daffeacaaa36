"""Acceptance rules: which drafted tokens stay, and what is emitted where one does not.

Knows probabilities, keyed noise and thresholds of one round. Knows nothing of models, caches or rows'
bookkeeping. A rule is one small class; `RULES` is where one is added. DESIGN words: x is the drafted
token, y what target-only decoding would emit there with the same noise, D the divergence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fsd_decoding import noise
from fsd_decoding.divergence import unchecked
from fsd_decoding.errors import UsageError
from fsd_decoding.sampling import Sampling


@dataclass
class Proposal:
    """One round as a rule sees it: B rows, L drafted tokens, verified at L + 1 positions."""

    target_logits: Tensor  # (B, L + 1, V) raw
    draft_logits: Tensor  # (B, L, V) raw
    drafted: Tensor  # (B, L) x
    positions: Tensor  # (B, L + 1) absolute positions of the tokens to emit
    keys: Tensor  # (B, 2) of the noise
    thresholds: Tensor  # (B,) T
    divergence_name: str
    sampling: Sampling

    @cached_property
    def warped_target(self) -> Tensor:
        return self.sampling.warp(self.target_logits)

    @cached_property
    def warped_draft(self) -> Tensor:
        return self.sampling.warp(self.draft_logits)

    @cached_property
    def target_choice(self) -> Tensor:
        """y at every position, the last one being the bonus: (B, L + 1)."""
        return self.sampling.draw(self.warped_target, self.keys, self.positions)

    @cached_property
    def divergences(self) -> Tensor:
        """D on raw logits: (B, L)."""
        name = self.divergence_name
        return unchecked([name], self.target_logits[:, :-1], self.draft_logits)[name]

    @cached_property
    def within_threshold(self) -> Tensor:
        """D <= T, where an infinite D never is: (B, L)."""
        return (self.divergences <= self.thresholds[:, None]) & self.divergences.isfinite()


@dataclass(frozen=True)
class Verdict:
    """What a rule says of a round; the engine cuts it at the first rejection."""

    accepted: Tensor  # (B, L) bool
    replacement: Tensor  # (B, L + 1): emitted at the first rejection, or the bonus
    by_divergence: Tensor | None  # (B, L) bool: the decisions D made; None: the rule has no threshold


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

    def judge(self, round_: Proposal) -> Verdict:
        raise NotImplementedError


class TargetOnly(Rule):
    """No drafting: the target decodes alone."""

    name = lossless = "target"
    drafts = False

    def judge(self, round_: Proposal) -> Verdict:
        nothing = torch.zeros_like(round_.drafted, dtype=torch.bool)
        return Verdict(nothing, round_.target_choice, None)


class Coupled(Rule):
    """Accept x = y: drafter-invariant speculative decoding by Gumbel coupling (arXiv 2408.07978)."""

    name = lossless = "coupled"

    def judge(self, round_: Proposal) -> Verdict:
        return Verdict(round_.drafted == round_.target_choice[:, :-1], round_.target_choice, None)


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
        replacement = torch.cat([_residual(p[:, :-1], q, round_), round_.target_choice[:, -1:]], 1)
        return Verdict(u * q_x <= p_x, replacement, None)


class Fuzzy(Rule):
    """Fuzzy Speculative Decoding (arXiv 2502.20704, section 3): accept when D <= T, whatever x is."""

    name, lossless = "fsd", "coupled"

    def judge(self, round_: Proposal) -> Verdict:
        everywhere = torch.ones_like(round_.within_threshold)
        return Verdict(round_.within_threshold, round_.target_choice, everywhere)


class FuzzyOver(Rule):
    """An exact rule's acceptances, and those with D <= T: `fsd`'s quality, never a shorter round."""

    def __init__(self, name: str, exact: Rule) -> None:
        self.name, self.lossless, self._exact = name, exact.name, exact

    def judge(self, round_: Proposal) -> Verdict:
        exact = self._exact.judge(round_)
        return Verdict(exact.accepted | round_.within_threshold, exact.replacement, ~exact.accepted)


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
