"""A process that searches a simulated world slowly, and says on stdout what it decodes. Knows its arguments only.

searching_worker.py STORAGE SECONDS_A_TRIAL
"""

from __future__ import annotations

import sys
import time

from fsd_calib.measuring.configuration import Configuration
from fsd_calib.progress import Silent
from fsd_calib.search.search import SearchResult, search
from fsd_calib.search.space import Space
from support.worlds import Formula, World, keep

SPACE = Space(("fsd-coupled",), ("js", "kl_qp", "tv"), (2, 6, 10))


def world() -> World:
    return World(count=128, seed=4, shifts={"kl_qp": -0.8, "tv": 0.6})


GOAL = keep(world())


def searched(storage: str | None, of: World, trials: int = 60) -> SearchResult:
    return search(of.evaluator(), of.target(), Formula(), SPACE, GOAL, storage, "study", trials, Silent())


def main(storage: str, seconds: float) -> None:
    of, target = world(), world().target()

    def say(configuration: Configuration) -> None:
        print(configuration, flush=True)
        time.sleep(seconds)

    of.before = say
    done = search(of.evaluator(), target, Formula(), SPACE, GOAL, storage, "study", 60, Silent())
    print("done", len(done.trials), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
