"""Speeds on a simulated machine whose true speed is known: estimates, intervals, turns and outliers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple

import numpy as np
import pytest

from fsd_calib.measuring.interleaved import measure_speeds
from fsd_calib.measuring.speed import ForecastSpeeds, Interval, TimedSpeeds, pool_processes
from fsd_decoding.errors import UsageError

SPEEDS = {"target": 20.0, "sd": 50.0, "fsd": 60.0}  # rounds per second
Problem = tuple[int, float]  # its number and its rounds, of about two tokens each


class Machine:
    """Decodes at known speeds on a simulated clock."""

    def __init__(self, seed: int = 0, noise: float = 0.0, hiccups: float = 0.0) -> None:
        self.now, self.calls = 0.0, list[tuple[str, tuple[int, ...]]]()
        self._rng, self._noise, self._hiccups = np.random.default_rng(seed), noise, hiccups

    def decode(self, name: str, problems: Sequence[Problem]) -> int:
        self.calls.append((name, tuple(number for number, _ in problems)))
        rounds = sum(rounds for _, rounds in problems)
        hiccup = 5.0 * (self._rng.random() < self._hiccups)
        self.now += rounds / SPEEDS[name] * np.exp(self._noise * self._rng.standard_normal()) + hiccup
        return sum(round(rounds * (2 + number % 3 / 2)) for number, rounds in problems)

    def measure(self, problems: Sequence[Problem], streams: int = 1, confidence: float = 0.9) -> TimedSpeeds[str]:
        return measure_speeds(
            self.decode, list(SPEEDS), problems, streams=streams, confidence=confidence, clock=lambda: self.now
        )


def drawn(count: int, seed: int = 0) -> list[Problem]:
    rng = np.random.default_rng(seed)
    return [(int(rng.integers(1000)), float(rng.integers(4, 40))) for _ in range(count)]


def test_speeds_of_a_steady_machine_are_exact() -> None:
    problems = [(3 * i, 10.0) for i in range(8)]  # two tokens per round
    speeds = Machine().measure(problems)
    for name, rounds in SPEEDS.items():
        found = speeds.of(name)
        assert (found.value, found.low, found.high) == pytest.approx((2 * rounds,) * 3)
    assert speeds.ratio("fsd", "sd").value == pytest.approx(1.2)


def test_the_speed_is_that_of_one_stream() -> None:
    machine = Machine()
    speeds = machine.measure([(3 * i, 10.0) for i in range(400)], streams=4)
    assert {len(numbers) for _, numbers in machine.calls} == {16}
    assert speeds.pieces == 24
    assert speeds.of("sd").value == pytest.approx(100 / 4)
    assert speeds.ratio("sd", "target").value == pytest.approx(2.5)


def test_answers_take_the_seconds_of_a_stream_for_each_problem() -> None:
    """Each problem has 10 rounds. The machine makes as many rounds a second however many streams share them."""
    problems = [(3 * i, 10.0) for i in range(400)]
    for streams in (1, 4):
        speeds = Machine().measure(problems, streams=streams)
        assert speeds.answer_seconds("sd") == pytest.approx(streams * 10 / SPEEDS["sd"])
        assert speeds.answer_seconds("target") == pytest.approx(streams * 10 / SPEEDS["target"])
    assert ForecastSpeeds(SPEEDS.__getitem__).answer_seconds("sd") is None


def test_fewer_problems_give_smaller_pieces_and_too_few_are_refused() -> None:
    machine = Machine()
    machine.measure(drawn(60), streams=4)
    assert {len(numbers) for _, numbers in machine.calls} == {6}
    with pytest.raises(UsageError, match="there are 11 problems to time 4 at a time; it takes at least 12"):
        machine.measure(drawn(11), streams=4)


def test_all_configurations_decode_the_same_pieces_in_turn_after_a_warm_up() -> None:
    machine, problems = Machine(), [(i, 10.0) for i in range(30)]
    machine.measure(problems)
    assert machine.calls[:3] == [(name, (0,)) for name in SPEEDS]
    rest = machine.calls[3:]
    turns = [rest[at : at + 3] for at in range(0, len(rest), 3)]
    assert [numbers for turn in turns for _, numbers in turn[:1]] == 3 * [(i,) for i in range(1, 30)]
    assert all({name for name, _ in turn} == set(SPEEDS) and len({of for _, of in turn}) == 1 for turn in turns)
    firsts = {turn[0][0] for turn in turns}  # probability below 1e-14 that one of three is never first in 87 turns
    assert firsts == set(SPEEDS)


def test_an_outlier_in_one_turn_changes_nothing() -> None:
    class Hiccup(Machine):
        def decode(self, name: str, problems: Sequence[Problem]) -> int:
            self.now += 1000.0 * (len(self.calls) in (0, 10, 40))
            return super().decode(name, problems)

    quiet, disturbed = (machine.measure(drawn(10)) for machine in (Machine(), Hiccup()))
    for name in SPEEDS:
        assert astuple(disturbed.of(name)) == pytest.approx(astuple(quiet.of(name)))


def test_a_machine_that_slows_down_keeps_the_ratios() -> None:
    class Tiring(Machine):
        def decode(self, name: str, problems: Sequence[Problem]) -> int:
            began = self.now
            tokens = super().decode(name, problems)
            self.now += (self.now - began) * len(self.calls) / 100
            return tokens

    found = Tiring().measure(drawn(40)).ratio("fsd", "sd")
    assert found.value == pytest.approx(1.2, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("count", [9, 25])
def test_intervals_have_their_nominal_coverage(count: int) -> None:
    """500 measurements, each with problems of its own, at 90 %: three standard errors are .04, and .015
    more is allowed for a bootstrap of 8 pieces. Seeds are fixed (else false alarms below .011 for four shares)."""
    rounds = np.arange(4, 40)  # rounds of a problem, to be drawn from
    tokens = np.mean([np.rint(rounds * (2 + k / 2)).mean() for k in range(3)])
    speed, ratio = tokens / rounds.mean() * SPEEDS["fsd"], SPEEDS["fsd"] / SPEEDS["sd"]
    covered = np.zeros(2)
    for seed in range(500):
        speeds = Machine(seed, noise=0.1, hiccups=0.01).measure(drawn(count, seed + 10_000))
        found = speeds.of("fsd"), speeds.ratio("fsd", "sd")
        covered += [i.low <= truth <= i.high for i, truth in zip(found, (speed, ratio), strict=True)]
    assert covered / 500 == pytest.approx(0.9, abs=0.055)


# Fresh processes, and none


class Offset(Machine):
    """A process in which each configuration is off by its own factor, some 3 %, constant within the process."""

    def __init__(self, seed: int, process: int) -> None:
        super().__init__(1000 * seed + process, noise=0.1)
        random = np.random.default_rng([seed, process])
        self._off = {name: np.exp(0.03 * random.standard_normal()) for name in SPEEDS}

    def decode(self, name: str, problems: Sequence[Problem]) -> int:
        began = self.now
        tokens = super().decode(name, problems)
        self.now = began + (self.now - began) * self._off[name]
        return tokens


@pytest.mark.slow
def test_intervals_over_processes_include_the_variation_between_them() -> None:
    """300 measurements at 95 %, each with problems and five processes of its own: three standard errors are .038. Two
    shares: false alarm below .003, were seeds not fixed. The first process's own interval of the ratio covers about .70
    of the time: .78 is three standard errors above that."""
    rounds = np.arange(4, 40)
    tokens = np.mean([np.rint(rounds * (2 + k / 2)).mean() for k in range(3)])
    speed, ratio = tokens / rounds.mean() * SPEEDS["fsd"], SPEEDS["fsd"] / SPEEDS["sd"]
    covered, alone = np.zeros(2), 0
    for seed in range(300):
        problems = drawn(16, seed + 10_000)
        measured = [Offset(seed, process).measure(problems, confidence=0.95) for process in range(5)]
        speeds = pool_processes(measured)
        found = speeds.of("fsd"), speeds.ratio("fsd", "sd")
        covered += [i.low <= truth <= i.high for i, truth in zip(found, (speed, ratio), strict=True)]
        within = measured[0].ratio("fsd", "sd")
        alone += within.low <= ratio <= within.high
    assert (covered / 300 > 0.95 - 0.038).all()
    assert alone / 300 < 0.78


def test_processes_that_agree_give_the_result_of_one() -> None:
    measured = [Machine().measure(drawn(12)) for _ in range(3)]
    together = pool_processes(measured)
    assert (together.processes, measured[0].processes) == (3, 0)
    for name in SPEEDS:
        assert astuple(together.of(name)) == pytest.approx(astuple(measured[0].of(name)))


def test_a_forecast_speed_has_an_interval_of_no_width() -> None:
    speeds = ForecastSpeeds(SPEEDS.__getitem__)
    assert (speeds.timed, speeds.problems) == (False, 0)
    assert speeds.of("sd") == Interval(50.0, 50.0, 50.0)
    assert speeds.ratio("fsd", "sd") == Interval(1.2, 1.2, 1.2)
    assert Machine().measure(drawn(5)).timed
