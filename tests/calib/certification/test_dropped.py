"""Problems that an earlier attempt lost and that are gone count as lost again, beyond what chance leaves out."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Collection, Sequence

import numpy as np
import pytest

from fsd_calib.certification.attempt_ledger import AttemptLedger
from fsd_calib.certification.claim import Claim
from fsd_calib.certification.holdout import Holdout, HoldoutAttempt
from fsd_calib.certification.looks import Looks
from fsd_calib.certification.outcomes import Counts, Paired
from fsd_calib.measuring.evaluator import Evaluator
from fsd_calib.measuring.measurement import Decoding, Seeds
from fsd_calib.tasks import Problem
from fsd_decoding.profile.setting import Setting

ALONE = Setting("target", "js", 1)
FUZZY, OTHER, ELSEWHERE = (Setting("fsd-coupled", "js", 5, t) for t in (0.1, 0.2, 0.3))
PROBLEMS = [Problem(i, f"question {i}", f"question {i}", "1", None) for i in range(400)]
LOST = {problem.id for problem in PROBLEMS[::10]}  # of what the target solves, which is all
LOST_ELSEWHERE = {problem.id for problem in PROBLEMS[5::10]}
EVERY_FIFTH = sorted(LOST)[::5]  # 8 of the 40


def decode(setting: Setting, problems: Sequence[Problem]) -> list[Seeds]:
    """The fuzzy rules lose a tenth."""
    lost = {ALONE: set[int](), ELSEWHERE: LOST_ELSEWHERE}.get(setting, LOST)
    return [(Decoding(p.id not in lost, "", 10, 2, 10, 8),) for p in problems]


def attempt(
    ledger: AttemptLedger, frozen: Setting, problems: Sequence[Problem], claim: str = "claim"
) -> HoldoutAttempt:
    part = Holdout(Evaluator(decode, problems, "certification"), ledger, "family", claim, "models")
    return part.open([frozen], ALONE, Claim(0.98), 0.95)


def after_a_failure(problems: Sequence[Problem], claim: str = "claim") -> HoldoutAttempt:
    ledger = AttemptLedger(None)
    assert attempt(ledger, FUZZY, PROBLEMS).decide().passed is None
    return attempt(ledger, OTHER, problems, claim)


def without(gone: Collection[int]) -> list[Problem]:
    return [problem for problem in PROBLEMS if problem.id not in gone]


@pytest.mark.parametrize("claim", ["claim", "the same problems under another name"])
def test_lost_problems_that_are_left_out_count_as_lost(claim: str) -> None:
    opened = after_a_failure(without(EVERY_FIFTH), claim)
    assert opened.claim.dropped == 8  # 7.2 of the 8 are more than chance
    assert str(opened.dropped) == (
        "8 problems of earlier attempts are gone or have another answer; 8 of them were lost, 8 more than chance, "
        "which count as lost"
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


def rewritten(problems: Sequence[Problem]) -> list[Problem]:
    """With answers in another form, in the rows too."""
    return [dataclasses.replace(p, reference="#### 1", source={"id": p.id, "answer": "#### 1"}) for p in problems]


def test_answers_in_another_form_hide_nothing_that_is_gone() -> None:
    assert after_a_failure(rewritten(PROBLEMS)).claim.dropped == 0  # all of them: no more of the lost than of others
    assert after_a_failure(rewritten(without(EVERY_FIFTH)), "another claim").claim.dropped == 8


def test_what_several_attempts_lost_counts_together() -> None:
    with AttemptLedger(None) as ledger:
        for setting in (FUZZY, ELSEWHERE):
            attempt(ledger, setting, PROBLEMS).decide()
        both = attempt(ledger, OTHER, without([*LOST, *LOST_ELSEWHERE]))
        once = attempt(ledger, OTHER, without(EVERY_FIFTH))
    assert both.claim.dropped == 2 * 32  # 40 lost of 80 that are gone, where chance would leave out 8
    assert once.claim.dropped == 8


def test_an_attempt_without_a_verdict_owes_nothing_and_later_verdicts_change_no_attempt() -> None:
    with AttemptLedger(None) as ledger:
        undecided = attempt(ledger, FUZZY, PROBLEMS)
        assert attempt(ledger, OTHER, without(LOST)).decide().passed == 0
        undecided.decide()
        assert attempt(ledger, OTHER, without(LOST)).claim.dropped == 0
        assert attempt(ledger, ELSEWHERE, without(LOST)).claim.dropped == 36


ALL_RIGHT = np.ones((1200, 1), np.bool_)
KINDS = {
    "score": (Claim(0.98, looks=Looks((1200,))), 1, None),
    "absolute": (Claim(0.98, "absolute", looks=Looks((1200,))), 1, None),
    "data set": (Claim(0.98, guarantee="dataset", looks=Looks((1200,))), 1, None),
    "seeds": (Claim(0.98, looks=Looks((1200,))), 4, None),
    "groups": (Claim(0.98, looks=Looks((1200,))), 1, np.arange(1200)[::-1] // 2),
}


@pytest.mark.parametrize(("claim", "seeds", "groups"), KINDS.values(), ids=KINDS)
def test_every_test_counts_what_was_dropped(claim: Claim, seeds: int, groups: Counts | None) -> None:
    """In front: the largest wealth of a bet is what it had before it lost."""
    graded = Paired(ALL_RIGHT.repeat(seeds, 1), ALL_RIGHT.repeat(seeds, 1), groups)
    p_values = [dataclasses.replace(claim, dropped=n).p_value(graded) for n in (0, 1, 4, 10, 40, 100)]
    if claim.guarantee == "dataset":
        assert p_values == [0, 0, 0, 0, 1, 1]  # nothing is left to chance: 24 may be lost
    else:
        assert p_values[:3] == sorted(set(p_values[:3]))
        assert p_values[0] < 0.01
        assert min(p_values[4:]) > 0.5
    bounds = [dataclasses.replace(claim, dropped=n).bounds(graded, 0.05) for n in (0, 1, 4, 10, 40, 100)]
    assert bounds == sorted(set(bounds), reverse=True)


def test_units_of_a_prefix_come_first() -> None:
    """Or betting would look at other orders every time."""
    target, fuzzy = np.random.default_rng(0).random((2, 12, 1)) < 0.5
    whole = Paired(target, fuzzy, np.array([7, 7, 3, 3, 3, 9, 9, 1, 1, 1, 0, 0]))
    assert whole.groups is not None
    prefix = Paired(whole.target[:7], whole.fuzzy[:7], whole.groups[:7])
    assert np.array_equal(prefix.units[0], whole.units[0][:3])
    assert whole.unit_sizes.tolist() == [2, 3, 2, 3, 2]
