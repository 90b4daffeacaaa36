"""Acceptance rules: which drafted tokens are kept, and what is emitted in place of the others.

Every rule is one small class over a `Proposal`, in a module of your own (docs/extending.md), or listed in `RULES`.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from fsd_common.addons import OWN, Addon, Registry
from fsd_common.errors import UsageError
from fsd_decoding import noise
from fsd_decoding.proposal import Proposal, Verdict
from fsd_decoding.sampling import Sampling
from fsd_decoding.tensors import wide


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
        name: the rule's name in `RULES`, arguments and profiles; of an add-on, the name that it is found by.
        lossless: name of the rule to run when no threshold may be trusted; a lossless rule has its own, or none.
        drafts: whether the rule needs a draft model.
        bounds_score: whether its threshold bounds a score.
        score: the one that it bounds, whatever is given; None: that which is given.
        judges_trees: whether it can judge trees of drafted tokens.
        replayed_as: name of a rule that accepts about as many tokens, which forecasts replay in its place; None: there
            is none, and it cannot be calibrated.
    """

    name: str = ""
    lossless: str = ""
    drafts = True
    bounds_score = False
    score: str | None = None
    judges_trees = False
    replayed_as: str | None = None

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
        kept = [ratio.new_ones(len(ratio))]  # of the draft up to each place, what the target gives it: (B,) each
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
    bounds_score = judges_trees = True

    def judge(self, proposal: Proposal) -> Verdict:
        scores = proposal.compared(proposal.drafted == proposal.target_choice[:, :-1])
        accepted = proposal.within_threshold(scores)
        return Verdict(accepted, proposal.target_choice[:, :-1], scores, torch.ones_like(accepted))


class FuzzyOver(Rule):
    """Accepts what a lossless rule accepts, and also every token with a score of at most T; else emits the lossless
    rule's token.

    It accepts every token that `fsd` accepts at the same T, so its rounds are never shorter. In a tree the score
    decides only where the lossless rule's token is no child's: elsewhere the round goes on without a loss.
    """

    bounds_score = judges_trees = True

    def __init__(self, name: str, base: Rule) -> None:
        self.name, self.lossless, self._base = name, base.name, base

    def fixes_trees(self, sampling: Sampling) -> bool:
        return self._base.fixes_trees(sampling)

    def judge(self, proposal: Proposal) -> Verdict:
        base = self._base.judge(proposal)
        scores = proposal.compared(base.accepted)
        fuzzy, by_score = proposal.within_threshold(scores), ~base.accepted
        if proposal.tree is not None:
            by_score &= ~proposal.tree.holds(base.fallback)
            fuzzy &= by_score
        return Verdict(base.accepted | fuzzy, base.fallback, scores, by_score)


class Ensemble(FuzzyOver):
    """Static ensemble verification (arXiv 2604.07622; transformers' `assistant_ensemble_weight` w): `sd`
    with v = w·p + (1 - w)·q in place of p, so that every drafted position emits a sample of v.

    T = 1 - w, clamped to [0, 1]; T <= 0 is `sd`. With sampling, x is accepted when u <= v(x)/q(x), which the score
    "ensemble" says; else a sample of (v - q)+ is emitted, which after normalisation is (p - q)+. Greedily, x = argmax v
    is accepted; else argmax v is emitted, which depends on T itself, so a text is known to hold for its own T alone. p
    and q are taken after the logits processors; at temperature 0 they are the softmax of the logits.
    """

    score, replayed_as, judges_trees = "ensemble", "fsd-sd", False

    def __init__(self) -> None:
        super().__init__("ensemble", Speculative())

    def lossless_at(self, threshold: float) -> bool:
        return threshold <= 0

    def initial_interval(self, threshold: float) -> tuple[float, float]:
        if threshold <= 0.0:
            return -math.inf, math.nextafter(0.0, math.inf)
        return min(threshold, sys.float_info.max), math.nextafter(threshold, math.inf)

    def judge(self, proposal: Proposal) -> Verdict:
        if not proposal.sampling.greedy:
            own = replace(proposal.criterion, score=self.score)
            return super().judge(proposal if own == proposal.criterion else replace(proposal, criterion=own))
        p, q = _probabilities(proposal)
        share = proposal.bounds.clamp(0.0, 1.0).to(p.dtype)  # (B, 1) or (B, L) weight of q in v
        mixed = ((1.0 - share).unsqueeze(-1) * p + share.unsqueeze(-1) * q).argmax(-1)
        exact = proposal.target_choice[:, :-1]
        choice = torch.where(share > 0, mixed, exact)  # softmax may tie
        accepted = proposal.drafted == choice
        score = torch.where(accepted, -math.inf, math.inf)  # narrows no interval
        return Verdict(accepted, choice, score, proposal.drafted != exact)


def _probabilities(proposal: Proposal) -> tuple[Tensor, Tensor]:
    """p and q at the drafted positions, after the logits processors: (B, L, V) each."""
    return torch.softmax(wide(proposal.warped_target[:, :-1]), -1), torch.softmax(wide(proposal.warped_draft), -1)


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
        Ensemble(),
    )
}


def _as_rule(found: Any, name: str) -> Rule | None:
    """A rule of an add-on, which is called as it was asked for. UsageError: it has no lossless rule."""
    rule = found() if isinstance(found, type) and issubclass(found, Rule) else copy.copy(found)
    if not isinstance(rule, Rule):
        return None
    rule.name, rule.lossless = name, name if rule.lossless in ("", rule.name) else rule.lossless
    if rule.lossless != name and (rule.lossless not in RULES or RULES[rule.lossless].fuzzy):
        raise UsageError(
            f"lossless is {rule.lossless!r:.60}; it must be a lossless rule, or be left out where it is one"
        )
    return rule


_RULES = Registry[Rule]("rule", RULES, _as_rule, "a Rule of fsd_decoding.rules, or a subclass that takes no arguments")


def rule_named(name: str, fits: Callable[[Rule], bool] = lambda rule: True) -> Rule:
    """Returns the rule of that name, whether it fits or not.

    Raises:
        UsageError: there is none; the message lists those that fit what the caller does with a rule.
    """
    found = _RULES.find(name) if isinstance(name, str) else None
    if found is None:
        known = [rule for rule in _RULES.names if rule not in RULES or fits(RULES[rule])]
        raise UsageError(f"unknown rule {name!r:.60}; known: {', '.join(known)}, and {OWN}")
    return found


def addon_of(name: str) -> Addon | None:
    """Returns what is known of the code of a rule; None: it is of this package. UsageError: it is missing."""
    return _RULES.addon(name)
