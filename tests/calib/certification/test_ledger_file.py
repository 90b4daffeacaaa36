"""The ledger's file: reopened, damaged, used by several processes, killed. Real files and processes."""

from __future__ import annotations

import random
import sqlite3
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from fsd_calib.certification.attempt_ledger import AttemptLedger
from fsd_common.errors import UsageError
from support.calibration.ledgers import OURS, content_of, open_attempt, write_ledger
from support.child_processes import kill, remaining_messages, start_process

CONTENT = (
    [(1, "passed"), (2, "failed"), (3, "failed"), (4, "failed"), (5, "failed")],
    ["facts 0", "facts 1", "facts 2", "facts 3", "facts 4"],
    2,
)


def test_a_reopened_ledger_has_the_same_content(tmp_path: Path) -> None:
    write_ledger(tmp_path / "ledger")
    assert content_of(tmp_path / "ledger") == CONTENT


def test_a_damaged_ledger_is_refused_and_left_in_place(tmp_path: Path) -> None:
    write_ledger(tmp_path / "sound")
    sound, path = (tmp_path / "sound").read_bytes(), tmp_path / "ledger"
    for content in (b"", b"no database", sound[:100], sound[: len(sound) // 2], sound[:-4096], b"\0" * len(sound)):
        path.write_bytes(content)
        assert f"ledger of attempts '{path}' is damaged (" in str(content_of(path))
        assert "restore it from a copy" in str(content_of(path))
        assert path.read_bytes() == content


def test_an_entry_changed_while_the_file_is_open_is_refused(tmp_path: Path) -> None:
    write_ledger(tmp_path / "ledger")
    with AttemptLedger(tmp_path / "ledger") as ledger:
        sqlite3.connect(tmp_path / "ledger", isolation_level=None).execute("UPDATE attempts SET number = 1")
        with pytest.raises(UsageError, match="digest"):
            open_attempt(ledger, OURS, [1], "new")


@pytest.mark.parametrize("version", [0, 1, 7])
def test_another_version_is_refused_in_one_line_and_left_in_place(tmp_path: Path, version: int) -> None:
    """It never counts as an empty ledger, which would begin attempts anew."""
    path = tmp_path / "ledger"
    write_ledger(path)
    sqlite3.connect(path).execute(f"PRAGMA user_version = {version}")
    before = path.read_bytes()
    refusal = str(content_of(path))
    assert f"'{path}' is of another version (its schema has version {version}, and this fsd-calib reads 2)" in refusal
    assert "use the fsd-calib that wrote it" in refusal
    assert "problems that were never used before, with another --state" in refusal
    assert "\n" not in refusal
    assert path.read_bytes() == before


def test_a_folder_is_refused(tmp_path: Path) -> None:
    assert "cannot be used" in str(content_of(tmp_path))


def test_a_link_to_a_ledger_that_is_not_there_now_begins_no_other(tmp_path: Path) -> None:
    """Its attempts would not be counted any more."""
    (tmp_path / "ledger").symlink_to(tmp_path / "unmounted" / "ledger")
    assert f"it is a link to '{tmp_path / 'unmounted' / 'ledger'}', where there is no file" in str(
        content_of(tmp_path / "ledger")
    )
    assert (tmp_path / "ledger").is_symlink()


# --- processes --------------------------------------------------------------------------------------------


def attempt_many(pipe: Connection, path: Path, name: str, times: int) -> None:
    with AttemptLedger(path) as ledger:
        pipe.recv()
        for n in range(times):
            pipe.send((n, open_attempt(ledger, OURS, [1, 2], f"{name} {n}").number))


def test_attempts_of_two_processes_at_once_have_different_numbers(tmp_path: Path) -> None:
    children = [start_process(attempt_many, tmp_path / "ledger", name, 60) for name in ("first", "second")]
    for _, pipe in children:
        pipe.send("go")
    found = [pipe.recv()[1] for _, pipe in children for _ in range(60)]
    assert sorted(found) == list(range(1, 121))


@pytest.mark.slow
def test_no_attempt_is_lost_when_processes_are_killed(tmp_path: Path) -> None:
    path, rng, announced = tmp_path / "ledger", random.Random(0), dict[str, int]()
    for run in range(5):
        process, pipe = start_process(attempt_many, path, str(run), 10**6)
        pipe.send("go")
        received = [pipe.recv()]
        time.sleep(rng.uniform(0.1, 0.6))
        kill(process)
        received += remaining_messages(pipe)
        announced |= {f"{run} {n}": number for n, number in received}
        with AttemptLedger(path) as ledger:
            assert {frozen: open_attempt(ledger, OURS, [1, 2], frozen).number for frozen in announced} == announced
    assert len(set(announced.values())) == len(announced) > 10
