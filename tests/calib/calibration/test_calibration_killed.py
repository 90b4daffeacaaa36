"""A calibration is killed again and again, at any moment: it ends with the same profile and decodes nothing twice."""

from __future__ import annotations

import shutil
import sqlite3
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from fsd_calib.calibration.timing import Timer
from fsd_decoding.profile.threshold_profile import ThresholdProfile
from lib.common.forked_programs import ForkedProgram
from support.calibration.untimed import untimed
from support.models import tiny_calibration
from support.models.tiny_calibration import run_surely

KILLS = 20


def start(out: Path, cache: Path) -> ForkedProgram:
    """Returns once the process has begun."""
    child = ForkedProgram(tiny_calibration.__file__, str(out), str(cache))
    assert child.stdout.readline() == "here\n"
    return child


def decodings(cache: Path) -> list[Any]:
    """What was decoded, one entry a time that it was."""
    with sqlite3.connect(cache / "decodings.sqlite") as file:
        return file.execute("SELECT hex(key), problem, threshold FROM decodings").fetchall()


@pytest.mark.slow
def test_it_ends_the_same_after_twenty_kills(tmp_path: Path) -> None:
    out, cache = tmp_path / "out", tmp_path / "cache"
    child = start(tmp_path / "first", tmp_path / "warm")
    began = time.monotonic()
    assert child.wait(300) == 0
    whole = time.monotonic() - began
    rng, killed = Random(1), 0
    while killed < KILLS:
        child = start(out, cache)
        time.sleep(rng.uniform(0, 0.4 * whole))
        killed += child.poll() is None  # towards the end little is left to do, and some get to it
        child.kill()
        child.wait()
    child = start(out, cache)
    output, errors = child.communicate(timeout=300)
    assert output == "done\n", errors
    # An uninterrupted run, with the costs that the killed one had measured: they decide which lengths are tried.
    calm = tmp_path / "calm"
    calm.mkdir()
    (facts,) = out.glob("run-*.json")
    shutil.copy(facts, calm)
    child = start(calm, tmp_path / "cold")
    output, errors = child.communicate(timeout=300)
    assert output == "done\n", errors
    first, second = (untimed(ThresholdProfile.load(folder / "profile.json")) for folder in (calm, out))
    assert first == second
    again = decodings(cache)
    assert len(again) == len(set(again))
    assert sorted(again, key=str) == sorted(decodings(tmp_path / "cold"), key=str)


@pytest.mark.slow
def test_another_clock_decodes_nothing_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first process records which draft length of sd is the fastest; one that times otherwise takes it over."""
    faster = 0
    monkeypatch.setattr(Timer, "fastest", lambda timer, settings: settings[faster % len(settings)])
    first = run_surely(tmp_path / "out", tmp_path / "cache")
    made, faster = decodings(tmp_path / "cache"), 1
    again = run_surely(tmp_path / "out", tmp_path / "cache")
    assert again.lossless == first.lossless
    assert decodings(tmp_path / "cache") == made


@pytest.mark.slow
def test_identical_processes_decode_nothing_twice(tmp_path: Path) -> None:
    out, cache = tmp_path / "out", tmp_path / "cache"
    children = [start(out, cache) for _ in range(3)]
    for child in children:
        output, errors = child.communicate(timeout=600)
        assert output == "done\n", errors
    made = decodings(cache)
    assert len(made) == len(set(made))
