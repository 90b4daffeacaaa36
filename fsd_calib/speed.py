"""Tokens per second of several configurations, one prompt at a time.

Knows clocks and fairness: every configuration decodes the same problems, in turn, so that a machine that
slows down slows them all. Knows nothing of accuracy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fsd_calib.measure import Bench, Configuration
from fsd_calib.tasks import Problem


@dataclass
class Clock:
    """What one configuration took so far."""

    tokens: int = 0
    rounds: int = 0
    seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def seconds_per_round(self) -> float:
        return self.seconds / self.rounds


def time_interleaved(
    bench: Bench, configurations: Sequence[Configuration], problems: Sequence[Problem]
) -> dict[Configuration, Clock]:
    """Decodes every problem with every configuration, alternating; the first problem only warms up."""
    clocks = {configuration: Clock() for configuration in configurations}
    with bench.progress.step("measuring speed, one prompt at a time", len(problems)) as advance:
        for warm, problem in enumerate(problems):
            for configuration, clock in clocks.items():
                tokens, rounds, seconds = bench.time(configuration, problem)
                if warm:
                    clock.tokens += tokens
                    clock.rounds += rounds
                    clock.seconds += seconds
            advance(1)
    return clocks
