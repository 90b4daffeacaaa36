"""The ledger of attempts: numbers, levels, refusals, and what it remembers of runs."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsd_calib.certification.attempt_ledger import AttemptLedger, Run, attempt_level
from fsd_calib.certification.ledger_file import ById
from fsd_decoding.errors import UsageError
from support.ledgers import OTHERS, OURS, open_attempt, problems_with

FIRST = attempt_level(0.95, 1)


class Spaced(NamedTuple):
    """A problem whose text is not in its normal form."""

    id: int
    key: int


@pytest.fixture
def ledger() -> Iterator[AttemptLedger]:
    with AttemptLedger(None) as made:
        yield made


def numbers(ledger: AttemptLedger, *attempts: tuple[str, list[int], str]) -> list[int]:
    return [open_attempt(ledger, *attempt).number for attempt in attempts]


def test_attempts_that_share_a_problem_are_counted(ledger: AttemptLedger) -> None:
    found = numbers(
        ledger,
        (OURS, [1, 2, 3], "a"),
        (OURS, [4, 5], "a"),  # shares none
        (OURS, [3, 4], "a"),  # shares one with each
        (OTHERS, [1, 2, 3], "a"),
        (OURS, [1, 2, 3], "b"),
        (OURS, [3, 2, 1, 1], "a"),  # the first again
    )
    assert found == [1, 1, 3, 1, 3, 1]


@given(st.lists(st.tuples(st.sets(st.integers(-9, 9), min_size=1), st.sampled_from("abc")), max_size=8))
def test_numbers_are_one_more_than_the_earlier_ones_that_overlap(attempts: list[tuple[set[int], str]]) -> None:
    with AttemptLedger(None) as ledger:
        for i, (ids, frozen) in enumerate(attempts):
            before = attempts[: attempts.index((ids, frozen))] if (ids, frozen) in attempts[:i] else attempts[:i]
            distinct = {(frozenset(other), f) for other, f in before if other & ids}
            assert open_attempt(ledger, OURS, ids, frozen).number == 1 + len(distinct)


def test_levels_of_all_attempts_sum_to_delta(ledger: AttemptLedger) -> None:
    levels = [open_attempt(ledger, OURS, [7], str(n)).level(0.95) for n in range(50)]
    assert levels[0] == pytest.approx(0.05 * 6 / math.pi**2)
    assert levels[1] == pytest.approx(levels[0] / 4)
    assert 0.049 < sum(levels) < 0.05


def test_one_attempt_is_decided_once(ledger: AttemptLedger) -> None:
    attempt = open_attempt(ledger, OURS, [1], "a")
    attempt.decide("passed: 2")
    with pytest.raises(UsageError, match="attempt 1 is decided already"):
        attempt.decide("passed: 2")


def test_a_resumed_attempt_comes_to_the_recorded_verdict(ledger: AttemptLedger) -> None:
    open_attempt(ledger, OURS, [1], "a").decide("failed")
    with pytest.raises(UsageError, match="was decided before as 'failed', now it comes to 'passed'"):
        open_attempt(ledger, OURS, [1], "a").decide("passed")
    again = open_attempt(ledger, OURS, [1], "a")
    assert again.verdict == "failed"
    again.decide("failed")


def test_problems_tuned_on_certify_nothing(ledger: AttemptLedger) -> None:
    ledger.tuned_on(OURS, problems_with(range(10)))
    ledger.tuned_on(OURS, problems_with(range(5, 12)))
    with pytest.raises(UsageError, match="2 of 3 certification problems were tuned on before"):
        open_attempt(ledger, OURS, [10, 11, 12], "a")
    assert numbers(ledger, (OURS, [12], "a"), (OTHERS, [10, 11, 12], "a")) == [1, 1]


def test_problems_certified_on_may_be_tuned_on_but_never_certify_again(ledger: AttemptLedger) -> None:
    decided, undecided = open_attempt(ledger, OURS, [1, 2], "a"), open_attempt(ledger, OURS, [2, 3], "a")
    decided.decide("passed")
    ledger.tuned_on(OURS, problems_with([2]))
    open_attempt(ledger, OURS, [1, 2], "a").decide("passed")  # its verdict was there before
    for refused in (
        lambda: open_attempt(ledger, OURS, [1, 2], "b"),
        lambda: open_attempt(ledger, OURS, [2, 3], "a"),
        lambda: undecided.decide("passed"),
    ):
        with pytest.raises(UsageError, match="1 of 2 certification problems were tuned on"):
            refused()
    assert open_attempt(ledger, OURS, [1, 3], "a").number == 3  # refused attempts count nothing, the two before do


def test_no_problems_are_no_attempt(ledger: AttemptLedger) -> None:
    with pytest.raises(UsageError, match="0 problems"):
        open_attempt(ledger, OURS, [], "a")


def test_ten_thousand_problems_take_well_under_a_second(ledger: AttemptLedger) -> None:
    ids = random.Random(0).sample(range(1 << 48), 20_000)
    tuned, asked = problems_with(ids[:10_000]), problems_with(ids[10_000:])
    start = time.process_time()
    for n in range(10):
        ledger.tuned_on(OURS, tuned)
        ledger.open(OURS, asked, str(n)).decide("failed")
    assert time.process_time() - start < 1


# --- ids and keys ------------------------------------------------------------------------------------------


def test_the_same_content_under_another_id_is_the_same_problem(ledger: AttemptLedger) -> None:
    ledger.tuned_on(OURS, [Spaced(100, 1), ById(2)])
    with pytest.raises(UsageError, match="2 of 4 certification problems were tuned on before"):
        ledger.open(OURS, [Spaced(101, 1), Spaced(200, 2), ById(3), ById(4)], "a")
    assert ledger.open(OURS, [Spaced(300, 3), ById(4)], "a").number == 1
    assert ledger.open(OURS, [ById(3)], "a").number == 2
    assert ledger.open(OURS, [Spaced(301, 3)], "a").number == 3


def test_a_row_that_holds_only_an_id_knows_the_raw_text_and_the_normal_one(ledger: AttemptLedger) -> None:
    ledger.tuned_on(OURS, problems_with([100, 2]))
    refused: list[ById | Spaced] = [Spaced(100, 1), Spaced(200, 2), ById(2)]
    for problem in refused:
        with pytest.raises(UsageError, match="1 of 1 certification problems were tuned on before"):
            ledger.open(OURS, [problem], "a")


def test_other_spacing_is_another_attempt(ledger: AttemptLedger) -> None:
    """What was frozen is of the same texts, or it says so itself; here the ledger is in doubt."""
    asked: list[list[ById | Spaced]] = [
        [ById(1), ById(2)], [Spaced(100, 1), ById(2)], [ById(1), ById(2)], [ById(2), Spaced(100, 1)],
    ]  # fmt: skip
    assert [ledger.open(OURS, problems, "a").number for problems in asked] == [1, 2, 1, 2]


def test_ids_alone_tell_no_problems_apart(ledger: AttemptLedger) -> None:
    """Another task of the same target may count its problems from 0 too."""
    ledger.tuned_on(OURS, [Spaced(n, 1000 + n) for n in range(5)])
    ledger.open(OURS, [Spaced(n, 2000 + n) for n in range(5)], "a")
    others = [Spaced(n, 3000 + n) for n in range(5)]
    assert ledger.usable(OURS, others, "").all()
    assert ledger.next_number(OURS, others) == 1


def test_of_problems_that_ask_the_same_all_are_tuned_on_where_one_is(ledger: AttemptLedger) -> None:
    """As an earlier ledger knows one, by the id of a text that is spaced otherwise."""
    ledger.tuned_on(OURS, [ById(1)])
    kept, repeat = Spaced(7, 7), Spaced(1, 7)
    assert ledger.usable(OURS, [kept], "").all()
    ledger.tuned_on_repeats(OURS, [(kept, repeat), (Spaced(8, 8), Spaced(9, 8))])
    assert ledger.usable(OURS, [kept, Spaced(8, 8)], "").tolist() == [False, True]


# --- runs --------------------------------------------------------------------------------------------------


def test_a_run_finds_its_facts_and_its_problems_again(ledger: AttemptLedger) -> None:
    asked, run = problems_with(range(4)), Run("name", "facts")
    assert (ledger.facts_of(OURS, "name"), ledger.usable(OURS, asked, "name").tolist()) == (None, [True] * 4)
    attempt = ledger.open(OURS, asked, "a", run)
    ledger.tuned_on(OURS, problems_with([1, 7]))
    assert ledger.usable(OURS, asked, "name").tolist() == [True, False, True, True]  # that one cannot be decided
    other = ledger.open(OURS, problems_with([0, 2, 3]), "a", Run("name", "others"))
    assert ledger.facts_of(OURS, "name") == "facts"
    other.decide("passed")
    assert ledger.facts_of(OURS, "name") == "others"
    ledger.tuned_on(OURS, problems_with([2]))
    assert ledger.usable(OURS, asked, "name").tolist() == [True, False, True, True]
    assert ledger.usable(OURS, asked, "another").tolist() == [True, False, False, True]
    assert ledger.open(OURS, problems_with([0, 2, 3]), "a").verdict == "passed"
    assert (attempt.number, other.number) == (1, 2)


def test_the_best_that_an_attempt_can_be(ledger: AttemptLedger) -> None:
    asked = problems_with(range(10))
    assert ledger.at_best(OURS, asked, 0.95) == (10, FIRST)
    ledger.open(OURS, asked, "a").decide("failed")
    assert ledger.at_best(OURS, asked, 0.95) == (10, FIRST)  # the same again
    ledger.tuned_on(OURS, problems_with(range(3)))
    assert ledger.at_best(OURS, asked, 0.95) == (10, FIRST)
    assert ledger.at_best(OURS, asked[:5], 0.95) == (2, FIRST / 4)
