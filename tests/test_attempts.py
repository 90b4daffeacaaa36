"""The ledger of attempts: numbers, refusals, several processes, damage. Real files and processes."""

from __future__ import annotations

import math
import random
import sqlite3
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from children import begin, kill, rest
from fsd_calib.certifying.attempts import Ledger, family
from fsd_decoding.errors import UsageError

OURS, OTHERS = family("gsm8k", "target", "draft"), family("gsm8k", "target", "another draft")


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with Ledger(None) as made:
        yield made


def numbers(ledger: Ledger, *attempts: tuple[str, list[int], str]) -> list[int]:
    return [ledger.open(*attempt).number for attempt in attempts]


def test_attempts_that_share_a_problem_are_counted(ledger: Ledger) -> None:
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
    with Ledger(None) as ledger:
        for i, (ids, frozen) in enumerate(attempts):
            before = attempts[: attempts.index((ids, frozen))] if (ids, frozen) in attempts[:i] else attempts[:i]
            distinct = {(frozenset(other), f) for other, f in before if other & ids}
            assert ledger.open(OURS, ids, frozen).number == 1 + len(distinct)


def test_levels_of_all_attempts_sum_to_delta(ledger: Ledger) -> None:
    levels = [ledger.open(OURS, [7], str(n)).delta(0.95) for n in range(50)]
    assert levels[0] == pytest.approx(0.05 * 6 / math.pi**2)
    assert levels[1] == pytest.approx(levels[0] / 4)
    assert 0.049 < sum(levels) < 0.05


def test_one_attempt_is_decided_once(ledger: Ledger) -> None:
    attempt = ledger.open(OURS, [1], "a")
    attempt.decide("passed: 2")
    with pytest.raises(UsageError, match="attempt 1 is decided already"):
        attempt.decide("passed: 2")


def test_a_resumed_attempt_comes_to_the_recorded_verdict(ledger: Ledger) -> None:
    ledger.open(OURS, [1], "a").decide("failed")
    with pytest.raises(UsageError, match="was decided before as 'failed', now it comes to 'passed'"):
        ledger.open(OURS, [1], "a").decide("passed")
    again = ledger.open(OURS, [1], "a")
    assert again.verdict == "failed"
    again.decide("failed")


def test_problems_tuned_on_certify_nothing(ledger: Ledger) -> None:
    ledger.tuned_on(OURS, range(10))
    ledger.tuned_on(OURS, range(5, 12))
    with pytest.raises(UsageError, match="2 of 3 certification problems were tuned on before"):
        ledger.open(OURS, [10, 11, 12], "a")
    assert numbers(ledger, (OURS, [12], "a"), (OTHERS, [10, 11, 12], "a")) == [1, 1]


def test_problems_certified_on_may_be_tuned_on_but_never_certify_again(ledger: Ledger) -> None:
    decided, undecided = ledger.open(OURS, [1, 2], "a"), ledger.open(OURS, [2, 3], "a")
    decided.decide("passed")
    ledger.tuned_on(OURS, [2])
    ledger.open(OURS, [1, 2], "a").decide("passed")  # its verdict was there before
    for refused in (
        lambda: ledger.open(OURS, [1, 2], "b"),
        lambda: ledger.open(OURS, [2, 3], "a"),
        lambda: undecided.decide("passed"),
    ):
        with pytest.raises(UsageError, match="1 of 2 certification problems were tuned on"):
            refused()
    assert ledger.open(OURS, [1, 3], "a").number == 3  # refused attempts count nothing, the two before do


def test_no_problems_are_no_attempt(ledger: Ledger) -> None:
    with pytest.raises(UsageError, match="0 problems"):
        ledger.open(OURS, [], "a")


def test_ten_thousand_problems_take_well_under_a_second(ledger: Ledger) -> None:
    ids = random.Random(0).sample(range(1 << 48), 20_000)
    start = time.perf_counter()
    for n in range(10):
        ledger.tuned_on(OURS, ids[:10_000])
        ledger.open(OURS, ids[10_000:], str(n)).decide("failed")
    assert time.perf_counter() - start < 1


# --- files ------------------------------------------------------------------------------------------------


def written(path: Path) -> None:
    with Ledger(path) as ledger:
        ledger.tuned_on(OURS, range(1000, 1500))
        for n in range(5):
            ledger.open(OURS, range(100 * n, 100 * n + 500), "frozen").decide("failed")


def told(path: Path) -> object:
    """All that a ledger says, or that it is refused; nothing else may happen."""
    try:
        with Ledger(path) as ledger:
            attempts = [ledger.open(OURS, range(100 * n, 100 * n + 500), "frozen") for n in range(5)]
            with pytest.raises(UsageError, match="500 of 500 certification problems were tuned on"):
                ledger.open(OURS, range(1000, 1500), "a")
            return [(attempt.number, attempt.verdict) for attempt in attempts]
    except UsageError as error:
        return str(error)


SAID = [(n, "failed") for n in (1, 2, 3, 4, 5)]


def test_closed_and_opened_again_it_says_the_same(tmp_path: Path) -> None:
    written(tmp_path / "ledger")
    assert told(tmp_path / "ledger") == SAID


def test_a_damaged_ledger_is_refused_and_never_begun_anew(tmp_path: Path) -> None:
    written(tmp_path / "sound")
    sound, path = (tmp_path / "sound").read_bytes(), tmp_path / "ledger"
    for content in (b"", b"no database", sound[:100], sound[: len(sound) // 2], sound[:-4096], b"\0" * len(sound)):
        path.write_bytes(content)
        assert f"ledger of attempts '{path}' is damaged (" in str(told(path))
        assert "restore it from a copy" in str(told(path))
        assert path.read_bytes() == content


def test_flipped_bits_change_nothing_that_it_says(tmp_path: Path) -> None:
    written(tmp_path / "sound")
    sound, rng, refused = (tmp_path / "sound").read_bytes(), random.Random(0), 0
    for case in range(150):
        path, content = tmp_path / str(case), bytearray(sound)
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
        found = told(path)
        assert found == SAID or "is damaged" in str(found) or "cannot be used" in str(found), case
        refused += found != SAID
    assert refused > 50


def test_an_entry_changed_while_it_is_open_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "ledger")
    with Ledger(tmp_path / "ledger") as ledger:
        sqlite3.connect(tmp_path / "ledger", isolation_level=None).execute("UPDATE attempts SET number = 1")
        with pytest.raises(UsageError, match="digest"):
            ledger.open(OURS, [1], "new")


def test_another_version_and_a_folder_are_refused(tmp_path: Path) -> None:
    written(tmp_path / "ledger")
    sqlite3.connect(tmp_path / "ledger").execute("PRAGMA user_version = 7")
    assert "its schema has version 7" in str(told(tmp_path / "ledger"))
    assert "cannot be used" in str(told(tmp_path))


# --- processes --------------------------------------------------------------------------------------------


def attempt_many(pipe: Connection, path: Path, who: str, times: int) -> None:
    with Ledger(path) as ledger:
        pipe.recv()
        for n in range(times):
            pipe.send((n, ledger.open(OURS, [1, 2], f"{who} {n}").number))


def test_attempts_of_two_processes_at_once_have_different_numbers(tmp_path: Path) -> None:
    children = [begin(attempt_many, tmp_path / "ledger", who, 60) for who in ("first", "second")]
    for _, pipe in children:
        pipe.send("go")
    found = [pipe.recv()[1] for _, pipe in children for _ in range(60)]
    assert sorted(found) == list(range(1, 121))


def test_killed_at_random_moments_no_attempt_is_forgotten(tmp_path: Path) -> None:
    path, rng, announced = tmp_path / "ledger", random.Random(0), dict[str, int]()
    for run in range(5):
        process, pipe = begin(attempt_many, path, str(run), 10**6)
        pipe.send("go")
        heard = [pipe.recv()]
        time.sleep(rng.uniform(0, 0.1))
        kill(process)
        heard += rest(pipe)
        announced |= {f"{run} {n}": number for n, number in heard}
        with Ledger(path) as ledger:
            assert {frozen: ledger.open(OURS, [1, 2], frozen).number for frozen in announced} == announced
    assert len(set(announced.values())) == len(announced) > 10
