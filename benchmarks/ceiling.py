"""The ceiling of a plan compared with decoding: `python benchmarks/ceiling.py [--quick] [--pair MODEL …]`.

A plan says how many times as fast as the best lossless setting accepting every drafted token is, by replay and the
costs of a round. Here both decode the same problems in turn, which no trace was read of: some minutes with the bundled
pair, an hour with a real one, of whose texts only the beginnings are decoded.
"""

from __future__ import annotations

import math
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fsd_calib import Goal, RunConfig, SpeculativeDecoder, load_task
from fsd_calib.calibration.api import Calibration
from fsd_calib.engines.own import undisturbed_clock
from fsd_calib.tasks.base import Problem, Task
from fsd_calib.tasks.split import parts_of
from fsd_common.progress.chosen import Lines
from fsd_data import pair_paths
from fsd_decoding.profile.setting import Setting
from lib.common.claims import Claim
from lib.common.results import RESULTS, conclude, machine_facts, options_of
from lib.peers import RealPair

_OFF = 0.05  # of what decoding shows, that the ceiling may be off
_RESAMPLES = 2000
_GOAL = Goal(min_acc=0.98, explore=True)


class Amount(NamedTuple):
    """How much is read and decoded. limit, tokens: problems of the plan and new tokens of a text; None: all."""

    decoded: int
    limit: int | None = None
    tokens: int | None = None


BUNDLED, REAL, QUICK = Amount(120), Amount(32, 640, 96), Amount(12)


def main() -> int:
    options, machine = _parser().parse_args(), machine_facts()
    pair = None if options.pair is None else RealPair.of(options.pair, options.problems)
    amount = QUICK if options.quick else BUNDLED if pair is None else REAL
    config = RunConfig(progress=Lines(), compile="off", limit=amount.limit, max_new_tokens=amount.tokens)
    name, (target, draft) = "arithmetic", map(str, pair_paths())
    if pair is not None:
        (target, draft), config = pair.models, config.changed(dtype=pair.dtype, data=pair.problems)
        name = name if pair.problems is None else "gsm8k"
    options.out = options.out or RESULTS / f"ceiling{'' if pair is None else '_pair'}.json"
    ceiling = Calibration(name, target, draft, _GOAL, config=config).plan().ceiling
    assert ceiling is not None
    decoder = SpeculativeDecoder.from_pretrained(target, draft, dtype=config.dtype)
    data = None if pair is None else pair.problems
    task = load_task(name, 0, amount.limit, data, tokenizer=decoder.tokenizer, max_new_tokens=amount.tokens)
    problems = parts_of(task).certification[: 1 + amount.decoded]
    free = Setting("fsd-coupled", "js", ceiling.draft_length, math.inf)
    decoded = speeds(decoder, task, problems, (ceiling.lossless, free))
    gain = ratio(decoded[free], decoded[ceiling.lossless])
    off = abs(ceiling.gain / gain.value - 1)
    found = {"lossless": ceiling.lossless, "free": str(free), "ceiling": ceiling.gain, "decoded": gain} | {
        "amount": amount._asdict(), "pair": "bundled" if pair is None else pair.facts(),
    }  # fmt: skip
    text = f"the ceiling is {ceiling.gain:.3f}; decoded {gain.value:.3f} ({gain.low:.3f} to {gain.high:.3f})"
    return conclude(options, machine, found, [Claim.at_most("share that the ceiling is off", _OFF, off)], text)


def _parser() -> ArgumentParser:
    parser = options_of(__doc__, "ceiling.json")
    parser.add_argument("--pair", type=Path, nargs="+", metavar="MODEL", help="folders of a target and a draft")
    parser.add_argument("--problems", type=Path, help="with --pair: a file of GSM8K; default: the bundled arithmetic")
    parser.set_defaults(out=None)
    return parser


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

    drawn = np.random.default_rng(0).integers(0, len(free), (_RESAMPLES, len(free)))
    low, high = np.quantile([of(chosen) for chosen in drawn], [0.025, 0.975])
    return Gain(of(slice(None)), float(low), float(high))


if __name__ == "__main__":
    sys.exit(main())
