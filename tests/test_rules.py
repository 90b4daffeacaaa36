"""What every acceptance rule promises, one round at a time."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from fsd_decoding import noise
from fsd_decoding.divergence import divergence
from fsd_decoding.errors import UsageError
from fsd_decoding.proposal import Criterion, Proposal
from fsd_decoding.rules import RULES, rule_named
from fsd_decoding.sampling import Sampling

FALSE_ALARM = 1e-6
DRAFTING = [name for name, rule in RULES.items() if rule.drafts]
SAMPLINGS = [Sampling(), Sampling(1.0), Sampling(0.7, top_k=4), Sampling(1.3, top_p=0.8)]


def proposal(
    sampling: Sampling, threshold: float, rows: int = 200, drafts: int = 4, name: str = "js", seed: int = 0
) -> Proposal:
    """A round of random, related distributions over 9 tokens, drafted with the keyed noise."""
    generator = torch.Generator().manual_seed(seed)
    target = 2 * torch.randn(rows, drafts + 1, 9, generator=generator, dtype=torch.float64)
    draft = target[:, :-1] + torch.randn(rows, drafts, 9, generator=generator, dtype=torch.float64)
    keys = noise.problem_keys(seed, list(range(rows)))
    positions = torch.arange(drafts + 1).expand(rows, -1) + 10
    return drawn(target, draft, positions, keys, torch.full((rows,), threshold), Criterion(name), sampling)


def drawn(
    target: Tensor,
    draft: Tensor,
    positions: Tensor,
    keys: Tensor,
    thresholds: Tensor,
    criterion: Criterion,
    sampling: Sampling,
) -> Proposal:
    tokens = torch.zeros(len(target), 20, dtype=torch.int64)
    drafted = sampling.draw(sampling.warp(draft, tokens, positions[:, :-1]), keys, positions[:, :-1])
    return Proposal(target, draft, drafted, positions, tokens, keys, thresholds, criterion, sampling)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("name", RULES)
class TestEveryRule:
    def test_shapes_and_known_tokens(self, name: str, sampling: Sampling) -> None:
        round_ = proposal(sampling, 0.1)
        verdict = rule_named(name).judge(round_)
        assert verdict.accepted.shape == round_.drafted.shape
        assert verdict.accepted.dtype == torch.bool
        assert verdict.fallback.shape == round_.drafted.shape
        assert ((verdict.fallback >= 0) & (verdict.fallback < 9)).all()

    def test_says_the_same_again(self, name: str, sampling: Sampling) -> None:
        first, second = (rule_named(name).judge(proposal(sampling, 0.1)) for _ in range(2))
        assert torch.equal(first.accepted, second.accepted)
        assert torch.equal(first.fallback, second.fallback)

    def test_rows_do_not_see_each_other(self, name: str, sampling: Sampling) -> None:
        whole = rule_named(name).judge(proposal(sampling, 0.1))
        part = proposal(sampling, 0.1)
        for field in ("target_logits", "draft_logits", "drafted", "positions", "tokens", "keys", "thresholds"):
            setattr(part, field, getattr(part, field)[7:9])
        alone = rule_named(name).judge(part)
        assert torch.equal(alone.accepted, whole.accepted[7:9])
        assert torch.equal(alone.fallback, whole.fallback[7:9])

    def test_lossless_counterpart_is_lossless(self, name: str, sampling: Sampling) -> None:
        rule = rule_named(name)
        assert not rule_named(rule.lossless).fuzzy
        exact, fuzzy = (rule_named(n).judge(proposal(sampling, -1e-9)) for n in (rule.lossless, name))
        assert torch.equal(exact.fallback, fuzzy.fallback)
        if name == "fsd":  # its T < 0 is the target alone: right, and slower
            assert not fuzzy.accepted.any()
        else:
            assert torch.equal(exact.accepted, fuzzy.accepted)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("divergence_name", ["js", "ag", "kl_qp"])
def test_fuzzy_rules_accept_by_divergence(sampling: Sampling, divergence_name: str) -> None:
    """Against the definition: D <= T; x = y or D <= T; and they say which decisions D made."""
    round_ = proposal(sampling, 0.08, name=divergence_name)
    near = divergence(divergence_name, round_.target_logits[:, :-1], round_.draft_logits) <= 0.08
    same = round_.drafted == round_.target_choice[:, :-1]
    assert 0.1 < near.double().mean() < 0.9
    fsd, coupled = rule_named("fsd").judge(round_), rule_named("fsd-coupled").judge(round_)
    assert torch.equal(fsd.accepted, near)
    assert torch.equal(coupled.accepted, near | same)
    assert fsd.by_score is not None
    assert fsd.by_score.all()
    assert coupled.by_score is not None
    assert torch.equal(coupled.by_score, ~same)


def test_an_infinite_divergence_is_rejected_at_every_threshold() -> None:
    round_ = proposal(Sampling(), math.inf, name="kl_qp")
    round_.target_logits[:, 0, 1:] = -math.inf
    accepted = rule_named("fsd").judge(round_).accepted
    assert not accepted[:, 0].any()
    assert accepted[:, 1:].all()


@pytest.mark.parametrize("sampling", SAMPLINGS[1:], ids=str)
@pytest.mark.parametrize("name", ["sd", "coupled"])
def test_lossless_rules_emit_the_targets_distribution(name: str, sampling: Sampling) -> None:
    """30,000 first tokens of rounds that all start alike. False alarm: 1e-6 each."""
    rows = 30_000
    one = proposal(sampling, 0.0, rows=1, drafts=1, seed=4)
    target, draft = one.target_logits.expand(rows, -1, -1), one.draft_logits.expand(rows, -1, -1)
    keys, positions = noise.problem_keys(1, list(range(rows))), one.positions.expand(rows, -1)
    round_ = drawn(target, draft, positions, keys, torch.zeros(rows), Criterion(), sampling)
    verdict = rule_named(name).judge(round_)
    emitted = torch.where(verdict.accepted, round_.drafted, verdict.fallback).flatten()
    assert 0.05 < verdict.accepted.double().mean() < 0.95
    expected = torch.softmax(one.warped_target[0, 0], -1)
    seen = torch.bincount(emitted, minlength=9)
    possible = expected > 0
    assert not seen[~possible].any()
    assert chisquare(seen[possible].numpy(), (expected[possible] * rows).numpy()).pvalue > FALSE_ALARM


def test_coupling_accepts_as_often_as_its_bound_says() -> None:
    """P(x = y) >= (1 - tv)/(1 + tv) (arXiv 2408.07978, theorem 1), within four standard errors."""
    sampling, rows = Sampling(1.0), 40_000
    one = proposal(sampling, 0.0, rows=1, drafts=1, seed=2)
    keys, positions = noise.problem_keys(2, list(range(rows))), one.positions.expand(rows, -1)
    x, y = (
        sampling.draw(logits.expand(rows, -1, -1), keys, positions[:, :1])
        for logits in (one.draft_logits, one.target_logits[:, :1])
    )
    p, q = torch.softmax(one.target_logits[0, 0], -1), torch.softmax(one.draft_logits[0, 0], -1)
    tv = (p - q).abs().sum().item() / 2
    assert (x == y).double().mean().item() >= (1 - tv) / (1 + tv) - 4 * math.sqrt(0.25 / rows)


def test_unknown_rule_lists_the_known() -> None:
    with pytest.raises(UsageError, match="unknown rule 'exact'; known: target, sd, coupled, fsd, fsd-sd, fsd-coupled"):
        rule_named("exact")
