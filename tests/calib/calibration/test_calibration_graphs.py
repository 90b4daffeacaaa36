"""Rounds called as graphs in a calibration: where that pays, what it is recorded in, and that it changes no text."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fsd_calib import ThresholdProfile
from fsd_calib.calibration.graphs import PlannedWork, what_pays
from fsd_calib.calibration.session import open_session
from fsd_calib.calibration.timing import Timer
from fsd_calib.engines.own import OwnEngine
from fsd_calib.measuring.timing_job import TimingJob, run_job
from fsd_calib.options.goal import Goal
from fsd_calib.options.run_config import RunConfig
from fsd_calib.report.console import usage
from fsd_common.errors import UsageError
from fsd_common.progress.base import Silent
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.graphs.callers import Compile
from fsd_decoding.profile.setting import Setting
from fsd_decoding.workers.model_workers import Sources
from support.calibration.fixed_speeds import fix_speeds
from support.calibration.profiles import profile
from support.calibration.reports import one_line, printed
from support.calibration.untimed import undated
from support.models import tiny_calibration
from support.models.tiny_pair import saved, tiny_decoder

LONG = PlannedWork(seconds=10_000.0, shapes=20, batch=1.0, round=0.01)


class Notes(Silent):
    """Keeps what is worth knowing."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, line: str) -> None:
        self.notes.append(line)


@dataclass
class Machine:
    """A clock that decoding a batch moves on: at first as long as capturing takes, too."""

    decoder: SpeculativeDecoder
    captured: float  # seconds of a batch; called directly it takes 1 s
    capture: float
    now: float = 0.0
    batches: int = 0
    first: bool = True

    def clock(self) -> float:
        return self.now

    def decode(self) -> None:
        self.batches += 1
        if self.decoder.compile is False:
            self.now += 1.0
            return
        self.now += self.captured + self.capture * self.first
        self.first = False


def tried(planned: PlannedWork, captured: float, capture: float) -> tuple[str, Machine, list[str]]:
    decoder, notes = tiny_decoder(), Notes()
    machine = Machine(decoder, captured, capture)
    way = what_pays(decoder, machine.decode, planned, notes, machine.clock)
    assert decoder.compile is False
    return way, machine, notes.notes


@pytest.mark.slow
@given(st.floats(0.05, 1.5), st.floats(0.0, 2000.0))
def test_graphs_are_kept_where_they_save_more_than_capturing_takes(captured: float, capture: float) -> None:
    way, _, (note,) = tried(LONG, captured, capture)
    saved_seconds, spent = 10_000 * (1 - captured), 20 * capture
    if abs(saved_seconds - spent) > 1e-6:
        assert way == ("capture" if saved_seconds > spent else "off")
    assert note.endswith(f"rounds are {'captured' if way == 'capture' else 'called directly'} (--compile auto)")


def test_a_short_calibration_tries_no_graphs() -> None:
    """The fastest graphs could not repay their capture."""
    way, machine, notes = tried(PlannedWork(seconds=100.0, shapes=20, batch=1.0, round=0.01), 0.1, 1.0)
    assert (way, machine.batches, notes) == ("off", 0, [])


def test_long_rounds_try_no_graphs_however_long_the_calibration() -> None:
    """What they could save is a matter of milliseconds a round, and finding out takes an hour."""
    two_days = PlannedWork(seconds=50 * 3600.0, shapes=20, batch=400.0, round=3.0)
    way, machine, notes = tried(two_days, 0.1, 1.0)
    assert (way, machine.batches, notes) == ("off", 0, [])


def key_under(compile: Compile) -> str:
    decoder = tiny_decoder()
    decoder.compile = compile
    return OwnEngine(decoder, tiny_calibration.task(20)).key(Setting("target", "js", 1), 0).json


def test_compiled_kernels_have_decodings_of_their_own() -> None:
    assert key_under("capture") == key_under(False)
    assert key_under(True) != key_under(False)


def graphs_made() -> int:
    """By PyTorch's own counter."""
    made: int = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    return made


def calibrated(folder: Path, **settings: Any) -> ThresholdProfile:
    return tiny_calibration.run_surely(folder / "out", folder, **settings)


@pytest.mark.slow
def test_a_captured_calibration_is_the_same_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fix_speeds(monkeypatch, over_lossless=1.5)
    plain, captured = calibrated(tmp_path / "plain"), calibrated(tmp_path / "captured", compile="capture")
    assert (plain.compile, captured.compile) == ("off", "capture")
    assert captured.threshold == plain.threshold
    assert captured.curve == plain.curve
    assert undated(captured.certificate) == undated(plain.certificate)
    again = calibrated(tmp_path / "plain", compile="capture", state=tmp_path / "new")  # another run, the same texts
    assert again.effort is not None
    assert again.effort.total.decoded == 0


@pytest.mark.slow
def test_what_captured_rounds_cost_is_measured_and_recorded(tmp_path: Path) -> None:
    torch._dynamo.utils.counters.clear()
    found = calibrated(tmp_path, compile="capture", timing="none")
    assert graphs_made() > 0
    (file,) = (tmp_path / "out").glob("run-*.json")
    facts = json.loads(file.read_text())
    assert facts["timings"]["compile"] == found.compile == "capture"
    pace = facts["timings"]["pace"]
    assert pace["capture"] > 20 * pace["lossless"]  # beyond doubt: tracing takes seconds
    torch._dynamo.utils.counters.clear()
    alone = calibrated(tmp_path, timing="none")  # another run, which graphs would not pay in
    assert alone.compile == "off"
    assert graphs_made() == 0
    again = calibrated(tmp_path, timing="none", compile="off")  # the same
    assert (again.costs, again.certificate) == (alone.costs, alone.certificate)
    assert len(list((tmp_path / "out").glob("run-*.json"))) == 2
    assert calibrated(tmp_path, timing="none", compile="capture").costs == found.costs


def job(folder: Path, compile: Compile) -> TimingJob:
    models = saved(folder)
    decoder = SpeculativeDecoder.from_pretrained(*models, compile=compile)
    with open_session(OwnEngine(decoder, tiny_calibration.task(60)), tiny_calibration.task(60), RunConfig()) as session:
        timer = Timer(session, Goal(min_acc=0.7), "careful", Sources(models[0], models[1:]))
        return timer._job([session.setting("sd", 2)], session.tuning.problems[:4], 1, 1.0)


@pytest.mark.slow
def test_fresh_processes_call_rounds_as_the_calibration_does(tmp_path: Path) -> None:
    captured = job(tmp_path, "capture")
    torch._dynamo.utils.counters.clear()
    run_job(replace(captured, compile=False))
    assert graphs_made() == 0
    run_job(captured)
    assert graphs_made() > 0


def test_fresh_processes_refuse_texts_of_other_kernels(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="have changed since the calibration"):
        run_job(replace(job(tmp_path, True), compile=False))


@pytest.mark.parametrize("given", ["fast", True, None])
def test_a_way_that_is_none_of_the_four_is_refused(given: Any) -> None:
    with pytest.raises(UsageError, match=rf"compile is {given!r}; it must be one of auto, off, capture, on"):
        RunConfig(compile=given)


def test_the_report_says_how_rounds_were_called_and_how_to_call_them_so() -> None:
    captured, plain = {"compile": "capture"}, {"compile": "off"}
    assert "float32, rounds captured as graphs" in one_line(printed(captured))
    assert "rounds" not in one_line(printed(plain)).partition("speed at batch")[2]
    assert usage(profile(captured), Path("p.json")).splitlines()[3].endswith("profile='p.json', compile='capture')")
    assert usage(profile(plain), Path("p.json")).splitlines()[3].endswith("profile='p.json')")
