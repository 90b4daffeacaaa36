"""Problems that an earlier attempt lost and that are gone count as lost again, beyond what chance leaves out."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

import pytest

from fsd_calib.certification.attempt_ledger import AttemptLedger
from fsd_calib.certification.claim import Claim
from fsd_calib.certification.holdout import Holdout, HoldoutAttempt
from fsd_calib.measuring.evaluator import Evaluator
from fsd_calib.measuring.measurement import Decoding, Seeds
from fsd_calib.tasks import Problem
from fsd_decoding.profile.setting import Setting

ALONE, FUZZY, OTHER = Setting("target", "js", 1), *(Setting("fsd-coupled", "js", 5, t) for t in (0.1, 0.2))
PROBLEMS = [Problem(i, f"question {i}", f"question {i}", "1", None) for i in range(400)]
LOST = {problem.id for problem in PROBLEMS[::10]}  # of what the target solves, which is all
EVERY_FIFTH = sorted(LOST)[::5]  # 8 of the 40


def decode(setting: Setting, problems: Sequence[Problem]) -> list[Seeds]:
    """The fuzzy rules lose a tenth."""
    return [(Decoding(setting == ALONE or p.id not in LOST, "", 10, 2, 10, 8),) for p in problems]


def attempt(
    ledger: AttemptLedger, frozen: Setting, problems: Sequence[Problem], claim: str = "claim"
) -> HoldoutAttempt:
    part = Holdout(Evaluator(decode, problems, "certification"), ledger, "family", claim, "models")
    return part.open([frozen], ALONE, Claim(0.98), 0.95)


def after_a_failure(problems: Sequence[Problem], claim: str = "claim") -> HoldoutAttempt:
    ledger = AttemptLedger(None)
    assert attempt(ledger, FUZZY, PROBLEMS).decide().passed is None
    return attempt(ledger, OTHER, problems, claim)


def without(gone: Sequence[int]) -> list[Problem]:
    return [problem for problem in PROBLEMS if problem.id not in gone]


@pytest.mark.parametrize("claim", ["claim", "the same problems under another name"])
def test_lost_problems_that_are_left_out_count_as_lost(claim: str) -> None:
    opened = after_a_failure(without(EVERY_FIFTH), claim)
    assert opened.claim.dropped == 8  # 7.2 of the 8 are more than chance
    assert str(opened.dropped) == (
        "8 problems of attempt 1 are gone or have another answer; it lost 8 of them, 8 more than chance, which count "
        "as lost"
    )


def test_a_corrected_answer_is_another_problem() -> None:
    corrected = [dataclasses.replace(p, reference="2") if p.id in EVERY_FIFTH else p for p in PROBLEMS]
    assert after_a_failure(corrected).claim.dropped == 8


def test_problems_that_go_by_chance_cost_next_to_nothing() -> None:
    """A quarter of them, as in a window over time: of ten samples the mean is within 2 of none (with probability
    .9999; the excess has a standard deviation of 2.6 problems, and counts half of the time)."""
    counted = []
    for seed in range(10):
        kept = random.Random(seed).sample(PROBLEMS, 300)
        counted.append(after_a_failure(kept).claim.dropped)
    assert sum(counted) / 10 < 4


def test_new_problems_owe_nothing_to_old_ones() -> None:
    fresh = [Problem(1000 + i, f"another {i}", f"another {i}", "1", None) for i in range(400)]
    opened = after_a_failure(fresh)
    assert (opened.dropped, opened.claim.dropped, opened.attempt.number) == (None, 0, 2)


def test_what_was_dropped_is_in_bounds_too() -> None:
    opened = after_a_failure(without(EVERY_FIFTH))
    (evidence,) = opened.decide().tested
    whole = Claim(0.98).bounds(evidence.paired, opened.delta)
    assert evidence.lower_bound < whole[0]
    assert evidence.accuracy_bound < whole[1]


def test_the_same_attempt_again_owes_what_it_owed_before() -> None:
    with AttemptLedger(None) as ledger:
        attempt(ledger, FUZZY, PROBLEMS).decide()
        second = attempt(ledger, OTHER, without(EVERY_FIFTH))
        second.decide()
        attempt(ledger, FUZZY, without(EVERY_FIFTH)).decide()
        again = attempt(ledger, OTHER, without(EVERY_FIFTH))
        assert (again.attempt.number, again.claim.dropped) == (second.attempt.number, 8)
