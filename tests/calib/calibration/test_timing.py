"""Timing: how many problems of which part, in which processes, and notes on a busy machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from fsd_calib import ThresholdProfile, adaptive, calibrate
from fsd_calib.calibration.plan import Paces
from fsd_calib.calibration.session import Session, open_session
from fsd_calib.calibration.timing import Timer, check_timing
from fsd_calib.certification.claim import Claim
from fsd_calib.certification.holdout import HoldoutAttempt
from fsd_calib.certification.looks import Looks
from fsd_calib.engines.own import OwnEngine
from fsd_calib.measuring.evaluator import CachedDecoder
from fsd_calib.measuring.interleaved import machine_load
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.measuring.speed import TimedRun, TimedSpeeds
from fsd_calib.options.goal import Goal
from fsd_calib.options.run_config import RunConfig, Timing
from fsd_calib.report.figures import timing_note
from fsd_calib.tasks import Problem, Task
from fsd_collectors.split import Part
from fsd_common.errors import UsageError
from fsd_common.progress.base import Silent
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.loading import load_model
from fsd_decoding.profile.parts import PolicyInfo
from fsd_decoding.profile.setting import Setting
from fsd_decoding.workers.model_workers import Sources
from support.calibration.fixed_speeds import fix_costs
from support.models import tiny_calibration
from support.models.tiny_models import word_tokenizer
from support.models.tiny_pair import saved

PARTS: tuple[Part, Part] = ("tuning", "certification")
FUZZY = Setting("fsd-coupled", "js", 2, 0.1)


class Notes(Silent):
    """Keeps what is worth knowing."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, line: str) -> None:
        self.notes.append(line)


class PerRound:
    """A forecast of ten rounds a second."""

    lowest, highest = -1.0, 1.0

    def threshold(self, arm: Setting, logit_share: float) -> float:
        raise AssertionError

    def tokens_per_second(self, setting: Setting) -> float:
        raise AssertionError

    def measured(self, measurement: Measurement) -> float:
        return 10.0 * measurement.tokens_per_round


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return saved(tmp_path_factory.mktemp("pair"))


@contextmanager
def timer(
    models: tuple[Path, Path], task: Task | None = None, way: Timing = "run", streams: int = 1
) -> Iterator[Timer]:
    """Of 90 problems."""
    decoder = SpeculativeDecoder.from_pretrained(*models)
    given = task or tiny_calibration.task(90)
    with open_session(OwnEngine(decoder, given), given, RunConfig(progress=Notes())) as session:
        yield Timer(
            session,
            Goal(min_acc=0.7, serve_batch=streams),
            way,
            Sources(models[0], models[1:]),
            PerRound(),
        )


def settings(session: Session) -> list[Setting]:
    return [session.setting("target"), session.setting("sd", 2), FUZZY]


def decided(session: Session) -> HoldoutAttempt:
    made = session.holdout.open(
        [FUZZY], session.setting("target"), Claim(0.7, looks=Looks((session.holdout.problems,))), 0.95
    )
    made.decide()
    return made


@pytest.mark.parametrize("way", ["run", "none"])
def test_of_settings_certified_together_the_clock_takes_the_fastest_on_problems_of_its_own(
    models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, way: Timing
) -> None:
    """The tuning problems that may give what is printed have no say, nor have certification problems."""
    contest = [FUZZY, replace(FUZZY, threshold=0.2), replace(FUZZY, draft_length=3)]
    seconds = dict(zip(contest, (3e-3, 1e-3, 2e-3), strict=True))
    seen: set[int] = set()

    def slow(decode: CachedDecoder, c: Setting, problems: Sequence[Problem], batch_size: int) -> int:
        seen.update(problem.id for problem in problems)
        time.sleep(seconds[c])
        return 1

    monkeypatch.setattr(CachedDecoder, "emitted", slow)
    with timer(models, tiny_calibration.task(300), way) as made:
        best = made.fastest(contest)
        tuning = [problem.id for problem in made.session.tuning.problems]
        of_speeds = made._problems(1, None)[1]
    assert best == (contest[1] if way == "run" else contest[0])
    assert bool(seen) == (way == "run")
    assert seen <= set(tuning) - ids(of_speeds)


@pytest.mark.parametrize(("faster", "best"), [(1.002, 0), (1.02, 1), (0.98, 0)])
def test_a_setting_that_is_not_faster_beyond_the_noise_is_not_taken_for_the_first(
    models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, faster: float, best: int
) -> None:
    contest, pieces = [FUZZY, replace(FUZZY, draft_length=3)], 20
    noise = 1 + 0.02 * np.linspace(-1, 1, pieces)
    seconds = {contest[0]: np.ones(pieces), contest[1]: noise / faster}
    run = TimedRun(np.arange(pieces), dict.fromkeys(contest, np.full(pieces, 100.0)), {"wall": seconds})
    timed = TimedSpeeds([run], pieces, 0.95)
    monkeypatch.setattr(Timer, "_speeds_here", lambda *_: timed)
    with timer(models, tiny_calibration.task(300)) as made:
        assert made.fastest(contest) == contest[best]
    assert (timed.ratio(contest[1], contest[0]).value > 1) == (faster > 1)


@pytest.fixture
def timed_pieces(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, set[int]]]:
    """Streams and problems of what is decoded against the clock, piece by piece."""
    seen, emitted = [], CachedDecoder.emitted

    def watched(self: CachedDecoder, c: Setting, problems: Sequence[Problem], batch_size: int) -> int:
        seen.append((batch_size, {problem.id for problem in problems}))
        return emitted(self, c, problems, batch_size)

    monkeypatch.setattr(CachedDecoder, "emitted", watched)
    return seen


def ids(problems: Sequence[Problem]) -> set[int]:
    return {problem.id for problem in problems}


@pytest.mark.slow
def test_certification_problems_are_timed_once_they_have_decided(
    models: tuple[Path, Path], timed_pieces: list[tuple[int, set[int]]]
) -> None:
    with timer(models) as made:
        before = made.time(settings(made.session))
        assert before.part == "tuning"
        assert set.union(*(piece for _, piece in timed_pieces)) < ids(made.session.tuning.problems)
        timed_pieces.clear()
        part = decided(made.session)
        after = made.time(settings(made.session), part)
        assert after.part == "certification"
        assert set.union(*(piece for _, piece in timed_pieces)) <= ids(part.problems)
        assert (after.speeds.problems >= 10, after.speeds.processes) == (True, 0)


@pytest.mark.slow
def test_a_certification_part_too_small_for_it_is_left_alone(models: tuple[Path, Path]) -> None:
    whole = tiny_calibration.task(90)
    problems = tuple(replace(p, part=PARTS[i < 11]) for i, p in enumerate(whole.problems))
    with timer(models, replace(whole, problems=problems)) as made:
        part = decided(made.session)
        assert len(part.problems) == 11
        found = made.time(settings(made.session), part)
        assert found.part == "tuning"


@pytest.mark.slow
def test_several_streams_are_timed_beside_one(
    models: tuple[Path, Path], timed_pieces: list[tuple[int, set[int]]]
) -> None:
    with timer(models, streams=4) as made:
        several = made.time(settings(made.session)).speeds
        assert {streams for streams, _ in timed_pieces} == {4}
        timed_pieces.clear()
        single = made.time_single(settings(made.session), None)
        assert {streams for streams, _ in timed_pieces} == {1}
        assert single is not None
        assert single.problems >= 10
        assert several.problems % len(timed_pieces[0][1]) == 0
    with timer(models) as made:
        assert made.time_single(settings(made.session), None) is None


def test_what_is_not_timed_is_forecast_by_its_rounds(
    models: tuple[Path, Path], timed_pieces: list[tuple[int, set[int]]]
) -> None:
    with timer(models, way="none", streams=4) as made:
        for part in (None, decided(made.session)):
            found = made.time(settings(made.session), part)
            assert found.part == "tuning"
            assert not found.speeds.timed
            expected = 10 * made.session.tuning.measure(FUZZY).tokens_per_round
            assert found.speeds.of(FUZZY).value == made.forecast_of(FUZZY) == expected
            assert found.speeds.of(made.session.setting("target")).value == 10
        assert made.time_single(settings(made.session), None) is None
    assert timed_pieces == []


@pytest.mark.parametrize(
    ("seconds", "rest", "planned"),
    [
        (0.05, 0.0, (10 + 2 * 160) * 0.05 / 0.6),  # of all turns, and of the choice of sd
        (1.0, 0.0, (10 + 2 * 20) / 0.6),  # 20 turns have their time however long they take
        (1.0, 900.0, 300.0),  # a third of the rest
        (1.0, 9000.0, (10 + 2 * 160) / 0.6),
    ],
)
def test_timing_is_planned_as_a_share_of_the_other_steps(
    models: tuple[Path, Path], seconds: float, rest: float, planned: float
) -> None:
    paces = Paces(seconds, seconds, seconds)
    with timer(models) as made:
        timed = made.within(paces, rest)
        decodings, each = timed.effort(paces)
        assert timed.seconds == pytest.approx(planned) == pytest.approx(decodings * each)
        careful = replace(made, way="careful").within(paces, rest)
        assert careful.seconds == pytest.approx(5 * planned)
        assert replace(made, way="none").within(paces, rest).effort(paces)[0] == 0


class Machine:
    """Decodes in place of the session, in seconds that are set, on a clock of its own; they scatter by a tenth."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: dict[Setting, float]) -> None:
        self.seconds, self.now, self._random = seconds, 0.0, Random(0)
        monkeypatch.setattr(CachedDecoder, "emitted", self._emitted)
        monkeypatch.setattr("fsd_calib.calibration.timing.WALL_AND_CPU", {"wall": lambda: self.now})

    def _emitted(self, c: Setting, problems: Sequence[Problem], batch_size: int) -> int:
        self.now += self.seconds[c] * self._random.lognormvariate(0, 0.1)
        return 10


@pytest.mark.parametrize(("slower", "said"), [(3.0, False), (1.0, True)])
def test_timing_stops_once_it_is_decided_or_says_that_it_could_not(
    models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, slower: float, said: bool
) -> None:
    """Equal speeds are told apart by chance with probability .05 at most, were seeds not fixed."""
    with timer(models, tiny_calibration.task(300)) as made:
        alone, sd, chosen = settings(made.session)
        machine = Machine(monkeypatch, {alone: 4.0, sd: 2.0 * slower, chosen: 2.0})
        speeds = replace(made, seconds=250.0).time([alone, sd, chosen]).speeds
        progress = made.session.progress
    assert (speeds.problems == 10) == (not said)
    assert machine.now < (180 if said else 150)  # .6 of the time
    assert (speeds.ratio(chosen, sd).low > 1) == (not said)
    assert isinstance(progress, Notes)
    told = [note for note in progress.notes if "timing could not tell whether the setting is faster" in note]
    assert ["\n" in note for note in told] == [False] * said


def test_on_a_machine_that_is_too_slow_nothing_is_claimed(
    models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with timer(models, tiny_calibration.task(300)) as made:
        alone, sd, chosen = settings(made.session)
        Machine(monkeypatch, {alone: 40.0, sd: 60.0, chosen: 20.0})
        found = replace(made, seconds=200.0).time([alone, sd, chosen]).speeds
        progress = made.session.progress
    assert found.of(chosen).value > 0
    assert not found.ratio(chosen, sd).excludes(1)
    assert isinstance(progress, Notes)
    assert any("(too few turns)" in note for note in progress.notes)


@pytest.mark.parametrize(("confidence", "decodings"), [(0.95, 10), (0.999, 20)])
def test_a_setting_by_itself_is_timed_until_there_is_an_interval(
    models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, confidence: float, decodings: int
) -> None:
    with timer(models, tiny_calibration.task(300)) as made:
        machine = Machine(monkeypatch, {FUZZY: 2.0})
        found = replace(made, seconds=1000.0, goal=Goal(min_acc=0.7, confidence=confidence)).time_here(FUZZY, None)
    assert found is not None
    assert found.bounded
    assert (decodings + 1) * 1.5 < machine.now < (decodings + 1) * 2.5  # one warms up


def test_a_wanted_speed_is_decided_too(models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with timer(models, tiny_calibration.task(300)) as made:
        alone, sd, chosen = settings(made.session)
        Machine(monkeypatch, {alone: 4.0, sd: 4.0, chosen: 2.0})
        near = replace(made, seconds=900.0, goal=Goal(min_speed=4.9)).time([alone, sd, chosen])
        far = replace(made, seconds=900.0, goal=Goal(min_speed=1.0)).time([alone, sd, chosen])
    assert near.speeds.problems > far.speeds.problems == 10


# A busy machine


@pytest.mark.thinned(every=2)
@pytest.mark.parametrize("busy", [False, True])
def test_a_busy_machine_is_told(models: tuple[Path, Path], busy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    cores = len(os.sched_getaffinity(0))
    monkeypatch.setattr(os, "getloadavg", lambda: (cores + (0.4 if busy else 0.0), 0.0, 0.0))
    with timer(models) as made:
        found = made.time(settings(made.session))
        progress = made.session.progress
    assert isinstance(progress, Notes)
    assert found.load == (cores + (0.4 if busy else 0.0), cores)
    told = [note for note in progress.notes if "the machine is busy" in note]
    assert [f"load {cores}.4 on {cores} cores" in note for note in told] == [True] * busy


@pytest.mark.parametrize("missing", ["getloadavg", "sched_getaffinity"])
def test_where_the_system_does_not_say_nothing_is_said(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, missing)
    assert machine_load() is None


# CPU threads


def take_threads(chosen: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries one and two threads, and takes so many whatever their times."""

    def fixed(counts: Sequence[int], seconds: Callable[[int], float]) -> int:
        assert all(seconds(count) > 0 for count in counts)
        return chosen

    monkeypatch.setattr("fsd_calib.measuring.threads.counts_to_try", lambda: [2, 1])
    monkeypatch.setattr("fsd_calib.measuring.threads.fastest_count", fixed)


def test_what_is_timed_has_the_threads_that_are_fastest_then(
    models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are chosen anew for as many streams as are timed."""
    seen: dict[int, set[int]] = {}
    take_threads(2, monkeypatch)

    def emitted(decode: CachedDecoder, c: Setting, problems: Sequence[Problem], batch_size: int) -> int:
        seen.setdefault(batch_size, set()).add(torch.get_num_threads())
        return 1

    monkeypatch.setattr(CachedDecoder, "emitted", emitted)
    torch.set_num_threads(1)
    with timer(models, tiny_calibration.task(300), streams=4) as made:
        four = settings(made.session)
        assert made.time(four).threads == 2
        made.time_single(four, None)
        progress = made.session.progress
    assert seen == {4: {2}, 1: {2}}
    assert torch.get_num_threads() == 1
    assert isinstance(progress, Notes)
    assert [note.split(",")[0] for note in progress.notes if "CPU threads" in note] == [
        "2 of 2 CPU threads for 4 at a time", "2 of 2 CPU threads for 1 at a time",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_calibration_chooses_threads_when_it_begins_and_for_what_it_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_threads(1, monkeypatch)
    notes = Notes()
    profile = tiny_calibration.run_surely(tmp_path / "out", tmp_path / "cache", progress=notes, batch_size=16)
    said = [note.split(",")[0] for note in notes.notes if "CPU threads" in note]
    assert said == ["1 of 2 CPU threads for 16 at a time", "1 of 2 CPU threads for 8 at a time",
                    "1 of 2 CPU threads for 1 at a time", "1 of 2 CPU threads for 8 at a time"]  # fmt: skip
    assert profile.speed.threads == 1
    assert torch.get_num_threads() == 1


# Fresh processes


@pytest.mark.slow
def test_careful_timing_is_made_in_fresh_processes(
    models: tuple[Path, Path], timed_pieces: list[tuple[int, set[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two here, to save time. They compare what decides texts with what did here."""
    moved = replace(FUZZY, policy=PolicyInfo.of(adaptive.Schedule(0.25, 1.0, over=9).identity or ""))
    with timer(models, way="careful") as made:
        monkeypatch.setattr("fsd_calib.calibration.timing._PROCESSES", 2)
        speeds = made.time([*settings(made.session), moved]).speeds
        assert (speeds.processes, speeds.clock in ("wall", "cpu")) == (2, True)
        assert speeds.problems >= 10
        interval = speeds.ratio(FUZZY, made.session.setting("target"))
        assert 0 < interval.low < interval.value < interval.high
        assert speeds.of(moved).value > 0
    assert timed_pieces == []


@pytest.mark.slow
def test_other_models_than_were_calibrated_are_refused_there(tmp_path: Path) -> None:
    target, draft = saved(tmp_path)
    with timer((target, draft), way="careful") as made:
        draft.rename(tmp_path / "other")
        target.rename(draft)
        (tmp_path / "other").rename(target)
        with pytest.raises(
            UsageError, match="process 1 of 5 failed: the models or library versions have changed"
        ) as caught:
            made.time(settings(made.session))
    assert "\n" not in str(caught.value)


def test_a_process_that_dies_ends_it_in_one_line(
    models: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = tmp_path / "python"
    killed.write_text("#!/bin/sh\nkill -9 $$\n")
    killed.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(killed))
    with timer(models, way="careful") as made, pytest.raises(UsageError) as caught:
        made.time(settings(made.session))
    assert str(caught.value).startswith("timing in fresh process 1 of 5 failed: it was killed by SIGKILL")
    assert "\n" not in str(caught.value)


def test_what_cannot_be_done_is_refused(models: tuple[Path, Path]) -> None:
    loaded = load_model(models[1], "cpu", None)
    with pytest.raises(
        UsageError, match="'careful', and the draft is a loaded LlamaForCausalLM, which a fresh process"
    ):
        check_timing("careful", Goal(min_acc=0.7), Sources(models[0], (loaded,)))
    check_timing("run", Goal(min_acc=0.7), Sources(loaded, (loaded,)))
    with pytest.raises(UsageError, match="timing is 'twice'; it must be one of run, careful, none"):
        RunConfig(timing="twice")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="min_speed is 60, and only timing shows whether that is reached"):
        check_timing("none", Goal(min_speed=60.0), Sources(models[0], models[1:]))
    check_timing("none", Goal(min_acc=0.7), Sources(models[0], models[1:]))


# Whole calibrations


def calibrated(models: tuple[Path, Path], **changes: Any) -> ThresholdProfile:
    target, draft = models
    goal: dict[str, Any] = {"min_acc": 0.7, "draft_length": (2, 4), "score": "js", "trials": 6} | changes
    return calibrate(tiny_calibration.task(240), target=target, draft=draft, **goal)


@pytest.mark.slow
@pytest.mark.parametrize("explore", [False, True])
def test_a_profile_says_what_was_timed(
    models: tuple[Path, Path], explore: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fix_costs(monkeypatch)  # or on a busy machine no setting may be forecast to be faster, and none tested
    made = calibrated(models, explore=explore, serve_batch=2)
    speed, single = made.speed, made.speed.single
    assert speed.part == ("certification" if made.certificate.problems else "tuning")
    assert (made.certificate.problems == 0) == explore
    assert (speed.batch, speed.processes) == (2, 0)
    assert single is not None
    assert single.intervals is not None
    assert single.ratios is not None
    assert (single.timed >= 10, speed.cores) == (True, len(os.sched_getaffinity(0)))


@pytest.mark.slow
def test_a_profile_may_hold_forecasts(models: tuple[Path, Path]) -> None:
    made = calibrated(models, timing="none", serve_batch=2)
    speed, costs = made.speed, made.costs
    assert costs is not None
    assert (speed.timed, speed.intervals, speed.single, speed.load) == (0, None, None, None)
    assert speed.target == pytest.approx(1 / (costs.verify + costs.position))
    rounds = (
        costs.verify
        + costs.position
        + (made.lossless.draft_length if made.lossless else 0) * (costs.draft_step + costs.position)
    )
    assert speed.lossless == pytest.approx(
        made.tokens_per_round.lossless / rounds, rel=0.1
    )  # last drafts may be shorter
    assert "no setting was timed" in timing_note(speed)


@pytest.mark.slow
def test_a_careful_calibration_times_in_fresh_processes(
    models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fsd_calib.calibration.timing._PROCESSES", 2)
    monkeypatch.chdir(models[0].parent)
    made = calibrated((Path("target"), Path("draft")), timing="careful", dtype="float32")
    assert (made.speed.processes, made.dtype) == (2, "float32")


def test_ways_that_cannot_be_are_refused_before_the_work(models: tuple[Path, Path]) -> None:
    target, draft = (load_model(place, "cpu", None) for place in models)
    with pytest.raises(UsageError, match="the target is a loaded LlamaForCausalLM"):
        calibrated((target, draft), tokenizer=word_tokenizer(), timing="careful")
    with pytest.raises(UsageError, match="min_speed is 60"):
        calibrated((Path("no"), Path("where")), min_acc=None, min_speed=60.0, timing="none")
