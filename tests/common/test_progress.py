"""Progress: lines in a log, bars on a terminal, silence, and the outlook on the whole."""

from __future__ import annotations

import io
import re
import time
from pathlib import Path
from threading import Event, Thread

import pytest
from filelock import FileLock
from rich.console import Console

from fsd_common.progress import base as progress
from fsd_common.progress import chosen
from fsd_common.progress.bars import Bars
from fsd_common.progress.base import ProgressEstimate, RunningStep, Silent, Stage, Waiting, showing_whole
from fsd_common.progress.chosen import Lines


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


def test_lines_of_nested_steps_come_only_with_the_half_minutes() -> None:
    stream = io.StringIO()
    lines = Lines(stream)
    with lines.step("training", total=5) as advance:
        for _ in range(5):
            with lines.step("fitting", total=100) as advance_within:
                advance_within(100)
            advance(1)
    assert [line.split(":")[0] for line in stream.getvalue().splitlines()] == ["training", "training"]


def told(stream: io.StringIO) -> int:
    """How often the step was told of; a slow machine may tell of the whole before it has begun."""
    return stream.getvalue().splitlines().count("preparing: 0:00 gone; reading tokenizers")


def test_a_step_that_tells_of_nothing_is_told_of_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chosen, "_POLL", 0.01)
    stream, outlook = io.StringIO(), ProgressEstimate(now=lambda: 7.0)
    lines = Lines(stream, seconds=0.0)
    with lines.whole(outlook), lines.step("reading tokenizers", 0):
        until = time.monotonic() + 30
        while told(stream) < 2 and time.monotonic() < until:
            time.sleep(0.01)
    assert told(stream) >= 2


def test_the_time_left_of_a_step_is_told_where_that_of_the_whole_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    step = RunningStep("reading weights, MB", 400, done=100, started=time.monotonic() - 10)
    assert step.state_and_left == "reading weights, MB: 100 of 400, about 0:30 left"


def test_preparing_is_a_stage_before_those_of_a_plan() -> None:
    clock = Clock()
    outlook = ProgressEstimate(now=clock)
    clock.time = 20.0
    outlook.prepare(100.0, [Stage("search", 200.0)], lambda: 0)
    assert outlook.left == pytest.approx(300)
    clock.time = 80.0
    assert outlook.left == pytest.approx(240)


class Clock:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


def outlook_at(clock: Clock, done: list[int]) -> ProgressEstimate:
    outlook = ProgressEstimate(now=clock)
    clock.time = 10.0
    outlook.expect([Stage("search", 100.0, units=200), Stage("timing", 50.0)], lambda: done[0])
    return outlook


def test_the_time_left_is_what_is_planned_until_the_pace_of_a_stage_is_known() -> None:
    clock, done = Clock(), [7]
    outlook = outlook_at(clock, done)
    assert outlook.left is None
    assert outlook.left_in_words == "time left not known yet"
    outlook.begin("search")
    assert outlook.left == pytest.approx(150)
    clock.time, done[0] = 20.0, 7 + 20  # a tenth, which says little of the pace
    assert outlook.left == pytest.approx(0.9 * 100 + 50)
    clock.time, done[0] = 30.0, 7 + 100  # half in 20 s
    assert outlook.left_in_words == "about 1:10 left"
    assert not outlook.overdue
    clock.time, done[0] = 60.0, 7 + 300  # half as much again as was planned
    assert outlook.left_in_words == "more than 0:50 left"


def test_a_stage_without_decodings_goes_by_the_clock() -> None:
    clock = Clock()
    outlook = outlook_at(clock, [0])
    outlook.begin("search")
    clock.time = 40.0
    outlook.begin("timing")
    clock.time = 60.0
    assert outlook.left == pytest.approx(30)
    clock.time = 95.0  # 5 s more than planned, and nothing comes after it
    assert outlook.left_in_words == "longer than planned"
    clock.time = 60.0
    assert outlook.summary == "done in 1:00 (preparing 0:10, search 0:30, timing 0:20)"


def test_lines_name_the_stages_of_the_whole_and_its_state_now_and_then() -> None:
    clock, stream = Clock(), io.StringIO()
    lines, outlook = Lines(stream, seconds=0.0), outlook_at(clock, [0])
    with lines.whole(outlook):
        assert stream.getvalue() == ""  # bad input is one line, and nothing is known of it before the first step
        with lines.step("collecting", 10):
            pass
        outlook.begin("search")
        outlook.best = "best so far: T = 0.5"
        with lines.step("trying", 100), lines.step("decoding", 25) as advance:
            advance(5)
    assert stream.getvalue().splitlines() == [
        "preparing: collecting: 0 of 10",
        "search: about 2:30 left",
        "search: 0:10 gone, about 2:30 left; decoding: 5 of 25; best so far: T = 0.5",
        "done in 0:10 (preparing 0:10, search 0:00)",
    ]


def test_bars_show_the_whole_with_the_best_so_far_and_the_innermost_step() -> None:
    outlook, bars = outlook_at(Clock(), [0]), Bars(drawn := Console(file=io.StringIO(), width=80, force_terminal=True))
    with bars.whole(outlook):
        outlook.begin("search")
        outlook.best = "best so far: T = 0.5"
        with bars.step("trying", 100), bars.step("decoding " + "x" * 100, 25) as advance:
            advance(5)
            with drawn.capture() as captured:
                drawn.print(bars)
    rows = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", captured.get()).splitlines()
    assert [row.split()[0] for row in rows if row.strip()][-3:] == ["search", "best", "decoding"]
    assert max(map(len, rows)) <= 80
    assert "6%" in captured.get()
    assert "about 2:30 left" in captured.get()


def test_nothing_stays_on_a_terminal_but_notes() -> None:
    console = Console(file=io.StringIO(), force_terminal=False, width=100)  # so only what stays is printed
    bars = Bars(console)
    for title in ("search", "speed"):
        with bars.step(title, total=2) as advance:
            with bars.step(f"{title} within", total=3) as advance_within:
                advance_within(3)
            advance(2)
    bars.note("a note")
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "a note\n"


def test_a_progress_that_knows_no_whole_is_left_alone() -> None:
    with showing_whole(Silent(), ProgressEstimate()):
        pass


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
