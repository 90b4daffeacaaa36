"""Progress: lines in a log, bars on a terminal, and silence."""

from __future__ import annotations

import io
import re
import time
from pathlib import Path
from threading import Event, Thread

import pytest
from filelock import FileLock
from rich.console import Console

from fsd_calib import progress
from fsd_calib.progress import Bars, Lines, Silent, Waiting


def test_lines_say_start_progress_and_end() -> None:
    stream = io.StringIO()
    with Lines(stream, seconds=0.0).step("measuring the target", total=10) as advance:
        advance(4)
        advance(6)
    said = [re.sub(r"\d+(\.\d+)? s", "_ s", line) for line in stream.getvalue().splitlines()]
    assert said == [
        "measuring the target: 0 of 10",
        "measuring the target: 4 of 10, _ s",
        "measuring the target: 10 of 10, _ s",
        "measuring the target: done, _ s",
    ]


def test_lines_are_rare_and_a_broken_step_is_not_done() -> None:
    stream = io.StringIO()

    def broken() -> None:
        with Lines(stream).step("x", total=100) as advance:
            for _ in range(50):
                advance(1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken()
    assert stream.getvalue() == "x: 0 of 100\n"


def test_bars_nest_and_can_be_used_again() -> None:
    console = Console(file=io.StringIO(), force_terminal=False, width=100)  # so only what stays is printed
    bars = Bars(console)
    for title in ("search", "speed"):
        with bars.step(title, total=2) as advance:
            with bars.step(f"{title} within", total=3) as advance_within:
                advance_within(3)
            advance(2)
    assert isinstance(console.file, io.StringIO)
    searched, timed = filter(None, console.file.getvalue().splitlines())
    assert searched.split()[0] == "search"
    assert timed.split()[0] == "speed"
    assert "2/2" in timed
    assert "within" not in searched + timed


def test_silent_is_a_progress_too(capsys: pytest.CaptureFixture[str]) -> None:
    with Silent().step("quiet", total=1) as advance:
        advance(1)
    captured = capsys.readouterr()
    assert captured.out + captured.err == ""


def test_a_note_is_one_line_whatever_a_name_in_it_holds() -> None:
    stream = io.StringIO()
    Lines(stream).note("task a\nfsd-calibrate: certified\x1b[0m")
    assert stream.getvalue() == "task a fsd-calibrate: certified\\x1b[0m\n"


def test_a_long_wait_is_said_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(progress, "_SECONDS_BEFORE_NOTE", 0.05)
    stream, path = io.StringIO(), tmp_path / "lock"
    waiting, held = Waiting(Lines(stream), "does the same"), Event()
    waiting.still()
    assert stream.getvalue() == ""

    def hold() -> None:
        with FileLock(path):
            held.set()
            time.sleep(0.5)

    other = Thread(target=hold)
    other.start()
    held.wait()
    with waiting.holding(FileLock(path)):
        waiting.still()
    other.join()
    assert stream.getvalue() == "waiting for another process, which does the same\n"
