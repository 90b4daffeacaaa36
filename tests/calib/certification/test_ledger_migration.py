"""Taking over ledgers of schema 1: nothing is lost or counted twice, whenever the process is killed.

`data/attempts-1.sqlite` was written by the version that had that schema. Real files and processes.
"""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from fsd_calib.certification.attempt_ledger import AttemptLedger
from fsd_calib.certification.ledger_file import Run
from fsd_decoding.errors import UsageError
from support.calibration.earlier_ledgers import Attempt, insert, write
from support.calibration.ledgers import problems_with
from support.child_processes import kill, start_process
from support.paths import FILES

EARLIER = FILES / "attempts-1.sqlite"


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    return Path(shutil.copy(EARLIER, tmp_path / "attempts.sqlite"))


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[AttemptLedger]:
    with AttemptLedger(tmp_path / "ledger.sqlite") as opened_ledger:
        yield opened_ledger


def number(ledger: AttemptLedger, *ids: int, family: str = "target") -> int:
    return ledger.next_number(family, problems_with(ids))


def tuned(ledger: AttemptLedger, family: str) -> list[int]:
    return [one for one in range(200) if not ledger.usable(family, problems_with([one]), "")[0]]


def check(ledger: AttemptLedger) -> None:
    """Checks the whole content of the earlier ledger, by target alone."""
    assert tuned(ledger, "target") == list(range(100, 114))
    assert tuned(ledger, "another target") == [1]
    # Two of draft A, one of draft B on 15 to 29, one of a task of another name.
    assert [number(ledger, one) for one in (0, 14, 15, 19, 20, 29, 30)] == [4, 4, 5, 5, 2, 2, 1]
    assert [number(ledger, one, family="another target") for one in (5, 6)] == [2, 1]


def test_tuned_problems_and_attempts_are_taken_over(earlier: Path, ledger: AttemptLedger) -> None:
    assert ledger.take_over(earlier)
    check(ledger)
    assert not earlier.exists()
    assert earlier.with_name("attempts.sqlite.taken-over").read_bytes() == EARLIER.read_bytes()


def test_numbers_and_verdicts_are_kept(earlier: Path, ledger: AttemptLedger) -> None:
    ledger.take_over(earlier)
    found = [ledger.open("target", problems_with(range(20)), frozen) for frozen in ("first", "second")]
    found.append(ledger.open("target", problems_with(range(15, 30)), "third"))
    assert [a.number for a in found] == [1, 2, 1]
    assert [json.loads(a.verdict or "")["passed"] for a in found] == [0, None, 1]
    assert ledger.next_number("target", problems_with(range(15, 20))) == 5
    check(ledger)  # repeated attempts count once


def test_a_missing_ledger_is_no_error(tmp_path: Path, ledger: AttemptLedger) -> None:
    assert not ledger.take_over(tmp_path / "nowhere" / "attempts.sqlite")
    assert not (tmp_path / "nowhere").exists()


def test_taking_over_again_adds_nothing(earlier: Path, ledger: AttemptLedger) -> None:
    """As when a process is killed before the file is renamed, or an earlier version continues with a copy."""
    ledger.take_over(earlier)
    for _ in range(2):
        shutil.copy(EARLIER, earlier)
        assert ledger.take_over(earlier)
        check(ledger)
    assert sorted(path.name for path in earlier.parent.glob("*taken-over*")) == [
        "attempts.sqlite.taken-over", "attempts.sqlite.taken-over-2", "attempts.sqlite.taken-over-3",
    ]  # fmt: skip


def test_later_rows_and_verdicts_are_added(tmp_path: Path, ledger: AttemptLedger) -> None:
    path = tmp_path / "attempts.sqlite"
    for rows in ([("a", None)], [("a", "passed"), ("b", None)], [("a", "passed"), ("b", "failed")]):
        write(path, [(range(3), frozen, 1 + n, verdict) for n, (frozen, verdict) in enumerate(rows)])
        ledger.take_over(path)
    assert number(ledger, 0) == 3
    assert [ledger.open("target", problems_with(range(3)), frozen).verdict for frozen in "ab"] == ["passed", "failed"]


def test_rows_of_the_new_ledger_are_kept(earlier: Path, ledger: AttemptLedger) -> None:
    ledger.tuned_on("target", problems_with([113, 150]))
    own = ledger.open("target", problems_with([0, 40]), "own", Run("run", "facts"))
    own.decide("passed")
    ledger.take_over(earlier)
    assert tuned(ledger, "target") == [*range(100, 114), 150]
    assert number(ledger, 0) == 5
    assert ledger.next_number("target", problems_with([40])) == 2
    assert ledger.facts_of("target", "run") == "facts"


def test_a_damaged_earlier_ledger_is_refused_and_left_in_place(earlier: Path, ledger: AttemptLedger) -> None:
    sound = EARLIER.read_bytes()
    for content in (b"", b"no database", sound[:100], sound[:-4096], b"\0" * len(sound)):
        earlier.write_bytes(content)
        with pytest.raises(UsageError, match=r"ledger of attempts '.*attempts.sqlite' is damaged .* another --cache"):
            ledger.take_over(earlier)
        assert earlier.read_bytes() == content
    shutil.copy(EARLIER, earlier)
    sqlite3.connect(earlier, isolation_level=None).execute("UPDATE attempts SET number = 1")
    with pytest.raises(UsageError, match="digest"):
        ledger.take_over(earlier)
    assert number(ledger, 0) == 1  # nothing of it was taken


@pytest.mark.slow
def test_flipped_bits_of_an_earlier_ledger_are_refused_or_harmless(tmp_path: Path) -> None:
    sound, rng, messages = EARLIER.read_bytes(), random.Random(0), list[str]()
    for case in range(100):
        path, content = tmp_path / str(case), bytearray(sound)
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
        with AttemptLedger(None) as ledger:
            try:
                ledger.take_over(path)
            except UsageError as error:
                messages.append(str(error))
                continue
            check(ledger)
    assert all("is damaged" in line or "cannot be used" in line for line in messages)
    assert len(messages) > 5


def test_open_connections_cannot_write_after_the_take_over(earlier: Path, ledger: AttemptLedger) -> None:
    connection = sqlite3.connect(earlier, isolation_level=None)
    assert connection.execute("SELECT count(*) FROM attempts").fetchone() == (5,)
    ledger.take_over(earlier)
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        connection.execute("INSERT INTO tuned VALUES ('', x'', x'')")


# --- processes --------------------------------------------------------------------------------------------

MANY: list[Attempt] = [(range(n, n + 300), f"frozen {n}", 1 + n, None if n % 3 else f"verdict {n}") for n in range(200)]


def take_over(pipe: Connection, path: Path, old: Path) -> None:
    pipe.recv()
    with AttemptLedger(path) as ledger:
        pipe.send(ledger.take_over(old))
        pipe.recv()  # waits to be killed


def test_two_processes_take_over_once(tmp_path: Path) -> None:
    path, old = tmp_path / "state" / "ledger.sqlite", tmp_path / "attempts.sqlite"
    write(old, MANY)
    children = [start_process(take_over, path, old) for _ in range(2)]
    for _, pipe in children:
        pipe.send("go")
    assert sorted(pipe.recv() for _, pipe in children) == [False, True]
    with AttemptLedger(path) as ledger:
        assert [number(ledger, one) for one in (0, 150, 350, 450)] == [2, 152, 150, 50]


def test_a_take_over_waits_for_a_writer(tmp_path: Path) -> None:
    path, old = tmp_path / "ledger.sqlite", tmp_path / "attempts.sqlite"
    write(old)
    _, pipe = start_process(take_over, path, old)
    writer = sqlite3.connect(old, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    insert(writer, "attempts", "target", range(3), "frozen", 1, None)
    pipe.send("go")
    assert not pipe.poll(0.3)
    writer.execute("COMMIT")
    assert pipe.recv()
    with AttemptLedger(path) as ledger:
        assert number(ledger, 0) == 2


@pytest.mark.slow
def test_a_killed_take_over_loses_and_doubles_nothing(tmp_path: Path) -> None:
    cut = 0
    write(tmp_path / "sound", MANY)
    for case in range(12):
        path, old = tmp_path / str(case) / "ledger.sqlite", tmp_path / str(case) / "attempts.sqlite"
        path.parent.mkdir()
        shutil.copy(tmp_path / "sound", old)
        process, pipe = start_process(take_over, path, old)
        pipe.send("go")
        time.sleep(0.015 * case)
        kill(process)
        cut += old.exists()
        with AttemptLedger(path) as ledger:
            ledger.take_over(old)
            assert not old.exists()
            assert [number(ledger, one) for one in (0, 150, 350, 450)] == [2, 152, 150, 50]
            verdicts = [ledger.open("target", problems_with(ids), frozen).verdict for ids, frozen, *_ in MANY[:4]]
        assert verdicts == [verdict for *_, verdict in MANY[:4]]
    assert cut > 0
