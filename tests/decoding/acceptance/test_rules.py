"""Acceptance rules, one round at a time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from scipy.special import softmax
from scipy.stats import chisquare
from torch import Tensor

from fsd_calib.testing.rounds import SAMPLINGS, draw_round, random_round
from fsd_common.errors import UsageError
from fsd_decoding import noise
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.divergence import DIVERGENCES, divergence
from fsd_decoding.observers.round_record import RoundRecord
from fsd_decoding.proposal import Criterion
from fsd_decoding.rules import RULES, rule_named
from fsd_decoding.sampling import Sampling
from fsd_decoding.scores import Logits
from support.models.tiny_models import word_tokenizer
from support.models.tiny_pair import ragged_prompts, related

FALSE_ALARM = 1e-6
ALONE = ("fsd",)  # at T < 0 it equals target-only decoding: correct, but slower than its lossless rule


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("name", RULES)
def test_a_rule_is_fuzzy_where_a_larger_threshold_accepts_more(name: str, sampling: Sampling) -> None:
    """`fsd_calib.testing` has what every rule must do besides."""
    if sampling.greedy and name == "ensemble":
        pytest.skip("what is emitted changes with T, so one round's acceptances do not nest")
    accepted = [rule_named(name).judge(random_round(sampling, t)).accepted for t in (-1.0, 0.0, 0.05, 0.3, 0.9)]
    for tight, loose in itertools.pairwise(accepted):
        assert not (tight & ~loose).any()
    assert rule_named(name).fuzzy == bool((accepted[-1] & ~accepted[0]).any())


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("name", RULES)
def test_below_zero_a_rule_accepts_what_its_lossless_rule_accepts(name: str, sampling: Sampling) -> None:
    exact, fuzzy = (rule_named(n).judge(random_round(sampling, -1e-9)) for n in (rule_named(name).lossless, name))
    if name in ALONE:
        assert not fuzzy.accepted.any()
    else:
        assert torch.equal(exact.accepted, fuzzy.accepted)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("score_name", ["js", "ag", "kl_qp"])
def test_fuzzy_rules_accept_by_score(sampling: Sampling, score_name: str) -> None:
    """They accept D <= T, or x = y or D <= T, and report which decisions D made."""
    round_ = random_round(sampling, 0.08, name=score_name)
    near = divergence(score_name, round_.target_logits[:, :-1], round_.draft_logits) <= 0.08
    same = round_.drafted == round_.target_choice[:, :-1]
    assert 0.1 < near.double().mean() < 0.9
    fsd, coupled = rule_named("fsd").judge(round_), rule_named("fsd-coupled").judge(round_)
    assert torch.equal(fsd.accepted, near)
    assert torch.equal(coupled.accepted, near | same)
    assert fsd.by_score is not None
    assert fsd.by_score.all()
    assert coupled.by_score is not None
    assert torch.equal(coupled.by_score, ~same)


def test_an_infinite_score_is_rejected_at_every_threshold() -> None:
    round_ = random_round(Sampling(), math.inf, name="kl_qp")
    round_.target_logits[:, 0, 1:] = -math.inf
    accepted = rule_named("fsd").judge(round_).accepted
    assert not accepted[:, 0].any()
    assert accepted[:, 1:].all()


def test_typical_is_strict_and_never_accepts_what_the_target_cannot_emit() -> None:
    """One token is certain, with score 0; the other is impossible, and rejected at every T."""
    for threshold, expected in ((-1e-9, False), (0.0, False), (5e-324, True), (math.inf, True)):
        round_ = random_round(Sampling(), threshold, name="typical")
        round_.target_logits[:] = -math.inf
        round_.target_logits[:, :, 3] = 0.0
        round_.drafted[:, 0], round_.drafted[:, 1] = 3, 4
        accepted = rule_named("fsd").judge(round_).accepted
        assert (accepted[:, 0] == expected).all()
        assert not accepted[:, 1].any()


@pytest.mark.parametrize("weight", [0.9, 0.5, 0.1])
def test_greedy_ensemble_chooses_as_transformers_does(weight: float) -> None:
    round_ = random_round(Sampling(), 1 - weight)
    p, q = (softmax(x.numpy(), -1) for x in (round_.target_logits[:, :-1], round_.draft_logits))
    choice = (weight * p + (1 - weight) * q).argmax(-1)
    verdict = rule_named("ensemble").judge(round_)
    assert verdict.fallback.tolist() == choice.tolist()
    assert verdict.accepted.tolist() == (round_.drafted.numpy() == choice).tolist()
    if weight == 0.5:
        assert (choice != p.argmax(-1)).any()


def test_greedy_ensemble_without_weight_on_the_draft_breaks_no_ties() -> None:
    """Two logits that differ have equal softmaxes in fp32; the target's own choice compares the logits."""
    round_ = random_round(Sampling(), 0.0, rows=1)
    round_.target_logits = torch.zeros(1, 5, 9)
    round_.target_logits[..., 6] = 1e-8
    round_.draft_logits = round_.draft_logits.float()
    assert (rule_named("ensemble").judge(round_).fallback == 6).all()


@pytest.mark.thinned(every=5)
@pytest.mark.parametrize("threshold", [0.0, 0.3, 1.0, 7.0])
@pytest.mark.parametrize("sampling", SAMPLINGS[1:], ids=str)
def test_ensemble_emits_from_the_mixture(sampling: Sampling, threshold: float) -> None:
    """w p + (1 - w) q of the processed distributions; T above 1 is the draft. False alarm rate: 1e-6 each."""
    share = min(threshold, 1.0)
    one = _emits("ensemble", sampling, threshold, lambda p, q: (1 - share) * p + share * q)
    assert (one > 0.95) == (share == 1.0)


@pytest.mark.parametrize(("name", "mean"), [("sd", 10 / 9), ("sd-block", 11 / 9)])
def test_block_verification_keeps_as_many_as_its_paper_says(name: str, mean: float) -> None:
    """In the example of arXiv 2403.10444, section 2: p = (1/3, 2/3), q = (2/3, 1/3) everywhere, L = 2.

    The mean of 100,000 rounds is off by six standard errors with a probability of 2e-9.
    """
    rows = 100_000
    target, draft = (torch.tensor(probabilities, dtype=torch.float64).log() for probabilities in ((1, 2), (2, 1)))
    keys, positions = noise.problem_keys(3, list(range(rows))), torch.arange(3).expand(rows, -1)
    round_ = draw_round(
        target.expand(rows, 3, -1), draft.expand(rows, 2, -1), positions, keys, torch.zeros(rows), Criterion(),
        Sampling(1.0),
    )  # fmt: skip
    kept = rule_named(name).judge(round_).accepted.cumprod(1).sum(1).double()
    assert kept.mean().item() == pytest.approx(mean, abs=6 * kept.std().item() / math.sqrt(rows))


def _emits(name: str, sampling: Sampling, threshold: float, law: Callable[[Tensor, Tensor], Tensor]) -> float:
    """Checks that the first tokens of 30,000 equal rounds follow `law`, and returns the share of accepted drafts."""
    rows = 30_000
    one = random_round(sampling, 0.0, rows=1, drafts=1, seed=4)
    target, draft = one.target_logits.expand(rows, -1, -1), one.draft_logits.expand(rows, -1, -1)
    keys, positions = noise.problem_keys(1, list(range(rows))), one.positions.expand(rows, -1)
    round_ = draw_round(
        target, draft, positions, keys, torch.full((rows,), threshold, dtype=torch.float64), Criterion(), sampling
    )
    verdict = rule_named(name).judge(round_)
    emitted = torch.where(verdict.accepted, round_.drafted, verdict.fallback).flatten()
    expected = law(torch.softmax(one.warped_target[0, 0], -1), torch.softmax(one.warped_draft[0, 0], -1))
    counts = torch.bincount(emitted, minlength=9)
    possible = expected > 0
    assert not counts[~possible].any()
    assert chisquare(counts[possible].numpy(), (expected[possible] * rows).numpy()).pvalue > FALSE_ALARM
    return verdict.accepted.double().mean().item()


@pytest.mark.parametrize("name", DIVERGENCES)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_divergences_of_processed_logits(sampling: Sampling, name: str) -> None:
    """Top-k and top-p cut both supports: D compares what remains; it may be infinite, but never NaN."""
    raw, processed = (random_round(sampling, 0.1, name=name) for _ in range(2))
    processed.criterion = Criterion(name, on="processed")
    expected = divergence(name, processed.warped_target[:, :-1], processed.warped_draft)
    assert torch.equal(processed.scores, expected)
    assert not expected.isnan().any()
    assert torch.equal(raw.scores, divergence(name, raw.target_logits[:, :-1], raw.draft_logits))
    assert torch.equal(raw.scores, processed.scores) == (sampling in SAMPLINGS[:2])
    cut = sampling in SAMPLINGS[2:]
    assert bool(expected.isinf().any()) == (cut and name in ("ag", "kl_qp", "kl_pq"))


def test_divergences_of_processed_logits_see_the_penalty_when_greedy() -> None:
    round_ = random_round(Sampling(repetition_penalty=3.0), 0.1)
    round_.tokens[:] = torch.arange(20) % 4
    round_.criterion = Criterion(on="processed")
    kept = torch.tensor([False] * 4 + [True] * 5)
    for actual, logits in ((round_.warped_target, round_.target_logits), (round_.warped_draft, round_.draft_logits)):
        assert torch.equal(actual[..., kept], logits[..., kept])
        assert torch.equal(actual[..., ~kept], torch.where(logits < 0, logits * 3, logits / 3)[..., ~kept])
    expected = divergence("js", round_.warped_target[:, :-1], round_.warped_draft)
    assert torch.equal(round_.scores, expected)
    assert not torch.equal(expected, divergence("js", round_.target_logits[:, :-1], round_.draft_logits))


@pytest.mark.parametrize("on", ["raw", "processed"])
@pytest.mark.parametrize("name", ["fsd", "fsd-sd", "fsd-coupled"])
def test_within_support_rejects_what_the_target_cannot_emit(name: str, on: Logits) -> None:
    """It changes no other decision, and only matters where processors cut the support."""
    for sampling in SAMPLINGS:
        free, held = (random_round(sampling, 0.5) for _ in range(2))
        free.criterion, held.criterion = Criterion("js", on), Criterion("js", on, within_support=True)
        outside = torch.softmax(free.warped_target[:, :-1], -1).gather(-1, free.drafted[..., None])[..., 0] == 0
        without, within = (rule_named(name).judge(round_) for round_ in (free, held))
        assert torch.equal(within.accepted, without.accepted & ~outside)
        assert torch.equal(within.fallback, without.fallback)
        assert bool((without.accepted & outside).any()) == (sampling in SAMPLINGS[2:])


def test_coupling_accepts_as_often_as_its_bound_says() -> None:
    """P(x = y) >= (1 - tv)/(1 + tv) (arXiv 2408.07978, theorem 1), within four standard errors."""
    sampling, rows = Sampling(1.0), 40_000
    one = random_round(sampling, 0.0, rows=1, drafts=1, seed=2)
    keys, positions = noise.problem_keys(2, list(range(rows))), one.positions.expand(rows, -1)
    x, y = (
        sampling.draw(logits.expand(rows, -1, -1), keys, positions[:, :1])
        for logits in (one.draft_logits, one.target_logits[:, :1])
    )
    p, q = torch.softmax(one.target_logits[0, 0], -1), torch.softmax(one.draft_logits[0, 0], -1)
    tv = (p - q).abs().sum().item() / 2
    assert (x == y).double().mean().item() >= (1 - tv) / (1 + tv) - 4 * math.sqrt(0.25 / rows)


def test_unknown_rule_lists_known_rules() -> None:
    known = "target, sd, sd-block, coupled, fsd, fsd-sd, fsd-coupled, ensemble"
    with pytest.raises(UsageError, match=f"unknown rule 'exact'; known: {known}, and your own as module:Name$"):
        rule_named("exact")


def test_ensemble_within_support_accepts_only_what_the_target_can_emit() -> None:
    """top_k = 1 leaves the target one token, while T = 9 would accept every draft."""
    pair = SpeculativeDecoder(*related(seed=1, spread=0.05), word_tokenizer(), within_support=True)
    pair.target.generation_config.eos_token_id = []
    kept = outside = 0

    def observe(record: RoundRecord) -> None:
        nonlocal kept, outside
        round_ = record.proposal
        possible = round_.of_drafted(round_.warped_target[:, :-1]).isfinite()
        accepted = torch.arange(possible.shape[1]) < record.accepted[:, None]
        assert possible[accepted].all()
        kept, outside = kept + int(accepted.sum()), outside + int((~possible).sum())

    pair.generate(ragged_prompts(10), 16, 1.0, top_k=1, rule="ensemble", threshold=9.0, observer=observe)
    assert kept > 10
    assert outside > 10


@pytest.mark.parametrize("threshold", [math.inf, 1.5, 1.0, 0.3, 5e-324, 0.0, -1.0, -math.inf])
def test_the_widest_interval_of_an_ensemble_holds_its_threshold(threshold: float) -> None:
    low, high = rule_named("ensemble").initial_interval(threshold)
    assert low < high
    assert low <= threshold
    assert threshold < high or high == math.inf
