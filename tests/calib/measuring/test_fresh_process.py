"""Fresh processes: they share only the request, and a failure is reported in one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fsd_calib.measuring.fresh_process import in_fresh_process
from fsd_common.errors import UsageError

_changed = False


def describe(number: int) -> tuple[int, int, bool, list[str]]:
    print("to nobody")
    return number + 1, os.getpid(), _changed, sys.path


def refuses(number: int) -> None:
    raise UsageError(f"number is {number};\nit must be another")


def breaks(number: int) -> float:
    return number / 0


def dies(number: int) -> None:
    os.kill(os.getpid(), number)


def leaves(number: int) -> None:
    os._exit(number)


def test_it_starts_fresh_and_finds_the_same_modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys.modules[__name__], "_changed", True)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pickle.py").write_text("raise AssertionError('a file of the working folder is no module of ours')")
    number, process, changed, path = in_fresh_process(describe, 6)
    assert number == 7
    assert process != os.getpid()
    assert not changed
    assert [entry for entry in sys.path if entry not in path and entry] == []
    assert str(tmp_path) not in path


@pytest.mark.parametrize(
    ("work", "number", "reason"),
    [
        (refuses, 4, "number is 4; it must be another"),
        (breaks, 4, "ZeroDivisionError: division by zero"),
        (dies, signal.SIGKILL, "it was killed by SIGKILL (out of memory, for instance)"),
        (leaves, 3, "it ended with exit code 3"),
    ],
)
def test_a_failure_is_reported_in_one_line(work: object, number: int, reason: str) -> None:
    assert callable(work)
    with pytest.raises(UsageError) as caught:
        in_fresh_process(work, number)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_script_without_a_guard_runs_once(tmp_path: Path) -> None:
    """multiprocessing's spawn would run it again in the child."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os\n"
        "from fsd_calib.measuring.fresh_process import in_fresh_process\n"
        "print('begun', flush=True)\n"
        "print(in_fresh_process(os.path.basename, 'a/b'))\n"
    )
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert (ran.stdout, ran.returncode) == ("begun\nb\n", 0), ran.stderr
