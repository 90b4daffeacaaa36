"""How long a round takes, one prompt at a time.

Knows clocks and fairness: every configuration decodes the same problems, in turn, so that a machine that
slows down slows them all, and medians, so that a hiccup counts once. Knows nothing of accuracy.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from fsd_calib.measure import Bench, Configuration
from fsd_calib.tasks import Problem


def seconds_per_round(
    bench: Bench, configurations: Sequence[Configuration], problems: Sequence[Problem]
) -> Mapping[Configuration, float]:
    """The median over problems of seconds / rounds at batch 1; the first problem only warms up.

    Tokens a round over this are tokens per second. A round itself takes as long whatever it accepts, but its
    share of the prompt's time grows as rounds become fewer: so a configuration is timed itself.
    """
    taken: dict[Configuration, list[float]] = {configuration: [] for configuration in configurations}
    with bench.progress.step("timing rounds, one prompt at a time", len(problems)) as advance:
        for problem in problems:
            for configuration, seconds in taken.items():
                seconds.append(bench.time_round(configuration, problem))
            advance(1)
    return {configuration: statistics.median(seconds[1:]) for configuration, seconds in taken.items()}
