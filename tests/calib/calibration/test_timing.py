"""Timing: how many problems of which part, in which processes, and notes on a busy machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fsd_calib import ThresholdProfile, adaptive, calibrate
from fsd_calib.calibration.goal import Goal
from fsd_calib.calibration.plan import Paces
from fsd_calib.calibration.run_config import RunConfig
from fsd_calib.calibration.session import Session, open_session
from fsd_calib.calibration.timing import Timer, TimingRequest, Way, problems_to_time
from fsd_calib.certification.claim import Claim
from fsd_calib.certification.holdout import HoldoutAttempt
from fsd_calib.engines.configuration import Configuration
from fsd_calib.engines.own.engine import OwnEngine
from fsd_calib.measuring.evaluator import CachedDecoder
from fsd_calib.measuring.interleaved import machine_load
from fsd_calib.measuring.measurement import Measurement
from fsd_calib.progress import Silent
from fsd_calib.report.timing import timing_note
from fsd_calib.tasks import Problem, Task
from fsd_collectors.split import Part
from fsd_decoding.decoder import SpeculativeDecoder
from fsd_decoding.errors import UsageError
from fsd_decoding.loading import load_model
from fsd_decoding.workers.sources import Sources
from support.models import tiny_calibration
from support.models.tiny_models import word_tokenizer
from support.models.tiny_pair import saved

PARTS: tuple[Part, Part] = ("tuning", "certification")
FUZZY = Configuration("fsd-coupled", "js", 2, 0.1)


class Notes(Silent):
    """Keeps what is worth knowing."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, line: str) -> None:
        self.notes.append(line)


class PerRound:
    """A forecast of ten rounds a second."""

    lowest, highest = -1.0, 1.0

    def threshold(self, arm: Configuration, logit_share: float) -> float:
        raise AssertionError

    def tokens_per_second(self, configuration: Configuration) -> float:
        raise AssertionError

    def measured(self, measurement: Measurement) -> float:
        return 10.0 * measurement.tokens_per_round


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return saved(tmp_path_factory.mktemp("pair"))


@contextmanager
def timer(models: tuple[Path, Path], task: Task | None = None, way: Way = "run", streams: int = 1) -> Iterator[Timer]:
    """Of 60 problems."""
    decoder = SpeculativeDecoder.from_pretrained(*models)
    given = task or tiny_calibration.task(60)
    with open_session(OwnEngine(decoder, given), given, RunConfig(progress=Notes())) as session:
        yield Timer(
            session, Goal(0.7, serve_batch=streams), TimingRequest(way, Sources(models[0], models[1:])), PerRound()
        )


def settings(session: Session) -> list[Configuration]:
    return [session.configuration("target"), session.configuration("sd", 2), FUZZY]


def decided(session: Session) -> HoldoutAttempt:
    made = session.holdout.open(
        [FUZZY], session.configuration("target"), Claim(0.7, problems=session.holdout.problems), 0.95
    )
    made.decide()
    return made


@pytest.mark.parametrize("way", ["run", "none"])
def test_of_settings_certified_together_the_clock_takes_the_fastest_on_problems_of_its_own(
    models: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, way: Way
) -> None:
    """The tuning problems that may give what is printed have no say, nor have certification problems."""
    contest = [FUZZY, replace(FUZZY, threshold=0.2), replace(FUZZY, draft_length=3)]
    seconds = dict(zip(contest, (3e-3, 1e-3, 2e-3), strict=True))
    seen: set[int] = set()

    def slow(decode: CachedDecoder, c: Configuration, problems: Sequence[Problem], batch_size: int) -> int:
        seen.update(problem.id for problem in problems)
        time.sleep(seconds[c])
        return 1

    monkeypatch.setattr(CachedDecoder, "emitted", slow)
    with timer(models, tiny_calibration.task(200), way) as made:
        best = made.fastest(contest)
        tuning = [problem.id for problem in made.session.tuning.problems]
    assert best == (contest[1] if way == "run" else contest[0])
    assert len(seen) == (0 if way == "none" else 12)
    assert seen <= set(tuning[12:])


@pytest.fixture
def timed_pieces(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, set[int]]]:
    """Streams and problems of what is decoded against the clock, piece by piece."""
    seen, emitted = [], CachedDecoder.emitted

    def watched(self: CachedDecoder, c: Configuration, problems: Sequence[Problem], batch_size: int) -> int:
        seen.append((batch_size, {problem.id for problem in problems}))
        return emitted(self, c, problems, batch_size)

    monkeypatch.setattr(CachedDecoder, "emitted", watched)
    return seen


def ids(problems: Sequence[Problem]) -> set[int]:
    return {problem.id for problem in problems}


@pytest.mark.parametrize(
    ("problems", "streams", "count"),
    [(60, 1, 12), (300, 1, 15), (3000, 1, 51), (10**6, 1, 51), (60, 4, 48), (1600, 4, 80), (10**6, 4, 160)],
)
def test_more_problems_are_timed_where_there_are_more(problems: int, streams: int, count: int) -> None:
    assert problems_to_time(problems, streams) == count


@pytest.mark.slow
def test_certification_problems_are_timed_once_they_have_decided(
    models: tuple[Path, Path], timed_pieces: list[tuple[int, set[int]]]
) -> None:
    with timer(models) as made:
        before = made.time(settings(made.session))
        assert before.part == "tuning"
        assert set.union(*(piece for _, piece in timed_pieces)) == ids(made.session.tuning.problems[:12])
        timed_pieces.clear()
        part = decided(made.session)
        after = made.time(settings(made.session), part)
        assert after.part == "certification"
        assert set.union(*(piece for _, piece in timed_pieces)) == ids(part.problems[:12])
        assert (after.speeds.problems, after.speeds.processes) == (11, 0)


@pytest.mark.slow
def test_a_certification_part_too_small_for_it_is_left_alone(models: tuple[Path, Path]) -> None:
    whole = tiny_calibration.task(60)
    problems = tuple(replace(p, part=PARTS[i < 11]) for i, p in enumerate(whole.problems))
    with timer(models, replace(whole, problems=problems)) as made:
        part = decided(made.session)
        assert len(part.problems) == 11
        found = made.time(settings(made.session), part)
        assert (found.part, found.speeds.problems) == ("tuning", 11)


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
        assert single.problems < several.problems
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
            assert found.speeds.of(made.session.configuration("target")).value == 10
        assert made.time_single(settings(made.session), None) is None
        assert made.effort(Paces(1.0, 1.0, 1.0)) == (0, 0.0)
    assert timed_pieces == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seconds", "rest", "timed"),
    [
        (0.1, 0.0, 28),  # 34 s are always allowed
        (1.0, 0.0, 20),  # 20 are enough, and timed however long it takes
        (1.0, 900.0, 25),  # a third of the rest
        (1.0, 3000.0, 28),
    ],
)
def test_fewer_problems_are_timed_where_that_takes_long_beside_the_rest(
    models: tuple[Path, Path], timed_pieces: list[tuple[int, set[int]]], seconds: float, rest: float, timed: int
) -> None:
    paces = Paces(seconds, seconds, seconds)
    with timer(models, tiny_calibration.task(600)) as made:
        shorter = made.within(paces, rest)
        assert shorter.effort(paces)[0] == 12 * timed
        assert len(set.union(*_timed_by(shorter, timed_pieces))) == timed
        careful = replace(made, request=replace(made.request, way="careful"))
        assert careful.within(paces, rest) is careful


def _timed_by(made: Timer, timed_pieces: list[tuple[int, set[int]]]) -> list[set[int]]:
    made.time(settings(made.session))
    return [piece for _, piece in timed_pieces]


@pytest.mark.slow
def test_what_is_expected_is_what_is_decoded(
    models: tuple[Path, Path], timed_pieces: list[tuple[int, set[int]]]
) -> None:
    """Three repeats of four settings, and once of what warms up."""
    with timer(models, tiny_calibration.task(240), streams=4) as made:
        decodings, each = made.effort(Paces(1.0, 1.0, 1.0))
        four = [*settings(made.session), made.session.configuration("sd", 4)]
        made.time(four)
        made.time_single(four, None)
        done = sum(len(piece) for _, piece in timed_pieces)
        assert decodings == pytest.approx(done, rel=0.15)
        assert 1.0 < each < 4.0


# A busy machine


@pytest.mark.parametrize("busy", [False, True])
def test_a_busy_machine_is_told(models: tuple[Path, Path], busy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    cores = len(os.sched_getaffinity(0))
    monkeypatch.setattr(os, "getloadavg", lambda: (cores + (0.4 if busy else 0.0), 0.0, 0.0))
    with timer(models) as made:
        found = made.time(settings(made.session))
        progress = made.session.progress
    assert isinstance(progress, Notes)
    assert found.load == (cores + (0.4 if busy else 0.0), cores)
    assert ["the machine is busy" in note for note in progress.notes] == [True] * busy
    assert all(f"load {cores}.4 on {cores} cores" in note for note in progress.notes)


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

    def emitted(decode: CachedDecoder, c: Configuration, problems: Sequence[Problem], batch_size: int) -> int:
        seen.setdefault(batch_size, set()).add(torch.get_num_threads())
        return 1

    monkeypatch.setattr(CachedDecoder, "emitted", emitted)
    torch.set_num_threads(1)
    with timer(models, tiny_calibration.task(200), streams=4) as made:
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
    moved = replace(FUZZY, policy=adaptive.Schedule(0.25, 1.0, over=9).identity)
    with timer(models, way="careful") as made:
        assert made.effort(Paces(1.0, 1.0, 1.0)) == (5 * 12 * 12, 1.0)
        monkeypatch.setattr("fsd_calib.calibration.timing._PROCESSES", 2)
        speeds = made.time([*settings(made.session), moved]).speeds
        assert (speeds.processes, speeds.problems) == (2, 11)
        interval = speeds.ratio(FUZZY, made.session.configuration("target"))
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
        TimingRequest("careful", Sources(models[0], (loaded,)))
    TimingRequest("run", Sources(loaded, (loaded,)))
    with pytest.raises(UsageError, match="--timing is 'twice'; it must be one of run, careful, none"):
        TimingRequest("twice", Sources(models[0], models[1:]))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="--min-speed is 60, and only timing shows whether that is reached"):
        TimingRequest("none", Sources(models[0], models[1:])).check(Goal(min_speed=60.0))
    TimingRequest("none", Sources(models[0], models[1:])).check(Goal(0.7))


# Whole calibrations


def calibrated(models: tuple[Path, Path], **changes: Any) -> ThresholdProfile:
    target, draft = models
    goal: dict[str, Any] = {"min_acc": 0.7, "draft_length": (2, 4), "divergence": "js", "trials": 6} | changes
    return calibrate(tiny_calibration.task(240), target=target, draft=draft, **goal)


@pytest.mark.slow
@pytest.mark.parametrize("guarantee", ["population", "none"])
def test_a_profile_says_what_was_timed(models: tuple[Path, Path], guarantee: str) -> None:
    made = calibrated(models, guarantee=guarantee, serve_batch=2)
    speed, single = made.speed, made.speed.single
    assert speed.part == ("certification" if made.certificate.problems else "tuning")
    assert (made.certificate.problems == 0) == (guarantee == "none")
    assert (speed.batch, speed.processes, speed.timed) == (2, 0, 22)
    assert single is not None
    assert single.intervals is not None
    assert (single.timed, speed.cores) == (11, len(os.sched_getaffinity(0)))


@pytest.mark.slow
def test_a_profile_may_hold_forecasts(models: tuple[Path, Path]) -> None:
    made = calibrated(models, timing="none", serve_batch=2)
    speed, costs = made.speed, made.costs
    assert costs is not None
    assert (speed.timed, speed.intervals, speed.single, speed.load) == (0, None, None, None)
    assert speed.target == pytest.approx(1 / (costs.verify + costs.position))
    rounds = costs.verify + costs.position + (made.sd_draft_length or 0) * (costs.draft_step + costs.position)
    assert speed.sd == pytest.approx(made.tokens_per_round.sd / rounds, rel=0.1)  # last drafts may be shorter
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
    with pytest.raises(UsageError, match="--min-speed is 60"):
        calibrated((Path("no"), Path("where")), min_acc=None, min_speed=60.0, timing="none")
