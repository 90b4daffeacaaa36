"""Attempts that go on from a decided one: what they find, in which order, at which levels. Decoding is a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri

from fsd_calib.certification.attempt_ledger import AttemptLedger, Run
from fsd_calib.certification.certificate import is_futile
from fsd_calib.certification.claim import Claim
from fsd_calib.certification.extension import Extension
from fsd_calib.certification.harm import difference_of, harm_of, retention_interval
from fsd_calib.certification.holdout import Holdout, HoldoutAttempt
from fsd_calib.certification.looks import Looks
from fsd_calib.certification.outcomes import Paired
from fsd_calib.measuring.evaluator import Evaluator
from fsd_calib.measuring.measurement import Decoding, Seeds
from fsd_calib.tasks import Problem
from fsd_common.errors import UsageError
from fsd_decoding.profile.certificate import attempt_level
from fsd_decoding.profile.setting import Setting

ALONE = Setting("target", "js", 1)
SAFE, LOOSE = (Setting("fsd-coupled", "js", 5, t) for t in (0.1, 0.2))
PROBLEMS = [Problem(i, f"question {i}", f"question {i}", "1", None) for i in range(1200)]
FIRST = PROBLEMS[300:700]  # neither the first ones nor the last
CLAIM = Claim(0.98)
BOTH = attempt_level(0.95, 1) + attempt_level(0.95, 2)


def decode(setting: Setting, problems: Sequence[Problem]) -> list[Seeds]:
    """The target solves nine of ten; LOOSE loses one of 60 among `FIRST`, and gains one of 30 of the others."""

    def right(problem: Problem) -> bool:
        lost = setting == LOOSE and 300 <= problem.id < 700 and problem.id % 60 == 1
        gained = setting == LOOSE and not 300 <= problem.id < 700 and problem.id % 30 == 0
        return (problem.id % 10 != 0 or gained) and not lost

    return [(Decoding(right(problem), "", 10, 2, 10, 8),) for problem in problems]


def holdout(ledger: AttemptLedger, problems: Sequence[Problem] = PROBLEMS, identity: str = "models") -> Holdout:
    return Holdout(Evaluator(decode, problems, "certification"), ledger, "family", "claim", identity)


def attempt(part: Holdout, frozen: Sequence[Setting] = (SAFE, LOOSE), asked: str = "asked") -> HoldoutAttempt:
    claim = dataclasses.replace(CLAIM, looks=part.looks(4))
    opened = part.open(frozen, ALONE, claim, 0.95, Run("run", asked))
    opened.decide()
    return opened


def found(part: Holdout, claim: Claim = CLAIM, asked: str = "asked") -> Extension | None:
    return part.extendable(claim, lambda facts: facts == asked)


def extension(part: Holdout) -> Extension:
    one = found(part)
    assert one is not None
    return one


def test_what_was_frozen_is_tested_on_the_problems_of_then_and_more() -> None:
    with AttemptLedger(None) as ledger:
        first = attempt(holdout(ledger, FIRST))
        before = extension(holdout(ledger))
        assert (before.attempts, before.settings) == ((1,), (SAFE, LOOSE))
        assert before.failed is not None
        assert (before.failed.problems, before.failed.outcomes.lost) == (300, 5)  # it was given up
        part = holdout(ledger).extending(before)
        assert [*part.part[:400]] == FIRST
        assert {*part.part} == {*PROBLEMS}
        later = attempt(part)
        assert (later.attempt.number, later.extends, first.extends) == (2, (1,), ())
        assert (first.delta, later.delta) == pytest.approx((0.045, BOTH))
        looks = later.claim.looks
        assert looks is not None
        assert looks.problems == (100, 200, 300, 400, 600, 800, 1000, 1200)
        verdict = later.attempt.verdict
        assert verdict is not None
        assert '"passed": 1' in verdict


def test_a_test_of_stages_adds_their_steps() -> None:
    rng = np.random.default_rng(4)
    target, fuzzy = rng.random((2, 900, 1)) < 0.9
    looks = Looks((300,)).extended(Looks((300, 600))).sized([0.045, 0.003])
    claim, alone = Claim(0.9, looks=looks), Claim(0.9)
    p = [alone.p_value(Paired(target[start:end], fuzzy[start:end])) for start, end in ((0, 300), (300, 600))]
    z = -(ndtri(p) @ [1, 0.5**0.5]) / 1.5**0.5
    assert claim.p_value(Paired(target[:600], fuzzy[:600])) == pytest.approx(ndtr(-z))
    assert claim.p_value(Paired(target[:300], fuzzy[:300])) == pytest.approx(p[0])


@pytest.mark.parametrize(
    "changed",
    [
        lambda ledger: found(holdout(ledger, FIRST)),
        lambda ledger: found(holdout(ledger, PROBLEMS[301:])),
        lambda ledger: found(holdout(ledger, identity="others")),
        lambda ledger: found(holdout(ledger), asked="else"),
        lambda ledger: found(holdout(ledger), Claim(0.97)),
        lambda ledger: found(holdout(ledger), Claim(0.98, confidence=0.9)),
        lambda ledger: found(holdout(ledger), Claim(0.98, "absolute")),
        lambda ledger: found(holdout(ledger, [dataclasses.replace(p, prompt=f"{p.prompt}!") for p in PROBLEMS])),
        lambda ledger: found(holdout(ledger, [dataclasses.replace(p, reference="2") for p in PROBLEMS])),
        lambda ledger: found(holdout(ledger, [dataclasses.replace(p, group=p.id // 2) for p in PROBLEMS])),
    ],
    ids=[
        "no more",
        "one is gone",
        "models",
        "command",
        "goal",
        "confidence",
        "accuracy",
        "prompts",
        "labels",
        "groups",
    ],
)
def test_nothing_else_goes_on(changed: Callable[[AttemptLedger], Extension | None]) -> None:
    with AttemptLedger(None) as ledger:
        attempt(holdout(ledger, FIRST))
        assert changed(ledger) is None
        assert found(holdout(ledger)) is not None


def test_an_attempt_without_a_verdict_has_nothing_to_go_on_from() -> None:
    with AttemptLedger(None) as ledger:
        part = holdout(ledger, FIRST)
        claim = dataclasses.replace(CLAIM, looks=part.looks(4))
        part.open([SAFE, LOOSE], ALONE, claim, 0.95, Run("run", "asked"))
        assert found(holdout(ledger)) is None


def test_the_same_command_again_is_the_same_attempt_and_a_third_goes_on_from_both() -> None:
    with AttemptLedger(None) as ledger:
        attempt(holdout(ledger, FIRST))
        part = holdout(ledger, PROBLEMS[:900])
        for before in (extension(part), part.extension_from(1, CLAIM)):
            second = attempt(part.extending(before))
            assert (second.attempt.number, second.extends) == (2, (1,))
        assert found(part) is None  # the others are not new any more
        third = extension(holdout(ledger))
        assert (third.attempts, third.looks.problems[-1]) == ((1, 2), 900)
        last = attempt(holdout(ledger).extending(third))
        levels = [attempt_level(0.95, number) for number in (1, 2, 3)]
        assert last.delta == pytest.approx(sum(levels))
        assert last.claim.looks is not None
        assert [last.claim.looks.spent(end) * sum(levels) for end in (400, 900, 1200)] == pytest.approx(
            np.cumsum(levels)
        )


def test_of_what_passed_whole_nothing_is_left() -> None:
    with AttemptLedger(None) as ledger:
        attempt(holdout(ledger, FIRST), [SAFE])
        assert extension(holdout(ledger)).failed is None


def test_of_several_it_goes_on_from_the_one_with_the_most_problems() -> None:
    """Whose others were certified on by nobody."""
    with AttemptLedger(None) as ledger:
        attempt(holdout(ledger, FIRST))
        part = holdout(ledger, PROBLEMS[300:900])
        attempt(part.extending(extension(part)))
        attempt(holdout(ledger, PROBLEMS[310:500]))
        assert extension(holdout(ledger)).attempts == (1, 2)


def test_what_was_certified_on_since_is_not_new() -> None:
    with AttemptLedger(None) as ledger:
        attempt(holdout(ledger, FIRST))
        attempt(holdout(ledger, PROBLEMS[600:800]), [SAFE], asked="else")
        assert found(holdout(ledger)) is None
        assert found(holdout(ledger, [*FIRST, *PROBLEMS[800:]])) is not None


def test_what_counted_as_lost_does_so_ever_after() -> None:
    """An attempt without what an earlier one lost, which comes back as new problems: the first stage is tested as it
    was, or its level would pay for another test."""
    with AttemptLedger(None) as ledger:
        attempt(holdout(ledger, FIRST), [LOOSE])
        kept = [p for p in FIRST if p.id % 60 != 1]
        second = attempt(holdout(ledger, kept), [LOOSE])
        assert second.claim.dropped > 0
        before = holdout(ledger).extension_from(2, CLAIM)
        assert (before.attempts, before.before[0].dropped) == ((2,), second.claim.dropped)
        third = attempt(holdout(ledger).extending(before), [LOOSE])
        assert (third.claim.dropped, third.claim.all_dropped) == (0, second.claim.dropped)
        grades = np.ones((len(kept), 1), bool)
        assert third.claim.p_value(Paired(grades, grades)) == second.claim.p_value(Paired(grades, grades))


def test_others_of_a_group_of_then_are_left_out() -> None:
    """Each stage is a sample of its own."""
    grouped = [dataclasses.replace(p, group=p.id // 8) for p in PROBLEMS]
    with AttemptLedger(None) as ledger:
        attempt(holdout(ledger, grouped[300:700]))
        part = holdout(ledger, grouped)
        before = extension(part)
        together = {p.id for p in grouped if p.group in {300 // 8, 700 // 8}}
        assert {*before.more} == {p.id for p in grouped} - {*range(300, 700)} - together
        assert attempt(part.extending(before)).extends == (1,)


def test_problems_that_were_tuned_on_since_do_not_go_on() -> None:
    with AttemptLedger(None) as ledger:
        attempt(holdout(ledger, FIRST))
        ledger.tuned_on("family", FIRST[:3])
        usable = holdout(ledger).of_run("another")
        assert found(usable) is None
        with pytest.raises(UsageError, match=r"some problems of attempt 1 were tuned .* extend=False"):
            usable.extension_from(1, CLAIM)
        with pytest.raises(UsageError, match="this ledger has no decided attempt at its place"):
            usable.extension_from(2, CLAIM)


def test_a_claim_about_a_data_set_is_frozen_as_any_other() -> None:
    with AttemptLedger(None) as ledger:
        part = holdout(ledger, FIRST)
        claim = Claim(0.98, guarantee="dataset", looks=part.looks(4))
        assert part.open([SAFE], ALONE, claim, 0.95).decide().passed == 0


outcomes = st.lists(st.sampled_from([(1, 1), (1, 0), (0, 1), (0, 0)]), min_size=60, max_size=200)


@settings(max_examples=30, deadline=None)
@given(outcomes, outcomes, st.sampled_from([1, 2]))
def test_bounds_of_stages_are_bounds(one: list[tuple[int, int]], other: list[tuple[int, int]], seeds: int) -> None:
    target, fuzzy = (np.array([*one, *other], bool)[:, [role]].repeat(seeds, 1) for role in (0, 1))
    looks = Looks((len(one),)).extended(Looks((len(other),))).sized([0.045, 0.003])
    claim, both = Claim(0.9, looks=looks), Paired(target, fuzzy)
    if target.any():
        bound = claim.bound(both, 0.01)
        assert claim.bound(both, 0.001) <= bound
        harm, interval = harm_of(both, claim, 0.048), retention_interval(both, 0.95, claim)
        assert harm is not None
        assert interval is not None
        assert harm.rate <= harm.at_most <= 1 + 1e-9
        assert interval[0] <= both.retention <= interval[1]
    difference, low, high = difference_of(both, 0.95, claim)
    assert -1 <= low <= difference <= high <= 1
    assert isinstance(is_futile(Paired(target[:50], fuzzy[:50]), claim, 0.048), bool)
