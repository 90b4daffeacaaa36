"""The number of CPU threads: chosen by timing, left alone where the user gave it; and how waiting ones wait."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fsd_calib.measuring import threads
from fsd_calib.measuring.threads import Threads, counts_to_try, fastest_count


class Machine:
    """Takes so many seconds with so many threads, by a clock of its own; now and then other work takes the cores."""

    def __init__(self, seconds: dict[int, float], disturbed: float = 1.0, every: int = 5) -> None:
        self._seconds, self._disturbed, self._every = seconds, disturbed, every
        self.now, self.tried = 0.0, list[int]()

    def work(self, count: int) -> float:
        self.tried.append(count)
        taken = self._seconds[count] * (self._disturbed if len(self.tried) % self._every == 0 else 1.0)
        self.now += taken
        return taken

    def choose(self) -> int:
        return fastest_count(sorted(self._seconds, reverse=True), self.work, lambda: self.now)


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [
        ({1: 1.0, 2: 0.6, 4: 0.4}, 4),
        ({1: 1.0, 2: 0.6, 4: 0.58}, 2),
        ({1: 1.0, 2: 0.95}, 1),
        ({1: 1.0, 2: 10.0}, 1),
        ({1: 1.0, 2: 0.95, 4: 0.8}, 4),
    ],
)
def test_more_threads_are_taken_where_they_are_clearly_faster(seconds: dict[int, float], chosen: int) -> None:
    assert Machine(seconds).choose() == chosen


def test_more_threads_that_are_often_slower_are_not_taken() -> None:
    """They make up for it in most turns, which the moment that follows need not."""
    turns = iter([0.5, 2.0, 0.5, 2.0, 0.5] * 3)
    taken = {1: lambda: 1e-3, 2: lambda: 1e-3 * next(turns)}
    assert fastest_count([2, 1], lambda count: taken[count](), lambda: 0.0) == 1


@given(
    st.dictionaries(st.sampled_from([1, 2, 4, 8]), st.floats(1e-3, 0.1), min_size=2), st.floats(0.01, 100.0),
)  # fmt: skip
def test_moments_of_other_work_change_nothing(seconds: dict[int, float], disturbed: float) -> None:
    """They disturb two of ten measurements: no ratio's median."""
    quiet = Machine(seconds)
    chosen = quiet.choose()
    assert seconds[chosen] <= 1.1 * min(seconds.values())
    assert Machine(seconds, every=1000).choose() == chosen
    assert Machine({1: 0.01, 2: 0.005}, disturbed).choose() == 2
    assert Machine({1: 0.01, 2: 0.01}, disturbed).choose() == 1


def test_too_few_threads_for_a_large_model_are_tried_once() -> None:
    machine = Machine({1: 800.0, 2: 400.0, 4: 200.0, 8: 60.0, 16: 40.0})
    assert machine.choose() == 16
    assert machine.tried == [16, 8, 4, 16, 8, 16, 8]
    small = Machine({1: 0.8, 2: 0.4, 4: 0.01})
    small.choose()
    assert small.tried.count(1) > 1  # a moment of other work may have made it slow


def test_slow_work_takes_three_turns_and_quick_work_no_more_than_a_second() -> None:
    slow, quick = Machine({1: 9.0, 2: 8.0}), Machine({1: 0.02, 2: 0.01})
    slow.choose()
    quick.choose()
    assert (slow.tried.count(1), quick.tried.count(1)) == (3, 15)
    middling = Machine({1: 0.1, 2: 0.1})
    middling.choose()
    assert middling.now < 1.3


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "cores", lambda: 8)
    monkeypatch.setattr(threads, "_torchs_own", lambda: (2,))
    torch.set_num_threads(2)


@pytest.mark.usefixtures("eight_cores")
def test_a_number_that_the_user_gave_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert counts_to_try() == [8, 4, 2, 1]
    torch.set_num_threads(3)
    assert counts_to_try() == [3]
    torch.set_num_threads(2)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert counts_to_try() == [2]
    lines: list[str] = []
    with Threads(lambda rows: pytest.fail("timed"), lines.append).chosen_for(4) as count:
        assert count == torch.get_num_threads() == 2
    assert lines == []


@pytest.mark.slow
def test_torchs_own_number_is_known_here() -> None:
    variables = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    program = "import torch; from fsd_calib.measuring.threads import _torchs_own as own; "
    program += "assert torch.get_num_threads() in own(), own()"
    subprocess.run([sys.executable, "-c", program], check=True, env=variables)


@pytest.mark.usefixtures("eight_cores")
def test_the_chosen_number_holds_within_and_is_told_once() -> None:
    lines: list[str] = []
    seen: set[tuple[int, int]] = set()

    def seconds(rows: int) -> float:
        seen.add((rows, torch.get_num_threads()))
        return 1e-3 / torch.get_num_threads() if rows == 32 else 1e-3

    chosen = Threads(seconds, lines.append)
    with chosen.chosen_for(32) as many:
        assert many == torch.get_num_threads() == 8
        with chosen.chosen_for(1) as few:
            assert few == torch.get_num_threads() == 1
        with chosen.chosen_for(1):
            pass
        assert torch.get_num_threads() == 8
    assert torch.get_num_threads() == 2
    assert seen == {(rows, count) for rows in (1, 32) for count in (1, 2, 4, 8)}
    assert lines == [
        "8 of 8 CPU threads for 32 at a time, by timing some rounds now",
        "1 of 8 CPU threads for 1 at a time, by timing some rounds now",
    ]


@pytest.mark.thinned(every=4)
@pytest.mark.parametrize(
    ("program", "given", "spins"),
    [
        ("import fsd_calib, torch", None, False),
        ("import fsd_calib.cli.generate, torch", None, False),
        ("import fsd_calib, torch", "active", True),
        ("import torch, fsd_calib", None, True),
    ],
)
def test_waiting_threads_sleep_unless_the_user_says_otherwise(program: str, given: str | None, spins: bool) -> None:
    """By what PyTorch's own OpenMP prints of its settings when it is loaded."""
    variables = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    variables |= {"OMP_DISPLAY_ENV": "verbose"} | ({} if given is None else {"OMP_WAIT_POLICY": given})
    ended = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=True)
    found = re.findall(r"GOMP_SPINCOUNT = '(\w+)'", ended.stderr)
    if not found:
        pytest.skip("PyTorch's OpenMP is not GNU's here")
    assert (set(found) != {"0"}) == spins
