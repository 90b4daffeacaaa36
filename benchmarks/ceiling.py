"""The ceiling of a plan compared with decoding: `python benchmarks/ceiling.py [--quick] [--pair MODEL …]`.

A plan says how many times as fast as the best lossless setting accepting every drafted token is, by replay and the
costs of a round. Here both decode the same problems, which no trace was read of: with the bundled pair in turn, which
takes some minutes. With a real one that would take a night, so the texts are decoded together and their rounds counted,
and what a round takes is timed on a few of them.
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
from fsd_calib.engines.own import RoundClock, undisturbed_clock
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
    """How many problems are decoded. timed: those whose rounds are timed; None: whole texts of all are."""

    decoded: int
    timed: int | None = None


BUNDLED, REAL, QUICK, QUICK_REAL = Amount(120), Amount(64, 6), Amount(12), Amount(12, 2)
_TIMED_TOKENS = 48  # of each timed text


def main() -> int:
    options, machine = _parser().parse_args(), machine_facts()
    pair = None if options.pair is None else RealPair.of(options.pair, options.problems)
    amount = (QUICK, QUICK_REAL)[pair is not None] if options.quick else (BUNDLED, REAL)[pair is not None]
    config = RunConfig(progress=Lines(), compile="off")
    name, (target, draft) = "arithmetic", map(str, pair_paths())
    if pair is not None:
        (target, draft), config = pair.models, config.changed(dtype=pair.dtype, data=pair.problems)
        name = name if pair.problems is None else "gsm8k"
    options.out = options.out or RESULTS / f"ceiling{'' if pair is None else '_pair'}.json"
    ceiling = Calibration(name, target, draft, _GOAL, config=config).plan().ceiling
    assert ceiling is not None
    decoder = SpeculativeDecoder.from_pretrained(target, draft, dtype=config.dtype)
    data = None if pair is None else pair.problems
    task = load_task(name, 0, None, data, tokenizer=decoder.tokenizer)
    problems = parts_of(task).certification[: 1 + amount.decoded]
    settings = (ceiling.lossless, free := Setting("fsd-coupled", "js", ceiling.draft_length, math.inf))
    if amount.timed is None:
        decoded = speeds(decoder, task, problems, settings)
    else:
        decoded = counted(decoder, task, problems, settings, amount.timed)
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


def counted(
    decoder: SpeculativeDecoder, task: Task, problems: Sequence[Problem], settings: Sequence[Setting], timed: int
) -> dict[Setting, Any]:
    """Returns tokens of every problem, and the seconds of its rounds and prompt one row at a time: (problems, 2)."""
    prompts, ids = [problem.prompt for problem in problems], [problem.id for problem in problems]
    clock = undisturbed_clock(decoder.device)
    watches, prefills = {setting: RoundClock(decoder.device, clock) for setting in settings}, list[float]()
    for place in range(1 + timed):  # the first warms up
        for setting in settings if place % 2 else reversed(settings):
            watches[setting].restart()
            decoder.generate(
                prompts[place : place + 1], _TIMED_TOKENS, ids=ids[place : place + 1], rule=setting.rule,
                threshold=setting.threshold, draft_length=setting.draft_length, observer=watches[setting],
            )  # fmt: skip
        began = clock()
        decoder.generate(prompts[place : place + 1], 1, ids=ids[place : place + 1], rule="coupled", draft_length=1)
        prefills.append(clock() - began)
    found = {}
    for setting in settings:
        results = decoder.generate(
            prompts, task.max_new_tokens, ids=ids, stop=task.stop, rule=setting.rule, threshold=setting.threshold,
            draft_length=setting.draft_length,
        )  # fmt: skip
        each, prefill = float(np.median(watches[setting].seconds)), float(np.median(prefills))
        found[setting] = np.array([(result.emitted, prefill + result.rounds * each) for result in results])
    return found


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
