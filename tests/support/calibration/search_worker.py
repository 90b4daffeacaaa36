"""A program that searches a simulated world slowly and prints each configuration before it is decoded.

Usage: search_worker.py STORAGE SECONDS_PER_TRIAL [SLOWNESS SEED TRIALS]

With a slowness it pauses for a random time up to so many seconds wherever another process may come in between: before
and after it decides on a trial, and between the beginning of a trial and the write that names its worker.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from fsd_calib.search.max_speed import MaxSpeed
from fsd_calib.search.sampler import ProposingSampler
from fsd_calib.search.space import Space
from fsd_calib.search.trials import SearchResult, search
from fsd_common.progress.base import Silent
from fsd_decoding.profile.setting import Setting
from support.calibration.simulated_worlds import Formula, World, keep_accuracy

SPACE = Space(("fsd-coupled",), ("js", "kl_qp", "tv"), (2, 6, 10))


def world() -> World:
    return World(count=128, seed=4, shifts={"kl_qp": -0.8, "tv": 0.6})


GOAL = keep_accuracy(world())


def run_search(storage: str | None, of: World, trials: int = 60) -> SearchResult:
    return search(of.evaluator(), of.target(), Formula(), SPACE, GOAL, storage, "study", trials, Silent())


def pausing(work: Callable[..., Any], most: float, rng: random.Random) -> Callable[..., Any]:
    @wraps(work)
    def paused(*args: Any, **keywords: Any) -> Any:
        time.sleep(rng.uniform(0, most))
        found = work(*args, **keywords)
        time.sleep(rng.uniform(0, most))
        return found

    return paused


def main(storage: str, seconds: float, slowness: float = 0.0, seed: float = 0, trials: float = 60) -> None:
    searched_world, target, rng = world(), world().target(), random.Random(seed)

    def announce(configuration: Setting) -> None:
        print(configuration, flush=True)
        time.sleep(seconds)

    if slowness:
        for owner, name in ((MaxSpeed, "propose"), (ProposingSampler, "before_trial")):
            setattr(owner, name, pausing(getattr(owner, name), slowness, rng))
    searched_world.before = announce
    searched = search(
        searched_world.evaluator(), target, Formula(), SPACE, GOAL, storage, "study", int(trials), Silent()
    )
    for trial in searched.trials if slowness else ():
        print("ended with", trial.setting, flush=True)
    print("done", len(searched.trials), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(float, sys.argv[2:]))
