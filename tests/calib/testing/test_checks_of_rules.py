"""The shipped checks of rules: those of this package pass them, and each finds what it is there to find."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from fsd_calib.testing import check, checks_of
from fsd_decoding.rules import RULES
from support.own_code import on_path

DECODING = ("its_texts_below_zero_are_the_lossless_ones", "intervals_decode_equal")
QUICK = [each for each in checks_of("rule") if each.__name__ not in DECODING]


@pytest.mark.parametrize("each", QUICK, ids=lambda each: each.__name__)
@pytest.mark.parametrize("name", RULES)
def test_rules_of_this_package_pass(each: Callable[[str], None], name: str) -> None:
    """False alarm: 1e-6 for each of three ways of sampling of the four lossless rules."""
    each(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fsd", "fsd-coupled", "ensemble"])
def test_they_pass_where_texts_are_decoded(name: str) -> None:
    check("rule", name)


@pytest.fixture(scope="module", autouse=True)
def broken() -> Iterator[None]:
    """A module with a rule for each thing that can be wrong."""
    with on_path(broken_rules=WRITTEN):
        yield


WRITTEN = """
from dataclasses import replace
import torch
from fsd_decoding.rules import Rule, rule_named

class Like(Rule):
    lossless, bounds_score = "coupled", True
    def judge(self, proposal):
        return self.changed(rule_named("fsd-coupled").judge(proposal), proposal)

class NoBools(Like):
    def changed(self, verdict, proposal):
        return replace(verdict, accepted=verdict.accepted.long())

class NoToken(Like):
    def changed(self, verdict, proposal):
        return replace(verdict, fallback=verdict.fallback + 9)

class HalfScored(Like):
    def changed(self, verdict, proposal):
        return replace(verdict, by_score=None)

class Short(Like):
    def changed(self, verdict, proposal):
        return replace(verdict, accepted=verdict.accepted[:, :1])

class Chance(Like):
    def changed(self, verdict, proposal):
        return replace(verdict, accepted=torch.rand(verdict.accepted.shape) < 0.5)

class OfOthers(Like):
    def changed(self, verdict, proposal):
        return replace(verdict, accepted=verdict.accepted & (proposal.drafted != proposal.drafted[0, 0]))

class Lossy(Like):
    def changed(self, verdict, proposal):
        return replace(verdict, accepted=verdict.accepted | (proposal.drafted == 3))

class Stricter(Like):
    def changed(self, verdict, proposal):
        exact = rule_named("coupled").judge(proposal)
        return exact if proposal.thresholds[0] > 0.5 else verdict

class Unexplained(Like):
    def changed(self, verdict, proposal):
        return replace(verdict, score=torch.where(verdict.score < 0.2, 0.0, 1.0))

class Draft(Rule):
    def judge(self, proposal):
        verdict = rule_named("coupled").judge(proposal)
        return replace(verdict, accepted=torch.ones_like(verdict.accepted))
"""

FOUND = [
    ("NoBools", "every_token_has_a_verdict: accepted is torch.int64; it must be bool"),
    ("NoToken", "every_token_has_a_verdict: fallback has numbers that are no tokens"),
    ("HalfScored", "every_token_has_a_verdict: score and by_score must be given both, or none"),
    ("Short", "every_token_has_a_verdict: accepted must have the shape of proposal.drafted, (200, 4)"),
    ("Chance", "it_is_deterministic: under Sampling("),
    ("OfOthers", "rows_do_not_matter_to_each_other: under Sampling("),
    ("Lossy", "below_zero_it_keeps_what_its_lossless_rule_keeps: under Sampling("),
    ("Stricter", "a_larger_threshold_keeps_more: under Sampling("),
    ("Unexplained", "decisions_hold_within_the_interval: under Sampling("),
    ("Draft", "a_lossless_rule_keeps_the_targets_distribution: under Sampling(temperature=1.0"),
]


@pytest.mark.parametrize(("name", "message"), FOUND, ids=[name for name, _ in FOUND])
def test_a_broken_promise_is_found_and_said(name: str, message: str) -> None:
    with pytest.raises(AssertionError) as caught:
        check("rule", f"broken_rules:{name}")
    assert str(caught.value).startswith(f"rule 'broken_rules:{name}', ")
    assert message in str(caught.value)
