"""What every rule must do, as functions of its name that raise AssertionError where it does not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from random import Random

import torch
from scipy.stats import chisquare
from torch import Tensor

from fsd_calib.testing.promises import BELOW_ZERO, bundled, intervals_hold, lossless_below_zero, promise
from fsd_calib.testing.rounds import SAMPLINGS, VOCABULARY, draw_round, random_round
from fsd_decoding import noise
from fsd_decoding.proposal import Criterion, Proposal, Verdict
from fsd_decoding.rules import rule_named
from fsd_decoding.sampling import Sampling

FALSE_ALARM = 1e-6
"""With which chance a check says of a lossless rule that it is none, for each way of sampling."""
_T = 0.1
_ROUNDS, _LENGTH = 30_000, 2
_SAMPLED: tuple[dict[str, float], ...] = ({}, {"temperature": 0.9})


def every_token_has_a_verdict(name: str) -> None:
    """A verdict has a bool and a token of the vocabulary for each drafted token; and a score with what it decides, or
    neither."""
    for _, round_, verdict in _judged(name):
        shape = round_.drafted.shape
        for field in ("accepted", "fallback", "score", "by_score"):
            values = getattr(verdict, field)
            broken = f"{field} must have the shape of proposal.drafted, {tuple(shape)}"
            promise(values is None or values.shape == shape, broken)
        promise(verdict.accepted.dtype == torch.bool, f"accepted is {verdict.accepted.dtype}; it must be bool")
        known = (verdict.fallback >= 0) & (verdict.fallback < VOCABULARY)
        promise(bool(known.all()), "fallback has numbers that are no tokens")
        promise((verdict.score is None) == (verdict.by_score is None), "score and by_score must be given both, or none")


def it_is_deterministic(name: str) -> None:
    """The same round has the same verdict."""
    for sampling, _, verdict in _judged(name):
        again = rule_named(name).judge(random_round(sampling, _T))
        promise(_same(again, verdict), f"under {sampling} a round that is judged twice has two verdicts")


def rows_do_not_matter_to_each_other(name: str) -> None:
    """A row has the same verdict whatever other rows there are."""
    for sampling, _, whole in _judged(name):
        part = random_round(sampling, _T)
        for field in ("target_logits", "draft_logits", "drafted", "positions", "tokens", "keys", "thresholds"):
            setattr(part, field, getattr(part, field)[7:9])
        alone = rule_named(name).judge(part)
        expected = Verdict(whole.accepted[7:9], whole.fallback[7:9])
        promise(_same(alone, expected), f"under {sampling} the verdict on a row depends on the other rows")


def below_zero_it_keeps_what_its_lossless_rule_keeps(name: str) -> None:
    """At T < 0 a rule accepts no more than its lossless rule, and emits the same in place of what is rejected."""
    rule = rule_named(name)
    for sampling in SAMPLINGS:
        exact, own = (rule_named(each).judge(random_round(sampling, BELOW_ZERO)) for each in (rule.lossless, name))
        promise(not (own.accepted & ~exact.accepted).any().item(), f"under {sampling} T < 0 accepts what is not exact")
        promise(torch.equal(own.fallback, exact.fallback), f"under {sampling} T < 0 emits other tokens than {exact}")


def a_larger_threshold_keeps_more(name: str) -> None:
    """In a round, whatever is accepted at T is accepted at every larger T, where T bounds a score."""
    if not rule_named(name).bounds_score:
        return
    for sampling in SAMPLINGS:
        kept: Tensor | None = None
        for threshold in (-1.0, 0.0, 0.05, 0.3, 0.9, math.inf):
            accepted = rule_named(name).judge(random_round(sampling, threshold)).accepted
            promise(
                kept is None or not (kept & ~accepted).any().item(),
                f"under {sampling} a token that is accepted at a smaller T is rejected at T = {threshold:g}",
            )
            kept = accepted


def decisions_hold_within_the_interval(name: str) -> None:
    """Every T between the scores that decided (or in the rule's own `initial_interval`) decides the same."""
    for sampling, _, base in _judged(name):
        lo, hi = rule_named(name).initial_interval(_T)
        if base.score is not None and base.by_score is not None:
            lo = max([lo, *base.score[base.by_score & base.accepted].tolist()])
            hi = min([hi, *base.score[base.by_score & ~base.accepted].tolist()])
        promise(lo <= _T < hi, f"under {sampling} the scores that decided at T = {_T} leave [{lo:g}, {hi:g}) for T")
        for inside in (max(lo, -9.0), math.nextafter(min(hi, 9.0), -math.inf)):
            again = rule_named(name).judge(random_round(sampling, inside))
            broken = f"under {sampling} T = {inside:g} decides otherwise than T = {_T}, and no score is between them"
            promise(_same(again, base), broken)


def a_lossless_rule_keeps_the_targets_distribution(name: str) -> None:
    """The first two tokens of 30,000 rounds have the target's distribution, by a chi-square test, where there is no T.

    What a round does not emit of them is drawn from the target. The false alarm of each test is `FALSE_ALARM`.
    """
    rule = rule_named(name)
    if rule.fuzzy or not rule.drafts:
        return
    for sampling in SAMPLINGS[1:]:
        one = random_round(sampling, 0.0, rows=1, drafts=_LENGTH, seed=4)
        target, draft = (logits.expand(_ROUNDS, -1, -1) for logits in (one.target_logits, one.draft_logits))
        keys, positions = noise.problem_keys(1, list(range(_ROUNDS))), one.positions.expand(_ROUNDS, -1)
        thresholds = torch.zeros(_ROUNDS, dtype=torch.float64)
        round_ = draw_round(target, draft, positions, keys, thresholds, Criterion(), sampling)
        verdict = rule.judge(round_)
        tokens = torch.where(verdict.accepted, round_.drafted, verdict.fallback)
        p = one.warped_target[0].softmax(-1)
        others = torch.multinomial(p[1], _ROUNDS, replacement=True, generator=torch.Generator().manual_seed(5))
        second = torch.where(verdict.accepted[:, 0], tokens[:, 1], others)
        counts = torch.bincount(tokens[:, 0] * VOCABULARY + second, minlength=VOCABULARY**2)
        expected = (p[0][:, None] * p[1]).flatten() * _ROUNDS
        promise(not counts[expected == 0].any().item(), f"under {sampling} it emits tokens that the target never does")
        found = _pooled(counts[expected > 0].double(), expected[expected > 0])
        chance = float(chisquare(*found).pvalue)
        promise(
            chance > FALSE_ALARM, f"under {sampling} its tokens are not of the target's distribution ({chance:.1g})"
        )


def its_texts_below_zero_are_the_lossless_ones(name: str) -> None:
    """At T < 0 the bundled pair writes the texts of the lossless rule."""
    rule = rule_named(name)
    for sampling in _SAMPLED if rule.fuzzy else ():
        lossless_below_zero(bundled(), {"rule": name, **sampling}, rule.lossless, rounds=False)


def intervals_decode_equal(name: str) -> None:
    """Decoded again at another T of its interval, a text of the bundled pair is the same."""
    rule, bench = rule_named(name), bundled()
    if not rule.fuzzy:
        return
    rng = Random(4)
    shares = [rng.uniform(0.1, 0.9) for _ in bench.prompts]
    for sampling in _SAMPLED:
        thresholds = bench.thresholds("js", {"rule": "coupled", **sampling}) if rule.bounds_score else shares
        intervals_hold(bench, {"rule": name, **sampling}, thresholds)


CHECKS: tuple[Callable[[str], None], ...] = (
    every_token_has_a_verdict,
    it_is_deterministic,
    rows_do_not_matter_to_each_other,
    below_zero_it_keeps_what_its_lossless_rule_keeps,
    a_larger_threshold_keeps_more,
    decisions_hold_within_the_interval,
    a_lossless_rule_keeps_the_targets_distribution,
    its_texts_below_zero_are_the_lossless_ones,
    intervals_decode_equal,
)


def _judged(name: str) -> Iterator[tuple[Sampling, Proposal, Verdict]]:
    """Random rounds in all ways of sampling, with the verdicts on them."""
    for sampling in SAMPLINGS:
        round_ = random_round(sampling, _T)
        yield sampling, round_, rule_named(name).judge(round_)


def _same(one: Verdict, other: Verdict) -> bool:
    return torch.equal(one.accepted, other.accepted) and torch.equal(one.fallback, other.fallback)


def _pooled(counts: Tensor, expected: Tensor) -> tuple[Tensor, Tensor]:
    """Both with the cells that hold fewer than five on average as one."""
    rare = expected < 5
    if not rare.any():
        return counts, expected
    return tuple(torch.cat([each[~rare], each[rare].sum()[None]]) for each in (counts, expected))  # type: ignore[return-value]
