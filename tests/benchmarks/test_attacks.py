"""The attacks notice every kind of fault: a reader, a command or a result that has one is counted."""

from __future__ import annotations

import json
import os
import sqlite3
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from fsd_calib.certification.attempt_ledger import AttemptLedger
from fsd_calib.measuring.result_cache import ResultCache
from fsd_decoding.errors import UsageError
from lib.attacks import corruptions, disks, flips, kills
from lib.attacks.cases import FAULTS, Case, as_table, summary
from lib.attacks.commands import Ended, run, run_and_kill
from lib.attacks.corruptions import ReaderProcess, Reading, attack_readers, judge, read_guarded
from lib.attacks.damage import KINDS, damage_one
from lib.attacks.jobs import Calibration, Collection, litter
from lib.attacks.readers import LEDGER, Asked, Content, Subject, read_ledger, read_traces, verify_traces
from lib.common import forked_programs
from support.calibration.cached_results import KEY, QUERY, result
from support.calibration.ledgers import OURS, open_attempt
from support.calibration.profiles import profile
from support.paths import BENCHMARKS
from support.traces.rows import manifest, write

TRACES = manifest(16, portion=8)


# --- flips ------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "whole" / "profile.json"
    profile().save(path)
    return path


def flipped(saved: Path, load: Any, scratch: Path) -> Counter[str]:
    return Counter(case.verdict for case in flips.attack_reader(saved, range(60), 0, scratch, load))


def content(path: Path) -> Any:
    """A reader that looks at nothing."""
    text = path.read_text(errors="replace")
    return SimpleNamespace(model_dump_json=lambda indent: text)


def test_a_reader_that_ignores_flips_is_silent_each_time(saved: Path, tmp_path: Path) -> None:
    assert flipped(saved, content, tmp_path) == {"silent": 60}


def test_a_reader_that_refuses_flips_has_no_fault(saved: Path, tmp_path: Path) -> None:
    def load(path: Path) -> Any:
        if path.read_bytes() != saved.read_bytes():
            raise UsageError("it was changed")
        return content(path)

    assert flipped(saved, load, tmp_path) == {"refused": 60}


@pytest.mark.parametrize(
    ("error", "verdict"),
    [(KeyError("threshold"), "traceback"), (UsageError("two\nlines"), "unclear"), (UsageError("\x1b[31m"), "unclear")],
)
def test_another_error_than_one_line_is_a_fault(error: Exception, verdict: str, saved: Path, tmp_path: Path) -> None:
    def load(path: Path) -> Any:
        if path != saved:
            raise error
        return content(path)

    assert flipped(saved, load, tmp_path) == {verdict: 60}


def test_the_same_case_flips_the_same_bit(saved: Path, tmp_path: Path) -> None:
    whole = list(flips.attack_reader(saved, range(9), 3, tmp_path))
    assert list(flips.attack_reader(saved, [7], 3, tmp_path)) == [whole[7]]
    assert len({case.damage for case in whole}) == 9


# --- corruptions ------------------------------------------------------------------------------------------


def write_subjects(folder: Path) -> Asked:
    for name in ("traces", "verified-traces"):
        write(folder / name, TRACES)
    (folder / "ledger").mkdir(parents=True)
    with AttemptLedger(folder / "ledger" / LEDGER) as ledger:
        open_attempt(ledger, OURS, range(40), "sequence").decide("passed")
    return {"families": [OURS], "runs": []}


def test_damaged_traces_and_ledgers_are_refused_or_equal(tmp_path: Path) -> None:
    asked = write_subjects(tmp_path / "untouched")
    subjects = [
        Subject("traces", read_traces), Subject("verified traces", verify_traces),
        Subject("ledger", read_ledger, deletable=False),
    ]  # fmt: skip

    def read(subject: Subject, folder: Path) -> Reading:
        return read_guarded(subject.read, folder, asked)

    cases = list(attack_readers(tmp_path / "untouched", range(3 * len(KINDS)), 1, tmp_path, read, subjects))
    assert [case.line() for case in cases if case.is_fault] == []
    assert summary(cases)["corruptions"]["refused"] >= 10


def ignores_damage(folder: Path, asked: Asked) -> Content:
    return {"bytes": b"".join(path.read_bytes() for path in sorted(folder.rglob("*.parquet")))}


def test_a_reader_that_ignores_damage_is_silent(tmp_path: Path) -> None:
    write_subjects(tmp_path / "untouched")
    careless = [Subject("traces", ignores_damage)]

    def read(subject: Subject, folder: Path) -> Reading:
        return read_guarded(subject.read, folder, {})

    cases = list(attack_readers(tmp_path / "untouched", range(24), 0, tmp_path, read, careless))
    hit = [case for case in cases if case.damage.split(":")[0].endswith(".parquet")]
    assert [case.verdict for case in hit if "blocks" not in case.damage] == ["silent"] * len(hit)
    assert hit


ORIGINAL = {"one": 1, "two": 2}


@pytest.mark.parametrize(
    ("reading", "forgets", "verdict"),
    [
        (Reading(ORIGINAL), False, "equal"),
        (Reading({"one": 1, "two": 3}), True, "silent"),
        (Reading({"one": 1, "two": 3}, ("damaged",)), True, "silent"),
        (Reading({**ORIGINAL, "three": 3}), True, "silent"),
        (Reading({"one": 1}), False, "silent"),
        (Reading({"one": 1}), True, "forgot"),
        (Reading({"one": 1}, ("damaged",)), False, "set aside"),
        (Reading({"one": 1}, ("a\x1bb",)), False, "unclear"),
        (Reading(refusal="damaged"), False, "refused"),
        (Reading(refusal="a\nb"), False, "unclear"),
        (Reading(crash="KeyError"), True, "traceback"),
    ],
)
def test_a_reading_is_judged_by_what_it_returned_and_said(reading: Reading, forgets: bool, verdict: str) -> None:
    assert judge(reading, ORIGINAL, forgets)[0] == verdict


def dies(folder: Path, asked: Asked) -> Content:
    if folder.name == "deadly":
        os.abort()
    return {"asked": asked["what"]}


@pytest.mark.slow
def test_a_reader_that_takes_the_process_down_is_a_fault_and_the_next_reading_goes_on(tmp_path: Path) -> None:
    with ReaderProcess({"what": 7}) as reader:
        subject = Subject("anything", dies)
        assert reader.read(subject, tmp_path / "deadly").crash == "the process died"
        assert reader.read(subject, tmp_path).content == {"asked": 7}


@pytest.mark.parametrize("kind", sorted(set(KINDS)))
def test_every_kind_of_damage_changes_the_files(kind: str, tmp_path: Path) -> None:
    changed = 0
    for seed in range(10):
        for number in range(3):
            (tmp_path / f"{number}.bin").write_bytes(bytes([number + 1]) * 600 + bytes([number + 9]) * 600)
        before = [path.read_bytes() for path in sorted(tmp_path.iterdir())]
        damage_one(kind, sorted(tmp_path.iterdir()), Random(seed))
        changed += [path.read_bytes() for path in sorted(tmp_path.iterdir())] != before
    assert changed == 10


# --- kills and disks --------------------------------------------------------------------------------------


def ended(err: str, code: int = 2, out: str = "") -> Ended:
    return Ended("collect", code, out, err, 1.0)


@pytest.mark.parametrize(
    ("end", "verdict"),
    [
        (ended("collecting: 0 of 9\nfsd-collect: error: no space\n"), None),
        (ended('Traceback (most recent call last):\n  File "x"\nKeyError: 1\n', 1), "traceback"),
        (ended("", -11), "traceback"),
        (ended("fsd-collect: error: a\x1b[31mb\n"), "unclear"),
        (ended("", 0, "a\x07b"), "unclear"),
    ],
)
def test_what_a_command_printed_is_looked_through(end: Ended, verdict: str | None) -> None:
    complaint = end.complaint()
    assert (complaint and complaint[0]) == verdict


@pytest.mark.parametrize(
    ("line", "code", "verdict"),
    [
        ("fsd-collect: error: '/disk/a' cannot be written (No space left on device)", 2, "refused"),
        ("fsd-collect: error: '/disk/a' cannot be written", 2, "unclear"),
        ("fsd-collect: error: it cannot be written (No space left on device)", 2, "unclear"),
        ("fsd-collect: error: '/disk/a' cannot be written (No space left on device)", 1, "unclear"),
        ("OSError: '/disk/a' (No space left on device)", 2, "unclear"),
        ("", 0, "fitted"),
    ],
)
def test_a_full_disk_is_named_with_its_reason(line: str, code: int, verdict: str) -> None:
    assert disks.judge_full(ended(line, code), Path("/disk"))[0] == verdict


def finished(folder: Path, **changes: Any) -> Calibration:
    """What a calibration leaves: a profile, a cache of one result, and a ledger of one attempt."""
    job = Calibration(folder)
    profile().model_copy(update=changes).sealed().save(job.profile)
    with ResultCache(folder / "cache" / "decodings.sqlite") as cache:
        cache.add(KEY, QUERY, 0.2, result())
    with AttemptLedger(folder / "state" / LEDGER) as ledger:
        open_attempt(ledger, OURS, range(4), "sequence").decide("passed")
    return job


OK = Ended("calibrate", 0, "", "", 1.0)


def test_the_same_end_is_no_fault_though_dates_differ(tmp_path: Path) -> None:
    reference, job = finished(tmp_path / "a"), finished(tmp_path / "b", created=datetime.now(UTC))
    assert kills.judge_end(OK, job, reference) == ("resumed", "")


def changed_cache(statement: str) -> Any:
    def change(job: Calibration) -> None:
        with closing(sqlite3.connect(job.folder / "cache" / "decodings.sqlite")) as connection, connection:
            connection.execute(statement)

    return change


def test_rounding_of_an_interval_is_no_fault(tmp_path: Path) -> None:
    reference, job = finished(tmp_path / "a"), finished(tmp_path / "b")
    changed_cache("UPDATE decodings SET lo = lo + 1e-6, hi = hi - 1e-6")(job)
    assert reference.saved() != job.saved()
    assert kills.judge_end(OK, job, reference) == ("resumed", "")


def counted_twice(job: Calibration) -> None:
    with AttemptLedger(job.folder / "state" / LEDGER) as ledger:
        open_attempt(ledger, OURS, range(4), "another sequence")


def another_profile(job: Calibration) -> None:
    profile().model_copy(update={"task": "gsm8k"}).sealed().save(job.profile)


def left_behind(job: Calibration) -> None:
    (job.folder / "out" / ".profile.json.17.tmp").write_text("{")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (changed_cache("INSERT INTO decodings SELECT * FROM decodings"), "1 results were decoded again"),
        (changed_cache("UPDATE decodings SET text = 'other'"), "1 results more were decoded, such as"),
        (changed_cache("DELETE FROM decodings"), "1 results fewer were decoded, such as"),
        (changed_cache("UPDATE decodings SET lo = lo + 0.001"), "1 ends of intervals differ, such as"),
        (counted_twice, "the ledger's table attempts differs"),
        (another_profile, "task differs: gsm8k, should be arithmetic"),
        (left_behind, "files are left: out/.profile.json.17.tmp"),
    ],
)
def test_what_a_kill_may_not_change_is_found(change: Any, said: str, tmp_path: Path) -> None:
    reference, job = finished(tmp_path / "a"), finished(tmp_path / "b")
    change(job)
    verdict, evidence = kills.judge_end(OK, job, reference)
    assert verdict == "lost"
    assert said in evidence


def test_an_end_that_cannot_be_read_is_a_loss(tmp_path: Path) -> None:
    reference, job = finished(tmp_path / "a"), finished(tmp_path / "b")
    job.profile.write_text("{")
    assert kills.judge_end(OK, job, reference)[0] == "lost"


def test_a_lost_portion_of_traces_is_found(tmp_path: Path) -> None:
    reference, job = Collection(tmp_path / "a"), Collection(tmp_path / "b")
    write(reference.folder / "out", TRACES)
    write(job.folder / "out", TRACES, portions=1)
    assert reference.saved() - job.saved()
    assert list(job.faults(reference)) == ["the table tokens differs", "the table completions differs"]
    assert litter(job, reference) == []


@pytest.mark.slow
def test_commands_are_killed_and_limited(tmp_path: Path) -> None:
    killed = run_and_kill("traces", ["verify", tmp_path], after=0.0, begun=False)
    assert killed.code == -9
    whole = run("traces", ["verify", tmp_path])
    assert (whole.code, whole.refused, whole.complaint()) == (2, True, None)


# --- the script -------------------------------------------------------------------------------------------


def test_the_table_counts_every_fault() -> None:
    cases = [Case("flips", n, "profile.json", "", verdict) for n, verdict in enumerate((*FAULTS, "equal", "equal"))]
    assert as_table(cases).splitlines()[2] == "| flips | 6 | 1 | 1 | 1 | 1 | 2 equal |"


@pytest.mark.slow
def test_the_smoke_run_reports_every_attack(tmp_path: Path) -> None:
    out = tmp_path / "attacks.json"
    ran = forked_programs.run(BENCHMARKS / "attacks.py", "--quick", "--out", str(out))
    found = json.loads(out.read_text())
    assert set(found["counts"]) == {flips.ATTACK, corruptions.ATTACK, disks.ATTACK, kills.ATTACK}
    counted = sum(count for verdicts in found["counts"].values() for v, count in verdicts.items() if v in FAULTS)
    assert counted == len(found["faults"])
    assert ran.returncode == int(counted > 0), ran.stderr
