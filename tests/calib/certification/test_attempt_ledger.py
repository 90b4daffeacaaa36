"""The ledger of attempts: numbers, levels, refusals, and the runs it records."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsd_calib.certification.attempt_ledger import AttemptLedger, Run
from fsd_common.errors import UsageError
from fsd_decoding.profile.certificate import attempt_level
from support.calibration.ledgers import OTHERS, OURS, Numbered, open_attempt, problems_with

FIRST = attempt_level(0.95, 1)


class Spaced(NamedTuple):
    """A problem whose text is not in its normal form."""

    id: int
    key: int
    answer_key: int = 0

    @property
    def row_key(self) -> int:
        return self.key

    @property
    def question(self) -> str:
        return f"question  {self.id}"


class Rewritten(NamedTuple):
    """A problem that asks about a row."""

    id: int
    key: int
    row_key: int
    answer_key: int = 0
    question: str = "?"


@pytest.fixture
def ledger() -> Iterator[AttemptLedger]:
    with AttemptLedger(None) as opened_ledger:
        yield opened_ledger


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
def test_a_number_is_one_more_than_the_earlier_attempts_that_overlap(attempts: list[tuple[set[int], str]]) -> None:
    with AttemptLedger(None) as ledger:
        for i, (ids, frozen) in enumerate(attempts):
            before = attempts[: attempts.index((ids, frozen))] if (ids, frozen) in attempts[:i] else attempts[:i]
            distinct = {(frozenset(other), f) for other, f in before if other & ids}
            assert open_attempt(ledger, OURS, ids, frozen).number == 1 + len(distinct)


def test_attempts_at_one_claim_are_counted_on_any_problems(ledger: AttemptLedger) -> None:
    """Or whoever takes new problems every month certifies what is false in the end."""
    asked = [(OURS, [1], "a"), (OURS, [2], "b"), (OTHERS, [3], "c"), (OURS, [4], "d"), (OURS, [2], "b")]
    assert [open_attempt(ledger, *each, claim="same").number for each in asked] == [1, 2, 1, 3, 2]
    assert open_attempt(ledger, OURS, [5], "e", claim="another").number == 1
    assert open_attempt(ledger, OURS, [1, 5], "e", claim="a third").number == 3  # shares a problem with two


def test_a_row_that_is_asked_about_in_other_words_is_the_same_problem(ledger: AttemptLedger) -> None:
    asked, otherwise = Rewritten(1, 10, row_key=7), Rewritten(2, 20, row_key=7)
    ledger.open(OURS, "claim", [asked], "a")
    assert ledger.next_number(OURS, "another claim", [otherwise]) == 2
    ledger.tuned_on(OURS, [asked])
    assert ledger.usable(OURS, [otherwise, Rewritten(3, 30, row_key=8)], "").tolist() == [False, True]


def test_rows_that_share_a_text_are_all_recorded(ledger: AttemptLedger) -> None:
    ledger.tuned_on(OURS, [Rewritten(1, 10, row_key=row) for row in range(5)])
    assert not ledger.usable(OURS, [Rewritten(9, 90 + row, row_key=row) for row in range(5)], "").any()


def test_the_new_text_of_a_known_row_is_recorded_too(ledger: AttemptLedger) -> None:
    ledger.tuned_on(OURS, [Rewritten(1, 10, row_key=100)])
    ledger.tuned_on(OURS, [Rewritten(2, 20, row_key=100)])
    assert not ledger.usable(OURS, [Rewritten(3, 20, row_key=300)], "").any()
    ledger.tuned_on(OURS, [Rewritten(4, 20, row_key=200)])  # a new row of a known text
    others = [Rewritten(5, 30, row_key=200), Rewritten(6, 30, row_key=300)]
    assert ledger.usable(OURS, others, "").tolist() == [False, True]


def test_a_ledger_is_new_to_its_first_attempt_alone(ledger: AttemptLedger) -> None:
    first = open_attempt(ledger, OURS, [1], "a")
    assert (first.is_first, open_attempt(ledger, OURS, [2], "b").is_first) == (True, False)
    assert not open_attempt(ledger, OTHERS, [1], "a").is_first
    assert open_attempt(ledger, OURS, [1], "a").is_first  # the same again


def test_a_ledger_that_another_target_was_tuned_in_is_not_new(ledger: AttemptLedger) -> None:
    ledger.tuned_on(OTHERS, problems_with([1]))
    ledger.tuned_on(OURS, problems_with([2]))
    assert not open_attempt(ledger, OURS, [1], "a").is_first


def test_levels_of_all_attempts_sum_to_delta(ledger: AttemptLedger) -> None:
    levels = [attempt_level(0.95, open_attempt(ledger, OURS, [7], str(n)).number) for n in range(50)]
    assert levels[:2] == pytest.approx([0.045, 0.005 * 6 / math.pi**2])
    assert levels[2] == pytest.approx(levels[1] / 4)
    assert 0.0499 < sum(levels) < 0.05


def test_an_attempt_is_decided_once(ledger: AttemptLedger) -> None:
    attempt = open_attempt(ledger, OURS, [1], "a")
    attempt.decide("passed: 2")
    with pytest.raises(UsageError, match="attempt 1 is decided already"):
        attempt.decide("passed: 2")


def test_the_first_verdict_of_an_attempt_stands(ledger: AttemptLedger) -> None:
    """Whichever process comes to another one later, at the same time or when the attempt is resumed."""
    at_the_same_time = open_attempt(ledger, OURS, [1], "a")
    assert open_attempt(ledger, OURS, [1], "a").decide("failed") == "failed"
    for later in (at_the_same_time, open_attempt(ledger, OURS, [1], "a")):
        assert later.decide("passed") == "failed"
        assert later.verdict == "failed"
    assert open_attempt(ledger, OURS, [1], "a").verdict == "failed"


def test_problems_that_were_tuned_on_cannot_be_certified_on(ledger: AttemptLedger) -> None:
    ledger.tuned_on(OURS, problems_with(range(10)))
    ledger.tuned_on(OURS, problems_with(range(5, 12)))
    with pytest.raises(UsageError, match="2 of 3 certification problems were tuned on before"):
        open_attempt(ledger, OURS, [10, 11, 12], "a")
    assert numbers(ledger, (OURS, [12], "a"), (OTHERS, [10, 11, 12], "a")) == [1, 1]


def test_problems_certified_on_may_be_tuned_on_but_never_certified_on_again(ledger: AttemptLedger) -> None:
    decided, undecided = open_attempt(ledger, OURS, [1, 2], "a"), open_attempt(ledger, OURS, [2, 3], "a")
    decided.decide("passed")
    ledger.tuned_on(OURS, problems_with([2]))
    open_attempt(ledger, OURS, [1, 2], "a").decide("passed")  # its verdict was recorded before
    for refused in (
        lambda: open_attempt(ledger, OURS, [1, 2], "b"),
        lambda: open_attempt(ledger, OURS, [2, 3], "a"),
        lambda: undecided.decide("passed"),
    ):
        with pytest.raises(UsageError, match="1 of 2 certification problems were tuned on"):
            refused()
    assert open_attempt(ledger, OURS, [1, 3], "a").number == 3  # refused attempts do not count, the two before do


def test_an_attempt_needs_problems(ledger: AttemptLedger) -> None:
    with pytest.raises(UsageError, match="0 problems"):
        open_attempt(ledger, OURS, [], "a")


@pytest.mark.slow
def test_ten_times_as_many_problems_take_about_ten_times_as_long() -> None:
    """Of three runs the quickest counts, as other work slows a run down. Compared in pairs, it were a hundred times."""
    few, many = (min(_seconds(count) for _ in range(3)) for count in (1_000, 10_000))
    assert many < 40 * few


def _seconds(count: int) -> float:
    """Returns the processor's time of ten rows each of tuned and certified problems."""
    ids = random.Random(0).sample(range(1 << 48), 2 * count)
    tuned, problems = problems_with(ids[:count]), problems_with(ids[count:])
    with AttemptLedger(None) as ledger:
        start = time.process_time()
        for n in range(10):
            ledger.tuned_on(OURS, tuned)
            ledger.open(OURS, "claim", problems, str(n)).decide("failed")
        return time.process_time() - start


# --- ids and keys ------------------------------------------------------------------------------------------


def test_the_same_content_with_another_id_is_the_same_problem(ledger: AttemptLedger) -> None:
    ledger.tuned_on(OURS, [Spaced(100, 1), Numbered(2)])
    with pytest.raises(UsageError, match="2 of 4 certification problems were tuned on before"):
        ledger.open(OURS, "claim", [Spaced(101, 1), Spaced(200, 2), Numbered(3), Numbered(4)], "a")
    assert ledger.open(OURS, "claim", [Spaced(300, 3), Numbered(4)], "a").number == 1
    assert ledger.open(OURS, "claim", [Numbered(3)], "a").number == 2
    assert ledger.open(OURS, "claim", [Spaced(301, 3)], "a").number == 3


def test_other_spacing_is_another_attempt(ledger: AttemptLedger) -> None:
    """The frozen sequence may be of the same texts; from the ids the ledger cannot know."""
    problems: list[list[Numbered | Spaced]] = [
        [Numbered(1), Numbered(2)], [Spaced(100, 1), Numbered(2)],
        [Numbered(1), Numbered(2)], [Numbered(2), Spaced(100, 1)],
    ]  # fmt: skip
    assert [ledger.open(OURS, "claim", some, "a").number for some in problems] == [1, 2, 1, 2]


def test_equal_ids_alone_are_not_the_same_problem(ledger: AttemptLedger) -> None:
    """Another task of the same target may number its problems from 0 too."""
    ledger.tuned_on(OURS, [Spaced(n, 1000 + n) for n in range(5)])
    ledger.open(OURS, "claim", [Spaced(n, 2000 + n) for n in range(5)], "a")
    others = [Spaced(n, 3000 + n) for n in range(5)]
    assert ledger.usable(OURS, others, "").all()
    assert ledger.next_number(OURS, "another claim", others) == 1


# --- runs --------------------------------------------------------------------------------------------------


def test_the_facts_and_problems_of_a_run_are_recorded(ledger: AttemptLedger) -> None:
    problems, run = problems_with(range(4)), Run("name", "facts")
    assert (ledger.facts_of(OURS, "name"), ledger.usable(OURS, problems, "name").tolist()) == (None, [True] * 4)
    attempt = ledger.open(OURS, "claim", problems, "a", run)
    ledger.tuned_on(OURS, problems_with([1, 7]))
    assert ledger.usable(OURS, problems, "name").tolist() == [
        True,
        False,
        True,
        True,
    ]  # this attempt cannot be decided any more
    other = ledger.open(OURS, "claim", problems_with([0, 2, 3]), "a", Run("name", "others"))
    assert ledger.facts_of(OURS, "name") == "facts"
    other.decide("passed")
    assert ledger.facts_of(OURS, "name") == "others"
    ledger.tuned_on(OURS, problems_with([2]))
    assert ledger.usable(OURS, problems, "name").tolist() == [True, False, True, True]
    assert ledger.usable(OURS, problems, "another").tolist() == [True, False, False, True]
    assert ledger.open(OURS, "claim", problems_with([0, 2, 3]), "a").verdict == "passed"
    assert (attempt.number, other.number) == (1, 2)


def test_the_best_case_of_an_attempt(ledger: AttemptLedger) -> None:
    problems = problems_with(range(10))
    assert ledger.best_case(OURS, "claim", problems, 0.95) == (10, FIRST)
    ledger.open(OURS, "claim", problems, "a").decide("failed")
    assert ledger.best_case(OURS, "claim", problems, 0.95) == (10, FIRST)  # the same attempt, repeated
    ledger.tuned_on(OURS, problems_with(range(3)))
    assert ledger.best_case(OURS, "claim", problems, 0.95) == (10, FIRST)
    assert ledger.best_case(OURS, "claim", problems[:5], 0.95) == (2, attempt_level(0.95, 2))
