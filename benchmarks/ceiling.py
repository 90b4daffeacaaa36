"""The ceiling of a plan compared with decoding: `python benchmarks/ceiling.py [--quick]`; takes some minutes.

A plan says how many times as fast as the best lossless setting accepting every drafted token is, by replay and the
costs of a round. Here both decode the same tuning problems in turn, which no trace was read of.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fsd_calib import Goal, RunConfig, SpeculativeDecoder, load_task
from fsd_calib.calibration.api import Calibration
from fsd_calib.calibration.baseline import TRACED
from fsd_calib.engines.own import undisturbed_clock
from fsd_calib.tasks.base import Problem, Task
from fsd_calib.tasks.split import parts_of
from fsd_common.progress.chosen import Lines
from fsd_data import pair_paths
from fsd_decoding.profile.setting import Setting
from lib.common.claims import Claim
from lib.common.results import conclude, machine_facts, options_of

TASK = "arithmetic"
PROBLEMS, QUICK, RESAMPLES = 120, 12, 2000


_OFF = 0.05  # of what decoding shows, that the ceiling may be off


def main() -> int:
    options, machine = options_of(__doc__, "ceiling.json").parse_args(), machine_facts()
    pair, plan = pair_paths(), RunConfig(progress=Lines(), compile="off")
    ceiling = Calibration(TASK, *pair, Goal(min_acc=0.98), config=plan).plan().ceiling
    assert ceiling is not None
    decoder = SpeculativeDecoder.from_pretrained(*pair)
    task = load_task(TASK, seed=0, tokenizer=decoder.tokenizer)
    problems = parts_of(task).tuning[TRACED:][: 1 + (QUICK if options.quick else PROBLEMS)]
    free = Setting("fsd-coupled", "js", ceiling.draft_length, math.inf)
    decoded = speeds(decoder, task, problems, (ceiling.lossless, free))
    gain = ratio(decoded[free], decoded[ceiling.lossless])
    off = abs(ceiling.gain / gain.value - 1)
    found = {"lossless": ceiling.lossless, "free": str(free), "ceiling": ceiling.gain, "decoded": gain}
    text = f"the ceiling is {ceiling.gain:.3f}; decoded {gain.value:.3f} ({gain.low:.3f} to {gain.high:.3f})"
    return conclude(options, machine, found, [Claim.at_most("share that the ceiling is off", _OFF, off)], text)


class Gain(NamedTuple):
    """A ratio of tokens/s, with its 95 % interval."""

    value: float
    low: float
    high: float


def speeds(
    decoder: SpeculativeDecoder, task: Task, problems: Sequence[Problem], settings: Sequence[Setting]
) -> dict[Setting, Any]:
    """Returns tokens and seconds of every problem but the first, which warms up: (problems, 2) by setting."""
    clock: Callable[[], float] = undisturbed_clock(decoder.device)
    taken: dict[Setting, list[tuple[int, float]]] = {setting: [] for setting in settings}
    for place, problem in enumerate(problems):
        for setting in settings if place % 2 else reversed(settings):
            began = clock()
            (result,) = decoder.generate(
                [problem.prompt], task.max_new_tokens, ids=[problem.id], stop=task.stop, rule=setting.rule,
                threshold=setting.threshold, draft_length=setting.draft_length, batch_size=1,
            )  # fmt: skip
            taken[setting].append((result.emitted, clock() - began))
    return {setting: np.array(rows[1:]) for setting, rows in taken.items()}


def ratio(free: Any, lossless: Any) -> Gain:
    """Returns the ratio of tokens/s, with its interval by resampling problems."""

    def of(chosen: Any) -> float:
        tokens, seconds = free[chosen].sum(0) / lossless[chosen].sum(0)
        return float(tokens / seconds)

    drawn = np.random.default_rng(0).integers(0, len(free), (RESAMPLES, len(free)))
    low, high = np.quantile([of(chosen) for chosen in drawn], [0.025, 0.975])
    return Gain(of(slice(None)), float(low), float(high))


if __name__ == "__main__":
    sys.exit(main())
