"""The attacks run, each of them, and notice every kind of fault."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fsd_common.errors import UsageError
from lib.attacks import texts
from lib.attacks.files import attack_readers
from lib.attacks.guarded import GuardedProcess, Reading
from lib.attacks.readers import Asked, Content, Subject
from lib.common import forked_programs
from support.paths import BENCHMARKS

WHOLE = "written\n" * 100


def trusting(folder: Path, asked: Asked) -> Content:
    return {"text": (folder / "file.txt").read_bytes()}


def crude(folder: Path, asked: Asked) -> Content:
    """Does what `asked` says with a file that is not as it was written."""
    if (folder / "file.txt").read_bytes() != WHOLE.encode():
        match asked["does"]:
            case "sleep":
                time.sleep(60)
            case "abort":
                os.abort()
            case "raise":
                raise KeyError("text")
            case "refuse":
                raise UsageError("the file was changed")
        raise UsageError("two\nlines")
    return {"text": WHOLE}


@pytest.fixture(scope="module")
def process() -> Iterator[GuardedProcess]:
    with GuardedProcess(patience=1.0) as process:
        yield process


@pytest.mark.slow
@pytest.mark.parametrize(
    ("read", "does", "verdict"),
    [(trusting, "", "silent"), (crude, "raise", "traceback"), (crude, "abort", "traceback"), (crude, "sleep", "hang"),
     (crude, "speak", "unclear"), (crude, "refuse", "refused")],
)  # fmt: skip
def test_what_a_crude_reader_does_is_found(
    read: Any, does: str, verdict: str, process: GuardedProcess, tmp_path: Path
) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / "file.txt").write_text(WHOLE)
    cases = attack_readers(
        [Subject("file", read)], lambda subject: (tmp_path / "whole", {"does": does}), range(2), 0, tmp_path,
        lambda subject, folder, asked: process.call(subject.read, folder, asked),
    )  # fmt: skip
    assert [case.verdict for case in cases] == [verdict] * 2


@pytest.mark.parametrize(
    ("grades", "verdict"), [((True, True), "silent"), ((False, False), "lost"), ((False, True), "wrong")]
)
def test_a_grader_that_a_text_deceives_is_found(grades: tuple[bool, bool], verdict: str) -> None:
    assert texts.judge(Reading(grades))[0] == verdict


@pytest.mark.slow
def test_the_smoke_run_reports_every_attack(tmp_path: Path) -> None:
    out = tmp_path / "attacks.json"
    ran = forked_programs.run(BENCHMARKS / "attacks.py", "--quick", "--out", str(out))
    found = json.loads(out.read_text())
    assert len(found) == 7
    assert all(attack["counts"] for attack in found.values())
    assert (ran.returncode, [attack["faults"] for attack in found.values()]) == (0, [[]] * 7), ran.stderr
